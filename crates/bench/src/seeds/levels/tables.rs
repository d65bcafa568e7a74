//! The tables, charts and aims of the service level.

use super::{ALONE, Alone, CONTENDERS, DOCUMENT_RATE, LONG, OURS, RATES, Round, Step};
use crate::{
    report::{Cell, Lines, Part, Row, Series, Table},
    seeds::clients::Answers,
    stats::{Spread, any_quantile_ms as quantile, figure},
};

/// The service level of the document.
const P95: f64 = 275.0;
const SERVED: f64 = 72.0;

/// A figure of a contender in a round: name, title, unit, value. None if there is no such request.
type Figure = (&'static str, &'static str, &'static str, fn(&Answers) -> Option<f64>);

/// Computes one number from two measurements: a contender that ran alone, and the client without a proxy.
type AloneFigure = fn(&(Answers, Answers)) -> Option<f64>;

const FIGURES: [Figure; 8] = [
    ("success", "success rate", "% of requests", |answers| Some(answers.success())),
    ("all-p50", "all answers, P50", "ms", |answers| quantile(&answers.all(), 500)),
    ("all-p95", "all answers, P95", "ms", |answers| quantile(&answers.all(), 950)),
    ("served-p50", "served, P50", "ms", |answers| quantile(&answers.served, 500)),
    ("served-p95", "served, P95", "ms", |answers| quantile(&answers.served, 950)),
    ("failed-p50", "failed, P50", "ms", |answers| quantile(&answers.failed(), 500)),
    ("failed-p95", "failed, P95", "ms", |answers| quantile(&answers.failed(), 950)),
    ("refused-p99", "refused, P99", "ms", |answers| quantile(&answers.refused, 990)),
];

pub(super) fn write(steps: &[Step], alone: &Alone, part: &mut Part<'_>) {
    aims(steps, alone, part);
    for (_, title, unit, value) in FIGURES {
        let row = |step: &Step| {
            let figures = (0..CONTENDERS.len()).map(|place| spread(step, |round| value(&round[place])));
            Row::new(name(step), figures.map(|found| found.map_or(Cell::None, Cell::Measured)))
        };
        let title = format!("service level, {title}, {unit}");
        part.table(Table::new(title, "requests a second", CONTENDERS, steps.iter().map(row)));
    }
    refusals(alone, part);
    let steps: Vec<_> = steps.iter().filter(|step| step.length != LONG).collect();
    for (name, title, unit, value) in FIGURES.into_iter().filter(|(name, ..)| *name != "served-p50") {
        let series = CONTENDERS.iter().enumerate().map(|(place, contender)| {
            let point = |step: &&Step| {
                let found = spread(step, |round| value(&round[place]))?;
                Some((f64::from(step.rate), found.median))
            };
            Series { name: (*contender).to_owned(), points: steps.iter().filter_map(point).collect() }
        });
        part.lines(Lines::new(name, format!("service level, {title}"), ["requests a second", unit], series));
    }
}

fn name(step: &Step) -> String {
    if step.length == LONG { format!("{}, for {} s", step.rate, LONG.as_secs()) } else { step.rate.to_string() }
}

/// A figure over the rounds, if any of them has it.
fn spread(step: &Step, value: impl Fn(&Round) -> Option<f64>) -> Option<Spread> {
    Spread::of_any(step.rounds.iter().filter_map(value))
}

/// One contender at a time: its refusals, and the network's share of them.
fn refusals(alone: &Alone, part: &mut Part<'_>) {
    let figures: [AloneFigure; 5] = [
        |(refusing, _)| quantile(&refusing.refused, 500),
        |(refusing, _)| quantile(&refusing.refused, 990),
        |(_, direct)| quantile(&direct.served, 500),
        |(_, direct)| quantile(&direct.served, 990),
        beyond_the_network,
    ];
    let columns = ["refused, P50", "refused, P99", "no proxy, P50", "no proxy, P99", "refused P99 less no proxy's P50"];
    let row = |(turn, place): (usize, &usize)| {
        let cells = figures.map(|value| {
            let values = alone.iter().filter_map(|round| value(round.get(turn)?));
            Spread::of_any(values).map_or(Cell::None, Cell::Measured)
        });
        Row::new(CONTENDERS[*place], cells)
    };
    let note = "One proxy at a time. *No proxy* is a client that sends at the same rate at the same time, and gets an immediate answer from the app.";
    let title = format!("service level, refusals at {} requests a second, ms", RATES[RATES.len() - 1]);
    part.table(Table::new(title, "contender", columns, ALONE.iter().enumerate().map(row)).note(note));
}

/// The P99 of refusals without the P50 of an answer over the network alone.
fn beyond_the_network((refusing, direct): &(Answers, Answers)) -> Option<f64> {
    Some(quantile(&refusing.refused, 990)? - quantile(&direct.served, 500)?)
}

fn aims(steps: &[Step], alone: &Alone, part: &mut Part<'_>) {
    let ours = |step: &Step, value: fn(&Answers) -> Option<f64>| {
        spread(step, |round| value(&round[OURS])).map(|found| found.median)
    };
    let short = || steps.iter().filter(|step| step.length != LONG);
    let carried = short().filter(|step| step.rate <= DOCUMENT_RATE);
    let least = carried.filter_map(|step| ours(step, |answers| Some(answers.success()))).fold(100.0, f64::min);
    part.aim(
        &format!("the agent serves all requests up to {DOCUMENT_RATE}/s"),
        format!("{} % at least", figure(least)),
        least >= 100.0,
    );
    let p95 = steps.iter().filter_map(|step| ours(step, |answers| quantile(&answers.all(), 950))).fold(0.0, f64::max);
    part.aim(
        &format!("P95 of all its answers at most {P95} ms at every rate, in long steps, too"),
        format!("{} ms at most", figure(p95)),
        p95 <= P95,
    );
    let values = alone.iter().filter_map(|round| beyond_the_network(round.last()?));
    let refused = Spread::of_any(values).map(|refused| refused.median);
    part.aim(
        "its refusals within 1 ms at P99, without the network's share",
        refused.map_or("none".to_owned(), |refused| format!("{} ms", figure(refused))),
        refused.is_some_and(|refused| refused < 1.0),
    );
    let at_most = short().max_by_key(|step| step.rate);
    if let Some((step, served)) = at_most.and_then(|step| Some((step, ours(step, |answers| Some(answers.success()))?)))
    {
        part.aim(
            &format!("at least {SERVED} % served at {}/s", step.rate),
            format!("{} %", figure(served)),
            served >= SERVED,
        );
    }
}
