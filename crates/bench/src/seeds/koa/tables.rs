//! The tables, charts and aims of one limit in Redis.

use super::{
    FAR, Results,
    contenders::Contender,
    loads::{Kind, LOADS, Sample},
};
use crate::{
    report::{Bars, Cell, Part, Row, Table},
    stats::{self, Spread, figure},
};

/// A figure: its title with the unit, and its value.
type Figure = (&'static str, fn(&Sample) -> f64);

const FIGURES: [Figure; 10] = [
    ("requests a second", |sample| sample.per_second),
    ("P50, ms", |sample| sample.p50),
    ("P95, ms", |sample| sample.p95),
    ("P99, ms", |sample| sample.p99),
    ("admitted", |sample| sample.admitted),
    ("admitted, % of what is possible", |sample| sample.share),
    ("excess", |sample| sample.excess),
    ("trips per request", |sample| sample.trips),
    ("CPU of Redis per request, µs", |sample| sample.store_cpu),
    ("not answered", |sample| sample.failed),
];

/// The aims.
const TIMES_A_TRIP: f64 = 20.0;
const OF_NO_LIMITER: f64 = 0.95;
const AT_THREE_TIMES: f64 = 93.0;
const AT_MOST: f64 = 98.0;

impl Results {
    /// The values of a contender, by round.
    fn values(&self, kind: Kind, contender: Contender, value: fn(&Sample) -> f64) -> Vec<f64> {
        let load = LOADS.iter().position(|load| load.kind == kind).unwrap_or_default();
        let place = Contender::ALL.iter().position(|one| *one == contender).unwrap_or_default();
        self.samples[load][place].iter().map(value).collect()
    }

    fn median(&self, kind: Kind, contender: Contender, value: fn(&Sample) -> f64) -> f64 {
        Spread::of(self.values(kind, contender, value)).median
    }

    /// Requests a second of the agent, as a multiple of those of another contender.
    fn times(&self, kind: Kind, contender: Contender) -> f64 {
        let of = |contender| self.values(kind, contender, |sample| sample.per_second);
        stats::ratio(&of(Contender::Agent), &of(contender))
    }
}

pub(super) fn write(results: &[Results], part: &mut Part<'_>) {
    aims(results, part);
    for (place, load) in LOADS.iter().enumerate() {
        for at in results {
            part.table(table(at, place, load.name));
        }
    }
    charts(results, part);
}

fn aims(results: &[Results], part: &mut Part<'_>) {
    for at in results {
        let distance = at.distance;
        let [times, local] = [Contender::Trip, Contender::Local].map(|other| at.times(Kind::Refused, other));
        if distance == FAR {
            let most = figure(times / local);
            let found = format!("{}×; scope Pod, which makes no trips: {most}×", figure(times));
            part.aim(&format!("refused, {distance}: at least 20 times koa-ratelimit"), found, times >= TIMES_A_TRIP);
        }
        part.aim(
            &format!("refused, {distance}: at most 5 % below the agent with scope Pod"),
            format!("{}×", figure(local)),
            local >= OF_NO_LIMITER,
        );
        let [idle, alone] = [Contender::Idle, Contender::Alone].map(|other| at.times(Kind::Admitted, other));
        let all = at.median(Kind::Admitted, Contender::Agent, |sample| sample.share);
        part.aim(
            &format!("admitted, {distance}: at most 5 % below the agent without a policy, and all are admitted"),
            format!("{}×, {} % admitted; {}× of the app alone", figure(idle), figure(all), figure(alone)),
            idle >= OF_NO_LIMITER && all >= 100.0,
        );
        for (kind, load, least) in [
            (Kind::Open { tenths: 30 }, "three times the limit", AT_THREE_TIMES),
            (Kind::Open { tenths: 8 }, "0.8 of the limit", AT_MOST),
        ] {
            let share = at.median(kind, Contender::Agent, |sample| sample.share);
            part.aim(
                &format!("{load}, {distance}: at least {} % of what is possible is admitted", figure(least)),
                format!("{} %", figure(share)),
                share >= least,
            );
        }
    }
    let most = |contender: Contender, value: fn(&Sample) -> f64| {
        let each = |at: &Results| {
            let of = |kind| at.values(kind, contender, value).into_iter().fold(0.0, f64::max);
            LOADS.iter().map(|load| of(load.kind)).fold(0.0, f64::max)
        };
        results.iter().map(each).fold(0.0, f64::max)
    };
    let found = |value: fn(&Sample) -> f64| {
        let [ours, trip, optimistic] =
            [Contender::Agent, Contender::Trip, Contender::Optimistic].map(|contender| most(contender, value));
        let peers = format!("koa-ratelimit {}, optimistic counter {}", figure(trip), figure(optimistic));
        (format!("{} ({peers})", figure(ours)), ours <= 0.0)
    };
    let (excess, is_exact) = found(|sample| sample.excess);
    part.aim("no round of any load has an excess", excess, is_exact);
    let (failed, is_whole) = found(|sample| sample.failed);
    part.aim("every request of every round is answered", failed, is_whole);
}

fn table(at: &Results, load: usize, name: &str) -> Table {
    let rows = Contender::ALL.iter().zip(&at.samples[load]).filter(|(_, samples)| !samples.is_empty());
    let row = |(contender, samples): (&Contender, &Vec<Sample>)| {
        let cell = |(_, value): &Figure| Cell::Measured(Spread::over(samples, value));
        Row::new(contender.name(), FIGURES.iter().map(cell))
    };
    Table::new(format!("{name}, {}", at.distance), "contender", FIGURES.map(|(title, _)| title), rows.map(row))
        .note(format!("A round trip to Redis without load took {} ms.", figure(at.round_trip)))
}

fn charts(results: &[Results], part: &mut Part<'_>) {
    let charts: [(&str, &str, Kind, Figure); 5] = [
        ("refused", "refused, requests a second", Kind::Refused, FIGURES[0]),
        ("admitted", "admitted, requests a second", Kind::Admitted, FIGURES[0]),
        ("excess", "refused by two processes, excess over a limit of 1,000", Kind::RefusedByAll, FIGURES[6]),
        (
            "three-times",
            "three times the limit, admitted, % of what is possible",
            Kind::Open { tenths: 30 },
            FIGURES[5],
        ),
        ("trips", "three times the limit, trips to Redis per request", Kind::Open { tenths: 30 }, FIGURES[7]),
    ];
    for (name, title, kind, (unit, value)) in charts {
        let bars = results.iter().flat_map(|at| {
            let contenders = Contender::ALL.into_iter().filter(move |contender| kind.takes_part(*contender));
            let distance = at.distance.trim_start_matches("Redis at ");
            contenders
                .map(move |contender| (format!("{}, {distance}", contender.name()), at.median(kind, contender, value)))
        });
        part.bars(Bars::new(name, title, unit, bars));
    }
}
