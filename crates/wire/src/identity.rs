//! How an agent proves which pod it is: `POST /v1/identity` of the operator.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where an agent asks for its certificate.
pub const IDENTITY_PATH: &str = "/v1/identity";

/// The DNS name in the certificate that an operator shows to agents.
pub const OPERATOR_NAME: &str = "operator.weir.dev";

/// The body of the request.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdentityRequest {
    /// A certificate signing request (PKCS #10) in PEM. Only its key counts; the names in it are ignored.
    pub csr: String,
    /// The pod's projected service account token, for the operator's audience.
    pub token: String,
}

impl fmt::Debug for IdentityRequest {
    /// Leaves out the token, because a token is enough to act as the pod.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdentityRequest").field("csr", &self.csr).finish_non_exhaustive()
    }
}

/// 200: the agent's certificate. Any other answer is an [`IdentityRefusal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityReply {
    /// The certificate in PEM: for servers, with the DNS name `<uid>.<namespace>.pod.weir.dev`.
    pub certificate: String,
    /// The authorities to trust from now on, in PEM: those that sign operator certificates and the next reply.
    pub authorities: String,
}

/// Why the operator issued no certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRefusal {
    /// Why, for programs.
    pub error: IdentityRefusalKind,
    /// Why, and how to fix it, for people.
    pub message: String,
}

/// Kinds of [`IdentityRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum IdentityRefusalKind {
    /// 400: the body is not an [`IdentityRequest`].
    Malformed,
    /// 401: the apiserver does not accept the token for this audience.
    Unauthenticated,
    /// 403: the token belongs to a service account but to no pod.
    NoPod,
    /// 429: too many requests at once; `Retry-After` says when to retry.
    Busy,
    /// 503: the apiserver does not answer, or there is no authority yet.
    Unavailable,
}
