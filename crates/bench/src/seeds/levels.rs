//! Seed 001: a service level over HTTP. An app with ten slots behind limits that let requests wait, under loads from 25
//! to 600 requests a second.

pub(super) mod app;
mod tables;

use std::{net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::runtime::Builder;

use super::{
    agent::{Policy, WEIR, start_agent},
    clients::{Answers, OpenLoopClient, run_step},
};
use crate::{
    proxy::{Cores, Process, bucket, free_address, more_files},
    report::{self, Part},
    stats::float,
};

pub(super) const ABOUT: &str = "\
An app that works on 10 requests at once, each for 25 ms, and answers 504 if a request does not end within 500 ms. \
Requests arrive evenly, over HTTP, even if earlier ones still wait. *weir-agent* has a policy with `action: Wait`: 400 \
requests a second with bursts of 10, and a wait of at most 210 ms ([how these numbers follow from the \
app](../guides/load-test.md)). The peers are one proxy in Go: without a limiter, with a ticker of 425 a second, with a \
ticker and a wait of at most 75 ms, and with `golang.org/x/time/rate` with the document's numbers (425 a second, bursts \
of 10, 75 ms) and with the numbers of the agent. All run in parallel, each with an app of its own, and their requests \
are spread over the time between two arrivals. For the times of refusals, one proxy at a time runs. Ten slots of 25 ms do 400 requests a second, so no limiter can serve 425 \
a second for long. A step takes 2.5 s, and a long step 10 s. *No proxy* is a path of the app that answers at once: the \
network's share of a time.";

/// The limit of the agent, from docs/guides/load-test.md: requests per second, burst and longest wait.
const RATE: u32 = 400;
const BURST: u32 = 10;
const WAIT: Duration = Duration::from_millis(210);
/// How long the app works on a request.
const SERVICE: Duration = Duration::from_millis(25);

/// The numbers of the document.
const DOCUMENT_RATE: u32 = 425;
const DOCUMENT_WAIT: Duration = Duration::from_millis(75);

const RATES: [u32; 8] = [25, 100, 200, 300, 400, 425, 500, 600];
const STEP: Duration = Duration::from_millis(2_500);
const LONG: Duration = Duration::from_secs(10);

/// Open connections of each client before the first request.
const CONNECTIONS: usize = 500;

const CONTENDERS: [&str; 6] =
    ["no limiter", "ticker", "ticker, 75 ms", "x/time/rate, 75 ms", "x/time/rate, 210 ms", WEIR];
const OURS: usize = CONTENDERS.len() - 1;

/// A load, and what each round found.
struct Step {
    rate: u32,
    length: Duration,
    rounds: Vec<Round>,
}

/// The contenders that refuse: each alone with the client without a proxy, at the highest rate. The others would keep the
/// cores from a refusal for longer than it takes.
const ALONE: [usize; 4] = [2, 3, 4, OURS];

/// For each round and each contender of [`ALONE`]: its answers, and the answers to a client without a proxy that runs at
/// the same time.
type Alone = Vec<Vec<(Answers, Answers)>>;

/// The answers of a round, in the order of the contenders.
type Round = Vec<Answers>;

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    more_files()?;
    let (rounds, mut steps) = if quick {
        (1, vec![step(100, STEP / 5), step(600, STEP / 5)])
    } else {
        (3, RATES.iter().map(|rate| step(*rate, STEP)).chain([step(425, LONG), step(600, LONG)]).collect::<Vec<_>>())
    };
    let apps = app::start::<{ CONTENDERS.len() }>()?;
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let mut proxies = Vec::new();
    for (name, upstream) in CONTENDERS.into_iter().zip(apps) {
        proxies.push(start(name, upstream, folder.path()).with_context(|| format!("start {name}"))?);
    }
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let addresses = proxies.iter().map(|(_, listen)| *listen);
    let paths = addresses.map(|address| (address, "/")).chain([(apps[0], app::AT_ONCE)]);
    let clients: Vec<_> = paths.map(|(address, path)| OpenLoopClient::new(address, path)).collect();
    for client in &clients {
        runtime.block_on(client.open(CONNECTIONS))?;
    }
    let mut alone = Alone::new();
    for round in 0..rounds {
        for step in &mut steps {
            eprintln!("seeds: 001, {} a second for {:?}, round {} of {rounds}", step.rate, step.length, round + 1);
            let contenders = run_step(&runtime, &clients[..CONTENDERS.len()], step.rate, step.length);
            check(step.rate, step.length, &contenders[OURS])?;
            step.rounds.push(contenders);
        }
        let Some(last) = RATES.last() else { continue };
        eprintln!("seeds: 001, refusals at {last} a second, round {} of {rounds}", round + 1);
        let mut found = Vec::new();
        for place in ALONE {
            let pair = [clients[place].clone(), clients[CONTENDERS.len()].clone()];
            let answers = run_step(&runtime, &pair, *last, if quick { STEP / 5 } else { STEP });
            let [ours, direct] = answers.try_into().ok().context("there are not two results of clients")?;
            if place == OURS {
                check(*last, STEP, &ours)?;
            }
            found.push((ours, direct));
        }
        alone.push(found);
    }
    part.versions([("golang.org/x/time", go_version()?)]);
    tables::write(&steps, &alone, part);
    Ok(())
}

fn step(rate: u32, length: Duration) -> Step {
    Step { rate, length, rounds: Vec::new() }
}

fn start(name: &str, upstream: SocketAddr, folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let (limiter, rate, wait) = match name {
        "no limiter" => ("none", DOCUMENT_RATE, DOCUMENT_WAIT),
        "ticker" => ("ticker", DOCUMENT_RATE, DOCUMENT_WAIT),
        "ticker, 75 ms" => ("ticker-timeout", DOCUMENT_RATE, DOCUMENT_WAIT),
        "x/time/rate, 75 ms" => ("rate", DOCUMENT_RATE, DOCUMENT_WAIT),
        "x/time/rate, 210 ms" => ("rate", RATE, WAIT),
        _ => return start_agent(upstream, &[], &policy(), folder),
    };
    let listen = free_address()?;
    let mut command = Command::new(go_program()?);
    command.args(["-listen", &listen.to_string(), "-upstream", &upstream.to_string(), "-limiter", limiter]);
    command.args([
        "-rate",
        &rate.to_string(),
        "-burst",
        &BURST.to_string(),
        "-wait",
        &format!("{}ms", wait.as_millis()),
    ]);
    Ok((Process::start(name, &command, Cores::All, &folder.join("limiter.log"), listen)?, listen))
}

fn policy() -> Policy {
    let rule = json!({
        "name": "paced",
        "action": "Limit",
        "limits": [bucket(RATE.into(), 1_000, BURST.into())],
        "onLimit": { "maxWaitMillis": u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX), "status": 429, "headers": "IETF" },
    });
    Policy { rules: vec![rule], ..Policy::default() }
}

/// The proxy in Go, which `cargo xtask bench seeds` builds.
fn go_program() -> anyhow::Result<String> {
    std::env::var("WEIR_GO_LIMITER").context("WEIR_GO_LIMITER names no program: `cargo xtask bench seeds` builds it")
}

/// The version of the peer's module.
fn go_version() -> anyhow::Result<String> {
    report::go_version(include_str!("peers/limiter/go.mod"), "golang.org/x/time")
}

/// Checks that the agent admitted no more than its limit: a full bucket, and the units that the bucket earned until the
/// agent admitted the last request. This was at least a service time before the app's answer.
fn check(rate: u32, length: Duration, ours: &Answers) -> anyhow::Result<()> {
    let admitted = ours.served.len() + ours.timed_out.len();
    let most = f64::from(BURST) + f64::from(RATE) * ours.lasting.saturating_sub(SERVICE).as_secs_f64();
    let offered = admitted + ours.refused.len();
    ensure!(ours.broken == 0, "{} requests of {rate} a second were not answered", ours.broken);
    ensure!(
        float(admitted) <= most,
        "the agent admitted {admitted} of {offered} in {length:?}, {most:.0} at most should have been"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_bucket_gives_is_an_error() {
        let answers = |served: usize| Answers {
            served: vec![Duration::ZERO; served],
            lasting: Duration::from_millis(2_525),
            ..Answers::default()
        };
        // 10 at the same time, and 400 a second for 2.5 s.
        assert!(check(600, STEP, &answers(1_010)).is_ok());
        assert!(check(600, STEP, &answers(1_011)).is_err());
        assert!(check(600, STEP, &Answers { timed_out: vec![Duration::ZERO], ..answers(1_010) }).is_err());
        assert!(check(600, STEP, &Answers { broken: 1, ..answers(1) }).is_err());
    }

    #[test]
    fn the_guide_has_these_numbers() {
        let guide = include_str!("../../../../docs/guides/load-test.md");
        for line in [
            format!("requests: {RATE}"),
            format!("burst: {BURST}"),
            format!("maxWait: {}ms", WAIT.as_millis()),
            "action: Wait".to_owned(),
        ] {
            assert!(guide.lines().any(|found| found.trim() == line), "{line}");
        }
    }

    #[test]
    fn the_peer_has_a_version() {
        assert!(go_version().expect("it is pinned").starts_with("v0."));
    }
}
