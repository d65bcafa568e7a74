//! The scenarios of traffik's benchmarks, over real connections: throughput, and percentiles of the latency.

use std::{path::Path, time::Duration};

use super::{
    clients::{Answer, get},
    contenders::{CONTENDERS, Contender, PLACEMENTS, Placement, Running},
    plan::{FREE, Limit, Plan, Route, UNREACHED},
    rounds::{Latencies, PERCENTILES, Round, Sample, order},
    tables::{Figure, Rounds, cell, per_contender},
};
use crate::{
    report::{Bars, Table},
    seeds::part::Part,
    stats::Spread,
};

const PATH: &str = "/limited";

#[derive(Clone, Copy)]
enum Keys {
    /// One for each list.
    Fresh,
    /// The same one for all requests of all lists.
    Hot,
    /// Each request of a list has one of these.
    Many(usize),
}

#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    /// In a list.
    requests: usize,
    connections: usize,
    limit: u64,
    keys: Keys,
    /// Every second request goes to a path without a limit.
    selective: bool,
}

const PLAIN: Scenario =
    Scenario { name: "", requests: 200, connections: 50, limit: 100, keys: Keys::Fresh, selective: false };

/// Scenarios with the same limit are neighbours, because they share their processes.
const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "low", requests: 50, ..PLAIN },
    Scenario { name: "high", ..PLAIN },
    Scenario { name: "burst", requests: 100, connections: 100, limit: 50, ..PLAIN },
    Scenario { name: "selective", limit: 50, selective: true, ..PLAIN },
    Scenario { name: "sustained", requests: 500, limit: 1_000, ..PLAIN },
    Scenario { name: "hot key", requests: 500, limit: UNREACHED, keys: Keys::Hot, ..PLAIN },
    Scenario { name: "50 keys", requests: 500, limit: UNREACHED, keys: Keys::Many(50), ..PLAIN },
];

const NOTE: &str = "*Low*: 50 requests over 50 connections with a limit of 100. *High*: 200 over 50 connections, limit \
    100. *Burst*: 100 at once, limit 50. *Selective*: 200 over 50 connections, half of them to a path without a limit, \
    half to a limit of 50. *Sustained*: 500 over 50 connections, limit 1,000. *Hot key* and *50 keys*: 500 over 50 \
    connections, limit not reached, with one key that is never new, or with 50 keys. Except in *hot key*, each list of \
    requests has keys of its own.";

impl Scenario {
    fn list(&self, key: &str) -> Vec<Vec<u8>> {
        let request = |number: usize| {
            let key = match self.keys {
                Keys::Fresh => key.to_owned(),
                Keys::Hot => "hot".to_owned(),
                Keys::Many(keys) => format!("{key}-{}", number % keys),
            };
            get(if self.is_free(number) { FREE } else { PATH }, &key)
        };
        (0..self.requests).map(request).collect()
    }

    fn is_free(&self, number: usize) -> bool {
        self.selective && number.is_multiple_of(2)
    }

    /// How many requests of a list have a limit.
    fn limited(&self) -> usize {
        (0..self.requests).filter(|number| !self.is_free(*number)).count()
    }

    /// Whether all requests without a limit were served, and of the others as many as the limit says.
    fn is_exact(&self, contender: Contender, answers: &[Answer]) -> bool {
        let limit =
            if contender == Contender::Alone { usize::MAX } else { usize::try_from(self.limit).unwrap_or(usize::MAX) };
        let served = |free: bool| {
            answers.iter().filter(|answer| answer.is_served() && self.is_free(answer.request) == free).count()
        };
        served(false) == limit.min(self.limited()) && served(true) == self.requests - self.limited()
    }

    /// Whether every second request is refused.
    fn refuses_half(&self) -> bool {
        2 * self.limit == self.requests as u64
    }
}

/// The latencies of served or of refused requests.
type Kind = fn(&Sample) -> Latencies;

/// By scenario and contender.
struct Results {
    placement: Placement,
    samples: Vec<Vec<Vec<Sample>>>,
}

/// Returns the number of lists that were admitted wrongly.
pub(super) fn measure(rounds: usize, length: Duration, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<u64> {
    let mut results = PLACEMENTS.map(|placement| Results { placement, samples: Vec::new() });
    let mut running: Vec<Running> = Vec::new();
    for (place, scenario) in SCENARIOS.iter().enumerate() {
        if place == 0 || SCENARIOS[place - 1].limit != scenario.limit {
            running.clear();
            let plan = Plan::of([Route::limited(PATH, Limit::window(scenario.limit))]);
            for contender in CONTENDERS {
                running.push(contender.start(&plan, folder)?);
            }
        }
        for Results { placement, samples } in &mut results {
            eprintln!("seeds: {}, {}", scenario.name, placement.name());
            running.iter().try_for_each(|running| running.move_to(*placement))?;
            samples.push(scenario.run(&running, rounds, length)?);
        }
    }
    let wrong =
        |results: &Results| -> u64 { results.samples.iter().flatten().flatten().map(|sample| sample.wrong).sum() };
    results.iter().for_each(|results| results.write(part));
    Ok(results.iter().map(wrong).sum())
}

impl Scenario {
    fn run(&self, running: &[Running], rounds: usize, length: Duration) -> anyhow::Result<Vec<Vec<Sample>>> {
        let mut samples = vec![Vec::new(); running.len()];
        for round in 0..rounds {
            for place in order(round, running.len()) {
                let contender = &running[place];
                let round = Round {
                    address: contender.address,
                    connections: self.connections,
                    length,
                    list: &|key| self.list(key),
                    is_exact: &|answers| self.is_exact(contender.contender, answers),
                };
                samples[place].push(round.run()?);
            }
        }
        Ok(samples)
    }
}

impl Rounds<Sample> for Results {
    fn contenders(&self) -> &'static [Contender] {
        &CONTENDERS
    }

    fn scenarios(&self) -> Vec<&'static str> {
        SCENARIOS.iter().map(|scenario| scenario.name).collect()
    }

    fn samples(&self, scenario: usize, contender: usize) -> &[Sample] {
        &self.samples[scenario][contender]
    }
}

impl Results {
    fn write(&self, part: &mut Part<'_>) {
        let figures = [
            Figure { name: "requests a second", more_is_better: true, of: |sample: &Sample| sample.per_second },
            Figure { name: "P50, ms", more_is_better: false, of: |sample| sample.all[0] },
            Figure { name: "P95, ms", more_is_better: false, of: |sample| sample.all[1] },
            Figure { name: "P99, ms", more_is_better: false, of: |sample| sample.all[2] },
        ];
        let placement = self.placement.name();
        self.write_all(placement, NOTE, &figures, part);
        self.write_half_refused(part);
        for (scenario, name) in self.scenarios().into_iter().enumerate() {
            if matches!(name, "high" | "sustained") {
                let bar = |contender: usize| {
                    let rounds = self.rounds(scenario, contender, |sample| sample.per_second);
                    (CONTENDERS[contender].name().to_owned(), Spread::of(rounds).median)
                };
                part.bars(Bars {
                    name: format!("{name}-{}", placement.replace(' ', "-")),
                    title: format!("{name}, {placement}"),
                    unit: "requests a second".to_owned(),
                    bars: (0..CONTENDERS.len()).map(bar).collect(),
                });
            }
        }
    }

    /// The percentiles of served and refused requests, where half are refused.
    fn write_half_refused(&self, part: &mut Part<'_>) {
        let kinds: [(&str, Kind); 2] = [("served", |sample| sample.served), ("refused", |sample| sample.refused)];
        let mut columns = Vec::new();
        let mut figures: Vec<(usize, Kind, usize)> = Vec::new();
        for (scenario, of) in SCENARIOS.iter().enumerate().filter(|(_, scenario)| scenario.refuses_half()) {
            for (kind, latencies) in kinds {
                for (place, percentile) in PERCENTILES.into_iter().enumerate() {
                    columns.push(format!("{}, {kind}, {percentile}", of.name));
                    figures.push((scenario, latencies, place));
                }
            }
        }
        let rows = per_contender(&CONTENDERS, |place| {
            let of = |(scenario, latencies, percentile): &(usize, Kind, usize)| {
                cell(self.rounds(*scenario, place, |sample| latencies(sample)[*percentile]))
            };
            figures.iter().map(of).collect()
        });
        part.table(Table {
            title: format!("latency with half of the requests refused, ms, {}", self.placement.name()),
            note: "The app alone refuses none.".to_owned(),
            unit: "contender".to_owned(),
            columns,
            rows,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_path_without_a_limit_is_counted_separately() {
        let scenario = SCENARIOS.iter().find(|scenario| scenario.selective).expect("there is one");
        let now = clock::now();
        let answers = |refused: &dyn Fn(usize) -> bool| -> Vec<Answer> {
            let answer = |request| Answer {
                request,
                sent: now,
                received: now,
                status: if refused(request) { 429 } else { 200 },
            };
            (0..scenario.requests).map(answer).collect()
        };
        let odd = |request: usize| !request.is_multiple_of(2);
        assert!(scenario.is_exact(Contender::Agent, &answers(&|request| odd(request) && request > 100)));
        assert!(!scenario.is_exact(Contender::Agent, &answers(&|request| odd(request) && request > 98)));
        let free = answers(&|request| request < 2 || (odd(request) && request > 102));
        assert!(!scenario.is_exact(Contender::Agent, &free), "as many as before, but one without a limit was refused");
        assert!(scenario.is_exact(Contender::Alone, &answers(&|_| false)));
    }

    #[test]
    fn half_of_the_requests_are_refused_in_two_scenarios() {
        let names: Vec<_> =
            SCENARIOS.iter().filter(|scenario| scenario.refuses_half()).map(|scenario| scenario.name).collect();
        assert_eq!(names, ["high", "burst"]);
    }
}
