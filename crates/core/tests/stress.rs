//! Exact counts with real threads, for all strategies: `cargo test -p weir-core --release --test stress`
#![cfg(not(loom))]

mod suite;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    sync::{
        Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use weir_core::{InFlight, InFlightByKey, Limiter, RuleLimiter, Strategy, charge_limiters};

use self::suite::{SECOND, START, STRATEGIES, after, at_once, is_window, terms};

const THREADS: [usize; 3] = [2, 8, 32];

/// Returns a quota of `most` requests at the same time, and then `most` per second.
fn quota(strategy: Strategy, most: u64) -> weir_core::Quota {
    suite::quota(strategy, most, SECOND)
}

/// Runs `offer` until `offered` requests were offered in total. Returns the number of admissions.
fn offer(threads: usize, offered: u64, offer: impl Fn(u64) -> u64 + Sync) -> u64 {
    let (next, admitted, barrier) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(threads));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= offered {
                        return;
                    }
                    admitted.fetch_add(offer(turn), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

/// The state can change while a peek reads it.
#[test]
fn a_peek_refuses_no_request_that_would_be_admitted() {
    for strategy in STRATEGIES {
        let most = at_once(strategy, 50_000);
        let limiter = Limiter::new(START, quota(strategy, 50_000));
        thread::scope(|scope| {
            let charging = scope.spawn(|| (1..most).all(|_| limiter.charge(START, 1).is_ok()));
            while !charging.is_finished() {
                assert!(limiter.peek(START).remaining() > 0, "{strategy:?}");
            }
            assert_eq!(charging.join().ok(), Some(true), "{strategy:?}");
        });
    }
}

/// Also with fewer requests than threads: no share of a thread is rounded down to zero.
#[test]
fn ten_thousand_at_four_times_the_limit_not_one_too_many() {
    for strategy in STRATEGIES {
        for (threads, most) in THREADS.into_iter().flat_map(|threads| [1, 5, 2_500].map(|most| (threads, most))) {
            let limiter = Limiter::new(START, quota(strategy, most));
            let admitted = offer(threads, 10_000, |_| u64::from(limiter.charge(START, 1).is_ok()));
            assert_eq!(admitted, at_once(strategy, most), "{strategy:?}, {threads} threads");
        }
    }
}

/// A known mistake: one atomic contains the level, and another atomic contains the time of the last refill. Between the
/// two updates, other threads refill twice (too many requests are admitted) or overwrite each other's refill (tokens are
/// lost).
#[test]
fn each_refill_is_admitted_once() {
    const ROUNDS: u32 = 100;
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 400));
        let (barrier, admitted) = (Barrier::new(8), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        // Two seconds later, everything that was used before is free again.
                        let now = after(2 * round * SECOND);
                        barrier.wait();
                        for _ in 0..200 {
                            admitted.fetch_add(u64::from(limiter.charge(now, 1).is_ok()), Ordering::Relaxed);
                        }
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), u64::from(ROUNDS) * at_once(strategy, 400), "{strategy:?}");
    }
}

#[test]
fn costs_add_up_to_the_limit() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 5_000));
            let charge = |cost| if limiter.charge(START, cost).is_ok() { cost } else { 0 };
            let admitted = offer(threads, 10_000, |turn| charge(1 + turn % 7));
            // Requests of cost 1 take the requests that the larger costs left.
            let rest = offer(threads, 100, |_| charge(1));
            match strategy {
                Strategy::LeakyBucket => assert!((1..=7).contains(&admitted) && rest == 0, "{admitted} + {rest}"),
                _ => assert_eq!(admitted + rest, 5_000, "{strategy:?}, {threads} threads"),
            }
        }
    }
}

#[test]
fn while_time_goes_on_exactly_what_the_rate_gives() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 1_000));
            // Each request takes a quarter of a millisecond on a made-up clock: 4 times the limit, for 5 seconds.
            let admitted = offer(threads, 20_000, |turn| {
                u64::from(
                    limiter.charge(after(Duration::from_micros(250) * u32::try_from(turn).expect("small")), 1).is_ok(),
                )
            });
            // The readings of the clock are out of order. So a few requests find less capacity than there was at their
            // own time, but never more.
            let most = match strategy {
                Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 5_000,
                Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => 1_000 + 4_999,
                Strategy::LeakyBucket => 5_000,
            };
            assert!(admitted <= most, "{strategy:?}, {threads} threads: {admitted} > {most}");
            // While a preempted thread has not written its time, the log refuses requests, and the time of this test
            // advances.
            let least = if strategy == Strategy::SlidingWindowLog { most / 3 } else { most * 8 / 10 };
            assert!(admitted >= least, "{strategy:?}, {threads} threads: {admitted} of {most}");
        }
    }
}

/// Checks that the limiter grants all reservations that the definition admits until the latest time, and that no two
/// reservations have the same time.
#[test]
fn reservations_take_each_place_once() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 100));
            let moments = Mutex::new(Vec::new());
            let admitted = offer(threads, 2_000, |_| {
                limiter.reserve(START, 1, after(4 * SECOND)).map_or(0, |place| {
                    moments.lock().expect("no panic").push(place.at);
                    1
                })
            });
            let expected = match strategy {
                Strategy::SlidingWindowCounter | Strategy::LeakyBucket => 100,
                // At the end of the fourth second, the next batch starts.
                _ => 500,
            };
            if strategy == Strategy::SlidingWindowLog {
                // While a preempted thread has not written its time, other threads cannot compute when that entry
                // opens.
                assert!((100..=expected).contains(&admitted), "{strategy:?}, {threads} threads: {admitted}");
            } else {
                assert_eq!(admitted, expected, "{strategy:?}, {threads} threads");
            }
            let mut moments = moments.into_inner().expect("no panic");
            moments.sort_unstable();
            for hundred_one in moments.windows(101) {
                let apart = hundred_one[100].duration_since(hundred_one[0]);
                assert!(apart >= SECOND / 100, "{strategy:?}, {threads} threads: {apart:?}");
            }
            if strategy == Strategy::LeakyBucket {
                assert!(moments.windows(2).all(|two| two[1].duration_since(two[0]) == SECOND / 100));
            }
        }
    }
}

#[test]
fn several_limits_all_or_none() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiters =
                [Strategy::TokenBucket, Strategy::SlidingWindowLog, strategy, Strategy::SlidingWindowCounter]
                    .map(|each| Limiter::new(START, quota(each, if each == strategy { 1_234 } else { 5_000 })));
            let admitted = offer(threads, 10_000, |_| u64::from(charge_limiters(&limiters, || START, 1).is_ok()));
            // While charges are given back after a lost race, the last requests can be refused. But too many requests
            // are never admitted.
            let most = at_once(strategy, 1_234);
            let rest = offer(1, 1_234, |_| u64::from(charge_limiters(&limiters, || START, 1).is_ok()));
            assert!(admitted <= most, "{strategy:?}, {threads} threads: {admitted}");
            if strategy != Strategy::SlidingWindowLog {
                assert_eq!(admitted + rest, most, "{strategy:?}, {threads} threads");
            }
            for limiter in [&limiters[0], &limiters[3]] {
                let left = limiter.peek(START).remaining();
                let whole = limiter.quota().most();
                assert_eq!(left, whole - admitted - rest, "{strategy:?}, {threads} threads: refusals charged nothing");
            }
        }
    }
}

/// All threads decide through the first handle or through the newest one, while another thread retunes. Each retune
/// adds one request to windows and changes the rate of buckets.
#[test]
fn old_and_new_handles_admit_exactly_the_limit_together() {
    use Strategy::{FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket};
    const RETUNES: u64 = 200;
    for strategy in [TokenBucket, FixedWindow, SlidingWindowCounter, SlidingWindowLog] {
        let burst = if strategy == TokenBucket { Some(1_000) } else { None };
        let quota = |round| weir_core::Quota::new(strategy, 1_000 + round, SECOND, burst).expect("valid");
        let first = Limiter::new(START, quota(0));
        let (newest, decided, done) = (Mutex::new(first.clone()), AtomicU64::new(0), AtomicBool::new(false));
        let handle = || newest.lock().expect("no panic").clone();
        let admitted: u64 = thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=RETUNES {
                    // A slow machine may start the deciding threads late.
                    while decided.load(Ordering::Relaxed) < round {
                        thread::yield_now();
                    }
                    // Some rounds retune through the first handle.
                    let through = if round % 3 == 0 { first.clone() } else { handle() };
                    let retuned = through.retune(|| START, quota(round));
                    *newest.lock().expect("no panic") = retuned;
                }
                done.store(true, Ordering::Relaxed);
            });
            let deciders = [0, 1, 2, 3].map(|thread| {
                let (first, handle, decided, done) = (&first, &handle, &decided, &done);
                scope.spawn(move || {
                    let mut admitted = 0;
                    while !done.load(Ordering::Relaxed) {
                        let limiter = if thread % 2 == 0 { first.clone() } else { handle() };
                        admitted += u64::from(limiter.charge(START, 1).is_ok());
                        decided.fetch_add(1, Ordering::Relaxed);
                        // The requests must last until the last retune.
                        (0..50).for_each(|_| thread::yield_now());
                    }
                    admitted
                })
            });
            deciders.map(|decider| decider.join().expect("no panic")).iter().sum()
        });
        let rest: u64 = [first, handle()]
            .map(|limiter| (0..2_000).map(|_| u64::from(limiter.charge(START, 1).is_ok())).sum())
            .iter()
            .sum();
        let most = if strategy == TokenBucket { 1_000 } else { 1_000 + RETUNES };
        assert_eq!(admitted + rest, most, "{strategy:?}: {admitted} during the retunes");
        assert!(admitted > 0, "{strategy:?}");
    }
}

#[test]
fn retunes_under_load_give_no_burst() {
    for strategy in STRATEGIES {
        for other in STRATEGIES {
            let limiter = Limiter::new(START, quota(strategy, 1_000));
            let (done, decided) = (AtomicBool::new(false), AtomicU64::new(0));
            let admitted = thread::scope(|scope| {
                let retunes = scope.spawn(|| {
                    // The deciding threads keep the first handle.
                    (0..50).fold(limiter.clone(), |newest, round| {
                        while !done.load(Ordering::Relaxed) && decided.load(Ordering::Relaxed) < round * 50 {
                            thread::yield_now();
                        }
                        let next = if round % 2 == 0 { other } else { strategy };
                        newest.retune(|| START, quota(next, 1_000 + round % 7 * 500))
                    })
                });
                let admitted = offer(8, 2_500, |_| {
                    decided.fetch_add(1, Ordering::Relaxed);
                    u64::from(limiter.charge(START, 1).is_ok())
                });
                done.store(true, Ordering::Relaxed);
                let newest = retunes.join().expect("no panic");
                admitted + offer(2, 1_500, |_| u64::from(newest.charge(START, 1).is_ok()))
            });
            // The limits admit at most the largest window, or the first burst without windows, plus the largest debt.
            let burst = if is_window(strategy) || is_window(other) { 4_000 } else { 1_000 };
            let debts = [strategy, other].map(|strategy| quota(strategy, 4_000).debt());
            let most = burst + debts[0].max(debts[1]);
            assert!(admitted <= most, "{strategy:?} and {other:?}: {admitted}");
            assert!(admitted > 0, "{strategy:?} and {other:?}");
        }
    }
}

#[test]
fn charges_given_back_are_free_again() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let limiter = Limiter::new(START, quota(strategy, 1_000));
            let kept = offer(threads, 20_000, |turn| match limiter.charge(START, 1) {
                Ok(admitted) if turn % 2 == 0 => {
                    limiter.refund(admitted.charge, || START);
                    0
                }
                decision => u64::from(decision.is_ok()),
            });
            let left = limiter.peek(START).remaining();
            match strategy {
                // A leaky bucket admits one request. It is kept, or given back and free again.
                Strategy::LeakyBucket => assert_eq!(kept + left, 1, "{threads} threads"),
                // A log takes back only the latest charge.
                Strategy::SlidingWindowLog => assert!(kept + left <= 1_000, "{threads} threads: {kept} + {left}"),
                _ => assert_eq!(kept + left, 1_000, "{strategy:?}, {threads} threads"),
            }
        }
    }
}

#[test]
fn each_key_gets_its_own_and_not_one_more() {
    for strategy in STRATEGIES {
        for threads in THREADS {
            let rule = RuleLimiter::keyed(START, terms(quota(strategy, 100)), NonZeroUsize::new(8).expect("not zero"));
            let admitted = offer(threads, 10_000, |turn| {
                let key = [u8::try_from(turn % 10).expect("a digit")];
                u64::from(rule.charge(|| START, &key, 1).is_ok())
            });
            // Eight keys are in cells, and two are in the overflow.
            assert_eq!(admitted, 10 * at_once(strategy, 100), "{strategy:?}, {threads} threads");
            assert_eq!(rule.keys().expect("keyed").tracked, 8, "{strategy:?}, {threads} threads");
        }
    }
}

#[test]
fn a_flood_of_keys_stays_within_its_bound() {
    for strategy in STRATEGIES {
        let rule = RuleLimiter::keyed(START, terms(quota(strategy, 1)), NonZeroUsize::new(50).expect("not zero"));
        let most = AtomicU64::new(0);
        let admitted = offer(8, 20_000, |turn| {
            // There are 800 keys per second, which is sixteen times the number of cells.
            let now = after(Duration::from_micros(1_250 * turn));
            let admitted = rule.charge(|| now, &turn.to_be_bytes(), 1).is_ok();
            most.fetch_max(rule.keys().expect("keyed").tracked, Ordering::Relaxed);
            u64::from(admitted)
        });
        let keys = rule.keys().expect("keyed");
        assert!(most.into_inner() <= 50, "{strategy:?}");
        assert!(keys.evicted > 0 && keys.overflowed > 0, "{strategy:?}: {keys:?}");
        assert!(admitted >= 19_800, "{strategy:?}: a flood refuses hardly any of its keys: {admitted}");
    }
}

#[test]
fn permits_never_exceed_the_limit() {
    for threads in THREADS {
        let in_flight = InFlight::new(NonZeroU64::new(10).expect("not zero"));
        let (inside, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let admitted = offer(threads, 20_000, |turn| {
            let cost = 1 + turn % 3;
            in_flight.acquire(cost).map_or(0, |permit| {
                most.fetch_max(inside.fetch_add(cost, Ordering::SeqCst) + cost, Ordering::SeqCst);
                thread::yield_now();
                inside.fetch_sub(cost, Ordering::SeqCst);
                drop(permit);
                1
            })
        });
        assert!(most.into_inner() <= 10, "{threads} threads");
        assert!(admitted > 0, "{threads} threads");
        assert_eq!(in_flight.in_use(), 0, "{threads} threads: all permits are given back");
        let held: Vec<_> = (0..20).map_while(|_| in_flight.acquire(1).ok()).collect();
        assert_eq!(held.len(), 10);
    }
}

#[test]
fn permits_of_keys_never_exceed_the_limit_of_each() {
    const KEYS: u64 = 3;
    for threads in THREADS {
        let in_flight = InFlightByKey::default();
        let counts = || (0..KEYS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let (inside, most) = (counts(), counts());
        let admitted = offer(threads, 20_000, |turn| {
            let (key, cost) = (turn % KEYS, 1 + turn % 2);
            let limit = NonZeroU64::new(4 + key).expect("not zero");
            in_flight.acquire(&key.to_be_bytes(), cost, limit).map_or(0, |permit| {
                let key = usize::try_from(key).expect("small");
                most[key].fetch_max(inside[key].fetch_add(cost, Ordering::SeqCst) + cost, Ordering::SeqCst);
                thread::yield_now();
                inside[key].fetch_sub(cost, Ordering::SeqCst);
                drop(permit);
                1
            })
        });
        for (limit, most) in (4..).zip(most) {
            assert!(most.into_inner() <= limit, "{threads} threads");
        }
        assert!(admitted > 0, "{threads} threads");
        assert_eq!(in_flight.total(), 0, "{threads} threads: all is given back");
    }
}

#[test]
fn permits_kept_are_exactly_the_limit() {
    for threads in THREADS {
        let in_flight = InFlight::new(NonZeroU64::new(2_500).expect("not zero"));
        let kept = Mutex::new(Vec::new());
        let admitted = offer(threads, 10_000, |turn| {
            // Meanwhile, each request sets the limit to its current value.
            in_flight.set_limit(NonZeroU64::new(2_500).expect("not zero"));
            let permit = in_flight.acquire(1).ok().filter(|_| turn % 4 != 0);
            permit.map_or(0, |permit| {
                kept.lock().expect("no panic").push(permit);
                1
            })
        });
        // A thread that is preempted with a permit may give it back after the last request.
        let mut kept = kept.into_inner().expect("no panic");
        kept.extend(std::iter::from_fn(|| in_flight.acquire(1).ok()));
        assert_eq!((kept.len(), in_flight.in_use()), (2_500, 2_500), "{threads} threads");
        assert!((2_500 - threads as u64..=2_500).contains(&admitted), "{threads} threads: {admitted}");
        in_flight.set_limit(NonZeroU64::MIN);
        assert!(in_flight.acquire(1).is_err(), "requests in flight count against a lower limit");
        drop(kept);
        assert_eq!(in_flight.in_use(), 0);
        assert!(in_flight.acquire(1).is_ok() && in_flight.acquire(2).is_err());
    }
}
