//! The parts of a refusal that do not depend on the request. They are prepared when a rule comes into force. The other
//! parts are rendered for each refusal; the agent's short path caches recent responses.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::own_field::RuleHeader;

/// The parsed content of `onLimit`.
#[derive(Clone, Debug)]
pub(super) struct RefusalForm {
    pub(super) status: StatusCode,
    pub(super) body: Option<Bytes>,
    pub(super) content_type: HeaderValue,
    pub(super) closes: bool,
    /// The headers that the rule sets in refusals.
    pub(super) set: Vec<RuleHeader>,
}

/// The prepared refusals of one rule.
#[derive(Debug)]
pub(super) struct RefusalText {
    pub(super) status: StatusCode,
    pub(super) content_type: HeaderValue,
    /// Whether to close the connection after a message beyond a limit.
    pub(super) closes: bool,
    pub(super) set: Vec<RuleHeader>,
    body: Option<Bytes>,
    /// For each limit, the default body up to the number of seconds.
    starts: Vec<String>,
    /// The default body for a banned key, up to the number of seconds.
    banned: String,
    /// The default body for a rule without limits.
    denied: Bytes,
}

impl RefusalText {
    /// `error` names what a request exceeds. It needs no escapes.
    pub(super) fn new(form: RefusalForm, (policy, rule): (&str, &str), error: &str, limits: &[Box<str>]) -> Self {
        let RefusalForm { status, body, content_type, closes, set } = form;
        let starts = limits.iter().map(|limit| start(error, policy, rule, limit)).collect();
        let denied = format!("{{\"error\":\"denied\",\"policy\":\"{policy}\",\"rule\":\"{rule}\"}}\n").into();
        let banned = format!(r#"{{"error":"banned","policy":"{policy}","rule":"{rule}","retryAfterSeconds":"#);
        Self { status, content_type, closes, set, body, starts, banned, denied }
    }

    /// Returns the body of a refusal.
    pub(super) fn body(&self, limit: usize, retry_after_seconds: Option<u64>) -> Bytes {
        if let Some(body) = &self.body {
            return body.clone();
        }
        // As in `QuotaHeaders::policy`, the index of the limit can be the index in a later snapshot.
        match self.starts.get(limit).or(self.starts.first()) {
            Some(start) => until(start, retry_after_seconds),
            None => self.denied.clone(),
        }
    }

    /// Returns the body of a refusal of a banned key.
    pub(super) fn banned(&self, retry_after_seconds: Option<u64>) -> Bytes {
        self.body.clone().unwrap_or_else(|| until(&self.banned, retry_after_seconds))
    }
}

/// Returns a default body with this start and this number of seconds.
fn until(start: &str, seconds: Option<u64>) -> Bytes {
    match seconds {
        Some(seconds) => format!("{start}{seconds}}}\n").into(),
        None => format!("{start}null}}\n").into(),
    }
}

/// Returns the start of the default body. Names are DNS labels, so they need no escapes.
fn start(error: &str, policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"{error}","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: Option<&'static str>) -> RefusalText {
        let form = RefusalForm {
            status: StatusCode::from_u16(499).expect("a status"),
            body: body.map(Bytes::from),
            content_type: HeaderValue::from_static("text/x"),
            closes: false,
            set: Vec::new(),
        };
        RefusalText::new(form, ("shop/checkout", "per-client"), "rate limited", &["burst".into(), "daily".into()])
    }

    #[test]
    fn a_body_is_the_rules_own_or_names_the_limit() {
        for (limit, named) in [(0, "burst"), (1, "daily"), (2, "burst")] {
            for seconds in [None, Some(0), Some(1), Some(9), Some(10), Some(86_400), Some(u64::MAX)] {
                let body = text(None).body(limit, seconds);
                let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                let expected = serde_json::json!({
                    "error": "rate limited", "policy": "shop/checkout", "rule": "per-client", "limit": named,
                    "retryAfterSeconds": seconds,
                });
                assert_eq!((said, body.last()), (expected, Some(&b'\n')));
            }
        }
        assert_eq!(text(Some("slow down")).body(0, Some(1)), "slow down");
        let said: serde_json::Value = serde_json::from_slice(&text(None).banned(Some(900))).expect("JSON");
        let expected = serde_json::json!({
            "error": "banned", "policy": "shop/checkout", "rule": "per-client", "retryAfterSeconds": 900,
        });
        assert_eq!(said, expected);
        assert_eq!(text(Some("slow down")).banned(Some(1)), "slow down");
    }
}
