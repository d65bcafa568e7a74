//! Measures tower middleware: the overhead of a layer for one request, and 1,000 tasks on one limit.

use std::{
    collections::BTreeMap,
    future::{poll_fn, ready},
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};
use tower::{BoxError, Service, service_fn};

use crate::{
    clock,
    report::{Bars, Cell, Report, Row, Table},
    stacks::{self, Counts, HasFailure, Limit, Visitor},
    stats::{Spread, figure},
};

const ABOUT: &str = "\
What each layer adds to one request, and how long 1,000 tasks take on one limit. The inner service does nothing, and \
the limit admits every request, so this measures only the middleware. *Held* calls one service again and again. \
*Cloned* clones the service for each request, as axum does. tower's own RateLimit cannot be cloned. Where a clone is \
needed, it has tower's Buffer, in two combinations with a timeout and load shedding. tower-shot's latency and \
throughput are its `make_latency_svc` and `make_timeout_svc`, on its GCRA.";

const LIMIT: Limit = Limit { per_second: 1_000_000_000, timeout: Duration::from_secs(60), buffer: 1024 };

const TASKS: u32 = 1_000;

const NOTHING: &str = "no layer";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Measure {
    Held,
    Cloned,
    /// 1,000 tasks on two threads, each with a clone of the service and one request.
    Tasks,
}

const MEASURES: [(Measure, &str); 3] =
    [(Measure::Held, "held, ns"), (Measure::Cloned, "cloned, ns"), (Measure::Tasks, "1,000 tasks, µs")];

/// The results by stack and measure, in the order of the stacks.
#[derive(Default)]
struct Found {
    order: Vec<&'static str>,
    values: BTreeMap<(&'static str, Measure), Vec<f64>>,
}

pub(crate) fn measure(quick: bool) -> anyhow::Result<Report> {
    let (repetitions, requests, rounds) = if quick { (1, 200, 1) } else { (25, 20_000, 20) };
    let alone = Builder::new_current_thread().enable_time().build()?;
    let pair = Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let mut found = Found::default();
    for repetition in 0..repetitions {
        eprintln!("tower: repetition {} of {repetitions}", repetition + 1);
        for (measure, _) in MEASURES {
            let runtime = if measure == Measure::Tasks { &pair } else { &alone };
            let _entered = runtime.enter();
            let inner = service_fn(|()| ready(Ok::<(), BoxError>(())));
            let mut meter = Meter { measure, runtime, requests, rounds, found: &mut found };
            meter.visit(NOTHING, Counts::Bucket, inner);
            stacks::show(LIMIT, &inner, &mut meter);
        }
    }
    let mut report = Report::new("tower", "Layers", ABOUT, quick)?;
    write(&found, &mut report);
    Ok(report)
}

struct Meter<'a> {
    measure: Measure,
    runtime: &'a Runtime,
    requests: u32,
    rounds: u32,
    found: &'a mut Found,
}

impl Meter<'_> {
    fn note(&mut self, stack: &'static str, value: f64) {
        if !self.found.order.contains(&stack) {
            self.found.order.push(stack);
        }
        self.found.values.entry((stack, self.measure)).or_default().push(value);
    }
}

impl Visitor<(), ()> for Meter<'_> {
    fn visit<S>(&mut self, stack: &'static str, _: Counts, service: S)
    where
        S: Service<(), Response = (), Error: HasFailure + Send, Future: Send> + Clone + Send + 'static,
    {
        if self.measure == Measure::Held {
            return self.visit_single(stack, service);
        }
        let started = clock::now();
        let passed = self.runtime.block_on(async {
            if self.measure == Measure::Tasks {
                for _ in 0..self.rounds {
                    crowd(&service).await;
                }
            } else {
                for _ in 0..self.requests {
                    one(&mut service.clone()).await;
                }
            }
            clock::since(started)
        });
        let value = match self.measure {
            Measure::Tasks => passed.as_secs_f64() * 1e6 / f64::from(self.rounds),
            _ => passed.as_secs_f64() * 1e9 / f64::from(self.requests),
        };
        self.note(stack, value);
    }

    fn visit_single<S>(&mut self, stack: &'static str, mut service: S)
    where
        S: Service<(), Response = (), Error: HasFailure>,
    {
        if self.measure != Measure::Held {
            return;
        }
        let passed = self.runtime.block_on(async {
            let started = clock::now();
            for _ in 0..self.requests {
                one(&mut service).await;
            }
            clock::since(started)
        });
        self.note(stack, passed.as_secs_f64() * 1e9 / f64::from(self.requests));
    }
}

/// Sends one request, which must be served. Otherwise the limit was not set up correctly.
async fn one<S: Service<(), Response = (), Error: HasFailure>>(service: &mut S) {
    let served = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(()).await,
        Err(error) => Err(error),
    };
    assert!(served.is_ok(), "a limit of {} a second refused", LIMIT.per_second);
}

async fn crowd<S>(service: &S)
where
    S: Service<(), Response = (), Error: HasFailure + Send, Future: Send> + Clone + Send + 'static,
{
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move { one(&mut service).await })
        })
        .collect();
    for task in tasks {
        task.await.expect("every request is served");
    }
}

fn write(found: &Found, report: &mut Report) {
    let spread = |stack, measure| Some(Spread::of(found.values.get(&(stack, measure))?.clone()));
    let median = |stack, measure| spread(stack, measure).map_or(f64::NAN, |spread| spread.median);
    let pairs = [
        (stacks::WEIR_RATE, stacks::SHOT_RATE),
        (stacks::WEIR_LATENCY, stacks::SHOT_LATENCY),
        (stacks::WEIR_THROUGHPUT, stacks::SHOT_THROUGHPUT),
    ];
    for (measure, name) in MEASURES {
        for (ours, theirs) in pairs {
            let (mine, other) = (median(ours, measure), median(theirs, measure));
            let aim = format!("{name}: {ours} no slower than {theirs}, 5 % for noise");
            report.aim(aim, format!("{} against {}", figure(mine), figure(other)), mine <= other * 1.05);
        }
    }
    let columns = MEASURES.iter().map(|(_, name)| *name);
    let rows = found.order.iter().map(|stack| {
        Row::new(*stack, MEASURES.iter().map(|(measure, _)| spread(stack, *measure).map_or(Cell::None, Cell::Measured)))
    });
    report.table(Table::new("Time for one request, and for 1,000 tasks", "stack", columns, rows).note(
        "The time of `ready` and `call` of a service that does nothing, on a runtime of one thread. The 1,000 \
        tasks run on two threads, and their time runs from the first spawn to the last answer. \"No layer\" has \
        no middleware, and the difference to it is the cost of the layer.",
    ));
    let (ours, theirs): (Vec<&str>, Vec<&str>) =
        found.order.iter().copied().filter(|stack| *stack != NOTHING).partition(|stack| stack.starts_with("weir"));
    for (measure, name) in MEASURES {
        let peers: Vec<_> = theirs.iter().filter(|peer| found.values.contains_key(&(**peer, measure))).collect();
        let rows = ours.iter().map(|stack| {
            let cells = peers.iter().map(|peer| Cell::Ratio { ratio: median(peer, measure) / median(stack, measure) });
            Row::new(*stack, cells)
        });
        report.table(Table::new(format!("Ratios: {name}"), "times as fast as", peers.iter().map(|peer| **peer), rows));
        let bars = found.order.iter().filter_map(|stack| Some(((*stack).to_owned(), spread(stack, measure)?.median)));
        let file = match measure {
            Measure::Held => "held",
            Measure::Cloned => "cloned",
            Measure::Tasks => "tasks",
        };
        report.chart(Bars::new(file, format!("One request through each layer: {name}"), "less is better", bars));
    }
}
