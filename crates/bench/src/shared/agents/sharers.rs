//! Several agents in one process: each is a client of Weir's library for shared limits, with a connection of its own,
//! or one that makes a round trip for each request.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, anyhow, ensure};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use weir_core::{Quota, Strategy};
use weir_store::{
    Backend, Claim, OnLoss, RedisConfig, RedisStore, SharedLimiter, SharedRule, StoreClient, StoreParts, Topology,
};
use weir_tower::MonotonicClock;

use super::trips::Trips;
use crate::{
    clock,
    shared::oracle::{Admission, SharedLimit},
};

/// The program writes this when all agents are connected, and begins when it reads a line.
pub(super) const READY: &str = "ready";

/// The longest wait for the last answers, and for a first answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After this time without requests, agents have given back their seats.
const IDLE: Duration = Duration::from_millis(2_500);
/// The pause between two looks at what is due.
const TICK: Duration = Duration::from_millis(1);
/// Agents that warm up at the same time.
const AT_ONCE: usize = 16;

/// What one process does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) store: SocketAddr,
    pub(super) decides: Decides,
    /// Agents of this process, and of all processes.
    pub(super) agents: usize,
    pub(super) sharers: u32,
    pub(super) limit: SharedLimit,
    pub(super) keys: u32,
    /// Requests a second of this process.
    pub(super) rate: u64,
    pub(super) millis: u64,
    /// The name of the counters in the store.
    pub(super) counters: String,
    pub(super) seed: u64,
}

/// How requests are decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Decides {
    /// With seats.
    Weir,
    /// With a round trip for each request.
    Trip,
}

/// What one process counted.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) admitted: Vec<Admission>,
    /// All requests, by key.
    pub(super) requests: Vec<u64>,
    pub(super) unanswered: u64,
    /// How long each decision took, in microseconds.
    pub(super) took: Vec<u64>,
    /// Seats that were handed out in advance and lost.
    pub(super) lost: u64,
    /// Agents that lost the store during the load.
    pub(super) cut_off: u64,
}

/// Be several of the agents that share a limit, until the end of the load.
#[derive(clap::Args)]
pub(crate) struct SharersArgs {
    /// What to do, as JSON
    work: String,
}

impl SharersArgs {
    /// Runs the load, and writes what it counted.
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let work: Work = serde_json::from_str(&self.work).context("read the work")?;
        let runtime = Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let counted = runtime.block_on(run(&work))?;
        println!("{}", serde_json::to_string(&counted).context("write the counts")?);
        Ok(())
    }
}

/// An agent.
enum Agent {
    Weir(Arc<SharedLimiter>),
    Trip(Arc<Trips>),
}

/// A request's key in the table of a limiter.
fn hash(key: u32) -> u128 {
    u128::from(key) << 64 | 0x5eed
}

impl Agent {
    async fn start(work: &Work, time: MonotonicClock) -> anyhow::Result<Self> {
        match work.decides {
            Decides::Weir => Ok(Self::Weir(limiter(work, time)?)),
            Decides::Trip => Ok(Self::Trip(Trips::connect(work.store, work.limit, &work.counters).await?)),
        }
    }

    /// Decides on a request immediately, if that is possible. Otherwise returns the rest of the work.
    fn decide(&self, key: u32) -> Decision {
        match self {
            Self::Weir(limiter) => match limiter.claim(hash(key), 1, Duration::ZERO) {
                Claim::Granted(grant) => {
                    grant.settle();
                    Decision::Known(true)
                }
                Claim::Refused(_) => Decision::Known(false),
                Claim::AskStore => Decision::Asks,
            },
            Self::Trip(_) => Decision::Asks,
        }
    }

    /// Asks the store, which takes a round trip. Returns true if the request is admitted, and None if no answer
    /// arrives.
    async fn ask(&self, key: u32) -> Option<bool> {
        match self {
            Self::Weir(limiter) => Some(match limiter.ask(hash(key), 1, Duration::ZERO).await {
                Ok(grant) => {
                    grant.settle();
                    true
                }
                Err(_) => false,
            }),
            Self::Trip(trips) => trips.admits(&key.to_string()).await,
        }
    }

    /// The seats that it has lost so far.
    fn lost(&self) -> u64 {
        match self {
            Self::Weir(limiter) => limiter.client().stats().lost,
            Self::Trip(_) => 0,
        }
    }

    /// Whether the store was lost since this time.
    fn was_cut_off(&self, since: Duration) -> bool {
        match self {
            Self::Weir(limiter) => {
                let condition = limiter.client().condition();
                !condition.reached || condition.since > since
            }
            Self::Trip(_) => false,
        }
    }
}

enum Decision {
    Known(bool),
    Asks,
}

fn limiter(work: &Work, time: MonotonicClock) -> anyhow::Result<Arc<SharedLimiter>> {
    let store = work.store;
    let open = move || {
        let endpoints = vec![store.to_string()];
        let config = RedisConfig { topology: Topology::Standalone, endpoints, tls: None, credentials: None };
        RedisStore::new(config).map(Backend::Redis).map_err(|invalid| invalid.to_string())
    };
    let clock = move || Duration::from_nanos(time.now().as_nanos());
    let client = StoreClient::start(StoreParts {
        wall_clock: Box::new(clock::since_1970),
        seed: rand::rng().random(),
        ..StoreParts::new("bench/limits", open, clock)
    });
    let SharedLimit { requests, millis } = work.limit;
    let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_millis(millis), Some(requests))
        .map_err(|invalid| anyhow!("{invalid}"))?;
    let sets = [vec![(0, quota)]];
    let rule = SharedRule::new(&work.counters, 1, &sets, OnLoss::LocalShare, work.sharers, 10_000)?;
    Ok(SharedLimiter::new(client, rule))
}

async fn run(work: &Work) -> anyhow::Result<Counted> {
    let time = MonotonicClock::start();
    let mut agents = Vec::new();
    for _ in 0..work.agents {
        agents.push(Arc::new(Agent::start(work, time).await?));
    }
    // Each agent uses a key that the load does not have.
    for (place, some) in agents.chunks(AT_ONCE).enumerate() {
        let keys = (0..).map(|number| u32::MAX - number).skip(place * AT_ONCE);
        futures::future::try_join_all(some.iter().zip(keys).map(|(agent, key)| first_answer(agent, key))).await?;
    }
    println!("{READY}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("wait for the start")?;
    let lost_before = lost_by(&agents);
    let begun = Duration::from_nanos(time.now().as_nanos());
    let tally = load(work, &agents, time).await?;
    tokio::time::sleep(IDLE).await;
    let mut counted = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    counted.lost = lost_by(&agents) - lost_before;
    counted.cut_off = agents.iter().filter(|agent| agent.was_cut_off(begun)).count() as u64;
    Ok(counted)
}

async fn first_answer(agent: &Agent, key: u32) -> anyhow::Result<()> {
    let started = clock::now();
    while agent.ask(key).await != Some(true) {
        ensure!(clock::since(started) < PATIENCE, "an agent gets no answer from the store");
        tokio::time::sleep(TICK).await;
    }
    Ok(())
}

fn lost_by(agents: &[Arc<Agent>]) -> u64 {
    agents.iter().map(|agent| agent.lost()).sum()
}

type Tally = Arc<Mutex<Counted>>;

/// Sends requests at a constant rate, each to any agent and with any key.
async fn load(work: &Work, agents: &[Arc<Agent>], time: MonotonicClock) -> anyhow::Result<Tally> {
    let (tally, waiting) = (Tally::default(), Arc::new(AtomicUsize::new(0)));
    let mut random = StdRng::seed_from_u64(work.seed);
    let micros = move || time.now().as_nanos() / 1_000;
    let started = micros();
    let all = work.rate * work.millis / 1_000;
    let mut sent = 0;
    let mut requests = vec![0; work.keys as usize];
    while sent < all {
        let due = ((micros() - started) * work.rate / 1_000_000).min(all);
        for _ in sent..due {
            let agent = &agents[random.random_range(0..agents.len())];
            let key = random.random_range(0..work.keys);
            requests[key as usize] += 1;
            let begun = micros();
            match agent.decide(key) {
                Decision::Known(admitted) => note(&tally, Some(admitted), (key, begun, micros())),
                Decision::Asks => {
                    let (agent, tally, waiting) = (Arc::clone(agent), Arc::clone(&tally), Arc::clone(&waiting));
                    waiting.fetch_add(1, Relaxed);
                    tokio::spawn(async move {
                        let admitted = agent.ask(key).await;
                        note(&tally, admitted, (key, begun, micros()));
                        waiting.fetch_sub(1, Relaxed);
                    });
                }
            }
        }
        sent = due;
        tokio::time::sleep(TICK).await;
    }
    let ended = clock::now();
    while waiting.load(Relaxed) > 0 {
        ensure!(clock::since(ended) < PATIENCE, "{} requests were not answered", waiting.load(Relaxed));
        tokio::time::sleep(TICK).await;
    }
    tally.lock().unwrap_or_else(PoisonError::into_inner).requests = requests;
    Ok(tally)
}

fn note(tally: &Tally, admitted: Option<bool>, request: Admission) {
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.took.push(request.2 - request.1);
    match admitted {
        Some(true) => tally.admitted.push(request),
        Some(false) => {}
        None => tally.unanswered += 1,
    }
}
