//! Limits and clocks at their extremes, for all strategies.
#![cfg(not(loom))]

mod suite;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use weir_core::{Limiter, Quota, Strategy, Time};

use self::suite::{SECOND, START, STRATEGIES, after, at_once, drain, quota};

const DAY: Duration = Duration::from_hours(24);
const YEAR: Duration = Duration::from_hours(24 * 365);

#[test]
fn one_a_day() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 1, DAY));
        assert_eq!(drain(&limiter, START), 1, "{strategy:?}");
        let wait = limiter.peek(START).retry_after(1).expect("within the burst");
        let longest = if strategy == Strategy::SlidingWindowCounter { 2 * DAY } else { DAY };
        assert!(wait <= longest, "{strategy:?}: {wait:?}");
        assert_eq!(drain(&limiter, after(wait - Duration::from_nanos(1))), 0, "{strategy:?}");
        assert_eq!(drain(&limiter, after(wait)), 1, "{strategy:?}");
        // After every two periods, the whole limit is free again.
        for day in 1..400 {
            assert_eq!(drain(&limiter, after(wait + 2 * day * DAY)), 1, "{strategy:?}, day {day}");
        }
    }
}

#[test]
fn a_thousand_million_a_second() {
    for strategy in STRATEGIES {
        // One request per nanosecond, if the strategy can count this many.
        let requests = if strategy == Strategy::SlidingWindowLog { 1 << 20 } else { 1_000_000_000 };
        let period = Duration::from_nanos(requests);
        let limiter = Limiter::new(START, quota(strategy, requests, period));
        let most = limiter.quota().most();
        assert!(limiter.charge(START, most).is_ok(), "{strategy:?}");
        assert!(limiter.charge(START, 1).is_err(), "{strategy:?}");
        let (later, half) = (after(2 * period), after(2 * period + period / 2));
        assert!(limiter.charge(later, most / 2).is_ok(), "{strategy:?}");
        match strategy {
            Strategy::LeakyBucket => assert!(limiter.charge(half, 1).is_ok()),
            _ => assert_eq!(limiter.peek(later).remaining(), most - most / 2, "{strategy:?}"),
        }
        assert!(limiter.peek(later).reset_after() <= 2 * period, "{strategy:?}");
    }
}

#[test]
fn windows_of_a_millisecond_and_of_a_nanosecond() {
    for strategy in STRATEGIES {
        for (requests, period) in [(1, 1), (1, 1_000), (7, 1_000_000), (1_000, 1_000_000)] {
            let period = Duration::from_nanos(period);
            let limiter = Limiter::new(START, quota(strategy, requests, period));
            for round in 0..1_000 {
                let now = after(2 * round * period);
                let admitted = drain(&limiter, now);
                // The burst is admitted at one time, so no request flows in between.
                let most = at_once(strategy, limiter.quota().most());
                assert_eq!(admitted, most, "{strategy:?}, {requests} in {period:?}, round {round}");
            }
        }
    }
}

#[test]
fn the_largest_quotas_there_are() {
    const LARGEST: u64 = 1 << 61;
    let long = Duration::from_nanos(LARGEST);
    for strategy in STRATEGIES {
        let requests = match strategy {
            Strategy::SlidingWindowCounter => 1 << 30,
            Strategy::SlidingWindowLog => 1 << 20,
            _ => LARGEST,
        };
        let limiter = Limiter::new(START, Quota::new(strategy, requests, long, None).expect("valid"));
        let most = limiter.quota().most();
        assert!(limiter.charge(START, most.saturating_add(1)).is_err(), "{strategy:?}");
        assert!(limiter.charge(START, u64::MAX).is_err(), "{strategy:?}");
        assert!(limiter.charge(START, most).is_ok(), "{strategy:?}");
        assert!(limiter.charge(START, 1).is_err(), "{strategy:?}");
        let standing = limiter.peek(START);
        assert!(standing.retry_after(1).is_some_and(|wait| wait > Duration::ZERO), "{strategy:?}");
        assert!(standing.reset_after() > Duration::ZERO, "{strategy:?}");
    }
    let bucket = Quota::new(Strategy::TokenBucketWithDebt, 1, SECOND, Some(LARGEST / 2)).expect("valid");
    let limiter = Limiter::new(START, bucket.with_debt(LARGEST / 2).expect("valid"));
    assert!(limiter.charge(START, LARGEST).is_ok());
    assert!(limiter.charge(START, 1).is_err());
}

#[test]
fn a_cost_above_every_limit_is_refused_at_any_time() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        limiter.charge(START, 1).expect("one request fits");
        for cost in [11, u64::MAX - 1, u64::MAX] {
            assert!(limiter.charge(START, cost).is_err(), "{strategy:?}");
            assert!(limiter.reserve(START, cost, after(DAY)).is_err(), "{strategy:?}");
            assert!(limiter.enqueue(START, cost, None).is_err(), "{strategy:?}");
        }
    }
}

#[test]
fn a_century_of_idleness_is_one_burst() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        drain(&limiter, START);
        assert_eq!(drain(&limiter, after(100 * YEAR)), at_once(strategy, 10), "{strategy:?}");
    }
}

#[test]
fn a_clock_that_jumps_by_years_gives_a_burst_for_each_jump() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        for jump in [1, 2, 30, 31, 100] {
            let now = after(jump * YEAR);
            assert_eq!(drain(&limiter, now), at_once(strategy, 10), "{strategy:?}, {jump} years");
            assert_eq!(drain(&limiter, now), 0, "{strategy:?}, {jump} years");
        }
        assert!(drain(&limiter, Time::from_nanos(u64::MAX)) <= at_once(strategy, 10), "{strategy:?}");
    }
}

#[test]
fn a_clock_that_was_years_ahead_is_forgotten_and_gives_nothing() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        assert_eq!(drain(&limiter, after(10 * YEAR)), at_once(strategy, 10), "{strategy:?}");
        assert_eq!(drain(&limiter, START), 0, "{strategy:?}: used requests are not free again");
        let later = drain(&limiter, after(2 * SECOND));
        assert!((1..=10).contains(&later), "{strategy:?}: time continues from here: {later}");
    }
}

#[test]
fn a_clock_set_back_by_less_than_a_day_is_waited_for() {
    for strategy in STRATEGIES {
        let limiter = Limiter::new(START, quota(strategy, 10, SECOND));
        drain(&limiter, START);
        for hours in [1, 12, 23] {
            assert_eq!(drain(&limiter, START.saturating_sub(Duration::from_hours(hours))), 0, "{strategy:?}");
        }
        assert_eq!(drain(&limiter, after(2 * SECOND)), at_once(strategy, 10), "{strategy:?}");
    }
}

/// A known mistake: a subtraction of two times underflows when another thread was faster. Then a debug build panics, and
/// a release build has a huge wait or no limit.
#[test]
fn a_clock_that_is_behind_frees_nothing_and_waits_are_short() {
    for strategy in STRATEGIES {
        let late = after(Duration::from_millis(2_005));
        // The limiter is created at a time that is later than some clock readings.
        let limiter = Limiter::new(late, quota(strategy, 10, SECOND));
        assert_eq!(drain(&limiter, late), at_once(strategy, 10), "{strategy:?}");
        for nanos in [0, 1, 1_000_000_000, 1_999_999_999, 2_004_999_999] {
            let early = after(Duration::from_nanos(nanos));
            assert_eq!(drain(&limiter, early), 0, "{strategy:?}");
            assert!(limiter.reserve(early, 1, early).is_err(), "{strategy:?}");
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

#[test]
fn two_threads_whose_clocks_disagree_share_what_the_later_one_gives() {
    for strategy in STRATEGIES {
        // One clock is up to half a period behind the other.
        for lag in [1, 1_000_000, 499_999_999] {
            let limiter = Limiter::new(START, quota(strategy, 100, SECOND));
            let (ticks, last) = (AtomicU64::new(0), AtomicU64::new(0));
            let run = |lag: u64| {
                let mut admitted = 0;
                loop {
                    let tick = ticks.fetch_add(1, Ordering::Relaxed);
                    if tick >= 20_000 {
                        return admitted;
                    }
                    let now = START.as_nanos() + 1_000_000_000 + tick * 250_000 - lag;
                    last.fetch_max(now, Ordering::Relaxed);
                    admitted += u64::from(limiter.charge(Time::from_nanos(now), 1).is_ok());
                }
            };
            let admitted = thread::scope(|scope| {
                let behind = scope.spawn(|| run(lag));
                run(0) + behind.join().expect("no panic")
            });
            // The flow of five seconds and of the lag, if the slow thread starts, plus one window or one burst.
            let begun_earlier = lag.div_ceil(10_000_000);
            let most = begun_earlier + if strategy == Strategy::LeakyBucket { 501 } else { 600 };
            assert!(admitted <= most, "{strategy:?}, {lag} ns behind: {admitted}");
            // The minimum depends on scheduling: for a slow thread, the other thread may have used up the limit at a
            // later time.
            assert!(admitted > 0, "{strategy:?}, {lag} ns behind");
        }
    }
}

/// A lower limit in between must not lose requests that were counted.
#[test]
fn a_counter_of_a_short_period_keeps_its_count_through_a_low_limit() {
    let quota = |requests| quota(Strategy::SlidingWindowCounter, requests, Duration::from_micros(1));
    let limiter = Limiter::new(START, quota(1000));
    limiter.charge(START, 800).expect("all is free");
    let limiter = limiter.retune(|| START, quota(1)).retune(|| START, quota(900));
    assert_eq!(limiter.peek(START).remaining(), 100);
}
