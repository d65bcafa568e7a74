//! Requests from h2load, and what happened to each.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::Context as _;

use crate::command::output;

/// Longer than any contender keeps a burst waiting, in seconds.
const PATIENCE: &str = "60";

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// Since 1970.
    pub(crate) started: Duration,
    /// -1 if it was not answered.
    pub(crate) status: i16,
    pub(crate) took: Duration,
}

impl Answer {
    pub(crate) fn is_served(&self) -> bool {
        self.status == 200
    }
}

/// Runs h2load with these flags. Returns all requests that have ended.
pub(crate) fn h2load(url: &str, flags: &[String], folder: &Path) -> anyhow::Result<Vec<Answer>> {
    let log = folder.join("h2load.log");
    // h2load appends to it.
    let _ = fs::remove_file(&log);
    let mut command = Command::new("timeout");
    command.args([PATIENCE, "h2load", "--log-file"]).arg(&log).args(flags);
    output(command.arg(url))?;
    parse(&fs::read_to_string(&log).context("read h2load's log")?)
}

fn parse(log: &str) -> anyhow::Result<Vec<Answer>> {
    let answer = |line: &str| {
        let mut fields = line.split('\t');
        Some(Answer {
            started: Duration::from_micros(fields.next()?.parse().ok()?),
            status: fields.next()?.parse().ok()?,
            took: Duration::from_micros(fields.next()?.parse().ok()?),
        })
    };
    log.lines().map(|line| answer(line).with_context(|| format!("h2load wrote {line}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_an_answer() {
        let answers = parse("1700000000000001\t200\t30\n1700000000000002\t-1\t40\n").expect("well formed");
        let micros = Duration::from_micros;
        let expected = [
            Answer { started: micros(1_700_000_000_000_001), status: 200, took: micros(30) },
            Answer { started: micros(1_700_000_000_000_002), status: -1, took: micros(40) },
        ];
        assert_eq!(answers, expected);
        assert!(parse("nothing\n").is_err());
    }
}
