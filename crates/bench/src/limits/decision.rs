//! Measures one decision on one limit, made as fast as the threads can.

use std::{collections::BTreeMap, time::Duration};

use super::{
    contender::{Contender, Demand, Kind},
    contenders::contenders,
    exact::Exact,
    hammer::{hammer, in_words},
};
use crate::{
    report::{Cell, Lines, Report, Row, Series, Table},
    stats::{Spread, figure, float, in_pairs, ratio},
};

const THREADS: [usize; 4] = [1, 2, 4, 8];

/// The share of decisions that must be admitted (or denied). A smaller share is reported, because the limit then did
/// not do its task.
const PURE: f64 = 0.999;

/// The number of rounds, in which each contender goes first two or three times.
const ROUNDS: usize = 61;

/// The duration of a turn on one or two threads. It is at most a time slice of the scheduler, so that other processes
/// disturb some turns completely, not a part of each turn. More threads than cores get longer turns, because they share
/// the cores.
const TURN: Duration = Duration::from_millis(4);

/// The results of a contender with a number of threads, one for each round.
#[derive(Default)]
struct Found {
    millions: Vec<f64>,
    admitted: Vec<f64>,
}

/// The results by the contender's index and the number of threads.
type Results = BTreeMap<(usize, usize), Found>;

pub(super) fn measure(quick: bool, exact: &Exact, report: &mut Report) {
    let contenders = contenders();
    for demand in [Demand::Admit, Demand::Deny] {
        let results = run(quick, demand, &contenders);
        let speeds: BTreeMap<_, _> =
            results.iter().map(|(place, found)| (*place, Spread::of(found.millions.clone()))).collect();
        let view = View { contenders: &contenders, results: &results, speeds: &speeds, exact };
        view.aims(demand, report);
        view.tables(demand, report);
    }
}

fn run(quick: bool, demand: Demand, contenders: &[Contender]) -> Results {
    let (rounds, turn) = if quick { (1, Duration::from_millis(2)) } else { (ROUNDS, TURN) };
    let word = word(demand);
    let mut results = Results::new();
    for round in 0..rounds {
        if round % 10 == 0 {
            eprintln!("core: decisions {word}, round {} of {rounds}", round + 1);
        }
        for threads in THREADS {
            let time = turn * u32::try_from(threads.div_ceil(2)).expect("at most 4");
            for index in (0..contenders.len()).map(|place| (round + place) % contenders.len()) {
                let contender = &contenders[index];
                if threads > 1 && contender.one_thread {
                    continue;
                }
                let Some(batch) = (contender.make)(demand) else { continue };
                let rate = hammer(threads, time, u64::MAX, &*batch);
                let found = results.entry((index, threads)).or_default();
                found.millions.push(rate.millions());
                found.admitted.push(float(rate.admitted) / float(rate.decisions));
            }
        }
    }
    results
}

const fn word(demand: Demand) -> &'static str {
    match demand {
        Demand::Admit => "admitted",
        _ => "denied",
    }
}

struct View<'a> {
    contenders: &'a [Contender],
    results: &'a Results,
    speeds: &'a BTreeMap<(usize, usize), Spread>,
    exact: &'a Exact,
}

impl View<'_> {
    fn of(&self, kind: Kind) -> impl Iterator<Item = (usize, &Contender)> {
        self.contenders.iter().enumerate().filter(move |(_, contender)| contender.kind == kind)
    }

    fn speed(&self, contender: usize, threads: usize) -> Option<f64> {
        Some(self.speeds.get(&(contender, threads))?.median)
    }

    fn named(&self, name: &str) -> usize {
        self.contenders.iter().position(|contender| contender.name == name).expect("a known name")
    }

    /// The speed of the left contender divided by that of the right one, as the median of rounds.
    fn ratio(&self, left: usize, right: usize, threads: usize) -> Option<f64> {
        let millions = |contender| Some(self.results.get(&(contender, threads))?.millions.as_slice());
        Some(ratio(millions(left)?, millions(right)?))
    }

    /// The additional nanoseconds of a decision of the left contender on one thread, as the median of rounds.
    fn slower_by(&self, left: usize, right: usize) -> Option<f64> {
        let millions = |contender| Some(self.results.get(&(contender, 1))?.millions.as_slice());
        Some(in_pairs(millions(left)?, millions(right)?, |left, right| 1e3 / left - 1e3 / right).median)
    }

    /// The best peer, and Weir's ratio to it. For denials, only peers that read a clock are compared. With
    /// `among_exact`, only peers that never exceeded their limit are compared.
    fn best(&self, demand: Demand, threads: usize, among_exact: bool) -> Option<(&'static str, f64)> {
        let ours = self.named("weir TokenBucket");
        let peers = self.of(Kind::Peer).filter(|(_, peer)| !among_exact || self.exact.held(peer.name));
        let peers = peers.filter(|(_, peer)| demand == Demand::Admit || !peer.refuses_unread);
        let ratios = peers.filter_map(|(index, peer)| Some((peer.name, self.ratio(ours, index, threads)?)));
        ratios.min_by(|(_, left), (_, right)| left.total_cmp(right))
    }

    fn aims(&self, demand: Demand, report: &mut Report) {
        let word = word(demand);
        let [ours, clock] = ["weir TokenBucket", "clock: weir"].map(|name| self.named(name));
        let (Some(slower), Some(alone)) = (self.slower_by(ours, clock), self.speed(clock, 1)) else { return };
        let alone = 1e3 / alone;
        let aim = format!("{word}, 1 thread: clock and decision within 1 ns of the clock alone, 5 % for noise");
        let found = format!("{slower:+.2} ns, clock {} ns", figure(alone));
        report.aim(aim, found, slower <= 1.0 + (alone + 1.0) * 0.05);
        for threads in THREADS {
            let Some((name, ratio)) = self.best(demand, threads, false) else { continue };
            let among = if demand == Demand::Deny { "the best peer that reads a clock" } else { "the best peer" };
            let threads = in_words(threads);
            let aim = format!("{word}, {threads}: at most 5 % slower than {among}, also one that exceeds its limit");
            report.aim(aim, format!("{ratio:.2}× {name}"), ratio * 1.05 >= 1.0);
        }
        if let (Demand::Admit, Some((name, ratio))) = (demand, self.best(demand, 2, true)) {
            let aim = "admitted, 2 threads: 3 times the best peer that holds its limit, 5 % for noise";
            report.aim(aim, format!("{ratio:.2}× {name}"), ratio * 1.05 >= 3.0);
        }
    }

    fn tables(&self, demand: Demand, report: &mut Report) {
        let word = word(demand);
        let columns = THREADS.iter().map(|threads| in_words(*threads));
        let rows = self.contenders.iter().enumerate().map(|(index, contender)| {
            let mut cells: Vec<_> = THREADS
                .iter()
                .map(|threads| self.speeds.get(&(index, *threads)).map_or(Cell::None, |speed| Cell::Measured(*speed)))
                .collect();
            cells.push(self.speed(index, 1).map_or(Cell::None, |millions| Cell::Number(1e3 / millions)));
            let above =
                if contender.kind == Kind::Ours { self.slower_by(index, self.named("clock: weir")) } else { None };
            cells.push(above.map_or(Cell::None, |above| Cell::Text(format!("{above:+.2}"))));
            cells.push(Cell::Text(self.remark(index, demand)));
            Row::new(contender.name, cells)
        });
        report.table(
            Table::new(
                format!("One limit, every decision {word}"),
                "million decisions a second",
                columns.chain(["ns each on 1 thread", "ns above the clock", "remark"].map(str::to_owned)),
                rows,
            )
            .note(
                "All threads use one limit as fast as they can, each bound to a core. The figures are the sum of all \
                threads. \"Time given\" is the decision without the clock, on one thread. \"Above the clock\" is \
                how much longer a decision takes than reading Weir's clock, as the median of rounds. A leaky bucket \
                admits one request at a time, here one each nanosecond. Of the requests with the same clock reading \
                it admits one, so its row measures admissions and refusals together.",
            ),
        );
        for threads in THREADS {
            report.table(self.ratios(demand, threads));
        }
        let drawn = self.contenders.iter().enumerate().filter(|(_, contender)| {
            contender.name == "weir TokenBucket" || contender.kind == Kind::Peer && !contender.one_thread
        });
        let points = |index| {
            THREADS
                .into_iter()
                .filter_map(move |threads| Some((f64::from(u32::try_from(threads).ok()?), self.speed(index, threads)?)))
        };
        report.chart(Lines::new(
            if demand == Demand::Admit { "admitted" } else { "denied" },
            format!("One limit, every decision {word}"),
            ["threads", "million decisions a second, all threads together"],
            drawn.map(|(index, contender)| Series { name: contender.name.to_owned(), points: points(index).collect() }),
        ));
    }

    /// Compares each contender of Weir with each peer.
    fn ratios(&self, demand: Demand, threads: usize) -> Table {
        let peers: Vec<_> = self.of(Kind::Peer).filter(|(index, _)| self.speed(*index, threads).is_some()).collect();
        let rows = self.of(Kind::Ours).filter_map(|(index, contender)| {
            let ratios = peers.iter().map(|(peer, _)| self.ratio(index, *peer, threads));
            let cells = ratios.map(|ratio| Some(Cell::Ratio { ratio: ratio? })).collect::<Option<Vec<_>>>()?;
            Some(Row::new(contender.name, cells))
        });
        let mixed = self.of(Kind::Ours).filter_map(|(index, contender)| {
            let pure = self.wanted(index, threads, demand).filter(|wanted| *wanted < PURE)?;
            Some(format!("Only {:.1} % of the decisions of {} were {}.", pure * 100.0, contender.name, word(demand)))
        });
        let title = format!("Ratios: {}, {}", word(demand), in_words(threads));
        Table::new(title, "times as fast as", peers.iter().map(|(_, peer)| peer.name), rows)
            .note(mixed.collect::<Vec<_>>().join(" "))
    }

    /// The share of decisions with the outcome for which the limit was set up.
    fn wanted(&self, index: usize, threads: usize, demand: Demand) -> Option<f64> {
        let admitted = Spread::of(self.results.get(&(index, threads))?.admitted.clone()).median;
        Some(if demand == Demand::Admit { admitted } else { 1.0 - admitted })
    }

    fn remark(&self, index: usize, demand: Demand) -> String {
        let contender = &self.contenders[index];
        let mut remarks = Vec::new();
        if matches!(contender.kind, Kind::Peer | Kind::Ours)
            && !contender.one_thread
            && !self.exact.held(contender.name)
        {
            remarks.push("**does not hold its limit, see below**".to_owned());
        }
        if demand == Demand::Deny && contender.refuses_unread {
            remarks.push("reads no clock to refuse: it waits for a timer".to_owned());
        }
        if contender.kind != Kind::Baseline {
            for threads in THREADS {
                if let Some(wanted) = self.wanted(index, threads, demand).filter(|wanted| *wanted < PURE) {
                    remarks.push(format!("only {:.1} % {} on {threads}", wanted * 100.0, word(demand)));
                }
            }
        }
        remarks.join("; ")
    }
}
