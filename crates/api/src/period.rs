//! A period of time as people write it (GEP-2257).

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use kube::core::{Rule, validate};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

pub(crate) const PATTERN: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_hours(24);

/// The length of a limit's period: 1 ms to 24 h, in whole milliseconds, kept as it was written.
///
/// Written as in GEP-2257: one to four times a number of up to five digits with one of the units `h`, `m`, `s` and `ms`,
/// which add up: `1h30m`, `500ms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period {
    written: String,
    duration: Duration,
}

impl Period {
    /// How long it is.
    #[must_use]
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// How it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.written
    }
}

/// Why a text is not a [`Period`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPeriod {
    /// It is not a duration.
    #[error("{NOT_A_DURATION}")]
    Syntax,
    /// It is a duration that is too short or too long.
    #[error("{OUT_OF_RANGE}")]
    Range,
}

const NOT_A_DURATION: &str =
    "per must be a duration: numbers with the units h, m, s and ms, such as 500ms, 1s or 1h30m";
const OUT_OF_RANGE: &str = "per must be between 1ms and 24h; a zero never means unlimited: for no limit remove it or use action Bypass or mode Disabled";

impl FromStr for Period {
    type Err = InvalidPeriod;

    fn from_str(written: &str) -> Result<Self, InvalidPeriod> {
        let duration = parse(written).ok_or(InvalidPeriod::Syntax)?;
        if !(SHORTEST..=LONGEST).contains(&duration) {
            return Err(InvalidPeriod::Range);
        }
        Ok(Self { written: written.to_owned(), duration })
    }
}

fn parse(written: &str) -> Option<Duration> {
    let mut millis: u64 = 0;
    let mut rest = written;
    for _ in 0..4 {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if !(1..=5).contains(&digits) {
            return None;
        }
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match &rest[..units] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return None,
        };
        rest = &rest[units..];
        millis += number * unit; // four times at most 99999 h: far below 2^64
        if rest.is_empty() {
            return Some(Duration::from_millis(millis));
        }
    }
    None
}

impl TryFrom<String> for Period {
    type Error = InvalidPeriod;

    fn try_from(written: String) -> Result<Self, InvalidPeriod> {
        written.parse()
    }
}

impl From<Period> for String {
    fn from(period: Period) -> Self {
        period.written
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl JsonSchema for Period {
    fn schema_name() -> Cow<'static, str> {
        "Period".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // No `pattern` keyword: its message would show the expression and not how to mend the value.
        let mut schema = json_schema!({ "type": "string", "minLength": 1, "maxLength": 28 });
        let syntax = Rule::new(format!("self.matches('{PATTERN}')")).message(NOT_A_DURATION);
        let range = Rule::new(format!(
            "!self.matches('{PATTERN}') || (duration(self) >= duration('1ms') && duration(self) <= duration('24h'))"
        ))
        .message(OUT_OF_RANGE);
        for rule in [syntax, range] {
            validate(&mut schema, rule).expect("a rule is plain strings, which always serialise");
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
            ("24h", 86_400_000),
        ] {
            let period: Period = written.parse().expect(written);
            assert_eq!(period.duration(), Duration::from_millis(millis), "{written}");
            assert_eq!(period.to_string(), written);
        }
    }

    #[test]
    fn refuses_the_rest() {
        for written in
            ["", "1", "s", "1.5s", "-1s", "+1s", "1 s", "1S", "1us", "1d", "100000s", "1s1s1s1s1s", "1sé", "é"]
        {
            assert_eq!(written.parse::<Period>(), Err(InvalidPeriod::Syntax), "{written:?}");
        }
        for written in ["0s", "0ms", "0h0m", "24h1ms", "99999h99999h99999h99999h"] {
            assert_eq!(written.parse::<Period>(), Err(InvalidPeriod::Range), "{written:?}");
        }
    }
}
