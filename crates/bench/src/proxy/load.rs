//! Runs the clients, and reads what they report: wrk for HTTP/1.1, and h2load for HTTP/2 and for a constant rate.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::Context as _;
use serde::Deserialize;

use super::h2load::{Answer, h2load};
use crate::{command::output, stats::quantile_us};

const SCRIPT: &str = include_str!("load.lua");

/// The number of HTTP/2 connections that share the requests in flight.
const HTTP2_CONNECTIONS: usize = 8;

/// The counts of a client, with latencies in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Load {
    pub(crate) served: u64,
    /// Requests that were answered with a status of 400 or more.
    pub(crate) refused: u64,
    /// Requests without an answer.
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
    /// The bytes of all responses, including heads.
    pub(crate) bytes: u64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
}

/// The settings of a run of wrk.
pub(crate) struct Wrk<'a> {
    pub(crate) url: &'a str,
    pub(crate) threads: usize,
    pub(crate) connections: usize,
    pub(crate) length: Duration,
    /// The header with the key. Its value is `prefix`, followed by one of `keys` different numbers.
    pub(crate) header: &'a str,
    pub(crate) prefix: &'a str,
    pub(crate) keys: u64,
    /// Each request of this number asks for `/hang`; 0 for none.
    pub(crate) hang: u64,
    pub(crate) seed: usize,
    /// The folder for wrk's script.
    pub(crate) folder: &'a Path,
}

/// The output of load.lua.
#[derive(Deserialize)]
struct Counted {
    requests: u64,
    micros: u64,
    bytes: u64,
    refused: u64,
    failed: u64,
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Wrk<'_> {
    pub(crate) fn run(&self) -> anyhow::Result<Load> {
        let script = self.folder.join("load.lua");
        fs::write(&script, SCRIPT).context("write wrk's script")?;
        let mut command = Command::new("wrk");
        command.args([&format!("-t{}", self.threads), &format!("-c{}", self.connections)]);
        command.args(["--timeout", "5s", &format!("-d{}s", self.length.as_secs().max(1)), "-s"]).arg(&script);
        command.args(["-H", &format!("{}: {}0", self.header, self.prefix)]);
        command.env("WEIR_KEYS", self.keys.to_string()).env("WEIR_SEED", (self.seed + 1).to_string());
        command.env("WEIR_HANG", self.hang.to_string());
        command.env("WEIR_HEADER", self.header).env("WEIR_PREFIX", self.prefix);
        parse_wrk(&output(command.arg(self.url))?)
    }
}

/// Runs h2load over HTTP/2 with prior knowledge, as fast as the answers arrive.
pub(super) fn http2(url: &str, in_flight: usize, length: Duration, folder: &Path) -> anyhow::Result<Load> {
    let streams = in_flight.div_ceil(HTTP2_CONNECTIONS);
    with_h2load(url, &[format!("-c{HTTP2_CONNECTIONS}"), format!("-m{streams}")], length, folder)
}

/// Runs h2load over HTTP/1.1, with a constant rate per connection.
pub(super) fn steady(
    url: &str,
    connections: usize,
    rate: usize,
    length: Duration,
    folder: &Path,
) -> anyhow::Result<Load> {
    let flags = ["--h1".to_owned(), format!("-c{connections}"), format!("--rps={}", rate / connections)];
    with_h2load(url, &flags, length, folder)
}

fn with_h2load(url: &str, flags: &[String], length: Duration, folder: &Path) -> anyhow::Result<Load> {
    let length = format!("-D{}", length.as_secs().max(1));
    Load::of(&h2load(url, &[flags, &[length, "-Hx-key: 0".to_owned()]].concat(), folder)?)
}

impl Load {
    /// The counts of h2load, which does not tell the bytes.
    fn of(answers: &[Answer]) -> anyhow::Result<Self> {
        let first = answers.iter().map(|answer| answer.started).min().context("h2load got no answer")?;
        let last = answers.iter().map(|answer| answer.started + answer.took).max().unwrap_or(first);
        let count = |is: fn(i16) -> bool| answers.iter().filter(|answer| is(answer.status)).count() as u64;
        let mut latencies: Vec<_> = answers.iter().map(|answer| answer.took).collect();
        latencies.sort();
        let [p50, p95, p99] = [500, 950, 990].map(|per_mille| quantile_us(&latencies, per_mille));
        Ok(Self {
            served: count(|status| (0..400).contains(&status)),
            refused: count(|status| status >= 400),
            failed: count(|status| status < 0),
            seconds: (last - first).as_secs_f64(),
            bytes: 0,
            p50,
            p95,
            p99,
        })
    }
}

fn parse_wrk(said: &str) -> anyhow::Result<Load> {
    let line = said.lines().rev().find(|line| line.starts_with('{')).context("wrk printed no counts")?;
    let counted: Counted = serde_json::from_str(line).with_context(|| format!("wrk printed {line}"))?;
    Ok(Load {
        served: counted.requests.saturating_sub(counted.refused),
        refused: counted.refused,
        failed: counted.failed,
        seconds: Duration::from_micros(counted.micros).as_secs_f64(),
        bytes: counted.bytes,
        p50: counted.p50,
        p95: counted.p95,
        p99: counted.p99,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrk_is_understood() {
        let said = "Running 1s test\n  5 requests in 1.00s\n\
            {\"requests\":5,\"micros\":2000000,\"bytes\":9,\"refused\":2,\"failed\":1,\"p50\":10,\"p95\":15,\"p99\":20}\n";
        let expected =
            Load { served: 3, refused: 2, failed: 1, seconds: 2.0, bytes: 9, p50: 10.0, p95: 15.0, p99: 20.0 };
        assert_eq!(parse_wrk(said).expect("well formed"), expected);
        assert!(parse_wrk("unable to connect").is_err());
    }

    #[test]
    fn answers_are_counted_by_their_status() {
        let answer = |started, status, took| {
            let [started, took] = [started, took].map(Duration::from_millis);
            Answer { started, status, took }
        };
        let answers = [answer(1_000, 200, 30), answer(1_020, 429, 20), answer(1_900, 200, 50), answer(1_900, -1, 10)];
        let [p50, p95, p99] = [20_000.0, 50_000.0, 50_000.0];
        let expected = Load { served: 2, refused: 1, failed: 1, seconds: 0.95, bytes: 0, p50, p95, p99 };
        assert_eq!(Load::of(&answers).expect("answers"), expected);
        assert!(Load::of(&[]).is_err());
    }
}
