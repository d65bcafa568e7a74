//! Seed 000: a burst of five times as many requests as a limit admits, and many clients under a limit that admits all
//! requests. The requests pass through the agent and through gateways with the layers of tower-shot and of tower.

mod app;
mod server;
mod tables;

use std::{collections::BTreeMap, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;

use self::app::App;
pub(crate) use self::server::StackArgs;
use super::agent::{Policy, start_agent};
use crate::{
    STACK, in_role,
    proxy::{Answer, Cores, Process, bucket, free_address, h2load, more_files},
    report::Part,
    rounds::Rounds,
    stacks,
};

pub(super) const ABOUT: &str = "\
50,000 requests at once over real connections: `h2load` opens 1,000 HTTP/2 connections with 50 requests on each. The \
limit is 10,000 a second with a burst of 10,000. *weir-agent* refuses what is beyond it, and *weir-agent, Wait* lets \
requests wait for at most 3.9 s. The peers are a small hyper server around the layers of tower-shot and of tower, with \
a timeout of 3.9 s, and hyper's client to the app. All pass what they admit to the app over HTTP/2, and the app takes 10 ms. A \
process is started for each burst, and its peak memory is VmHWM. *To readiness* is the time from the first request of the \
burst to an arrival at the app. With *1,000 clients*, `h2load` has 1,000 HTTP/1.1 connections with one request at a time on \
each, 50,000 in all. The limit admits them, and the app answers at once. Load, gateway and app share all cores. Every burst \
checks that the agent passed no more requests to the app, at any moment, than its limit allows, and exactly as many as \
it served.";

const AGENT: &str = "weir-agent";
const AGENT_WAIT: &str = "weir-agent, Wait";

const CONTENDERS: [&str; 7] = [
    stacks::SHOT_RATE,
    stacks::SHOT_LATENCY,
    stacks::SHOT_THROUGHPUT,
    stacks::TOWER_OUTSIDE,
    stacks::TOWER_INSIDE,
    AGENT,
    AGENT_WAIT,
];

/// A burst, and the limit that it meets.
#[derive(Clone, Copy)]
struct Load {
    requests: u32,
    connections: u32,
    per_second: u32,
    timeout: Duration,
}

const BURST: Load =
    Load { requests: 50_000, connections: 1_000, per_second: 10_000, timeout: Duration::from_millis(3_900) };
const BURST_QUICK: Load =
    Load { requests: 1_000, connections: 20, per_second: 500, timeout: Duration::from_millis(900) };
/// No contender reaches this limit.
const CLIENTS: Load =
    Load { requests: 50_000, connections: 1_000, per_second: 1_000_000, timeout: Duration::from_secs(5) };
const CLIENTS_QUICK: Load = Load { requests: 2_000, connections: 100, ..CLIENTS };

/// What one contender did with a burst.
struct Outcome {
    answers: Vec<Answer>,
    /// When requests reached the app, counted from the first request of the burst; sorted.
    arrivals: Vec<Duration>,
    /// Bytes.
    idle: u64,
    peak: u64,
}

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    more_files()?;
    let (rounds, burst, clients) = if quick { (1, BURST_QUICK, CLIENTS_QUICK) } else { (3, BURST, CLIENTS) };
    let app = App::start()?;
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let bench = Bench { app: &app, folder: folder.path() };
    let mut found = Rounds::new(CONTENDERS);
    found.add("a burst");
    found.add("many clients");
    found.measure("seeds: 000", rounds, |case, place, _| match CONTENDERS[place] {
        name if case == tables::BURST => bench.burst(name, burst).map(Some),
        AGENT_WAIT => Ok(None),
        name => bench.clients(name, clients).map(Some),
    })?;
    tables::write(&found, burst, part);
    Ok(())
}

struct Bench<'a> {
    app: &'a App,
    folder: &'a Path,
}

impl Bench<'_> {
    fn burst(&self, name: &str, load: Load) -> anyhow::Result<Outcome> {
        let (process, listen) = self.start(name, load, true)?;
        let outcome = self.run(&process, listen, load, true)?;
        if name.starts_with(AGENT) {
            check(&outcome, load)?;
        }
        Ok(outcome)
    }

    fn clients(&self, name: &str, load: Load) -> anyhow::Result<Outcome> {
        let (process, listen) = self.start(name, load, false)?;
        let outcome = self.run(&process, listen, load, false)?;
        let served = outcome.answers.iter().filter(|answer| answer.is_served()).count();
        ensure!(served == outcome.answers.len(), "{served} of {} requests were served", outcome.answers.len());
        Ok(outcome)
    }

    fn start(&self, name: &str, load: Load, http2: bool) -> anyhow::Result<(Process, SocketAddr)> {
        if name.starts_with(AGENT) {
            let wait = (name == AGENT_WAIT).then_some(load.timeout);
            return start_agent(self.app.address, &[], &policy(load, wait), self.folder);
        }
        let listen = free_address()?;
        let mut command = in_role(STACK)?;
        command.args([name, &listen.to_string(), &self.app.address.to_string()]);
        command.arg(format!("--per-second={}", load.per_second));
        command.arg(format!("--timeout-millis={}", load.timeout.as_millis())).args(http2.then_some("--http2"));
        Ok((Process::start(name, &command, Cores::All, &self.folder.join("stack.log"), listen)?, listen))
    }

    fn run(&self, process: &Process, listen: SocketAddr, load: Load, http2: bool) -> anyhow::Result<Outcome> {
        let idle = process.resident()?;
        // Those of an earlier contender.
        self.app.take_arrivals();
        let path = if http2 { "/" } else { app::AT_ONCE };
        let mut flags = vec![format!("-n{}", load.requests), format!("-c{}", load.connections)];
        // HTTP/2 with all requests of a connection at the same time, or HTTP/1.1 with one at a time.
        flags.push(if http2 { format!("-m{}", load.requests / load.connections) } else { "--h1".to_owned() });
        let answers = h2load(&format!("http://{listen}{path}"), &flags, self.folder)?;
        ensure!(answers.len() == load.requests as usize, "{} of {} requests ended", answers.len(), load.requests);
        let first = answers.iter().map(|answer| answer.started).min().context("no request was answered")?;
        let arrivals = self.app.take_arrivals().into_iter().map(|at| at.saturating_sub(first)).collect();
        Ok(Outcome { answers, arrivals, idle, peak: process.peak()? })
    }
}

fn policy(load: Load, wait: Option<Duration>) -> Policy {
    let mut rule = json!({
        "name": "all",
        "action": "Limit",
        "limits": [bucket(load.per_second.into(), 1_000, load.per_second.into())],
        "onLimit": { "status": 429, "headers": "IETF" },
    });
    if let Some(wait) = wait {
        rule["onLimit"]["maxWaitMillis"] = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into();
    }
    Policy { rules: vec![rule], ..Policy::default() }
}

/// The highest share, at any moment, of what the bucket allowed by then.
fn most(outcome: &Outcome, load: Load) -> f64 {
    let allowed = |at: Duration| f64::from(load.per_second) * (1.0 + at.as_secs_f64());
    let shares = (1_u32..).zip(&outcome.arrivals).map(|(count, at)| f64::from(count) / allowed(*at));
    shares.fold(0.0, f64::max)
}

/// Checks that the app got no more requests than the limit allows, and exactly as many as were served.
fn check(outcome: &Outcome, load: Load) -> anyhow::Result<()> {
    let most = most(outcome, load);
    ensure!(most <= 1.0, "the app got {:.2} % of the requests that the limit allows", most * 100.0);
    let served = outcome.answers.iter().filter(|answer| answer.is_served()).count();
    ensure!(
        served == outcome.arrivals.len(),
        "{served} requests were served, but {} reached the app",
        outcome.arrivals.len()
    );
    ensure!(
        served >= load.per_second as usize,
        "{served} requests were served, although the limit admits {} at once",
        load.per_second
    );
    let mut others = BTreeMap::new();
    for answer in outcome.answers.iter().filter(|answer| !matches!(answer.status, 200 | 429)) {
        let (count, longest) = others.entry(answer.status).or_insert((0, Duration::ZERO));
        (*count, *longest) = (*count + 1, answer.took.max(*longest));
    }
    let all = outcome.answers.len();
    ensure!(others.is_empty(), "not each of {all} requests got 200 or 429; counts and longest times: {others:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(served: usize, refused: usize, arrivals: &[u64]) -> Outcome {
        let answer = |status| Answer { started: Duration::from_secs(1), status, took: Duration::from_millis(1) };
        let answers = [vec![answer(200); served], vec![answer(429); refused]].concat();
        let arrivals = arrivals.iter().map(|millis| Duration::from_millis(*millis)).collect();
        Outcome { answers, arrivals, idle: 0, peak: 0 }
    }

    #[test]
    fn more_than_the_limit_is_an_error() {
        let load = Load { requests: 4, connections: 1, per_second: 2, timeout: Duration::ZERO };
        assert!(check(&outcome(3, 1, &[0, 0, 500]), load).is_ok());
        assert!(check(&outcome(3, 1, &[0, 0, 499]), load).is_err());
        assert!(check(&outcome(2, 2, &[0, 0, 500]), load).is_err(), "one reached the app, but was not served");
        assert!(check(&outcome(1, 3, &[0]), load).is_err(), "it refused what the bucket held");
        let mut lost = outcome(2, 2, &[0, 0]);
        lost.answers[3].status = -1;
        assert!(check(&lost, load).is_err());
    }
}
