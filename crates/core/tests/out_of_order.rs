//! Threads read the clock in one order and are charged in another order. A refusal still contains a wait, and a caller
//! that waits this long is admitted.
#![cfg(not(loom))]

mod suite;

use std::time::Duration;

use proptest::prelude::*;
use weir_core::{Limiter, RuleLimiter, Strategy as Counted, Terms, Time};

use self::suite::{STRATEGIES, quota};

const START: u64 = 1_700_000_000_000_000_000;

/// A time in milliseconds, and a cost.
type Request = (u64, u64);

/// Returns a limiter of ten per second after these decisions.
fn after(strategy: Counted, requests: &[Request]) -> Limiter {
    let limiter = Limiter::new(at(0), quota(strategy, 10, Duration::from_secs(1)));
    for &(millis, cost) in requests {
        let _ = limiter.charge(at(millis), cost);
    }
    limiter
}

fn at(millis: u64) -> Time {
    Time::from_nanos(START + millis * 1_000_000)
}

/// Returns the fault of the last decision, if it has a fault.
fn wrong(strategy: Counted, requests: &[Request]) -> Option<String> {
    let (&(millis, cost), before) = requests.split_last()?;
    let now = at(millis);
    let Err(refused) = after(strategy, before).charge(now, cost) else {
        return None;
    };
    if cost > refused.standing.quota().most() {
        return refused.retry_after().map(|wait| format!("{cost} is never admitted, but has a wait of {wait:?}"));
    }
    let Some(wait) = refused.retry_after() else {
        return Some("no wait".to_owned());
    };
    if wait.is_zero() {
        return Some("refused, with a wait of zero".to_owned());
    }
    if refused.standing.remaining() >= cost {
        return Some(format!("refused with {} left", refused.standing.remaining()));
    }
    let again = after(strategy, requests).charge(now.saturating_add(wait), cost);
    again.err().map(|again| format!("refused again after {wait:?}: {again}"))
}

/// The second thread read the clock first.
#[test]
fn a_log_whose_second_entry_is_older_than_its_first_says_when_to_come_back() {
    let requests = [(100, 1), (50, 1), (60, 8), (1070, 2)];
    assert_eq!(wrong(Counted::SlidingWindowLog, &requests), None);
    let refused =
        after(Counted::SlidingWindowLog, &requests[..3]).charge(at(1070), 2).expect_err("the first is too young");
    assert_eq!((refused.retry_after(), refused.standing.remaining()), (Some(Duration::from_millis(30)), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_caller_that_waits_as_long_as_retry_after_is_admitted(
        requests in prop::collection::vec((0..40_u64, 0..300_u64, 1..=11_u64), 1..24),
    ) {
        // Some threads read the clock up to 300 ms before they are charged.
        let mut elapsed = 400;
        let requests: Vec<Request> = requests.into_iter().map(|(on, late, cost)| {
            elapsed += on * 4;
            (elapsed - late, cost)
        }).collect();
        for strategy in STRATEGIES {
            for end in 1..=requests.len() {
                let wrong = wrong(strategy, &requests[..end]);
                prop_assert!(wrong.is_none(), "{strategy:?}, {:?}: {}", &requests[..end], wrong.unwrap_or_default());
            }
        }
    }

    #[test]
    fn a_peek_says_what_a_charge_would(
        requests in prop::collection::vec((0..40_u64, 0..300_u64, 1..=10_u64), 1..24),
    ) {
        for strategy in STRATEGIES {
            let terms = Terms::new([("limit", quota(strategy, 10, Duration::from_secs(1)))]).expect("valid");
            let rule = RuleLimiter::unkeyed(at(0), terms);
            let mut elapsed = 400;
            for &(on, late, cost) in &requests {
                elapsed += on * 4;
                let now = at(elapsed - late);
                let peeked = rule.peek(now, b"", cost).is_ok();
                prop_assert_eq!(peeked, rule.charge(|| now, b"", cost).is_ok(), "{:?}, {:?}", strategy, &requests);
            }
        }
    }
}
