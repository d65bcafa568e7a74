//! Runs the clients, and parses their reports: wrk for HTTP/1.1, and h2load for HTTP/2 and for a constant rate.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::Context as _;
use serde::Deserialize;

use crate::{command::output, stats::quantile};

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
    h2load(url, &[format!("-c{HTTP2_CONNECTIONS}"), format!("-m{streams}")], length, folder)
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
    h2load(url, &flags, length, folder)
}

fn h2load(url: &str, flags: &[String], length: Duration, folder: &Path) -> anyhow::Result<Load> {
    let log = folder.join("h2load.log");
    // The old log is removed, because h2load appends to it.
    let _ = fs::remove_file(&log);
    let mut command = Command::new("h2load");
    command.args(flags).arg(format!("-D{}", length.as_secs().max(1))).args(["-H", "x-key: 0", "--log-file"]).arg(&log);
    let said = output(command.arg(url))?;
    parse_h2load(&said, &fs::read_to_string(&log).context("read h2load's log")?)
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

fn parse_h2load(said: &str, log: &str) -> anyhow::Result<Load> {
    let counts = |line: &str| -> Option<Vec<u64>> {
        let (_, counts) = said.lines().find(|at| at.starts_with(line))?.split_once(':')?;
        counts.split(',').map(|count| count.split_whitespace().next()?.parse().ok()).collect()
    };
    let statuses = counts("status codes:").filter(|counts| counts.len() == 4).context("h2load reported no statuses")?;
    let requests = counts("requests:").filter(|counts| counts.len() == 7).context("h2load reported no counts")?;
    let finished = said.lines().find_map(|line| line.strip_prefix("finished in ")).context("h2load did not finish")?;
    let seconds = parse_seconds(finished.split(',').next().unwrap_or_default()).context("h2load reported no time")?;
    let traffic = said.lines().find_map(|line| line.strip_prefix("traffic:")).unwrap_or_default();
    let bytes = traffic.split(['(', ')']).nth(1).and_then(|bytes| bytes.parse().ok()).unwrap_or_default();
    let mut latencies: Vec<f64> = log.lines().filter_map(|line| line.split('\t').nth(2)?.parse().ok()).collect();
    latencies.sort_by(f64::total_cmp);
    Ok(Load {
        served: statuses[0] + statuses[1],
        refused: statuses[2] + statuses[3],
        // These are errors and timeouts. The requests that h2load reports as failed have error statuses, which are
        // counted separately.
        failed: requests[5] + requests[6],
        seconds,
        bytes,
        p50: quantile(&latencies, 500),
        p95: quantile(&latencies, 950),
        p99: quantile(&latencies, 990),
    })
}

/// Parses a time such as `2.00s` or `950.10ms`.
fn parse_seconds(text: &str) -> Option<f64> {
    match text.strip_suffix("ms") {
        Some(millis) => Some(millis.parse::<f64>().ok()? / 1e3),
        None => text.strip_suffix('s')?.parse().ok(),
    }
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
    fn h2load_is_understood() {
        let said = "finished in 950.00ms, 7.00 req/s, 1KB/s\n\
            requests: 8 total, 8 started, 8 done, 5 succeeded, 3 failed, 1 errored, 0 timeout\n\
            status codes: 5 2xx, 0 3xx, 2 4xx, 0 5xx\n\
            traffic: 1.20KB (1234) total, 1KB (1000) headers\n";
        let log = "1\t200\t30\n2\t200\t10\n3\t429\t20\n";
        let expected =
            Load { served: 5, refused: 2, failed: 1, seconds: 0.95, bytes: 1234, p50: 20.0, p95: 30.0, p99: 30.0 };
        assert_eq!(parse_h2load(said, log).expect("well formed"), expected);
        assert!(parse_h2load("", log).is_err());
    }
}
