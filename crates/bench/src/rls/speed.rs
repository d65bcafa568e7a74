//! Measures `weir-agent rls` and envoyproxy/ratelimit with Redis: questions a second on one core, CPU per question, and
//! latency at a constant rate.

mod awake;
mod load;
mod replicas;
mod tables;

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) use self::replicas::{ABOUT as ABOUT_REPLICAS, measure as measure_replicas};
use self::{
    awake::Awake,
    load::{Answers, Load, Pace, Protocol, message},
    tables::Aims,
};
use super::{
    messages::{Code, Descriptor, Entry, GubernatorLimit, GubernatorRequest, Request},
    services::{PeerSettings, Service},
};
use crate::{
    proxy::{Cores, Cpu, Process, make_room, snapshot_of},
    report::{Part, Report, go_version, program_version},
    rounds::Rounds,
    stats::{float, quantile_us},
};

const DOMAIN: &str = "bench";
const CONNECTIONS: usize = 8;
/// The questions in flight on each connection.
const IN_FLIGHT: usize = 16;
const KEYS: usize = 10_000;
/// Questions a second: less than half of what the slowest contender answers.
const RATE: u32 = 2_000;
/// A limit that no run reaches.
const UNREACHED: u64 = 4_000_000_000;
/// In milliseconds.
const DAY: u64 = 24 * 3600 * 1_000;

const ABOUT: &str = "\
The questions are like those of an Envoy with one descriptor of one entry, over gRPC without TLS. Every limit is a \
fixed window of a day: one that is not reached, with the value of the entry as its key, and one of a single request. \
All processes of a contender, with Redis, share one core, and the client has the other one. The client is our own \
(crates/bench/src/rls/speed/load.rs): it writes the frames of HTTP/2 itself, and compares the code of every answer \
with the expected one. It has 8 connections. For the throughput, 16 questions are in flight on each of them. For the \
latency, it sends 2,000 questions a second, evenly, whether answers arrive or not, and waits for all of them. \
Meanwhile, a process of the scheduling class `idle` keeps each core awake. Without it, the machine puts an idle virtual \
core to sleep, and the time to wake it is a part of each latency. CPU is \
the user and system time of all processes of a contender, from /proc. `throughput of a core` is the number of \
questions for each second of this CPU time. It counts also where the client could not fill the core of the \
contender.

envoyproxy/ratelimit has its default settings, without statsd and statistics. Its second row is tuned: with a local \
cache of 64 MB for keys over their limit, and commands to Redis together every 150 µs (`REDIS_PIPELINE_WINDOW`), the \
least that its README recommends. Redis writes no files. The agent counts in its own memory, which is what a policy \
of scope Pod does with one replica. With scope Fleet or Shared it would ask others from time to time, and this page \
does not measure that. The agent is built as in its image, with the profile dist.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Peer,
    TunedPeer,
    Weir,
}

/// The settings of the tuned peer.
const TUNED: &[(&str, &str)] = &[("LOCAL_CACHE_SIZE_IN_BYTES", "67108864"), ("REDIS_PIPELINE_WINDOW", "150us")];

/// The contenders in the order of the tables. Weir is the last one.
const CONTENDERS: [Contender; 3] = [Contender::Peer, Contender::TunedPeer, Contender::Weir];

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Peer => "envoyproxy/ratelimit",
            Self::TunedPeer => "envoyproxy/ratelimit, tuned",
            Self::Weir => "weir-agent rls",
        }
    }

    fn start(self, folder: &Path) -> anyhow::Result<Service> {
        let more = if self == Self::TunedPeer { TUNED } else { &[] };
        if self == Self::Weir {
            // The limits of `config`.
            let rules = [rule("client", UNREACHED), rule("once", 1)];
            return Service::weir(folder, &snapshot(rules), Cores::Own);
        }
        let files = folder.join("config");
        fs::create_dir(&files).with_context(|| format!("make {}", files.display()))?;
        fs::write(files.join("bench.yaml"), config()).context("write the limits")?;
        Service::peer(folder, PeerSettings { cores: Cores::Own, more, redis: None })
    }
}

/// The limits of the peer: one with many values, and one that is reached.
fn config() -> String {
    format!(
        "domain: {DOMAIN}
descriptors:
- key: client
  rate_limit: {{ unit: day, requests_per_unit: {UNREACHED} }}
- key: once
  rate_limit: {{ unit: day, requests_per_unit: 1 }}
"
    )
}

/// A snapshot for Weir with these rules for the domain.
fn snapshot(rules: impl IntoIterator<Item = Value>) -> Value {
    let mut snapshot = snapshot_of(DOMAIN, 1, rules);
    snapshot["policies"][0]["domain"] = DOMAIN.into();
    snapshot
}

fn rule(key: &str, requests: u64) -> Value {
    json!({
        "name": key,
        "action": "Limit",
        "match": [{ "descriptor": [{ "name": key }] }],
        "key": [{ "descriptor": key }],
        "maxKeys": 2 * KEYS,
        "limits": [{ "name": "day", "strategy": "FixedWindow", "requests": requests, "periodMillis": DAY }],
    })
}

/// The questions of a table's column.
struct Scenario {
    name: &'static str,
    key: &'static str,
    values: usize,
    expected: Code,
}

const SCENARIOS: [Scenario; 3] = [
    Scenario { name: "one key, admitted", key: "client", values: 1, expected: Code::Ok },
    Scenario { name: "10,000 keys, admitted", key: "client", values: KEYS, expected: Code::Ok },
    Scenario { name: "one key, refused", key: "once", values: 1, expected: Code::OverLimit },
];

impl Scenario {
    fn questions(&self, protocol: Protocol) -> Vec<Vec<u8>> {
        let limit = if self.expected == Code::Ok { replicas::UNREACHED } else { 1 };
        (0..self.values).map(|number| question(protocol, self.key, &format!("client-{number}"), limit)).collect()
    }
}

/// A question about a value of a key. Gubernator learns the limit from it, and the other services have it.
fn question(protocol: Protocol, key: &str, value: &str, limit: u64) -> Vec<u8> {
    let (name, value) = (key.to_owned(), value.to_owned());
    match protocol {
        Protocol::Envoy => {
            let descriptor = Descriptor { entries: vec![Entry { key: name, value }], hits_addend: None };
            message(&Request { domain: DOMAIN.to_owned(), descriptors: vec![descriptor], hits_addend: 0 })
        }
        Protocol::Gubernator => {
            let [limit, duration] = [limit, DAY].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
            let limit = GubernatorLimit { name, unique_key: value, hits: 1, limit, duration };
            message(&GubernatorRequest { requests: vec![limit] })
        }
    }
}

/// A contender: its replicas, and the store that they share.
struct Target {
    name: &'static str,
    protocol: Protocol,
    services: Vec<Service>,
    store: Option<Process>,
    /// Whether an unexpected code is an error. Otherwise it is counted.
    is_strict: bool,
    /// The folder of its files, which is removed at the end.
    folder: TempDir,
}

impl Target {
    fn addresses(&self) -> Vec<SocketAddr> {
        self.services.iter().map(|service| service.grpc).collect()
    }

    /// The CPU time of all its processes so far.
    fn cpu(&self) -> anyhow::Result<Duration> {
        let services = self.services.iter().map(Service::cpu).sum::<anyhow::Result<Duration>>()?;
        let store = self.store.as_ref().map(Process::cpu).transpose()?;
        Ok(services + store.map_or(Duration::ZERO, Cpu::total))
    }
}

/// The figures of one contender and scenario in one round.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Questions a second, with many in flight.
    per_second: f64,
    /// CPU seconds of a million of these questions.
    cpu: f64,
    /// How busy the core was, in percent.
    busy: f64,
    /// In microseconds, at a constant rate.
    p50: f64,
    p99: f64,
    /// The part of the answers with an unexpected code, in percent.
    other: f64,
}

impl Sample {
    /// Questions for each second of CPU time.
    fn per_cpu_second(&self) -> f64 {
        1e6 / self.cpu
    }
}

#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    length: Duration,
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let rounds = if quick { 1 } else { 9 };
    let effort = Effort { rounds, length: Duration::from_secs(1) };
    // The report counts the cores, so it must be created before this program is bound to one core.
    let mut report = Report::new("rls", "The agent as Envoy's rate limit service", ABOUT, quick)?;
    make_room()?;
    let started = CONTENDERS.map(|contender| {
        let folder = tempfile::tempdir().context("make a folder for a contender")?;
        let services = vec![contender.start(folder.path())?];
        let (name, protocol) = (contender.name(), Protocol::Envoy);
        anyhow::Ok(Target { name, protocol, services, store: None, is_strict: true, folder })
    });
    let started: Vec<Target> = started.into_iter().collect::<anyhow::Result<_>>()?;
    let runtime = runtime()?;
    let found = rounds_of(&started, effort, &runtime)?;
    report.add_versions(versions()?);
    tables::write(&found, AIMS, &mut Part { report: &mut report, name: "" });
    Ok(report)
}

const AIMS: Aims =
    Aims { throughput: ("5 times the throughput of a core", 5.0), latency: ("a third of the P99", 1.0 / 3.0) };

fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}

/// The rounds of all scenarios.
fn rounds_of(started: &[Target], effort: Effort, runtime: &Runtime) -> anyhow::Result<Rounds<Sample>> {
    for target in started {
        runtime.block_on(warm_up(target, effort)).with_context(|| target.name)?;
    }
    let mut found = Rounds::new(started.iter().map(|target| target.name));
    for scenario in &SCENARIOS {
        found.add(scenario.name);
    }
    found.measure("rls", effort.rounds, |case, place, _| {
        let (scenario, target) = (&SCENARIOS[case], &started[place]);
        let questions = scenario.questions(target.protocol);
        runtime.block_on(sample(target, &questions, scenario.expected, effort)).map(Some)
    })?;
    Ok(found)
}

/// Uses each key, and reaches the limit of one request.
async fn warm_up(target: &Target, effort: Effort) -> anyhow::Result<()> {
    let addresses = target.addresses();
    for scenario in &SCENARIOS {
        let questions = scenario.questions(target.protocol);
        let load = Load {
            addresses: &addresses,
            protocol: target.protocol,
            questions: &questions,
            expected: target.is_strict.then_some(scenario.expected),
            pace: Pace::InFlight(IN_FLIGHT),
            connections: CONNECTIONS,
            length: effort.length,
        };
        if scenario.expected == Code::OverLimit {
            // This one question is the admitted one.
            let once =
                Load { expected: target.is_strict.then_some(Code::Ok), pace: Pace::Rate(1), connections: 1, ..load };
            Load { length: Duration::from_millis(1), ..once }.run().await.context("the first question")?;
        }
        load.run().await.with_context(|| format!("warm up: {}", scenario.name))?;
    }
    Ok(())
}

async fn sample(target: &Target, questions: &[Vec<u8>], expected: Code, effort: Effort) -> anyhow::Result<Sample> {
    let load = Load {
        addresses: &target.addresses(),
        protocol: target.protocol,
        questions,
        expected: target.is_strict.then_some(expected),
        pace: Pace::InFlight(IN_FLIGHT),
        connections: CONNECTIONS,
        length: effort.length,
    };
    let before = target.cpu()?;
    let full = load.run().await?;
    let cpu = (target.cpu()? - before).as_secs_f64();
    let answers = float(full.latencies.len());
    let admitted = float(full.admitted);
    let other = if expected == Code::Ok { answers - admitted } else { admitted };
    ensure!(cpu > 0.0, "no CPU time was used for {answers} questions");
    let awake = Awake::start()?;
    let steady: Answers = Load { pace: Pace::Rate(RATE), ..load }.run().await?;
    drop(awake);
    Ok(Sample {
        per_second: answers / full.took.as_secs_f64(),
        cpu: cpu * 1e6 / answers,
        busy: cpu / full.took.as_secs_f64() * 100.0,
        p50: quantile_us(&steady.latencies, 500),
        p99: quantile_us(&steady.latencies, 990),
        other: other / answers * 100.0,
    })
}

fn versions() -> anyhow::Result<[(&'static str, String); 2]> {
    let peer = go_version(include_str!("peers/ratelimit/go.mod"), "github.com/envoyproxy/ratelimit")?;
    Ok([("envoyproxy/ratelimit", peer), ("Redis", program_version("redis-server")?)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_peer_is_in_its_modules() {
        let version = go_version(include_str!("peers/ratelimit/go.mod"), "github.com/envoyproxy/ratelimit");
        assert!(version.is_ok_and(|version| version.starts_with('v')));
    }

    #[test]
    fn the_questions_of_a_scenario_differ() {
        let mut questions = SCENARIOS[1].questions(Protocol::Envoy);
        questions.sort();
        questions.dedup();
        assert_eq!(questions.len(), KEYS);
    }
}
