//! A store whose clock is set forward or back.

use std::time::Duration;

use weir_core::{Quota, Strategy};
use weir_seats::{MemoryStore, Next, Take, terms::StoreTerms};

use super::suite::key;

const START: u64 = 1_790_000_000_000_000;

const HOUR: u64 = 3_600_000_000;

fn terms(strategy: Strategy) -> (StoreTerms, u32) {
    let quota = Quota::new(strategy, 10, Duration::from_secs(60), None).expect("a quota");
    let terms = StoreTerms::new(1, &[(0, quota)]).expect("terms");
    let burst = if matches!(strategy, Strategy::LeakyBucket | Strategy::Gcra) { 1 } else { 10 };
    (terms, burst)
}

/// Each jump forward frees at most one burst, independent of its length.
#[test]
fn a_jump_forward_frees_one_burst() {
    for strategy in Strategy::ALL {
        let ((terms, burst), store) = (terms(strategy), MemoryStore::new());
        for now in [START, START + 90_000_000, START + 48 * HOUR, START + 480_000 * HOUR] {
            let all = Take { requests: 100, ..Take::new(&terms) };
            let granted = store.take(&key(1), &all, || now).expect("an answer").granted;
            assert!(0 < granted && granted <= burst, "{strategy:?}: {granted} at {now}");
            assert_eq!(store.take(&key(1), &all, || now).map(|reply| reply.granted), Ok(0), "{strategy:?}");
        }
    }
}

/// A clock that is set back frees no units immediately, and it blocks a key for a day at most.
#[test]
fn a_clock_that_is_set_back_frees_nothing_and_blocks_for_a_day_at_most() {
    for strategy in Strategy::ALL {
        for back in [1, 30_000_000, HOUR, 23 * HOUR, 25 * HOUR, 72 * HOUR, 400_000 * HOUR] {
            let ((terms, burst), store) = (terms(strategy), MemoryStore::new());
            let all = Take { requests: 100, ..Take::new(&terms) };
            let ask = |now| store.take(&key(1), &all, || now).expect("an answer");
            assert!(ask(START).granted > 0);
            let now = START - back;
            let told = format!("{strategy:?} set back by {back}");
            let refused = ask(now);
            assert_eq!(refused.granted, 0, "{told}");
            let Next::At(next) = refused.next else { panic!("{told}: {refused:?}") };
            assert!(next > now && next <= now + 24 * HOUR + 120_000_000, "{told}: {next} from {now}");
            let granted = ask(next).granted;
            assert!(0 < granted && granted <= burst, "{told}: {granted}");
        }
    }
}
