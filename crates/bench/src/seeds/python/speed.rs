//! The scenarios of traffik's benchmarks, over real connections: throughput, and percentiles of the latency.

use std::{path::Path, time::Duration};

use super::{
    clients::{Answer, get},
    contenders::{CONTENDERS, Contender, PLACEMENTS, Placement, Running},
    counting::Counting,
    plan::{FREE, Limit, Plan, Route, UNREACHED},
    rounds::{Admitted, Latencies, PERCENTILES, Round, Sample},
    tables::{Results, figures},
};
use crate::report::{Part, Row, Table};

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

    /// Compares the served requests with the limit. All requests without a limit must be served.
    fn admitted(&self, contender: Contender, answers: &[Answer]) -> Admitted {
        let limit =
            if contender == Contender::Alone { usize::MAX } else { usize::try_from(self.limit).unwrap_or(usize::MAX) };
        let served = |free: bool| {
            answers.iter().filter(|answer| answer.is_served() && self.is_free(answer.request) == free).count()
        };
        if served(true) < self.requests - self.limited() {
            return Admitted::Fewer;
        }
        Admitted::of(served(false), limit.min(self.limited()))
    }

    /// Whether every second request is refused.
    fn refuses_half(&self) -> bool {
        2 * self.limit == self.requests as u64
    }
}

/// The latencies of served or of refused requests.
type Kind = fn(&Sample) -> Latencies;

/// Returns the number of lists that were admitted wrongly.
pub(super) fn measure(rounds: usize, length: Duration, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<u64> {
    let settings = PLACEMENTS.map(|placement| (placement.name(), placement));
    let wrong = measure_at(&settings, &Counting::in_memory(), rounds, length, folder, part)?;
    Ok(wrong.iter().map(|lists| lists.wrong).sum())
}

/// What a contender admitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists {
    pub(super) contender: Contender,
    /// How many lists of requests were sent.
    pub(super) all: u64,
    /// Of these, how many were admitted wrongly.
    pub(super) wrong: u64,
    /// Of these, of how many more requests were admitted than the limit says.
    pub(super) exceeding: u64,
}

/// Measures all contenders with processes that count like this, in each named placement. Returns what each of them
/// admitted.
pub(super) fn measure_at(
    settings: &[(&str, Placement)],
    counting: &Counting,
    rounds: usize,
    length: Duration,
    folder: &Path,
    part: &mut Part<'_>,
) -> anyhow::Result<Vec<Lists>> {
    let mut results: Vec<_> = settings.iter().map(|(name, _)| Results::new(name, &CONTENDERS)).collect();
    let mut running: Vec<Running> = Vec::new();
    for (place, scenario) in SCENARIOS.iter().enumerate() {
        if place == 0 || SCENARIOS[place - 1].limit != scenario.limit {
            running.clear();
            let plan = Plan::of([Route::limited(PATH, Limit::window(scenario.limit))]);
            for contender in CONTENDERS {
                running.push(contender.start(&plan, counting, folder)?);
            }
        }
        for (results, (name, placement)) in results.iter_mut().zip(settings) {
            eprintln!("python: {}, {name}", scenario.name);
            running.iter().try_for_each(|running| running.move_to(*placement))?;
            let round = |place: usize| scenario.round(&running[place], length);
            results.measure(scenario.name, rounds, round)?;
        }
    }
    results.iter().for_each(|results| write(results, part));
    let count = |(place, contender): (usize, &Contender)| {
        let of = |count: fn(&Sample) -> u64| {
            results.iter().flat_map(|results| results.rounds.of_contender(place)).map(count).sum()
        };
        Lists {
            contender: *contender,
            all: of(|sample| sample.lists),
            wrong: of(|sample| sample.wrong),
            exceeding: of(|sample| sample.exceeding),
        }
    };
    Ok(CONTENDERS.iter().enumerate().map(count).collect())
}

impl Scenario {
    fn round(&self, running: &Running, length: Duration) -> anyhow::Result<Sample> {
        let round = Round {
            addresses: &running.addresses,
            connections: self.connections,
            length,
            list: &|key| self.list(key),
            admitted: &|answers| self.admitted(running.contender, answers),
        };
        round.run()
    }
}

fn write(results: &Results<Sample>, part: &mut Part<'_>) {
    let percentiles: [fn(&Sample) -> f64; 3] = [|sample| sample.all[0], |sample| sample.all[1], |sample| sample.all[2]];
    let figures = figures("requests a second", |sample: &Sample| sample.per_second, percentiles);
    results.write_all(&results.name, NOTE, &figures, part);
    write_half_refused(results, part);
    for (scenario, name) in results.rounds.cases.iter().enumerate() {
        if matches!(name.as_str(), "high" | "sustained") {
            results.draw(scenario, name, name, &figures[0], part);
        }
    }
}

/// The percentiles of served and refused requests, where half are refused.
fn write_half_refused(results: &Results<Sample>, part: &mut Part<'_>) {
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
    let rows = CONTENDERS.iter().enumerate().map(|(place, contender)| {
        let of = |(scenario, latencies, percentile): &(usize, Kind, usize)| {
            results.rounds.cell(*scenario, place, |sample| latencies(sample)[*percentile])
        };
        Row::new(contender.name(), figures.iter().map(of))
    });
    let title = format!("latency with half of the requests refused, ms, {}", results.name);
    part.table(Table::new(title, "contender", columns, rows).note("The app alone refuses none."));
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
        let admitted = |refused: &dyn Fn(usize) -> bool| scenario.admitted(Contender::Agent, &answers(refused));
        assert_eq!(admitted(&|request| odd(request) && request > 100), Admitted::Exactly);
        assert_eq!(admitted(&|request| odd(request) && request > 98), Admitted::Fewer);
        assert_eq!(admitted(&|request| odd(request) && request > 102), Admitted::More);
        let free = admitted(&|request| request < 2 || (odd(request) && request > 102));
        assert_eq!(free, Admitted::Fewer, "as many as before, but one without a limit was refused");
        assert_eq!(scenario.admitted(Contender::Alone, &answers(&|_| false)), Admitted::Exactly);
    }

    #[test]
    fn half_of_the_requests_are_refused_in_two_scenarios() {
        let names: Vec<_> =
            SCENARIOS.iter().filter(|scenario| scenario.refuses_half()).map(|scenario| scenario.name).collect();
        assert_eq!(names, ["high", "burst"]);
    }
}
