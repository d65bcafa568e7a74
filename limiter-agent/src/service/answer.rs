//! Translates a question of a proxy to descriptors, and the engine's answer to a response.

use std::{borrow::Cow, iter::zip, time::Duration};

use prost::DecodeError;
use weir_enforce::{
    Descriptor, DescriptorAnswer, DescriptorLimit, DescriptorState, DescriptorVerdict, LimitState, LiveRules,
};

use super::{
    messages::{
        Code, DescriptorStatus, Entry, HeaderValue, LimitOverride, RateLimit, RateLimitDescriptor, RateLimitRequest,
        RateLimitResponse, UNITS, Unit,
    },
    wire::Values,
};

/// The maximum number of descriptors of one question. Envoy sends a few.
const MAX_DESCRIPTORS: usize = 100;

/// The maximum number of entries of one descriptor, or of a bucket of quotas.
pub(super) const MAX_ENTRIES: usize = 50;

/// The reason why a question is invalid: a field, and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidQuestion {
    #[error("{0}")]
    Malformed(String),
    #[error("domain: must not be empty: set domain in the configuration of the proxy's rate limit filter")]
    NoDomain,
    #[error("descriptors: must not be empty: a request without descriptors needs no rate limit")]
    NoDescriptors,
    #[error("descriptors: has {0}, and at most {MAX_DESCRIPTORS} are allowed")]
    TooMany(usize),
    #[error("descriptors[{0}].entries: must not be empty")]
    NoEntries(usize),
    #[error("descriptors[{0}].entries: has {1}, and at most {MAX_ENTRIES} are allowed")]
    TooManyEntries(usize, usize),
    #[error("descriptors[{0}].entries[{1}].key: must not be empty")]
    NoKey(usize, usize),
}

/// Decides on a question, and charges the limits.
pub(crate) async fn answer(
    rules: &LiveRules,
    question: &RateLimitRequest,
) -> Result<RateLimitResponse, InvalidQuestion> {
    check(question)?;
    let verdict = {
        let texts: Vec<_> = question.descriptors.iter().map(|it| texts(&it.entries)).collect();
        let descriptors = zip(&question.descriptors, &texts);
        let descriptors: Vec<Descriptor<'_>> =
            descriptors.map(|(it, texts)| descriptor(it, texts, question.hits_addend)).collect();
        rules.decide_descriptors(&question.domain, &descriptors)
    };
    let answer = match verdict {
        DescriptorVerdict::Decided(answer) => answer,
        DescriptorVerdict::Waits(wait) => wait.answer().await,
    };
    Ok(response(answer))
}

/// Counts the elements of the lists of a question that is not decoded yet.
pub(super) fn check_counts(question: &[u8]) -> Result<(), InvalidQuestion> {
    const DESCRIPTORS: u32 = 2;
    const ENTRIES: u32 = 1;
    let mut too_many = None;
    let mut descriptors = 0;
    for descriptor in Values::of(question, DESCRIPTORS) {
        let entries = Values::of(descriptor?, ENTRIES).count();
        if entries > MAX_ENTRIES && too_many.is_none() {
            too_many = Some(InvalidQuestion::TooManyEntries(descriptors, entries));
        }
        descriptors += 1;
    }
    if descriptors > MAX_DESCRIPTORS {
        too_many = Some(InvalidQuestion::TooMany(descriptors));
    }
    too_many.map_or(Ok(()), Err)
}

impl From<DecodeError> for InvalidQuestion {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

fn check(question: &RateLimitRequest) -> Result<(), InvalidQuestion> {
    if question.domain.is_empty() {
        return Err(InvalidQuestion::NoDomain);
    }
    match question.descriptors.len() {
        0 => return Err(InvalidQuestion::NoDescriptors),
        count if count > MAX_DESCRIPTORS => return Err(InvalidQuestion::TooMany(count)),
        _ => {}
    }
    for (index, descriptor) in question.descriptors.iter().enumerate() {
        match descriptor.entries.len() {
            0 => return Err(InvalidQuestion::NoEntries(index)),
            count if count > MAX_ENTRIES => return Err(InvalidQuestion::TooManyEntries(index, count)),
            _ => {}
        }
        if let Some(entry) = descriptor.entries.iter().position(|entry| entry.key.is_empty()) {
            return Err(InvalidQuestion::NoKey(index, entry));
        }
    }
    Ok(())
}

/// Returns the keys and values as texts. A client must not escape its limits by a header that is not UTF-8, so U+FFFD
/// stands for such bytes.
fn texts(entries: &[Entry]) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    entries.iter().map(|Entry { key, value }| (String::from_utf8_lossy(key), String::from_utf8_lossy(value))).collect()
}

/// Returns a descriptor of the engine. A descriptor without hits of its own has the hits of the question, where 0 means
/// one.
fn descriptor<'a>(
    descriptor: &RateLimitDescriptor,
    texts: &'a [(Cow<'_, str>, Cow<'_, str>)],
    hits_of_question: u32,
) -> Descriptor<'a> {
    let entries = texts.iter().map(|(key, value)| (&**key, &**value)).collect();
    let hits = descriptor.hits_addend.unwrap_or_else(|| hits_of_question.max(1).into());
    let limit = descriptor.limit.and_then(limit_of);
    Descriptor { entries, is_unordered: false, hits, is_credit: descriptor.is_negative_hits, is_quota: false, limit }
}

/// `None` if the unit is unknown. Then the rule has its own limit. An error would let the request pass, because proxies
/// admit requests if the service fails.
fn limit_of(LimitOverride { requests_per_unit, unit, unit_multiplier }: LimitOverride) -> Option<DescriptorLimit> {
    let seconds = UNITS.iter().find(|known| known.unit as i32 == unit)?.seconds;
    // The protocol forbids 0.
    let period = Duration::from_secs(seconds * u64::from(unit_multiplier.unwrap_or(1).max(1)));
    Some(DescriptorLimit { requests: requests_per_unit.into(), period })
}

fn response(answer: DescriptorAnswer) -> RateLimitResponse {
    // Values that are not text cannot come from a policy.
    let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        Some(HeaderValue { key: name.as_str().to_owned(), value: value.to_str().ok()?.to_owned() })
    };
    RateLimitResponse {
        overall_code: code(answer.is_refused),
        statuses: answer.states.into_iter().map(status).collect(),
        response_headers_to_add: answer.headers.iter().filter_map(header).collect(),
        raw_body: answer.body.map(Vec::from).unwrap_or_default(),
    }
}

fn code(is_refused: bool) -> i32 {
    if is_refused { Code::OverLimit.into() } else { Code::Ok.into() }
}

fn status(state: DescriptorState) -> DescriptorStatus {
    let code = code(state.is_refused);
    let Some(LimitState { name, requests, period, remaining, reset_after, .. }) = state.limit else {
        let limit_remaining = if state.is_exempt { u32::MAX } else { 0 };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    let (unit, count) = unit(period);
    DescriptorStatus {
        code,
        current_limit: Some(RateLimit {
            requests_per_unit: requests.try_into().unwrap_or(u32::MAX),
            unit: unit.into(),
            name: name.to_string(),
            unit_multiplier: Some(count).filter(|count| *count > 1),
        }),
        limit_remaining: remaining.try_into().unwrap_or(u32::MAX),
        duration_until_reset: Some(reset_after.into()),
    }
}

/// Returns a period as a number of units. The unit of a period with a part of a second is unknown.
fn unit(period: Duration) -> (Unit, u32) {
    if period.subsec_nanos() > 0 {
        return (Unit::Unknown, 1);
    }
    let seconds = period.as_secs();
    // Months and years have no fixed length.
    let mut units = UNITS.iter().rev().filter(|known| known.seconds <= 86_400);
    units
        .find(|known| seconds >= known.seconds && seconds.is_multiple_of(known.seconds))
        .map_or((Unit::Unknown, 1), |known| (known.unit, u32::try_from(seconds / known.seconds).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_number_of_the_largest_unit_that_fits() {
        for (millis, expected) in [
            (1_000, (Unit::Second, 1)),
            (90_000, (Unit::Second, 90)),
            (600_000, (Unit::Minute, 10)),
            (5_400_000, (Unit::Minute, 90)),
            (3_600_000, (Unit::Hour, 1)),
            (86_400_000, (Unit::Day, 1)),
            (1_500, (Unit::Unknown, 1)),
            (250, (Unit::Unknown, 1)),
        ] {
            assert_eq!(unit(Duration::from_millis(millis)), expected, "{millis} ms");
        }
    }

    #[test]
    fn the_limit_of_a_descriptor_in_json_can_have_several_units() {
        let period = |multiplier: &str| {
            let text = format!(r#"{{"requestsPerUnit": 5, "unit": "SECOND"{multiplier}}}"#);
            limit_of(serde_json::from_str(&text).expect("a limit")).expect("a known unit").period.as_secs()
        };
        for (multiplier, seconds) in [
            ("", 1),
            (r#", "unitMultiplier": 30"#, 30),
            (r#", "unit_multiplier": "30""#, 30),
            (r#", "unitMultiplier": 0"#, 1),
        ] {
            assert_eq!(period(multiplier), seconds, "{multiplier}");
        }
    }

    #[test]
    fn an_exempt_descriptor_has_all_units_left() {
        let exempt = status(DescriptorState { is_exempt: true, ..DescriptorState::default() });
        assert_eq!((exempt.limit_remaining, exempt.current_limit), (u32::MAX, None));
        assert_eq!(status(DescriptorState::default()).limit_remaining, 0);
    }
}
