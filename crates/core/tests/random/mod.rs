//! Random quotas of every strategy, and arrivals near the edges: at whole intervals and window boundaries, and one
//! nanosecond before or after them.

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use weir_core::{Quota, Strategy as Counting};

use crate::suite::{self, STRATEGIES, is_window};

pub(crate) const START: u64 = 1_700_000_000_123_456_789;

/// The end of all tests, after 73 years; see `HORIZON` in `src/supply.rs`.
pub(crate) const END: u64 = START + (1 << 61);

/// Runs a property for every strategy, with inputs derived from its quotas. Fails with the smallest failure of each
/// strategy.
pub(crate) fn for_each_strategy<S: Strategy>(
    inputs: impl Fn(BoxedStrategy<Quota>) -> S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let failures = STRATEGIES.into_iter().filter_map(|counting| {
        let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
        let failure = TestRunner::new(config).run(&inputs(quotas_of(counting).boxed()), &property).err()?;
        Some(format!("{counting:?}: {failure}\n"))
    });
    let failures: String = failures.collect();
    assert!(failures.is_empty(), "{failures}");
}

/// Returns quotas of any strategy.
pub(crate) fn quotas() -> impl Strategy<Value = Quota> {
    prop::sample::select(STRATEGIES.to_vec()).prop_flat_map(quotas_of)
}

fn quotas_of(counting: Counting) -> impl Strategy<Value = Quota> {
    let numbers = prop_oneof![
        Just((3, 1_000)),
        Just((7, 86_400_000)),
        Just((600_000_000, 1_000)),
        Just((1_000_000_000, 1_000)),
        Just((1_000_000, 1)),
        (1..=12_u64, 1..=1_000_u64),
        (1..=1_000_u64, 1..=10_000_u64),
        (1..=1_000_000_u64, 1..=86_400_000_u64),
    ];
    let burst = prop::option::of(prop_oneof![1..=20_u64, 1..=1_000_000_000_u64]);
    let debt = prop_oneof![Just(0), 1..=20_u64, 1..=1_000_000_000_u64];
    (numbers, burst, debt).prop_map(move |((requests, millis), burst, debt)| {
        let period = Duration::from_millis(millis);
        // A long log takes much memory in each case.
        let requests = if counting == Counting::SlidingWindowLog { 1 + requests % 2_000 } else { requests };
        let quota = suite::quota(counting, requests, period);
        let burst = burst.filter(|_| !is_window(counting));
        match (counting, burst) {
            (_, None) => quota,
            (Counting::TokenBucketWithDebt, burst) => Quota::new(counting, requests, period, burst)
                .and_then(|quota| quota.with_debt(debt))
                .expect("within the bounds of the API"),
            _ => Quota::new(counting, requests, period, burst).expect("within the bounds of the API"),
        }
    })
}

/// One request. Its numbers are fractions of its quota's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// The wait after the last request, in thousandths of the time in which its cost flows in.
    wait: u32,
    /// Whether the request arrives at the next boundary of a window instead.
    at_boundary: bool,
    /// The nanoseconds to add to the wait.
    nudge: i8,
    /// The cost in thousandths of the largest cost. Zero is one request.
    share: u32,
    pub(crate) ask: What,
    /// The longest wait, in thousandths of a period.
    pub(crate) patience: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Charge,
    Reserve,
    ChargeAndGiveBack,
    ReserveAndGiveBack,
}

pub(crate) fn arrivals(most: usize) -> impl Strategy<Value = Vec<Arrival>> {
    let what = prop_oneof![
        4 => Just(What::Charge),
        3 => Just(What::Reserve),
        1 => Just(What::ChargeAndGiveBack),
        1 => Just(What::ReserveAndGiveBack),
    ];
    let wait = prop_oneof![3 => Just(0_u32), 2 => Just(1_000), 4 => 0..2_000_u32];
    let share = prop_oneof![3 => Just(0_u32), 2 => 0..1_200_u32];
    let patience = prop_oneof![Just(0_u32), 0..3_000_u32, Just(1_000_000)];
    let arrival = (wait, prop::bool::weighted(0.1), -1..=1_i8, share, what, patience).prop_map(
        |(wait, at_boundary, nudge, share, ask, patience)| Arrival { wait, at_boundary, nudge, share, ask, patience },
    );
    prop::collection::vec(arrival, 1..most)
}

impl Arrival {
    /// Returns the time at which the request arrives, and its cost.
    pub(crate) fn after(self, last: u64, quota: Quota) -> (u64, u64) {
        let period = quota.period().as_nanos();
        let cost = (u128::from(quota.most()) * u128::from(self.share) / 1_000).max(1);
        let flow = cost * period / u128::from(quota.requests()) * u128::from(self.wait) / 1_000;
        let wait = if self.at_boundary { period - u128::from(last) % period } else { flow };
        let wait = u64::try_from(wait).unwrap_or(u64::MAX).min(1 << 58).saturating_add_signed(i64::from(self.nudge));
        (last.saturating_add(wait), u64::try_from(cost).expect("a share of what fits"))
    }

    pub(crate) fn latest(self, now: u64, quota: Quota) -> u64 {
        let patience = quota.period().as_nanos() * u128::from(self.patience) / 1_000;
        now.saturating_add(u64::try_from(patience).unwrap_or(u64::MAX))
    }
}
