//! Measures whether contenders enforce their limit: the admitted requests compared with the allowed ones.

use std::{collections::BTreeMap, time::Duration};

use super::{
    contender::{Contender, Counts, Demand, Kind, REFILL},
    contenders::contenders,
    hammer::{BATCH, Rate, hammer},
};
use crate::{
    clock,
    report::{Cell, Report, Row, Table},
    stats::float,
};

const THREADS: [usize; 3] = [2, 4, 8];
const BUDGET: u32 = 100_000;

/// The highest ratio of admitted to allowed requests, by contender and column.
pub(super) struct Exact {
    worst: BTreeMap<&'static str, Vec<Option<f64>>>,
    order: Vec<&'static str>,
    repetitions: usize,
}

pub(super) fn measure(quick: bool) -> Exact {
    let (repetitions, time) = if quick { (1, Duration::from_millis(4)) } else { (7, Duration::from_millis(30)) };
    let takes_part = |contender: &Contender| !contender.one_thread && contender.kind != Kind::Baseline;
    let contenders: Vec<_> = contenders().into_iter().filter(takes_part).collect();
    let order: Vec<_> = contenders.iter().map(|contender| contender.name).collect();
    let mut worst = BTreeMap::new();
    for repetition in 0..repetitions {
        eprintln!("core: exact counts, repetition {} of {repetitions}", repetition + 1);
        for contender in &contenders {
            let columns = THREADS.iter().map(|threads| budget(contender, *threads));
            let found: Vec<_> =
                columns.chain(THREADS.iter().map(|threads| refill(contender, *threads, time))).collect();
            let worst = worst.entry(contender.name).or_insert_with(|| vec![None; found.len()]);
            for (worst, found) in worst.iter_mut().zip(found) {
                // In comparisons, None is less than any number.
                *worst = if found > *worst { found } else { *worst };
            }
        }
    }
    Exact { worst, order, repetitions }
}

/// Sends four times as many requests as the budget, which is not refilled.
fn budget(contender: &Contender, threads: usize) -> Option<f64> {
    let batch = (contender.make)(Demand::Budget(BUDGET))?;
    let asked = 4 * u64::from(BUDGET);
    let rounds = asked.div_ceil(BATCH * u64::try_from(threads).expect("at most 8"));
    let rate = hammer(threads, Duration::ZERO, rounds, &*batch);
    Some(share(&rate, f64::from(BUDGET)))
}

/// Sends more requests than a limit that refills each millisecond. The allowed number is an upper bound: the time runs
/// from before the creation of the limit until after the last decision, and the first and last window count in full.
fn refill(contender: &Contender, threads: usize, time: Duration) -> Option<f64> {
    let before = clock::now();
    let batch = (contender.make)(Demand::Refill)?;
    let rate = hammer(threads, time, u64::MAX, &*batch);
    let passed = clock::since(before);
    let millis = passed.as_secs_f64() * 1e3;
    let allowed = match contender.counts {
        Counts::Bucket => millis + 1.0,
        Counts::Window => millis.floor() + 2.0,
    };
    Some(share(&rate, allowed * f64::from(REFILL)))
}

/// The ratio of admitted to allowed requests. A limiter that panics gets infinity.
fn share(rate: &Rate, allowed: f64) -> f64 {
    if rate.panicked { f64::INFINITY } else { float(rate.admitted) / allowed }
}

impl Exact {
    /// Returns true if no run of the contender admitted too many requests.
    pub(super) fn held(&self, contender: &str) -> bool {
        self.worst.get(contender).is_some_and(|worst| worst.iter().flatten().all(|worst| *worst <= 1.0))
    }

    pub(super) fn report(&self, report: &mut Report) {
        let ours: Vec<_> = self.order.iter().filter(|name| name.starts_with("weir")).collect();
        let over: Vec<_> = ours.iter().filter(|name| !self.held(name)).map(|name| **name).collect();
        let found = if over.is_empty() { "none".to_owned() } else { over.join(", ") };
        report.aim("Weir admits more than is allowed: never, in any count", found, over.is_empty());

        let columns = ["budget", "refilled"]
            .into_iter()
            .flat_map(|what| THREADS.iter().map(move |threads| format!("{what}, {threads} threads")));
        let rows = self.order.iter().map(|name| {
            let cells = self.worst[name].iter().map(|worst| match worst {
                None => Cell::None,
                Some(worst) if worst.is_infinite() => Cell::Text("**panicked**".to_owned()),
                Some(worst) if *worst > 1.0 => Cell::Text(format!("**{:.3} %**", worst * 100.0)),
                Some(worst) => Cell::Text(format!("{:.2} %", worst * 100.0)),
            });
            Row::new(*name, cells)
        });
        let note = format!(
            "Admissions in percent of what was allowed: the highest of {} repetitions. More than 100 is over-admission \
            (bold). *Budget*: the limit allows {BUDGET} at once and never refills, and the threads send four times as \
            many. *Refilled*: the limit allows {REFILL} requests a millisecond, and the threads send as many as they \
            can for some time. Here the allowed number is an upper bound. So less than 100 is no fault, and a smaller \
            over-admission is not visible.",
            self.repetitions
        );
        report.table(Table::new("Was the limit held?", "% admitted", columns, rows).note(note));
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::hammer::{Batch, batch},
        *,
    };

    const fn contender(make: fn(Demand) -> Option<Batch>) -> Contender {
        let (kind, counts) = (Kind::Peer, Counts::Bucket);
        Contender { name: "x", kind, counts, one_thread: false, refuses_unread: false, make }
    }

    #[test]
    fn one_who_admits_everything_is_found() {
        let open = contender(|_| Some(batch(|| true)));
        assert!(budget(&open, 2).is_some_and(|share| share >= 4.0));
        assert!(refill(&open, 2, Duration::from_millis(5)).is_some_and(|share| share > 1.0));
        let exact = Exact { worst: BTreeMap::from([("x", vec![None, Some(1.001)])]), order: vec!["x"], repetitions: 1 };
        assert!(!exact.held("x"));
    }

    #[test]
    fn one_who_admits_nothing_too_much_holds() {
        let shut = contender(|demand| matches!(demand, Demand::Budget(_)).then(|| batch(|| false)));
        assert_eq!(budget(&shut, 2), Some(0.0));
        assert_eq!(refill(&shut, 2, Duration::ZERO), None);
        let exact = Exact { worst: BTreeMap::from([("x", vec![None, Some(1.0)])]), order: vec!["x"], repetitions: 1 };
        assert!(exact.held("x"));
    }
}
