//! The names of an agent in its certificate.

use std::{fmt, sync::Arc};

use rustls::pki_types::{InvalidDnsNameError, ServerName};

use crate::{dialing::TlsFiles, host, world::ObjectKey};

/// The domain of the pods' names in certificates. It does not exist in DNS.
const DOMAIN: &str = "pod.weir.dev";

/// The identity that an agent must prove.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// The agent of this pod, with a certificate from the operator.
    Pod(PodIdentity),
    /// The agent of this host, with an external certificate for its DNS name or address.
    Host { name: String, files: Arc<TlsFiles> },
}

impl Peer {
    /// Returns the peer for the host of `authority`, which can have a port.
    pub(crate) fn host(authority: &str, files: Arc<TlsFiles>) -> Self {
        Self::Host { name: host::without_port(authority).to_owned(), files }
    }

    /// Returns the name to verify the agent's certificate against.
    ///
    /// # Errors
    ///
    /// No certificate can have this name.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, InvalidDnsNameError> {
        match self {
            Self::Pod(pod) => ServerName::try_from(pod.dns_name()),
            Self::Host { name, .. } => ServerName::try_from(name.clone()),
        }
    }
}

impl From<PodIdentity> for Peer {
    fn from(pod: PodIdentity) -> Self {
        Self::Pod(pod)
    }
}

/// A pod, distinct from any other pod of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodIdentity {
    pub(crate) key: ObjectKey,
    pub(crate) uid: Arc<str>,
}

impl PodIdentity {
    /// Returns the DNS name to verify a certificate against: UID and namespace, which no two pods share. A pod's own
    /// name can be too long for a DNS name.
    pub(crate) fn dns_name(&self) -> String {
        format!("{}.{}.{DOMAIN}", self.uid, self.key.namespace)
    }

    /// Returns the URI in the certificate, for people: it contains the pod's own name.
    pub(crate) fn uri(&self) -> String {
        let ObjectKey { namespace, name } = &self.key;
        format!("weir://{namespace}/pod/{name}/{}", self.uid)
    }
}

impl fmt::Display for PodIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} ({})", self.key, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_kubernetes_names_fit_a_certificate() {
        let pod = PodIdentity {
            key: ObjectKey::new("n".repeat(63), "p".repeat(253)),
            uid: "3f0c2f5e-6a51-4d3b-9a68-0d8f8d2c7c11".into(),
        };
        assert!(ServerName::try_from(pod.dns_name()).is_ok(), "{}", pod.dns_name());
        assert!(pod.uri().ends_with(&*pod.uid) && pod.uri().contains("/pod/ppp"), "{}", pod.uri());
    }
}
