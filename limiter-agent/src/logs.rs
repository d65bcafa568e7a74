//! Log lines on standard error.

use std::io::{self, IsTerminal};

use clap::ValueEnum;
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

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
