//! Decisions use only memory that was allocated when the limit was created. No decision allocates, for a limit or for a
//! known key, with any number of limits in a rule.
#![cfg(not(loom))]

mod suite;

use std::{
    alloc::System,
    hint::black_box,
    num::{NonZeroU64, NonZeroUsize},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use weir_core::{Demand, InFlight, Limiter, RuleLimiter, Strategy, Terms, Time, charge_limiters, charge_rules};

use self::suite::{START, STRATEGIES};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A lock for one test at a time, because the allocations of all threads are counted.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the number of allocations in `work`. Threads of the test harness sometimes allocate, so this is the minimum
/// of some rounds.
fn allocations(mut work: impl FnMut()) -> usize {
    let rounds = (0..10).map(|_| {
        let region = Region::new(ALLOCATOR);
        work();
        let change = region.change();
        change.allocations + change.reallocations
    });
    rounds.min().expect("ten rounds")
}

/// Returns times at which some requests are admitted and others are refused.
fn times() -> impl Iterator<Item = Time> {
    (0..100).map(|turn| START.saturating_add(Duration::from_millis(turn * 20)))
}

#[test]
fn what_allocates_is_counted() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1);
}

#[test]
fn no_decision_on_a_limit_allocates() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for strategy in STRATEGIES {
        let quota = suite::quota(strategy, 10, Duration::from_secs(1));
        let limits = [Limiter::new(START, quota), Limiter::new(START, quota)];
        let decide = || {
            for now in times() {
                let _ = black_box(limits[0].peek(now).remaining());
                let _ = black_box(limits[0].reserve(now, 1, now.saturating_add(Duration::from_millis(50))));
                if let Ok(admitted) = limits[0].charge(now, 1) {
                    limits[0].refund(admitted.charge, || now);
                }
                let _ = black_box(limits[0].charge(now, 2).map_err(|refused| refused.retry_after()));
                let _ = black_box(charge_limiters(&limits, || now, 1));
            }
        };
        assert_eq!(allocations(decide), 0, "{strategy:?}");
    }
}

fn rules(strategy: Strategy, limits: &[&'static str]) -> [RuleLimiter; 2] {
    let quota = suite::quota(strategy, 10, Duration::from_secs(1));
    let terms = || Terms::new(limits.iter().map(|&name| (name, quota))).expect("valid");
    [
        RuleLimiter::keyed(START, terms(), NonZeroUsize::new(100).expect("not zero")),
        RuleLimiter::unkeyed(START, terms()),
    ]
}

#[test]
fn no_decision_on_a_known_key_allocates() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for strategy in STRATEGIES {
        let rules = rules(strategy, &["limit"]);
        let keys: Vec<_> = (0..50).map(|number| format!("client {number}")).collect();
        for key in &keys {
            rules[0].charge(|| START, key.as_bytes(), 1).expect("there is room");
        }
        let mut charged = Vec::with_capacity(2);
        let decide = || {
            for (now, key) in times().zip(keys.iter().cycle()) {
                for rule in &rules {
                    let _ = black_box(rule.peek(now, key.as_bytes(), 1));
                    if let Ok(admitted) = rule.charge(|| now, key.as_bytes(), 1) {
                        rule.refund(key.as_bytes(), admitted.charge, || now);
                    }
                    let _ = black_box(rule.charge(|| now, key.as_bytes(), 11));
                }
                let demands = [(&rules[0], key.as_bytes()), (&rules[1], &[])];
                let demands = demands.map(|(rule, key)| Demand { rule, key, cost: 1, latest: None });
                let _ = black_box(charge_rules(demands.into_iter(), || now, &mut charged));
            }
        };
        assert_eq!(allocations(decide), 0, "{strategy:?}");
    }
}

#[test]
fn no_decision_on_several_limits_allocates() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for strategy in STRATEGIES {
        for names in [&["one", "two"][..], &["1", "2", "3", "4", "5", "6", "7", "8"]] {
            for rule in rules(strategy, names) {
                rule.charge(|| START, b"ann", 1).expect("there is room");
                let decide = || {
                    for now in times() {
                        if let Ok(admitted) = black_box(rule.charge(|| now, b"ann", 1)) {
                            rule.refund(b"ann", admitted.charge, || now);
                        }
                        let _ = black_box(rule.charge(|| now, b"ann", 1));
                        let _ = black_box(rule.charge_ahead(
                            || now,
                            b"ann",
                            1,
                            now.saturating_add(Duration::from_millis(50)),
                        ));
                    }
                    assert!(black_box(rule.charge(|| START, b"ann", 12)).is_err());
                };
                assert_eq!(allocations(decide), 0, "{strategy:?}, {} limits", names.len());
            }
        }
    }
}

#[test]
fn no_permit_allocates() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let in_flight = InFlight::new(NonZeroU64::MIN);
    let acquire = || {
        let permit = in_flight.acquire(1).expect("no request is in flight");
        assert!(in_flight.acquire(1).is_err());
        drop(permit);
    };
    assert_eq!(allocations(acquire), 0);
}
