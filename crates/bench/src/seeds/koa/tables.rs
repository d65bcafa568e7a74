//! The tables, charts and aims of one limit in Redis.

use super::{
    FAR, Results,
    contenders::Contender,
    loads::{Kind, LOADS, Sample},
};
use crate::{
    report::{Bars, Part},
    rounds::Figure,
    stats::figure as shown,
};

const fn figure(title: &'static str, of: fn(&Sample) -> f64) -> Figure<Sample> {
    Figure { title, unit: "", of, more_is_better: true }
}

const PER_SECOND: Figure<Sample> = figure("requests a second", |sample| sample.per_second);
const SHARE: Figure<Sample> = figure("admitted, % of what is possible", |sample| sample.share);
const EXCESS: Figure<Sample> = figure("excess", |sample| sample.excess);
const TRIPS: Figure<Sample> = figure("trips per request", |sample| sample.trips);
const FAILED: Figure<Sample> = figure("not answered", |sample| sample.failed);

const FIGURES: [Figure<Sample>; 10] = [
    PER_SECOND,
    figure("P50, ms", |sample| sample.p50),
    figure("P95, ms", |sample| sample.p95),
    figure("P99, ms", |sample| sample.p99),
    figure("admitted", |sample| sample.admitted),
    SHARE,
    EXCESS,
    TRIPS,
    figure("CPU of Redis per request, µs", |sample| sample.store_cpu),
    FAILED,
];

/// The aims.
const TIMES_A_TRIP: f64 = 20.0;
const OF_NO_LIMITER: f64 = 0.95;
const AT_THREE_TIMES: f64 = 93.0;
const AT_MOST: f64 = 98.0;

fn place(contender: Contender) -> usize {
    Contender::ALL.iter().position(|one| *one == contender).unwrap_or_default()
}

fn case(kind: Kind) -> usize {
    LOADS.iter().position(|load| load.kind == kind).unwrap_or_default()
}

impl Results {
    /// The share that the agent admits.
    fn share(&self, kind: Kind) -> f64 {
        self.rounds.median(case(kind), place(Contender::Agent), SHARE.of)
    }

    /// Requests a second of the agent, as a multiple of those of another contender.
    fn times(&self, kind: Kind, contender: Contender) -> f64 {
        self.rounds.times_as_good(case(kind), [Contender::Agent, contender].map(place), &PER_SECOND)
    }
}

pub(super) fn write(results: &[Results], part: &mut Part<'_>) {
    aims(results, part);
    for (case, load) in LOADS.iter().enumerate() {
        for at in results {
            let table = at.rounds.of_case(case, format!("{}, {}", load.name, at.distance), "contender", &FIGURES);
            let note = format!("A round trip to Redis without load took {} ms.", shown(at.round_trip));
            part.table(table.note(note));
        }
    }
    charts(results, part);
}

fn aims(results: &[Results], part: &mut Part<'_>) {
    for at in results {
        let distance = at.distance;
        let [times, local] = [Contender::Trip, Contender::Local].map(|other| at.times(Kind::Refused, other));
        if distance == FAR {
            let most = shown(times / local);
            let found = format!("{}×; scope Pod, which makes no trips: {most}×", shown(times));
            part.aim(&format!("refused, {distance}: at least 20 times koa-ratelimit"), found, times >= TIMES_A_TRIP);
        }
        part.aim(
            &format!("refused, {distance}: at most 5 % below the agent with scope Pod"),
            format!("{}×", shown(local)),
            local >= OF_NO_LIMITER,
        );
        let [idle, alone] = [Contender::Idle, Contender::Alone].map(|other| at.times(Kind::Admitted, other));
        let all = at.share(Kind::Admitted);
        part.aim(
            &format!("admitted, {distance}: at most 5 % below the agent without a policy, and all are admitted"),
            format!("{}×, {} % admitted; {}× of the app alone", shown(idle), shown(all), shown(alone)),
            idle >= OF_NO_LIMITER && all >= 100.0,
        );
        for (kind, load, least) in [
            (Kind::Open { tenths: 30 }, "three times the limit", AT_THREE_TIMES),
            (Kind::Open { tenths: 8 }, "0.8 of the limit", AT_MOST),
        ] {
            let share = at.share(kind);
            part.aim(
                &format!("{load}, {distance}: at least {} % of what is possible is admitted", shown(least)),
                format!("{} %", shown(share)),
                share >= least,
            );
        }
    }
    let most = |contender: Contender, figure: &Figure<Sample>| {
        let samples = results.iter().flat_map(|at| at.rounds.of_contender(place(contender)));
        samples.map(figure.of).fold(0.0, f64::max)
    };
    let found = |figure: &Figure<Sample>| {
        let [ours, trip, optimistic] =
            [Contender::Agent, Contender::Trip, Contender::Optimistic].map(|contender| most(contender, figure));
        let peers = format!("koa-ratelimit {}, optimistic counter {}", shown(trip), shown(optimistic));
        (format!("{} ({peers})", shown(ours)), ours <= 0.0)
    };
    let (excess, is_exact) = found(&EXCESS);
    part.aim("no round of any load has an excess", excess, is_exact);
    let (failed, is_whole) = found(&FAILED);
    part.aim("every request of every round is answered", failed, is_whole);
}

fn charts(results: &[Results], part: &mut Part<'_>) {
    const THREE_TIMES: Kind = Kind::Open { tenths: 30 };
    for (name, title, kind, figure) in [
        ("refused", "refused, requests a second", Kind::Refused, PER_SECOND),
        ("admitted", "admitted, requests a second", Kind::Admitted, PER_SECOND),
        ("excess", "refused by two processes, excess over a limit of 1,000", Kind::RefusedByAll, EXCESS),
        ("three-times", "three times the limit, admitted, % of what is possible", THREE_TIMES, SHARE),
        ("trips", "three times the limit, trips to Redis per request", THREE_TIMES, TRIPS),
    ] {
        let bars = results.iter().flat_map(|at| {
            let distance = at.distance.trim_start_matches("Redis at ");
            at.rounds.bars(case(kind), figure.of).map(move |(name, value)| (format!("{name}, {distance}"), value))
        });
        part.bars(Bars::new(name, title, figure.title, bars));
    }
}
