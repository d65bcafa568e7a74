//! Two replicas of each service, which share their limits: in one Redis, or among themselves.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::{
    CONNECTIONS, DOMAIN, Effort, IN_FLIGHT, Load, Pace, Protocol, SCENARIOS, Sample, Target, question, rounds_of, rule,
    runtime,
    tables::{self, Aims},
    versions,
};
use crate::{
    proxy::{Cores, free_address, make_room, on_a_thread},
    redis,
    report::{Cell, Part, go_version},
    rls::services::{PeerSettings, Service},
    rounds::{Figure, Rounds},
    seeds::{redis_store, share},
    stats::{figure as shown, float},
};

pub(crate) const ABOUT: &str = "\
Rate limit services with two replicas each. *envoyproxy/ratelimit* and *weir-agent rls* with scope Shared count in \
one Redis, and the second row of envoyproxy/ratelimit is tuned as on [its page](rls.md). *Gubernator* has no store: \
each key belongs to one of its two nodes, and the other node asks that node in batches. It is asked with its own \
messages, which have the limit. The questions, the client and the limits are those of [that page](rls.md); half of \
the connections go to each replica. All replicas of a contender and its Redis share one core, and the client has the \
other one. *Excess*: 128 questions in flight to both replicas on a limit of 1,000 a day with one key, and how many \
more than 1,000 are admitted. *Other answers*: questions that a service refused below its limit, or admitted above \
it. An agent refuses with `onStoreLoss: LocalShare` if Redis does not answer in time. Limitador is missing: only its \
library is a crate, and its server is not.";

/// A limit that no run reaches.
pub(super) const UNREACHED: u64 = 1_000_000_000;
const REPLICAS: u8 = 2;
/// A limit that is reached, with a new value of the key each time.
const REACHED: (&str, u64) = ("thousand", 1_000);

const AIMS: Aims =
    Aims { throughput: ("more throughput of a core than any peer", 1.0), latency: ("a lower P99 than any peer", 1.0) };

#[derive(Clone, Copy, PartialEq, Eq)]
enum Contender {
    Peer,
    TunedPeer,
    Gubernator,
    Weir,
}

/// In the order of the tables. Weir is the last one.
const CONTENDERS: [Contender; 4] = [Contender::Peer, Contender::TunedPeer, Contender::Gubernator, Contender::Weir];

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Self::Peer => super::Contender::Peer.name(),
            Self::TunedPeer => super::Contender::TunedPeer.name(),
            Self::Gubernator => "Gubernator",
            Self::Weir => "weir-agent rls, Shared",
        }
    }

    fn start(self) -> anyhow::Result<Target> {
        let folder = tempfile::tempdir().context("make a folder for a contender")?;
        let protocol = if self == Self::Gubernator { Protocol::Gubernator } else { Protocol::Envoy };
        let mut target =
            Target { name: self.name(), protocol, services: Vec::new(), store: None, is_strict: false, folder };
        let place = target.folder.path().to_owned();
        let redis = if self == Self::Gubernator {
            None
        } else {
            let (store, redis) = redis::start(&place, Cores::Own)?;
            target.store = Some(store);
            Some(redis)
        };
        // Three ports in a row, of addresses that nothing else uses.
        let port = free_address()?.port().min(u16::MAX - 2);
        for number in 1..=REPLICAS {
            let place = place.join(number.to_string());
            fs::create_dir_all(place.join("config")).with_context(|| format!("make {}", place.display()))?;
            fs::write(place.join("config/bench.yaml"), config()).context("write the limits")?;
            let settings = |more| PeerSettings { cores: Cores::Own, more, redis };
            target.services.push(match self {
                Self::Peer => Service::peer(&place, settings(&[]))?,
                Self::TunedPeer => Service::peer(&place, settings(super::TUNED))?,
                Self::Gubernator => Service::gubernator(&place, number, port, Cores::Own)?,
                Self::Weir => Service::weir(&place, &snapshot(redis.context("a store")?), Cores::Own)?,
            });
        }
        Ok(target)
    }
}

const LIMITS: [(&str, u64); 3] = [("client", UNREACHED), ("once", 1), REACHED];

fn config() -> String {
    let limits = LIMITS
        .map(|(key, requests)| format!("- key: {key}\n  rate_limit: {{ unit: day, requests_per_unit: {requests} }}\n"));
    format!("domain: {DOMAIN}\ndescriptors:\n{}", limits.concat())
}

fn snapshot(redis: SocketAddr) -> Value {
    let shared = |(key, requests): (&str, u64)| {
        let mut rule = rule(key, requests);
        share(&mut rule, REPLICAS.into());
        rule
    };
    let mut snapshot = super::snapshot(LIMITS.map(shared));
    snapshot["stores"] = vec![redis_store(redis)].into();
    snapshot
}

pub(crate) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    on_a_thread(|| measure_on_two_cores(quick, part))
}

fn measure_on_two_cores(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    let effort = Effort { rounds: if quick { 1 } else { 5 }, length: Duration::from_secs(1) };
    make_room()?;
    let started = CONTENDERS.map(Contender::start).into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let runtime = runtime()?;
    let found = rounds_of(&started, effort, &runtime)?;
    let admitted = admitted_of(&started, effort, &runtime)?;
    part.versions(versions()?);
    part.versions([("Gubernator", gubernator()?)]);
    tables::write(&found, AIMS, part);
    write_others(&found, part);
    write(&admitted, part);
    Ok(())
}

/// The answers that no service should give.
fn write_others(found: &Rounds<Sample>, part: &mut Part<'_>) {
    let weir = CONTENDERS.len() - 1;
    let highest = |case| found.values(case, weir, |sample| sample.other).into_iter().fold(0.0, f64::max);
    let ours: Vec<_> = (0..SCENARIOS.len()).map(highest).collect();
    let each = SCENARIOS.iter().zip(&ours).map(|(scenario, other)| format!("{} {} %", scenario.name, shown(*other)));
    part.aim(
        "every answer is as the limit says, in all rounds",
        each.collect::<Vec<_>>().join("; "),
        ours.iter().all(|other| *other <= 0.0),
    );
    let title = "Other answers than the limit says, %, 128 in flight";
    part.table(found.by_contender(title, "service", |sample| sample.other));
}

/// How many questions were asked, and how many were admitted.
type Admitted = [usize; 2];

fn admitted_of(started: &[Target], effort: Effort, runtime: &Runtime) -> anyhow::Result<Rounds<Admitted>> {
    let mut found = Rounds::new(started.iter().map(|target| target.name));
    found.add("a reached limit");
    found.measure("rls", effort.rounds, |_, place, round| {
        let (key, limit) = REACHED;
        let target = &started[place];
        let load = Load {
            addresses: &target.addresses(),
            protocol: target.protocol,
            questions: &[question(target.protocol, key, &format!("round-{round}"), limit)],
            expected: None,
            pace: Pace::InFlight(IN_FLIGHT),
            connections: CONNECTIONS,
            length: effort.length / 2,
        };
        let answers = runtime.block_on(load.run())?;
        Ok(Some([answers.latencies.len(), answers.admitted]))
    })?;
    Ok(found)
}

fn limit() -> usize {
    usize::try_from(REACHED.1).unwrap_or_default()
}

fn write(admitted: &Rounds<Admitted>, part: &mut Part<'_>) {
    const fn figure(title: &'static str, of: fn(&Admitted) -> f64) -> Figure<Admitted> {
        Figure { title, unit: "", of, more_is_better: false }
    }
    const EXCESS: Figure<Admitted> = figure("excess", |[_, admitted]| float(admitted.saturating_sub(limit())));
    const FIGURES: [Figure<Admitted>; 4] = [
        figure("questions", |[asked, _]| float(*asked)),
        figure("admitted", |[_, admitted]| float(*admitted)),
        EXCESS,
        figure("fewer than the limit", |[_, admitted]| float(limit().saturating_sub(*admitted))),
    ];
    let highest = |place: usize| admitted.values(0, place, EXCESS.of).into_iter().fold(0.0, f64::max);
    let weir = CONTENDERS.len() - 1;
    let peers = (0..weir).map(|peer| format!("{} {}", CONTENDERS[peer].name(), shown(highest(peer))));
    let peers = peers.collect::<Vec<_>>().join(", ");
    part.aim(
        "two replicas admit no more than the limit",
        format!("{} ({peers})", shown(highest(weir))),
        highest(weir) <= 0.0,
    );
    let note = "The excess is the highest one of all rounds.";
    let mut table = admitted.of_case(0, "Admitted of a limit of 1,000", "service", &FIGURES).note(note);
    for (place, row) in table.rows.iter_mut().enumerate() {
        row.cells[2] = Cell::Number(highest(place));
    }
    part.table(table);
}

/// The version of Gubernator, from its modules.
fn gubernator() -> anyhow::Result<String> {
    go_version(include_str!("../peers/gubernator/go.mod"), "github.com/gubernator-io/gubernator/v2")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::DAY, *};

    #[test]
    fn the_version_of_gubernator_is_in_its_modules() {
        assert!(gubernator().is_ok_and(|version| version.starts_with("v2.")));
    }

    #[test]
    fn all_services_have_the_same_limits() {
        let (config, snapshot) = (config(), snapshot(SocketAddr::from(([127, 0, 0, 1], 1))));
        for (number, (key, requests)) in LIMITS.into_iter().enumerate() {
            assert!(
                config.contains(&format!("- key: {key}\n  rate_limit: {{ unit: day, requests_per_unit: {requests} }}"))
            );
            let limit = &snapshot["policies"][0]["rules"][number]["limits"][0];
            assert_eq!((&limit["requests"], &limit["periodMillis"]), (&json!(requests), &json!(DAY)));
        }
    }
}
