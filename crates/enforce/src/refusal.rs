//! A refusal: the limit that refused, and all parts of the response.
//!
//! The parts that do not depend on the request are rendered when a snapshot is lowered. The writer of the response
//! joins them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use weir_core::Time;

use super::{
    fields::QuotaState,
    in_force::{Limits, Rule},
};

/// A request or a message that one limit of one rule refused.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub(super) rule: &'a Arc<Rule>,
    pub(super) state: QuotaState,
    pub(super) override_index: Option<usize>,
    /// How long until all the rules admit, if no other request comes. `None` if this rule never admits, because the
    /// cost is more than it admits at once.
    pub(super) retry_after: Option<Duration>,
    /// The time of the decision.
    pub(super) at: Time,
}

/// What the text of a refusal depends on, except for the seconds in it. It does not keep the rule alive.
#[derive(Debug)]
pub struct Cause {
    /// The weak reference keeps the allocation, so no other rule gets this address.
    rule: Weak<Rule>,
    state: QuotaState,
    override_index: Option<usize>,
}

impl Refusal<'_> {
    /// What its text depends on, as a key for caching the text.
    pub fn cause(&self) -> Cause {
        Cause { rule: Arc::downgrade(self.rule), state: self.state, override_index: self.override_index }
    }

    /// Whether its text equals that of an earlier refusal with this cause.
    #[inline]
    pub fn is_for(&self, cause: &Cause) -> bool {
        std::ptr::eq(cause.rule.as_ptr(), Arc::as_ptr(self.rule))
            && cause.state == self.state
            && cause.override_index == self.override_index
    }

    /// The time of the decision.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }

    /// The seconds until the client may retry, rounded up.
    #[inline]
    pub fn seconds(&self) -> u64 {
        self.state.seconds
    }

    /// How long until the client may retry. `None` if never, because the cost is more than the limit admits at once.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The status that the rule specifies.
    pub fn status(&self) -> StatusCode {
        self.limits().refusal.status
    }

    /// The type of the body.
    pub fn content_type(&self) -> &HeaderValue {
        &self.limits().refusal.content_type
    }

    /// The rule's own text, or a JSON object that names the limit.
    pub fn body(&self) -> Bytes {
        self.limits().refusal.body(self.state.limit, self.state.seconds)
    }

    /// Adds the fields that describe the client's quota, in the rule's style.
    pub fn insert_fields(&self, headers: &mut HeaderMap) {
        let advice = &self.limits().advice;
        advice.insert(&self.state, advice.policy(self.override_index), headers);
    }

    pub(super) fn limits(&self) -> &Limits {
        self.rule.limits.as_ref().expect("only a rule with limits refuses")
    }
}

/// What `onLimit` says, parsed.
#[derive(Clone, Debug)]
pub(super) struct RefusalForm {
    pub(super) status: StatusCode,
    pub(super) body: Option<Bytes>,
    pub(super) content_type: HeaderValue,
    pub(super) closes: bool,
}

/// The prepared refusals of one rule.
#[derive(Debug)]
pub(super) struct RefusalText {
    pub(super) status: StatusCode,
    pub(super) content_type: HeaderValue,
    /// Whether to close a connection for a message beyond a limit.
    pub(super) closes: bool,
    body: Option<Bytes>,
    /// For each limit, Weir's own body up to the number of seconds.
    starts: Vec<String>,
}

impl RefusalText {
    pub(super) fn new(form: RefusalForm, policy: &str, rule: &str, limits: &[Box<str>]) -> Self {
        let RefusalForm { status, body, content_type, closes } = form;
        let starts = limits.iter().map(|limit| start(policy, rule, limit)).collect();
        Self { status, content_type, closes, body, starts }
    }

    /// The body of a refusal.
    pub(super) fn body(&self, limit: usize, retry_after_seconds: u64) -> Bytes {
        if let Some(body) = &self.body {
            return body.clone();
        }
        format!("{}{retry_after_seconds}}}\n", self.start(limit)).into()
    }

    /// As in `Advice::policy`, the index of the limit may be that of a later snapshot.
    fn start(&self, limit: usize) -> &str {
        self.starts.get(limit).unwrap_or(&self.starts[0])
    }
}

/// Names are DNS labels, so they need no escapes.
fn start(policy: &str, rule: &str, limit: &str) -> String {
    format!(r#"{{"error":"rate limited","policy":"{policy}","rule":"{rule}","limit":"{limit}","retryAfterSeconds":"#)
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
        };
        RefusalText::new(form, "shop/checkout", "per-client", &["burst".into(), "daily".into()])
    }

    #[test]
    fn a_body_is_the_rules_own_or_names_the_limit() {
        for (limit, named) in [(0, "burst"), (1, "daily"), (2, "burst")] {
            for seconds in [0, 1, 9, 10, 86_400, u64::MAX] {
                let body = text(None).body(limit, seconds);
                let said: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                let expected = serde_json::json!({
                    "error": "rate limited", "policy": "shop/checkout", "rule": "per-client", "limit": named,
                    "retryAfterSeconds": seconds,
                });
                assert_eq!((said, body.last()), (expected, Some(&b'\n')));
            }
        }
        assert_eq!(text(Some("slow down")).body(0, 1), "slow down");
    }
}
