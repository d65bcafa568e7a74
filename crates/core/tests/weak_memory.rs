//! Exact counts of a few threads and a few requests, for all strategies. These tests are small enough for miri, which
//! lets each load return any value that the memory model allows, and switches threads anywhere (`cargo xtask miri`).
//! Loom explores every interleaving, but only of smaller programs.
#![cfg(not(loom))]

mod suite;

use std::{
    num::NonZeroU64,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use weir_core::{Charge, InFlight, Limiter, Quota, RuleLimiter, Strategy, charge_limiters};

use self::suite::{SECOND, START, STRATEGIES, at_once, drain, keys, terms};

const THREADS: u64 = 3;

/// Returns a quota of `most` requests at the same time, and then `most` per second.
fn quota(strategy: Strategy, most: u64) -> Quota {
    suite::quota(strategy, most, SECOND)
}

/// Calls `offer` this many times in each thread, each time with another number. Returns the number of admissions.
fn offer(each: u64, offer: impl Fn(u64) -> bool + Sync) -> u64 {
    let admitted = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (offer, admitted) = (&offer, &admitted);
            scope.spawn(move || {
                for turn in 0..each {
                    admitted.fetch_add(u64::from(offer(thread * each + turn)), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

#[test]
fn not_one_too_many_and_none_lost() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 12));
        let admitted = offer(6, |_| limiter.charge(START, 1).is_ok());
        // A log possibly refused a request because a thread was preempted before it wrote its time.
        let rest = drain(&limiter, START);
        assert_eq!(admitted + rest, at_once(strategy, 12), "{strategy:?}");
    }
}

/// A limit that uses leases when its threads contend.
#[test]
fn a_hot_limit_is_exact() {
    let limiter = Limiter::new(START, quota(Strategy::TokenBucket, 256));
    let admitted = offer(100, |_| limiter.charge(START, 1).is_ok());
    let rest = drain(&limiter, START);
    assert_eq!(admitted + rest, 256);
}

#[test]
fn no_place_is_promised_twice() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 2));
        let places = std::sync::Mutex::new(Vec::new());
        offer(2, |_| {
            let reserved = limiter.reserve(START, 1, START.saturating_add(5 * SECOND));
            reserved.is_ok_and(|reserved| {
                places.lock().expect("no panic").push(reserved.at);
                true
            })
        });
        let mut places = places.into_inner().expect("no panic");
        places.sort_unstable();
        assert!(!places.is_empty(), "{strategy:?}");
        let apart = places.windows(3).all(|three| three[2] >= three[0].saturating_add(SECOND / 2));
        assert!(apart, "{strategy:?}: {places:?}");
    }
}

#[test]
fn what_is_given_back_is_free_again() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 6));
        let kept = offer(4, |turn| match limiter.charge(START, 1) {
            Ok(admitted) if turn % 2 == 0 => {
                limiter.refund(admitted.charge, || START);
                false
            }
            decision => decision.is_ok(),
        });
        let all = kept + limiter.peek(START).remaining();
        match strategy {
            // A log takes back only the latest charge.
            Strategy::SlidingWindowLog => assert!(all <= 6, "{all}"),
            _ => assert_eq!(all, at_once(strategy, 6), "{strategy:?}"),
        }
    }
}

#[test]
fn a_change_under_load_gives_no_burst() {
    for strategy in STRATEGIES {
        let other = if strategy == Strategy::Gcra { Strategy::SlidingWindowLog } else { Strategy::Gcra };
        let limiter = Limiter::new(START, quota(strategy, 8));
        let admitted = offer(4, |turn| {
            if turn == 5 {
                drop(limiter.retune(|| START, quota(other, 16)).retune(|| START, quota(strategy, 9)));
            }
            limiter.charge(START, 1).is_ok()
        });
        // Windows admit up to the largest limit. Buckets admit only the remaining tokens.
        let most = match strategy {
            Strategy::Gcra => 16,
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 9,
            _ => 8,
        };
        assert!(admitted <= most, "{strategy:?}: {admitted}");
    }
}

#[test]
fn several_limits_all_or_none() {
    let wide = Limiter::new(START, quota(Strategy::TokenBucket, 20));
    let narrow = Limiter::new(START, quota(Strategy::FixedWindow, 4));
    let limits = [wide, narrow];
    let admitted = offer(4, |_| charge_limiters(&limits, || START, 1).is_ok());
    let rest = (0..4).filter(|_| charge_limiters(&limits, || START, 1).is_ok()).count() as u64;
    assert_eq!(admitted + rest, 4);
    assert_eq!(limits[0].peek(START).remaining(), 16, "refusals charged nothing");
}

#[test]
fn each_key_has_its_own_while_keys_come_and_the_terms_change() {
    let terms = |most| terms(quota(Strategy::TokenBucket, most));
    let rule = RuleLimiter::keyed(START, terms(2), keys(4));
    let admitted = offer(6, |turn| {
        if turn == 7 {
            drop(rule.retune(|| START, terms(3), Some(keys(4))));
        }
        rule.charge(|| START, &[b"abc"[usize::try_from(turn % 3).expect("a digit")]], 1).is_ok()
    });
    // Keys that arrived before the change get the requests that were free at that time. Other keys get three.
    assert!((3..=9).contains(&admitted), "{admitted}");
    let rest = (0..9).filter(|turn| rule.charge(|| START, &[b"abc"[turn % 3]], 1).is_ok()).count() as u64;
    assert!((6..=9).contains(&(admitted + rest)), "{admitted} and {rest}");
}

#[test]
fn permits_are_never_more_than_the_limit() {
    let in_flight = InFlight::new(NonZeroU64::new(2).expect("not zero"));
    let inside = AtomicU64::new(0);
    offer(6, |_| {
        in_flight.acquire(1).is_ok_and(|_permit| {
            assert!(inside.fetch_add(1, Ordering::SeqCst) < 2);
            inside.fetch_sub(1, Ordering::SeqCst);
            true
        })
    });
    assert_eq!(in_flight.in_use(), 0);
}

/// A charge moves with its request to another thread.
#[test]
fn charges_travel() {
    fn is_send<T: Send>(_: &T) {}
    let limiter = Limiter::new(START, quota(Strategy::TokenBucket, 1));
    let charge: Charge = limiter.charge(START, 1).expect("all is free").charge;
    is_send(&charge);
    let there = limiter.clone();
    thread::spawn(move || there.refund(charge, || START)).join().expect("no panic");
    assert_eq!(limiter.peek(START).remaining(), 1);
}
