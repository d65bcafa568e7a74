//! What happens to a request beyond a limit, and how a refusal looks.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{MaxWait, ResponseHeader};

/// What happens to a request beyond a limit, and what the client receives if it is refused.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.action != 'Wait' || has(self.maxWait)")
        .message("maxWait is needed with action Wait: say how long a request may wait, such as 75ms")
        .field_path(".maxWait"),
    validation = Rule::new("self.action != 'Reject' || !has(self.maxWait)")
        .message("maxWait is not valid with action Reject, which lets no request wait: remove maxWait, or use action Wait")
        .field_path(".maxWait")
)]
pub struct OnLimit {
    /// What happens to a request beyond a limit.
    #[serde(default)]
    pub action: OnLimitAction,
    /// How long a request may wait for its turn, 1ms to 5m. Required with action Wait, and only allowed there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "MaxWait")]
    pub max_wait: Option<MaxWait>,
    /// HTTP status of the refusal. By default 429, or 403 with action Deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32", range(min = 400, max = 599))]
    pub status: Option<i32>,
    /// Body of the refusal. By default a JSON object that names the limit that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 4096))]
    pub body: Option<String>,
    /// Media type of the body. By default `text/plain; charset=utf-8`, or `application/json` if there is no `body`
    /// here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(; ?[!-~]+)*$')")
        .message("contentType must be a media type, such as text/html or application/json; charset=utf-8"))]
    pub content_type: Option<String>,
    /// Which fields tell the client about its quota. `Retry-After` is sent with every refusal.
    #[serde(default)]
    pub headers: HeaderStyle,
    /// Which responses get these fields: all by default, or only refusals.
    #[serde(default)]
    pub headers_on: HeadersOn,
    /// Headers of the refusal. A rule's `responseHeaders` are on its refusals, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub set: Vec<ResponseHeader>,
    /// What happens to a message beyond a limit; by default Notice. Only in a rule with per Message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OnMessage")]
    pub on_message: Option<OnMessage>,
}

/// What happens to a request beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnLimitAction {
    /// It is refused at once.
    #[default]
    Reject,
    /// It gets a turn and waits for it. If its turn would come later than `maxWait`, it is refused at once.
    Wait,
}

/// Which fields tell the client about its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers).
    #[default]
    #[serde(rename = "IETF")]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    Legacy,
    /// Both of them.
    Both,
    /// Neither of them.
    None,
}

/// Which responses get the fields that tell the client about its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeadersOn {
    /// All responses.
    #[default]
    All,
    /// Only refusals.
    Refusals,
}

/// What happens to a message beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OnMessage {
    /// It does not reach the app. The client receives a text message instead: a JSON object that names the limit that
    /// refused.
    #[default]
    Notice,
    /// The connection is closed with code 1008.
    Close,
}
