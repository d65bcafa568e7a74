//! Two replicas of each service, which share their limits: in one Redis, or among themselves.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use serde_json::Value;

use super::{
    CONNECTIONS, DOMAIN, Effort, Found, IN_FLIGHT, Load, Pace, Protocol, SCENARIOS, Sample, Target, question,
    rounds_of, rule, runtime,
    tables::{self, Aims},
    versions,
};
use crate::{
    proxy::{Cores, free_address, make_room, on_a_thread},
    redis,
    report::{Cell, Part, Row, Table, go_version},
    rls::services::{PeerSettings, Service},
    seeds::{redis_store, share},
    stats::{Spread, figure, float},
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
    let found = runtime.block_on(rounds_of(&started, effort))?;
    let admitted = runtime.block_on(admitted_of(&started, effort))?;
    part.versions(versions()?);
    part.versions([("Gubernator", gubernator()?)]);
    tables::write(&found, &CONTENDERS.map(Contender::name), AIMS, part);
    write_others(&found, part);
    write(&admitted, part);
    Ok(())
}

/// The answers that no service should give.
fn write_others(found: &Found, part: &mut Part<'_>) {
    let of = |samples: &[Sample]| Spread::over(samples, |sample| sample.other);
    let rows = CONTENDERS.iter().zip(found).map(|(contender, columns)| {
        Row::new(contender.name(), columns.iter().map(|samples| Cell::Measured(of(samples))))
    });
    let ours: Vec<_> = found.last().into_iter().flatten().map(|samples| of(samples).high).collect();
    let each = SCENARIOS.iter().zip(&ours).map(|(scenario, other)| format!("{} {} %", scenario.name, figure(*other)));
    let each: Vec<_> = each.collect();
    part.aim(
        "every answer is as the limit says, in all rounds",
        each.join("; "),
        ours.iter().all(|other| *other <= 0.0),
    );
    part.table(Table::new(
        "Other answers than the limit says, %, 128 in flight",
        "service",
        SCENARIOS.iter().map(|scenario| scenario.name),
        rows,
    ));
}

/// How many of how many questions were admitted, by contender and round.
type Admitted = Vec<Vec<(usize, usize)>>;

async fn admitted_of(started: &[Target], effort: Effort) -> anyhow::Result<Admitted> {
    let mut found: Admitted = started.iter().map(|_| Vec::new()).collect();
    for round in 0..effort.rounds {
        for (target, found) in started.iter().zip(&mut found) {
            let (key, limit) = REACHED;
            let load = Load {
                addresses: &target.addresses(),
                protocol: target.protocol,
                questions: &[question(target.protocol, key, &format!("round-{round}"), limit)],
                expected: None,
                pace: Pace::InFlight(IN_FLIGHT),
                connections: CONNECTIONS,
                length: effort.length / 2,
            };
            let answers = load.run().await.with_context(|| target.name)?;
            found.push((answers.admitted, answers.latencies.len()));
        }
    }
    Ok(found)
}

fn write(admitted: &Admitted, part: &mut Part<'_>) {
    let limit = usize::try_from(REACHED.1).unwrap_or_default();
    let excess =
        |rounds: &[(usize, usize)]| Spread::over(rounds, |(admitted, _)| float(admitted.saturating_sub(limit)));
    let of = |value: &dyn Fn(&(usize, usize)) -> usize, rounds: &[(usize, usize)]| {
        Cell::Measured(Spread::over(rounds, |round| float(value(round))))
    };
    let rows = CONTENDERS.iter().zip(admitted).map(|(contender, rounds)| {
        let cells = [
            of(&|(_, asked)| *asked, rounds),
            of(&|(admitted, _)| *admitted, rounds),
            Cell::Number(excess(rounds).high),
            of(&|(admitted, _)| limit.saturating_sub(*admitted), rounds),
        ];
        Row::new(contender.name(), cells)
    });
    let rows: Vec<_> = rows.collect();
    let ours = admitted.last().map_or(0.0, |rounds| excess(rounds).high);
    let others = CONTENDERS.iter().zip(admitted).take(CONTENDERS.len() - 1);
    let others: Vec<_> =
        others.map(|(contender, rounds)| format!("{} {}", contender.name(), figure(excess(rounds).high))).collect();
    part.aim(
        "two replicas admit no more than the limit",
        format!("{} ({})", figure(ours), others.join(", ")),
        ours <= 0.0,
    );
    let columns = ["questions", "admitted", "excess", "fewer than the limit"];
    let note = "The excess is the highest one of all rounds.";
    part.table(Table::new("Admitted of a limit of 1,000", "service", columns, rows).note(note));
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
