//! The filter of log lines, from the variable `RUST_LOG`.

use std::env;

use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// The variable that contains the filter.
const VARIABLE: &str = "RUST_LOG";

/// Returns the filter of the environment, or the level `info` if it has none.
///
/// # Errors
///
/// The filter is invalid. The message names the variable and the fix.
pub(crate) fn from_environment() -> Result<EnvFilter, String> {
    let Some(text) = env::var_os(VARIABLE) else { return Ok(EnvFilter::new("info")) };
    parse(&text.to_string_lossy()).map_err(|problem| format!("{VARIABLE}: {problem}"))
}

/// Parses a filter. A bare word that is no level would be the name of a module, and the operator would log nothing.
fn parse(text: &str) -> Result<EnvFilter, String> {
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    let is_valid = |part: &&str| match part.rsplit_once('=') {
        // The fields of a span, in brackets, are not a level.
        Some((_, level)) => level.ends_with(']') || is_level(level),
        None => is_level(part) || part.contains(['_', '[']) || part.contains("::"),
    };
    match text.split(',').find(|part| !is_valid(part)) {
        Some(part) => Err(format!(
            "{part:?} is not a log level: set error, warn, info, debug or trace, also for single modules such as \
             info,weir_operator=debug"
        )),
        None => EnvFilter::try_new(text).map_err(|error| format!("{text:?}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for good in [
            "info",
            "INFO",
            "off",
            "",
            "info,weir_operator=debug",
            "warn,weir_http,weir_operator::link=trace",
            "info,weir_operator=debug,[request{path=1}]=trace,[request{path=1}]",
        ] {
            assert!(parse(good).is_ok(), "{good}: {:?}", parse(good));
        }
        for (bad, part) in [
            ("debgu", "debgu"),
            ("info,loud", "loud"),
            ("info,weir_operator=debgu", "weir_operator=debgu"),
            ("[request{path=1}]=trace,loud", "loud"),
            ("info, debug", " debug"),
        ] {
            let error = parse(bad).expect_err(bad);
            assert!(error.starts_with(&format!("{part:?} is not a log level: set error, warn")), "{error}");
        }
    }
}
