//! Durations in flags.

use std::time::Duration;

use weir_duration::parse_millis;

/// A duration such as `500ms`, `10s` or `1m30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let millis = parse_millis(text).ok_or("expected a duration such as 500ms, 10s or 1m30s")?;
    Ok(Duration::from_millis(millis))
}

/// A duration above zero.
pub(crate) fn above_zero(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|it| if it.is_zero() { Err("must be above zero".to_owned()) } else { Ok(it) })
}
