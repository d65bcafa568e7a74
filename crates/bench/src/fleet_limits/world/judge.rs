//! Judges the decisions of a contender: against the limit, and against a central limiter with the same requests.

use std::collections::BTreeMap;

use super::{
    decisions::{Decision, Run},
    peers::central,
    traffic::{MILLI, SECOND, Traffic},
};
use crate::{
    shared::oracle::{SharedLimit, excess},
    stats::{Spread, float, quantile},
};

/// The time over which the use of the limit is compared after the load moves.
const AFTER_A_MOVE: u64 = 500 * MILLI;
/// The steps of that comparison.
const STEP: u64 = 50 * MILLI;
const NEARLY_ALL: f64 = 0.9;

/// The figures of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in super::super) struct Verdict {
    /// Admitted requests, in percent of what the central limiter admits.
    pub(in super::super) used: f64,
    /// The most by which the admissions exceed the limit between any two moments.
    pub(in super::super) excess: f64,
    /// Requests that were refused and that the central limiter admits, in percent of all.
    pub(in super::super) false_refusals: f64,
    pub(in super::super) messages_per_request: f64,
    /// The 99th percentile of the time of a decision, in milliseconds.
    pub(in super::super) p99: f64,
    /// What was used in the first second after the load moved, in percent of what the central limiter admits then.
    pub(in super::super) first_second: Option<f64>,
    /// The time after the move from which 90 % of the limit are used, in seconds.
    pub(in super::super) until_90: Option<f64>,
}

/// A figure of a verdict, if the verdict has it.
pub(in super::super) type Value = fn(&Verdict) -> Option<f64>;

/// Above the limit, a contender can admit other requests than the central limiter, so this figure says nothing there.
pub(super) const FALSE_REFUSALS: &str = "false refusals, %";
pub(in super::super) const MESSAGES: &str = "messages per request";

/// The figures of the tables, with their titles.
pub(in super::super) const FIGURES: [(&str, Value); 7] = [
    ("limit used, %", |verdict| Some(verdict.used)),
    ("excess", |verdict| Some(verdict.excess)),
    (FALSE_REFUSALS, |verdict| Some(verdict.false_refusals)),
    (MESSAGES, |verdict| Some(verdict.messages_per_request)),
    ("P99, ms", |verdict| Some(verdict.p99)),
    ("first second, %", |verdict| verdict.first_second),
    ("until 90 %, s", |verdict| verdict.until_90),
];

/// The figure of those verdicts that have it.
pub(in super::super) fn spread(verdicts: &[Verdict], value: Value) -> Option<Spread> {
    Spread::of_any(verdicts.iter().filter_map(value))
}

/// The most by which the admissions exceed the limit in any time.
pub(in super::super) fn excess_of(traffic: &Traffic, run: &Run) -> u64 {
    let limit = SharedLimit { requests: traffic.limit, millis: SECOND / MILLI };
    let admitted = run.decisions.iter().filter(|decision| decision.is_admitted);
    excess(&admitted.map(|decision| (0, decision.begun, decision.ended)).collect::<Vec<_>>(), limit)
}

pub(in super::super) fn judge(traffic: &Traffic, run: &Run) -> Verdict {
    assert_eq!(run.decisions.len(), traffic.requests.len(), "each request has a decision");
    let ideal = central(traffic);
    let (from, until) = traffic.measured;
    let within = |from: u64, until: u64, of: &Run| {
        let is_within = |decision: &&Decision| decision.is_admitted && decision.begun >= from && decision.begun < until;
        float(of.decisions.iter().filter(is_within).count())
    };
    let part = |from: u64, until: u64| within(from, until, run) / within(from, until, &ideal).max(1.0);
    let measured = || run.decisions.iter().zip(&ideal.decisions).filter(|(it, _)| it.begun >= from && it.begun < until);
    let requests = float(measured().count());
    let refused = float(measured().filter(|(ours, ideal)| !ours.is_admitted && ideal.is_admitted).count());
    let mut took: Vec<u64> = measured().map(|(ours, _)| ours.ended - ours.begun).collect();
    took.sort_unstable();
    let until_90 = traffic.moves_at.map(|moved| {
        let is_used = |from: &u64| part(*from, from + AFTER_A_MOVE) >= NEARLY_ALL;
        let first = (moved..until).step_by(usize::try_from(STEP).unwrap_or(usize::MAX)).find(is_used);
        float(first.unwrap_or(until) - moved) / 1e6
    });
    Verdict {
        used: 100.0 * part(from, until),
        excess: float(excess_of(traffic, run)),
        false_refusals: 100.0 * refused / requests.max(1.0),
        messages_per_request: float(run.messages) / float(traffic.requests.len()),
        p99: float(quantile(&took, 990)) / 1e3,
        first_second: traffic.moves_at.map(|moved| 100.0 * part(moved, moved + SECOND)),
        until_90,
    }
}

/// The admitted requests per second, over the time in seconds.
pub(in super::super) fn rates(run: &Run) -> Vec<(f64, f64)> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for decision in &run.decisions {
        *counts.entry(decision.begun / AFTER_A_MOVE).or_default() += u64::from(decision.is_admitted);
    }
    // The last step is not over.
    counts.pop_last();
    let length = float(AFTER_A_MOVE) / 1e6;
    counts.into_iter().map(|(step, count)| (float(step) * length, float(count) / length)).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::traffic::SCENARIOS, *};

    #[test]
    fn the_central_limiter_is_perfect() {
        for scenario in SCENARIOS {
            let traffic = scenario.traffic(3);
            let verdict = judge(&traffic, &central(&traffic));
            assert_eq!((verdict.used, verdict.excess, verdict.false_refusals), (100.0, 0.0, 0.0), "{}", scenario.name);
            assert_eq!(verdict.until_90.unwrap_or_default(), 0.0, "{}", scenario.name);
        }
    }

    #[test]
    fn what_is_admitted_too_much_or_too_little_is_seen() {
        let traffic = SCENARIOS[5].traffic(3);
        let mut run = central(&traffic);
        run.decisions.iter_mut().for_each(|decision| decision.is_admitted = true);
        let verdict = judge(&traffic, &run);
        assert!(verdict.excess > 60_000.0, "{verdict:?}");
        // Nothing is admitted for two seconds after the move.
        let mut run = central(&traffic);
        let moved = traffic.moves_at.expect("the load moves");
        for decision in &mut run.decisions {
            decision.is_admitted &= decision.begun < moved || decision.begun >= moved + 2 * SECOND;
        }
        let verdict = judge(&traffic, &run);
        assert_eq!((verdict.excess, verdict.first_second), (0.0, Some(0.0)));
        assert!(verdict.until_90.is_some_and(|until| (1.9..=2.0).contains(&until)), "{verdict:?}");
        assert!(verdict.false_refusals > 4.0, "{verdict:?}");
    }
}
