//! The table and the aims of real agents.

use super::{client::Found, world::Verdict};
use crate::{
    report::{Cell, Part, Row, Table},
    stats::{Spread, figure},
};

/// The aims, in percent.
const LEAST_USED: f64 = 95.0;
const LEAST_AFTER_A_MOVE: f64 = 90.0;
const MOST_FALSE_REFUSALS: f64 = 1.0;

type Value = fn(&Verdict) -> Option<f64>;

const FIGURES: [(&str, Value); 6] = [
    ("limit used, %", |verdict| Some(verdict.used)),
    ("excess", |verdict| Some(verdict.excess)),
    ("false refusals, %", |verdict| Some(verdict.false_refusals)),
    ("P99, ms", |verdict| Some(verdict.p99)),
    ("first second, %", |verdict| verdict.first_second),
    ("until 90 %, s", |verdict| verdict.until_90),
];

impl Found {
    fn spread(&self, value: Value) -> Option<Spread> {
        Spread::of_any(self.verdicts.iter().filter_map(value))
    }
}

/// Writes the figures of agents, which are processes or pods, as `noun` says.
pub(super) fn write(found: &[Found], noun: &str, title: &str, part: &mut Part<'_>) {
    let excess = found.iter().flat_map(|it| &it.verdicts).map(|verdict| verdict.excess).fold(0.0, f64::max);
    part.aim("no run of any scenario has an excess", figure(excess), excess <= 0.0);
    let medians = |words: &str, value: Value| {
        let named = found.iter().filter(|it| it.scenario.name.contains(words)).filter_map(|it| it.spread(value));
        named.map(|spread| spread.median).collect::<Vec<f64>>()
    };
    let used = medians("90 %", |verdict| Some(verdict.used)).into_iter().fold(100.0, f64::min);
    let aim = format!("90 % of the load on one {noun}: at least {LEAST_USED} % of the limit is used");
    part.aim(&aim, figure(used), used >= LEAST_USED);
    let moved = medians("moves", |verdict| verdict.first_second).into_iter().fold(100.0, f64::min);
    let aim = format!("the second after the load moved: at least {LEAST_AFTER_A_MOVE} % of the limit is used");
    part.aim(&aim, figure(moved), moved >= LEAST_AFTER_A_MOVE);
    let refused = medians("0.8 of the limit", |verdict| Some(verdict.false_refusals)).into_iter().fold(0.0, f64::max);
    let aim = format!("at 0.8 of the limit, at most {MOST_FALSE_REFUSALS} % of the requests are refused falsely");
    part.aim(&aim, figure(refused), refused <= MOST_FALSE_REFUSALS);
    let row = |it: &Found| {
        let cells = FIGURES.iter().map(|(_, value)| it.spread(*value).map_or(Cell::None, Cell::Measured));
        Row::new(it.scenario.name, cells)
    };
    part.table(Table::new(title, "scenario", FIGURES.map(|(title, _)| title), found.iter().map(row)));
}
