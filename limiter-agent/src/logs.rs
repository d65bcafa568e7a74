//! Log lines on standard error.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for people.
    Text,
}

/// The format and the level of an agent's logs.
#[derive(Clone, Debug)]
pub struct Logs {
    pub(crate) format: LogFormat,
    pub(crate) level: Targets,
}

impl Logs {
    /// Starts logging. Call it once per process.
    pub fn start(&self) {
        let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
        let lines = match self.format {
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
            LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        };
        tracing_subscriber::registry().with(lines.with_filter(self.level.clone())).init();
    }
}

/// Parses levels by module.
///
/// # Errors
///
/// A part is neither a level nor a module. A misspelled level would otherwise be the name of a module, and the agent would
/// log nothing.
pub(crate) fn level(text: &str) -> Result<Targets, String> {
    let is_level = |part: &str| part.parse::<LevelFilter>().is_ok();
    let is_valid = |part: &&str| match part.rsplit_once('=') {
        Some((_, level)) => is_level(level),
        None => is_level(part) || part.contains('_') || part.contains("::"),
    };
    match text.split(',').find(|part| !is_valid(part)) {
        Some(part) => Err(format!(
            "{part:?} is not a log level: set error, warn, info, debug or trace, also for single modules such as \
             info,weir_client::control=debug"
        )),
        None => text.parse().map_err(|error: tracing_subscriber::filter::ParseError| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        for good in ["info", "INFO", "off", "info,weir_client::control=debug", "warn,weir_http"] {
            assert!(level(good).is_ok(), "{good}");
        }
        for bad in ["bogus", "debgu", "info,debgu", "weir_http=debgu"] {
            let error = level(bad).expect_err(bad);
            assert!(error.contains("is not a log level: set error, warn"), "{error}");
        }
    }
}
