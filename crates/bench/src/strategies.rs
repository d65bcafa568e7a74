//! Computes the admissions of each strategy with the same traffic. No clock is read, so every run gives the same
//! result.
//!
//! The arrivals show the differences of the strategies. They are: half the limit, a burst around a window boundary,
//! twice the limit, a burst after a pause, and nearly the limit.

use std::time::Duration;

use anyhow::Context as _;
use weir_core::{Limiter, Quota, Strategy, Time};

use crate::{
    report::{Cell, LimitLine, Lines, Report, Row, Series, Table},
    stats::float,
};

/// The limit: 10 requests per second, with common values for the burst.
const REQUESTS: u64 = 10;
const PERIOD: Duration = Duration::from_secs(1);
const BURST: u64 = 20;
const DEBT: u64 = 10;

/// The duration of the traffic, and the resolution of the picture, in seconds.
const SECONDS: f64 = 30.0;
const STEP: f64 = 0.5;

/// The longest wait of a request that can wait.
const PATIENCE: Duration = Duration::from_secs(2);

struct Contender {
    name: &'static str,
    file: &'static str,
    strategy: Strategy,
    burst: Option<u64>,
    debt: u64,
    waits: bool,
}

const CONTENDERS: [Contender; 8] = [
    Contender::new("TokenBucket, burst 20", "token-bucket", Strategy::TokenBucket, Some(BURST)),
    Contender::new("GCRA, burst 1", "gcra", Strategy::Gcra, None),
    Contender::new("FixedWindow", "fixed-window", Strategy::FixedWindow, None),
    Contender::new("SlidingWindowCounter", "sliding-window-counter", Strategy::SlidingWindowCounter, None),
    Contender::new("SlidingWindowLog", "sliding-window-log", Strategy::SlidingWindowLog, None),
    Contender {
        debt: DEBT,
        ..Contender::new("TokenBucketWithDebt, burst 20, debt 10", "debt", Strategy::TokenBucketWithDebt, Some(BURST))
    },
    Contender::new("LeakyBucket, refused at once", "leaky-bucket", Strategy::LeakyBucket, Some(BURST)),
    Contender {
        waits: true,
        ..Contender::new("LeakyBucket, waiting up to 2 s", "leaky-bucket-wait", Strategy::LeakyBucket, Some(BURST))
    },
];

impl Contender {
    const fn new(name: &'static str, file: &'static str, strategy: Strategy, burst: Option<u64>) -> Self {
        Self { name, file, strategy, burst, debt: 0, waits: false }
    }

    /// Returns the times of admission of requests that arrive at these times.
    fn admitted(&self, arrivals: &[f64]) -> anyhow::Result<Vec<f64>> {
        let quota = Quota::new(self.strategy, REQUESTS, PERIOD, self.burst)?;
        let quota = if self.debt > 0 { quota.with_debt(self.debt)? } else { quota };
        // The start is at a window boundary.
        let start = Time::from_nanos(1_800_000_000_000_000_000);
        let limiter = Limiter::new(start, quota);
        let mut gone = Vec::new();
        for &arrival in arrivals {
            let now = start.saturating_add(Duration::from_secs_f64(arrival));
            let at = if self.waits {
                limiter.reserve(now, 1, now.saturating_add(PATIENCE)).ok().map(|reserved| reserved.at)
            } else {
                limiter.charge(now, 1).is_ok().then_some(now)
            };
            gone.extend(at.map(|at| at.duration_since(start).as_secs_f64()));
        }
        Ok(gone)
    }
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new(
        "strategies",
        "Strategies",
        "What each strategy admits of the same traffic, with a limit of 10 requests a second. All strategies get the \
         same arrivals. No clock is read, so every run gives the same result.",
        quick,
    )?;
    let arrivals = arrivals();
    let mut rows = Vec::new();
    for contender in &CONTENDERS {
        let gone = contender.admitted(&arrivals).with_context(|| contender.name)?;
        let (second, at) = busiest(&gone);
        rows.push(Row::new(
            contender.name,
            [
                Cell::Number(float(gone.len())),
                Cell::Number(float(arrivals.len() - gone.len())),
                Cell::Number(float(second)),
                Cell::Text(format!("{at:.2} s")),
            ],
        ));
        report.chart(Lines {
            name: contender.file.to_owned(),
            title: format!("{}: 10 requests in a second", contender.name),
            x: "seconds".to_owned(),
            y: "requests a second".to_owned(),
            series: vec![
                Series { name: "weir lets through".to_owned(), points: rates(&gone) },
                Series { name: "offered".to_owned(), points: rates(&arrivals) },
            ],
            limit: Some(LimitLine {
                at: f64::from(u32::try_from(REQUESTS)?) / PERIOD.as_secs_f64(),
                above: if contender.waits { "later or refused" } else { "refused" }.to_owned(),
            }),
        });
    }
    let note = format!(
        "{} requests arrive in {SECONDS:.0} s. The busiest second is the span of one second with the most admissions.",
        arrivals.len()
    );
    let columns = ["passed", "refused", "in the busiest second", "which began at"];
    report.table(Table::new("Admitted requests", "requests", columns, rows).note(note));
    Ok(report)
}

/// The times at which requests arrive.
fn arrivals() -> Vec<f64> {
    let mut all = Vec::new();
    let mut evenly = |from: f64, to: f64, rate: f64| {
        let mut at = from;
        while at < to - 1e-9 {
            all.push(at);
            at += 1.0 / rate;
        }
    };
    evenly(0.0, 4.5, 5.0); // half the limit
    evenly(4.75, 5.25, 100.0); // fifty requests around a window boundary
    evenly(8.0, 14.0, 20.0); // twice the limit
    evenly(20.0, 20.2, 200.0); // forty requests after a pause
    evenly(22.0, SECONDS, 9.0); // nearly the limit
    all
}

/// The rate in requests per second, for each step.
fn rates(moments: &[f64]) -> Vec<(f64, f64)> {
    let mut from = 0.0;
    let mut rates = Vec::new();
    while from < SECONDS {
        let within = moments.iter().filter(|at| (from..from + STEP).contains(*at)).count();
        rates.push((from, float(within) / STEP));
        from += STEP;
    }
    rates
}

/// The highest number of requests in any second, and the start of that second.
fn busiest(moments: &[f64]) -> (usize, f64) {
    let within = |from: f64| moments.iter().filter(|at| **at >= from && **at < from + 1.0 - 1e-9).count();
    moments
        .iter()
        .map(|from| (within(*from), *from))
        .max_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busiest_of(file: &str) -> usize {
        let contender = CONTENDERS.iter().find(|contender| contender.file == file).expect("a contender with this file");
        busiest(&contender.admitted(&arrivals()).expect("a valid quota")).0
    }

    #[test]
    fn no_strategy_passes_more_in_a_second_than_it_says() {
        assert_eq!(busiest_of("sliding-window-log"), 10);
        assert_eq!(busiest_of("gcra"), 10);
        assert_eq!(busiest_of("leaky-bucket-wait"), 10);
        assert_eq!(busiest_of("fixed-window"), 19); // nearly twice the limit, around a window boundary
        assert!((21..=30).contains(&busiest_of("token-bucket"))); // the burst, and the refill meanwhile
    }

    #[test]
    fn rates_count_every_request_once() {
        let arrivals = arrivals();
        let sum: f64 = rates(&arrivals).iter().map(|(_, rate)| rate * STEP).sum();
        assert!((sum - float(arrivals.len())).abs() < 1e-6);
    }
}
