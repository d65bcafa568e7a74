//! Ten agents and an operator as processes, with real requests: what they admit together while the operator and
//! the connections fail.

mod link;
mod processes;

use std::{net::SocketAddr, path::Path};

use rustix::process::Signal;

use self::processes::Fleet;
use super::{
    client::{self, Clock, Found},
    tables,
    world::{Fault, OF_PROCESSES, Run, Scenario, Traffic},
};
use crate::{
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

pub(super) fn measure(quick: bool, operator: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    raise_open_files()?;
    let before = load_average();
    let upstream = start_app()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut found = Vec::new();
    for scenario in OF_PROCESSES {
        let scenario = if quick { scenario.shortened() } else { scenario };
        let rounds = if quick || scenario.fault.is_some() { 1 } else { 3 };
        let run = |round| runtime.block_on(run(&scenario, round, operator, upstream));
        found.push(Found::measure(scenario, rounds, run)?);
    }
    part.versions([("load average of agents", format!("{before} before, {} after", load_average()))]);
    tables::write(&found, "agent", "ten processes", part);
    Ok(())
}

/// Sends the requests of a scenario. Returns them with the times at which they were really sent.
async fn run(scenario: &Scenario, seed: u64, operator: &Path, upstream: SocketAddr) -> anyhow::Result<(Traffic, Run)> {
    let mut fleet = Fleet::start(operator, scenario.limit, upstream).await?;
    let clients: Vec<_> = fleet.addresses().into_iter().map(|address| OpenLoopClient::new(address, "/")).collect();
    let fails = async |clock: Clock| match scenario.fault {
        Some((at, fault)) => {
            tokio::time::sleep(clock.until(at)).await;
            fail(&mut fleet, fault, operator, clock).await
        }
        None => Ok(()),
    };
    let sent = client::send(scenario.traffic(seed), |pod| Ok(clients[pod].clone()), fails).await?;
    fleet.end()?;
    Ok(sent)
}

async fn fail(fleet: &mut Fleet, fault: Fault, operator: &Path, clock: Clock) -> anyhow::Result<()> {
    let began = clock.micros();
    match fault {
        Fault::Killed { next_after } | Fault::Ended { next_after } => {
            let signal = if matches!(fault, Fault::Killed { .. }) { Signal::KILL } else { Signal::TERM };
            fleet.operator.signal(signal)?;
            tokio::time::sleep(clock.until(began + next_after)).await;
            fleet.start_operator(operator)
        }
        Fault::Suspended { resumes_after, .. } => {
            fleet.operator.signal(Signal::STOP)?;
            tokio::time::sleep(clock.until(began + resumes_after)).await;
            fleet.operator.signal(Signal::CONT)
        }
        Fault::CutOff { pods, lasts } => {
            fleet.cut(pods, true);
            tokio::time::sleep(clock.until(began + lasts)).await;
            fleet.cut(pods, false);
            Ok(())
        }
    }
}
