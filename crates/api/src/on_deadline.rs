//! The response to requests that exceed the policy's deadline.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The response to requests that exceed the policy's deadline.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OnDeadline {
    /// HTTP status of the response. The default is 504. gRPC clients get `DEADLINE_EXCEEDED` with any status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 400, max = 599))]
    pub status: Option<i32>,
    /// Body of the response. The default is a line that names the deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 4096))]
    pub body: Option<String>,
    /// Media type of the body. The default is `text/plain; charset=utf-8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::media_type())]
    pub content_type: Option<String>,
}
