//! Limiters against a plain sequential model, decision by decision, on random arrivals, costs and retunes.
//!
//! The model keeps exact fractions: time in nanoseconds times `requests`, a request being one period of that. The
//! limiter may be early by less than two nanoseconds where the emission interval is not a whole number of them, and
//! never late.
#![cfg(not(loom))]

use std::time::Duration;

use proptest::prelude::*;
use weir_core::{Limiter, Quota, Strategy as Counting, Time};

const START: u64 = 1_700_000_000_123_456_789;

#[derive(Clone, Copy, Debug)]
struct Model {
    quota: Quota,
    /// Buckets: the theoretical arrival time, in nanoseconds times requests. Windows: requests admitted in `window`.
    used: u128,
    window: u128,
}

impl Model {
    fn new(quota: Quota) -> Self {
        Self { quota, used: 0, window: 0 }
    }

    fn period(&self) -> u128 {
        self.quota.period().as_nanos()
    }

    fn scaled(&self, now: u64) -> u128 {
        u128::from(now) * u128::from(self.quota.requests())
    }

    /// The state after a charge, and whether it is within the quota.
    fn charge(&self, now: u64, cost: u64) -> (Self, bool) {
        let (cost, burst) = (u128::from(cost), u128::from(self.quota.burst()));
        if self.quota.strategy() == Counting::FixedWindow {
            let window = u128::from(now) / self.period();
            let used = if window == self.window { self.used } else { 0 } + cost;
            return (Self { used, window, ..*self }, used <= burst);
        }
        let used = self.used.max(self.scaled(now)) + cost * self.period();
        (Self { used, ..*self }, used <= self.scaled(now) + burst * self.period())
    }
}

fn quotas() -> impl Strategy<Value = Quota> {
    let counting = prop::sample::select(vec![Counting::FixedWindow, Counting::TokenBucket, Counting::Gcra]);
    let numbers = prop_oneof![
        Just((3, 1_000)),
        Just((7, 86_400_000)),
        Just((600_000_000, 1_000)),
        Just((1_000_000_000, 1_000)),
        Just((1_000_000, 1)),
        (1..=1_000_u64, 1..=10_000_u64),
        (1..=1_000_000_u64, 1..=86_400_000_u64),
    ];
    let burst = prop::option::of(prop_oneof![1..=20_u64, 1..=1_000_000_000_u64]);
    (counting, numbers, burst).prop_map(|(counting, (requests, millis), burst)| {
        let burst = burst.filter(|_| counting != Counting::FixedWindow);
        Quota::new(counting, requests, Duration::from_millis(millis), burst).expect("within the bounds of the API")
    })
}

/// How long after the last arrival, as a share of what `cost` takes to flow in, and which share of the burst it costs.
fn arrivals() -> impl Strategy<Value = Vec<(u32, u32, i8)>> {
    prop::collection::vec((0..2_000_u32, prop_oneof![3 => Just(0_u32), 1 => 0..1_200_u32], -1..=1_i8), 1..60)
}

fn arrive(quota: Quota, now: u64, (wait, share, nudge): (u32, u32, i8)) -> (u64, u64) {
    let cost = (u128::from(quota.burst()) * u128::from(share) / 1_000).max(1);
    let flow = cost * quota.period().as_nanos() / u128::from(quota.requests());
    // Often just at the edge: waits cluster at whole intervals, a nanosecond to either side.
    let wait = if wait % 3 == 0 { flow } else { flow * u128::from(wait) / 1_000 };
    let wait = u64::try_from(wait).unwrap_or(u64::MAX).min(1 << 58).saturating_add_signed(i64::from(nudge));
    (now.saturating_add(wait), u64::try_from(cost).expect("a share of the burst"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_decision_is_the_models(quota in quotas(), arrivals in arrivals()) {
        let limiter = Limiter::new(Time::from_nanos(START), quota);
        let mut model = Model::new(quota);
        let mut now = START;
        let exact = quota.strategy() == Counting::FixedWindow || quota.period().as_nanos() % u128::from(quota.requests()) == 0;
        // A unit of a burst that takes longer than 146 years to flow in is coarser.
        let refill = u128::from(quota.burst()) * quota.period().as_nanos() / u128::from(quota.requests());
        let early = 2 + u64::try_from(refill >> 61).expect("bounds of the API");
        for arrival in arrivals {
            let cost;
            (now, cost) = arrive(quota, now, arrival);
            if now > START + (1 << 61) {
                break;
            }
            let admitted = limiter.check(Time::from_nanos(now), cost).is_ok();
            let (after, within) = model.charge(now, cost);
            if within {
                prop_assert!(admitted, "late at {now}");
            }
            if admitted {
                prop_assert!(within || !exact && model.charge(now + early, cost).1, "too early at {now}");
                model = after;
            }
        }
    }

    #[test]
    fn whoever_obeys_is_admitted_and_not_a_moment_later_than_needed(quota in quotas(), arrivals in arrivals()) {
        let limiter = Limiter::new(Time::from_nanos(START), quota);
        let mut now = START;
        for arrival in arrivals {
            let cost;
            (now, cost) = arrive(quota, now, (arrival.0 / 4, arrival.1, arrival.2));
            if now > START + (1 << 61) {
                break;
            }
            let at = Time::from_nanos(now);
            if let Err(refused) = limiter.check(at, cost) {
                let Some(wait) = refused.retry_after() else {
                    prop_assert!(cost > quota.burst());
                    continue;
                };
                prop_assert!(wait > Duration::ZERO);
                if wait.as_nanos() > 1 << 61 {
                    break; // beyond the 146 years of a limiter
                }
                let just_before = at.saturating_add(wait).saturating_sub(Duration::from_nanos(1));
                prop_assert!(limiter.check(just_before, cost).is_err(), "{wait:?} is too long");
                prop_assert!(limiter.check(at.saturating_add(wait), cost).is_ok(), "{wait:?} is too short");
                now = at.saturating_add(wait).as_nanos();
            }
        }
    }

    #[test]
    fn a_refusal_and_a_refund_leave_no_trace(quota in quotas(), arrivals in arrivals()) {
        let limiter = Limiter::new(Time::from_nanos(START), quota);
        let mut now = START;
        for arrival in arrivals {
            let cost;
            (now, cost) = arrive(quota, now, arrival);
            let at = Time::from_nanos(now);
            let state = |standing: weir_core::Standing| (standing.remaining(), standing.reset_after());
            let before = state(limiter.peek(at));
            match limiter.check(at, cost) {
                Err(_) => prop_assert_eq!(state(limiter.peek(at)), before),
                Ok(admitted) if arrival.0 % 2 == 0 => {
                    limiter.refund(admitted.charge, || at);
                    prop_assert_eq!(state(limiter.peek(at)), before);
                }
                Ok(_) => {}
            }
        }
    }

    /// R2: requests and share that are free do not grow by a change. R1: an equal quota changes nothing.
    #[test]
    fn a_retune_frees_nothing(first in quotas(), changes in prop::collection::vec((quotas(), arrivals()), 1..6)) {
        let mut limiter = Limiter::new(Time::from_nanos(START), first);
        let mut now = START;
        for (quota, arrivals) in changes {
            for arrival in arrivals.into_iter().take(8) {
                let cost;
                (now, cost) = arrive(limiter.quota(), now, arrival);
                now = now.min(START + (1 << 60));
                let _ = limiter.check(Time::from_nanos(now), cost);
            }
            let at = Time::from_nanos(now);
            let (old, free) = (limiter.quota(), limiter.peek(at).remaining());
            limiter = limiter.retune(|| at, quota);
            let still_free = limiter.peek(at).remaining();
            prop_assert!(still_free <= free);
            // Whole requests are compared: before the change less than one more was free.
            let share = (u128::from(free) + 1) * u128::from(quota.burst());
            prop_assert!(u128::from(still_free) * u128::from(old.burst()) <= share);
            let reset = limiter.peek(at).reset_after();
            limiter = limiter.retune(|| at, quota);
            prop_assert_eq!((limiter.peek(at).remaining(), limiter.peek(at).reset_after()), (still_free, reset));
        }
    }

    /// R3: under overload, what is admitted stays within the integral of the limit and the first burst.
    #[test]
    fn overload_and_changes_admit_no_more_than_the_integral(
        burst in 1..50_u64,
        changes in prop::collection::vec((1..1_000_u64, prop::option::of(1..2_000_u64), any::<bool>(), 1..3_000_u64), 1..40),
    ) {
        let bucket = |requests, burst, strict| {
            let counting = if strict { Counting::Gcra } else { Counting::TokenBucket };
            Quota::new(counting, requests, Duration::from_secs(1), burst).expect("valid")
        };
        let mut limiter = Limiter::new(Time::from_nanos(START), bucket(10, Some(burst), false));
        let (mut now, mut admitted, mut integral) = (START, 0_u64, 10_u128.pow(9) * u128::from(burst));
        for (requests, burst, strict, millis) in changes {
            limiter = limiter.retune(|| Time::from_nanos(now), bucket(requests, burst, strict));
            for _ in 0..=millis {
                while limiter.check(Time::from_nanos(now), 1).is_ok() {
                    admitted += 1;
                }
                prop_assert!(u128::from(admitted) * 10_u128.pow(9) <= integral);
                now += 1_000_000;
                integral += u128::from(requests) * 1_000_000;
            }
        }
    }

    #[test]
    fn no_time_and_no_number_makes_it_panic(
        quota in quotas(),
        calls in prop::collection::vec((any::<u64>(), any::<u64>(), 0..4_u8), 1..40),
        base in any::<u64>(),
        other in quotas(),
    ) {
        let mut limiter = Limiter::new(Time::from_nanos(base), quota);
        for (now, cost, what) in calls {
            let at = Time::from_nanos(now);
            let cost = if what % 2 == 0 { cost } else { 1 };
            match limiter.check(at, cost) {
                Ok(admitted) => {
                    prop_assert!(cost <= limiter.quota().burst());
                    if what == 1 {
                        limiter.refund(admitted.charge, || Time::from_nanos(now.wrapping_mul(3)));
                    }
                }
                Err(refused) => prop_assert_eq!(refused.retry_after().is_none(), cost > limiter.quota().burst()),
            }
            prop_assert!(limiter.peek(at).remaining() <= limiter.quota().burst());
            let _ = limiter.peek(at).reset_after();
            if what == 3 {
                limiter = limiter.retune(|| at, if limiter.quota() == quota { other } else { quota });
            }
        }
    }
}
