//! Requests with a cost of 0 charge nothing and are never refused: in all strategies, with and without a key, and also
//! while a lowered limit is exceeded.
#![cfg(not(loom))]

mod suite;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use weir_core::{InFlight, Limiter, Quota, RuleLimiter, Strategy, Terms};

use self::suite::{START, drain, drain_key};

fn quota(strategy: Strategy, requests: u64) -> Quota {
    Quota::new(strategy, requests, Duration::from_secs(3_600), None).expect("valid")
}

fn terms(strategy: Strategy, requests: u64) -> Terms {
    suite::terms(quota(strategy, requests))
}

/// Without a key, with a cell of a table, and in the overflow of a table.
fn rules(strategy: Strategy) -> [(RuleLimiter, &'static str); 3] {
    let keyed = || RuleLimiter::keyed(START, terms(strategy, 4), NonZeroUsize::MIN);
    let full = keyed();
    full.charge(|| START, b"another", 1).expect("it is free");
    [(RuleLimiter::unkeyed(START, terms(strategy, 4)), "no key"), (keyed(), "cell"), (full, "overflow")]
}

fn remaining(rule: &RuleLimiter) -> u64 {
    match rule.peek(START, b"key", 1) {
        Ok(tightest) => tightest.standing.remaining(),
        Err(refused) => refused.standing.remaining(),
    }
}

/// Decides on a cost of 0 in all ways. Nothing may change.
fn is_free(rule: &RuleLimiter) {
    let before = remaining(rule);
    rule.peek(START, b"key", 0).expect("never refused");
    let charged = rule.charge(|| START, b"key", 0).expect("never refused");
    let ahead = rule.charge_ahead(|| START, b"key", 0, START.saturating_add(Duration::from_secs(1)));
    assert_eq!(ahead.expect("never refused").at, START);
    assert_eq!(rule.opens(START, b"key", 0).expect("never refused"), START);
    assert_eq!(remaining(rule), before, "nothing is charged");
    rule.refund(b"key", charged.charge, || START);
    assert_eq!(remaining(rule), before, "nothing is given back");
}

#[test]
fn a_cost_of_0_is_never_refused() {
    for strategy in Strategy::ALL {
        for (rule, place) in rules(strategy) {
            println!("{strategy:?}, {place}");
            is_free(&rule);
            drain_key(&rule, START, b"key");
            is_free(&rule);
            let lowered = rule.retune(|| START, terms(strategy, 2), rule.keys().and(NonZeroUsize::new(1)));
            is_free(&lowered);
        }
        let limiter = Limiter::new(START, quota(strategy, 4));
        drain(&limiter, START);
        for requests in [4, 2] {
            let limiter = limiter.retune(|| START, quota(strategy, requests));
            limiter.charge(START, 0).expect("never refused");
            assert_eq!(limiter.reserve(START, 0, START).expect("never refused").at, START);
        }
    }
}

#[test]
fn a_cost_of_0_takes_no_room_in_flight() {
    let in_flight = InFlight::new(NonZeroU64::new(2).expect("not zero"));
    let permit = in_flight.acquire(2).expect("there is room");
    in_flight.set_limit(NonZeroU64::MIN);
    drop(in_flight.acquire(0).expect("never refused"));
    assert_eq!(in_flight.in_use(), 2);
    drop(permit);
}
