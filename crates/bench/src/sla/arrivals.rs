//! Sends requests in an open loop: a request does not wait for the previous one. A separate thread starts requests on
//! time, because the runtime's timers have a resolution of a millisecond.

use std::time::Duration;

use tokio::{runtime::Runtime, task::JoinSet};

use super::guards::Guard;
use crate::{clock, stats::float};

/// One step of the load, and the results of all guards.
pub(super) struct Step {
    pub(super) rate: u32,
    /// The results, in the order of the guards' names.
    pub(super) guards: Vec<Durations>,
}

/// The durations of requests, sorted.
#[derive(Default)]
pub(super) struct Durations {
    pub(super) served: Vec<Duration>,
    pub(super) failed: Vec<Duration>,
}

impl Durations {
    pub(super) fn success(&self) -> f64 {
        100.0 * float(self.served.len()) / float(self.served.len() + self.failed.len()).max(1.0)
    }
}

pub(super) fn run_step(runtime: &Runtime, rate: u32, length: Duration) -> Step {
    let _entered = runtime.enter();
    let guards = Guard::all();
    let mut tasks: Vec<JoinSet<(bool, Duration)>> = guards.iter().map(|_| JoinSet::new()).collect();
    let gap = Duration::from_secs(1) / rate;
    let start = clock::now();
    for number in 0.. {
        let at = gap * number;
        if at >= length {
            break;
        }
        if let Some(early) = (start + at).checked_duration_since(clock::now()) {
            clock::sleep(early);
        }
        // Each guard is first as often as it is last.
        for turn in 0..guards.len() {
            let place = (turn + number as usize) % guards.len();
            let guard = guards[place].clone();
            let started = clock::now();
            tasks[place].spawn(async move {
                let served = guard.request().await;
                (served, clock::since(started))
            });
        }
    }
    let guards = tasks.into_iter().map(|tasks| runtime.block_on(durations(tasks))).collect();
    Step { rate, guards }
}

async fn durations(tasks: JoinSet<(bool, Duration)>) -> Durations {
    let mut durations = Durations::default();
    for (served, took) in tasks.join_all().await {
        if served { durations.served.push(took) } else { durations.failed.push(took) }
    }
    durations.served.sort();
    durations.failed.sort();
    durations
}
