//! The table and the aims of real pods.

use super::{
    client::Found,
    world::{FIGURES, MESSAGES, Value, spread},
};
use crate::{
    report::{Cell, Part, Row, Table},
    stats::{Spread, figure},
};

/// The aims, in percent.
const LEAST_USED: f64 = 95.0;
const LEAST_AFTER_A_MOVE: f64 = 90.0;
const MOST_FALSE_REFUSALS: f64 = 1.0;

impl Found {
    fn spread(&self, value: Value) -> Option<Spread> {
        spread(&self.verdicts, value)
    }
}

pub(super) fn write(found: &[Found], part: &mut Part<'_>) {
    let excess = found.iter().flat_map(|it| &it.verdicts).map(|verdict| verdict.excess).fold(0.0, f64::max);
    part.aim("no run of any scenario has an excess", figure(excess), excess <= 0.0);
    let medians = |words: &str, value: Value| {
        let named = found.iter().filter(|it| it.scenario.name.contains(words)).filter_map(|it| it.spread(value));
        named.map(|spread| spread.median).collect::<Vec<f64>>()
    };
    let used = medians("90 %", |verdict| Some(verdict.used)).into_iter().fold(100.0, f64::min);
    let aim = format!("90 % of the load on one pod: at least {LEAST_USED} % of the limit is used");
    part.aim(&aim, figure(used), used >= LEAST_USED);
    let moved = medians("moves", |verdict| verdict.first_second).into_iter().fold(100.0, f64::min);
    let aim = format!("the second after the load moved: at least {LEAST_AFTER_A_MOVE} % of the limit is used");
    part.aim(&aim, figure(moved), moved >= LEAST_AFTER_A_MOVE);
    let refused = medians("0.8 of the limit", |verdict| Some(verdict.false_refusals)).into_iter().fold(0.0, f64::max);
    let aim = format!("at 0.8 of the limit, at most {MOST_FALSE_REFUSALS} % of the requests are refused falsely");
    part.aim(&aim, figure(refused), refused <= MOST_FALSE_REFUSALS);
    // The messages of real pods are not counted.
    let figures = || FIGURES.iter().filter(|(title, _)| *title != MESSAGES);
    let row = |it: &Found| {
        let cells = figures().map(|(_, value)| it.spread(*value).map_or(Cell::None, Cell::Measured));
        Row::new(it.scenario.name, cells)
    };
    part.table(Table::new("ten pods", "scenario", figures().map(|(title, _)| *title), found.iter().map(row)));
}
