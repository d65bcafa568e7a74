//! Ten agents and an operator as processes, with real requests: what they admit together while the operator and
//! the connections fail.

mod link;
mod processes;
mod tables;

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use http::StatusCode;
use rustix::process::Signal;

use self::processes::Fleet;
use super::world::{Decision, Fault, OF_PROCESSES, Request, Run, Scenario, Traffic, Verdict, judge};
use crate::{
    clock,
    fleet::{load_average, raise_open_files},
    proxy::start_app,
    report::Part,
    seeds::OpenLoopClient,
};

pub(super) const ABOUT: &str = "\
Ten `weir-agent` processes before one app, and a `weir-operator standalone`, over mutual TLS on loopback. The limit is \
a bucket of 400 requests a second that holds 400. Requests are the same Poisson process as in virtual time, over HTTP, \
and one clock of the client measures when each request is sent and answered. All admissions together are compared with \
the limit in whole numbers, as in virtual time, and with a central limiter that gets the same requests. *Killed* is \
SIGKILL, *ended* SIGTERM, and *suspended* SIGSTOP and then SIGCONT. *Cut off*: a proxy between the operator and the \
agents holds all bytes. The faults begin at the twelfth second.";

/// The time between two looks for the next request.
const TICK: Duration = Duration::from_millis(1);
/// The longest wait for the last responses.
const PATIENCE: Duration = Duration::from_secs(30);

/// The figures of a scenario.
struct Found {
    scenario: Scenario,
    verdicts: Vec<Verdict>,
}

pub(super) fn measure(quick: bool, operator: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    raise_open_files()?;
    let before = load_average();
    let upstream = start_app()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut found = Vec::new();
    for scenario in OF_PROCESSES {
        let scenario = if quick { scenario.shortened() } else { scenario };
        let rounds = if quick || scenario.fault.is_some() { 1 } else { 3 };
        let mut all = Found { scenario, verdicts: Vec::new() };
        for round in 1..=rounds {
            let run = runtime.block_on(run(&scenario, round, operator, upstream));
            let (traffic, run) = run.with_context(|| scenario.name)?;
            let verdict = judge(&traffic, &run);
            eprintln!("fleet-limits: {}: {:.1} % used, excess {}", scenario.name, verdict.used, verdict.excess);
            all.verdicts.push(verdict);
        }
        found.push(all);
    }
    part.versions([("load average of agents", format!("{before} before, {} after", load_average()))]);
    tables::write(&found, part);
    Ok(())
}

/// Sends the requests of a scenario. Returns them with the times at which they were really sent.
async fn run(scenario: &Scenario, seed: u64, operator: &Path, upstream: SocketAddr) -> anyhow::Result<(Traffic, Run)> {
    let traffic = scenario.traffic(seed);
    let mut fleet = Fleet::start(operator, scenario.limit, upstream).await?;
    let clients: Vec<_> = fleet.addresses().into_iter().map(|address| OpenLoopClient::new(address, "/")).collect();
    let decided: Arc<Mutex<Vec<(Decision, usize)>>> = Arc::default();
    let begun = clock::now();
    let micros = move || u64::try_from(clock::since(begun).as_micros()).unwrap_or(u64::MAX);
    let sends = async {
        let mut responses = Vec::new();
        let mut rest = traffic.requests.as_slice();
        while let Some((request, later)) = rest.split_first() {
            if micros() < request.at {
                tokio::time::sleep(TICK).await;
                continue;
            }
            rest = later;
            let (client, decided, pod) = (clients[request.pod].clone(), Arc::clone(&decided), request.pod);
            responses.push(tokio::spawn(async move {
                let begun = micros();
                let status = client.get().await?;
                ensure!(matches!(status.as_u16(), 200 | 429), "the agent answered {status}");
                let is_admitted = status == StatusCode::OK;
                let decision = Decision { begun, ended: micros(), is_admitted };
                decided.lock().unwrap_or_else(PoisonError::into_inner).push((decision, pod));
                anyhow::Ok(())
            }));
        }
        for response in responses {
            tokio::time::timeout(PATIENCE, response).await.context("a response is missing")???;
        }
        anyhow::Ok(())
    };
    let fails = async {
        if let Some((at, fault)) = scenario.fault {
            until(&micros, at).await;
            fail(&mut fleet, fault, operator, &micros).await?;
        }
        anyhow::Ok(())
    };
    tokio::try_join!(sends, fails)?;
    fleet.end()?;
    let mut decided = std::mem::take(&mut *decided.lock().unwrap_or_else(PoisonError::into_inner));
    ensure!(decided.len() == traffic.requests.len(), "a request has no decision");
    decided.sort_unstable_by_key(|(decision, _)| decision.begun);
    let requests = decided.iter().map(|(decision, pod)| Request { at: decision.begun, pod: *pod }).collect();
    let run = Run { decisions: decided.into_iter().map(|(decision, _)| decision).collect(), messages: 0 };
    Ok((Traffic { requests, ..traffic }, run))
}

async fn until(micros: &impl Fn() -> u64, at: u64) {
    tokio::time::sleep(Duration::from_micros(at.saturating_sub(micros()))).await;
}

async fn fail(fleet: &mut Fleet, fault: Fault, operator: &Path, micros: &impl Fn() -> u64) -> anyhow::Result<()> {
    let began = micros();
    match fault {
        Fault::Killed { next_after } | Fault::Ended { next_after } => {
            let signal = if matches!(fault, Fault::Killed { .. }) { Signal::KILL } else { Signal::TERM };
            fleet.operator.signal(signal)?;
            until(micros, began + next_after).await;
            fleet.start_operator(operator)
        }
        Fault::Suspended { resumes_after, .. } => {
            fleet.operator.signal(Signal::STOP)?;
            until(micros, began + resumes_after).await;
            fleet.operator.signal(Signal::CONT)
        }
        Fault::CutOff { pods, lasts } => {
            fleet.cut(pods, true);
            until(micros, began + lasts).await;
            fleet.cut(pods, false);
            Ok(())
        }
    }
}
