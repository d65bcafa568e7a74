//! Parses the reports of the load, and computes rates.
//!
//! A rate is a sum over whole reports, divided by the time that these reports cover.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;

/// A line of `weir-testapp load --json`.
pub(crate) enum Line {
    Interval(Interval),
    Summary(Summary),
}

/// The counts of one interval, and its end in seconds since the start of the load.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Interval {
    t: f64,
    pub(crate) offered: u64,
    pub(crate) allowed: u64,
    pub(crate) limited: u64,
}

/// The counts of the whole load.
#[derive(Deserialize)]
pub(crate) struct Summary {
    pub(crate) offered: u64,
    pub(crate) allowed: u64,
    pub(crate) limited: u64,
    pub(crate) errors: u64,
    pub(crate) unsent: u64,
    pub(crate) first_error: Option<String>,
}

impl Line {
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        let parse = || {
            let value: serde_json::Value = serde_json::from_str(line)?;
            if value.get("summary").is_some() {
                serde_json::from_value(value).map(Self::Summary)
            } else {
                serde_json::from_value(value).map(Self::Interval)
            }
        };
        parse().with_context(|| format!("a line of the load: {line}"))
    }
}

/// All intervals so far, in order.
#[derive(Default)]
pub(crate) struct Rates {
    intervals: Vec<Interval>,
}

impl Rates {
    pub(crate) fn push(&mut self, interval: Interval) {
        self.intervals.push(interval);
    }

    /// The time from the start of the load to the end of the last interval.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_secs_f64(self.intervals.last().map_or(0.0, |interval| interval.t))
    }

    /// The counts of the last second.
    pub(crate) fn latest_second(&self) -> Interval {
        // Intervals can end slightly late, so this includes 50 ms more than a second.
        let since = self.now().as_secs_f64() - 1.05;
        let mut sum = Interval { t: self.now().as_secs_f64(), offered: 0, allowed: 0, limited: 0 };
        for (begin, interval) in self.spans().filter(|(begin, _)| *begin >= since) {
            debug_assert!(begin <= interval.t);
            sum.offered += interval.offered;
            sum.allowed += interval.allowed;
            sum.limited += interval.limited;
        }
        sum
    }

    /// The allowed requests per second over the intervals between `from` and `to`. None without such intervals.
    pub(crate) fn allowed_per_second(&self, from: Duration, to: Duration) -> Option<f64> {
        // An interval that should end at `to` ends a few milliseconds later.
        let (from, to) = (from.as_secs_f64() - 0.05, to.as_secs_f64() + 0.05);
        let (mut allowed, mut seconds) = (0, 0.0);
        for (begin, interval) in self.spans().filter(|(begin, interval)| *begin >= from && interval.t <= to) {
            allowed += interval.allowed;
            seconds += interval.t - begin;
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of requests in seconds")]
        let rate = allowed as f64 / seconds;
        (seconds > 0.0).then(|| (rate * 100.0).round() / 100.0)
    }

    /// All intervals, each with its start.
    fn spans(&self) -> impl Iterator<Item = (f64, &Interval)> {
        let begins = std::iter::once(0.0).chain(self.intervals.iter().map(|interval| interval.t));
        begins.zip(&self.intervals)
    }
}

/// Formats a rate, without a decimal zero.
pub(crate) fn show(rate: f64) -> String {
    let text = format!("{rate:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(intervals: &[(f64, u64)]) -> Rates {
        let interval = |&(t, allowed)| Interval { t, offered: 100, allowed, limited: 100 - allowed };
        Rates { intervals: intervals.iter().map(interval).collect() }
    }

    fn between(rates: &Rates, from: f64, to: f64) -> Option<f64> {
        rates.allowed_per_second(Duration::from_secs_f64(from), Duration::from_secs_f64(to))
    }

    #[test]
    fn only_what_lies_in_the_window_counts() {
        let rates = rates(&[(0.5, 90), (1.0, 20), (1.5, 22), (2.0, 99)]);
        assert_eq!(between(&rates, 0.5, 1.5), Some(42.0));
        assert_eq!(between(&rates, 0.0, 2.0), Some(115.5));
    }

    #[test]
    fn late_reports_are_divided_by_the_time_that_they_cover() {
        let rates = rates(&[(0.51, 10), (1.01, 10), (1.53, 20)]);
        assert_eq!(between(&rates, 0.5, 1.5), Some(29.41)); // 30 in 1.02 s
    }

    #[test]
    fn an_empty_window_has_no_rate() {
        assert_eq!(between(&rates(&[(0.5, 1)]), 3.0, 4.0), None);
        assert_eq!(between(&rates(&[]), 0.0, 4.0), None);
    }

    #[test]
    fn the_latest_second_is_the_last_five_reports_of_200_ms() {
        let rates = rates(&[(0.2, 1), (0.4, 2), (0.601, 4), (0.8, 8), (1.002, 16), (1.2, 32), (1.401, 64)]);
        assert_eq!(rates.latest_second().allowed, 4 + 8 + 16 + 32 + 64);
        assert_eq!(rates.latest_second().offered, 500);
    }

    #[test]
    fn lines_of_the_load_are_distinguished() {
        let interval = Line::parse(r#"{"t":1.0,"offered":5,"allowed":2,"limited":3,"errors":0}"#).expect("an interval");
        assert!(matches!(interval, Line::Interval(Interval { offered: 5, allowed: 2, limited: 3, .. })));
        let line = r#"{"summary":true,"offered":9,"allowed":4,"limited":5,"errors":0,"unsent":1,"by_status":{}}"#;
        assert!(matches!(Line::parse(line).expect("a summary"), Line::Summary(Summary { offered: 9, unsent: 1, .. })));
        assert!(Line::parse("connection refused").is_err());
    }

    #[test]
    fn whole_rates_are_shown_without_decimals() {
        assert_eq!((show(200.0).as_str(), show(33.333).as_str()), ("200", "33.3"));
    }
}
