//! The tables, charts and aims of the operator that counts.

use super::{Found, load::Load};
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{Spread, figure, float, quantile_ms},
};

/// The aim: the processor time of scope Fleet when idle, more than that of scope Pod, in percent of a core.
const MOST_MORE: f64 = 1.0;
const MEBIBYTE: f64 = 1024.0 * 1024.0;

const POD: usize = 0;
const FLEET: usize = 1;

impl Found {
    fn idle(&self, place: usize) -> Spread {
        Spread::of(self.idle[place].clone())
    }
}

pub(super) fn write(found: &[Found], part: &mut Part<'_>) {
    let name = |found: &Found| format!("{} agents", counted(found.pods));
    if let Some(largest) = found.last() {
        let more = largest.idle(FLEET).median - largest.idle(POD).median;
        part.aim(
            &format!("{}, idle: scope Fleet uses at most {MOST_MORE} % of a core more than scope Pod", name(largest)),
            format!("{} %", figure(more)),
            more <= MOST_MORE,
        );
    }
    let each = |value: &dyn Fn(&Found) -> Cell| found.iter().map(value).collect::<Vec<_>>();
    let mebibytes = |bytes: u64| Cell::Number(float(bytes) / MEBIBYTE);
    let rows = [
        Row::new("idle, scope Pod, % of a core", each(&|it| Cell::Measured(it.idle(POD)))),
        Row::new("idle, scope Fleet, % of a core", each(&|it| Cell::Measured(it.idle(FLEET)))),
        Row::new("memory, scope Pod, MiB", each(&|it| mebibytes(it.memory[POD]))),
        Row::new("memory, scope Fleet, MiB", each(&|it| mebibytes(it.memory[FLEET]))),
        Row::new("memory at most, MiB", each(&|it| mebibytes(it.peak))),
        Row::new("cold start until all agents are counted, s", each(&|it| Cell::Number(it.cold.as_secs_f64()))),
        Row::new("failover until all agents are counted, s", each(&|it| Cell::Number(it.failover.as_secs_f64()))),
    ];
    part.table(Table::new("the operator", "figure", found.iter().map(name), rows));
    let loads = found.iter().flat_map(|it| it.rates.iter().chain([&it.fastest]).map(move |load| (it, load)));
    let columns = ["questions a second", "P50, ms", "P99, ms", "% of a core", "CPU per question, µs"];
    part.table(Table::new("questions", "agents and load", columns, loads.map(|(it, load)| row(&name(it), load))));
    let bars = found.iter().map(|it| (name(it), it.fastest.per_second));
    part.bars(Bars::new("questions", "questions a second, as fast as possible", "questions a second", bars));
}

fn row(agents: &str, load: &Load) -> Row {
    let wanted = load.rate.map_or("as fast as possible".to_owned(), |rate| format!("{} a second", figure(float(rate))));
    let cells =
        [load.per_second, quantile_ms(&load.took, 500), quantile_ms(&load.took, 990), load.cpu, load.cpu_per_question];
    Row::new(format!("{agents}, {wanted}"), cells.map(Cell::Number))
}

fn counted(count: usize) -> String {
    figure(float(count))
}
