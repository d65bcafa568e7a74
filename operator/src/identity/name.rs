//! What a pod is called in a certificate.

use std::fmt;

use crate::world::ObjectKey;

/// Behind every name that stands for a pod; nobody looks it up.
const DOMAIN: &str = "pod.weir.dev";

/// A pod that is or was, and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodIdentity {
    pub(crate) key: ObjectKey,
    pub(crate) uid: String,
}

impl PodIdentity {
    /// The DNS name that a certificate is held against: namespace and UID, which no two pods share. A pod's own name may be
    /// longer than a DNS name has room for.
    pub(crate) fn dns_name(&self) -> String {
        format!("{}.{}.{DOMAIN}", self.uid, self.key.namespace)
    }

    /// The URI beside it, for people: it names the pod as they know it.
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
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn the_longest_names_that_kubernetes_knows_are_names() {
        let pod = PodIdentity {
            key: ObjectKey::new("n".repeat(63), "p".repeat(253)),
            uid: "3f0c2f5e-6a51-4d3b-9a68-0d8f8d2c7c11".to_owned(),
        };
        assert!(ServerName::try_from(pod.dns_name()).is_ok(), "{}", pod.dns_name());
        assert!(pod.uri().ends_with(&pod.uid) && pod.uri().contains("/pod/ppp"), "{}", pod.uri());
    }
}
