//! Computes tables, charts and aims from the rounds.

use super::{Found, SCENARIOS, Sample};
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{Spread, in_pairs},
};

/// The aims, each with its text: so many times the peer's throughput of a core, and this share of its P99.
#[derive(Clone, Copy)]
pub(super) struct Aims {
    pub(super) throughput: (&'static str, f64),
    pub(super) latency: (&'static str, f64),
}

/// A reported figure: its title, unit and value, and true if more is better.
type Figure = (&'static str, &'static str, fn(&Sample) -> f64, bool);

const FIGURES: [Figure; 6] = [
    ("Throughput of a core", "questions for each CPU second", Sample::per_cpu_second, true),
    ("Throughput", "questions a second, 128 in flight", |sample| sample.per_second, true),
    ("CPU", "seconds for a million questions", |sample| sample.cpu, false),
    ("How busy the core was", "%", |sample| sample.busy, true),
    ("Latency, P50", "µs, 2,000 questions a second", |sample| sample.p50, false),
    ("Latency, P99", "µs, 2,000 questions a second", |sample| sample.p99, false),
];
const CORE: Figure = FIGURES[0];
const P99: Figure = FIGURES[5];

/// Writes what was found of these contenders. Weir is the last one.
pub(super) fn write(found: &Found, names: &[&str], aims: Aims, part: &mut Part<'_>) {
    let Aims { throughput: (throughput, least), latency: (latency, most) } = aims;
    for (column, scenario) in SCENARIOS.iter().enumerate() {
        let (times, text) = against_the_best(found, names, column, CORE);
        part.aim(&format!("{throughput}: {}", scenario.name), text, times >= least);
    }
    for (column, scenario) in SCENARIOS.iter().enumerate() {
        let (share, text) = against_the_best(found, names, column, P99);
        part.aim(&format!("{latency}: {}", scenario.name), text, share <= most);
    }
    for (title, unit, value, _) in FIGURES {
        let rows = names.iter().zip(found).map(|(name, columns)| {
            Row::new(*name, columns.iter().map(|samples| Cell::Measured(Spread::over(samples, value))))
        });
        let scenarios = SCENARIOS.iter().map(|scenario| scenario.name);
        part.table(Table::new(format!("{title}, {unit}"), "service", scenarios, rows));
    }
    for (name, (title, unit, value, _)) in [("core", CORE), ("p99", P99)] {
        let bars = SCENARIOS.iter().enumerate().flat_map(|(column, scenario)| {
            let bar = move |(name, columns): (&&str, &[Vec<Sample>; SCENARIOS.len()])| {
                let median = Spread::over(&columns[column], value).median;
                (format!("{name}, {}", scenario.name), median)
            };
            names.iter().zip(found).map(bar)
        });
        part.bars(Bars::new(name, title, unit, bars));
    }
}

fn values(samples: &[Sample], figure: fn(&Sample) -> f64) -> Vec<f64> {
    samples.iter().map(figure).collect()
}

/// Weir's figure as a multiple of that of the better peer, round by round.
fn against_the_best(
    found: &Found,
    names: &[&str],
    column: usize,
    (_, _, value, more_is_better): Figure,
) -> (f64, String) {
    let of = |contender: usize| values(&found[contender][column], value);
    let weir = names.len() - 1;
    let ratios = (0..weir).map(|peer| (peer, in_pairs(&of(weir), &of(peer), |weir, peer| weir / peer)));
    // The better the peer, the nearer is the ratio to it to the wrong side.
    let order = |ratio: &Spread| if more_is_better { ratio.median } else { -ratio.median };
    let best = ratios.min_by(|(_, one), (_, other)| order(one).total_cmp(&order(other)));
    let (peer, ratio) = best.expect("there are peers");
    let [low, high] = ratio.quartiles;
    let name = names[peer];
    (ratio.median, format!("{:.2} of {name} (quartiles {low:.2}, {high:.2})", ratio.median))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(per_cpu_second: f64, p99: f64) -> Sample {
        Sample { per_second: 1.0, cpu: 1e6 / per_cpu_second, busy: 100.0, p50: 1.0, p99, other: 0.0 }
    }

    /// The untuned peer has the better latency, and the tuned one the better throughput.
    #[test]
    fn each_aim_is_compared_with_the_peer_that_is_better_at_it() {
        let of = |one: Sample| SCENARIOS.map(|_| vec![one]);
        let found: Found = vec![of(sample(1e4, 300.0)), of(sample(2e4, 600.0)), of(sample(8e4, 150.0))];
        let names = ["one", "two", "weir"];
        let (times, text) = against_the_best(&found, &names, 0, CORE);
        assert_eq!((times, text.as_str()), (4.0, "4.00 of two (quartiles 4.00, 4.00)"));
        let (share, text) = against_the_best(&found, &names, 0, P99);
        assert_eq!((share, text.as_str()), (0.5, "0.50 of one (quartiles 0.50, 0.50)"));
    }
}
