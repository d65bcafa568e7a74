//! The tables, charts and aims of the crowd.

use std::time::Duration;

use super::{AGENT, AGENT_WAIT, CONTENDERS, Load, Outcome, most};
use crate::{
    proxy::Answer,
    report::{Bars, Cell, Part},
    rounds::{Figure, Rounds},
    stacks,
    stats::{figure as shown, float, quantile_ms},
};

type Value = fn(&Outcome) -> f64;

/// The cases.
pub(super) const BURST: usize = 0;
const CLIENTS: usize = 1;

const fn figure(title: &'static str, of: Value) -> Figure<Outcome> {
    Figure { title, unit: "", of, more_is_better: false }
}

const SERVED: Figure<Outcome> = figure("served", |outcome| count(outcome, Answer::is_served));
const TOOK: Figure<Outcome> = figure("took, s", |outcome| took(outcome).as_secs_f64());
const NOT_SERVED_P99: Figure<Outcome> = figure("not served P99, ms", |outcome| answered(outcome, false, 990));
const READY_P99: Figure<Outcome> = figure("to readiness P99, ms", |outcome| quantile_ms(&outcome.arrivals, 990));
const PEAK: Figure<Outcome> = figure("peak, MB", |outcome| megabytes(outcome.peak));

const OF_BURST: [Figure<Outcome>; 11] = [
    SERVED,
    figure("refused or shed", |outcome| count(outcome, |answer| matches!(answer.status, 429 | 503))),
    figure("timed out", |outcome| count(outcome, |answer| answer.status == 504)),
    figure("broken", |outcome| count(outcome, |answer| !matches!(answer.status, 200 | 429 | 503 | 504))),
    TOOK,
    figure("served P50, ms", |outcome| answered(outcome, true, 500)),
    figure("served P99, ms", |outcome| answered(outcome, true, 990)),
    figure("not served P50, ms", |outcome| answered(outcome, false, 500)),
    NOT_SERVED_P99,
    figure("to readiness P50, ms", |outcome| quantile_ms(&outcome.arrivals, 500)),
    READY_P99,
];

const MEMORY: [Figure<Outcome>; 3] = [
    figure("before the burst, MB", |outcome| megabytes(outcome.idle)),
    PEAK,
    figure("more for the burst, MB", |outcome| megabytes(outcome.peak - outcome.idle.min(outcome.peak))),
];

const PER_SECOND: Figure<Outcome> =
    figure("requests a second", |outcome| count(outcome, |_| true) / took(outcome).as_secs_f64());
const P50: Figure<Outcome> = figure("P50, ms", |outcome| answered(outcome, true, 500));
const P99: Figure<Outcome> = figure("P99, ms", |outcome| answered(outcome, true, 990));
const OF_CLIENTS: [Figure<Outcome>; 4] = [PER_SECOND, P50, P99, Figure { title: "peak memory, MB", ..PEAK }];

fn count(outcome: &Outcome, counts: impl Fn(&Answer) -> bool) -> f64 {
    float(outcome.answers.iter().filter(|answer| counts(answer)).count())
}

/// A quantile of those that were served, or of the others, in milliseconds.
fn answered(outcome: &Outcome, served: bool, per_mille: usize) -> f64 {
    let answers = outcome.answers.iter().filter(|answer| answer.is_served() == served);
    let mut times: Vec<_> = answers.map(|answer| answer.took).collect();
    times.sort();
    quantile_ms(&times, per_mille)
}

/// From the first request to the last answer.
fn took(outcome: &Outcome) -> Duration {
    let first = outcome.answers.iter().map(|answer| answer.started).min().unwrap_or_default();
    let last = outcome.answers.iter().map(|answer| answer.started + answer.took).max().unwrap_or_default();
    last.saturating_sub(first)
}

fn megabytes(bytes: u64) -> f64 {
    float(bytes) / 1e6
}

pub(super) fn write(found: &Rounds<Outcome>, load: Load, part: &mut Part<'_>) {
    aims(found, part);
    let mut results = found.of_case(BURST, "burst, results of all requests", "contender", &OF_BURST).note(BURST_NOTE);
    results.columns.push("most admitted, %".to_owned());
    for (place, row) in results.rows.iter_mut().enumerate() {
        let highest = found.values(BURST, place, |outcome| most(outcome, load)).into_iter().fold(0.0, f64::max);
        row.cells.push(Cell::Number(highest * 100.0));
    }
    part.table(results);
    part.table(found.of_case(BURST, "burst, resident memory", "contender", &MEMORY));
    part.table(found.of_case(CLIENTS, "1,000 clients on one limit", "contender", &OF_CLIENTS));
    for (name, title, unit, case, figure) in [
        ("served", "burst, served of the crowd", "requests", BURST, SERVED),
        ("answers", "burst, time to an answer of those not served, P99", "ms, less is better", BURST, NOT_SERVED_P99),
        ("memory", "burst, peak memory", "MB, less is better", BURST, PEAK),
        ("clients", "1,000 clients on one limit", "requests a second, more is better", CLIENTS, PER_SECOND),
    ] {
        part.bars(Bars::new(name, title, unit, found.bars(case, figure.of)));
    }
}

const BURST_NOTE: &str = "\
*Most admitted* is the highest number of arrivals at the app, at any moment of any round, in percent of what a bucket of \
10,000 allows by then. tower's RateLimit counts in windows, which may admit more.";

fn aims(found: &Rounds<Outcome>, part: &mut Part<'_>) {
    let of = |case: usize, name: &str, figure: &Figure<Outcome>| {
        let place = CONTENDERS.iter().position(|contender| *contender == name).unwrap_or_default();
        found.median(case, place, figure.of)
    };
    let peers = &CONTENDERS[..5];
    // A layer that waits is compared with layers that wait, and one that refuses with those that refuse.
    let pairs = [(AGENT, stacks::SHOT_LATENCY), (AGENT_WAIT, stacks::SHOT_THROUGHPUT)];
    for (ours, theirs) in pairs {
        let served = |name| of(BURST, name, &SERVED) / of(BURST, name, &TOOK);
        part.aim(
            &format!("burst: {ours} serves as many a second as {theirs}, 5 % for noise"),
            format!("{}/s against {}/s", shown(served(ours)), shown(served(theirs))),
            served(ours) * 1.05 >= served(theirs),
        );
        for (title, unit, value) in [("P99 to readiness", "ms", &READY_P99), ("peak memory", "MB", &PEAK)] {
            let (mine, other) = (of(BURST, ours, value), of(BURST, theirs, value));
            part.aim(
                &format!("burst: {ours}, {title} no more than that of {theirs}, 5 % for noise"),
                format!("{} {unit} against {} {unit}", shown(mine), shown(other)),
                mine <= other * 1.05,
            );
        }
    }
    let best = |figure: &Figure<Outcome>, pick: fn(f64, f64) -> f64, from: f64| {
        peers.iter().map(|peer| of(CLIENTS, peer, figure)).fold(from, pick)
    };
    let (mine, other) = (of(CLIENTS, AGENT, &PER_SECOND), best(&PER_SECOND, f64::max, 0.0));
    part.aim(
        "1,000 clients: more requests a second than every peer",
        format!("{} against {} of the best", shown(mine), shown(other)),
        mine > other,
    );
    for (title, value) in [("P50", &P50), ("P99", &P99)] {
        let (mine, other) = (of(CLIENTS, AGENT, value), best(value, f64::min, f64::INFINITY));
        part.aim(
            &format!("1,000 clients: {title} below every peer's"),
            format!("{} ms against {} ms of the best", shown(mine), shown(other)),
            mine < other,
        );
    }
}
