//! The tables, charts and aims of many agents.

use super::{AGENTS, CONTENDERS, Found, LOADS, run::Sample};
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{Spread, figure, float},
};

/// A figure: its title with the unit, and its value.
type Figure = (&'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 9] = [
    ("trips per request", |sample| sample.trips),
    ("CPU of Redis per request, µs", |sample| sample.store_cpu),
    ("seats lost, %", |sample| sample.lost),
    ("excess", |sample| sample.excess),
    ("limit used, %", |sample| sample.used),
    ("admitted", |sample| sample.admitted),
    ("P50, ms", |sample| sample.p50),
    ("P99, ms", |sample| sample.p99),
    ("agents that lost Redis", |sample| sample.cut_off),
];

/// The aims.
const MOST_LOST: f64 = 7.0;
const LEAST_USED: f64 = 93.0;

/// Probes and seats that are given back make some more round trips.
const NEARLY: f64 = 1.01;

const WEIR: usize = 0;
const TRIP: usize = 1;

pub(super) fn write(found: &Found, part: &mut Part<'_>) {
    aims(found, part);
    for (load, by_agents) in LOADS.iter().zip(found) {
        let rows = AGENTS.iter().zip(by_agents).flat_map(|(agents, by_contender)| {
            CONTENDERS.iter().zip(by_contender).map(move |((name, _), samples)| {
                Row::new(
                    format!("{} agents, {name}", counted(*agents)),
                    FIGURES.iter().map(|(_, value)| Cell::Measured(Spread::over(samples, *value))),
                )
            })
        });
        part.table(
            Table::new(load.name, "contender", FIGURES.map(|(title, _)| title), rows)
                .note(format!("{} requests a second.", counted(usize::try_from(load.rate).unwrap_or_default()))),
        );
    }
    for (name, figure_of) in [("trips", FIGURES[0]), ("cpu", FIGURES[1])] {
        let bars = LOADS.iter().zip(found).filter(|(load, _)| load.keys == 1).flat_map(|(load, by_agents)| {
            AGENTS.iter().zip(by_agents).map(move |(agents, by_contender)| {
                let load = load.name.trim_start_matches("one key, ");
                (format!("{} agents, {load}", counted(*agents)), Spread::over(&by_contender[WEIR], figure_of.1).median)
            })
        });
        part.bars(Bars::new(name, format!("one key, {}", figure_of.0), figure_of.0, bars));
    }
}

/// `10`, or `1,000`.
fn counted(count: usize) -> String {
    if count < 100 { count.to_string() } else { figure(float(count)) }
}

fn aims(found: &Found, part: &mut Part<'_>) {
    let all = |contender: usize| {
        found.iter().flatten().flat_map(move |by_contender: &Vec<Vec<Sample>>| by_contender[contender].iter())
    };
    let most = |contender: usize, value: fn(&Sample) -> f64| all(contender).map(value).fold(0.0, f64::max);
    let excess = most(WEIR, |sample| sample.excess);
    part.aim("no round of any load has an excess", figure(excess), excess <= 0.0);
    for (load, by_agents) in LOADS.iter().zip(found) {
        let each = |value: fn(&Sample) -> f64, contender: usize| -> Vec<f64> {
            by_agents.iter().map(|by_contender| Spread::over(&by_contender[contender], value).median).collect()
        };
        let told = |values: &[f64]| {
            let each = AGENTS
                .iter()
                .zip(values)
                .map(|(agents, value)| format!("{} agents {}", counted(*agents), figure(*value)));
            each.collect::<Vec<_>>().join(", ")
        };
        let [ours, theirs] = [WEIR, TRIP].map(|contender| each(|sample| sample.trips, contender));
        let is_fewer = ours.iter().zip(&theirs).all(|(ours, theirs)| *ours <= theirs * NEARLY);
        part.aim(&format!("{}: no more trips than one per request", load.name), told(&ours), is_fewer);
        let [ours, theirs] = [WEIR, TRIP].map(|contender| each(|sample| sample.store_cpu, contender));
        let times: Vec<_> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let is_less = times.iter().all(|times| *times <= 1.0);
        part.aim(
            &format!("{}: no more CPU of Redis than with one trip per request", load.name),
            format!("times: {}", told(&times)),
            is_less,
        );
        let lost = each(|sample| sample.lost, WEIR);
        let is_kept = lost.iter().all(|lost| *lost <= MOST_LOST);
        part.aim(&format!("{}: at most {MOST_LOST} % of the seats are lost", load.name), told(&lost), is_kept);
        let used = each(|sample| sample.used, WEIR);
        let is_used = used.iter().all(|used| *used >= LEAST_USED);
        part.aim(
            &format!("{}: at least {LEAST_USED} % of what is possible is admitted", load.name),
            told(&used),
            is_used,
        );
    }
    let [cut_off, unanswered] = [most(WEIR, |sample| sample.cut_off), most(WEIR, |sample| sample.unanswered)];
    part.aim(
        "no agent loses Redis, and every request is answered",
        format!("{} agents, {} requests", figure(cut_off), figure(unanswered)),
        cut_off <= 0.0 && unanswered <= 0.0,
    );
}
