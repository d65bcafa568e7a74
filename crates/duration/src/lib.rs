//! Durations as people write them. Policies and the flags of agent and operator use this parser.

#[cfg(test)]
mod fuzz;

use std::time::Duration;

/// The value of a flag: a duration such as `500ms`, `10s` or `1m30s`.
///
/// # Errors
///
/// The text is not a duration.
pub fn duration(text: &str) -> Result<Duration, String> {
    let millis = parse_millis(text).ok_or("expected a duration such as 500ms, 10s or 1m30s")?;
    Ok(Duration::from_millis(millis))
}

/// The value of a flag: a duration above zero.
///
/// # Errors
///
/// The text is not a duration, or the duration is zero.
pub fn above_zero(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|it| if it.is_zero() { Err("must be above zero".to_owned()) } else { Ok(it) })
}

/// Returns the milliseconds of a duration such as `500ms`, `10s` or `1h30m`. `None` for any other text.
///
/// The syntax follows GEP-2257: one to four numbers, each with one of the units `h`, `m`, `s` and `ms`. The duration is
/// their sum. As in GEP-2257, numbers of hours and minutes have up to five digits. Numbers of seconds and milliseconds have
/// up to nine digits, so that days can be written in them.
///
/// ```
/// assert_eq!(weir_duration::parse_millis("1m30s"), Some(90_000));
/// assert_eq!(weir_duration::parse_millis("1.5m"), None);
/// ```
#[must_use]
pub fn parse_millis(text: &str) -> Option<u64> {
    let mut millis: u64 = 0;
    let mut rest = text;
    for _ in 0..4 {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        if !(1..=9).contains(&digits) {
            return None;
        }
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let units = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, most_digits) = match &rest[..units] {
            "h" => (3_600_000, 5),
            "m" => (60_000, 5),
            "s" => (1_000, 9),
            "ms" => (1, 9),
            _ => return None,
        };
        if digits > most_digits {
            return None;
        }
        rest = &rest[units..];
        millis += number * unit; // the sum is at most four times 999999999 s, far below 2^64
        if rest.is_empty() {
            return Some(millis);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_follow_gep_2257() {
        for (text, millis) in [
            ("1ms", 1),
            ("500ms", 500),
            ("10s", 10_000),
            ("1m30s", 90_000),
            ("1h1m1s1ms", 3_661_001),
            ("1ms1s1m1h", 3_661_001),
            ("00001s", 1_000),
            ("24h", 86_400_000),
            ("86400000ms", 86_400_000),
            ("604800000ms", 604_800_000),
            ("999999999s999999999s", 2 * 999_999_999_000),
            ("0s", 0),
            ("99999h99999h99999h99999h", 4 * 99_999 * 3_600_000),
        ] {
            assert_eq!(parse_millis(text), Some(millis), "{text}");
        }
        for text in [
            "", "1", "s", "1.5s", "-1s", "+1s", "1 s", "1S", "1us", "1d", "100000h", "100000m", "1000000000s",
            "1000000000ms", "1s1s1s1s1s", "1sé", "é",
        ] {
            assert_eq!(parse_millis(text), None, "{text:?}");
        }
    }
}
