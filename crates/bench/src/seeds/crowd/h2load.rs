//! A fixed number of requests from h2load, and what happened to each.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, ensure};

use crate::command::output;

/// Longer than any contender keeps a burst waiting, in seconds.
const PATIENCE: &str = "60";

pub(super) struct H2load<'a> {
    pub(super) url: &'a str,
    pub(super) requests: u32,
    pub(super) connections: u32,
    /// HTTP/2 with all requests of a connection at the same time, or HTTP/1.1 with one at a time.
    pub(super) http2: bool,
    pub(super) folder: &'a Path,
}

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// Since 1970.
    pub(super) started: Duration,
    /// -1 if it was not answered.
    pub(super) status: i16,
    pub(super) took: Duration,
}

impl Answer {
    pub(super) fn is_served(&self) -> bool {
        self.status == 200
    }
}

impl H2load<'_> {
    pub(super) fn run(&self) -> anyhow::Result<Vec<Answer>> {
        let log = self.folder.join("h2load.log");
        // h2load appends to it.
        let _ = fs::remove_file(&log);
        let mut command = Command::new("timeout");
        command.args([PATIENCE, "h2load", "--log-file"]).arg(&log);
        command.args([format!("-n{}", self.requests), format!("-c{}", self.connections)]);
        if self.http2 {
            command.arg(format!("-m{}", self.requests / self.connections));
        } else {
            command.arg("--h1");
        }
        output(command.arg(self.url))?;
        let answers = parse(&fs::read_to_string(&log).context("read h2load's log")?)?;
        ensure!(answers.len() == self.requests as usize, "{} of {} requests ended", answers.len(), self.requests);
        Ok(answers)
    }
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
