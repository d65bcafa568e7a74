//! The parts of a refusal that do not depend on the request. They are prepared when a rule comes into force. The other
//! parts are rendered for each refusal. The agent's short path caches recent responses.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::own_header::{Numbers, OwnBody, RuleHeader};

/// The maximum number of bytes of the reason in a WebSocket close frame (RFC 6455 section 5.5).
const MAX_REASON: usize = 123;

/// The parsed content of `onLimit`.
#[derive(Clone, Debug)]
pub(super) struct RefusalForm {
    pub(super) status: StatusCode,
    pub(super) body: Option<OwnBody>,
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
    body: Option<OwnBody>,
    /// For each limit, the default body up to the number of seconds.
    starts: Vec<String>,
    /// For each limit, shorter starts for the reason of a close, with fewer and fewer names.
    shorter: Vec<[String; 3]>,
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
        let shorter = limits.iter().filter(|_| closes).map(|limit| shorter_starts(error, rule, limit)).collect();
        let denied = format!("{{\"error\":\"denied\",\"policy\":\"{policy}\",\"rule\":\"{rule}\"}}\n").into();
        let banned = format!(r#"{{"error":"banned","policy":"{policy}","rule":"{rule}","retryAfterSeconds":"#);
        Self { status, content_type, closes, set, body, starts, shorter, banned, denied }
    }

    /// Returns the body of a refusal.
    pub(super) fn body(&self, limit: usize, retry_after_seconds: Option<u64>, numbers: Numbers) -> Bytes {
        if let Some(body) = &self.body {
            return body.text(numbers);
        }
        // As in `QuotaHeaders::policy`, the index of the limit can be the index in a later snapshot.
        match self.starts.get(limit).or(self.starts.first()) {
            Some(start) => until(start, retry_after_seconds),
            None => self.denied.clone(),
        }
    }

    /// Returns the reason for a close: the body of the refusal. If the default body is too long for a close frame, which
    /// would cut it, it has fewer names.
    pub(super) fn reason(&self, limit: usize, retry_after_seconds: Option<u64>, numbers: Numbers) -> Bytes {
        let body = self.body(limit, retry_after_seconds, numbers);
        let fits = |body: &Bytes| body.trim_ascii_end().len() <= MAX_REASON;
        if self.body.is_some() || fits(&body) {
            return body;
        }
        let shorter = self.shorter.get(limit).or(self.shorter.first());
        shorter.into_iter().flatten().map(|start| until(start, retry_after_seconds)).find(fits).unwrap_or(body)
    }

    /// Returns the body of a refusal of a banned key.
    pub(super) fn banned(&self, retry_after_seconds: Option<u64>, numbers: Numbers) -> Bytes {
        self.body.as_ref().map_or_else(|| until(&self.banned, retry_after_seconds), |body| body.text(numbers))
    }
}

/// Returns a default body with this start and this number of seconds.
fn until(start: &str, seconds: Option<u64>) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let seconds = seconds.map_or("null", |seconds| digits.format(seconds));
    // Faster than `format!`: hyper's path renders each refusal.
    [start, seconds, "}\n"].concat().into()
}

/// Returns the start of the default body. Names are DNS labels, so they need no escapes.
fn start(error: &str, policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"{error}","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
}

/// Returns shorter and shorter starts of the default body: without the policy, without policy and limit, and without
/// any names.
fn shorter_starts(error: &str, rule: &str, limit: &str) -> [String; 3] {
    [format!(r#""rule":"{rule}","limit":"{limit}","#), format!(r#""rule":"{rule}","#), String::new()]
        .map(|names| format!(r#"{{"error":"{error}",{names}"retryAfterSeconds":"#))
}

#[cfg(test)]
mod tests {
    use weir_expressions::body_template;

    use super::*;

    const NUMBERS: Numbers = Numbers { remaining: 2, limit: 100, reset_after: 8 };

    fn form(body: Option<&'static str>) -> RefusalForm {
        RefusalForm {
            status: StatusCode::from_u16(499).expect("a status"),
            body: body.map(|body| OwnBody::new(body_template(body), "shop/checkout", "per-client")),
            content_type: HeaderValue::from_static("text/x"),
            closes: false,
            set: Vec::new(),
        }
    }

    fn text(body: Option<&'static str>) -> RefusalText {
        RefusalText::new(form(body), ("shop/checkout", "per-client"), "rate limited", &["burst".into(), "daily".into()])
    }

    #[test]
    fn the_reason_of_a_close_has_the_names_that_fit() {
        let (long, short) = ("l".repeat(63), "s");
        for (policy, rule, limit, names) in [
            ("shop/p", short, short, &["policy", "rule", "limit"][..]),
            (&*format!("{long}/{long}"), short, short, &["rule", "limit"]),
            (&*format!("{long}/{long}"), &long, short, &["rule"]),
            ("shop/p", short, &long, &["rule"]),
            ("shop/p", &long, &long, &["rule"]),
        ] {
            for body in [None, Some("slow down")] {
                let form = RefusalForm { closes: true, ..form(body) };
                let text = RefusalText::new(form, (policy, rule), "rate limited", &[limit.into()]);
                for seconds in [None, Some(1), Some(3_600), Some(u64::MAX)] {
                    let reason = text.reason(0, seconds, NUMBERS);
                    if let Some(body) = body {
                        assert_eq!(reason, body);
                        continue;
                    }
                    assert!(reason.trim_ascii_end().len() <= MAX_REASON, "{reason:?}");
                    let said: serde_json::Value = serde_json::from_slice(&reason).expect("JSON");
                    assert_eq!(
                        (&said["error"], &said["retryAfterSeconds"]),
                        (&serde_json::json!("rate limited"), &serde_json::json!(seconds))
                    );
                    let named: Vec<_> =
                        ["policy", "rule", "limit"].into_iter().filter(|name| said.get(name).is_some()).collect();
                    assert!(named == names || seconds == Some(u64::MAX), "{named:?} {seconds:?}");
                }
            }
        }
    }

    #[test]
    fn a_body_is_the_rules_own_or_names_the_limit() {
        for (limit, named) in [(0, "burst"), (1, "daily"), (2, "burst")] {
            for seconds in [None, Some(0), Some(1), Some(9), Some(10), Some(86_400), Some(u64::MAX)] {
                let body = text(None).body(limit, seconds, NUMBERS);
                let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                let expected = serde_json::json!({
                    "error": "rate limited", "policy": "shop/checkout", "rule": "per-client", "limit": named,
                    "retryAfterSeconds": seconds,
                });
                assert_eq!((said, body.last()), (expected, Some(&b'\n')));
            }
        }
        assert_eq!(text(Some("slow down")).body(0, Some(1), NUMBERS), "slow down");
        let said: serde_json::Value = serde_json::from_slice(&text(None).banned(Some(900), NUMBERS)).expect("JSON");
        let expected = serde_json::json!({
            "error": "banned", "policy": "shop/checkout", "rule": "per-client", "retryAfterSeconds": 900,
        });
        assert_eq!(said, expected);
        assert_eq!(text(Some("slow down")).banned(Some(1), NUMBERS), "slow down");
    }

    #[test]
    fn placeholders_of_a_body_become_numbers_and_names() {
        let own = text(Some(r#"{"in":{resetAfter},"left":"{remaining} of {limit}","by":"{policy}/{rule}","more":{}}"#));
        let expected = r#"{"in":8,"left":"2 of 100","by":"shop/checkout/per-client","more":{}}"#;
        assert_eq!(own.body(0, None, NUMBERS), expected);
        assert_eq!(own.banned(Some(1), NUMBERS), expected);
        assert_eq!(own.reason(0, Some(1), NUMBERS), expected);
        // Without numbers, all refusals share one text.
        let named = text(Some("{rule} is used up"));
        let [one, other] = [1, 2].map(|limit| named.body(0, None, Numbers { limit, ..NUMBERS }));
        assert_eq!((&one, one.as_ptr()), (&Bytes::from("per-client is used up"), other.as_ptr()));
    }
}
