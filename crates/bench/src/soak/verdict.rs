//! Computes figures from the observations, and compares them with the aims.

use std::time::Duration;

use super::{
    Outcome,
    clients::{CONTROL, SLOWEST},
    samples::{Sample, third},
};
use crate::{
    report::{Cell, Lines, Report, Row, Series, Table},
    stats::{Spread, figure, float},
};

const MEBIBYTE: f64 = 1_048_576.0;
/// The largest accepted increase of the median from the middle third to the last third, in bytes.
const GROWTH: f64 = 2.0 * MEBIBYTE;
const PERIODS: usize = 6;

/// Writes the report. Returns true if every aim was met.
pub(super) fn write(outcome: &Outcome, length: Duration, report: &mut Report) -> anyhow::Result<bool> {
    let aims = aims(outcome);
    let good = aims.iter().all(|(_, _, met)| *met);
    for (aim, found, met) in aims {
        eprintln!("soak: {aim}: {found}: {}", if met { "met" } else { "MISSED" });
        report.aim(aim, found, met);
    }
    report.table(over_time(outcome, length));
    report.table(clients(outcome));
    charts(outcome, report);
    report.record("samples", &outcome.samples)?;
    report.record("clients", &outcome.clients)?;
    report.record("exact", &outcome.exact)?;
    Ok(good)
}

/// An aim, its figure, and true if the aim was met.
type Judged = (String, String, bool);

fn aims(outcome: &Outcome) -> Vec<Judged> {
    let mut aims = vec![memory(&outcome.samples)];
    let Outcome { before, after, rested_after, ended, pushed, .. } = outcome;
    aims.push((
        "nothing is left: no connection, and no more descriptors than before the first".to_owned(),
        format!(
            "{} connections, {} descriptors ({} before){}",
            after.connections,
            after.descriptors,
            before.descriptors,
            rested_after.map_or_else(String::new, |took| format!(", after {:.1} s", took.as_secs_f64())),
        ),
        rested_after.is_some(),
    ));
    aims.push((
        "no panic, no logged error, and a complete drain".to_owned(),
        format!("{} panics, {} errors, {}", ended.panics, ended.errors, ended.status),
        ended.panics == 0 && ended.errors == 0 && ended.well,
    ));
    let (control, others): (Vec<_>, Vec<_>) = outcome.clients.iter().partition(|kind| kind.name.starts_with(CONTROL));
    for kind in control {
        aims.push((
            format!("{}: no request lost, wrong or slower than {} s", kind.name, SLOWEST.as_secs()),
            format!(
                "{} of {}, slowest {:.0} ms; {} more while the app was away",
                kind.wrong,
                figure_of(kind.good + kind.wrong),
                kind.slowest.as_secs_f64() * 1e3,
                kind.app_away
            ),
            kind.wrong == 0 && kind.good > 0,
        ));
    }
    for held in &outcome.exact {
        aims.push((
            format!("limit {}: never one more admitted than allowed", held.name),
            format!(
                "{} more at most; {} of {} admitted, {} allowed",
                held.most_beyond,
                figure_of(held.admitted),
                figure_of(held.asked),
                figure_of(held.allowed)
            ),
            // A limit must also admit most of the allowed requests. Otherwise its exactness would prove nothing.
            held.most_beyond == 0 && held.asked > held.allowed && held.admitted * 10 >= held.allowed * 9,
        ));
    }
    aims.push((
        "every good snapshot accepted, every bad one refused".to_owned(),
        format!("{} taken, {} refused, {} wrong", pushed.taken, pushed.refused, pushed.wrong),
        pushed.wrong == 0 && pushed.taken > 0 && pushed.refused > 0,
    ));
    aims.push((
        "every other client gets the expected result".to_owned(),
        format!(
            "{} rounds wrong of {}",
            others.iter().map(|kind| kind.wrong).sum::<u64>(),
            figure_of(others.iter().map(|kind| kind.good + kind.wrong).sum()),
        ),
        others.iter().all(|kind| kind.wrong == 0 && kind.good > 0),
    ));
    aims
}

fn memory(samples: &[Sample]) -> Judged {
    let median = |place| Spread::over(third(samples, place), resident).median;
    let (middle, last) = (median(1), median(2));
    (
        format!("memory is flat: median of the last third at most {} MiB above the middle third's", GROWTH / MEBIBYTE),
        format!("{:.2} MiB, {:+.2}", last / MEBIBYTE, (last - middle) / MEBIBYTE),
        middle > 0.0 && last - middle <= GROWTH,
    )
}

fn over_time(outcome: &Outcome, length: Duration) -> Table {
    let samples = &outcome.samples;
    let row = |contender: &str, samples: &[Sample], cpu: Cell| {
        let cells = [
            Cell::Measured(Spread::over(samples, |sample| resident(sample) / MEBIBYTE)),
            Cell::Measured(Spread::over(samples, descriptors)),
            Cell::Measured(Spread::over(samples, |sample| sample.connections)),
            Cell::Measured(Spread::over(samples, |sample| sample.keys)),
            last(samples, |sample| sample.evicted),
            last(samples, |sample| sample.overflowed),
            last(samples, |sample| sample.allowed),
            last(samples, |sample| sample.limited),
            cpu,
        ];
        Row::new(contender, cells)
    };
    let mut rows = vec![row("before", std::slice::from_ref(&outcome.before), Cell::None)];
    let mut earlier = &outcome.before;
    for period in 0..PERIODS {
        let at = |period: usize| samples.len() * period / PERIODS;
        let within = &samples[at(period)..at(period + 1)];
        let Some(end) = within.last() else { continue };
        let minutes = |at: usize| length.as_secs_f64() / 60.0 * float(at) / float(PERIODS);
        let name = format!("{} to {} min", short(minutes(period)), short(minutes(period + 1)));
        let percent = 100.0 * (end.cpu - earlier.cpu) / (end.seconds - earlier.seconds);
        rows.push(row(&name, within, Cell::Text(format!("{percent:.1} %"))));
        earlier = end;
    }
    rows.push(row("after", std::slice::from_ref(&outcome.after), Cell::None));
    let restarts = outcome.restarts;
    Table::new(
        "What the agent held",
        "period",
        [
            "memory, MiB", "descriptors", "connections", "keys", "keys given up", "overflow", "admitted", "refused",
            "CPU",
        ],
        rows,
    )
    .note(format!(
        "Medians of the samples of each period. Forgotten keys, requests in the overflow of a full table, and \
        requests admitted and refused are totals at its end. The app was restarted {restarts} times."
    ))
}

fn clients(outcome: &Outcome) -> Table {
    let rows = outcome.clients.iter().map(|kind| {
        let reasons = kind.reasons.iter().map(|reason| format!("{}: {reason}", kind.name));
        let why = reasons.collect::<Vec<_>>().join("; ").replace('|', "/");
        Row::new(
            kind.name,
            [
                Cell::Text(kind.does.to_owned()),
                Cell::Text(kind.lanes.to_string()),
                Cell::Text(figure_of(kind.good)),
                Cell::Text(figure_of(kind.app_away)),
                Cell::Text(if kind.wrong == 0 { "0".to_owned() } else { format!("**{}** ({why})", kind.wrong) }),
                Cell::Number(kind.slowest.as_secs_f64() * 1e3),
            ],
        )
    });
    let columns = ["a round", "at once", "good", "app away", "wrong", "slowest, ms"];
    Table::new("What the clients saw", "client", columns, rows).note(
        "The slowest round is one during which the app was available, whether it succeeded or failed. Slow clients \
        have slow rounds.",
    )
}

fn charts(outcome: &Outcome, report: &mut Report) {
    let series = |name: &str, figure: fn(&Sample) -> f64| Series {
        name: name.to_owned(),
        points: outcome.samples.iter().map(|sample| (sample.seconds.round() / 60.0, figure(sample))).collect(),
    };
    let memory = [series("weir-agent", |sample| resident(sample) / MEBIBYTE)];
    report.chart(Lines::new("memory", "Memory of the agent", ["minutes", "MiB resident"], memory));
    let open = [series("weir-agent: descriptors", descriptors), series("client connections", |s| s.connections)];
    report.chart(Lines::new("open", "What the agent has open", ["minutes", "count"], open));
}

fn resident(sample: &Sample) -> f64 {
    float(sample.resident)
}

fn descriptors(sample: &Sample) -> f64 {
    float(sample.descriptors)
}

fn last(samples: &[Sample], figure: fn(&Sample) -> f64) -> Cell {
    samples.last().map_or(Cell::None, |sample| Cell::Number(figure(sample)))
}

fn figure_of(count: u64) -> String {
    if count < 1000 { count.to_string() } else { figure(float(count)) }
}

/// Formats minutes, without a decimal zero.
fn short(minutes: f64) -> String {
    if minutes.fract() == 0.0 { format!("{minutes}") } else { format!("{minutes:.1}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::{agent::Ended, clients::Held, snapshots::Pushed, tally::Kind};

    fn samples(resident: impl Fn(u64) -> u64) -> Vec<Sample> {
        (0..30).map(|at| Sample { resident: resident(at), ..Sample::default() }).collect()
    }

    /// A word of the aim that is missed because of a fault, and the fault.
    type Fault = (&'static str, fn(&mut Outcome));

    /// Creates the outcome of a run without faults.
    fn good() -> Outcome {
        let kind = |name| Kind { name, good: 9, ..Kind::default() };
        Outcome {
            samples: samples(|_| 1 << 24),
            before: Sample::default(),
            after: Sample::default(),
            rested_after: Some(Duration::from_secs(1)),
            clients: vec![kind("control"), kind("churn")],
            exact: vec![Held { name: "once", asked: 20, admitted: 10, allowed: 10, most_beyond: 0 }],
            pushed: Pushed { taken: 4, refused: 1, ..Pushed::default() },
            restarts: 1,
            ended: Ended { status: "exit status: 0".to_owned(), well: true, panics: 0, errors: 0 },
        }
    }

    fn missed(outcome: &Outcome) -> Vec<String> {
        aims(outcome).into_iter().filter(|(_, _, met)| !met).map(|(aim, _, _)| aim).collect()
    }

    #[test]
    fn a_good_run_misses_nothing() {
        assert_eq!(missed(&good()), Vec::<String>::new());
    }

    #[test]
    fn growth_after_the_warm_up_is_a_leak() {
        assert!(memory(&samples(|at| at.min(10) << 24)).2, "memory grows in the first third only");
        assert!(!memory(&samples(|at| at << 20)).2, "memory grows by a MiB with each sample");
        assert!(!memory(&[]).2, "without samples, the aim is missed");
    }

    #[test]
    fn each_fault_is_an_aim_that_is_missed() {
        let faults: [Fault; 9] = [
            ("memory", |outcome| outcome.samples = samples(|at| at << 20)),
            ("left", |outcome| outcome.rested_after = None),
            ("panic", |outcome| outcome.ended.panics = 1),
            ("drain", |outcome| outcome.ended.well = false),
            ("control", |outcome| outcome.clients[0].wrong = 1),
            ("once", |outcome| outcome.exact[0].most_beyond = 1),
            ("once", |outcome| outcome.exact[0].asked = 5),
            ("snapshot", |outcome| outcome.pushed.wrong = 1),
            ("other client", |outcome| outcome.clients[1].good = 0),
        ];
        for (word, fault) in faults {
            let mut outcome = good();
            fault(&mut outcome);
            let missed = missed(&outcome);
            assert!(matches!(&missed[..], [aim] if aim.contains(word)), "{word}: {missed:?}");
        }
    }
}
