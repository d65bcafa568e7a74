//! The tables of contenders and scenarios: a row for each contender, and two rows that compare.

use super::contenders::Contender;
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{Spread, figure, in_pairs},
};

/// A figure of each round.
pub(super) struct Figure<S> {
    pub(super) name: &'static str,
    pub(super) more_is_better: bool,
    pub(super) of: fn(&S) -> f64,
}

/// The rounds of contenders in scenarios.
pub(super) trait Rounds<S> {
    fn contenders(&self) -> &'static [Contender];

    fn scenarios(&self) -> Vec<&'static str>;

    /// By the places of the scenario and the contender.
    fn samples(&self, scenario: usize, contender: usize) -> &[S];

    fn rounds(&self, scenario: usize, contender: usize, of: impl Fn(&S) -> f64) -> Vec<f64> {
        self.samples(scenario, contender).iter().map(of).collect()
    }

    /// How many times as good a contender is as the best peer.
    fn ahead(&self, contender: Contender, scenario: usize, figure: &Figure<S>) -> f64 {
        let place = |of: Contender| self.contenders().iter().position(|other| *other == of).unwrap_or_default();
        let rounds = |of: Contender| self.rounds(scenario, place(of), figure.of);
        let peers = self.contenders().iter().filter(|other| other.is_peer());
        let times = peers.map(|peer| times_as_good(&rounds(contender), &rounds(*peer), figure.more_is_better));
        times.fold(f64::INFINITY, f64::min)
    }

    /// A table for each figure. The first figure is an aim, and the others together are one.
    fn write_all(&self, what: &str, note: &str, figures: &[Figure<S>], part: &mut Part<'_>) {
        let scenarios = self.scenarios();
        let ratios = |contender: Contender, figure: &Figure<S>| -> Vec<f64> {
            (0..scenarios.len()).map(|scenario| self.ahead(contender, scenario, figure)).collect()
        };
        let found = |figure: &Figure<S>| {
            let ratios = ratios(Contender::Agent, figure);
            let each: Vec<_> =
                scenarios.iter().zip(&ratios).map(|(name, ratio)| format!("{name} {}", times(*ratio))).collect();
            (each.join(", "), ratios.iter().all(|ratio| *ratio > 1.0))
        };
        for (aim, aimed) in [("throughput", &figures[..1]), ("latency", &figures[1..])] {
            let found: Vec<_> = aimed.iter().map(|figure| (figure.name, found(figure))).collect();
            let text: Vec<_> = found.iter().map(|(name, (each, _))| format!("{name}: {each}")).collect();
            let is_met = found.iter().all(|(_, (_, is_met))| *is_met);
            part.aim(&format!("{what}, {aim}: ahead of the best peer in each scenario"), text.join("; "), is_met);
        }
        for (place, figure) in figures.iter().enumerate() {
            let mut rows = per_contender(self.contenders(), |contender| {
                (0..scenarios.len()).map(|scenario| cell(self.rounds(scenario, contender, figure.of))).collect()
            });
            let compared = [
                (Contender::Agent, "weir-agent, times the best peer"),
                (Contender::Alone, "no limiter, times the best peer"),
            ];
            rows.extend(compared.map(|(contender, name)| {
                Row::new(name, ratios(contender, figure).into_iter().map(|ratio| Cell::Ratio { ratio }))
            }));
            part.table(
                Table::new(format!("{}, {what}", figure.name), "contender", scenarios.iter().copied(), rows)
                    .note(if place == 0 { note } else { "" }),
            );
        }
    }
}

/// The samples of all scenarios and contenders on the same cores.
pub(super) struct Results<S> {
    /// Where they run and count.
    pub(super) name: String,
    contenders: &'static [Contender],
    scenarios: Vec<&'static str>,
    /// By scenario and contender.
    samples: Vec<Vec<Vec<S>>>,
}

impl<S> Results<S> {
    pub(super) fn new(name: &str, contenders: &'static [Contender]) -> Self {
        Self { name: name.to_owned(), contenders, scenarios: Vec::new(), samples: Vec::new() }
    }

    /// Adds the samples of a scenario, by contender.
    pub(super) fn add(&mut self, scenario: &'static str, samples: Vec<Vec<S>>) {
        self.scenarios.push(scenario);
        self.samples.push(samples);
    }

    /// The samples of a contender in all scenarios.
    pub(super) fn of(&self, contender: usize) -> impl Iterator<Item = &S> {
        self.samples.iter().flat_map(move |samples| &samples[contender])
    }

    /// The samples of all scenarios and contenders.
    pub(super) fn all(&self) -> impl Iterator<Item = &S> {
        self.samples.iter().flatten().flatten()
    }

    /// Draws a figure of one scenario: a bar for each contender.
    pub(super) fn draw(&self, scenario: usize, name: &str, title: &str, figure: &Figure<S>, part: &mut Part<'_>) {
        let bar = |(place, contender): (usize, &Contender)| {
            (contender.name().to_owned(), Spread::of(self.rounds(scenario, place, figure.of)).median)
        };
        part.bars(Bars::new(
            format!("{name}-{}", self.name.replace(", ", "-").replace(' ', "-").to_lowercase()),
            format!("{title}, {}", self.name),
            figure.name,
            self.contenders.iter().enumerate().map(bar),
        ));
    }
}

impl<S> Rounds<S> for Results<S> {
    fn contenders(&self) -> &'static [Contender] {
        self.contenders
    }

    fn scenarios(&self) -> Vec<&'static str> {
        self.scenarios.clone()
    }

    fn samples(&self, scenario: usize, contender: usize) -> &[S] {
        &self.samples[scenario][contender]
    }
}

/// A throughput, and the percentiles of the latency.
pub(super) fn figures<S>(
    throughput: &'static str,
    of: fn(&S) -> f64,
    percentiles: [fn(&S) -> f64; 3],
) -> [Figure<S>; 4] {
    let [p50, p95, p99] = percentiles;
    let latency = |name, of| Figure { name, more_is_better: false, of };
    [
        Figure { name: throughput, more_is_better: true, of },
        latency("P50, ms", p50),
        latency("P95, ms", p95),
        latency("P99, ms", p99),
    ]
}

/// In the median of rounds.
fn times_as_good(ours: &[f64], theirs: &[f64], more_is_better: bool) -> f64 {
    let compare = |ours: f64, theirs: f64| if more_is_better { ours / theirs } else { theirs / ours };
    in_pairs(ours, theirs, compare).median
}

/// A row for each contender, which the function gets by its place.
pub(super) fn per_contender(contenders: &[Contender], cells: impl Fn(usize) -> Vec<Cell>) -> Vec<Row> {
    let row = |(place, contender): (usize, &Contender)| Row::new(contender.name(), cells(place));
    contenders.iter().enumerate().map(row).collect()
}

/// A cell for all rounds; empty without rounds.
pub(super) fn cell(rounds: Vec<f64>) -> Cell {
    Spread::of_any(rounds.into_iter()).map_or(Cell::None, Cell::Measured)
}

/// `1.52×`.
pub(super) fn times(ratio: f64) -> String {
    format!("{}×", figure(ratio))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One figure for each contender, the same in all rounds.
    struct Fixed(Vec<f64>);

    const ALL: [Contender; 4] = [Contender::Alone, Contender::Agent, Contender::Traffik, Contender::Slowapi];

    impl Rounds<f64> for Fixed {
        fn contenders(&self) -> &'static [Contender] {
            &ALL
        }

        fn scenarios(&self) -> Vec<&'static str> {
            vec!["only"]
        }

        fn samples(&self, _: usize, contender: usize) -> &[f64] {
            &self.0[contender..=contender]
        }
    }

    #[test]
    fn the_best_peer_counts() {
        let fixed = Fixed(vec![60.0, 30.0, 10.0, 20.0]);
        let more = Figure { name: "", more_is_better: true, of: |figure: &f64| *figure };
        assert!((fixed.ahead(Contender::Agent, 0, &more) - 1.5).abs() < 1e-9);
        assert!((fixed.ahead(Contender::Alone, 0, &more) - 3.0).abs() < 1e-9);
        let less = Figure { more_is_better: false, ..more };
        assert!((fixed.ahead(Contender::Agent, 0, &less) - 10.0 / 30.0).abs() < 1e-9);
    }
}
