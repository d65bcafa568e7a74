//! The errors of connecting to an agent. [`trust`](super::trust) explains the errors of certificates.

use std::{io, sync::Arc};

use weir_channel::ChannelError;

#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("cannot connect to {address}")]
    Connect { address: Arc<str>, source: io::Error },
    #[error("no TLS")]
    Tls(#[source] io::Error),
    #[error("the operator has no certificate")]
    NoCertificate,
    #[error("a certificate cannot contain the name of the pod")]
    Name(#[source] rustls::pki_types::InvalidDnsNameError),
    #[error("no channel")]
    NoChannel,
    #[error("no answer")]
    Channel(#[source] ChannelError),
}

/// Returns true if the connection failed because the kernel's probes got no answer.
pub(super) fn is_silence(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
    matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable)
}
