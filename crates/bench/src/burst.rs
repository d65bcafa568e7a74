//! Measures a burst: five times as many requests at the same time as the limit admits.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Runtime},
    sync::Barrier,
    task::JoinSet,
};
use tower::{BoxError, Service, service_fn};

use crate::{
    clock,
    report::{Bars, Cell, Report, Row, Table},
    stacks::{self, Counts, Failure, HasFailure, Limit, Visitor},
    stats::{Spread, figure, float, quantile_us},
};

const ABOUT: &str = "\
50,000 requests at once on a limit of 10,000 a second with a burst of 10,000, and a timeout of 3.9 s. Each request is \
a task on a runtime of two threads, and a barrier starts all of them together. The inner service takes 10 ms. *To \
readiness* is the time from the start of a request to its call of the inner service. *To refusal* is the time to its \
refusal. Layers that wait serve what the limit admits before the timeout. Layers that do not wait serve 10,000. \
tower-shot has its GCRA, which holds its limit, and the fixed window of its documentation.";

const FULL: Burst = Burst { requests: 50_000, per_second: 10_000, timeout: Duration::from_millis(3_900) };
const QUICK: Burst = Burst { requests: 500, per_second: 400, timeout: Duration::from_millis(300) };

const SERVICE: Duration = Duration::from_millis(10);

#[derive(Clone, Copy)]
struct Burst {
    requests: usize,
    per_second: u32,
    timeout: Duration,
}

/// The outcome of one burst.
struct Outcome {
    served: usize,
    failures: BTreeMap<Failure, usize>,
    /// The times from the start of a request until the service was called, sorted.
    ready: Vec<Duration>,
    /// The times from the start of a request until its caller got the failure, sorted.
    failed_after: Vec<Duration>,
    took: Duration,
    /// The highest ratio, at any time, of admitted requests to allowed requests.
    most: f64,
}

/// One figure of an outcome.
type Value = fn(&Outcome) -> f64;

#[derive(Default)]
struct Found {
    order: Vec<&'static str>,
    outcomes: BTreeMap<&'static str, Vec<Outcome>>,
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let (repetitions, burst) = if quick { (1, QUICK) } else { (3, FULL) };
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let _entered = runtime.enter();
    let inner = service_fn(|()| async {
        let entered = clock::now();
        tokio::time::sleep(SERVICE).await;
        Ok::<Instant, BoxError>(entered)
    });
    let limit = Limit { per_second: burst.per_second, timeout: burst.timeout, buffer: burst.per_second as usize };
    let mut found = Found::default();
    for repetition in 0..repetitions {
        eprintln!("burst: repetition {} of {repetitions}", repetition + 1);
        stacks::show(limit, &inner, &mut Crowd { burst, runtime: &runtime, found: &mut found });
    }
    let mut report = Report::new("burst", "Burst", ABOUT, quick)?;
    write(&found, &mut report);
    Ok(report)
}

struct Crowd<'a> {
    burst: Burst,
    runtime: &'a Runtime,
    found: &'a mut Found,
}

impl Visitor<(), Instant> for Crowd<'_> {
    fn visit<S>(&mut self, stack: &'static str, counts: Counts, service: S)
    where
        S: Service<(), Response = Instant, Error: HasFailure + Send, Future: Send> + Clone + Send + 'static,
    {
        eprintln!("burst: {stack}");
        let outcome = self.runtime.block_on(all_at_once(self.burst, counts, service));
        if !self.found.order.contains(&stack) {
            self.found.order.push(stack);
        }
        self.found.outcomes.entry(stack).or_default().push(outcome);
    }

    /// Does nothing, because a burst needs clones of the service.
    fn visit_single<S>(&mut self, _: &'static str, _: S)
    where
        S: Service<(), Response = Instant, Error: HasFailure>,
    {
    }
}

/// The result of one request: its start, and the time at which the service was called. For a failure: the failure, and
/// the time at which the caller got it.
type Answered = (Instant, Result<Instant, (Failure, Instant)>);

async fn all_at_once<S>(burst: Burst, counts: Counts, service: S) -> Outcome
where
    S: Service<(), Response = Instant, Error: HasFailure + Send, Future: Send> + Clone + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(burst.requests));
    let mut tasks = JoinSet::new();
    for _ in 0..burst.requests {
        let (mut service, barrier) = (service.clone(), Arc::clone(&barrier));
        tasks.spawn(async move {
            barrier.wait().await;
            let started = clock::now();
            let answer = match poll_fn(|context| service.poll_ready(context)).await {
                Ok(()) => service.call(()).await,
                Err(error) => Err(error),
            };
            (started, answer.map_err(|error| (error.failure(), clock::now())))
        });
    }
    let answers = tasks.join_all().await;
    sum_up(burst, counts, &answers, clock::now())
}

fn sum_up(burst: Burst, counts: Counts, answers: &[Answered], ended: Instant) -> Outcome {
    let first = answers.iter().map(|(started, _)| *started).min().unwrap_or(ended);
    let mut entered: Vec<Instant> = answers.iter().filter_map(|(_, answer)| answer.ok()).collect();
    entered.sort();
    let allowed = |at: Instant| {
        let passed = (at - first).as_secs_f64();
        f64::from(burst.per_second)
            * match counts {
                Counts::Bucket => 1.0 + passed,
                // The window that began before the burst counts in full.
                Counts::Window => passed.floor() + 2.0,
            }
    };
    let shares = entered.iter().zip(1_u32..).map(|(at, count)| f64::from(count) / allowed(*at));
    let most = shares.fold(0.0, f64::max);
    let mut ready: Vec<_> = answers.iter().filter_map(|(started, answer)| Some(answer.ok()? - *started)).collect();
    let failures = answers.iter().filter_map(|(started, answer)| Some((*started, answer.err()?)));
    let mut failed_after = Vec::new();
    let mut counted = BTreeMap::new();
    for (started, (failure, at)) in failures {
        failed_after.push(at - started);
        *counted.entry(failure).or_default() += 1;
    }
    ready.sort();
    failed_after.sort();
    Outcome { served: ready.len(), failures: counted, ready, failed_after, took: ended - first, most }
}

fn write(found: &Found, report: &mut Report) {
    let spread = |stack: &str, value: Value| {
        let outcomes = found.outcomes.get(stack).map_or(&[][..], Vec::as_slice);
        Spread::over(outcomes, value)
    };
    let goodput = |outcome: &Outcome| float(outcome.served) / outcome.took.as_secs_f64();
    let served = |outcome: &Outcome| float(outcome.served);
    let ready_p99 = |outcome: &Outcome| quantile_us(&outcome.ready, 990);
    let heard_p99 = |outcome: &Outcome| quantile_us(&outcome.failed_after, 990);

    let (ours, theirs) =
        (spread(stacks::WEIR_LATENCY, ready_p99).median, spread(stacks::SHOT_LATENCY, ready_p99).median);
    report.aim(
        "latency layer: P99 to readiness no worse than tower-shot's, 5 % for noise",
        format!("{} µs against {} µs", figure(ours), figure(theirs)),
        ours <= theirs * 1.05,
    );
    let (ours, theirs) =
        (spread(stacks::WEIR_THROUGHPUT, goodput).median, spread(stacks::SHOT_THROUGHPUT, goodput).median);
    report.aim(
        "throughput layer: goodput no less than tower-shot's, 5 % for noise",
        format!("{}/s against {}/s", figure(ours), figure(theirs)),
        ours * 1.05 >= theirs,
    );
    let ours = spread(stacks::WEIR_THROUGHPUT, heard_p99).median;
    report.aim("throughput layer: refusals within 1 ms at P99", format!("{} µs", figure(ours)), ours <= 1000.0);
    let most = |stack: &str| found.outcomes[stack].iter().map(|outcome| outcome.most).fold(0.0, f64::max);
    let ours =
        found.order.iter().filter(|stack| stack.starts_with("weir")).map(|stack| most(stack)).fold(0.0, f64::max);
    report.aim(
        "Weir admits more than is allowed: never, at any moment",
        format!("at most {:.2} % of what is allowed", ours * 100.0),
        ours <= 1.0,
    );

    let columns = [
        "served", "served a second", "took, s", "to readiness P50, µs", "to readiness P99, µs", "to refusal P50, µs",
        "to refusal P99, µs", "not served", "most admitted",
    ];
    let rows = found.order.iter().map(|stack| {
        let cells = [
            Cell::Measured(spread(stack, served)),
            Cell::Measured(spread(stack, goodput)),
            Cell::Measured(spread(stack, |outcome| outcome.took.as_secs_f64())),
            Cell::Measured(spread(stack, |outcome| quantile_us(&outcome.ready, 500))),
            Cell::Measured(spread(stack, ready_p99)),
            Cell::Measured(spread(stack, |outcome| quantile_us(&outcome.failed_after, 500))),
            Cell::Measured(spread(stack, heard_p99)),
            Cell::Text(failures(found.outcomes[stack].last())),
            Cell::Text(percent(most(stack))),
        ];
        Row::new(*stack, cells)
    });
    report.table(Table::new("Results of all requests", "stack", columns, rows).note(
        "*Not served* belongs to the last repetition. *Most admitted* is the highest number of admissions at any \
        time of any repetition, in percent of what the limit allowed by then. More than 100 is over-admission \
        (bold). A window that began before the burst counts in full.",
    ));
    ratios(
        found,
        report,
        &[("goodput", goodput), ("P99 to readiness", |outcome| 1.0 / quantile_us(&outcome.ready, 990))],
    );
    let bars = |value: Value| found.order.iter().map(|stack| (*stack, spread(stack, value).median)).collect::<Vec<_>>();
    let title = "Time to readiness of those that are served, P99".to_owned();
    report.chart(Bars::new("ready", title, "µs, less is better", bars(ready_p99)));
    let title = "Time until a refusal, P99".to_owned();
    report.chart(Bars::new("refused", title, "µs, less is better; 0 where everybody is served", bars(heard_p99)));
    report.chart(Bars::new("served", "Served of the crowd", "requests", bars(served)));
}

/// Compares each contender of Weir with each peer. More is better.
fn ratios(found: &Found, report: &mut Report, values: &[(&str, Value)]) {
    let (ours, theirs): (Vec<&str>, Vec<&str>) =
        found.order.iter().copied().partition(|stack| stack.starts_with("weir"));
    for (name, value) in values {
        let median = |stack: &str| Spread::over(&found.outcomes[stack], value).median;
        let rows = ours.iter().map(|stack| {
            Row::new(*stack, theirs.iter().map(|peer| Cell::Ratio { ratio: median(stack) / median(peer) }))
        });
        report.table(Table::new(format!("Ratios: {name}"), "times as good as", theirs.iter().copied(), rows));
    }
}

fn percent(share: f64) -> String {
    if share > 1.0 { format!("**{:.2} %**", share * 100.0) } else { format!("{:.2} %", share * 100.0) }
}

fn failures(outcome: Option<&Outcome>) -> String {
    let counted = outcome.into_iter().flat_map(|outcome| &outcome.failures);
    let words: Vec<_> = counted.map(|(failure, count)| format!("{count} {}", failure.word())).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_admission_shows() {
        let start = clock::now();
        let burst = Burst { requests: 6, per_second: 2, timeout: Duration::ZERO };
        let served = |millis| (start, Ok(start + Duration::from_millis(millis)));
        let refused = |millis| (start, Err((Failure::Refused, start + Duration::from_millis(millis))));

        let exact = [served(0), served(0), served(500), refused(1), refused(2), refused(3)];
        let outcome = sum_up(burst, Counts::Bucket, &exact, start + Duration::from_secs(1));
        assert!((outcome.most - 1.0).abs() < 1e-9, "{}", outcome.most);
        assert_eq!(outcome.served, 3);
        assert_eq!(outcome.failures[&Failure::Refused], 3);
        assert_eq!(outcome.failed_after, [1, 2, 3].map(Duration::from_millis));

        let over = [served(0), served(0), served(400)];
        assert!(sum_up(burst, Counts::Bucket, &over, start + Duration::from_secs(1)).most > 1.0);
    }
}
