//! The tables, charts and aims of the gateways.

use super::{CONTENDERS, Case, Sample};
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{self, Spread, figure},
};

/// A figure: title, unit, value, and whether more is better.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64, bool);

const FIGURES: [Figure; 5] = [
    ("throughput", "requests a second", |sample| sample.per_second, true),
    ("latency, P50", "ms", |sample| sample.p50, false),
    ("latency, P95", "ms", |sample| sample.p95, false),
    ("latency, P99", "ms", |sample| sample.p99, false),
    ("CPU per request", "µs", |sample| sample.cpu, false),
];

const OURS: usize = CONTENDERS.len() - 1;

/// Writes the cases of the closed loop, and the cases with a fixed rate, in which all gateways have the same throughput.
pub(super) fn write(cases: &[Case], steady: &[Case], part: &mut Part<'_>) {
    for figure in FIGURES {
        aim("", cases, figure, part);
    }
    for figure in &FIGURES[1..] {
        aim("at a fixed rate, ", steady, *figure, part);
    }
    for figure in FIGURES {
        table("", cases, figure, part);
    }
    for figure in &FIGURES[1..] {
        table("at a fixed rate, ", steady, *figure, part);
    }
    for connections in [100, 800] {
        let end = format!("{connections} connections");
        let bars = cases.iter().filter(|case| case.name.ends_with(&end)).flat_map(|case| {
            let short = case.name.strip_suffix(&end).unwrap_or_default().trim_end_matches(", ");
            let short = short.replace(" addresses", "");
            CONTENDERS.iter().zip(&case.samples).map(move |(name, samples)| {
                let median = Spread::over(samples, |sample| sample.per_second).median;
                (format!("{name}: {short}"), median)
            })
        });
        let title = format!("gateways, requests a second, {end}");
        part.bars(Bars::new(format!("throughput-{connections}"), title, "requests a second, more is better", bars));
    }
}

fn table(of: &str, cases: &[Case], (title, unit, value, more): Figure, part: &mut Part<'_>) {
    let row = |case: &Case| {
        let spreads = case.samples.iter().map(|samples| Spread::over(samples, value));
        let ratios = (0..OURS).map(|peer| Cell::Ratio { ratio: ratio(case, peer, value, more) });
        Row::new(case.name.clone(), spreads.map(Cell::Measured).chain(ratios))
    };
    let columns = CONTENDERS.iter().map(|name| (*name).to_owned());
    let ratios = CONTENDERS[..OURS].iter().map(|peer| format!("as good as {peer}"));
    let title = format!("gateways, {of}{title}, {unit}");
    part.table(Table::new(title, "case", columns.chain(ratios), cases.iter().map(row)));
}

/// How many times as good as the peer the agent is, in the median of rounds.
fn ratio(case: &Case, peer: usize, value: fn(&Sample) -> f64, more: bool) -> f64 {
    let values = |place: usize| case.samples[place].iter().map(value).collect::<Vec<_>>();
    if more { stats::ratio(&values(OURS), &values(peer)) } else { stats::ratio(&values(peer), &values(OURS)) }
}

fn aim(of: &str, cases: &[Case], (title, _, value, more): Figure, part: &mut Part<'_>) {
    let mut behind = Vec::new();
    let mut least = f64::INFINITY;
    for case in cases {
        for (peer, name) in CONTENDERS[..OURS].iter().enumerate() {
            let ratio = ratio(case, peer, value, more);
            least = least.min(ratio);
            if ratio <= 1.0 {
                behind.push(format!("{} times as good as {name} ({})", figure(ratio), case.name));
            }
        }
    }
    let found = if behind.is_empty() { format!("at least {} times as good", figure(least)) } else { behind.join("; ") };
    part.aim(&format!("{of}{title}: ahead of both gateways in every case"), found, behind.is_empty());
}
