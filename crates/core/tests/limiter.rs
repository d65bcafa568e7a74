//! The behaviour of one limiter, with made-up times and numbers that a reader can check by hand.
#![cfg(not(loom))]

mod suite;

use std::{sync::Mutex, thread, time::Duration};

use weir_core::{InvalidQuota, Limiter, Quota, Strategy};

use self::suite::{START, STRATEGIES, after, drain};

fn quota(strategy: Strategy, requests: u64, period: Duration, burst: Option<u64>) -> Quota {
    Quota::new(strategy, requests, period, burst).expect("valid")
}

fn per_second(strategy: Strategy, requests: u64) -> Quota {
    quota(strategy, requests, Duration::from_secs(1), None)
}

#[test]
fn each_strategy_admits_its_burst_and_then_its_rate() {
    for (strategy, at_once, after_half, after_whole) in
        [(Strategy::FixedWindow, 10, 0, 10), (Strategy::TokenBucket, 10, 5, 5), (Strategy::Gcra, 1, 1, 1)]
    {
        let limiter = Limiter::new(START, per_second(strategy, 10));
        assert_eq!(drain(&limiter, START), at_once, "{strategy:?}");
        assert_eq!(drain(&limiter, after(Duration::from_millis(500))), after_half, "{strategy:?}");
        assert_eq!(drain(&limiter, after(Duration::from_secs(1))), after_whole, "{strategy:?}");
    }
}

#[test]
fn a_place_is_free_at_its_very_nanosecond() {
    for (requests, wait) in [(100, 10_000_000), (3, 333_333_334), (600_000_000, 2), (1_000_000_000, 1)] {
        let limiter = Limiter::new(START, quota(Strategy::Gcra, requests, Duration::from_secs(1), None));
        assert_eq!(drain(&limiter, START), 1);
        assert_eq!(drain(&limiter, after(Duration::from_nanos(wait - 1))), 0, "{requests} a second");
        assert_eq!(drain(&limiter, after(Duration::from_nanos(wait))), 1, "{requests} a second");
    }
}

#[test]
fn rates_are_right_over_a_long_run() {
    let cases =
        [(3, 1_000), (600_000_000, 1_000), (7, 86_400_000), (999_999_937, 1_000), (1, 86_400_000), (1_000_000, 1)];
    for (requests, millis) in cases {
        for burst in [1, 1_000_000_000] {
            let period = Duration::from_millis(millis);
            let limiter = Limiter::new(START, quota(Strategy::TokenBucket, requests, period, Some(burst)));
            limiter.charge(START, burst).expect("all of the burst is free");
            // The test waits until half of the burst has flowed in, or one request.
            let expected = (burst / 2).max(1);
            let nanos = u128::from(expected) * period.as_nanos() / u128::from(requests);
            let nanos = u64::try_from(nanos).unwrap_or(u64::MAX).min(1 << 60);
            let remaining = limiter.peek(after(Duration::from_nanos(nanos + 1))).remaining();
            let exact = u128::from(nanos + 1) * u128::from(requests) / period.as_nanos();
            assert_eq!(u128::from(remaining), exact.min(u128::from(burst)), "{requests} in {millis} ms, burst {burst}");
        }
    }
}

#[test]
fn windows_are_aligned_to_unix_time() {
    let limiter = Limiter::new(after(Duration::from_millis(900)), per_second(Strategy::FixedWindow, 5));
    assert_eq!(drain(&limiter, after(Duration::from_millis(900))), 5);
    let refused = limiter.charge(after(Duration::from_millis(950)), 1).expect_err("the window is used up");
    assert_eq!(refused.retry_after(), Some(Duration::from_millis(50)));
    assert_eq!(drain(&limiter, after(Duration::from_millis(999))), 0);
    assert_eq!(drain(&limiter, after(Duration::from_secs(1))), 5);
}

#[test]
fn costs_above_one_are_whole_or_refused() {
    for strategy in [Strategy::FixedWindow, Strategy::TokenBucket] {
        let limiter = Limiter::new(START, per_second(strategy, 10));
        assert!(limiter.charge(START, 7).is_ok());
        let refused = limiter.charge(START, 4).expect_err("three are left");
        assert_eq!(refused.standing.remaining(), 3);
        assert!(limiter.charge(START, 3).is_ok());
        let never = limiter.charge(START, 11).expect_err("more than the burst");
        assert_eq!(never.retry_after(), None);
        assert_eq!(never.to_string(), "a cost of 11 exceeds the maximum cost of 10");
        assert!(limiter.charge(after(Duration::from_secs(1)), 10).is_ok());
        assert!(limiter.charge(after(Duration::from_secs(1)), u64::MAX).is_err());
    }
}

/// Every kind of invalid quota. Zero never means "unlimited" or "block all", except that a debt of zero is no debt.
#[test]
fn an_invalid_quota_says_what_to_fix() {
    let second = Duration::from_secs(1);
    for strategy in STRATEGIES {
        let of = |requests, period| Quota::new(strategy, requests, period, None);
        assert_eq!(of(0, second), Err(InvalidQuota::ZeroRequests), "{strategy:?}");
        assert_eq!(of(1, Duration::ZERO), Err(InvalidQuota::ZeroPeriod), "{strategy:?}");
        assert_eq!(Quota::new(strategy, 1, second, Some(0)).map_err(|invalid| invalid.field()), Err("burst"));
    }
    let bucket = Quota::new(Strategy::TokenBucketWithDebt, 5, second, None).expect("valid");
    assert_eq!(bucket.with_debt(0), Ok(bucket));
    assert_eq!(drain(&Limiter::new(START, bucket), START), 5);
    let cases = [
        (Strategy::TokenBucket, 0, second, None, InvalidQuota::ZeroRequests, "requests"),
        (Strategy::TokenBucket, 1, Duration::ZERO, None, InvalidQuota::ZeroPeriod, "period"),
        (Strategy::TokenBucket, 1, Duration::MAX, None, InvalidQuota::PeriodTooLong, "period"),
        (Strategy::Gcra, 1, second, Some(0), InvalidQuota::ZeroBurst, "burst"),
        (Strategy::Gcra, 1, second, Some(u64::MAX), InvalidQuota::BurstTooLarge, "burst"),
        (Strategy::FixedWindow, 1, second, Some(1), InvalidQuota::BurstOfWindow, "burst"),
        (Strategy::FixedWindow, 1_000_000_001, second, None, InvalidQuota::TooFast, "requests"),
    ];
    for (strategy, requests, period, burst, invalid, field) in cases {
        assert_eq!(Quota::new(strategy, requests, period, burst), Err(invalid));
        assert_eq!(invalid.field(), field);
        assert!(invalid.to_string().contains(field), "{invalid}");
    }
}

#[test]
fn a_charge_is_given_back_once_and_only_while_it_counts() {
    let limiter = Limiter::new(START, per_second(Strategy::FixedWindow, 10));
    let (early, late) = (limiter.charge(START, 3).expect("free"), limiter.charge(START, 4).expect("free"));
    limiter.refund(early.charge, || after(Duration::from_millis(999)));
    assert_eq!(limiter.peek(START).remaining(), 6);
    let next = after(Duration::from_secs(1));
    assert!(limiter.charge(next, 10).is_ok());
    limiter.refund(late.charge, || next);
    assert_eq!(limiter.peek(next).remaining(), 0, "the window of the charge is over");

    let bucket = Limiter::new(START, per_second(Strategy::TokenBucket, 10));
    let charge = bucket.charge(START, 1).expect("free").charge;
    assert!(bucket.charge(next, 10).is_ok());
    bucket.refund(charge, || next);
    assert_eq!(bucket.peek(next).remaining(), 0, "the bucket was refilled meanwhile");

    let charge = bucket.charge(after(2 * Duration::from_secs(1)), 5).expect("free").charge;
    let now = after(2 * Duration::from_secs(1));
    let retuned = bucket.retune(|| now, per_second(Strategy::TokenBucket, 100));
    let free = retuned.peek(now).remaining();
    bucket.refund(charge, || now);
    assert_eq!(retuned.peek(now).remaining(), free, "after a retune, nothing is given back");
}

#[test]
fn old_handles_follow_and_long_chains_are_dropped() {
    let first = Limiter::new(START, per_second(Strategy::TokenBucket, 10));
    let mut newest = first.clone();
    for round in 1..=if cfg!(miri) { 100 } else { 100_000 } {
        newest = newest.retune(|| START, per_second(Strategy::TokenBucket, 10 + round % 2));
    }
    assert_eq!(first.quota(), newest.quota());
    drop(newest);
    drop(first); // a recursive drop of the chain would overflow the stack
}

/// A limit with leases: a core holds admissions that no request has used.
#[test]
fn a_credit_of_a_limit_with_leases_is_never_beyond_its_full_credit() {
    const BURST: u64 = 20_000;
    let lent = |strategy| {
        let limiter = Limiter::new(START, quota(strategy, BURST, Duration::from_secs(20), Some(BURST)));
        let first = limiter.charge(START, 1).expect("all is free");
        limiter.charge(START, 1).expect("there is room");
        // This charge is not the latest one, so a core gets it. The last charge takes a whole lease for this core.
        limiter.refund(first.charge, || START);
        (0..2).for_each(|_| _ = limiter.charge(START, 1).expect("there is room"));
        limiter
    };
    for strategy in [Strategy::TokenBucket, Strategy::Gcra] {
        for (credit, millis) in [(1, 0), (2, 0), (50, 0), (BURST, 0), (1, 3), (50, 10), (50, 62), (50, 70), (50, 500)] {
            let limiter = lent(strategy);
            limiter.credit(credit, || START);
            let now = after(Duration::from_millis(millis));
            let left = if millis > 0 { BURST } else { (BURST - 3 + credit).min(BURST) };
            assert_eq!(limiter.peek(now).remaining(), left, "{strategy:?}, {credit}, after {millis} ms");
            assert_eq!(drain(&limiter, now), left, "{strategy:?}, {credit}, after {millis} ms");
        }
    }
    // A charge from before the credit is given back after it.
    let limiter = lent(Strategy::TokenBucket);
    let charged = limiter.charge(START, 5_000).expect("there is room");
    limiter.credit(4_000, || START);
    limiter.charge(START, 1).expect("there is room");
    limiter.refund(charged.charge, || START);
    let later = after(Duration::from_millis(1_100));
    assert_eq!(drain(&limiter, later), BURST);
}

/// A credit lowers the level, so the levels of earlier charges can belong to others when they are given back, by threads
/// with different slots.
#[test]
fn charges_of_before_a_credit_do_not_exist_twice() {
    const BURST: u64 = 20_000;
    let limiter = Limiter::new(START, quota(Strategy::TokenBucket, BURST, Duration::from_secs(20), Some(BURST)));
    let charge = |cost| limiter.charge(START, cost).expect("there is room").charge;
    let first = charge(1);
    charge(1);
    // From now on, cores have leases.
    limiter.refund(first, || START);
    charge(1_800);
    let (one, other) = (charge(100), charge(100));
    charge(100);
    limiter.credit(1_800, || START);
    limiter.refund(one, || START);
    let on_another_core =
        |act: &(dyn Fn() -> u64 + Sync)| thread::scope(|scope| scope.spawn(act).join().expect("no panic"));
    let other = Mutex::new(Some(other));
    on_another_core(&|| {
        let charge = other.lock().expect("no panic").take().expect("one charge");
        limiter.refund(charge, || START);
        0
    });
    let later = after(Duration::from_millis(150));
    assert_eq!(drain(&limiter, later) + on_another_core(&|| drain(&limiter, later)), BURST);
}
