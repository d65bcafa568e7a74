//! Questions of simulated agents to the operator: at a constant rate, and as fast as possible.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{bail, ensure};
use futures::future::join_all;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use weir_wire::Outcome;

use crate::{clock, fleet::Asking, proxy::Process, stats::float};

/// The questions that are open at the same time.
const OPEN: u64 = 256;
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
const TICK: Duration = Duration::from_millis(1);

/// The figures of one load.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// The wanted rate. None if the load was as fast as possible.
    pub(super) rate: Option<u64>,
    pub(super) per_second: f64,
    /// The time from a question to its answer. Sorted.
    pub(super) took: Vec<Duration>,
    /// The processor time of the operator in percent of a core.
    pub(super) cpu: f64,
    /// Without that of the idle operator, in microseconds.
    pub(super) cpu_per_question: f64,
}

type Took = Arc<Mutex<Vec<Duration>>>;

/// Asks for one request, and records how long the answer took.
async fn ask(asking: &Asking, number: usize, took: &Took) -> anyhow::Result<()> {
    let begun = clock::now();
    match tokio::time::timeout(PATIENCE, asking.ask(number)).await {
        Ok(Ok(Outcome::Counted(granted))) => {
            ensure!(granted.granted == 1, "the operator refused a request below the limit");
            took.lock().unwrap_or_else(PoisonError::into_inner).push(clock::since(begun));
            Ok(())
        }
        other => bail!("a question was answered with {other:?}"),
    }
}

pub(super) async fn at_rate(
    asking: &Arc<Asking>,
    operator: &Process,
    agents: usize,
    (rate, length): (u64, Duration),
    idle: f64,
) -> anyhow::Result<Load> {
    let (took, mut random) = (Took::default(), StdRng::seed_from_u64(rate));
    let all = rate * u64::try_from(length.as_millis())? / 1_000;
    let (before, begun) = (operator.cpu()?, clock::now());
    let mut questions = Vec::new();
    while (questions.len() as u64) < all {
        let passed = u64::try_from(clock::since(begun).as_micros())?;
        let due = (passed * rate / 1_000_000).min(all);
        while (questions.len() as u64) < due {
            let (asking, took, number) = (Arc::clone(asking), Arc::clone(&took), random.random_range(0..agents));
            questions.push(tokio::spawn(async move { ask(&asking, number, &took).await }));
        }
        tokio::time::sleep(TICK).await;
    }
    for question in questions {
        question.await??;
    }
    Load::new(Some(rate), &took, (operator.cpu()? - before).total(), clock::since(begun), idle)
}

pub(super) async fn fastest(
    asking: &Arc<Asking>,
    operator: &Process,
    agents: usize,
    length: Duration,
    idle: f64,
) -> anyhow::Result<Load> {
    let took = Took::default();
    let (before, begun) = (operator.cpu()?, clock::now());
    let asks = (0..OPEN).map(|seed| {
        let (asking, took) = (Arc::clone(asking), Arc::clone(&took));
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            while clock::since(begun) < length {
                ask(&asking, random.random_range(0..agents), &took).await?;
            }
            anyhow::Ok(())
        })
    });
    for asked in join_all(asks).await {
        asked??;
    }
    Load::new(None, &took, (operator.cpu()? - before).total(), clock::since(begun), idle)
}

impl Load {
    fn new(rate: Option<u64>, took: &Took, cpu: Duration, length: Duration, idle: f64) -> anyhow::Result<Self> {
        let mut took = std::mem::take(&mut *took.lock().unwrap_or_else(PoisonError::into_inner));
        ensure!(!took.is_empty(), "no question was answered");
        took.sort_unstable();
        let (length, count) = (length.as_secs_f64(), float(took.len()));
        let cpu = cpu.as_secs_f64() / length * 100.0;
        let cpu_per_question = (cpu - idle) / 100.0 * length / count * 1e6;
        let load = Self { rate, per_second: count / length, took, cpu, cpu_per_question };
        eprintln!("fleet-limits: {:.0} questions/s, {:.1} µs of the operator each", load.per_second, cpu_per_question);
        Ok(load)
    }
}
