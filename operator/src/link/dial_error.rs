//! The errors of connecting to an agent. [`trust`](super::trust) explains the errors of certificates.

use std::{io, sync::Arc};

use weir_channel::ChannelError;

use super::ContactError;

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot connect to {address}")]
    Connect { address: Arc<str>, source: io::Error },
    #[error("no TLS")]
    Tls(#[source] io::Error),
    #[error("the operator has no certificate")]
    NoCertificate,
    #[error("the pod cannot be named in a certificate")]
    Name(#[source] rustls::pki_types::InvalidDnsNameError),
    #[error("no channel")]
    NoChannel,
    #[error("no answer")]
    Channel(#[source] ChannelError),
    #[error("no answer")]
    Http(#[source] hyper::Error),
    /// The answer did not come from an agent.
    #[error(transparent)]
    Answer(ContactError),
}

/// Returns true if the connection failed because the kernel's probes got no answer.
pub(super) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
}

/// Returns the text of an error with its causes: libraries put the important part ("connection refused") into the last
/// one.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
