//! Computes tables, charts and aims from the rounds.

use super::Sample;
use crate::{
    report::{Bars, Part},
    rounds::{Figure, Rounds},
};

/// The aims, each with its text: a multiple of the peer's throughput of a core, and a part of its P99.
#[derive(Clone, Copy)]
pub(super) struct Aims {
    pub(super) throughput: (&'static str, f64),
    pub(super) latency: (&'static str, f64),
}

const fn less(title: &'static str, unit: &'static str, of: fn(&Sample) -> f64) -> Figure<Sample> {
    Figure { title, unit, of, more_is_better: false }
}

const fn more(title: &'static str, unit: &'static str, of: fn(&Sample) -> f64) -> Figure<Sample> {
    Figure { more_is_better: true, ..less(title, unit, of) }
}

const CORE: Figure<Sample> = more("Throughput of a core", "questions for each CPU second", Sample::per_cpu_second);
const P99: Figure<Sample> = less("Latency, P99", "µs, 2,000 questions a second", |sample| sample.p99);
const FIGURES: [Figure<Sample>; 6] = [
    CORE,
    more("Throughput", "questions a second, 128 in flight", |sample| sample.per_second),
    less("CPU", "seconds for a million questions", |sample| sample.cpu),
    more("How busy the core was", "%", |sample| sample.busy),
    less("Latency, P50", "µs, 2,000 questions a second", |sample| sample.p50),
    P99,
];

/// Writes what was found of these contenders. Weir is the last one.
pub(super) fn write(found: &Rounds<Sample>, aims: Aims, part: &mut Part<'_>) {
    let Aims { throughput: (throughput, least), latency: (latency, most) } = aims;
    for (case, scenario) in found.cases.iter().enumerate() {
        let (times, text) = against_the_best(found, case, &CORE);
        part.aim(&format!("{throughput}: {scenario}"), text, times >= least);
    }
    for (case, scenario) in found.cases.iter().enumerate() {
        let (share, text) = against_the_best(found, case, &P99);
        part.aim(&format!("{latency}: {scenario}"), text, share <= most);
    }
    for Figure { title, unit, of, .. } in FIGURES {
        part.table(found.by_contender(format!("{title}, {unit}"), "service", of));
    }
    for (name, figure) in [("core", CORE), ("p99", P99)] {
        let bars = found.cases.iter().enumerate().flat_map(|(case, scenario)| {
            found.bars(case, figure.of).map(move |(name, median)| (format!("{name}, {scenario}"), median))
        });
        part.bars(Bars::new(name, figure.title, figure.unit, bars));
    }
}

/// Weir's figure as a multiple of that of the better peer, round by round.
fn against_the_best(found: &Rounds<Sample>, case: usize, figure: &Figure<Sample>) -> (f64, String) {
    let weir = found.contenders.len() - 1;
    let (peer, _) = found.best_peer(case, weir, &(0..weir).collect::<Vec<_>>(), figure);
    let ratio = found.quotient(case, [weir, peer], figure);
    let [low, high] = ratio.quartiles;
    let name = &found.contenders[peer];
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
        let samples = [sample(1e4, 300.0), sample(2e4, 600.0), sample(8e4, 150.0)];
        let mut found = Rounds::new(["one", "two", "weir"]);
        let case = found.add("only");
        found.take_turns(case, 0, |place| Ok(Some(samples[place]))).expect("samples");
        let (times, text) = against_the_best(&found, case, &CORE);
        assert_eq!((times, text.as_str()), (4.0, "4.00 of two (quartiles 4.00, 4.00)"));
        let (share, text) = against_the_best(&found, case, &P99);
        assert_eq!((share, text.as_str()), (0.5, "0.50 of one (quartiles 0.50, 0.50)"));
    }
}
