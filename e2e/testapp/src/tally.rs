//! Counts the outcomes of requests, and formats the counts.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::target::Answer;

/// The maximum number of causes of unanswered requests that the summary lists.
const MAX_CAUSES_LISTED: usize = 32;

/// The counts since the start, or between two times.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Requests that were sent, or whose sending failed.
    pub(crate) offered: u64,
    /// Requests that were answered with 2xx.
    pub(crate) allowed: u64,
    /// Requests that were answered with 429.
    pub(crate) limited: u64,
    /// Requests without an answer.
    pub(crate) errors: u64,
}

impl Counts {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            offered: self.offered - earlier.offered,
            allowed: self.allowed - earlier.allowed,
            limited: self.limited - earlier.limited,
            errors: self.errors - earlier.errors,
        }
    }

    pub(crate) fn line(self, at: Duration, as_json: bool) -> String {
        let Self { offered, allowed, limited, errors } = self;
        if as_json {
            json!({ "t": seconds(at), "offered": offered, "allowed": allowed, "limited": limited, "errors": errors })
                .to_string()
        } else {
            format!(
                "{:7.1} s  offered {offered:7}  allowed {allowed:7}  limited {limited:7}  errors {errors:5}",
                at.as_secs_f64()
            )
        }
    }
}

/// All counts of a run.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) counts: Counts,
    pub(crate) unsent: u64,
    by_status: BTreeMap<u16, u64>,
    limited_without_retry_after: u64,
    retry_after: Option<(u64, u64)>,
    latency_allowed: Vec<Duration>,
    latency_limited: Vec<Duration>,
    first_error: Option<String>,
    /// The number of requests without an answer, by the innermost error of the connection or the system.
    by_cause: BTreeMap<String, u64>,
}

impl Tally {
    pub(crate) fn record(&mut self, latency: Duration, result: anyhow::Result<Answer>) {
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                self.counts.errors += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
                let cause = error.root_cause().to_string();
                if self.by_cause.len() < MAX_CAUSES_LISTED || self.by_cause.contains_key(&cause) {
                    *self.by_cause.entry(cause).or_default() += 1;
                }
                return;
            }
        };
        *self.by_status.entry(answer.status).or_default() += 1;
        let (allowed, limited) = match answer.status {
            200..=299 => (1, 0),
            429 => (0, 1),
            _ => (0, 0),
        };
        self.counts.allowed += allowed;
        self.counts.limited += limited;
        if allowed == 1 {
            self.latency_allowed.push(latency);
        }
        if limited == 1 {
            self.latency_limited.push(latency);
            match answer.retry_after {
                Some(seconds) => {
                    let (least, most) = self.retry_after.unwrap_or((seconds, seconds));
                    self.retry_after = Some((least.min(seconds), most.max(seconds)));
                }
                None => self.limited_without_retry_after += 1,
            }
        }
    }

    pub(crate) fn summary(&mut self, took: Duration) -> Value {
        let Counts { offered, allowed, limited, errors } = self.counts;
        let mut summary = json!({
            "summary": true,
            "seconds": seconds(took),
            "offered": offered,
            "unsent": self.unsent,
            "allowed": allowed,
            "limited": limited,
            "errors": errors,
            "by_status": self.by_status.iter().map(|(status, count)| (status.to_string(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "limited_without_retry_after": self.limited_without_retry_after,
            "retry_after_min": self.retry_after.map(|(least, _)| least),
            "retry_after_max": self.retry_after.map(|(_, most)| most),
            "latency_ms": {
                "allowed": percentiles(&mut self.latency_allowed),
                "limited": percentiles(&mut self.latency_limited),
            },
        });
        if let Some(error) = &self.first_error {
            summary["first_error"] = json!(error);
            summary["by_cause"] = json!(self.by_cause);
        }
        summary
    }
}

/// Prints the summary: one line of JSON for programs, or one field per line for people.
pub(crate) fn print(summary: &Value, as_json: bool) {
    if as_json {
        println!("{summary}");
        return;
    }
    for (name, value) in summary.as_object().into_iter().flatten() {
        if name != "summary" {
            println!("{:<28} {value}", name.replace('_', " "));
        }
    }
}

fn percentiles(latencies: &mut [Duration]) -> Value {
    latencies.sort_unstable();
    json!({ "p50": percentile(latencies, 50), "p99": percentile(latencies, 99) })
}

/// A percentile by nearest rank, in milliseconds. None without samples.
fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    let latency = sorted.get(rank.checked_sub(1)?)?;
    Some((latency.as_secs_f64() * 1e6).round() / 1e3)
}

fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, retry_after: Option<u64>) -> anyhow::Result<Answer> {
        Ok(Answer { status, retry_after })
    }

    #[test]
    fn every_outcome_is_counted_once_and_in_its_place() {
        let mut tally = Tally::default();
        let ms = Duration::from_millis;
        tally.counts.offered = 7;
        tally.record(ms(1), answer(200, None));
        tally.record(ms(3), answer(204, None));
        tally.record(ms(5), answer(429, Some(2)));
        tally.record(ms(5), answer(429, Some(9)));
        tally.record(ms(5), answer(429, None));
        tally.record(ms(5), answer(503, None));
        tally.record(ms(5), Err(anyhow::anyhow!("connection refused")));
        let summary = tally.summary(ms(1500));
        assert_eq!(
            summary,
            json!({
                "summary": true, "seconds": 1.5, "offered": 7, "unsent": 0, "allowed": 2, "limited": 3, "errors": 1,
                "by_status": {"200": 1, "204": 1, "429": 3, "503": 1},
                "limited_without_retry_after": 1, "retry_after_min": 2, "retry_after_max": 9,
                "latency_ms": {"allowed": {"p50": 1.0, "p99": 3.0}, "limited": {"p50": 5.0, "p99": 5.0}},
                "first_error": "connection refused", "by_cause": {"connection refused": 1},
            })
        );
    }

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let hundred: Vec<_> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&hundred, 50), Some(50.0));
        assert_eq!(percentile(&hundred, 99), Some(99.0));
        assert_eq!(percentile(&hundred[..1], 99), Some(1.0));
        assert_eq!(percentile(&[], 50), None);
    }
}
