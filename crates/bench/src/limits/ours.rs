//! The contenders of Weir: each strategy with a reading of the clock, as users call it, and with the time as an
//! argument.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use weir_core::{Limiter, Quota, Strategy, Time};
use weir_tower::MonotonicClock;

use super::{
    contender::{Contender, Counts, DAY, Demand, Kind, REFILL},
    hammer::{BATCH, Batch, batch},
};
use crate::clock::QuantaClock;

const SECOND: Duration = Duration::from_secs(1);

/// The number of entries of a log that admits 10^9 requests per second.
const LOG: u32 = 1 << 18;

/// The time between two decisions in nanoseconds, if the time is given.
const STEP: u64 = 16;

/// Creates the contenders of each strategy: with a clock, and with the time given.
macro_rules! strategies {
    ($($name:literal, $strategy:ident, $counts:ident;)*) => {
        pub(super) fn contenders() -> Vec<Contender> {
            let clock = |_| {
                let clock = MonotonicClock::start();
                Some(batch(move || clock.now() > Time::default()))
            };
            let ours = |name, counts, make| Contender {
                name,
                kind: Kind::Ours,
                counts,
                one_thread: false,
                refuses_unread: false,
                make,
            };
            vec![
                $(ours(concat!("weir ", $name), Counts::$counts, |demand| with_clock(Strategy::$strategy, demand)),)*
                $(Contender {
                    kind: Kind::Alone,
                    one_thread: true,
                    ..ours(concat!("weir ", $name, ", time given"), Counts::$counts, |demand| alone(Strategy::$strategy, demand))
                },)*
                ours("weir TokenBucket, quanta's clock", Counts::Bucket, with_quanta),
                Contender { kind: Kind::Baseline, ..ours("clock: weir", Counts::Bucket, clock) },
            ]
        }
    };
}

strategies! {
    "TokenBucket", TokenBucket, Bucket;
    "Gcra", Gcra, Bucket;
    "FixedWindow", FixedWindow, Window;
    "SlidingWindowCounter", SlidingWindowCounter, Window;
    "SlidingWindowLog", SlidingWindowLog, Window;
    "TokenBucketWithDebt", TokenBucketWithDebt, Bucket;
    "LeakyBucket", LeakyBucket, Bucket;
}

fn quota(strategy: Strategy, demand: Demand) -> Option<Quota> {
    let window =
        matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog);
    let (requests, period, burst) = match demand {
        // Without waiting requests, a leaky bucket admits one request per interval, independent of its burst. So it has
        // no budget.
        Demand::Budget(_) if strategy == Strategy::LeakyBucket => return None,
        // The log has the same rate, but a longer period, and so a long ring. Filling the ring takes longer than a
        // preemption, so the entry of a preempted thread blocks no other request.
        Demand::Admit if strategy == Strategy::SlidingWindowLog => (LOG, Duration::from_nanos(u64::from(LOG)), LOG),
        Demand::Admit => (1_000_000_000, SECOND, 1_000_000_000),
        Demand::Deny => (1, DAY, 1),
        Demand::Budget(budget) if window => (budget, DAY, budget),
        Demand::Budget(budget) => (1, DAY, budget),
        Demand::Refill => (REFILL, Duration::from_millis(1), REFILL),
    };
    let burst = (!window).then_some(u64::from(burst));
    Some(Quota::new(strategy, u64::from(requests), period, burst).expect("the numbers above are valid"))
}

fn with_clock(strategy: Strategy, demand: Demand) -> Option<Batch> {
    let clock = MonotonicClock::start();
    on(strategy, demand, move || clock.now())
}

/// Creates a limit with the same clock as shot-limit and governor.
fn with_quanta(demand: Demand) -> Option<Batch> {
    let clock = QuantaClock::start();
    on(Strategy::TokenBucket, demand, move || clock.now())
}

fn on(strategy: Strategy, demand: Demand, now: impl Fn() -> Time + Send + Sync + 'static) -> Option<Batch> {
    let limiter = Limiter::new(now(), quota(strategy, demand)?);
    if demand == Demand::Deny {
        // This uses up the one request per day.
        let _ = limiter.charge(now(), 1);
    }
    Some(batch(move || limiter.charge(now(), 1).is_ok()))
}

/// Creates a limit that is called with a computed time, which is in a register.
fn alone(strategy: Strategy, demand: Demand) -> Option<Batch> {
    let quota = quota(strategy, demand)?;
    let start = MonotonicClock::start().now();
    let limiter = Limiter::new(start, quota);
    if demand == Demand::Deny {
        let _ = limiter.charge(start, 1);
    }
    let reached = AtomicU64::new(start.as_nanos());
    Some(Box::new(move |_| {
        let from = reached.load(Ordering::Relaxed);
        reached.store(from + BATCH * STEP, Ordering::Relaxed);
        let times = (0..BATCH).map(|index| Time::from_nanos(std::hint::black_box(from + index * STEP)));
        times.map(|now| u64::from(std::hint::black_box(limiter.charge(now, 1).is_ok()))).sum()
    }))
}
