//! A waker can own another ticket of the same queue. The queue must not drop a waker while its lock is held.
#![cfg(not(loom))]

use std::{
    num::NonZeroUsize,
    sync::{Arc, mpsc},
    task::{Wake, Waker},
    thread,
    time::Duration,
};

use weir_core::{Position, Quota, RuleLimiter, Strategy, Terms, Ticket, Time};

const NOW: Time = Time::from_nanos(1_700_000_000_000_000_000);

/// A waker that leaves the queue when it is dropped.
struct Owner {
    _ticket: Ticket,
}

impl Wake for Owner {
    fn wake(self: Arc<Self>) {}
}

/// Runs a test for a rule without and with keys, and fails if the test hangs.
fn in_time(test: fn(&RuleLimiter)) {
    let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None).expect("valid");
    let terms = || Terms::new([("limit", quota)]).expect("valid");
    for rule in [RuleLimiter::unkeyed(NOW, terms()), RuleLimiter::keyed(NOW, terms(), NonZeroUsize::MIN)] {
        let (done, is_done) = mpsc::channel();
        thread::spawn(move || {
            test(&rule);
            assert_eq!(rule.queue_len(b"key"), 0);
            done.send(()).expect("the test waits");
        });
        is_done.recv_timeout(Duration::from_secs(30)).expect("the queue neither hangs nor panics");
    }
}

fn enqueue(rule: &RuleLimiter) -> Ticket {
    rule.enqueue(NOW, b"key", 1, None).expect("there is no latest time")
}

/// Returns a ticket whose waker owns the next ticket.
fn ticket_that_owns_another(rule: &RuleLimiter) -> Ticket {
    let (first, second) = (enqueue(rule), enqueue(rule));
    assert_eq!(first.position(NOW, &Waker::from(Arc::new(Owner { _ticket: second }))), Position::Head);
    assert_eq!(rule.queue_len(b"key"), 2);
    first
}

#[test]
fn a_ticket_that_leaves_drops_its_waker_after_the_lock() {
    in_time(|rule| drop(ticket_that_owns_another(rule)));
}

#[test]
fn a_waker_that_is_replaced_is_dropped_after_the_lock() {
    in_time(|rule| {
        let first = ticket_that_owns_another(rule);
        assert_eq!(first.position(NOW, Waker::noop()), Position::Head);
        assert_eq!(rule.queue_len(b"key"), 1);
    });
}
