//! One test for each known mistake of rate limiters, over all strategies. Each test fails if the code contains the
//! mistake.
#![cfg(not(loom))]

mod suite;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use weir_core::{InFlight, InvalidQuota, Limiter, Quota, RuleLimiter, Strategy, Terms, Time, charge_limiters};

use self::suite::{STRATEGIES, at_once, quota};

const START: Time = Time::from_nanos(1_700_000_000_000_000_000);
const SECOND: Duration = Duration::from_secs(1);

fn after(duration: Duration) -> Time {
    START.saturating_add(duration)
}

/// Charges one request at a time until a refusal. Returns the number of admissions.
fn drain(limiter: &Limiter, now: Time) -> u64 {
    (0..1_000_000).take_while(|_| limiter.charge(now, 1).is_ok()).count() as u64
}

/// Reserves one request at a time, without waiting, until a refusal. Returns the number of admissions.
fn drain_by_reservation(limiter: &Limiter, now: Time) -> u64 {
    (0..1_000_000).take_while(|_| limiter.reserve(now, 1, now).is_ok()).count() as u64
}

/// Returns every ordered pair of strategies.
fn changes() -> impl Iterator<Item = (Strategy, Strategy)> {
    STRATEGIES.into_iter().flat_map(|old| STRATEGIES.map(|new| (old, new)))
}

/// Mistake 1: One atomic contains the level, and another atomic contains the time of the last refill. Between the two
/// updates, other threads refill twice (too many requests are admitted) or overwrite each other's refill (tokens are
/// lost).
#[test]
fn mistake_1_two_atomics_for_one_state() {
    const ROUNDS: u32 = 100;
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 400, SECOND));
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

/// Mistake 2: All limits of a request are checked in one pass and charged in a second pass, without a check in the
/// second pass. All threads that run between the passes are admitted.
#[test]
fn mistake_2_check_all_then_add_all() {
    for strategy in STRATEGIES {
        for _ in 0..100 {
            let limits = [Limiter::new(START, quota(Strategy::TokenBucket, 100, SECOND)), {
                Limiter::new(START, quota(strategy, 3, SECOND))
            }];
            let (barrier, admitted) = (Barrier::new(8), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        barrier.wait();
                        admitted.fetch_add(u64::from(charge_limiters(&limits, || START, 1).is_ok()), Ordering::Relaxed);
                    });
                }
            });
            let admitted = admitted.into_inner();
            assert!(admitted <= at_once(strategy, 3), "{strategy:?}: {admitted}");
            assert_eq!(limits[0].peek(START).remaining(), 100 - admitted, "{strategy:?}: charged for admissions only");
        }
    }
}

/// Mistake 3: A proxy charges the limit of the whole route, and then the limit of the client refuses the request. So
/// one noisy client uses up the route's limit for all clients.
#[test]
fn mistake_3_the_outer_limit_is_charged_although_the_inner_one_refuses() {
    for (outer, inner) in changes() {
        let limits = [Limiter::new(START, quota(outer, 100, SECOND)), Limiter::new(START, quota(inner, 1, SECOND))];
        assert!(charge_limiters(&limits, || START, 1).is_ok());
        // A leaky bucket admits no other request at this time, and is the first to refuse.
        let refuses = if outer == Strategy::LeakyBucket { 0 } else { 1 };
        let before = limits[0].peek(START).reset_after();
        for _ in 0..1_000 {
            let refused = charge_limiters(&limits, || START, 1).expect_err("the inner limit is used up");
            assert_eq!(refused.limit, refuses, "{outer:?}, {inner:?}");
        }
        assert_eq!(limits[0].peek(START).reset_after(), before, "{outer:?}, {inner:?}");
    }
}

/// Mistake 4: A fixed window admits twice the limit around a boundary, and its documentation does not mention this.
/// Here the documentation of [`Strategy::FixedWindow`] does, and no other strategy admits twice its limit.
#[test]
fn mistake_4_twice_the_limit_around_a_boundary() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 100, SECOND));
        let before = drain(&limiter, after(Duration::from_millis(999)));
        let around = before + drain(&limiter, after(SECOND));
        let most = match strategy {
            Strategy::FixedWindow => 200,
            Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 100,
            // A millisecond's flow is a tenth of a request.
            Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::LeakyBucket | Strategy::Gcra => before,
        };
        assert_eq!(around, most, "{strategy:?}");
    }
}

/// Mistake 5: A reload creates limiters without state. So a limited client waits for the next change, and the effective
/// limit is unbounded. Here all changes together admit at most the largest of their limits.
#[test]
fn mistake_5_a_reload_refills_every_bucket() {
    for (old, new) in changes() {
        let (small, large) = (quota(old, 10, SECOND), quota(new, 1_000, SECOND));
        let mut limiter = Limiter::new(START, small);
        let mut admitted = drain(&limiter, START);
        for round in 0..100 {
            limiter = limiter.retune(|| START, if round % 2 == 0 { large } else { small });
            let more = drain(&limiter, START);
            assert!(round == 0 || more == 0, "{old:?} to {new:?}: {more} in round {round}");
            admitted += more;
        }
        // A bucket that can be overdrawn adds its debt. No bucket adds a burst.
        let most = match new {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => 1_000,
            _ => at_once(old, 10) + large.debt(),
        };
        assert!(admitted <= most, "{old:?} to {new:?}: {admitted}");
        // A reload with an equal quota neither frees nor takes capacity.
        let limiter = Limiter::new(START, small);
        limiter.charge(START, 1).expect("all is free");
        let left = limiter.peek(START).remaining();
        let limiter = limiter.retune(|| START, small);
        assert_eq!(limiter.peek(START).remaining(), left, "{old:?}");
    }
}

/// Mistake 6: The rate changes, but the limiter keeps the arrival time that was computed at the old rate. After a
/// change from 10 per hour to 10 per second, the limiter refuses for six minutes.
#[test]
fn mistake_6_a_backlog_at_the_old_rate() {
    for strategy in [Strategy::TokenBucket, Strategy::TokenBucketWithDebt, Strategy::LeakyBucket, Strategy::Gcra] {
        let hourly = quota(strategy, 10, Duration::from_hours(1));
        let limiter = Limiter::new(START, hourly);
        drain(&limiter, START);
        assert_eq!(limiter.peek(START).retry_after(1), Some(Duration::from_mins(6)), "{strategy:?}");
        let limiter = limiter.retune(|| START, quota(strategy, 10, SECOND));
        assert_eq!(limiter.peek(START).retry_after(1), Some(Duration::from_millis(100)), "{strategy:?}");
        let limiter = limiter.retune(|| START, hourly);
        assert_eq!(limiter.peek(START).retry_after(1), Some(Duration::from_mins(6)), "{strategy:?}");
    }
    for (old, new) in changes() {
        let limiter = Limiter::new(START, quota(old, 10, Duration::from_hours(1)));
        drain(&limiter, START);
        let limiter = limiter.retune(|| START, quota(new, 10, SECOND));
        let wait = limiter.peek(START).retry_after(1).expect("within the burst");
        assert!(wait <= 2 * SECOND, "{old:?} to {new:?}: {wait:?}");
    }
}

/// Mistake 7: `500ms` becomes `0s`, because code truncates durations to seconds. Or Retry-After is rounded down, so
/// clients come back too early.
#[test]
fn mistake_7_durations_cut_short() {
    let half = Duration::from_millis(500);
    for strategy in STRATEGIES {
        // Three requests in half a second are 166,666,666.67 ns apart.
        for requests in [1, 3] {
            let limiter = Limiter::new(START, quota(strategy, requests, half));
            assert_eq!(limiter.quota().period(), half);
            assert!(drain(&limiter, START) > 0);
            assert_eq!(drain(&limiter, START), 0, "{strategy:?}: the limit refuses");
            let wait = limiter.charge(START, 1).expect_err("used up").retry_after().expect("within the burst");
            assert!(wait > Duration::from_millis(100) && wait <= 2 * half, "{strategy:?}: {wait:?}");
            let moment = after(wait);
            assert!(limiter.charge(moment.saturating_sub(Duration::from_nanos(1)), 1).is_err(), "{strategy:?}");
            assert!(limiter.charge(moment, 1).is_ok(), "{strategy:?}: a client that waits {wait:?} is admitted");
        }
    }
}

/// Mistake 8: An even share of a small limit, for each thread or after a change, is rounded down to zero, and all
/// requests are refused.
#[test]
fn mistake_8_a_share_floors_to_zero() {
    // A limit with fewer requests than threads still admits all its requests.
    for strategy in STRATEGIES {
        for most in [1, 5, 4_000] {
            let limiter = Limiter::new(START, quota(strategy, most, SECOND));
            let (barrier, admitted) = (Barrier::new(32), AtomicU64::new(0));
            thread::scope(|scope| {
                for _ in 0..32 {
                    scope.spawn(|| {
                        barrier.wait();
                        for _ in 0..500 {
                            admitted.fetch_add(u64::from(limiter.charge(START, 1).is_ok()), Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(admitted.into_inner(), at_once(strategy, most), "{strategy:?}");
        }
    }
    // One of 100 requests was admitted, which uses up a limit of one. The next request is admitted in time.
    for (old, new) in changes() {
        let limiter = Limiter::new(START, quota(old, 100, SECOND));
        limiter.charge(START, 1).expect("all is free");
        let limiter = limiter.retune(|| START, quota(new, 1, SECOND));
        assert!(limiter.charge(after(2 * SECOND), 1).is_ok(), "{old:?} to {new:?}");
    }
}

/// Mistake 9: Zero means "unlimited" in one place and "block all" in another place. Here zero is refused when a limit
/// is created, and the error names the field to fix. A debt of zero is no debt.
#[test]
fn mistake_9_a_zero_with_two_meanings() {
    for strategy in STRATEGIES {
        let made = |requests, period, burst| Quota::new(strategy, requests, period, burst).map(drop);
        assert_eq!(made(0, SECOND, None), Err(InvalidQuota::ZeroRequests), "{strategy:?}");
        assert_eq!(made(1, Duration::ZERO, None), Err(InvalidQuota::ZeroPeriod), "{strategy:?}");
        let burst = made(1, SECOND, Some(0)).expect_err("a burst of zero is refused");
        assert_eq!(burst.field(), "burst", "{strategy:?}");
    }
    let bucket = Quota::new(Strategy::TokenBucketWithDebt, 5, SECOND, None).expect("valid");
    assert_eq!(bucket.with_debt(0), Ok(bucket));
    assert_eq!(drain(&Limiter::new(START, bucket), START), 5);
    assert_eq!(NonZeroU64::new(0), None, "the argument of `InFlight::new` and `set_limit` is never zero");
}

/// Mistake 10: A table of keys grows with every key that a client sends, or stays full because idle keys are not
/// removed.
#[test]
fn mistake_10_keys_without_a_bound() {
    for strategy in STRATEGIES {
        let terms = Terms::new([("limit", quota(strategy, 2, SECOND))]).expect("valid");
        let rule = RuleLimiter::keyed(START, terms, NonZeroUsize::new(50).expect("not zero"));
        let drain = |now: Time, key: u32| {
            (0..100).take_while(|_| rule.charge(|| now, &key.to_be_bytes(), 1).is_ok()).count() as u64
        };
        for key in 0..50 {
            assert_eq!(drain(START, key), at_once(strategy, 2), "{strategy:?}: key {key} has its own count");
        }
        for key in 50..500 {
            assert_eq!(drain(START, key), at_once(strategy, 2), "{strategy:?}: key {key} is counted without a cell");
        }
        let keys = rule.keys().expect("keyed");
        assert!(keys.tracked <= 50 && keys.overflowed >= 450, "{strategy:?}: {keys:?}");
        let later = after(4 * SECOND);
        for key in 2_000..2_050 {
            assert_eq!(drain(later, key), at_once(strategy, 2), "{strategy:?}: key {key} gets the cell of an idle key");
        }
        assert!(rule.keys().expect("keyed").tracked <= 50, "{strategy:?}");
    }
}

/// Mistake 11: Refused requests are counted, too. A client that does not stop is locked out, and a higher limit does
/// not help.
#[test]
fn mistake_11_refused_requests_consume() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        drain(&limiter, START);
        let before = limiter.peek(START).reset_after();
        for _ in 0..1_000 {
            assert!(limiter.charge(START, 1).is_err() && limiter.reserve(START, 1, START).is_err());
            assert!(limiter.charge(START, 1_000).is_err() && limiter.reserve(START, 1_000, after(SECOND)).is_err());
        }
        assert_eq!(limiter.peek(START).reset_after(), before, "{strategy:?}");
        let later = after(2 * SECOND);
        assert_eq!(drain_by_reservation(&limiter, later), at_once(strategy, 10), "{strategy:?}: the limit is free");
        let limiter = limiter.retune(|| later, quota(strategy, 100, SECOND));
        for _ in 0..1_000 {
            let _ = limiter.charge(later, 1);
        }
        assert!(limiter.charge(later.saturating_add(2 * SECOND), 1).is_ok(), "{strategy:?}: a higher limit helps");
    }
    let in_flight = InFlight::new(NonZeroU64::MIN);
    let permit = in_flight.acquire(1).expect("room for one");
    for _ in 0..1_000 {
        assert!(in_flight.acquire(1).is_err());
    }
    drop(permit);
    assert!(in_flight.acquire(1).is_ok());
}

/// Mistake 12: A subtraction of two times underflows when another thread was faster. Then a debug build panics, and a
/// release build has a huge wait or no limit.
#[test]
fn mistake_12_times_out_of_order() {
    for strategy in STRATEGIES {
        let late = after(Duration::from_millis(2_005));
        // The limiter is created at a time that is later than some clock readings.
        let limiter = Limiter::new(late, quota(strategy, 10, SECOND));
        assert_eq!(drain(&limiter, late), at_once(strategy, 10), "{strategy:?}");
        for nanos in [0, 1, 1_000_000_000, 1_999_999_999, 2_004_999_999] {
            let early = after(Duration::from_nanos(nanos));
            assert_eq!(drain(&limiter, early), 0, "{strategy:?}");
            assert_eq!(drain_by_reservation(&limiter, early), 0, "{strategy:?}");
            let standing = limiter.peek(early);
            assert_eq!(standing.remaining(), 0, "{strategy:?}");
            let wait = standing.retry_after(1).expect("within the burst");
            assert!(wait <= 5 * SECOND && standing.reset_after() <= 5 * SECOND, "{strategy:?}: {wait:?}");
        }
        // The clock advances by one window, and then goes back to the previous window.
        drain(&limiter, late.saturating_add(3 * SECOND / 2));
        assert_eq!(drain(&limiter, after(Duration::from_millis(2_900))), 0, "{strategy:?}");
        // A refund with a slow clock gives back no lost capacity.
        let later = late.saturating_add(4 * SECOND);
        let charge = limiter.charge(later, 1).expect("all is free again").charge;
        limiter.refund(charge, || START);
        assert!(drain(&limiter, later) <= at_once(strategy, 10), "{strategy:?}");
    }
}
