//! One load of one contender: starts Redis and the processes of the agents, and puts their counts together.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context as _, ensure};

use super::{
    Load,
    sharers::{Counted, Decides, READY, Work},
};
use crate::{
    SHARERS, in_role,
    redis::Redis,
    shared::oracle::excess,
    stats::{float, quantile},
};

/// The processes of the agents.
const PROCESSES: usize = 4;

/// The figures of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// To the store, per request.
    pub(super) trips: f64,
    /// Of the store, per request, in microseconds.
    pub(super) store_cpu: f64,
    /// In percent of all charged seats.
    pub(super) lost: f64,
    pub(super) excess: f64,
    /// In percent of what the limit and the load allow.
    pub(super) used: f64,
    pub(super) admitted: f64,
    /// How long a decision took, in milliseconds.
    pub(super) p50: f64,
    pub(super) p99: f64,
    /// Agents that lost the store during the load.
    pub(super) cut_off: f64,
    pub(super) unanswered: f64,
}

pub(super) fn run(load: &Load, agents: usize, decides: Decides, seconds: u64, folder: &Path) -> anyhow::Result<Sample> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let seed = NEXT.fetch_add(1, Relaxed);
    let redis = Redis::start(folder)?;
    let processes = PROCESSES.min(agents);
    let mut all = Vec::new();
    for place in 0..processes {
        let part = |whole: usize| whole * (place + 1) / processes - whole * place / processes;
        let work = Work {
            store: redis.address,
            decides,
            agents: part(agents),
            sharers: u32::try_from(agents).context("a number of agents")?,
            limit: load.limit,
            keys: load.keys,
            rate: load.rate * part(agents) as u64 / agents as u64,
            millis: seconds * 1_000,
            counters: format!("bench/bench.{seed}"),
            seed: seed * PROCESSES as u64 + place as u64,
        };
        all.push(Sharers::start(&work)?);
    }
    all.iter_mut().try_for_each(Sharers::wait)?;
    let before = redis.work()?;
    all.iter_mut().try_for_each(Sharers::begin)?;
    let counted = all.into_iter().map(Sharers::read).collect::<anyhow::Result<Vec<_>>>()?;
    let after = redis.work()?;
    Ok(Sample::new(load, &counted, seconds, (after.trips - before.trips, after.cpu.saturating_sub(before.cpu))))
}

impl Sample {
    fn new(load: &Load, counted: &[Counted], seconds: u64, (trips, cpu): (u64, Duration)) -> Self {
        let sum = |of: fn(&Counted) -> u64| counted.iter().map(of).sum::<u64>();
        let admitted: Vec<_> = counted.iter().flat_map(|one| &one.admitted).copied().collect();
        let mut took: Vec<_> = counted.iter().flat_map(|one| &one.took).copied().collect();
        took.sort_unstable();
        let (requests, lost) = (took.len() as u64, sum(|one| one.lost));
        let most = load.limit.most(seconds * 1_000_000);
        let of_key = |key: usize| counted.iter().map(|one| one.requests[key]).sum::<u64>();
        let possible = (0..load.keys as usize).map(|key| of_key(key).min(most)).sum();
        let count = admitted.len() as u64;
        let percent = |part: u64, whole: u64| 100.0 * float(part) / float(whole.max(1));
        Self {
            trips: float(trips) / float(requests),
            store_cpu: cpu.as_secs_f64() * 1e6 / float(requests),
            lost: percent(lost, count + lost),
            excess: float(excess(&admitted, load.limit)),
            used: percent(count.min(possible), possible),
            admitted: float(count),
            p50: float(quantile(&took, 500)) / 1e3,
            p99: float(quantile(&took, 990)) / 1e3,
            cut_off: float(sum(|one| one.cut_off)),
            unanswered: float(sum(|one| one.unanswered)),
        }
    }
}

/// A process with some of the agents. It is stopped when this value is dropped.
struct Sharers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Sharers {
    fn start(work: &Work) -> anyhow::Result<Self> {
        let work = serde_json::to_string(work).context("write the work")?;
        let mut command = Command::new("setpriv");
        let sharers = in_role(SHARERS)?;
        command.args(["--pdeathsig", "TERM"]).arg(sharers.get_program()).args(sharers.get_args()).arg(work);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("start agents")?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, input, output })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("read from the agents")?;
        ensure!(!line.is_empty(), "the agents ended");
        Ok(line)
    }

    /// Waits until its agents are connected.
    fn wait(&mut self) -> anyhow::Result<()> {
        let line = self.line()?;
        ensure!(line.trim() == READY, "the agents wrote {line}");
        Ok(())
    }

    fn begin(&mut self) -> anyhow::Result<()> {
        self.input.write_all(b"\n").context("start the load")
    }

    fn read(mut self) -> anyhow::Result<Counted> {
        let line = self.line()?;
        serde_json::from_str(&line).context("read what the agents counted")
    }
}

impl Drop for Sharers {
    fn drop(&mut self) {
        // It has ended, or something failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
