//! The tables of contenders and scenarios: a row for each contender, and two rows that compare.

use super::contenders::Contender;
use crate::{
    report::{Bars, Cell, Part, Row},
    rounds::{Figure, Rounds},
    stats::figure as shown,
};

/// The samples of all scenarios and contenders on the same cores.
pub(super) struct Results<S> {
    /// Where they run and count.
    pub(super) name: String,
    contenders: &'static [Contender],
    /// Each scenario is a case.
    pub(super) rounds: Rounds<S>,
}

impl<S> Results<S> {
    pub(super) fn new(name: &str, contenders: &'static [Contender]) -> Self {
        let rounds = Rounds::new(contenders.iter().map(|contender| contender.name()));
        Self { name: name.to_owned(), contenders, rounds }
    }

    /// Measures all contenders in a scenario.
    pub(super) fn measure(
        &mut self,
        scenario: &str,
        rounds: usize,
        measure: impl Fn(usize) -> anyhow::Result<S>,
    ) -> anyhow::Result<()> {
        let case = self.rounds.add(scenario);
        (0..rounds).try_for_each(|round| self.rounds.take_turns(case, round, |place| measure(place).map(Some)))
    }

    /// How many times as good as the best peer a contender is, by scenario.
    fn ahead(&self, contender: Contender, figure: &Figure<S>) -> Vec<f64> {
        let place = self.contenders.iter().position(|other| *other == contender).unwrap_or_default();
        let peers: Vec<_> = (0..self.contenders.len()).filter(|peer| self.contenders[*peer].is_peer()).collect();
        (0..self.rounds.cases.len()).map(|case| self.rounds.best_peer(case, place, &peers, figure).1).collect()
    }

    /// A table for each figure. The first figure is an aim, and the others together are one.
    pub(super) fn write_all(&self, what: &str, note: &str, figures: &[Figure<S>], part: &mut Part<'_>) {
        let found = |figure: &Figure<S>| {
            let ratios = self.ahead(Contender::Agent, figure);
            let each: Vec<_> = self
                .rounds
                .cases
                .iter()
                .zip(&ratios)
                .map(|(name, ratio)| format!("{name} {}×", shown(*ratio)))
                .collect();
            (each.join(", "), ratios.iter().all(|ratio| *ratio > 1.0))
        };
        for (aim, aimed) in [("throughput", &figures[..1]), ("latency", &figures[1..])] {
            let found: Vec<_> = aimed.iter().map(|figure| (figure.title, found(figure))).collect();
            let text: Vec<_> = found.iter().map(|(title, (each, _))| format!("{title}: {each}")).collect();
            let is_met = found.iter().all(|(_, (_, is_met))| *is_met);
            part.aim(&format!("{what}, {aim}: ahead of the best peer in each scenario"), text.join("; "), is_met);
        }
        for (place, figure) in figures.iter().enumerate() {
            let mut table = self.rounds.by_contender(format!("{}, {what}", figure.title), "contender", figure.of);
            for (contender, name) in [
                (Contender::Agent, "weir-agent, times the best peer"),
                (Contender::Alone, "no limiter, times the best peer"),
            ] {
                let ratios = self.ahead(contender, figure).into_iter().map(|ratio| Cell::Ratio { ratio });
                table.rows.push(Row::new(name, ratios));
            }
            part.table(table.note(if place == 0 { note } else { "" }));
        }
    }

    /// Draws a figure of one scenario: a bar for each contender.
    pub(super) fn draw(&self, scenario: usize, name: &str, title: &str, figure: &Figure<S>, part: &mut Part<'_>) {
        part.bars(Bars::new(
            format!("{name}-{}", self.name.replace(", ", "-").replace(' ', "-").to_lowercase()),
            format!("{title}, {}", self.name),
            figure.title,
            self.rounds.bars(scenario, figure.of),
        ));
    }
}

/// A throughput, and the percentiles of the latency.
pub(super) fn figures<S>(
    throughput: &'static str,
    of: fn(&S) -> f64,
    percentiles: [fn(&S) -> f64; 3],
) -> [Figure<S>; 4] {
    let [p50, p95, p99] = percentiles;
    let latency = |title, of| Figure { title, unit: "", more_is_better: false, of };
    [
        Figure { title: throughput, unit: "", more_is_better: true, of },
        latency("P50, ms", p50),
        latency("P95, ms", p95),
        latency("P99, ms", p99),
    ]
}
