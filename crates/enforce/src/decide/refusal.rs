//! A refusal: the rule that refused, its limit, and all parts of the response. The writer of the response joins the
//! parts.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use weir_core::Time;
use weir_tower::retry_after_seconds;

use crate::{
    concurrency::NoPermit,
    prepared_refusal::RefusalText,
    quota_headers::{QuotaHeaders, QuotaState},
    rule::Rule,
};

/// The refusal of a request or a message by one limit of one rule, or of a request by a rule with action Deny.
#[derive(Debug)]
pub struct Refusal<'a> {
    pub(crate) rule: &'a Arc<Rule>,
    pub(crate) state: QuotaState,
    pub(crate) override_index: Option<usize>,
    /// The time until all rules would admit the request, if no other request arrives. `None` if this rule never admits
    /// it, because the cost is more than the limit can admit for one request.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the rule has banned the key of the request.
    pub(crate) is_banned: bool,
    /// The time of the decision.
    pub(crate) at: Time,
    /// The headers that all matching rules set, if another rule than this one sets any. Otherwise empty.
    pub(crate) headers: Vec<(Arc<QuotaHeaders>, QuotaState)>,
}

/// The key for a cache of refusal texts: refusals with equal keys have equal texts. The key does not keep the rule
/// alive. No refusal has the key of a refusal with headers of other rules.
#[derive(Debug)]
pub struct TextKey {
    /// The weak reference keeps the allocation, so no other rule gets the same address.
    rule: Weak<Rule>,
    state: QuotaState,
    override_index: Option<usize>,
    is_banned: bool,
    is_final: bool,
    has_headers: bool,
}

impl<'a> Refusal<'a> {
    /// Counts a request that this rule refuses.
    pub(crate) fn new(
        rule: &'a Arc<Rule>,
        (state, override_index): (QuotaState, Option<usize>),
        retry_after: Option<Duration>,
        at: Time,
    ) -> Self {
        rule.statistics.limited.count();
        Self { rule, state, override_index, retry_after, is_banned: false, at, headers: Vec::new() }
    }

    /// Counts a request that this rule denies, and refuses it.
    pub(crate) fn denied(rule: &'a Arc<Rule>, at: Time) -> Self {
        Self::new(rule, (QuotaState::default(), None), None, at)
    }

    /// Counts a request for which a concurrent limit has no capacity, and refuses it.
    pub(crate) fn without_permit(rule: &'a Arc<Rule>, none: &NoPermit, at: Time) -> Self {
        let NoPermit { state, override_index, never } = *none;
        let retry_after = (!never).then(|| Duration::from_secs(state.seconds));
        Self::new(rule, (state, override_index), retry_after, at)
    }

    /// Counts this refusal for the ban of the rule, if the rule has a ban. If the key is banned now, the client may
    /// not retry before the ban has ended.
    pub(crate) fn counted_for_ban(self, key: &[u8]) -> Self {
        match self.rule.rates().and_then(|limits| limits.count_for_ban(key, self.at, self.rule)) {
            Some(rest) => self.until_the_end_of(rest),
            None => self,
        }
    }

    /// Raises the time until a retry to `wait`, the time until other rules admit the request. `wait` is `None` if one
    /// of them never admits it.
    pub(crate) fn not_before(self, wait: Option<Duration>) -> Self {
        let Some(wait) = wait else { return Self { retry_after: None, ..self } };
        match self.retry_after {
            Some(own) if own < wait => {
                let state = QuotaState { seconds: retry_after_seconds(wait), ..self.state };
                Self { state, retry_after: Some(wait), ..self }
            }
            _ => self,
        }
    }

    /// The key is banned for this time: the client may not retry before.
    pub(crate) fn until_the_end_of(self, rest: Duration) -> Self {
        let retry_after = self.retry_after.map(|opens| opens.max(rest));
        let seconds = retry_after_seconds(retry_after.unwrap_or(rest));
        Self { state: QuotaState { remaining: 0, seconds, ..self.state }, retry_after, is_banned: true, ..self }
    }

    /// Returns the key for a cache of the text.
    pub fn text_key(&self) -> TextKey {
        let &Self { rule, state, override_index, is_banned, .. } = self;
        let (is_final, has_headers) = (self.is_final(), !self.headers.is_empty());
        TextKey { rule: Arc::downgrade(rule), state, override_index, is_banned, is_final, has_headers }
    }

    /// Whether the text equals the text of an earlier refusal with this key.
    #[inline]
    pub fn is_for(&self, text_key: &TextKey) -> bool {
        std::ptr::eq(text_key.rule.as_ptr(), Arc::as_ptr(self.rule))
            && text_key.state == self.state
            && text_key.override_index == self.override_index
            && text_key.is_banned == self.is_banned
            && text_key.is_final == self.is_final()
            && !text_key.has_headers
            && self.headers.is_empty()
    }

    /// Returns the time of the decision.
    #[inline]
    pub fn at(&self) -> Time {
        self.at
    }

    /// Returns the seconds until the client may retry, rounded up. `None` if the client must not retry: the rule denies
    /// the request, or never admits it.
    #[inline]
    pub fn seconds(&self) -> Option<u64> {
        self.retry_after.map(|_| self.state.seconds)
    }

    #[inline]
    fn is_final(&self) -> bool {
        self.retry_after.is_none()
    }

    /// Whether the rule refuses all requests of this key for some time.
    pub fn is_banned(&self) -> bool {
        self.is_banned
    }

    /// Whether a rule with action Deny refused the request, so that the client must not retry.
    pub fn is_denied(&self) -> bool {
        self.rule.is_deny()
    }

    /// Returns the time until the client may retry. `None` means never, because the cost is more than the limit can
    /// admit for one request.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Returns the status that the rule specifies.
    pub fn status(&self) -> StatusCode {
        self.text().status
    }

    /// Returns the media type of the body.
    pub fn content_type(&self) -> &HeaderValue {
        &self.text().content_type
    }

    /// Returns the text that the rule sets, or a JSON object that names the limit or says that the key is banned.
    pub fn body(&self) -> Bytes {
        if self.is_banned {
            return self.text().banned(self.seconds(), self.state.numbers());
        }
        self.text().body(self.state.limit, self.seconds(), self.state.numbers())
    }

    /// Adds the headers that describe the client's quota, in the rule's style, and the headers that the matching rules
    /// set. If no retry can succeed, they contain no time of reset, because a client would retry then.
    pub fn insert_fields(&self, headers: &mut HeaderMap) {
        if let Some(quota_headers) = self.rule.quota_headers() {
            let policy = quota_headers.policy(self.override_index);
            quota_headers.insert(&self.state, !self.is_final(), policy, headers);
            if self.headers.is_empty() {
                quota_headers.insert_own(&self.state, headers);
            }
        }
        self.headers.iter().for_each(|(quota_headers, state)| quota_headers.insert_own(state, headers));
        self.text().set.iter().for_each(|own| own.insert(self.state.numbers(), headers));
    }

    pub(crate) fn text(&self) -> &RefusalText {
        &self.rule.refusal
    }
}
