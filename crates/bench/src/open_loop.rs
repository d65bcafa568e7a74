//! Sends requests in an open loop: a request does not wait for the last one. A separate thread keeps the times, because
//! the runtime's timers have a resolution of a millisecond.

use std::time::{Duration, Instant};

use tokio::{runtime::Runtime, task::JoinSet};

use crate::clock;

/// A request that has ended.
pub(crate) struct Ended<T> {
    pub(crate) result: T,
    pub(crate) started: Instant,
    pub(crate) took: Duration,
}

/// Makes the same number of calls each second to all contenders, evenly. Between two calls of a contender, each other one
/// has a moment of its own. Returns the results by contender.
pub(crate) fn run_step<T, F>(
    runtime: &Runtime,
    calls: &[impl Fn() -> F],
    rate: u32,
    length: Duration,
) -> Vec<Vec<Ended<T>>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let _entered = runtime.enter();
    let mut tasks: Vec<JoinSet<Ended<T>>> = calls.iter().map(|_| JoinSet::new()).collect();
    let gap = Duration::from_secs(1) / rate;
    let part = gap / u32::try_from(calls.len()).unwrap_or(u32::MAX);
    let start = clock::now();
    for number in (0..).take_while(|number| gap * *number < length) {
        for ((place, call), tasks) in (0..).zip(calls).zip(&mut tasks) {
            let at = start + gap * number + part * place;
            if let Some(early) = at.checked_duration_since(clock::now()) {
                clock::sleep(early);
            }
            let started = clock::now();
            let call = call();
            tasks.spawn(async move { Ended { result: call.await, started, took: clock::since(started) } });
        }
    }
    tasks.into_iter().map(|tasks| runtime.block_on(tasks.join_all())).collect()
}
