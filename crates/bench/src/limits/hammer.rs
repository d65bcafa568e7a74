//! Runs threads that make decisions on shared state as fast as they can, for some time.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{clock, stats::float};

/// The number of decisions between two checks of the stop flag.
pub(super) const BATCH: u64 = 256;

/// Makes [`BATCH`] decisions on the given thread. Returns the number of admissions.
pub(super) type Batch = Box<dyn Fn(usize) -> u64 + Send + Sync>;

/// The result of one repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) decisions: u64,
    pub(super) admitted: u64,
    /// The time from before the first decision until after the last one, without the start of the threads.
    pub(super) elapsed: Duration,
    /// True if a thread panicked because a peer's arithmetic overflowed. In release builds, this arithmetic wraps
    /// around. The decisions of such a thread are not counted.
    pub(super) panicked: bool,
}

impl Rate {
    /// The millions of decisions per second, summed over all threads.
    pub(super) fn millions(&self) -> f64 {
        float(self.decisions) / self.elapsed.as_secs_f64() / 1e6
    }
}

/// Creates a batch whose loop inlines the decision, so that a decision needs no indirect call.
pub(super) fn batch(decide: impl Fn() -> bool + Send + Sync + 'static) -> Batch {
    Box::new(move |_| (0..BATCH).map(|_| u64::from(std::hint::black_box(decide()))).sum())
}

/// Runs the threads for `time`, or until each has made `rounds` batches.
pub(super) fn hammer(threads: usize, time: Duration, rounds: u64, batch: &(dyn Fn(usize) -> u64 + Sync)) -> Rate {
    let stop = AtomicBool::new(false);
    let start = Barrier::new(threads + 1);
    let work = |thread: usize| {
        let (mut done, mut admitted) = (0, 0);
        bind(thread);
        start.wait();
        let started = clock::now();
        while done < rounds && !stop.load(Ordering::Relaxed) {
            admitted += batch(thread);
            done += 1;
        }
        Worked { decisions: done * BATCH, admitted, started, ended: clock::now() }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        start.wait();
        if rounds == u64::MAX {
            clock::sleep(time);
            stop.store(true, Ordering::Relaxed);
        }
        let worked: Vec<_> = workers.into_iter().filter_map(|worker| worker.join().ok()).collect();
        Rate {
            decisions: worked.iter().map(|worked| worked.decisions).sum(),
            admitted: worked.iter().map(|worked| worked.admitted).sum(),
            elapsed: elapsed(&worked),
            panicked: worked.len() < threads,
        }
    })
}

/// Binds each thread to a core, round robin. Otherwise two threads could share one core for a whole turn, without
/// contention. If binding is not permitted, the scheduler decides.
fn bind(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    let mut own = CpuSet::new();
    own.set(cores[thread % cores.len()]);
    let _ = sched_setaffinity(None, &own);
}

/// The work of one thread: its counts, its start and its end.
struct Worked {
    decisions: u64,
    admitted: u64,
    started: Instant,
    ended: Instant,
}

fn elapsed(worked: &[Worked]) -> Duration {
    let started = worked.iter().map(|worked| worked.started).min();
    let ended = worked.iter().map(|worked| worked.ended).max();
    started.zip(ended).map_or(Duration::ZERO, |(started, ended)| ended - started)
}

/// Formats a number of threads: "1 thread", "2 threads".
pub(super) fn in_words(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn every_decision_of_every_thread_is_counted() {
        let calls = std::sync::Arc::new(AtomicU64::new(0));
        let counted = std::sync::Arc::clone(&calls);
        let every_second = batch(move || counted.fetch_add(1, Ordering::Relaxed).is_multiple_of(2));
        let rate = hammer(3, Duration::ZERO, 5, &every_second);
        assert_eq!(rate.decisions, 3 * 5 * BATCH);
        assert_eq!(calls.load(Ordering::Relaxed), rate.decisions);
        assert_eq!(rate.admitted, rate.decisions / 2);
    }

    #[test]
    fn time_is_counted_from_the_first_start_to_the_last_end() {
        let now = clock::now();
        let worked = |from, to| {
            let [started, ended] = [from, to].map(|seconds| now + Duration::from_secs(seconds));
            Worked { decisions: 0, admitted: 0, started, ended }
        };
        assert_eq!(elapsed(&[worked(2, 5), worked(1, 4), worked(3, 4)]), Duration::from_secs(4));
        assert_eq!(elapsed(&[]), Duration::ZERO);
    }

    #[test]
    fn a_panic_is_told() {
        let rate = hammer(2, Duration::ZERO, 1, &|thread| {
            assert_eq!(thread, 0, "a panic, as in some peers");
            BATCH
        });
        assert!(rate.panicked);
        assert_eq!(rate.decisions, BATCH);
    }
}
