//! Headers that a rule adds to responses.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// A header that a rule adds to responses. It replaces the app's header of this name.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResponseHeader {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = names::header("name"), validation = Rule::new("!self.matches('(?i)^(connection|content-length|content-type|date|keep-alive|proxy-.*|retry-after|te|trailer|transfer-encoding|upgrade)$')")
        .message("name must not be a header that HTTP or the agent needs, such as Content-Length, Content-Type, Date or Retry-After"))]
    pub name: String,
    /// Value of the header. It can contain the placeholders `{remaining}`, `{limit}` and `{resetAfter}` (seconds),
    /// which describe the rule's tightest limit, `{policy}` (namespace and name) and `{rule}`.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^([ -z|~]|[{](remaining|limit|resetAfter|policy|rule)[}])*$')")
        .message("value must be of visible ASCII characters and spaces, with braces only around the placeholders remaining, limit, resetAfter, policy and rule, as in {remaining}"))]
    pub value: String,
}
