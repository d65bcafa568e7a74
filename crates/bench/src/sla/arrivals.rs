//! One step of the load on all guards.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::guards::Guard;
use crate::{
    open_loop::{self, Ended},
    stats::float,
};

/// One step of the load, and the results of all guards.
pub(super) struct Step {
    pub(super) rate: u32,
    /// The results, in the order of the guards' names.
    pub(super) guards: Vec<Durations>,
}

/// The durations of requests, sorted.
pub(super) struct Durations {
    pub(super) served: Vec<Duration>,
    pub(super) failed: Vec<Duration>,
}

impl Durations {
    fn of(mut requests: Vec<Ended<bool>>) -> Self {
        requests.sort_by_key(|ended| ended.took);
        let of = |served| requests.iter().filter(|ended| ended.result == served).map(|ended| ended.took).collect();
        Self { served: of(true), failed: of(false) }
    }

    pub(super) fn success(&self) -> f64 {
        100.0 * float(self.served.len()) / float(self.served.len() + self.failed.len()).max(1.0)
    }
}

pub(super) fn run_step(runtime: &Runtime, rate: u32, length: Duration) -> Step {
    let _entered = runtime.enter();
    let calls = Guard::all().map(|guard| {
        move || {
            let guard = guard.clone();
            async move { guard.request().await }
        }
    });
    let results = open_loop::run_step(runtime, &calls, rate, length);
    Step { rate, guards: results.into_iter().map(Durations::of).collect() }
}
