//! The treatment of requests beyond a limit, and the form of refusals.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MaxWait, ResponseHeader, names};

/// The treatment of requests beyond a limit, and the response to refused requests.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.action) || self.action != 'Wait' || has(self.maxWait)")
        .message("maxWait is needed with action Wait: say how long a request may wait, such as 75ms")
        .field_path(".maxWait"),
    validation = Rule::new("(has(self.action) && self.action != 'Reject') || !has(self.maxWait)")
        .message("maxWait is not valid with action Reject, which lets no request wait: remove maxWait, or use action Wait")
        .field_path(".maxWait")
)]
pub struct OnLimit {
    /// Whether a request beyond a limit is refused immediately or waits for its turn.
    #[serde(default)]
    pub action: OnLimitAction,
    /// Maximum time that a request waits for its turn, 1ms to 5m. Required with action Wait, and allowed only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MaxWait")]
    pub max_wait: Option<MaxWait>,
    /// HTTP status of the refusal. The default is 429, or 403 for a rule with action Deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 400, max = 599))]
    pub status: Option<i32>,
    /// Body of the refusal, or text of the answer to a message. It can contain the placeholders `{remaining}`, `{limit}`
    /// and `{resetAfter}` (seconds), which describe the limit that refused, `{policy}` (namespace and name) and `{rule}`.
    /// All other braces are text. The default is a JSON object that names the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 4096))]
    pub body: Option<String>,
    /// Media type of the body. The default is `text/plain; charset=utf-8` with `body`, and `application/json` without
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = names::media_type())]
    pub content_type: Option<String>,
    /// Headers that describe the client's quota. `Retry-After` is always sent, unless a retry cannot help.
    #[serde(default)]
    pub headers: HeaderStyle,
    /// Responses that get these headers: all responses, or only refusals.
    #[serde(default)]
    pub headers_on: HeadersOn,
    /// Headers to set in refusals, in addition to the rule's `responseHeaders`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub set: Vec<ResponseHeader>,
    /// Treatment of messages beyond a limit: the client gets a notice (Notice, the default), or the connection is
    /// closed (Close). Allowed only in a rule with per Message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnMessage")]
    pub on_message: Option<OnMessage>,
}

/// The treatment of requests beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnLimitAction {
    /// The request is refused immediately.
    #[default]
    Reject,
    /// The request waits for its turn. If the turn would come later than `maxWait`, the request is refused immediately.
    Wait,
}

/// The headers that describe the client's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    #[default]
    #[serde(rename = "IETF")]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    Legacy,
    /// The headers of both styles.
    Both,
    /// No headers.
    None,
}

/// The responses that get the headers that describe the client's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeadersOn {
    /// All responses.
    #[default]
    All,
    /// Only refusals.
    Refusals,
}

/// The treatment of messages beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnMessage {
    /// The message does not reach the app. Instead, the client receives a text message: the `body`, or a JSON object that
    /// names the limit.
    #[default]
    Notice,
    /// The connection is closed with code 1008.
    Close,
}
