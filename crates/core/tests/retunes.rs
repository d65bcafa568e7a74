//! What a change of the quota keeps, from every strategy to every other: an equal quota touches nothing (R1), nothing
//! becomes free by a change (R2), and so nobody gains by changes however often they come (R3).
#![cfg(not(loom))]

mod random;
mod suite;

use std::time::Duration;

use proptest::prelude::*;
use weir_core::{Limiter, Quota, Standing, Strategy as Counting, Time};

use self::random::{END, START, What, arrivals, for_each_strategy, quotas};
use self::suite::STRATEGIES;

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

/// How many requests of cost 1 are admitted at one moment at most.
fn at_once(quota: Quota) -> u64 {
    suite::at_once(quota.strategy(), quota.most())
}

fn state(standing: Standing) -> (u64, Duration, Option<Duration>) {
    (standing.remaining(), standing.reset_after(), standing.retry_after(1))
}

/// Any change from one strategy to another, both by name in a failure.
fn changes() -> impl Strategy<Value = (Counting, Counting)> {
    let all = || prop::sample::select(STRATEGIES.to_vec());
    (all(), all())
}

/// Words that are final look like none that time could have brought, also where there was hardly any time.
#[test]
fn old_handles_follow_in_the_first_day_of_all() {
    let (now, day) = (at(0), Duration::from_hours(24));
    for old in STRATEGIES {
        for new in STRATEGIES {
            let limiter = Limiter::new(now, suite::quota(old, 4, day));
            limiter.check(now, 1).expect("all of it is free");
            let left = limiter.retune(|| now, suite::quota(new, 2, day)).peek(now).remaining();
            let admitted = (0..10).filter(|_| limiter.check(now, 1).is_ok()).count() as u64;
            assert_eq!(admitted, left, "{old:?} to {new:?}");
        }
    }
}

#[test]
fn a_retune_frees_nothing() {
    let changes = || prop::collection::vec((quotas(), arrivals(8)), 1..6);
    for_each_strategy(
        |quotas| (quotas, changes()),
        |(first, changes)| {
            let mut limiter = Limiter::new(at(START), first);
            let mut now = START;
            for (quota, arrivals) in changes {
                for arrival in arrivals {
                    let old = limiter.quota();
                    let cost;
                    (now, cost) = arrival.after(now, old);
                    now = now.min(END);
                    if arrival.ask == What::Reserve {
                        let _ = limiter.reserve(at(now), cost, at(arrival.latest(now, old)));
                    } else {
                        let _ = limiter.check(at(now), cost);
                    }
                }
                let (old, free) = (limiter.quota(), limiter.peek(at(now)).remaining());
                let before = state(limiter.peek(at(now)));
                limiter = limiter.retune(|| at(now), old);
                prop_assert_eq!(state(limiter.peek(at(now))), before, "R1: an equal quota touches nothing");

                limiter = limiter.retune(|| at(now), quota);
                let standing = limiter.peek(at(now));
                let still_free = standing.remaining();
                prop_assert!(still_free <= free, "R2: {free} were free of {old:?}, {still_free} of {quota:?}");
                // Whole requests are compared: before the change less than one more was free.
                let share = (u128::from(free) + 1) * u128::from(at_once(quota));
                prop_assert!(
                    u128::from(still_free) * u128::from(at_once(old)) <= share,
                    "R2: {free} were free of {old:?}, {still_free} of {quota:?}"
                );
                // And nothing is lost for ever.
                if standing.reset_after().as_nanos() < 1 << 60 {
                    let idle = at(now).saturating_add(standing.reset_after());
                    prop_assert_eq!(limiter.peek(idle).remaining(), at_once(quota));
                }
            }
            Ok(())
        },
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_024, failure_persistence: None, ..ProptestConfig::default() })]

    /// R3: under overload, what is admitted stays within the integral of the limit and the first burst. A fixed window
    /// gives its requests at once when it begins; all others as time goes by.
    #[test]
    fn overload_and_changes_admit_no_more_than_the_integral(
        burst in 1..50_u64,
        changes in prop::collection::vec(
            (1..1_000_u64, prop::option::of(1..2_000_u64), prop::sample::select(STRATEGIES.to_vec()), 1..3_000_u64),
            1..40,
        ),
    ) {
        const SECOND: u64 = 1_000_000_000;
        const STEP: u64 = 1_000_000;
        let mut limiter = Limiter::new(at(START), suite::quota(Counting::TokenBucket, burst, Duration::from_secs(1)));
        // In thousand millionths of a request.
        let (mut now, mut admitted, mut integral) = (START, 0_u64, u128::from(SECOND) * u128::from(burst));
        for (requests, burst, counting, millis) in changes {
            let quota = match burst {
                Some(burst) if counting == Counting::TokenBucket || counting == Counting::Gcra => {
                    Quota::new(counting, requests, Duration::from_secs(1), Some(burst)).expect("valid")
                }
                _ => suite::quota(counting, requests, Duration::from_secs(1)),
            };
            limiter = limiter.retune(|| at(now), quota);
            // A bucket may be early by less than two nanoseconds.
            integral += 2 * u128::from(requests);
            for _ in 0..=millis {
                while limiter.check(at(now), 1).is_ok() {
                    admitted += 1;
                }
                prop_assert!(u128::from(admitted) * u128::from(SECOND) <= integral, "{admitted} by {counting:?}");
                let begins = now / SECOND != (now + STEP) / SECOND;
                now += STEP;
                integral += match counting {
                    Counting::FixedWindow if begins => u128::from(requests) * u128::from(SECOND),
                    Counting::FixedWindow => 0,
                    _ => u128::from(requests) * u128::from(STEP),
                };
            }
        }
    }

    /// However it was changed, a limit goes on at the new rate: nobody waits longer than what is owed takes to flow in.
    #[test]
    fn a_used_up_limit_goes_on_at_the_new_rate((old, new) in changes(), from in 1..200_u64, to in 1..200_u64, nanos in 0..2_000_000_000_u64) {
        let second = Duration::from_secs(1);
        let now = at(START + nanos);
        let limiter = Limiter::new(at(START), suite::quota(old, from, second));
        while limiter.check(now, 1).is_ok() {}
        let quota = suite::quota(new, to, second);
        let limiter = limiter.retune(|| now, quota);
        prop_assert!(limiter.check(now, 1).is_err(), "nothing was free");
        let wait = limiter.peek(now).retry_after(1).expect("one request fits any burst");
        let longest = match new {
            Counting::FixedWindow | Counting::SlidingWindowLog => second,
            Counting::SlidingWindowCounter => 2 * second,
            // The interval, rounded up.
            _ => second / u32::try_from(to).expect("small") + Duration::from_nanos(2),
        };
        prop_assert!(wait <= longest, "{wait:?}");
        prop_assert!(limiter.check(now.saturating_add(wait), 1).is_ok());
    }
}
