//! Durations as Kubernetes writes them.

use std::time::Duration;

/// A duration of GEP-2257, such as `500ms`, `10s` or `1m30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 500ms, 10s or 1m30s".to_owned();
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if !(1..=5).contains(&digits) {
            return Err(expected());
        }
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| expected())?;
        let unit = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, tail) = tail.split_at(unit);
        total += match unit {
            "h" => Duration::from_secs(number * 3600),
            "m" => Duration::from_secs(number * 60),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return Err(expected()),
        };
        if tail.is_empty() {
            return Ok(total);
        }
        rest = tail;
    }
    Err(expected())
}

/// A duration above zero.
pub(super) fn above_zero(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|it| if it.is_zero() { Err("must be above zero".to_owned()) } else { Ok(it) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_follow_gep_2257() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("500ms", Some(500)),
            ("1m30s", Some(90_000)),
            ("1h1m1s1ms", Some(3_661_001)),
            ("0s", Some(0)),
            ("", None),
            ("10", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("100000s", None),
            ("1d", None),
            ("1s1s1s1s1s", None),
        ] {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
    }
}
