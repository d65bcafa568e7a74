//! Exact counts with real threads: `cargo test -p weir-core --release --test stress`
#![cfg(not(loom))]

use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms, Time, check_all};

const START: Time = Time::from_nanos(1_700_000_000_000_000_000);
const STRATEGIES: [Strategy; 3] = [Strategy::FixedWindow, Strategy::TokenBucket, Strategy::Gcra];
const THREADS: [usize; 3] = [2, 8, 32];

/// `burst` at once by any strategy, and then `burst` a second.
fn quota(strategy: Strategy, burst: u64) -> Quota {
    let explicit = (strategy == Strategy::Gcra).then_some(burst);
    Quota::new(strategy, burst, Duration::from_secs(1), explicit).expect("valid")
}

/// Runs `offer` until `offered` requests were offered in all; how many it let through.
fn offer(threads: usize, offered: u64, offer: impl Fn() -> bool + Sync) -> u64 {
    let (next, admitted, barrier) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(threads));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                while next.fetch_add(1, Ordering::Relaxed) < offered {
                    admitted.fetch_add(u64::from(offer()), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

#[test]
fn ten_thousand_at_four_times_the_limit_not_one_too_many() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 2_500));
            let admitted = offer(threads, 10_000, || limiter.check(START, 1).is_ok());
            assert_eq!(admitted, 2_500, "{strategy:?}, {threads} threads");
        }
    }
}

#[test]
fn while_time_goes_on_exactly_what_the_rate_gives() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 1_000));
            // Each request takes a quarter of a millisecond on a clock of its own: 4 times the limit, 5 seconds.
            let clock = AtomicU64::new(START.as_nanos());
            let admitted = offer(threads, 20_000, || {
                limiter.check(Time::from_nanos(clock.fetch_add(250_000, Ordering::Relaxed)), 1).is_ok()
            });
            // Readings come out of order, so a few may find less than there was in their own time; never more.
            let most = match strategy {
                Strategy::FixedWindow => 5_000,
                _ => 1_000 + 4_999,
            };
            assert!(admitted <= most, "{strategy:?}, {threads} threads: {admitted} > {most}");
            assert!(admitted >= most * 9 / 10, "{strategy:?}, {threads} threads: {admitted} of {most}");
        }
    }
}

#[test]
fn several_limits_all_or_none() {
    for threads in THREADS {
        let limiters = [Limiter::new(START, quota(Strategy::TokenBucket, 5_000)), {
            Limiter::new(START, quota(Strategy::FixedWindow, 1_234))
        }];
        let admitted = offer(threads, 10_000, || check_all(&limiters, || START, 1).is_ok());
        assert_eq!(admitted, 1_234, "{threads} threads");
        assert_eq!(limiters[0].peek(START).remaining(), 5_000 - 1_234, "refusals charged nothing");
    }
}

#[test]
fn retunes_under_load_give_nothing() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 1_000));
        let (done, decided) = (AtomicBool::new(false), AtomicU64::new(0));
        let admitted = thread::scope(|scope| {
            let retunes = scope.spawn(|| {
                // The deciders keep the first handle and follow from it, so the number of rounds is what they walk.
                (0..200).fold(limiter.clone(), |newest, round| {
                    while !done.load(Ordering::Relaxed) && decided.load(Ordering::Relaxed) < round * 50 {
                        thread::yield_now();
                    }
                    newest.retune(|| START, quota(strategy, 1_000 + round % 7 * 500))
                })
            });
            let admitted = offer(8, 10_000, || {
                decided.fetch_add(1, Ordering::Relaxed);
                limiter.check(START, 1).is_ok()
            });
            done.store(true, Ordering::Relaxed);
            let newest = retunes.join().expect("no panic");
            admitted + offer(2, 5_000, || newest.check(START, 1).is_ok())
        });
        assert!(admitted <= 1_000, "{strategy:?}: {admitted}");
    }
}

#[test]
fn charges_given_back_are_free_again() {
    for threads in THREADS {
        let limiter = Limiter::new(START, quota(Strategy::TokenBucket, 1_000));
        let kept = offer(threads, 20_000, || match limiter.check(START, 1) {
            Ok(admitted) if admitted.standing.remaining() % 2 == 0 => {
                limiter.refund(admitted.charge, || START);
                false
            }
            decision => decision.is_ok(),
        });
        assert_eq!(kept + limiter.peek(START).remaining(), 1_000, "{threads} threads");
    }
}

#[test]
fn each_key_gets_its_own_and_not_one_more() {
    for threads in THREADS {
        let terms = Terms::new([("limit", quota(Strategy::TokenBucket, 100))]).expect("valid");
        let rule = RuleLimiter::keyed(START, terms, NonZeroUsize::new(8).expect("not zero"));
        let turn = AtomicU64::new(0);
        let admitted = offer(threads, 10_000, || {
            let key = [u8::try_from(turn.fetch_add(1, Ordering::Relaxed) % 10).expect("a digit")];
            rule.charge(|| START, &key, 1).is_ok()
        });
        // Eight keys of their own, two that share the overflow.
        assert_eq!(admitted, 900, "{threads} threads");
        assert_eq!(rule.keys().expect("keyed").tracked, 8);
    }
}

#[test]
fn a_flood_of_keys_stays_within_its_bound() {
    let terms = Terms::new([("limit", quota(Strategy::TokenBucket, 1))]).expect("valid");
    let rule = RuleLimiter::keyed(START, terms, NonZeroUsize::new(50).expect("not zero"));
    let (turn, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let admitted = offer(8, 20_000, || {
        let turn = turn.fetch_add(1, Ordering::Relaxed);
        // A second each thousand keys.
        let now = START.saturating_add(Duration::from_millis(turn));
        let admitted = rule.charge(|| now, &turn.to_be_bytes(), 1).is_ok();
        most.fetch_max(rule.keys().expect("keyed").tracked, Ordering::Relaxed);
        admitted
    });
    let keys = rule.keys().expect("keyed");
    assert!(most.into_inner() <= 50);
    assert!(keys.evicted > 0 && keys.overflowed > 0, "{keys:?}");
    // At most 51 counters, one a second each.
    assert!(admitted <= 51 * 21, "{admitted}");
    assert!(admitted >= 20 * 30, "idle keys make room: {admitted}");
}
