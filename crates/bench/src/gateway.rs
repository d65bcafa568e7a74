//! Measures a gateway with a token bucket for each client address, written with Weir, with `DashMap` and with a `Mutex`
//! around a `HashMap`. Many gateways have this comparison in their README. Each gateway runs with and without an
//! upstream.
//!
//! All code except the limiter is the same, and each gateway runs in a separate process.

mod limiters;
mod server;

use std::time::Duration;

use anyhow::{Context as _, ensure};

use self::limiters::{LIMITERS, RATE};
pub(crate) use self::{
    limiters::{DASHMAP, MUTEX, Rate},
    server::GatewayArgs,
};
use crate::{
    proxy::{Load, Wrk, start_app},
    report::{Bars, Report},
    rounds::{Figure, Rounds},
    stats::float,
};

/// The number of different client addresses in the requests.
const CLIENTS: u64 = 254;

const ABOUT: &str = "\
An axum gateway with a limit for each client address (the last one in `X-Forwarded-For`): 100 requests a second with \
bursts of 200, and 429 for all others. Weir is `LatencyLayer` with a `KeyedAdmit`. The other two are a token bucket of \
two floats in an `Arc<DashMap>` and in an `Arc<Mutex<HashMap>>`, as a team would write them, behind the same layer. \
`wrk` has 254 client addresses, with 4 threads and 100 connections and with 12 and 800, without and with an upstream \
behind the gateway. Gateway, clients and upstream share all cores, so threads of the gateway do compete for a lock.";

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let (rounds, length) = if quick { (1, Duration::from_secs(1)) } else { (5, Duration::from_secs(3)) };
    let upstream = start_app()?;
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let mut report = Report::new("gateway", "A gateway with a bucket for each client", ABOUT, quick)?;
    let mut found = Rounds::new(LIMITERS);
    for case in CASES {
        found.add(case.name);
    }
    found.measure("gateway", rounds, |case, limiter, round| {
        let case = CASES[case];
        let behind = case.upstream.then_some(upstream);
        let (process, listen) = GatewayArgs::start(LIMITERS[limiter], behind, RATE, None, folder.path())?;
        let before = process.cpu()?;
        let load = Wrk {
            url: &format!("http://{listen}/small"),
            threads: case.threads,
            connections: case.connections,
            length,
            header: "X-Forwarded-For",
            prefix: "192.168.1.",
            keys: CLIENTS,
            hang: 0,
            seed: round,
            folder: folder.path(),
        }
        .run()?;
        let cpu = process.cpu()? - before;
        check(&load)?;
        Ok(Some(Sample::new(cpu.total().as_secs_f64(), &load)))
    })?;
    write(&found, &mut report);
    Ok(report)
}

/// A case: a load, and a gateway with or without an upstream.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    threads: usize,
    connections: usize,
    upstream: bool,
}

const CASES: [Case; 4] = [
    Case { name: "100 connections", threads: 4, connections: 100, upstream: false },
    Case { name: "100 connections, upstream", threads: 4, connections: 100, upstream: true },
    Case { name: "800 connections", threads: 12, connections: 800, upstream: false },
    Case { name: "800 connections, upstream", threads: 12, connections: 800, upstream: true },
];

#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    p50: f64,
    p99: f64,
    cpu: f64,
    admitted: f64,
}

impl Sample {
    fn new(cpu_seconds: f64, load: &Load) -> Self {
        let requests = float(load.served + load.refused);
        Self {
            per_second: requests / load.seconds,
            p50: load.p50 / 1e3,
            p99: load.p99 / 1e3,
            cpu: cpu_seconds * 1e6 / requests,
            admitted: float(load.served) / (float(CLIENTS) * RATE.most(load.seconds)),
        }
    }
}

/// Checks that all requests were answered, and that the buckets did not admit too many requests.
fn check(load: &Load) -> anyhow::Result<()> {
    ensure!(load.failed == 0, "{} requests were not answered", load.failed);
    ensure!(load.served > 0, "no request was admitted");
    // The gateway runs slightly longer than wrk measures.
    let most = float(CLIENTS) * RATE.most(load.seconds + 0.5);
    ensure!(float(load.served) <= most, "{} requests were admitted, but {most:.0} is the maximum", load.served);
    Ok(())
}

const fn figure(title: &'static str, unit: &'static str, of: fn(&Sample) -> f64) -> Figure<Sample> {
    Figure { title, unit, of, more_is_better: false }
}

const THROUGHPUT: Figure<Sample> =
    Figure { more_is_better: true, ..figure("Throughput", "requests a second", |sample| sample.per_second) };
const P50: Figure<Sample> = figure("Latency, P50", "ms", |sample| sample.p50);
const FIGURES: [Figure<Sample>; 5] = [
    THROUGHPUT,
    P50,
    figure("Latency, P99", "ms", |sample| sample.p99),
    figure("CPU per request", "µs", |sample| sample.cpu),
    figure("Let through", "as a share of what the buckets allow", |sample| sample.admitted),
];

/// A chart: its name, its title, the figure, and the number of connections.
const CHARTS: [(&str, &str, Figure<Sample>, usize); 3] = [
    ("throughput-100", "Requests a second, 4 threads, 100 connections", THROUGHPUT, 100),
    ("throughput-800", "Requests a second, 12 threads, 800 connections", THROUGHPUT, 800),
    ("latency-800", "Latency, P50, 12 threads, 800 connections", P50, 800),
];

fn write(found: &Rounds<Sample>, report: &mut Report) {
    for Figure { title, unit, of, .. } in FIGURES {
        report.table(found.by_contender(format!("{title}, {unit}"), "limiter", of));
    }
    for (name, title, figure, connections) in CHARTS {
        let cases = CASES.iter().enumerate().filter(|(_, case)| case.connections == connections);
        let bars = cases.flat_map(|(place, case)| {
            let behind = if case.upstream { "upstream" } else { "no upstream" };
            found.bars(place, figure.of).map(move |(name, value)| (format!("{name}, {behind}"), value))
        });
        report.chart(Bars::new(name, title, figure.unit, bars));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_buckets_hold_is_an_error() {
        let load = Load { served: 1_000, refused: 9, failed: 0, seconds: 1.0, bytes: 0, p50: 1.0, p95: 1.0, p99: 1.0 };
        assert!(check(&load).is_ok());
        assert!(check(&Load { served: 100_000, ..load }).is_err());
        assert!(check(&Load { served: 0, ..load }).is_err());
        assert!(check(&Load { failed: 1, ..load }).is_err());
    }
}
