//! Seed 002: a gateway with a bucket for each client address. Compares the agent with gateways that store the buckets
//! in a `DashMap` and in a `Mutex<HashMap>`.

mod open_loop;
mod tables;

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;

use super::agent::{Policy, WEIR, start_agent};
use crate::{
    clock,
    gateway::{DASHMAP, GatewayArgs, MUTEX, Rate},
    proxy::{Connection, Load, Process, Wrk, bucket, more_files, start_app},
    report::Part,
    rounds::Rounds,
    stats::{figure, float},
};

pub(super) const ABOUT: &str = "\
A limit for each client address (the last one in `X-Forwarded-For`). The peers are the gateways of `cargo xtask bench \
gateway`: axum, with buckets in a `DashMap` and in a `Mutex<HashMap>`. `wrk` has 100 connections with 4 threads, and \
800 with 12. Load, gateway and app share all cores. *Refused*: the limit is one request a day for each address, and \
each address has used it, so this is the limiter without an upstream (the peers have none). *Forwarded*: the limit \
admits all requests, and the app answers them. *Limited*: 100 requests a second with bursts of 200 for each address, \
as in the document; what is admitted reaches the app. *App hangs*: one request in 200 gets no answer from the app, and \
the gateway answers it with 504 after 200 ms. Every round checks how many requests were admitted: none of the refused \
ones, all of the forwarded ones, never more than the buckets hold and earn, and as many errors as requests that hang. \
Read the latencies together with the throughput. Each connection sends its next request when it has its answer, so the \
mean latency is the number of connections divided by the throughput: a contender with more requests a second has a \
lower mean even where its P50 is higher, because the others answer some connections often and let others wait. And wrk \
adds samples to each latency above its mean interval between requests, so where the app hangs, a faster contender gets \
more of these samples: there, only the throughput and the CPU compare. *At a fixed rate*, clients do not wait for \
answers: each gateway gets a quarter, or half, of the requests a second that the slowest of the three serves in a \
closed loop, over the same 800 connections, each in turn. These are the latencies that users get from a gateway that \
is not saturated.";

pub(super) const CONTENDERS: [&str; 3] = [DASHMAP, MUTEX, WEIR];

const HEADER: &str = "X-Forwarded-For";
const FEW: Addresses = Addresses { prefix: "192.168.1.", count: 254, name: "254 addresses" };
const MANY: Addresses = Addresses { prefix: "10.", count: 100_000, name: "100,000 addresses" };
const MANY_QUICK: Addresses = Addresses { prefix: "10.", count: 2_000, name: "2,000 addresses" };

const NEVER: Rate = Rate { requests: 1, period: Duration::from_secs(24 * 3600), burst: 1 };
const ALWAYS: Rate = Rate { requests: 1_000_000, period: Duration::from_secs(1), burst: 1_000_000 };
const LIMITED: Rate = Rate { requests: 100, period: Duration::from_secs(1), burst: 200 };

const TIMEOUT: Duration = Duration::from_millis(200);
const HANG: u64 = 200;
/// The number of requests that one connection sends together while the tables of addresses are filled.
const BATCH: u64 = 100;

#[derive(Clone, Copy)]
struct Addresses {
    prefix: &'static str,
    count: u64,
    name: &'static str,
}

impl Addresses {
    /// As load.lua writes them.
    fn address(self, number: u64) -> String {
        match self.prefix {
            "10." => format!("10.{}.{}.{}", number / 65_536, number / 256 % 256, number % 256),
            prefix => format!("{prefix}{number}"),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Refused,
    Forwarded,
    Limited,
    Hangs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Forwarded => "forwarded",
            Self::Limited => "limited",
            Self::Hangs => "app hangs",
        }
    }

    fn rate(self) -> Rate {
        match self {
            Self::Refused => NEVER,
            Self::Forwarded | Self::Hangs => ALWAYS,
            Self::Limited => LIMITED,
        }
    }
}

/// Threads and connections of wrk.
const CROWDS: [(usize, usize); 2] = [(4, 100), (12, 800)];

/// The connections of the clients with a fixed rate.
const STEADY: usize = CROWDS[1].1;

#[derive(Clone, Copy)]
struct Sample {
    per_second: f64,
    p50: f64,
    p95: f64,
    p99: f64,
    cpu: f64,
}

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    more_files()?;
    let rounds = if quick { 1 } else { 5 };
    let many = if quick { MANY_QUICK } else { MANY };
    let settings = [
        (Kind::Refused, FEW),
        (Kind::Refused, many),
        (Kind::Forwarded, FEW),
        (Kind::Forwarded, many),
        (Kind::Limited, FEW),
        (Kind::Hangs, FEW),
    ];
    let app = start_app()?;
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let (mut cases, mut steady) = (Rounds::new(CONTENDERS), Rounds::new(CONTENDERS));
    for (kind, addresses) in settings {
        let bench = Bench { kind, addresses, app, folder: folder.path() };
        let mut gateways = bench.start_all()?;
        let found = bench.run(&mut gateways, rounds)?;
        if matches!(kind, Kind::Refused | Kind::Forwarded) && addresses.name == FEW.name {
            steady.extend(bench.run_steady(&mut gateways, &found, rounds)?);
        }
        cases.extend(found);
    }
    tables::write(&cases, &steady, part);
    Ok(())
}

/// One limit with its clients.
struct Bench<'a> {
    kind: Kind,
    addresses: Addresses,
    app: SocketAddr,
    folder: &'a Path,
}

/// A running contender.
struct Gateway {
    process: Process,
    listen: SocketAddr,
    started: std::time::Instant,
    admitted: u64,
}

impl Bench<'_> {
    fn start_all(&self) -> anyhow::Result<Vec<Gateway>> {
        let mut gateways = Vec::new();
        for name in CONTENDERS {
            let mut gateway = self.start(name).with_context(|| format!("start {name}"))?;
            self.prepare(&mut gateway).with_context(|| format!("{name}, {}", self.kind.name()))?;
            gateways.push(gateway);
        }
        Ok(gateways)
    }

    fn run(&self, gateways: &mut [Gateway], rounds: usize) -> anyhow::Result<Rounds<Sample>> {
        let mut cases = Rounds::new(CONTENDERS);
        for (_, connections) in CROWDS {
            cases.add(format!("{}, {}, {connections} connections", self.kind.name(), self.addresses.name));
        }
        cases.measure("seeds: 002", rounds, |case, place, round| {
            self.sample(&mut gateways[place], CROWDS[case], round).map(Some)
        })?;
        Ok(cases)
    }

    /// Gives all gateways the same rates, which follow from what they served in a closed loop.
    fn run_steady(
        &self,
        gateways: &mut [Gateway],
        closed: &Rounds<Sample>,
        rounds: usize,
    ) -> anyhow::Result<Rounds<Sample>> {
        // As many connections as in the second case.
        let throughput = closed.bars(1, |sample| sample.per_second);
        let slowest = throughput.map(|(_, per_second)| per_second).fold(f64::INFINITY, f64::min);
        let rates = open_loop::SHARES.map(|share| share.of(slowest));
        let mut cases = Rounds::new(CONTENDERS);
        for (share, rate) in open_loop::SHARES.iter().zip(rates) {
            let rate = figure(rate.into());
            cases.add(format!("{}, {}: {rate} requests a second", self.kind.name(), share.name));
        }
        cases.measure("seeds: 002", rounds, |case, place, _| {
            open_loop::sample(&mut gateways[place], self.kind, STEADY, rates[case]).map(Some)
        })?;
        Ok(cases)
    }

    fn start(&self, name: &str) -> anyhow::Result<Gateway> {
        let (rate, timeout) = (self.kind.rate(), (self.kind == Kind::Hangs).then_some(TIMEOUT));
        let started = clock::now();
        let (process, listen) = if name == WEIR {
            start_agent(self.app, &[], &policy(rate, timeout), self.folder)?
        } else {
            let behind = (self.kind != Kind::Refused).then_some(self.app);
            GatewayArgs::start(name, behind, rate, timeout, self.folder)?
        };
        Ok(Gateway { process, listen, started, admitted: 0 })
    }

    /// Sends one request from each address, and checks the answers.
    fn prepare(&self, gateway: &mut Gateway) -> anyhow::Result<()> {
        let mut connection = Connection::open(gateway.listen)?;
        let request = |path: &str, number| {
            let address = self.addresses.address(number);
            format!("GET {path} HTTP/1.1\r\nhost: app\r\n{HEADER}: {address}\r\n\r\n")
        };
        for first in (0..self.addresses.count).step_by(usize::try_from(BATCH).unwrap_or(1)) {
            let numbers = first..self.addresses.count.min(first + BATCH);
            let requests: Vec<_> = numbers.map(|number| request("/small", number)).collect();
            let statuses = connection.ask_all(&requests)?;
            ensure!(statuses.iter().all(|status| *status == 200), "addresses from {first} on got {statuses:?}");
            gateway.admitted += statuses.len() as u64;
        }
        let (path, expected) = match self.kind {
            Kind::Refused => ("/small", 429),
            Kind::Forwarded | Kind::Limited => ("/small", 200),
            Kind::Hangs => ("/hang", 504),
        };
        let statuses = connection.ask_all(&[request(path, 0)])?;
        ensure!(statuses == [expected], "a second request got {statuses:?}, not {expected}");
        Ok(())
    }

    fn sample(
        &self,
        gateway: &mut Gateway,
        (threads, connections): (usize, usize),
        round: usize,
    ) -> anyhow::Result<Sample> {
        let before = gateway.process.cpu()?;
        let load = Wrk {
            url: &format!("http://{}/small", gateway.listen),
            threads,
            connections,
            length: Duration::from_secs(1),
            header: HEADER,
            prefix: self.addresses.prefix,
            keys: self.addresses.count,
            hang: if self.kind == Kind::Hangs { HANG } else { 0 },
            seed: round,
            folder: self.folder,
        }
        .run()?;
        let cpu = gateway.process.cpu()? - before;
        gateway.admitted += load.served;
        let passed = clock::since(gateway.started).as_secs_f64();
        self.check(&load, connections, gateway.admitted, passed)?;
        Ok(Sample::new(cpu.total().as_secs_f64(), &load))
    }

    /// Checks the numbers of admitted requests: of this round, and of all rounds.
    fn check(&self, load: &Load, connections: usize, admitted: u64, passed: f64) -> anyhow::Result<()> {
        ensure!(load.failed == 0, "{} requests were not answered", load.failed);
        let all = load.served + load.refused;
        ensure!(all > 0, "no request was answered");
        match self.kind {
            Kind::Refused => ensure!(load.served == 0, "{} of {all} got through", load.served),
            Kind::Forwarded => ensure!(load.refused == 0, "{} of {all} were refused", load.refused),
            Kind::Limited => {
                ensure!(load.served > 0, "no request got through");
                let most = float(self.addresses.count) * LIMITED.most(passed);
                ensure!(float(admitted) <= most, "{admitted} got through, {most:.0} at most should have");
            }
            Kind::Hangs => {
                // Each connection of wrk may have one more that hangs when it ends.
                let (hung, open) = (all / HANG, connections as u64);
                let counted = load.refused;
                ensure!(counted <= hung + open && counted + open >= hung, "{counted} errors of {all}, {hung} expected");
            }
        }
        Ok(())
    }
}

fn policy(rate: Rate, deadline: Option<Duration>) -> Policy {
    let period = u64::try_from(rate.period.as_millis()).unwrap_or(u64::MAX);
    let rule = json!({
        "name": "per-client",
        "action": "Limit",
        "key": [{ "clientIP": { "trustedHops": 1, "ipv6Prefix": 64 } }],
        "limits": [bucket(rate.requests.into(), period, rate.burst.into())],
        "onLimit": { "status": 429, "headers": "IETF" },
        "maxKeys": 200_000,
    });
    let deadline_millis = deadline.map(|deadline| u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX));
    Policy { rules: vec![rule], deadline_millis, ..Policy::default() }
}

impl Sample {
    fn new(cpu_seconds: f64, load: &Load) -> Self {
        let requests = float(load.served + load.refused);
        Self {
            per_second: requests / load.seconds,
            p50: load.p50 / 1e3,
            p95: load.p95 / 1e3,
            p99: load.p99 / 1e3,
            cpu: cpu_seconds * 1e6 / requests,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(kind: Kind) -> Bench<'static> {
        Bench { kind, addresses: FEW, app: SocketAddr::from(([127, 0, 0, 1], 1)), folder: Path::new("/") }
    }

    #[test]
    fn a_wrong_count_is_an_error() {
        let load = Load { served: 0, refused: 10_000, failed: 0, seconds: 1.0, bytes: 0, p50: 1.0, p95: 1.0, p99: 1.0 };
        let served = Load { served: 10_000, refused: 0, ..load };
        let check = |kind, load: Load, admitted| bench(kind).check(&load, 10, admitted, 2.0).is_ok();
        assert!(check(Kind::Refused, load, 254) && !check(Kind::Refused, Load { served: 1, ..load }, 255));
        assert!(check(Kind::Forwarded, served, 10_254) && !check(Kind::Forwarded, load, 254));
        // 254 buckets of 200, and two seconds.
        assert!(check(Kind::Limited, served, 254 * 400) && !check(Kind::Limited, served, 254 * 400 + 1));
        let hangs = |refused| check(Kind::Hangs, Load { served: 20_000 - refused, refused, ..load }, 0);
        assert!(hangs(100) && hangs(110) && hangs(90) && !hangs(111) && !hangs(89));
    }

    #[test]
    fn addresses_are_those_of_the_load() {
        assert_eq!(FEW.address(253), "192.168.1.253");
        assert_eq!(MANY.address(99_999), "10.1.134.159");
        let parsed = (0..MANY.count).map(|number| MANY.address(number).parse::<std::net::Ipv4Addr>());
        assert_eq!(parsed.flatten().collect::<std::collections::BTreeSet<_>>().len(), 100_000);
    }
}
