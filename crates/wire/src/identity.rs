//! `POST /v1/identity` of the operator: an agent proves the identity of its pod, and gets a certificate.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The path at which an agent requests its certificate.
pub const IDENTITY_PATH: &str = "/v1/identity";

/// The DNS name in the certificate that an operator presents to agents.
pub const OPERATOR_NAME: &str = "operator.weir.dev";

/// The body of the request for a certificate. Later versions can add fields: the operator ignores unknown fields.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRequest {
    /// A certificate signing request (PKCS #10) in PEM. The operator uses only its key and ignores its names.
    pub csr: String,
    /// The pod's projected service account token, for the operator's audience.
    pub token: String,
}

impl fmt::Debug for IdentityRequest {
    /// Omits the token, because a token is enough to act as the pod.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityRequest").field("csr", &self.csr).finish_non_exhaustive()
    }
}

/// 200: the agent's certificate. Any other answer is an [`IdentityRefusal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityReply {
    /// The certificate in PEM. It is a server certificate with the DNS name `<uid>.<namespace>.pod.weir.dev`.
    pub certificate: String,
    /// The authorities that the agent trusts from now on, in PEM. They sign operator certificates and the certificate
    /// of the next reply.
    pub authorities: String,
}

/// The reason why the operator issued no certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRefusal {
    /// The reason, for programs.
    pub error: IdentityRefusalKind,
    /// The reason and how to fix it, for people.
    pub message: String,
}

/// The kinds of [`IdentityRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IdentityRefusalKind {
    /// 400: the body is not an [`IdentityRequest`].
    Malformed,
    /// 401: the apiserver does not accept the token for this audience.
    Unauthenticated,
    /// 403: the token belongs to a service account but to no pod.
    NoPod,
    /// 429: too many requests at the same time. `Retry-After` contains the time after which to retry.
    Busy,
    /// 503: the apiserver does not answer, or there is no authority yet.
    Unavailable,
}
