//! Pods with injected agents, and the operators of the chart, on a kind cluster: what the pods admit together while
//! pods come and go, and while the leader fails.

mod cluster;

use std::{path::Path, sync::Arc, time::Duration};

use tokio::signal::unix::{SignalKind, signal};

use self::cluster::{Cluster, Cut};
use super::{
    client::{self, Clock, Found},
    tables,
    world::{AT, OF_PODS, ON_CLUSTER, Run, SECOND, Scenario, Traffic, on_pods},
};
use crate::{
    clock::sleep,
    fleet::{load_average, raise_open_files},
    report::Part,
    stats::float,
};

pub(super) const ABOUT: &str = "\
A Deployment on a kind cluster of two nodes, with injected agents, and two operators with a Lease, from the images and \
with the defaults of the chart. The limit is a bucket of 400 requests a second that holds 400. Requests are the same \
Poisson process as in virtual time, over HTTP. The client runs outside of the cluster, and sends each request to the \
address of a pod. Its clock measures when each request is sent and answered. All admissions together are compared with \
the limit in whole numbers, as in virtual time, and with a central limiter that gets the same requests. There are ten \
pods, unless the table gives another number. *Killed* is SIGKILL of the leader's container, and *suspended* SIGSTOP and \
then SIGCONT. *Cut off*: the leader's node drops all packets between the leader and the agents, or between the leader \
and the apiserver. These faults begin at the twelfth second. *3 to 30 pods and back*: the Deployment gets 30 replicas at \
the twelfth second, and 3 again 24 s later, or when all are ready. The client sends requests to pods that are ready and \
not being deleted.";

/// The pods of the scenario that scales.
const FEW: usize = 3;
const MANY: usize = 30;
const SCALED_FOR: u64 = 24 * SECOND;
/// The longest time until all pods are ready, so that there is time for the way back.
const SCALED_WITHIN: Duration = Duration::from_secs(48);
const FAULT_LASTS: u64 = 20 * SECOND;

/// What happens at [`AT`].
#[derive(Clone, Copy)]
enum Event {
    Killed,
    Suspended,
    CutOff(Cut),
    Scaled,
}

/// The scenarios in which something happens, and their seconds.
const EVENTS: [(&str, u64, Event); 5] = [
    ("leader killed", 60, Event::Killed),
    ("leader suspended for 20 s", 60, Event::Suspended),
    ("leader cut off from all agents for 20 s", 60, Event::CutOff(Cut::Agents)),
    ("leader cut off from the apiserver for 20 s", 60, Event::CutOff(Cut::Apiserver)),
    ("3 to 30 pods and back, 3 times the limit", 90, Event::Scaled),
];

pub(super) fn measure(quick: bool, kubeconfig: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    raise_open_files()?;
    let before = load_average();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let cluster = Arc::new(Cluster::prepare(kubeconfig, OF_PODS[0].limit)?);
    // An interrupted run removes the routes, too.
    let mut interrupt = runtime.block_on(async { signal(SignalKind::terminate()) })?;
    let _routes = cluster.routes()?;
    let still = OF_PODS.into_iter().map(|scenario| (scenario, None));
    let mut found = Vec::new();
    for (scenario, event) in still.chain(EVENTS.map(|(name, seconds, event)| (on_pods(name, seconds), Some(event)))) {
        // An event needs its time.
        let scenario = if quick && event.is_none() { scenario.shortened() } else { scenario };
        let rounds = if quick || event.is_some() { 1 } else { 3 };
        let run = |round| {
            runtime.block_on(async {
                tokio::select! {
                    sent = run(&cluster, &scenario, event, round) => sent,
                    _ = interrupt.recv() => anyhow::bail!("interrupted"),
                }
            })
        };
        found.push(Found::measure(scenario, rounds, run)?);
    }
    part.versions([("load average of kind", format!("{before} before, {} after", load_average()))]);
    tables::write(&found, part);
    Ok(())
}

async fn run(
    cluster: &Arc<Cluster>,
    scenario: &Scenario,
    event: Option<Event>,
    seed: u64,
) -> anyhow::Result<(Traffic, Run)> {
    let pods = if matches!(event, Some(Event::Scaled)) { FEW } else { ON_CLUSTER };
    cluster.scale(pods)?;
    cluster.until_ready(pods).await?;
    let happens = async |clock: Clock| match event {
        Some(event) => {
            // The thread of the client must not wait for kubectl.
            let cluster = Arc::clone(cluster);
            tokio::task::spawn_blocking(move || happen(&cluster, event, clock)).await?
        }
        None => Ok(()),
    };
    client::send(scenario.traffic(seed), |pod| cluster.client(pod), happens).await
}

fn happen(cluster: &Cluster, event: Event, clock: Clock) -> anyhow::Result<()> {
    sleep(clock.until(AT));
    match event {
        Event::Killed => cluster.leader()?.signal("KILL"),
        Event::Suspended => {
            let leader = cluster.leader()?;
            leader.signal("STOP")?;
            sleep(clock.until(AT + FAULT_LASTS));
            leader.signal("CONT")
        }
        Event::CutOff(cut) => {
            let leader = cluster.leader()?;
            leader.cut_off(cut, true)?;
            sleep(clock.until(AT + FAULT_LASTS));
            leader.cut_off(cut, false)
        }
        Event::Scaled => {
            cluster.scale(MANY)?;
            cluster.until_targets(MANY, SCALED_WITHIN)?;
            eprintln!("fleet-limits: {MANY} pods after {:.1} s", float(clock.micros() - AT) / 1e6);
            sleep(clock.until(AT + SCALED_FOR));
            cluster.scale(FEW)
        }
    }
}
