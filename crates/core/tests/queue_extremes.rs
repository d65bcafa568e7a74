//! Requests that wait near the last representable time, or with the largest costs. Those that wait forever join the
//! queue, although their turn never comes.
#![cfg(not(loom))]

use std::{num::NonZeroUsize, task::Waker, time::Duration};

use weir_core::{Limiter, Position, Quota, RuleLimiter, Strategy, Terms, Ticket, Time};

const LARGEST: u64 = 1 << 61;

fn quota(strategy: Strategy, requests: u64, period: Duration) -> Quota {
    Quota::new(strategy, requests, period, None).expect("valid")
}

/// Returns a rule without and one with keys.
fn rules(now: Time, quotas: &[Quota]) -> [RuleLimiter; 2] {
    let terms = || Terms::new(quotas.iter().enumerate().map(|(index, quota)| (index.to_string(), *quota)));
    [
        RuleLimiter::unkeyed(now, terms().expect("valid")),
        RuleLimiter::keyed(now, terms().expect("valid"), NonZeroUsize::MIN),
    ]
}

/// Lets requests wait until one is refused. Returns the tickets of the others.
fn fill(rule: &RuleLimiter, now: Time, cost: u64) -> Vec<Ticket> {
    (0..100).map_while(|_| rule.enqueue(now, b"key", cost, None).ok()).collect()
}

#[test]
fn at_the_end_of_time_requests_that_wait_forever_join() {
    let second = Duration::from_secs(1);
    for strategy in Strategy::ALL {
        for end in [u64::MAX, (1 << 63) - 1, 1 << 63, (1 << 62) - 1] {
            for before in [0, 1, 999_999_999, 1_000_000_000, 5_000_000_000] {
                let now = Time::from_nanos(end - before);
                let quotas = [quota(strategy, 1, second), quota(Strategy::TokenBucket, 2, 3 * second)];
                for rule in [rules(now, &quotas[..1]), rules(now, &quotas)].iter().flatten() {
                    rule.charge(|| now, b"key", 1).expect("all is free");
                    let tickets = fill(rule, now, 1);
                    assert_eq!(tickets.len(), 100, "{strategy:?}, {before} ns before {end}");
                    let latest = Some(Time::from_nanos(u64::MAX - 1));
                    let is_late = (0..100).any(|_| rule.enqueue(now, b"key", 1, latest).is_err());
                    assert!(end != u64::MAX || is_late, "{strategy:?}, {before} ns before the end");
                    for ticket in tickets {
                        ticket.position(now, Waker::noop());
                    }
                    assert_eq!(rule.queue_len(b"key"), 0);
                }
            }
        }
    }
}

#[test]
fn the_largest_costs_cause_no_panic() {
    let long = Duration::from_nanos(LARGEST);
    for strategy in Strategy::ALL {
        let requests = match strategy {
            Strategy::SlidingWindowCounter => 1 << 30,
            Strategy::SlidingWindowLog => 1 << 20,
            _ => LARGEST,
        };
        let quota = quota(strategy, requests, long);
        for now in [0, 1_700_000_000_000_000_000, u64::MAX].map(Time::from_nanos) {
            for rule in rules(now, &[quota]) {
                let tickets = fill(&rule, now, quota.most());
                assert_eq!(rule.queue_len(b"key"), tickets.len(), "{strategy:?}");
                drop(tickets);
                assert_eq!(rule.queue_len(b"key"), 0);
            }
        }
    }
}

/// Each turn is fifty years after the previous one, and a limit cannot represent all of them.
#[test]
fn a_request_that_waits_forever_always_joins() {
    let fifty_years = Duration::from_secs(50 * 365 * 86_400);
    for strategy in [Strategy::TokenBucket, Strategy::Gcra, Strategy::FixedWindow, Strategy::SlidingWindowLog] {
        let now = Time::from_nanos(1_800_000_000_000_000_000);
        let limiter = Limiter::new(now, quota(strategy, 1, fifty_years));
        limiter.charge(now, 1).expect("it is free");
        let tickets: Vec<_> = (0..20).map(|_| limiter.enqueue(now, 1, None).expect("a place")).collect();
        let slower = quota(strategy, 1, fifty_years + Duration::from_secs(1));
        let limiter = limiter.retune(|| now, slower);
        let is_late = |ticket: &&Ticket| matches!(ticket.position(now, Waker::noop()), Position::Late);
        let late = tickets.iter().filter(is_late).count();
        assert_eq!((late, limiter.queue_len()), (0, 20), "{strategy:?}");
    }
}
