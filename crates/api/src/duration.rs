//! Durations as users write them (GEP-2257), with bounds for each field.

use std::{borrow::Cow, fmt, marker::PhantomData, str::FromStr, time::Duration};

use kube::core::{Rule, validate};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use weir_duration::parse_millis;

/// The syntax of [`parse_millis`]. The longest duration that it allows still fits CEL's durations, which have 63 bits of
/// nanoseconds.
pub(crate) const PATTERN: &str = "^([0-9]{1,5}[hm]|[0-9]{1,9}m?s){1,4}$";

/// The length of a limit's period: 1 ms to 24 h.
pub type Period = Bounded<PeriodBounds>;

/// The maximum wait of a request for its turn: 1 ms to 5 min.
pub type MaxWait = Bounded<MaxWaitBounds>;

/// The maximum total time of a request: 1 ms to 1 h.
pub type Deadline = Bounded<DeadlineBounds>;

/// The length of a ban: 1 ms to 168 h.
pub type BanLength = Bounded<BanLengthBounds>;

/// The time in which the refusals that start a ban happen: 1 ms to 168 h.
pub type BanWindow = Bounded<BanWindowBounds>;

/// The name of a field that contains a duration, and its bounds.
pub trait Bounds {
    /// The name of the field.
    const FIELD: &'static str;
    /// The longest duration as text; the shortest duration is always `1ms`.
    const LONGEST: &'static str;
    /// The advice for a duration that is too short or too long.
    const FIX: &'static str;
}

/// Bounds of [`Period`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeriodBounds {}

impl Bounds for PeriodBounds {
    const FIELD: &'static str = "per";
    const LONGEST: &'static str = "24h";
    const FIX: &'static str =
        "a zero never means unlimited: for no limit remove it or use action Bypass or mode Disabled";
}

/// Bounds of [`MaxWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxWaitBounds {}

impl Bounds for MaxWaitBounds {
    const FIELD: &'static str = "maxWait";
    const LONGEST: &'static str = "5m";
    const FIX: &'static str = "to let no request wait use action Reject and remove maxWait";
}

/// Bounds of [`Deadline`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadlineBounds {}

impl Bounds for DeadlineBounds {
    const FIELD: &'static str = "deadline";
    const LONGEST: &'static str = "1h";
    const FIX: &'static str = "for no deadline remove it";
}

/// Bounds of [`BanLength`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanLengthBounds {}

impl Bounds for BanLengthBounds {
    const FIELD: &'static str = "for";
    const LONGEST: &'static str = "168h";
    const FIX: &'static str = "for no ban remove ban; to refuse clients permanently use a rule with action Deny";
}

/// Bounds of [`BanWindow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanWindowBounds {}

impl Bounds for BanWindowBounds {
    const FIELD: &'static str = "within";
    const LONGEST: &'static str = "168h";
    const FIX: &'static str = "remove it to use the time of for";
}

/// A duration within its bounds, in whole milliseconds, with its original text.
///
/// [`parse_millis`] defines the syntax, for example `1h30m` or `500ms`.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "String", into = "String", bound = "B: Bounds")]
pub struct Bounded<B> {
    written: String,
    millis: u64,
    bounds: PhantomData<B>,
}

impl<B> Bounded<B> {
    /// Returns the duration.
    #[must_use]
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// Returns the duration in milliseconds.
    #[must_use]
    pub fn as_millis(&self) -> u64 {
        self.millis
    }

    /// Returns the original text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }
}

/// The error for a text that is not a [`Bounded`] duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDuration {
    /// The text is not a duration.
    #[error("{}", not_a_duration(.field))]
    Syntax {
        /// The name of the field.
        field: &'static str,
    },
    /// The duration is too short or too long.
    #[error("{}", out_of_range(.field, .longest, .fix))]
    Range {
        /// The name of the field.
        field: &'static str,
        /// The longest duration that is allowed.
        longest: &'static str,
        /// The advice to the user.
        fix: &'static str,
    },
}

fn not_a_duration(field: &str) -> String {
    format!(
        "{field} must be a duration: numbers with the units h, m, s and ms, such as 500ms, 1s or 1h30m, with at most 5 digits \
         for h and m, and 9 for s and ms"
    )
}

fn out_of_range(field: &str, longest: &str, fix: &str) -> String {
    format!("{field} must be between 1ms and {longest}; {fix}")
}

impl<B: Bounds> FromStr for Bounded<B> {
    type Err = InvalidDuration;

    fn from_str(written: &str) -> Result<Self, InvalidDuration> {
        let millis = parse_millis(written).ok_or(InvalidDuration::Syntax { field: B::FIELD })?;
        let longest = parse_millis(B::LONGEST).expect("a bound is a duration");
        if !(1..=longest).contains(&millis) {
            return Err(InvalidDuration::Range { field: B::FIELD, longest: B::LONGEST, fix: B::FIX });
        }
        Ok(Self { written: written.to_owned(), millis, bounds: PhantomData })
    }
}

impl<B: Bounds> TryFrom<String> for Bounded<B> {
    type Error = InvalidDuration;

    fn try_from(written: String) -> Result<Self, InvalidDuration> {
        written.parse()
    }
}

impl<B> From<Bounded<B>> for String {
    fn from(duration: Bounded<B>) -> Self {
        duration.written
    }
}

// The traits are implemented by hand, because derived implementations would require that `B` implements them, too.

impl<B> Clone for Bounded<B> {
    fn clone(&self) -> Self {
        Self { written: self.written.clone(), ..*self }
    }
}

impl<B> PartialEq for Bounded<B> {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

impl<B> Eq for Bounded<B> {}

impl<B> fmt::Debug for Bounded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.written, f)
    }
}

impl<B> fmt::Display for Bounded<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl<B: Bounds> JsonSchema for Bounded<B> {
    fn schema_name() -> Cow<'static, str> {
        format!("DurationOf_{}", B::FIELD).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // The schema has no `pattern` keyword, because its message would show the expression instead of an explanation.
        let mut schema = json_schema!({ "type": "string", "minLength": 1, "maxLength": 28 });
        let syntax = Rule::new(format!("self.matches('{PATTERN}')")).message(not_a_duration(B::FIELD).as_str());
        let longest = B::LONGEST;
        let range = Rule::new(format!(
            "!self.matches('{PATTERN}') || (duration(self) >= duration('1ms') && duration(self) <= duration('{longest}'))"
        ))
        .message(out_of_range(B::FIELD, longest, B::FIX).as_str());
        for rule in [syntax, range] {
            validate(&mut schema, rule).expect("a rule can be serialised");
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_gep_2257_allows() {
        for (written, millis) in [
            ("1ms", 1),
            ("500ms", 500),
            ("1s", 1_000),
            ("1h30m", 5_400_000),
            ("1ms1s1m1h", 3_661_001),
            ("00001s", 1_000),
            ("0h1s", 1_000),
            ("86400s", 86_400_000),
            ("86400000ms", 86_400_000),
            ("000086400s", 86_400_000),
            ("24h", 86_400_000),
        ] {
            let period: Period = written.parse().expect(written);
            assert_eq!(period.duration(), Duration::from_millis(millis), "{written}");
            assert_eq!(period.to_string(), written);
        }
    }

    #[test]
    fn refuses_the_rest() {
        for written in [
            "", "1", "s", "1.5s", "-1s", "+1s", "1 s", "1S", "1us", "1d", "100000h", "1000000000s", "1s1s1s1s1s",
            "1sé", "é",
        ] {
            let syntax = InvalidDuration::Syntax { field: "per" };
            assert_eq!(written.parse::<Period>(), Err(syntax), "{written:?}");
        }
        for written in ["0s", "0ms", "0h0m", "24h1ms", "86400001ms", "100000s", "99999h99999h99999h99999h"] {
            let invalid = written.parse::<Period>().expect_err(written);
            assert!(matches!(invalid, InvalidDuration::Range { field: "per", .. }), "{written:?}: {invalid}");
        }
    }

    #[test]
    fn each_field_has_its_own_bounds() {
        assert!("5m".parse::<MaxWait>().is_ok() && "5m1ms".parse::<MaxWait>().is_err());
        assert!("1h".parse::<Deadline>().is_ok() && "1h1ms".parse::<Deadline>().is_err());
        assert!("604800000ms".parse::<BanLength>().is_ok() && "604800001ms".parse::<BanLength>().is_err());
        let invalid = "0s".parse::<Deadline>().expect_err("zero");
        assert_eq!(invalid.to_string(), "deadline must be between 1ms and 1h; for no deadline remove it");
    }
}
