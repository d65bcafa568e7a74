//! An oracle: one central limiter, which checks admissions in the order of their times by the definition of each
//! strategy, in exact arithmetic. It shares no code with the code under test: no levels, no marks, no slots.

use weir_core::{Quota, Strategy};

/// An admission: its time in microseconds, and its number of units.
pub(crate) type Admission = (u64, u64);

/// Lists the admissions that violate a quota. Empty if there are none.
pub(crate) fn excess(quota: Quota, admissions: &[Admission]) -> Vec<String> {
    let mut sorted = admissions.to_vec();
    sorted.sort_unstable();
    let (requests, period) = (i128::from(quota.requests()), period_of(quota));
    let mut faults = Vec::new();
    match quota.strategy() {
        Strategy::FixedWindow => {
            let mut window = (0, 0);
            for (at, units) in sorted {
                let index = i128::from(at) / period;
                window = if window.0 == index { (index, window.1 + i128::from(units)) } else { (index, units.into()) };
                if window.1 > requests {
                    faults.push(format!("{} of {requests} in the window of {at}", window.1));
                }
            }
        }
        Strategy::SlidingWindowCounter => {
            for (place, &(at, _)) in sorted.iter().enumerate() {
                let at = i128::from(at);
                let window = at / period;
                let count = |index: i128| -> i128 {
                    let of = |&&(time, _): &&Admission| i128::from(time) / period == index;
                    sorted[..=place].iter().filter(of).map(|&(_, units)| i128::from(units)).sum()
                };
                let rest = period - at % period;
                if count(window - 1) * rest + count(window) * period > requests * period {
                    faults.push(format!("{} after {} at {at}", count(window), count(window - 1)));
                }
            }
        }
        Strategy::SlidingWindowLog => {
            for (place, &(at, _)) in sorted.iter().enumerate() {
                let recent = |&&(time, _): &&Admission| i128::from(time) + period > i128::from(at);
                let sum: u64 = sorted[..=place].iter().filter(recent).map(|&(_, units)| units).sum();
                if i128::from(sum) > requests {
                    faults.push(format!("{sum} of {requests} in the period before {at}"));
                }
            }
        }
        Strategy::LeakyBucket => {
            // The next request can arrive when this one has drained.
            let mut drained = 0;
            for (at, units) in sorted {
                let at = i128::from(at) * requests;
                if at < drained {
                    faults.push(format!("{} of a microsecond too early at {at}", drained - at));
                }
                drained = at.max(drained) + i128::from(units) * period;
            }
        }
        Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => {
            let most = i128::from(quota.burst() + quota.debt()) * period;
            let (mut tokens, mut last) = (most, 0);
            for (at, units) in sorted {
                tokens = most.min(tokens + (i128::from(at) - last) * requests) - i128::from(units) * period;
                last = at.into();
                if tokens < 0 {
                    faults.push(format!("{tokens} tokens in units of 1/{period} at {at}"));
                }
            }
        }
    }
    faults
}

/// The maximum number of units that a quota allows between two times under constant load.
pub(crate) fn possible(quota: Quota, from: u64, to: u64) -> f64 {
    let (requests, period) = (quota.requests() as f64, period_of(quota) as f64);
    let flow = (to - from) as f64 * requests / period;
    match quota.strategy() {
        Strategy::FixedWindow => (to / quota_period(quota) - from / quota_period(quota) + 1) as f64 * requests,
        Strategy::SlidingWindowCounter => flow,
        Strategy::SlidingWindowLog => flow.max(requests),
        Strategy::LeakyBucket => flow + 1.0,
        Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => {
            flow + (quota.burst() + quota.debt()) as f64
        }
    }
}

fn quota_period(quota: Quota) -> u64 {
    u64::try_from(quota.period().as_micros()).expect("a period")
}

fn period_of(quota: Quota) -> i128 {
    quota_period(quota).into()
}

mod tests {
    use std::time::Duration;

    use super::*;

    /// The oracle reports one request too many, and reports nothing without it.
    #[test]
    fn one_too_many_is_found() {
        let second = 1_000_000;
        let quota = |strategy, burst| Quota::new(strategy, 4, Duration::from_secs(1), burst).expect("a quota");
        for (strategy, burst, most, then) in [
            (Strategy::FixedWindow, None, 4, second),
            (Strategy::SlidingWindowLog, None, 4, second),
            (Strategy::SlidingWindowCounter, None, 4, 2 * second),
            (Strategy::TokenBucket, Some(7), 7, 7 * second / 4),
            (Strategy::Gcra, None, 1, second / 4),
            (Strategy::LeakyBucket, None, 1, second / 4),
        ] {
            let quota = quota(strategy, burst);
            let start = 100 * second;
            let good: Vec<_> = (0..most).map(|_| (start, 1)).chain((0..most).map(|_| (start + then, 1))).collect();
            if strategy != Strategy::LeakyBucket {
                assert_eq!(excess(quota, &good), [""; 0], "{strategy:?}");
            }
            let bad: Vec<_> = good.iter().copied().chain([(start + then - 1, 1)]).collect();
            assert!(!excess(quota, &bad).is_empty(), "{strategy:?}");
        }
    }
}
