//! The header fields of responses that describe a client's quota.
//!
//! `RateLimit-Policy` and `RateLimit` follow draft-ietf-httpapi-ratelimit-headers-10: they contain all limits that the
//! request was charged to, and the state of the tightest limit. `X-RateLimit-*` is the older convention. The parts that
//! do not depend on the request are rendered when a snapshot is lowered. The other parts are stored as numbers, and
//! rendered when the caller writes them to a map or as lines.

use std::{num::NonZeroU64, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use weir_core::{Quota, Terms};
use weir_wire::{HeaderStyle, HeadersOn};

use super::own_header::{Numbers, RuleHeader};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The prepared parts of a rule's fields.
#[derive(Debug)]
pub(super) struct QuotaHeaders {
    style: HeaderStyle,
    headers_on: HeadersOn,
    /// The position of the rule among all rules of all policies.
    position: usize,
    /// The fields that the rule sets in all responses.
    own: Vec<RuleHeader>,
    /// For each limit, the value of `RateLimit` up to the number of remaining requests: `"name";r=`.
    starts: Vec<Box<str>>,
    /// The value of `RateLimit-Policy` for keys without an override, then for each override.
    policies: Vec<HeaderValue>,
    /// Whether the limits have a time of reset. A concurrent limit has none.
    has_reset: bool,
}

/// The fields for the response to an admitted request.
#[derive(Debug, Default)]
pub struct Fields {
    quota: Option<LimitFields>,
    /// The fields that the rules set, if the request was charged to several rules, in the order of the rules.
    own: Vec<(Arc<QuotaHeaders>, QuotaState)>,
}

/// The fields that describe one limit.
#[derive(Debug)]
struct LimitFields {
    quota_headers: Arc<QuotaHeaders>,
    policy: PolicyHeader,
    state: QuotaState,
}

#[derive(Debug)]
enum PolicyHeader {
    /// The header `RateLimit-Policy` of one rule, for this override.
    Own(Option<usize>),
    /// The header `RateLimit-Policy` of all rules that were charged for the request.
    Joined(Box<HeaderValue>),
}

/// The unit of a quota. The draft's default is requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Requests,
    Bytes,
}

/// The state of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QuotaState {
    pub(super) limit: usize,
    /// The number of requests that the limit admits in its period.
    pub(super) requests: u64,
    pub(super) remaining: u64,
    /// The time until a retry of a refused request, or until full credit.
    pub(super) seconds: u64,
}

impl QuotaHeaders {
    pub(super) fn new(
        (style, headers_on): (HeaderStyle, HeadersOn),
        own: Vec<RuleHeader>,
        terms: &Terms,
        overrides: usize,
        unit: Unit,
    ) -> Self {
        let names: Vec<&str> = terms.limits().map(|(name, _)| name).collect();
        let sets = std::iter::once(None).chain((0..overrides).map(Some));
        let policies = sets.map(|set| policy(&names, terms.quotas(set), unit)).collect();
        let starts = names.iter().map(|name| format!("\"{name}\";r=").into()).collect();
        Self { style, headers_on, position: 0, own, starts, policies, has_reset: true }
    }

    /// The fields of a concurrent limit. `limits` are those for keys without an override, then for each override.
    pub(super) fn of_concurrency(
        (style, headers_on): (HeaderStyle, HeadersOn),
        own: Vec<RuleHeader>,
        name: &str,
        limits: impl Iterator<Item = NonZeroU64>,
    ) -> Self {
        let policies = limits.map(|limit| value(format!("\"{name}\";q={limit};qu=\"concurrent-requests\""))).collect();
        let starts = vec![format!("\"{name}\";r=").into()];
        Self { style, headers_on, position: 0, own, starts, policies, has_reset: false }
    }

    pub(super) fn set_position(&mut self, position: usize) {
        self.position = position;
    }

    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Returns the `RateLimit-Policy` of this rule.
    ///
    /// During a change, a request can use the old rules with limits that are already retuned, whose indices differ.
    /// Then the index can be out of range, and the field can describe the wrong override.
    pub(super) fn policy(&self, override_index: Option<usize>) -> &HeaderValue {
        let own = override_index.and_then(|index| self.policies.get(index + 1));
        own.unwrap_or(&self.policies[0])
    }

    /// Whether responses to admitted requests describe the remaining quota.
    pub(super) fn describes_admitted(&self) -> bool {
        self.style != HeaderStyle::None && self.headers_on == HeadersOn::All
    }

    /// Whether the rule sets fields in all responses.
    pub(super) fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    fn names(&self, field: &RuleHeader) -> bool {
        self.own.iter().any(|own| own.is_named(field.name()))
    }

    fn is_ietf(&self) -> bool {
        matches!(self.style, HeaderStyle::Ietf | HeaderStyle::Both)
    }

    fn is_legacy(&self) -> bool {
        matches!(self.style, HeaderStyle::Legacy | HeaderStyle::Both)
    }

    /// Inserts the fields that the rule sets.
    pub(super) fn insert_own(&self, state: &QuotaState, headers: &mut HeaderMap) {
        self.own.iter().for_each(|own| own.insert(state.numbers(), headers));
    }

    /// Inserts the fields that describe the quota. `policy` is the policy field of this rule, or of all rules that the
    /// request was charged to. In both formats the time of reset is optional.
    pub(super) fn insert(&self, state: &QuotaState, with_reset: bool, policy: &HeaderValue, headers: &mut HeaderMap) {
        let reset = (with_reset && self.has_reset).then_some(state.seconds);
        if self.is_ietf() {
            headers.insert(POLICY, policy.clone());
            let (mut limit, mut digits) = (Vec::with_capacity(LONGEST_LIMIT), itoa::Buffer::new());
            self.write_limit(state, reset.map(|seconds| digits.format(seconds)), &mut limit);
            headers.insert(LIMIT, HeaderValue::from_bytes(&limit).expect("names are DNS labels, the rest are numbers"));
        }
        if self.is_legacy() {
            for (name, number) in Self::legacy(state, reset) {
                headers.insert(name, number.into());
            }
        }
    }

    /// Appends the fields as lines of a head.
    fn append_to(&self, state: &QuotaState, policy: &HeaderValue, head: &mut Vec<u8>) {
        let reset = self.has_reset.then_some(state.seconds);
        if self.is_ietf() {
            let mut digits = itoa::Buffer::new();
            head.extend_from_slice(b"ratelimit-policy: ");
            head.extend_from_slice(policy.as_bytes());
            head.extend_from_slice(b"\r\nratelimit: ");
            self.write_limit(state, reset.map(|seconds| digits.format(seconds)), head);
            head.extend_from_slice(b"\r\n");
        }
        if self.is_legacy() {
            for (name, number) in Self::legacy(state, reset) {
                head.extend_from_slice(name.as_str().as_bytes());
                head.extend_from_slice(b": ");
                write_number(number, head);
                head.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends the value of `RateLimit`.
    fn write_limit(&self, state: &QuotaState, reset: Option<&str>, to: &mut Vec<u8>) {
        let start = self.starts.get(state.limit).unwrap_or(&self.starts[0]);
        to.extend_from_slice(start.as_bytes());
        write_number(state.remaining, to);
        if let Some(seconds) = reset {
            to.extend_from_slice(b";t=");
            to.extend_from_slice(seconds.as_bytes());
        }
    }

    fn legacy(state: &QuotaState, reset: Option<u64>) -> impl Iterator<Item = (HeaderName, u64)> {
        let reset = reset.map(|seconds| (LEGACY_RESET, seconds));
        [(LEGACY_LIMIT, state.requests), (LEGACY_REMAINING, state.remaining)].into_iter().chain(reset)
    }
}

/// A capacity that fits every value of `RateLimit`: a DNS label, two numbers, and the text around them.
const LONGEST_LIMIT: usize = 128;

impl QuotaState {
    pub(super) fn numbers(&self) -> Numbers {
        Numbers { remaining: self.remaining, limit: self.requests, reset_after: self.seconds }
    }
}

impl Fields {
    /// Creates the fields of a request that was charged to one rule.
    pub(super) fn of_one(quota_headers: &Arc<QuotaHeaders>, state: QuotaState, override_index: Option<usize>) -> Self {
        Self::new(quota_headers, state, PolicyHeader::Own(override_index))
    }

    /// Creates the fields of a request that was charged to several rules. `quota_headers` belongs to the rule with the
    /// tightest limit.
    pub(super) fn of_several(quota_headers: &Arc<QuotaHeaders>, state: QuotaState, policy: HeaderValue) -> Self {
        Self::new(quota_headers, state, PolicyHeader::Joined(Box::new(policy)))
    }

    fn new(quota_headers: &Arc<QuotaHeaders>, state: QuotaState, policy: PolicyHeader) -> Self {
        let says_something = quota_headers.describes_admitted() || quota_headers.has_own();
        Self {
            quota: says_something.then(|| LimitFields { quota_headers: Arc::clone(quota_headers), policy, state }),
            own: Vec::new(),
        }
    }

    /// Adds the fields of a rule with a concurrent limit. They describe its quota only if no other rule's fields do.
    pub(super) fn add_concurrency(
        &mut self,
        quota_headers: &Arc<QuotaHeaders>,
        state: QuotaState,
        override_index: Option<usize>,
    ) {
        // If one rule sets all fields so far, its own fields move to the list, in which all rules have their order.
        if let Some(LimitFields { quota_headers, policy, state }) = &mut self.quota
            && let PolicyHeader::Own(of) = *policy
            && quota_headers.has_own()
        {
            *policy = PolicyHeader::Joined(Box::new(quota_headers.policy(of).clone()));
            self.own.push((Arc::clone(quota_headers), *state));
        }
        let is_described = self.quota.as_ref().is_some_and(|quota| quota.quota_headers.describes_admitted());
        if !is_described {
            let described = quota_headers.describes_admitted();
            let of_one = || Self::of_several(quota_headers, state, quota_headers.policy(override_index).clone());
            self.quota = if described { of_one().quota } else { None };
        }
        if quota_headers.has_own() {
            self.own.push((Arc::clone(quota_headers), state));
        }
        self.own.sort_by_key(|(quota_headers, _)| quota_headers.position);
    }

    /// Adds the fields that several rules set.
    pub(super) fn with_own(self, own: impl Iterator<Item = (Arc<QuotaHeaders>, QuotaState)>) -> Self {
        let mut own: Vec<_> = own.collect();
        own.sort_by_key(|(quota_headers, _)| quota_headers.position);
        Self { own, ..self }
    }

    pub(super) fn write(self, headers: &mut HeaderMap) {
        if let Some(LimitFields { quota_headers, policy, state }) = &self.quota {
            if quota_headers.describes_admitted() {
                quota_headers.insert(state, true, policy.value(quota_headers), headers);
            }
            if policy.is_of_one() {
                quota_headers.insert_own(state, headers);
            }
        }
        self.own.iter().for_each(|(quota_headers, state)| quota_headers.insert_own(state, headers));
    }

    /// Appends the fields as lines of a head.
    pub fn append_to(&self, head: &mut Vec<u8>) {
        if let Some(LimitFields { quota_headers, policy, state }) = &self.quota {
            if quota_headers.describes_admitted() {
                quota_headers.append_to(state, policy.value(quota_headers), head);
            }
            if policy.is_of_one() {
                self.append_own(quota_headers, state, 0, head);
            }
        }
        for (index, (quota_headers, state)) in self.own.iter().enumerate() {
            self.append_own(quota_headers, state, index + 1, head);
        }
    }

    /// Appends the fields that one rule sets. As in a map, the last of several fields of one name replaces the others.
    /// The rules from index `after` append their fields later, so this function omits a field that one of them also
    /// sets.
    fn append_own(&self, quota_headers: &QuotaHeaders, state: &QuotaState, after: usize, head: &mut Vec<u8>) {
        let is_replaced = |field: &RuleHeader| self.own[after..].iter().any(|(other, _)| other.names(field));
        quota_headers
            .own
            .iter()
            .filter(|field| !is_replaced(field))
            .for_each(|field| field.append_to(state.numbers(), head));
    }

    /// Whether these fields replace a field of the app with this name.
    pub fn replace(&self, name: &str) -> bool {
        let quota = self.quota.as_ref().is_some_and(|LimitFields { quota_headers, policy, .. }| {
            let of_quota = quota_headers.style.names().iter().any(|known| name.eq_ignore_ascii_case(known));
            (of_quota && quota_headers.describes_admitted())
                || (policy.is_of_one() && quota_headers.own.iter().any(|own| own.is_named(name)))
        });
        quota || self.own.iter().any(|(quota_headers, _)| quota_headers.own.iter().any(|own| own.is_named(name)))
    }
}

impl PolicyHeader {
    fn value<'a>(&'a self, quota_headers: &'a QuotaHeaders) -> &'a HeaderValue {
        match self {
            Self::Own(override_index) => quota_headers.policy(*override_index),
            Self::Joined(policy) => policy,
        }
    }

    /// Whether the request was charged to only one rule, whose fields are then not in the list `own`.
    fn is_of_one(&self) -> bool {
        matches!(self, Self::Own(_))
    }
}

/// Joins the `RateLimit-Policy` fields of several rules into one value.
pub(super) fn join<'a>(policies: impl Iterator<Item = &'a HeaderValue>) -> HeaderValue {
    let mut policies = policies.peekable();
    let Some(first) = policies.next() else { return HeaderValue::from_static("") };
    if policies.peek().is_none() {
        return first.clone();
    }
    let mut joined = String::from(first.to_str().unwrap_or_default());
    for policy in policies {
        joined.push_str(", ");
        joined.push_str(policy.to_str().unwrap_or_default());
    }
    value(joined)
}

fn policy(names: &[&str], quotas: &[Quota], unit: Unit) -> HeaderValue {
    let unit = match unit {
        Unit::Requests => "",
        Unit::Bytes => ";qu=\"content-bytes\"",
    };
    let items = names.iter().zip(quotas).map(|(name, quota)| {
        // The draft allows only whole seconds. They are rounded up, so that the policy never promises more than the
        // limit admits.
        let window = quota.period().as_secs() + u64::from(quota.period().subsec_nanos() > 0);
        format!("\"{name}\";q={};w={window}{unit}", quota.requests())
    });
    value(items.collect::<Vec<_>>().join(", "))
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("names are DNS labels, the rest are numbers")
}

fn write_number(number: u64, to: &mut Vec<u8>) {
    to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::Strategy;

    use super::*;

    #[test]
    fn fields_are_those_of_the_style() {
        let quota = |requests, millis| {
            Quota::new(Strategy::TokenBucket, requests, Duration::from_millis(millis), None).unwrap()
        };
        let terms = Terms::new([("burst", quota(100, 500)), ("hourly", quota(2000, 3_600_000))])
            .unwrap()
            .with_override([b"gold".as_slice()], [("burst", quota(1000, 1500))])
            .unwrap();
        let state = QuotaState { limit: 1, requests: 2000, remaining: 7, seconds: 30 };
        let ietf = [
            ("ratelimit-policy", "\"burst\";q=100;w=1, \"hourly\";q=2000;w=3600"),
            ("ratelimit", "\"hourly\";r=7;t=30"),
        ];
        let legacy = [("x-ratelimit-limit", "2000"), ("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "30")];
        for (style, expected) in [
            (HeaderStyle::Ietf, ietf.to_vec()),
            (HeaderStyle::Legacy, legacy.to_vec()),
            (HeaderStyle::Both, [ietf.as_slice(), &legacy].concat()),
            (HeaderStyle::None, vec![]),
        ] {
            let quota_headers =
                Arc::new(QuotaHeaders::new((style, HeadersOn::All), Vec::new(), &terms, 1, Unit::Requests));
            let mut headers = HeaderMap::new();
            Fields::of_one(&quota_headers, state, None).write(&mut headers);
            let sent: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
            assert_eq!(sent, expected, "{style:?}");

            let fields = Fields::of_several(&quota_headers, state, quota_headers.policy(None).clone());
            let mut lines = Vec::new();
            fields.append_to(&mut lines);
            let expected_lines: String = expected.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            assert_eq!(str::from_utf8(&lines).unwrap(), expected_lines, "{style:?}");
            for name in ["RateLimit", "ratelimit-policy", "X-RateLimit-Limit", "x-ratelimit-reset", "retry-after"] {
                let replaced = expected.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
                assert_eq!(fields.replace(name), replaced, "{style:?} {name}");
            }
        }
        let style = (HeaderStyle::Ietf, HeadersOn::All);
        let quota_headers = QuotaHeaders::new(style, Vec::new(), &terms, 1, Unit::Bytes);
        let in_bytes = "\"burst\";q=100;w=1;qu=\"content-bytes\", \"hourly\";q=2000;w=3600;qu=\"content-bytes\"";
        assert_eq!(quota_headers.policy(None), in_bytes);
        let quota_headers = QuotaHeaders::new(style, Vec::new(), &terms, 1, Unit::Requests);
        assert_eq!(quota_headers.policy(Some(0)), "\"burst\";q=1000;w=2, \"hourly\";q=2000;w=3600");
        let both = [quota_headers.policy(None), quota_headers.policy(None)];
        assert_eq!(join(both.into_iter()).to_str().unwrap().matches("burst").count(), 2);
    }

    /// A shared rule describes its quota alone, and a concurrent limit adds a header of the same name.
    #[test]
    fn a_later_rule_replaces_a_header_of_the_same_name() {
        let quota = Quota::new(Strategy::TokenBucket, 5, Duration::from_secs(1), None).unwrap();
        let terms = Terms::new([("rate", quota)]).unwrap();
        let own = |value: &str| {
            let pieces = vec![weir_expressions::Piece::Text(value.to_owned())];
            vec![RuleHeader::new(HeaderName::from_static("x-left"), pieces, "p", "r")]
        };
        let style = (HeaderStyle::Ietf, HeadersOn::All);
        let rate = Arc::new(QuotaHeaders::new(style, own("rate"), &terms, 0, Unit::Requests));
        let limits = std::iter::once(NonZeroU64::MIN);
        let parallel = Arc::new(QuotaHeaders::of_concurrency(style, own("parallel"), "parallel", limits));
        let mut fields = Fields::of_one(&rate, QuotaState::default(), None);
        fields.add_concurrency(&parallel, QuotaState::default(), None);
        let mut lines = Vec::new();
        fields.append_to(&mut lines);
        let lines = String::from_utf8(lines).unwrap();
        let sent: Vec<_> = lines.lines().filter(|line| line.starts_with("x-left")).collect();
        assert_eq!(sent, ["x-left: parallel"]);
        assert!(lines.contains("ratelimit: \"rate\""), "{lines}");
    }
}
