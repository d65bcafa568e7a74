//! The tables, charts and aims of the crowd.

use std::time::Duration;

use super::{AGENT, AGENT_WAIT, CONTENDERS, Found, Load, Outcome, most};
use crate::{
    proxy::Answer,
    report::{Bars, Cell, Part, Row, Table},
    stacks,
    stats::{Spread, figure, float, quantile_ms},
};

type Value = fn(&Outcome) -> f64;

/// A chart: its name, title and unit, and the figure of each contender.
type Chart<'a> = (&'static str, &'static str, &'static str, &'a [Vec<Outcome>], Value);

const BURST: [(&str, Value); 11] = [
    ("served", |outcome| count(outcome, Answer::is_served)),
    ("refused or shed", |outcome| count(outcome, |answer| matches!(answer.status, 429 | 503))),
    ("timed out", |outcome| count(outcome, |answer| answer.status == 504)),
    ("broken", |outcome| count(outcome, |answer| !matches!(answer.status, 200 | 429 | 503 | 504))),
    ("took, s", |outcome| took(outcome).as_secs_f64()),
    ("served P50, ms", |outcome| answered(outcome, true, 500)),
    ("served P99, ms", |outcome| answered(outcome, true, 990)),
    ("not served P50, ms", |outcome| answered(outcome, false, 500)),
    ("not served P99, ms", |outcome| answered(outcome, false, 990)),
    ("to readiness P50, ms", |outcome| quantile_ms(&outcome.arrivals, 500)),
    ("to readiness P99, ms", |outcome| quantile_ms(&outcome.arrivals, 990)),
];

const MEMORY: [(&str, Value); 3] = [
    ("before the burst, MB", |outcome| megabytes(outcome.idle)),
    ("peak, MB", |outcome| megabytes(outcome.peak)),
    ("more for the burst, MB", |outcome| megabytes(outcome.peak - outcome.idle.min(outcome.peak))),
];

const CLIENTS: [(&str, Value); 4] = [
    ("requests a second", |outcome| count(outcome, |_| true) / took(outcome).as_secs_f64()),
    ("P50, ms", |outcome| answered(outcome, true, 500)),
    ("P99, ms", |outcome| answered(outcome, true, 990)),
    ("peak memory, MB", |outcome| megabytes(outcome.peak)),
];

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

pub(super) fn write(found: &Found, load: Load, part: &mut Part<'_>) {
    aims(found, part);
    let highest = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| most(outcome, load)).fold(0.0, f64::max) * 100.0;
    let table = |title: &str, note: &str, columns: &[(&str, Value)], by_contender: &[Vec<Outcome>]| {
        let rows = CONTENDERS.iter().zip(by_contender).filter(|(_, outcomes)| !outcomes.is_empty());
        let rows = rows.map(|(name, outcomes)| {
            Row::new(*name, columns.iter().map(|(_, value)| Cell::Measured(Spread::over(outcomes, *value))))
        });
        Table::new(title, "contender", columns.iter().map(|(name, _)| *name), rows).note(note)
    };
    let mut results = table("burst, results of all requests", BURST_NOTE, &BURST, &found.bursts);
    results.columns.push("most admitted, %".to_owned());
    for (row, outcomes) in results.rows.iter_mut().zip(&found.bursts) {
        row.cells.push(Cell::Number(highest(outcomes)));
    }
    part.table(results);
    part.table(table("burst, resident memory", "", &MEMORY, &found.bursts));
    part.table(table("1,000 clients on one limit", "", &CLIENTS, &found.clients));
    let bars = |by_contender: &[Vec<Outcome>], value: Value| {
        let filled = CONTENDERS.iter().zip(by_contender).filter(|(_, outcomes)| !outcomes.is_empty());
        filled.map(|(name, outcomes)| ((*name).to_owned(), Spread::over(outcomes, value).median)).collect::<Vec<_>>()
    };
    let charts: [Chart<'_>; 4] = [
        ("served", "burst, served of the crowd", "requests", &found.bursts, BURST[0].1),
        (
            "answers",
            "burst, time to an answer of those not served, P99",
            "ms, less is better",
            &found.bursts,
            BURST[8].1,
        ),
        ("memory", "burst, peak memory", "MB, less is better", &found.bursts, MEMORY[1].1),
        ("clients", "1,000 clients on one limit", "requests a second, more is better", &found.clients, CLIENTS[0].1),
    ];
    for (name, title, unit, by_contender, value) in charts {
        part.bars(Bars::new(name, title, unit, bars(by_contender, value)));
    }
}

const BURST_NOTE: &str = "\
*Most admitted* is the highest number of arrivals at the app, at any moment of any round, in percent of what a bucket of \
10,000 allows by then. tower's RateLimit counts in windows, which may admit more.";

fn aims(found: &Found, part: &mut Part<'_>) {
    let of = |by_contender: &[Vec<Outcome>], name: &str, value: Value| {
        let place = CONTENDERS.iter().position(|contender| *contender == name).unwrap_or_default();
        Spread::over(&by_contender[place], value).median
    };
    let peers = &CONTENDERS[..5];
    // A layer that waits is compared with layers that wait, and one that refuses with those that refuse.
    let pairs = [(AGENT, stacks::SHOT_LATENCY), (AGENT_WAIT, stacks::SHOT_THROUGHPUT)];
    for (ours, theirs) in pairs {
        let served = |name| of(&found.bursts, name, BURST[0].1) / of(&found.bursts, name, BURST[4].1);
        part.aim(
            &format!("burst: {ours} serves as many a second as {theirs}, 5 % for noise"),
            format!("{}/s against {}/s", figure(served(ours)), figure(served(theirs))),
            served(ours) * 1.05 >= served(theirs),
        );
        for (title, value) in [("P99 to readiness", BURST[10].1), ("peak memory", MEMORY[1].1)] {
            let (mine, other) = (of(&found.bursts, ours, value), of(&found.bursts, theirs, value));
            let unit = if title == "peak memory" { "MB" } else { "ms" };
            part.aim(
                &format!("burst: {ours}, {title} no more than that of {theirs}, 5 % for noise"),
                format!("{} {unit} against {} {unit}", figure(mine), figure(other)),
                mine <= other * 1.05,
            );
        }
    }
    let best = |value: Value, pick: fn(f64, f64) -> f64, from: f64| {
        peers.iter().map(|peer| of(&found.clients, peer, value)).fold(from, pick)
    };
    let (mine, other) = (of(&found.clients, AGENT, CLIENTS[0].1), best(CLIENTS[0].1, f64::max, 0.0));
    part.aim(
        "1,000 clients: more requests a second than every peer",
        format!("{} against {} of the best", figure(mine), figure(other)),
        mine > other,
    );
    for (title, value) in [("P50", CLIENTS[1].1), ("P99", CLIENTS[2].1)] {
        let (mine, other) = (of(&found.clients, AGENT, value), best(value, f64::min, f64::INFINITY));
        part.aim(
            &format!("1,000 clients: {title} below every peer's"),
            format!("{} ms against {} ms of the best", figure(mine), figure(other)),
            mine < other,
        );
    }
}
