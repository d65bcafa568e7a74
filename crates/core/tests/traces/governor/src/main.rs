//! Runs governor's limiters on a made-up clock, and writes their decisions: see ../README.md.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use governor::{Quota, RateLimiter, clock::Clock, nanos::Nanos};

/// A clock that can run backwards. governor's own fake clock only runs forwards.
#[derive(Clone, Default)]
struct MadeUp(Arc<AtomicU64>);

impl Clock for MadeUp {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }
}

/// A linear congruential generator (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// The limits: one request per this many nanoseconds, and a burst.
const LIMITS: [(u64, u32); 8] = [
    (1_000_000_000, 1),
    (100_000_000, 5),
    (1_000_000, 1000),
    (86_400_000_000_000, 2),
    (142_857_142, 3),
    (1_000, 50),
    (3, 7),
    (60_000_000_000, 1),
];

/// A function of an emission interval and a burst. It returns the nanoseconds until the next arrival, and the next
/// cost.
type Pattern = fn(&mut Random, u64, u64) -> (i64, u64);

const PATTERNS: [(&str, Pattern); 6] = [
    ("steady", |random, interval, burst| {
        let cost = (burst / 8).max(1);
        (signed(interval * cost) + signed(random.below(3)) - 1, cost)
    }),
    ("hurried", |random, interval, burst| {
        let cost = (burst / 8).max(1);
        (signed(random.below(interval * cost)), cost)
    }),
    ("bursts", |random, interval, burst| {
        let wait = if random.below(6) == 0 { random.below(interval * burst * 2) } else { 0 };
        (signed(wait), 1 + random.below(burst / 3))
    }),
    ("standing", |random, _, burst| (0, 1 + random.below(burst / 4))),
    ("costs", |random, interval, burst| {
        let cost = 1 + random.below(burst + 2);
        (signed(random.below(2 * interval * cost)), cost)
    }),
    ("backwards", |random, interval, burst| {
        let cost = (burst / 8).max(1);
        let wait = signed(random.below(interval * cost * 2));
        (if random.below(3) == 0 { -wait / 4 } else { wait / 2 }, cost)
    }),
];

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).expect("less than 292 years")
}

fn main() {
    println!("# governor 0.10.4, written by governor/src/main.rs; the lines are explained in README.md");
    for (number, (interval, burst)) in (1..).zip(LIMITS) {
        for (name, pattern) in PATTERNS {
            println!("= TokenBucket 1 {interval} {burst} {name}");
            let clock = MadeUp::default();
            let quota = Quota::with_period(Duration::from_nanos(interval))
                .expect("not zero")
                .allow_burst(NonZeroU32::new(burst).expect("not zero"));
            // The start is so late that no arrival is before it.
            let start = interval * u64::from(burst) * 100;
            let limiter = RateLimiter::direct_with_clock(quota, clock.clone());
            let mut random = Random(number * 1_000 + name.len() as u64);
            clock.0.store(start, Ordering::Relaxed);
            let mut wait = signed(start);
            for _ in 0..70 {
                let (next, cost) = pattern(&mut random, interval, u64::from(burst));
                let cost32 = NonZeroU32::new(u32::try_from(cost).expect("small")).expect("not zero");
                let answer = match limiter.check_n(cost32) {
                    Ok(Ok(())) => "yes",
                    Ok(Err(_)) | Err(_) => "no",
                };
                println!("{wait} allow {cost} {answer}");
                let now = clock.0.load(Ordering::Relaxed).checked_add_signed(next).expect("after the start");
                clock.0.store(now, Ordering::Relaxed);
                wait = next;
            }
        }
    }
}
