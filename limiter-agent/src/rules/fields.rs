//! The fields that tell a client about its quota.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-10: every limit that the request
//! was charged against, and where the tightest of them stands. `X-RateLimit-*` is the older habit. What does not depend
//! on the request is written when a snapshot is lowered.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use weir_core::{Quota, Terms};
use weir_wire::HeaderStyle;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// What a rule's fields are made of.
#[derive(Debug)]
pub(super) struct Advice {
    pub(super) style: HeaderStyle,
    names: Vec<Box<str>>,
    /// `RateLimit-Policy` for most keys, then for each override.
    policies: Vec<HeaderValue>,
}

/// Fields for one response.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    ietf: Option<[HeaderValue; 2]>,
    legacy: Option<[u64; 3]>,
}

/// Where one limit stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) limit: usize,
    pub(super) quota: Quota,
    pub(super) remaining: u64,
    pub(super) seconds: u64,
}

impl Advice {
    pub(super) fn new(style: HeaderStyle, terms: &Terms, overrides: usize) -> Self {
        let names: Vec<Box<str>> = terms.limits().map(|(name, _)| name.into()).collect();
        let sets = std::iter::once(None).chain((0..overrides).map(Some));
        let policies = sets.map(|set| policy(&names, terms.quotas(set))).collect();
        Self { style, names, policies }
    }

    /// The rule's own `RateLimit-Policy`.
    ///
    /// A request that holds the rules from before a change may be decided by the limits after it, whose places are
    /// others: what it is told is then off by one snapshot, which is why no place is trusted here.
    pub(super) fn policy(&self, override_index: Option<usize>) -> &HeaderValue {
        let own = override_index.and_then(|index| self.policies.get(index + 1));
        own.unwrap_or(&self.policies[0])
    }

    /// `policy` is this rule's, or that of all rules that the request was charged against.
    pub(super) fn fields(&self, place: &Place, policy: HeaderValue) -> Fields {
        let (ietf, legacy) = match self.style {
            HeaderStyle::Ietf => (true, false),
            HeaderStyle::Legacy => (false, true),
            HeaderStyle::Both => (true, true),
            HeaderStyle::None => (false, false),
        };
        let Place { remaining, seconds, .. } = *place;
        Fields {
            ietf: ietf.then(|| {
                let name = self.names.get(place.limit).unwrap_or(&self.names[0]);
                [policy, value(format!("\"{name}\";r={remaining};t={seconds}"))]
            }),
            legacy: legacy.then(|| [place.quota.requests(), remaining, seconds]),
        }
    }
}

impl Fields {
    pub(super) fn write(self, headers: &mut HeaderMap) {
        if let Some([policy, limit]) = self.ietf {
            headers.insert(POLICY, policy);
            headers.insert(LIMIT, limit);
        }
        if let Some([limit, remaining, reset]) = self.legacy {
            headers.insert(LEGACY_LIMIT, limit.into());
            headers.insert(LEGACY_REMAINING, remaining.into());
            headers.insert(LEGACY_RESET, reset.into());
        }
    }
}

impl Fields {
    /// The same as lines of a head.
    pub(crate) fn append_to(&self, head: &mut Vec<u8>) {
        let mut line = |name: &HeaderName, value: &[u8]| {
            for part in [name.as_str().as_bytes(), b": ", value, b"\r\n"] {
                head.extend_from_slice(part);
            }
        };
        if let Some([policy, limit]) = &self.ietf {
            line(&POLICY, policy.as_bytes());
            line(&LIMIT, limit.as_bytes());
        }
        if let Some(numbers) = self.legacy {
            for (name, number) in [LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET].iter().zip(numbers) {
                line(name, itoa::Buffer::new().format(number).as_bytes());
            }
        }
    }

    /// Whether a field of the app's is not to be seen beside these.
    pub(crate) fn replace(&self, name: &str) -> bool {
        let is = |known: &[HeaderName]| known.iter().any(|known| name.eq_ignore_ascii_case(known.as_str()));
        (self.ietf.is_some() && is(&[POLICY, LIMIT]))
            || (self.legacy.is_some() && is(&[LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET]))
    }
}

/// One `RateLimit-Policy` out of those of several rules.
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

fn policy(names: &[Box<str>], quotas: &[Quota]) -> HeaderValue {
    let items = names.iter().zip(quotas).map(|(name, quota)| {
        // Whole seconds are all that the draft has; rounding up promises less, never more.
        let window = quota.period().as_secs() + u64::from(quota.period().subsec_nanos() > 0);
        format!("\"{name}\";q={};w={window}", quota.requests())
    });
    value(items.collect::<Vec<_>>().join(", "))
}

fn value(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("names are DNS labels, the rest are numbers")
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
        let place = Place { limit: 1, quota: quota(2000, 3_600_000), remaining: 7, seconds: 30 };
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
            let advice = Advice::new(style, &terms, 1);
            let mut headers = HeaderMap::new();
            advice.fields(&place, advice.policy(None).clone()).write(&mut headers);
            let sent: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.to_str().unwrap())).collect();
            assert_eq!(sent, expected, "{style:?}");

            let fields = advice.fields(&place, advice.policy(None).clone());
            let mut lines = Vec::new();
            fields.append_to(&mut lines);
            let expected_lines: String = expected.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            assert_eq!(str::from_utf8(&lines).unwrap(), expected_lines, "{style:?}");
            for name in ["RateLimit", "ratelimit-policy", "X-RateLimit-Limit", "x-ratelimit-reset", "retry-after"] {
                let replaced = expected.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
                assert_eq!(fields.replace(name), replaced, "{style:?} {name}");
            }
        }
        let advice = Advice::new(HeaderStyle::Ietf, &terms, 1);
        assert_eq!(advice.policy(Some(0)), "\"burst\";q=1000;w=2, \"hourly\";q=2000;w=3600");
        let both = [advice.policy(None), advice.policy(None)];
        assert_eq!(join(both.into_iter()).to_str().unwrap().matches("burst").count(), 2);
    }
}
