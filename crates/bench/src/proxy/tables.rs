//! Computes tables, charts and aims from the rounds.

use super::{
    contenders::{Contender, contenders},
    idle::Idle,
    latency::{Added, Latencies, RATE},
    rounds::Sample,
    scenarios::{PROXIED, REFUSED, REFUSED_FULL, REFUSED_PACED, RULES, Scenario},
};
use crate::{
    report::{Bars, Cell, Report, Row, Table},
    stats::{Spread, figure},
};

/// The aim: the agent uses at most this share of the best peer's CPU.
const AIM: f64 = 0.90;
const MEGABYTE: f64 = 1e6;
const IDLE: f64 = 15.0 * MEGABYTE;
const CONNECTION: f64 = 4_000.0;
const START: f64 = 50.0;

type Results = [(Scenario, Vec<Vec<Sample>>)];

pub(super) fn write(results: &Results, latencies: &Latencies, idle: &[Idle], report: &mut Report) {
    for (scenario, others) in [(PROXIED, &[][..]), (REFUSED, &[REFUSED_FULL, REFUSED_PACED])] {
        let found = best_peer(results, scenario);
        let text_of = |(peer, ratio): (Contender, Spread)| {
            let [low, high] = ratio.quartiles;
            format!("{:.2} of {} (quartiles {low:.2}, {high:.2})", ratio.median, peer.name())
        };
        let mut text = text_of(found);
        for other in others {
            text.push_str(&format!(
                "; {}, {}: {}",
                other.name,
                other.client.name(),
                text_of(best_peer(results, *other))
            ));
        }
        let aim = format!("{AIM:.2} of the best peer's CPU per request: {}", scenario.name);
        report.aim(aim, text, found.1.median <= AIM);
    }
    rules_aim(results, report);
    idle_aims(idle, report);
    samples_tables(results, report);
    report.table(latency_table(latencies));
    report.table(idle_table(idle));
    for (name, scenario) in [("cpu-proxied", PROXIED), ("cpu-refused", REFUSED)] {
        let bars = contenders()
            .iter()
            .map(|contender| (contender.name().to_owned(), cpu(samples(results, scenario, *contender)).median));
        let title = format!("CPU per request, 64 connections: {}", scenario.name);
        report.chart(Bars::new(name, title, "µs, less is better", bars));
    }
}

fn samples(results: &Results, scenario: Scenario, contender: Contender) -> &[Sample] {
    let found = results.iter().find(|(at, _)| *at == scenario);
    found.map_or(&[], |(_, by_contender)| &by_contender[place(contender)])
}

fn place(contender: Contender) -> usize {
    contenders().iter().position(|at| *at == contender).expect("a known contender")
}

fn cpu(samples: &[Sample]) -> Spread {
    Spread::over(samples, Sample::cpu)
}

/// The ratios of CPU per request within each round.
fn ratio(of: &[Sample], to: &[Sample]) -> Spread {
    Spread::of(of.iter().zip(to).map(|(of, to)| of.cpu() / to.cpu()).collect())
}

/// The peer with the least CPU per request, and the agent's ratio to it.
fn best_peer(results: &Results, scenario: Scenario) -> (Contender, Spread) {
    let of = |contender| samples(results, scenario, contender);
    let peers = contenders().iter().filter(|peer| !matches!(peer, Contender::Weir | Contender::Before));
    let best = peers.min_by(|a, b| cpu(of(**a)).median.total_cmp(&cpu(of(**b)).median)).expect("there are peers");
    (*best, ratio(of(Contender::Weir), of(*best)))
}

fn rules_aim(results: &Results, report: &mut Report) {
    let [one, many] = [PROXIED, RULES].map(|scenario| cpu(samples(results, scenario, Contender::Weir)).median);
    report.aim("1,000 rules cost at most twice what 1 costs", format!("{:.2} times", many / one), many <= 2.0 * one);
}

fn idle_aims(idle: &[Idle], report: &mut Report) {
    let ours = &idle[place(Contender::Weir)];
    let fresh = format!("{} MB", figure(ours.fresh / MEGABYTE));
    report.aim("under 15 MB of memory when idle", fresh, ours.fresh < IDLE);
    let connection = format!("{} bytes", figure(ours.per_connection));
    report.aim("under 4 KB a kept-alive connection", connection, ours.per_connection < CONNECTION);
    let start = Spread::of(ours.starts.clone()).median;
    report.aim("from start to listening under 50 ms", format!("{} ms", figure(start)), start < START);
}

const BUSY: &str = "How busy its core was, %";

/// A reported figure of the samples: its title and value.
type Figure = (&'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 4] = [
    ("CPU per request, µs", Sample::cpu),
    ("Of that in user mode, µs", |sample| sample.user),
    ("Requests a second", |sample| sample.per_second),
    (BUSY, |sample| sample.busy),
];

fn samples_tables(results: &Results, report: &mut Report) {
    let columns: Vec<_> = results.iter().map(|(scenario, _)| scenario.name.to_owned()).collect();
    let table = |title: &str, note: &str, cell: &dyn Fn(&[Sample], Scenario) -> Spread| {
        let rows = contenders().iter().enumerate().map(|(place, contender)| {
            let of = |(scenario, found): &(Scenario, Vec<Vec<Sample>>)| Cell::Measured(cell(&found[place], *scenario));
            Row::new(contender.name(), results.iter().map(of))
        });
        Table::new(title, "contender", columns.clone(), rows).note(note)
    };
    let note = "Unless the column says otherwise: HTTP/1.1, 64 connections, a small body, 1 rule, 1 key, proxied. \
        `core full` and a number of requests a second: our own client, otherwise wrk. HTTP/2: 8 connections with 8 \
        requests each, h2load. 1,000 rules: the last one matches. 1,000,000 keys: random keys, after up to 30 s in \
        which the contender gets each key once. A refused request gets 429.";
    report.table(table(FIGURES[0].0, note, &|samples, _| Spread::over(samples, FIGURES[0].1)));
    let note = "The ratios within each round.";
    let share_of = |to: Contender| move |of: &[Sample], scenario: Scenario| ratio(of, samples(results, scenario, to));
    report.table(table("CPU per request, as a share of nginx's", note, &share_of(Contender::Nginx)));
    if contenders().contains(&Contender::Before) {
        let title = "CPU per request, as a share of that of the agent of an earlier commit";
        report.table(table(title, note, &share_of(Contender::Before)));
    }
    for (title, figure) in &FIGURES[1..] {
        let note =
            if *title == BUSY { "A contender whose core was not always busy also paid for wake-ups." } else { "" };
        report.table(table(title, note, &|samples, _| Spread::over(samples, *figure)));
    }
}

fn latency_table(latencies: &Latencies) -> Table {
    let cells = |added: &Added| -> Vec<Cell> {
        let of = |rounds: &[[f64; 2]], place: usize| {
            Cell::Measured(Spread::of(rounds.iter().map(|round| round[place]).collect()))
        };
        vec![of(&added.alone, 0), of(&added.alone, 1), of(&added.steady, 0), of(&added.steady, 1)]
    };
    let mut rows = vec![Row::new("(the app alone)", cells(&latencies.direct))];
    let contenders = contenders().iter().zip(&latencies.added);
    rows.extend(contenders.map(|(contender, added)| Row::new(contender.name(), cells(added))));
    Table::new(
        "Added latency, µs",
        "contender",
        [
            "1 connection, P50".to_owned(),
            "1 connection, P99".to_owned(),
            format!("64 connections at {RATE} a second, P50"),
            format!("64 connections at {RATE} a second, P99"),
        ],
        rows,
    )
    .note(
        "The latency in addition to that of the app without a proxy in the same round. The first row is the app \
        itself.",
    )
}

fn idle_table(idle: &[Idle]) -> Table {
    let cells = |idle: &Idle| {
        vec![
            Cell::Number(idle.fresh / MEGABYTE),
            Cell::Number(idle.after_load / MEGABYTE),
            Cell::Number(idle.per_connection),
            Cell::Measured(Spread::of(idle.starts.clone())),
        ]
    };
    let rows = contenders().iter().zip(idle).map(|(contender, idle)| Row::new(contender.name(), cells(idle)));
    let columns = ["when idle, MB", "after a load, MB", "a kept-alive connection, bytes", "start to listening, ms"];
    Table::new("Memory and start", "contender", columns, rows).note(
        "Resident memory of all processes of a contender. *A connection* is how much it grows for each connection \
        that has sent one request and stays open.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(cpu: [f64; 3]) -> Vec<Sample> {
        cpu.map(|cpu| Sample { user: 0.0, system: cpu, per_second: 1.0, busy: 100.0 }).to_vec()
    }

    #[test]
    fn ours_is_compared_to_the_best_peer_round_by_round() {
        let outcomes =
            vec![rounds([20.0, 40.0, 20.0]), rounds([10.0, 20.0, 30.0]), rounds([90.0; 3]), rounds([9.0, 20.0, 24.0])];
        let (peer, ratio) = best_peer(&[(PROXIED, outcomes)], PROXIED);
        assert_eq!(peer, Contender::Nginx, "nginx has the same median as HAProxy, and is the first in the order");
        assert!((ratio.median - 0.5).abs() < 1e-9, "{ratio:?}");
    }
}
