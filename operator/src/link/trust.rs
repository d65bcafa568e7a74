//! Explains errors of trust in words for the policy's status: which side did not trust the other, and how to fix it.
//!
//! The causes in the error's chain use the terms of TLS, while the readers of a status need the terms of Kubernetes.
//! Each text fits into the message of a drifted pod.

use std::{error::Error, io, iter};

use rustls::{CertificateError, Error as TlsError};
use weir_channel::ChannelError;

use super::dial_error::DialError;
use crate::{
    dialing::TlsFiles,
    identity::{Peer, PodIdentity},
};

/// The text for a peer that did not select the protocol of `weir-channel`.
const NO_CHANNEL: &str = "it speaks TLS but not the operator's protocol (weir/1): kubectl rollout restart its workload if its agent \
                          is of another version; if that does not help, another program listens there";
const NO_CHANNEL_OF_HOST: &str = "it speaks TLS but not the operator's protocol (weir/1): start an agent of the operator's version \
                                  there, if it is an agent";

/// Returns the text for an error about certificates, or `None` for any other error.
pub(super) fn explain(error: &DialError, peer: &Peer) -> Option<String> {
    let pod = match peer {
        Peer::Pod(pod) => pod,
        Peer::Host { name, files } => {
            return match error {
                DialError::NoChannel => Some(NO_CHANNEL_OF_HOST.to_owned()),
                error => tls_error(error).map(|cause| of_files(cause, name, files)),
            };
        }
    };
    match error {
        DialError::NoChannel => return Some(NO_CHANNEL.to_owned()),
        DialError::Name(_) => {
            return Some(format!("a certificate cannot contain the name of {pod}: give the pod a shorter name"));
        }
        DialError::NoCertificate => {
            let problem = "the operator has no certificate with which to connect: see the operator's log, or set \
                           weir.dev/control: plaintext";
            return Some(problem.to_owned());
        }
        _ => {}
    }
    if let Some(cause) = tls_error(error) {
        return Some(of_tls(cause, pod));
    }
    // An agent without a certificate closes the connection.
    match error {
        DialError::Tls(cause) if is_hang_up(cause.kind()) => Some(
            "it closes the connection during the TLS handshake: it has no certificate yet (see the log of weir-agent), \
             or does not speak TLS"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Returns the text for an answer without frames, such as the alert of a server that only speaks TLS.
pub(super) fn explain_plain(error: &DialError) -> Option<String> {
    matches!(error, DialError::Channel(ChannelError::Frame(_))).then(|| {
        "the agent does not speak the operator's protocol in plain text: if it uses TLS, remove weir.dev/control: \
         plaintext from the pod template, or, without a cluster, use https:// in its URL; if it has an earlier version, \
         kubectl rollout restart its workload"
            .to_owned()
    })
}

fn of_tls(cause: &TlsError, pod: &PodIdentity) -> String {
    match cause {
        TlsError::InvalidCertificate(problem) => of_certificate(problem, pod),
        TlsError::InvalidMessage(_) => {
            "it does not speak TLS: kubectl rollout restart its workload if its agent is of an earlier version, or set \
             weir.dev/control: plaintext in its template if that is intended"
                .to_owned()
        }
        TlsError::AlertReceived(alert) => of_alert(&format!("{alert:?}")),
        TlsError::NoApplicationProtocol => NO_CHANNEL.to_owned(),
        other => format!("TLS failed: {other}"),
    }
}

fn of_certificate(problem: &CertificateError, pod: &PodIdentity) -> String {
    match problem {
        CertificateError::NotValidForName => format!("its certificate does not name {}", pod.key),
        CertificateError::NotValidForNameContext { presented, .. } => {
            let shown = presented.iter().find(|name| name.contains("weir://")).or(presented.first());
            let shown = shown.map_or("an unnamed peer", |shown| uri_in(shown));
            format!("another process answers at its address, with the certificate of {shown}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired: it could not get another one (see the log of weir-agent), or the clock of its node is \
             wrong, or, if all pods report this, the operator's clock"
                .to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet: set the operator's clock, which is behind the clock of the operator that issued it"
                .to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of an authority that is not the operator's: delete the pod, so that it gets another one; if \
             that does not help, another program answers at its address"
                .to_owned()
        }
        other => format!("its certificate is not valid: {other}"),
    }
}

/// Returns the text for an alert, by its name in Rust, such as `UnknownCA`.
fn of_alert(alert: &str) -> String {
    let why = match alert {
        "UnknownCA" | "DecryptError" => "is of an authority that it does not know",
        // TLS has the same alert for a certificate that is not valid yet.
        "CertificateExpired" => {
            return "it reports that the operator's certificate has expired or is not valid yet: the clock of its node is wrong, or, if \
                    all pods report this, the operator's clock; the fault ends when the clock is right"
                .to_owned();
        }
        "CertificateRequired" => "is missing",
        "NoApplicationProtocol" => return NO_CHANNEL.to_owned(),
        other => return format!("it ended TLS with the alert {other}"),
    };
    format!(
        "it reports that the operator's certificate {why}: delete the pod, so that its agent gets the new authorities"
    )
}

/// Explains a TLS error of an agent outside of a cluster. Both certificates are in files, and the text names them.
fn of_files(cause: &TlsError, host: &str, files: &TlsFiles) -> String {
    let TlsFiles { agent_ca, client_cert, .. } = files;
    let (agent_ca, client_cert) = (agent_ca.display(), client_cert.display());
    match cause {
        TlsError::InvalidCertificate(problem) => match problem {
            CertificateError::NotValidForName => format!(
                "its certificate (its --control-cert) is not for {host}: give it one that names {host}, or use in its URL a \
                 host that the certificate names"
            ),
            CertificateError::NotValidForNameContext { presented, .. } => {
                let names = presented.iter().map(|name| uri_in(name)).collect::<Vec<_>>().join(", ");
                let names = if names.is_empty() { "nobody (it has no subject alternative name)" } else { &names };
                format!(
                    "its certificate (its --control-cert) is for {names}, not for {host}: give it one that names {host}, or \
                     use in its URL a host that the certificate names"
                )
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: put a new one into its --control-cert and --control-key, or set the clock of \
                 this machine"
                    .to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate (its --control-cert) is not valid yet: set the clock of this machine".to_owned()
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "no authority of --agent-ca {agent_ca} has signed its certificate (its --control-cert): add the one that \
                 did, or give it another certificate"
            ),
            other => format!("its certificate (its --control-cert) is not valid: {other}"),
        },
        TlsError::InvalidMessage(_) => {
            "it does not speak TLS: start the agent with --control-cert, --control-key and --control-client-ca, or use http:// in its URL"
                .to_owned()
        }
        TlsError::NoApplicationProtocol => NO_CHANNEL_OF_HOST.to_owned(),
        TlsError::AlertReceived(alert) => match &*format!("{alert:?}") {
            "UnknownCA" | "DecryptError" => format!(
                "it does not know who signed --client-cert {client_cert}: add that authority to its --control-client-ca"
            ),
            "CertificateExpired" => format!(
                "it reports that --client-cert {client_cert} has expired or is not valid yet: put a new one there, or set the \
                 agent's clock"
            ),
            "NoApplicationProtocol" => NO_CHANNEL_OF_HOST.to_owned(),
            alert @ ("BadCertificate" | "UnsupportedCertificate" | "CertificateUnknown") => format!(
                "it does not accept --client-cert {client_cert} for a client (alert {alert}): the certificate must allow clientAuth"
            ),
            other => format!("it ended TLS with the alert {other}"),
        },
        other => format!("TLS failed: {other}"),
    }
}

/// Returns the URI within `UniformResourceIdentifier("weir://…")`, the form in which errors print it.
fn uri_in(shown: &str) -> &str {
    shown.split('"').nth(1).unwrap_or(shown)
}

fn is_hang_up(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

/// Returns the TLS error in a chain of causes. It can be inside an [`io::Error`], which does not return it as its
/// source.
fn tls_error(error: &DialError) -> Option<&TlsError> {
    let mut causes = iter::successors(Some(error as &(dyn Error + 'static)), |&error| error.source());
    causes.find_map(|cause| {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        cause.downcast_ref().or_else(|| inner?.downcast_ref())
    })
}
