//! Exact counts with real threads on a table of keys: `cargo test -p weir-core --release --test stress_keyed`
#![cfg(not(loom))]

mod suite;

use std::{
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use weir_core::{RuleLimiter, Strategy, Terms};

use self::suite::{SECOND, START, STRATEGIES, at_once, keys, quota};

const THREADS: [u64; 3] = [2, 8, 32];

fn terms(strategy: Strategy, most: u64) -> Terms {
    suite::terms(quota(strategy, most, SECOND))
}

fn keyed(strategy: Strategy, most: u64, max_keys: usize) -> RuleLimiter {
    RuleLimiter::keyed(START, terms(strategy, most), keys(max_keys))
}

/// Calls `each` on all threads at the same time, with the number of the thread.
fn together(threads: u64, each: impl Fn(u64) + Sync) {
    let barrier = Barrier::new(usize::try_from(threads).expect("few"));
    thread::scope(|scope| {
        for thread in 0..threads {
            let (each, barrier) = (&each, &barrier);
            scope.spawn(move || {
                barrier.wait();
                each(thread);
            });
        }
    });
}

/// Returns pseudo-random numbers, which are different for each seed.
fn numbers(seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 16
    })
}

/// There are more keys than cells. Many keys are idle at any time, because their charges were given back, so cells
/// often change their keys. The time does not advance, so nothing flows in. The races are rare: one round over all
/// strategies detects a missing fence with a probability of only one tenth.
#[test]
fn cells_that_change_hands_are_not_charged_twice() {
    const KEYS: u64 = 60;
    const ROOM: usize = 40;
    const ROUNDS: usize = if cfg!(debug_assertions) { 1 } else { 20 };
    for strategy in STRATEGIES {
        for threads in THREADS.into_iter().cycle().take(ROUNDS * THREADS.len()) {
            let rule = keyed(strategy, 4, ROOM);
            let kept: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            together(threads, |thread| {
                for number in numbers(thread + 1).take(usize::try_from(20_000 / threads).expect("few")) {
                    let key = number % KEYS;
                    let Ok(admitted) = rule.charge(|| START, &key.to_be_bytes(), 1) else { continue };
                    if (number / KEYS).is_multiple_of(8) {
                        kept[usize::try_from(key).expect("few")].fetch_add(1, Ordering::Relaxed);
                    } else {
                        rule.refund(&key.to_be_bytes(), admitted.charge, || START);
                    }
                }
            });
            let kept: Vec<_> = kept.into_iter().map(AtomicU64::into_inner).collect();
            let (all, most) = (kept.iter().sum::<u64>(), at_once(strategy, 4));
            let stats = rule.keys().expect("keyed");
            assert!(all >= KEYS * most * 8 / 10, "{strategy:?}, {threads} threads: {all}");
            // A key gets its limit in a cell or in the overflow, but not in both.
            assert!(kept.iter().all(|&kept| kept <= most), "{strategy:?}, {threads} threads: {kept:?}");
            assert!(stats.tracked <= ROOM as u64 && stats.evicted > 0, "{strategy:?}, {threads} threads: {stats:?}");
        }
    }
}

/// There are sixteen times as many keys as cells. All threads charge them at one time, while retunes move all keys.
#[test]
fn every_key_of_a_crowd_gets_its_own_and_not_one_more() {
    const KEYS: u64 = 1_600;
    for strategy in STRATEGIES {
        for threads in THREADS {
            let rule = keyed(strategy, 3, 100);
            let admitted: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            together(threads, |thread| {
                for turn in 0..6 * KEYS / threads + KEYS {
                    let key = (turn * 7 + thread * 13) % KEYS;
                    if rule.charge(|| START, &key.to_be_bytes(), 1).is_ok() {
                        admitted[usize::try_from(key).expect("small")].fetch_add(1, Ordering::Relaxed);
                    }
                    if thread == 0 && turn % 900 == 899 {
                        let size = 100 + usize::try_from(turn / 900 % 3).expect("small");
                        let _newest = rule.retune(|| START, terms(strategy, 3), Some(keys(size)));
                    }
                }
            });
            let admitted: Vec<_> = admitted.into_iter().map(AtomicU64::into_inner).collect();
            let (all, most) = (admitted.iter().sum::<u64>(), at_once(strategy, 3));
            assert!(admitted.iter().all(|&admitted| admitted <= most), "{strategy:?}, {threads} threads: {admitted:?}");
            assert!(all >= KEYS * most * 99 / 100, "{strategy:?}, {threads} threads: {all}");
        }
    }
}

/// A large table with many regions: each key gets exactly its limit, with any threads.
#[test]
fn every_key_of_many_gets_exactly_its_own() {
    const KEYS: u64 = 20_000;
    for threads in THREADS {
        let rule = keyed(Strategy::TokenBucket, 2, usize::try_from(KEYS).expect("small"));
        let admitted: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
        together(threads, |thread| {
            for turn in 0..4 * KEYS / threads + KEYS {
                let key = (turn * 7 + thread * 13) % KEYS;
                if rule.charge(|| START, &key.to_be_bytes(), 1).is_ok() {
                    admitted[usize::try_from(key).expect("small")].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        assert!(admitted.into_iter().all(|admitted| admitted.into_inner() == 2), "{threads} threads");
        let stats = rule.keys().expect("keyed");
        assert_eq!((stats.tracked, stats.evicted, stats.overflowed), (KEYS, 0, 0), "{threads} threads");
    }
}

/// The capacity and the terms change while all keys are charged through the first handle.
#[test]
fn retunes_under_load_lose_no_charge_and_give_no_burst() {
    for strategy in STRATEGIES {
        // Equal terms in a table of another size keep all counts, too.
        assert!(
            retune_under_load(strategy, 10).iter().all(|&admitted| admitted == at_once(strategy, 10)),
            "{strategy:?}"
        );
        assert!(retune_under_load(strategy, 20).iter().all(|&admitted| admitted <= largest(strategy)), "{strategy:?}");
    }
}

/// Returns the largest number of admissions at one time while limits of 10 and 20 alternate. Windows admit the larger
/// limit. Buckets admit their remaining tokens plus their debt.
fn largest(strategy: Strategy) -> u64 {
    match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 20,
        Strategy::TokenBucketWithDebt => 15,
        _ => at_once(strategy, 10),
    }
}

/// Returns the total admissions of each key at one time, while its limit changes between 10 and `other`.
fn retune_under_load(strategy: Strategy, other: u64) -> Vec<u64> {
    const KEYS: u64 = 3_000;
    let rule = keyed(strategy, 10, 3_000);
    let admitted: Vec<_> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let take = |key: u64, rule: &RuleLimiter| {
        let taken = u64::from(rule.charge(|| START, &key.to_be_bytes(), 1).is_ok());
        admitted[usize::try_from(key).expect("small")].fetch_add(taken, Ordering::Relaxed);
        taken
    };
    // All keys have a cell before the first change.
    (0..KEYS).for_each(|key| assert_eq!(take(key, &rule), 1));
    let done = AtomicBool::new(false);
    let newest = thread::scope(|scope| {
        let retunes = scope.spawn(|| {
            let retune = |rule: RuleLimiter, round: usize| {
                let most = if round.is_multiple_of(2) { 10 } else { other };
                rule.retune(|| START, terms(strategy, most), Some(keys(3_000 + round)))
            };
            let newest = (1..=6).fold(rule.clone(), retune);
            done.store(true, Ordering::Relaxed);
            newest
        });
        for thread in 0..3 {
            let (rule, take, done) = (&rule, &take, &done);
            scope.spawn(move || {
                for number in numbers(thread + 1) {
                    take(number % KEYS, rule);
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        retunes.join().expect("no panic")
    });
    for key in 0..KEYS {
        while take(key, &newest) == 1 {}
    }
    let stats = newest.keys().expect("keyed");
    assert_eq!((stats.tracked, stats.overflowed), (KEYS, 0), "{strategy:?}");
    admitted.into_iter().map(AtomicU64::into_inner).collect()
}
