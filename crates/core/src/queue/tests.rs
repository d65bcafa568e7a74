//! What a queue reserves and looks at for a request, among many requests that others overtake.

use std::{task::Waker, time::Duration};

use super::{Position, Ticket};
use crate::{Limiter, Quota, Strategy, Time, sync::lock};

const START: Time = Time::from_nanos(1_700_000_000_000_000_000);
const LATER: Time = Time::from_nanos(1_700_003_600_000_000_000);

fn limiter(requests: u64) -> Limiter {
    let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None).expect("valid");
    Limiter::new(START, quota)
}

fn tickets(limiter: &Limiter, count: usize) -> Vec<Ticket> {
    (0..count).map(|_| limiter.enqueue(START, 1, None).expect("no latest time")).collect()
}

fn looks(ticket: &Ticket) -> usize {
    lock(&ticket.queue.order).looks
}

/// Lets a request arrive, be admitted and leave. Returns the number of entries that the queue looks at.
fn overtake(limiter: &Limiter, other: &Ticket, now: Time) -> usize {
    let before = looks(other);
    let ticket = limiter.enqueue(now, 1, None).expect("no latest time");
    assert_eq!(ticket.position(now, Waker::noop()), Position::Head);
    limiter.charge(now, 1).expect("there is room");
    drop(ticket);
    looks(other) - before
}

#[test]
fn requests_that_stand_aside_cost_those_behind_them_nothing() {
    let of = |count| {
        let limiter = limiter(1_000);
        let tickets = tickets(&limiter, count);
        tickets.iter().for_each(|ticket| ticket.step_aside(LATER));
        let arrivals = looks(&tickets[0]);
        (arrivals / count, overtake(&limiter, &tickets[0], START))
    };
    assert_eq!(of(100), of(10_000));
}

#[test]
fn requests_that_did_not_come_cost_those_behind_them_nothing() {
    // With a third of a second for each request, a forecast admits the requests in the queue one by one.
    for requests in [1_000, 3] {
        let of = |count| {
            let limiter = limiter(requests);
            let tickets = tickets(&limiter, count);
            overtake(&limiter, &tickets[0], LATER);
            overtake(&limiter, &tickets[0], LATER)
        };
        assert_eq!(of(100), of(10_000), "{requests} a second");
    }
}

#[test]
fn requests_that_stand_aside_reserve_nothing_also_if_they_stay_longer() {
    for requests in [1_000, 3] {
        let limiter = limiter(requests);
        let tickets = tickets(&limiter, 2_000);
        let newcomer = || limiter.enqueue(START, 1, Some(START));
        assert!(newcomer().is_err(), "{requests} a second");
        tickets.iter().for_each(|ticket| ticket.step_aside(START));
        tickets.iter().for_each(|ticket| ticket.step_aside(LATER));
        let newcomer = newcomer().expect("nothing is reserved");
        assert_eq!(newcomer.position(START, Waker::noop()), Position::Head, "{requests} a second");
    }
}
