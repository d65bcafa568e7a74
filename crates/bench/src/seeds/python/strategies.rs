//! Each strategy of each contender: how many requests it admits of a crowd, what happens at the edge of a window, and how
//! fast it is with half of the requests refused. What it should admit follows from its definition, which is written here
//! again and shares no code with a limiter.

use std::{ops::RangeInclusive, path::Path, time::Duration};

use super::{
    clients::{Answer, Clients, get},
    contenders::{Contender, Running},
    counting::Counting,
    plan::{DAY, FREE, Limit, Plan, Route, STRATEGIES, Strategy},
    rounds::{Admitted, Round, Sample, fresh_key},
    tables::figures,
};
use crate::{
    clock,
    report::{Cell, Part, Row, Table},
    rounds::Rounds,
    stats::{Spread, float},
};

const LIMIT: usize = 100;
const ITERATIONS: usize = 5;
/// One key sends this number of requests at the same time.
const AT_ONCE: usize = 150;
/// A crowd: the number of clients, each with its own key, the requests of each, and the connections of all.
const CLIENTS: usize = 10;
const OF_EACH: usize = 120;
const CONNECTIONS: usize = 100;
/// The windows whose edge is tested.
const WINDOW: Duration = Duration::from_secs(1);
/// When the two bursts around the edge are sent, after the first request of a window.
const BURSTS: [Duration; 2] = [Duration::from_millis(850), Duration::from_millis(1_100)];
const WINDOWS: [Strategy; 3] = [Strategy::FixedWindow, Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog];
/// A queue that is long enough for the limit. It drains in this time.
const DRAINED: u64 = 10_000;

/// More about the crowds.
const OF_STRATEGIES: &str = " TokenBucketWithDebt has a bucket of 80 and may owe 20; GCRA has a burst of 100. The \
    LeakyBucket of the agent paces requests: without Wait it admits one at once. With Wait, once, 100 in 10 s leave the \
    queue one after the other. The LeakyBucket of traffik only counts.";

/// A strategy of a contender.
#[derive(Clone, Copy)]
struct Case {
    contender: usize,
    strategy: Strategy,
    waits: bool,
}

const CONTENDERS: [Contender; 3] = [Contender::Agent, Contender::Traffik, Contender::Slowapi];

/// What a contender has.
fn has(contender: Contender, strategy: Strategy) -> bool {
    contender != Contender::Slowapi || WINDOWS.contains(&strategy)
}

impl Case {
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for (place, contender) in CONTENDERS.into_iter().enumerate() {
            let own = STRATEGIES.into_iter().filter(|strategy| has(contender, *strategy));
            cases.extend(own.map(|strategy| Self { contender: place, strategy, waits: false }));
            if contender == Contender::Agent {
                cases.push(Self { contender: place, strategy: Strategy::LeakyBucket, waits: true });
            }
        }
        cases
    }

    fn name(&self) -> String {
        let wait = if self.waits { ", Wait" } else { "" };
        format!("{}, {}{wait}", CONTENDERS[self.contender].name(), self.strategy.name())
    }

    fn path(&self) -> String {
        format!("/{}{}", self.strategy.name(), if self.waits { "/wait" } else { "" })
    }

    fn limit(&self) -> Limit {
        let requests = LIMIT as u64;
        if self.waits {
            // The first one does not wait.
            return Limit {
                wait: Some(DRAINED),
                burst: Some(requests - 1),
                ..Limit::at_once(self.strategy, requests, DRAINED)
            };
        }
        Limit::at_once(self.strategy, requests, DAY)
    }

    /// The number of requests that must be admitted if one key sends all its requests at the same time.
    fn exact(&self) -> usize {
        // A leaky bucket paces. Without a queue, only the first request is in time.
        let paces = self.strategy == Strategy::LeakyBucket && CONTENDERS[self.contender] == Contender::Agent;
        if paces && !self.waits { 1 } else { LIMIT }
    }
}

/// Sends the same crowds to limiters with processes that count like this, in fixed windows.
pub(super) fn count_in(name: &str, counting: &Counting, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    let cases: Vec<_> = Case::all().into_iter().filter(|case| case.strategy == Strategy::FixedWindow).collect();
    let plan = Plan::of(cases.iter().take(1).map(|case| Route::limited(case.path(), case.limit())));
    let running = CONTENDERS.into_iter().map(|contender| contender.start(&plan, counting, folder));
    let running = running.collect::<anyhow::Result<Vec<_>>>()?;
    counts(&format!("admitted of a crowd, {name}"), "", &cases, &running, part)
}

pub(super) fn measure(rounds: usize, length: Duration, folder: &Path, part: &mut Part<'_>) -> anyhow::Result<()> {
    let cases = Case::all();
    let mut running: Vec<Running> = Vec::new();
    for (place, contender) in CONTENDERS.into_iter().enumerate() {
        let own = cases.iter().filter(|case| case.contender == place);
        let mut routes: Vec<_> = own.map(|case| Route::limited(case.path(), case.limit())).collect();
        let second = u64::try_from(WINDOW.as_millis()).unwrap_or(u64::MAX);
        let window = |strategy: Strategy| {
            Route::limited(edge(strategy), Limit { millis: second, ..Limit::at_once(strategy, LIMIT as u64, second) })
        };
        routes.extend(WINDOWS.map(window));
        running.push(contender.start(&Plan::of(routes), &Counting::in_memory(), folder)?);
    }
    counts("admitted of a crowd", OF_STRATEGIES, &cases, &running, part)?;
    edges(rounds, &running, part)?;
    speed(&cases, &running, rounds, length, part)
}

/// Counts the requests that each strategy admits. For any order of requests, the count must be that of the limit.
fn counts(title: &str, note: &str, cases: &[Case], running: &[Running], part: &mut Part<'_>) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let (mut ours, mut wrong_ones) = (true, Vec::new());
    for case in cases {
        eprintln!("seeds: count {}", case.name());
        let (addresses, path) = (&running[case.contender].addresses, case.path());
        let (mut crowd, mut clients) = (0, 0);
        for _ in 0..ITERATIONS {
            let requests = vec![get(&path, &fresh_key()); AT_ONCE];
            crowd += served(&Clients::connect(addresses, AT_ONCE)?.run(&requests)?);
            // The queues of ten clients would take ten times as long.
            if case.waits {
                break;
            }
            let keys: Vec<_> = (0..CLIENTS).map(|_| fresh_key()).collect();
            let requests: Vec<_> = (0..CLIENTS * OF_EACH).map(|number| get(&path, &keys[number % CLIENTS])).collect();
            clients += served(&Clients::connect(addresses, CONNECTIONS)?.run(&requests)?);
        }
        let iterations = if case.waits { 1 } else { ITERATIONS };
        let exact = [iterations * case.exact(), iterations * CLIENTS * case.exact()];
        let is_right = crowd == exact[0] && (case.waits || clients == exact[1]);
        if !is_right {
            wrong_ones.push(case.name());
            ours &= CONTENDERS[case.contender] != Contender::Agent;
        }
        let figure = |count: usize| Cell::Number(float(count));
        let optional = |count: usize| if case.waits { Cell::None } else { figure(count) };
        rows.push(Row::new(
            case.name(),
            [
                figure(iterations * AT_ONCE),
                figure(crowd),
                figure(exact[0]),
                optional(iterations * CLIENTS * OF_EACH),
                optional(clients),
                optional(exact[1]),
            ],
        ));
    }
    let found = listed(&wrong_ones);
    part.aim(
        &format!(
            "{title}: the agent admits exactly what each strategy says, 150 at once, and 10 clients with 120 each"
        ),
        found,
        ours,
    );
    let note = format!(
        "The limit is {LIMIT} a day for each key. Five times, one client sends {AT_ONCE} requests at once; five times, \
        {CLIENTS} clients send {OF_EACH} each, mixed, over {CONNECTIONS} connections. Each time has new keys.{note}"
    );
    let columns = ["sent at once", "admitted", "exact", "10 clients sent", "admitted", "exact"];
    part.table(Table::new(title, "contender, strategy", columns, rows).note(note));
    Ok(())
}

fn edge(strategy: Strategy) -> String {
    format!("/edge/{}", strategy.name())
}

/// Two bursts, one shortly before and one shortly after the edge of a window.
fn edges(rounds: usize, running: &[Running], part: &mut Part<'_>) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    let mut wrong_ones = Vec::new();
    let mut ours = true;
    for strategy in WINDOWS {
        for (contender, running) in CONTENDERS.into_iter().zip(running) {
            let name = format!("{}, {}", contender.name(), strategy.name());
            eprintln!("seeds: the edge of a window, {name}");
            let (mut bursts, mut most, mut is_right) = ([Vec::new(), Vec::new()], Vec::new(), true);
            let mut allowed = 0..=0;
            for _ in 0..rounds {
                let Edge { first, before, after, late } = Edge::cross(running, strategy)?;
                allowed = admitted_after(strategy, late);
                is_right &= served(&before) + 1 == LIMIT && allowed.contains(&served(&after));
                bursts[0].push(float(served(&before)));
                bursts[1].push(float(served(&after)));
                most.push(float(most_within(&[first, before, after].concat(), WINDOW)));
            }
            if !is_right {
                ours &= contender != Contender::Agent;
                wrong_ones.push(name.clone());
            }
            let cell = |rounds: Vec<f64>| Cell::Measured(Spread::of(rounds));
            let [before, after] = bursts.map(cell);
            let (low, high) = allowed.into_inner();
            let allowed = if low == high { low.to_string() } else { format!("{low} to {high}") };
            rows.push(Row::new(name, [before, after, Cell::Text(allowed), cell(most)]));
        }
    }
    part.aim(
        "the agent admits what each strategy says before and after the edge of a window",
        listed(&wrong_ones),
        ours,
    );
    let note = format!(
        "The limit is {LIMIT} a second. A key sends one request at the start of a window, {AT_ONCE} at once {} ms after \
        the start, of which {} must be admitted, and {AT_ONCE} at once {} ms after the start. *Most in a second* counts \
        requests that were admitted within one second for certain: they were sent after its start and answered before \
        its end. A fixed window admits up to twice the limit around its edge. A sliding counter assumes that the \
        requests of the last window were evenly distributed, so it may admit a few too many. A sliding log admits at \
        most the limit.",
        BURSTS[0].as_millis(),
        LIMIT - 1,
        BURSTS[1].as_millis()
    );
    let columns = ["before the edge", "after the edge", "after the edge, by definition", "most in a second"];
    part.table(Table::new("the edge of a window", "contender, strategy", columns, rows).note(note));
    Ok(())
}

/// How many of a burst are admitted in the second window, if the first one was used up shortly before its end. `late`
/// is how long after the edge the last answer arrived.
fn admitted_after(strategy: Strategy, late: Duration) -> RangeInclusive<usize> {
    match strategy {
        Strategy::FixedWindow => LIMIT..=LIMIT,
        // The share of the last window that has passed, at the first request of the burst and at the last.
        Strategy::SlidingWindowCounter => {
            let passed = |time: Duration| usize::try_from(time.as_millis() * LIMIT as u128 / WINDOW.as_millis());
            let [first, last] = [BURSTS[1] - WINDOW, late].map(|time| passed(time).unwrap_or(usize::MAX));
            first..=last + 1
        }
        // The first request is more than a second old, and all others count.
        _ => 1..=1,
    }
}

/// The answers to the first request of a window, to the burst before its end, and to the burst after it.
struct Edge {
    first: Vec<Answer>,
    before: Vec<Answer>,
    after: Vec<Answer>,
    /// How long after the edge the last answer arrived.
    late: Duration,
}

impl Edge {
    fn cross(running: &Running, strategy: Strategy) -> anyhow::Result<Self> {
        let mut clients = Clients::connect(&running.addresses, AT_ONCE)?;
        // Opens the connections to the app.
        clients.run(&vec![get(FREE, "none"); AT_ONCE])?;
        let requests = vec![get(&edge(strategy), &fresh_key()); AT_ONCE];
        // Some windows start at a whole second, others with the first request.
        clock::sleep(WINDOW - Duration::from_nanos(clock::since_1970().subsec_nanos().into()));
        let started = clock::now();
        let first = clients.run(&requests[..1])?;
        let mut burst = |at: Duration| {
            clock::sleep(at.saturating_sub(clock::since(started)));
            clients.run(&requests)
        };
        let (before, after) = (burst(BURSTS[0])?, burst(BURSTS[1])?);
        Ok(Self { first, before, after, late: clock::since(started).saturating_sub(WINDOW) })
    }
}

/// The most requests that were admitted within such a span for certain.
fn most_within(answers: &[Answer], span: Duration) -> usize {
    let admitted: Vec<_> = answers.iter().filter(|answer| answer.is_served()).collect();
    let within = |start: &Answer| {
        let is_inside = |other: &&&Answer| other.sent >= start.sent && other.received <= start.sent + span;
        admitted.iter().filter(is_inside).count()
    };
    admitted.iter().map(|start| within(start)).max().unwrap_or_default()
}

/// The scenario *high* with each strategy.
fn speed(
    cases: &[Case],
    running: &[Running],
    rounds: usize,
    length: Duration,
    part: &mut Part<'_>,
) -> anyhow::Result<()> {
    let cases: Vec<_> = cases.iter().filter(|case| !case.waits).collect();
    let mut found = Rounds::new(cases.iter().map(|case| case.name()));
    found.add("half of the requests refused");
    found.measure("seeds: strategies", rounds, |_, place, _| {
        let (case, path) = (cases[place], cases[place].path());
        let round = Round {
            addresses: &running[case.contender].addresses,
            connections: 50,
            length,
            list: &|key| vec![get(&path, key); 2 * LIMIT],
            admitted: &|answers| Admitted::of(served(answers), case.exact()),
        };
        round.run().map(Some)
    })?;
    let sum = |of: fn(&Sample) -> u64| (0..cases.len()).flat_map(|place| found.samples(0, place)).map(of).sum::<u64>();
    let (wrong, lists) = (sum(|sample| sample.wrong), sum(|sample| sample.lists));
    let note = format!(
        "200 requests over 50 connections with a limit of {LIMIT} for each key; {wrong} of {lists} lists were admitted \
        wrongly. The LeakyBucket of the agent refuses 199 of 200, because it admits requests only at even intervals."
    );
    let percentiles: [fn(&Sample) -> f64; 3] = [|sample| sample.all[0], |sample| sample.all[1], |sample| sample.all[2]];
    let figures = figures("requests a second", |sample: &Sample| sample.per_second, percentiles);
    let title = "each strategy with half of the requests refused";
    part.table(found.of_case(0, title, "contender, strategy", &figures).note(note));
    Ok(())
}

/// Lists the contenders that admitted a wrong number of requests.
fn listed(wrong_ones: &[String]) -> String {
    if wrong_ones.is_empty() {
        "all contenders do".to_owned()
    } else {
        format!("all, except {}", wrong_ones.join("; "))
    }
}

fn served(answers: &[Answer]) -> usize {
    answers.iter().filter(|answer| answer.is_served()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_counted_wherever_it_begins() {
        let now = clock::now();
        let answer = |millis: u64, status: u16| Answer {
            request: 0,
            sent: now + Duration::from_millis(millis),
            received: now + Duration::from_millis(millis + 10),
            status,
        };
        let answers = [answer(0, 200), answer(600, 200), answer(700, 429), answer(1_200, 200), answer(1_595, 200)];
        assert_eq!(most_within(&answers, WINDOW), 2, "the last one was answered after the second");
        let answers = [answer(600, 200), answer(1_200, 200), answer(1_590, 200)];
        assert_eq!(most_within(&answers, WINDOW), 3);
        assert_eq!(most_within(&[answer(0, 429)], WINDOW), 0);
    }

    #[test]
    fn a_sliding_counter_forgets_the_last_window_bit_by_bit() {
        let late = Duration::from_millis(120);
        assert_eq!(admitted_after(Strategy::SlidingWindowCounter, late), 10..=13);
        assert_eq!(admitted_after(Strategy::FixedWindow, late), 100..=100);
        assert_eq!(admitted_after(Strategy::SlidingWindowLog, late), 1..=1);
    }

    #[test]
    fn each_strategy_has_a_path_of_its_own() {
        let mut paths: Vec<_> = Case::all().iter().map(|case| (case.contender, case.path())).collect();
        paths.extend((0..CONTENDERS.len()).flat_map(|place| WINDOWS.map(|strategy| (place, edge(strategy)))));
        let count = paths.len();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), count);
        assert_eq!(Case::all().len(), 7 + 1 + 7 + 3);
    }
}
