//! A refusal: the rule that refused, its limit, and all parts of the response. The writer of the response joins them.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use weir_core::Time;

use super::{fields::QuotaState, refusal_text::RefusalText, rule::Rule};

/// A request or a message that one limit of one rule refused, or a request that a rule with action Deny refused.
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
pub struct TextKey {
    /// The weak reference keeps the allocation, so no other rule gets this address.
    rule: Weak<Rule>,
    state: QuotaState,
    override_index: Option<usize>,
}

impl<'a> Refusal<'a> {
    /// Counts a request that this rule denies, and refuses it.
    pub(super) fn denied(rule: &'a Arc<Rule>, at: Time) -> Self {
        rule.counters.count_limited();
        Self { rule, state: QuotaState::default(), override_index: None, retry_after: None, at }
    }
}

impl Refusal<'_> {
    /// What its text depends on, as a key for caching the text.
    pub fn text_key(&self) -> TextKey {
        TextKey { rule: Arc::downgrade(self.rule), state: self.state, override_index: self.override_index }
    }

    /// Whether its text equals that of an earlier refusal with this key.
    #[inline]
    pub fn is_for(&self, text_key: &TextKey) -> bool {
        std::ptr::eq(text_key.rule.as_ptr(), Arc::as_ptr(self.rule))
            && text_key.state == self.state
            && text_key.override_index == self.override_index
    }

    /// The time of the decision.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }

    /// The seconds until the client may retry, rounded up. 0 for a denied request.
    #[inline]
    pub fn seconds(&self) -> u64 {
        self.state.seconds
    }

    /// Whether a rule with action Deny refused, so that the client must not retry.
    pub fn is_denied(&self) -> bool {
        self.rule.limits.is_none()
    }

    /// How long until the client may retry. `None` if never, because the cost is more than the limit admits at once.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The status that the rule specifies.
    pub fn status(&self) -> StatusCode {
        self.text().status
    }

    /// The type of the body.
    pub fn content_type(&self) -> &HeaderValue {
        &self.text().content_type
    }

    /// The rule's own text, or a JSON object that names the limit.
    pub fn body(&self) -> Bytes {
        self.text().body(self.state.limit, self.state.seconds)
    }

    /// Adds the fields that describe the client's quota, in the rule's style, and those of the rule's own.
    pub fn insert_fields(&self, headers: &mut HeaderMap) {
        if let Some(limits) = &self.rule.limits {
            limits.advice.insert(&self.state, limits.advice.policy(self.override_index), headers);
            limits.advice.insert_own(&self.state, headers);
        }
        self.text().set.iter().for_each(|own| own.insert(self.state.numbers(), headers));
    }

    pub(super) fn text(&self) -> &RefusalText {
        self.rule.refusal.as_ref().expect("a bypass refuses nothing")
    }
}
