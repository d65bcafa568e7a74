//! What it costs the operator to count: up to ten thousand simulated agents, a real etcd and kube-apiserver, and the
//! operator with its release profile.

mod load;
mod tables;

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;

use self::load::Load;
use crate::{
    clock,
    fleet::{
        Agents, Asking, COUNTED, Cluster, Wanted, certify, listen, load_average, raise_open_files, rest, serve,
        start_operator,
    },
    proxy::Process,
    report::Part,
};

pub(super) const ABOUT: &str = "\
A real etcd, a real kube-apiserver, the operator as in its image, and simulated agents, as on \
[the page of the operator](fleet.md). One more policy targets all pods; its rule has no key. First it has scope Pod, \
and then scope Fleet. *Idle* is the processor time of the operator between two changes, with the statuses of all \
agents. A *question* is one message of an agent for one request, about the same key, without seats in advance, so \
this is the most work that a request can cause. *At a constant rate*, each question is of any agent. *As fast as \
possible*, 256 questions are always open; the agents, the apiserver and the operator share the cores. Latency is \
measured at the agents. CPU per question is the operator's processor time without that of the idle operator. *Cold \
start* is the time from the start of an operator until it counts for the last agent, and *failover* the time from the \
end of a killed leader, whose Lease must expire first, until the next operator, which starts then, counts for all \
agents. Each agent reports the level of the key.";

/// The requests per second of the limit: no question is refused.
const LIMIT: u64 = 10_000_000;
const PATIENCE: Duration = Duration::from_secs(120);

/// A number of agents, and the amount of measurements.
#[derive(Clone, Copy)]
struct Size {
    pods: usize,
    rest: Duration,
    rounds: usize,
    load: Duration,
}

const FULL: [Size; 2] = [
    Size { pods: 1_000, rest: Duration::from_secs(20), rounds: 1, load: Duration::from_secs(5) },
    Size { pods: 10_000, rest: Duration::from_secs(30), rounds: 2, load: Duration::from_secs(5) },
];
const QUICK: [Size; 1] = [Size { pods: 100, rest: Duration::from_secs(2), rounds: 1, load: Duration::from_secs(1) }];

/// The constant rates, in questions per second.
const RATES: [u64; 2] = [1_000, 4_000];

/// The figures of one number of agents.
struct Found {
    pods: usize,
    /// The processor time of the idle operator in percent of a core, for scope Pod and scope Fleet.
    idle: [Vec<f64>; 2],
    /// The resident memory in bytes, for both scopes.
    memory: [u64; 2],
    /// The most resident memory, with all questions.
    peak: u64,
    rates: Vec<Load>,
    fastest: Load,
    cold: Duration,
    failover: Duration,
}

pub(super) fn measure(quick: bool, program: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    raise_open_files()?;
    let before = load_average();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let sizes = if quick { &QUICK[..] } else { &FULL[..] };
    let found = runtime.block_on(measure_all(sizes, program))?;
    part.versions([("load average of operator", format!("{before} before, {} after", load_average()))]);
    tables::write(&found, part);
    Ok(())
}

async fn measure_all(sizes: &[Size], program: &Path) -> anyhow::Result<Vec<Found>> {
    let most = sizes.iter().map(|size| size.pods).max().context("no size")?;
    let agents = Agents::new(most);
    let (listener, port) = listen()?;
    eprintln!("fleet-limits: starting etcd and kube-apiserver");
    let mut cluster = Cluster::start(port).await?;
    let identities = certify(program, &mut cluster, most).await?;
    tokio::spawn(serve(listener, agents.clone(), identities));
    let mut found = Vec::new();
    for (number, size) in sizes.iter().enumerate() {
        let started = clock::now();
        cluster.grow(size.pods).await.with_context(|| format!("make {} pods", size.pods))?;
        if number == 0 {
            cluster.count_all(LIMIT).await?;
        }
        eprintln!("fleet-limits: {} pods after {:.1?}", size.pods, clock::since(started));
        found.push(measure_size(*size, program, &cluster, &agents).await?);
    }
    Ok(found)
}

async fn measure_size(size: Size, program: &Path, cluster: &Cluster, agents: &Arc<Agents>) -> anyhow::Result<Found> {
    let folder = tempfile::tempdir().context("make a folder for the operator's log")?;
    let start = || start_operator(program, cluster.control_plane.operators_kubeconfig(), folder.path());
    let asking = Arc::clone(agents.asking());
    agents.restart();
    let mut limit = LIMIT + 2 * u64::try_from(size.pods)?;
    let operator = start()?;
    let outcome = async {
        let mut found = Found {
            pods: size.pods,
            idle: [Vec::new(), Vec::new()],
            memory: [0, 0],
            peak: 0,
            rates: Vec::new(),
            fastest: Load::default(),
            cold: Duration::ZERO,
            failover: Duration::ZERO,
        };
        for _ in 0..size.rounds {
            for (place, scope) in ["Pod", "Fleet"].into_iter().enumerate() {
                limit += 1;
                let waiting = agents.await_acknowledgements(Wanted::Limit(COUNTED.to_owned(), limit), size.pods);
                cluster.set_counted(scope, limit).await?;
                waiting.over(PATIENCE).await?;
                if place == 1 {
                    asking.until_counted(size.pods, PATIENCE).await?;
                }
                cluster.until_enforced(PATIENCE).await?;
                let rest = rest(cluster, agents, &operator, size.rest).await?;
                let idle = rest.cpu.as_secs_f64() / rest.length.as_secs_f64() * 100.0;
                eprintln!("fleet-limits: {} agents, scope {scope}: {idle:.2} % of a core when idle", size.pods);
                found.idle[place].push(idle);
                found.memory[place] = operator.resident()?;
            }
        }
        let idle = found.idle[1].iter().copied().fold(0.0, f64::max);
        for rate in RATES {
            found.rates.push(load::at_rate(&asking, &operator, size.pods, (rate, size.load), idle).await?);
        }
        found.fastest = load::fastest(&asking, &operator, size.pods, size.load, idle).await?;
        found.peak = operator.peak()?;
        anyhow::Ok(found)
    };
    let mut found =
        outcome.await.with_context(|| format!("the end of the operator's log:\n{}", operator.log_tail()))?;
    operator.end_well()?;
    asking.until_counted(0, PATIENCE).await?;
    let operator = start()?;
    found.cold = until_counted(&asking, size.pods, &operator).await?;
    // Dropping it kills it.
    drop(operator);
    let killed = clock::now();
    asking.until_counted(0, PATIENCE).await?;
    let operator = start()?;
    until_counted(&asking, size.pods, &operator).await?;
    found.failover = clock::since(killed);
    operator.end_well()?;
    eprintln!("fleet-limits: cold start {:.2?}, failover {:.2?}", found.cold, found.failover);
    Ok(found)
}

/// The time from the start of the operator until it counts for all agents.
async fn until_counted(asking: &Asking, pods: usize, operator: &Process) -> anyhow::Result<Duration> {
    let counted = asking.until_counted(pods, PATIENCE).await;
    counted.with_context(|| format!("the end of the operator's log:\n{}", operator.log_tail()))?;
    Ok(clock::since(operator.started))
}
