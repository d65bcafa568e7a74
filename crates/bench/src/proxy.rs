//! Compares the agent with nginx, HAProxy and Envoy on the same work: CPU per request, added latency, and memory per
//! connection.
//!
//! One proxy at a time runs, alone on one core. Its clients and the app behind it share another core. Every load counts
//! the statuses of the responses. A status that does not fit the scenario makes the figure an error.

mod contenders;
mod exchange;
mod h2load;
mod idle;
mod latency;
mod lean;
mod load;
mod process;
mod rounds;
mod scenarios;
mod tables;
mod template;
mod upstream;
mod weir;

use std::time::Duration;

use anyhow::Context as _;
use rustix::{
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{CpuSet, sched_setaffinity},
};

use self::scenarios::SCENARIOS;
pub(crate) use self::{
    exchange::Connection,
    h2load::{Answer, h2load},
    lean::{LARGEST_ANSWER, PolledConnection},
    load::{Load, Wrk},
    process::{CLIENT_CORE, Cores, Cpu, PROXY_CORE, Process, free_address},
    upstream::{accept, start as start_app, start_apps},
    weir::{
        Addresses, agent_program, bucket, command as agent_command, next_to_this, put as put_snapshot, snapshot_of,
    },
};
use crate::report::Report;

const ABOUT: &str = "\
Each proxy has one worker, pinned to its own core. The clients and the app run on another core. The clients are `wrk` \
for HTTP/1.1, `h2load` for HTTP/2, and our own client where a column says so. All proxies keep their connections to \
the app, write no access log, append `X-Forwarded-*`, and limit requests: one bucket for each value of the header \
`x-key` in each rule. Weir's agent also counts its metrics and writes the `RateLimit` fields. The configuration of \
the peers is in crates/bench/src/proxy/peers. CPU is the user and system time of all processes of a proxy, from \
/proc, divided by the requests that its clients counted. Clients keep their connections alive. nginx, HAProxy and \
Envoy always use HTTP/1.1 to the app. The agent uses HTTP/2 if its client does. The agent is built as in its image: \
with the profile dist, which has link-time optimisation. The peers come from Debian and PyPI. HAProxy counts requests \
in a sliding period instead of a bucket, and reads many rules from a map, as its manual recommends. As root, all \
programs run in a network namespace that has only a loopback device, so no packet passes the rules of a firewall.

A refused request costs so little that one core of wrk cannot keep all contenders busy. If a contender answers \
faster than wrk sends requests, it sleeps between them, and the wake-ups count as its CPU. A contender whose core is \
full has no wake-ups. In the column `refused, core full`, the client does less work for each request than wrk \
(crates/bench/src/proxy/lean.rs). It has as many connections, with one request at a time on each, and reads only the \
status and the end of an answer. In the column `refused, 60,000 a second`, all contenders refuse the same number of \
requests, and all sleep between them. A table below shows how busy the core of each contender was. The aim is for \
wrk's column. The other two columns are for comparison.";

/// The durations and the numbers of the measurements.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// The number of rounds of scenarios with an aim. There are many short rounds, because the speed of a shared
    /// machine changes within seconds, and compared figures should be measured shortly after each other.
    rounds_of_aims: usize,
    length: Duration,
    length_of_aims: Duration,
    idle_connections: usize,
    starts: usize,
    /// True if every key is used once before the measurement.
    fill: bool,
}

const FULL: Effort = Effort {
    rounds: 5,
    rounds_of_aims: 41,
    length: Duration::from_secs(2),
    length_of_aims: Duration::from_secs(1),
    idle_connections: 7_500,
    starts: 9,
    fill: true,
};
const QUICK: Effort = Effort {
    rounds: 1,
    rounds_of_aims: 1,
    length: Duration::from_secs(1),
    length_of_aims: Duration::from_secs(1),
    idle_connections: 1_000,
    starts: 1,
    fill: false,
};

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let effort = if quick { QUICK } else { FULL };
    // The report counts the cores, so it must be created before this program is bound to one core.
    let mut report = Report::new("proxy", "The agent as a proxy", ABOUT, quick)?;
    make_room()?;
    let folder = tempfile::tempdir().context("make a folder for the proxies")?;
    let bench = rounds::Bench { upstream: start_app()?, folder: folder.path(), effort };
    let mut results = Vec::new();
    for scenario in SCENARIOS {
        results.push((scenario, bench.run(scenario)?));
    }
    let latencies = latency::measure(&bench)?;
    let idle = idle::measure(&bench)?;
    report.add_versions(contenders::versions());
    tables::write(&results, &latencies, &idle, &mut report);
    Ok(report)
}

/// Prepares the machine for a run of proxies.
pub(crate) fn make_room() -> anyhow::Result<()> {
    to_the_clients_core()?;
    more_files()
}

/// Runs `measure` in a new thread. Only this thread, and the processes that it starts, stay on a core.
pub(crate) fn on_a_thread(measure: impl FnOnce() -> anyhow::Result<()> + Send) -> anyhow::Result<()> {
    std::thread::scope(|scope| scope.spawn(measure).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Binds this program to the clients' core. The clients that it starts inherit this.
fn to_the_clients_core() -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().context("count the cores")?;
    anyhow::ensure!(
        cores.get() >= 2,
        "this benchmark needs two cores: one for the proxy, one for the clients and the app"
    );
    let mut set = CpuSet::new();
    set.set(CLIENT_CORE);
    sched_setaffinity(None, &set).context("bind this program to one core")
}

/// Raises the limit of file descriptors for this program and its children.
pub(crate) fn more_files() -> anyhow::Result<()> {
    let files = Some(contenders::FILES);
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_none_or(|maximum| maximum >= contenders::FILES) {
        return setrlimit(Resource::Nofile, Rlimit { current: files, ..limit }).context("raise the file limit");
    }
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })
        .with_context(|| format!("raise the file limit to {}: run this as root", contenders::FILES))
}
