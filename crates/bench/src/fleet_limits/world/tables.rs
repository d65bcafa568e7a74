//! The tables, charts and aims of the simulated world.

use super::{
    Contender, Figures, Measured, ROUND_TRIPS,
    judge::{FALSE_REFUSALS, FIGURES, Value, Verdict, spread},
};
use crate::{
    report::{Bars, Cell, Lines, Part, Row, Series, Table},
    stats::{Spread, figure},
};

/// The aims, in percent.
const LEAST_SKEWED: f64 = 95.0;
const LEAST_AFTER_A_MOVE: f64 = 90.0;
const LEAST_SCALING: f64 = 90.0;
const MOST_FALSE_REFUSALS: f64 = 1.0;

/// The round trip of the charts.
const SHOWN: u64 = ROUND_TRIPS[1];

impl Figures {
    fn spread(&self, value: Value) -> Option<Spread> {
        spread(&self.verdicts, value)
    }

    fn median(&self, value: Value) -> f64 {
        self.spread(value).map_or(0.0, |spread| spread.median)
    }

    fn is_weir(&self) -> bool {
        matches!(self.contender, Contender::Weir(_))
    }
}

/// One line of progress.
pub(super) fn line(figures: &Figures) -> String {
    let each = FIGURES.iter().filter(|(_, value)| figures.spread(*value).is_some());
    each.map(|(title, value)| format!("{title} {}", figure(figures.median(*value)))).collect::<Vec<_>>().join("; ")
}

pub(super) fn write(found: &[Measured], part: &mut Part<'_>) {
    aims(found, part);
    for measured in found {
        table(measured, part);
    }
    for (name, word) in [("moves", "the load moves, 0.8"), ("scales", "3 to 150"), ("killed", "killed")] {
        if let Some(measured) = found.iter().find(|it| it.scenario.name.contains(word)) {
            lines(name, measured, part);
        }
    }
    let skewed = found.iter().find(|it| it.scenario.name.starts_with("90 %"));
    if let Some(measured) = skewed {
        let bars = measured.figures.iter().map(|it| (it.contender.name(), it.median(|verdict| Some(verdict.used))));
        part.bars(Bars::new("skewed", format!("limit used, {}", measured.scenario.name), "%", bars));
    }
}

fn aims(found: &[Measured], part: &mut Part<'_>) {
    let weir = || found.iter().flat_map(|it| it.figures.iter().filter(|figures| figures.is_weir()));
    let excess = weir().flat_map(|it| &it.verdicts).map(|verdict| verdict.excess).fold(0.0, f64::max);
    part.aim("no run of any scenario has an excess", figure(excess), excess <= 0.0);
    let sum = weir().map(|it| it.largest_sum).fold(0.0, f64::max);
    part.aim("the shares in use and what the counter grants are never more than the limit", figure(sum), sum <= 1.0);
    let used: Value = |verdict| Some(verdict.used);
    for (aim, names, value, least) in [
        ("90 % of the load on one pod", "90 %", used, LEAST_SKEWED),
        ("3 to 150 pods in 15 s", "3 to 150", used, LEAST_SCALING),
        ("3 to 300 pods and back", "3 to 300", used, LEAST_SCALING),
        (
            "the second after the load moved",
            "the load moves",
            |verdict: &Verdict| verdict.first_second,
            LEAST_AFTER_A_MOVE,
        ),
    ] {
        let lowest = per_round_trip(found, names, value, f64::min);
        let aim = format!("{aim}: at least {least} % of the limit is used");
        part.aim(&aim, told(&lowest), lowest.iter().all(|lowest| *lowest >= least));
    }
    let refusals: Value = |verdict| Some(verdict.false_refusals);
    let most = per_round_trip(found, "0.8 of the limit", refusals, f64::max);
    part.aim(
        &format!("at 0.8 of the limit, at most {MOST_FALSE_REFUSALS} % of the requests are refused falsely"),
        told(&most),
        most.iter().all(|most| *most <= MOST_FALSE_REFUSALS),
    );
}

/// The lowest or highest median of Weir for each round trip, over the scenarios with these words in their names.
fn per_round_trip(found: &[Measured], words: &str, value: Value, choose: fn(f64, f64) -> f64) -> Vec<f64> {
    let of = |round_trip: u64| {
        let all = found.iter().filter(|it| it.scenario.name.contains(words)).flat_map(|it| &it.figures);
        all.filter(|it| it.contender == Contender::Weir(round_trip)).map(|it| it.median(value)).reduce(choose)
    };
    ROUND_TRIPS.iter().filter_map(|round_trip| of(*round_trip)).collect()
}

fn told(values: &[f64]) -> String {
    let each = ROUND_TRIPS.iter().zip(values).map(|(round_trip, value)| {
        let name = Contender::Weir(*round_trip).name();
        format!("{} {}", name.trim_start_matches("weir, "), figure(*value))
    });
    each.collect::<Vec<_>>().join(", ")
}

fn table(measured: &Measured, part: &mut Part<'_>) {
    let is_fault = measured.scenario.fault.is_some();
    let has = |value: Value| measured.figures.iter().any(|it| it.spread(value).is_some());
    let says = |title: &str| title != FALSE_REFUSALS || measured.scenario.load < 1.0;
    let shown: Vec<_> = FIGURES.iter().filter(|(title, value)| says(title) && has(*value)).collect();
    let mut columns: Vec<_> = shown.iter().map(|(title, _)| (*title).to_owned()).collect();
    if is_fault {
        columns.push("largest sum".to_owned());
    }
    let row = |figures: &Figures| {
        let mut cells: Vec<_> =
            shown.iter().map(|(_, value)| figures.spread(*value).map_or(Cell::None, Cell::Measured)).collect();
        if is_fault {
            cells.push(if figures.is_weir() { Cell::Number(figures.largest_sum) } else { Cell::None });
        }
        Row::new(figures.contender.name(), cells)
    };
    part.table(Table::new(measured.scenario.name, "contender", columns, measured.figures.iter().map(row)));
}

fn lines(name: &str, measured: &Measured, part: &mut Part<'_>) {
    let is_shown = |it: &&Figures| match it.contender {
        Contender::Central | Contender::Parts => true,
        Contender::Gossip(round_trip) | Contender::Weir(round_trip) => round_trip == SHOWN,
    };
    let series = measured.figures.iter().filter(is_shown);
    let series = series.map(|it| Series { name: it.contender.name(), points: it.rates.clone() });
    let title = format!("admitted per second, {}", measured.scenario.name);
    part.lines(Lines::new(name, title, ["seconds", "requests per second"], series));
}
