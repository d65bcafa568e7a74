//! The admissions of a greedy caller, which sends its next request as soon as it would be admitted. All strategies give
//! such a caller the whole limit, except the sliding window counter. `docs/strategies.md` contains these figures.
#![cfg(not(loom))]

mod suite;

use std::time::Duration;

use weir_core::{Limiter, Strategy, Time};

use self::suite::{STRATEGIES, at_once, quota};

const SECOND: u64 = 1_000_000_000;

/// The number of periods that are skipped at the start, and the number that are counted.
const PERIODS: [u64; 2] = [20, 100];

/// Returns the cost admitted per period on average after the first periods, in hundredths.
fn per_period(strategy: Strategy, requests: u64, cost: u64, start: u64) -> u64 {
    let limiter = Limiter::new(Time::from_nanos(start), quota(strategy, requests, Duration::from_nanos(SECOND)));
    let from = start.next_multiple_of(SECOND) + PERIODS[0] * SECOND;
    let (mut now, mut admitted) = (start, 0);
    while now < from + PERIODS[1] * SECOND {
        match limiter.charge(Time::from_nanos(now), cost) {
            Ok(_) => admitted += if now < from { 0 } else { cost },
            Err(refused) => {
                let wait = refused.retry_after().expect("it is within the burst");
                now += u64::try_from(wait.as_nanos()).expect("short");
            }
        }
    }
    admitted * 100 / PERIODS[1]
}

/// Returns different starts within a window.
fn starts() -> impl Iterator<Item = u64> {
    [0, 1, 300_000_000, 500_000_000, 999_999_999].into_iter().map(|within| 1_700_000_000 * SECOND + within)
}

#[test]
fn all_but_the_counter_give_their_limit() {
    for strategy in STRATEGIES.into_iter().filter(|strategy| *strategy != Strategy::SlidingWindowCounter) {
        for (requests, start) in
            [1, 2, 3, 10, 100, 1000].into_iter().flat_map(|n| starts().map(move |start| (n, start)))
        {
            let got = per_period(strategy, requests, 1, start);
            // A part of the first and of the last burst belongs to periods that are not counted.
            let off = got.abs_diff(requests * 100);
            assert!(off <= 100 * at_once(strategy, requests) / PERIODS[1], "{strategy:?}, {requests}: {got}");
        }
    }
}

#[test]
fn the_counter_gives_one_request_less() {
    for (requests, cost, expected) in [
        // Half of the limit: every second window admits nothing, because the previous window has some weight until the
        // end.
        (1, 1, 50),
        (2, 1, 100),
        (3, 1, 200),
        (5, 1, 400),
        (10, 1, 900),
        (20, 1, 1900),
        (100, 1, 9900),
        (1000, 1, 99_900),
        // A cost that divides the limit loses one such request.
        (10, 2, 800),
        (10, 5, 500),
        (10, 10, 500),
        (100, 10, 9000),
        (100, 50, 5000),
        // A cost that does not divide the limit leaves a remainder, which is lost in every window. No other request is
        // lost.
        (10, 3, 900),
        (10, 4, 800),
        (100, 30, 9000),
    ] {
        for start in starts() {
            let got = per_period(Strategy::SlidingWindowCounter, requests, cost, start);
            assert_eq!(got, expected, "{requests} a second at a cost of {cost} from {start}, in hundredths");
        }
    }
}
