//! Measures the operator with ten thousand pods: a real etcd and kube-apiserver, the operator with its release profile,
//! and simulated agents share the cores of this machine.
//!
//! The figures are the operator's use of resources, and the delays that users observe. Agents answer in the wire
//! format, like real agents. A run fails if an agent does not have exactly the policies in force that target its pod.

mod agents;
mod asking;
mod cluster;
mod identities;
mod serve;
mod tables;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use rand::Rng as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::{
    agents::{Agents, Wanted},
    asking::Asking,
    cluster::{COUNTED, Cluster},
    serve::{listen, serve},
};
use self::{
    cluster::{ALL, PER_DEPLOYMENT, SMALL, policies_of},
    identities::Identities,
};
use crate::{
    clock,
    proxy::{Cores, Process},
};

/// The size of a fleet, and the amount of measurements.
#[derive(Clone, Copy)]
struct Size {
    pods: usize,
    /// The number of changes of the policy for one Deployment.
    small: usize,
    /// The number of changes of the policy for all pods.
    all: usize,
    /// The time for which the idle operator is observed.
    rest: Duration,
}

/// Each watch of the operator ends once in this time, so each minute has the same number of requests.
const MINUTE: Duration = Duration::from_secs(60);

const FULL: [Size; 3] = [
    Size { pods: 100, small: 50, all: 30, rest: MINUTE },
    Size { pods: 1_000, small: 50, all: 30, rest: MINUTE },
    Size { pods: 10_000, small: 100, all: 30, rest: MINUTE },
];
const QUICK: [Size; 1] = [Size { pods: 100, small: 10, all: 5, rest: Duration::from_secs(5) }];

/// The longest duration of a run.
const LONGEST: Duration = Duration::from_secs(600);
/// The longest time for the repetitions of one kind of change, so that a slow machine gives fewer figures, not none.
const LONGEST_REPEATING: Duration = Duration::from_secs(60);
/// The longest wait until all agents have a snapshot in force, and until all have acknowledged a change.
const PATIENCE: Duration = Duration::from_secs(90);
/// The time without writes, except to the Lease, after which a fleet counts as idle. With 10,000 agents, an agent sends
/// its next status within ten seconds after a push. Until then, the operator still works on the last change.
const QUIET: Duration = Duration::from_secs(12);
const QUIET_AT_LAST: Duration = Duration::from_secs(60);

/// Measure the operator with thousands of pods.
#[derive(clap::Args)]
pub(crate) struct FleetArgs {
    /// A hundred pods and a few changes: this tests the benchmark, and its figures are not meaningful
    #[arg(long)]
    quick: bool,
    /// The operator to measure
    #[arg(long, value_name = "PROGRAM")]
    operator: PathBuf,
}

/// The figures of one fleet.
struct Found {
    pods: usize,
    policies: usize,
    /// The time from the start of the operator to the last acknowledgement.
    cold: Duration,
    /// The operator's processor time during the cold start.
    cold_cpu: Duration,
    /// The time from the start of the operator until every status was complete.
    cold_reported: Duration,
    small: Vec<Duration>,
    all: Vec<Duration>,
    /// The operator's processor time for one change of all pods.
    all_cpu: Duration,
    /// In bytes.
    resident: u64,
    peak: u64,
    rest: Rest,
}

/// The work of the idle operator.
pub(crate) struct Rest {
    /// The operator's processor time from the last change until it was idle.
    settling: Duration,
    pub(crate) length: Duration,
    pub(crate) cpu: Duration,
    /// The number of reports from agents: a status, or that nothing had changed.
    statuses: u64,
    /// The requests to the apiserver, by verb and resource.
    requests: Vec<String>,
}

impl FleetArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let sizes = if self.quick { &QUICK[..] } else { &FULL[..] };
        raise_open_files()?;
        let load_before = load_average();
        // One thread runs all agents, and one runs this program's own work, because the operator and the apiserver need the
        // cores.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut found = Vec::new();
        let outcome = runtime.block_on(async {
            tokio::select! {
                ended = tokio::time::timeout(LONGEST, measure(&self, sizes, &mut found)) => {
                    ended.with_context(|| format!("the run takes longer than {LONGEST:?}"))?
                }
                interrupted = interrupted() => Err(interrupted),
            }
        });
        // After a failure, the figures so far are written as a partial run: they help to find the cause, but are no result.
        let is_part = self.quick || outcome.is_err();
        if !found.is_empty() {
            let report = tables::report(&found, is_part, &load_before)?;
            report.write(&crate::default_out(is_part))?;
        }
        outcome
    }
}

async fn measure(args: &FleetArgs, sizes: &[Size], found: &mut Vec<Found>) -> anyhow::Result<()> {
    let most = sizes.iter().map(|size| size.pods).max().context("no size")?;
    let agents = Agents::new(most);
    let (listener, port) = listen()?;
    eprintln!("fleet: starting etcd and kube-apiserver");
    let mut cluster = Cluster::start(port).await?;
    let identities = certify(&args.operator, &mut cluster, most).await?;
    tokio::spawn(serve(listener, agents.clone(), identities));
    for size in sizes {
        let started = clock::now();
        cluster.grow(size.pods).await.with_context(|| format!("make {} pods", size.pods))?;
        eprintln!(
            "fleet: {} pods and {} policies, created in {:.1?}",
            size.pods,
            cluster.policies(),
            clock::since(started)
        );
        found.push(measure_size(args, *size, &cluster, &agents).await?);
    }
    Ok(())
}

/// Starts an operator with its release profile. It is killed when the value is dropped.
pub(crate) fn start_operator(program: &Path, kubeconfig: &Path, folder: &Path) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    command.env("KUBECONFIG", kubeconfig).args(["run", "--telemetry", "127.0.0.1:0", "--lease-namespace", "default"]);
    // No agent uses the service for identities, because agents already have their certificates.
    command.args(["--identity-listen", "127.0.0.1:0", "--identity-url", "https://127.0.0.1"]);
    Process::spawn("the operator", &command, Cores::All, &folder.join("operator.log"))
}

/// Starts an operator that creates its authority, and uses that to certify the agents.
pub(crate) async fn certify(operator: &Path, cluster: &mut Cluster, agents: usize) -> anyhow::Result<Arc<Identities>> {
    let folder = tempfile::tempdir().context("make a folder for the operator's log")?;
    let kubeconfig = cluster.control_plane.operators_kubeconfig();
    let operator = start_operator(operator, kubeconfig, folder.path())?;
    let made = cluster.authority(PATIENCE).await;
    let [certificate, key] =
        made.with_context(|| format!("the end of the operator's log:\n{}", operator.log_tail()))?;
    operator.end_well()?;
    let identities = Arc::new(Identities::new(agents, &certificate, &key)?);
    cluster.certify(identities.clone());
    Ok(identities)
}

async fn measure_size(args: &FleetArgs, size: Size, cluster: &Cluster, agents: &Arc<Agents>) -> anyhow::Result<Found> {
    let pods = size.pods;
    let folder = tempfile::tempdir().context("make a folder for the operator's log")?;
    agents.restart();
    let waiting = agents.await_acknowledgements(Wanted::Anything, pods);
    let kubeconfig = cluster.control_plane.operators_kubeconfig();
    let operator = start_operator(&args.operator, kubeconfig, folder.path())?;
    let outcome = async {
        let cold = waiting.over(PATIENCE).await?.duration_since(operator.started);
        let cold_cpu = operator.cpu()?.total();
        agents.check(pods, policies_of)?;
        cluster.until_enforced(PATIENCE).await?;
        let cold_reported = clock::since(operator.started);
        eprintln!("fleet: cold start {cold:.2?}, in every status after {cold_reported:.2?}");

        let small = change(cluster, agents, SMALL, PER_DEPLOYMENT.min(pods), size.small).await?;
        let before = operator.cpu()?;
        let all = change(cluster, agents, ALL, pods, size.all).await?;
        let all_cpu = (operator.cpu()? - before).total() / u32::try_from(all.len().max(1))?;
        agents.check(pods, policies_of)?;
        cluster.until_enforced(PATIENCE).await?;
        let rest = rest(cluster, agents, &operator, size.rest).await?;
        let (resident, peak) = (operator.resident()?, operator.peak()?);
        let policies = cluster.policies();
        anyhow::Ok(Found { pods, policies, cold, cold_cpu, cold_reported, small, all, all_cpu, resident, peak, rest })
    };
    let found = outcome.await.with_context(|| format!("the end of the operator's log:\n{}", operator.log_tail()))?;
    eprintln!("fleet: {}", tables::line(&found));
    operator.end_well()?;
    Ok(found)
}

/// Changes a policy repeatedly. Returns the time of each change, from the request to the last acknowledgement.
async fn change(
    cluster: &Cluster,
    agents: &Arc<Agents>,
    policy: &str,
    pods: usize,
    times: usize,
) -> anyhow::Result<Vec<Duration>> {
    let begun = clock::now();
    let mut took = Vec::with_capacity(times);
    for time in 0..times {
        if clock::since(begun) > LONGEST_REPEATING {
            break;
        }
        // The pause leaves time for the last writes. It is random, so that changes are not synchronized with the
        // operator's timers.
        let pause = Duration::from_millis(rand::rng().random_range(200..700));
        tokio::time::sleep(pause).await;
        // Each number is used only once, also over all sizes.
        let requests = 1_000 * u64::try_from(pods)? + u64::try_from(time)?;
        let waiting = agents.await_acknowledgements(Wanted::Limit(policy.to_owned(), requests), pods);
        let asked = clock::now();
        cluster.set_limit(policy, requests).await?;
        took.push(waiting.over(PATIENCE).await?.duration_since(asked));
    }
    took.sort_unstable();
    Ok(took)
}

/// Waits until the operator is idle, and then observes it.
pub(crate) async fn rest(
    cluster: &Cluster,
    agents: &Arc<Agents>,
    operator: &Process,
    length: Duration,
) -> anyhow::Result<Rest> {
    let (begun, begun_cpu) = (clock::now(), operator.cpu()?);
    loop {
        let before = cluster.asked()?.len();
        tokio::time::sleep(QUIET).await;
        if cluster.asked()?[before..].iter().all(|request| request.ends_with(" leases")) {
            break;
        }
        if clock::since(begun) > QUIET_AT_LAST {
            eprintln!("fleet: the operator still writes after {QUIET_AT_LAST:?}");
            break;
        }
    }
    let (cpu, statuses, asked) = (operator.cpu()?, agents.statuses(), cluster.asked()?.len());
    let started = clock::now();
    tokio::time::sleep(length).await;
    let settling = (cpu - begun_cpu).total();
    let (cpu, statuses) = ((operator.cpu()? - cpu).total(), agents.statuses() - statuses);
    let length = clock::since(started);
    Ok(Rest { settling, length, cpu, statuses, requests: cluster.asked()?.split_off(asked) })
}

/// Raises the limit of open files. Each agent needs a connection, also in the operator, which inherits the limit.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .context("raise the number of open files")
}

pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(", ")
}

/// Returns at a signal. The processes that this program started end with it.
pub(crate) async fn interrupted() -> anyhow::Error {
    let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
        return anyhow!("cannot listen for signals");
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    anyhow!("interrupted")
}
