//! Weir in a world with virtual time: the limiters of agents (`weir-store`) and the counter of the operator, with
//! channels that delay each message. No thread waits, and the clock of the machine is never read.

mod link;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, ensure};
use weir_core::{Quota, Strategy};
use weir_operator::{fleet::Counter, leader::Term, plan::CountedRule};
use weir_store::{Backend, Claim, OnLoss, OperatorStore, SharedLimiter, SharedRule, StoreClient, StoreParts};
use weir_wire::{LevelsSent, Question};

use self::link::{Down, Link, PRESENCE, STATUS_EVERY};
use super::{
    decisions::{Decision, Run},
    traffic::{Fault, MILLI, SECOND, Scenario, Traffic},
};
use crate::stats::float;

/// The Unix time at the begin of a world.
const EPOCH: u64 = 1_790_000_000 * SECOND;
const COUNTERS: &str = "shop/api.all";
const POLICY: &str = "shop/api";
/// Every request has this key, because the rule has none.
const KEY: u128 = 7;
/// The longest step of the clock. The timers of the agents have this resolution.
const STEP: u64 = MILLI;
/// The time between two looks at what may decide.
const LOOK: u64 = 10 * MILLI;
/// The time within which a new leader calls all agents.
const CALLING: u64 = 100 * MILLI;
/// The end of the term of a leader that is lost, after its last renewal.
const TERM_LEFT: u64 = 6 * SECOND;
/// The time of a link that loses all messages. Then the operator closes it.
const SILENT_LINK: u64 = 3 * SECOND;
/// The time without a message of the operator after which an agent can begin its share.
const SHARE_AFTER: u64 = 2 * PRESENCE;
/// The time after the last request in which all decisions must be made.
const PATIENCE: u64 = 10 * SECOND;

/// What happened in a world.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) run: Run,
    /// The largest sum of what can be admitted at a moment: the shares that agents may use, and what the counter has not
    /// reserved. The limit is 1.
    pub(super) largest_sum: f64,
}

/// A message of an agent.
#[derive(Debug)]
enum Up {
    Status,
    Questions(Vec<Question>),
    LevelsSent(LevelsSent),
}

#[derive(Debug)]
enum Event {
    /// The pod begins to get requests, or ends.
    Begins(usize),
    Ends(usize),
    /// The leader connects to the agent of this pod.
    Calls(usize),
    /// A message arrives on the link with this number.
    Up(u64, Up),
    Down(u64, Down),
    Status(u64),
    Fault(Fault),
    Leads,
    /// The operator closes a link on which nothing arrives.
    ClosesSilent(u64),
    Looks,
}

/// What tasks share with the world.
#[derive(Debug, Default)]
struct Shared {
    now: AtomicU64,
    events: Mutex<Events>,
    decisions: Mutex<Vec<Option<Decision>>>,
    messages: AtomicU64,
}

#[derive(Debug, Default)]
struct Events {
    /// By time, and then in the order in which they were added.
    queue: BTreeMap<(u64, u64), Event>,
    added: u64,
}

struct Leader {
    counter: Counter,
    is_alive: bool,
    resumes_at: u64,
    /// True if all agents have got empty answers, which say that the counter counts.
    has_released: bool,
}

struct Agent {
    store: Arc<OperatorStore>,
    client: Arc<StoreClient>,
    limiter: Arc<SharedLimiter>,
    link: Option<u64>,
    cut_off_until: u64,
    /// The time of the last message of an operator.
    heard_at: u64,
    was_closed: bool,
}

struct World<'a> {
    traffic: &'a Traffic,
    shared: Arc<Shared>,
    delay: u64,
    seed: u64,
    leaders: Vec<Leader>,
    agents: BTreeMap<usize, Agent>,
    links: BTreeMap<u64, Link>,
    opened: u64,
    sharers: u32,
    fault: Option<(u64, Fault)>,
    largest_sum: f64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    fn add(&self, at: u64, event: Event) {
        let mut events = lock(&self.events);
        events.added += 1;
        let key = (at, events.added);
        events.queue.insert(key, event);
    }

    fn next_at(&self) -> Option<u64> {
        lock(&self.events).queue.first_key_value().map(|((at, _), _)| *at)
    }

    fn decide(&self, request: usize, begun: u64, is_admitted: bool) {
        lock(&self.decisions)[request] = Some(Decision { begun, ended: self.now(), is_admitted });
    }
}

/// Runs a scenario. `round_trip` is the time of a question and its answer, in microseconds.
pub(super) fn run(scenario: &Scenario, traffic: &Traffic, round_trip: u64, seed: u64) -> anyhow::Result<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let mut world = World::new(traffic, round_trip, seed);
        world.begin(scenario);
        world.run(scenario.ends()).await?;
        let decisions = std::mem::take(&mut *lock(&world.shared.decisions));
        let decisions = decisions.into_iter().collect::<Option<Vec<_>>>().context("a request has no decision")?;
        let messages = world.shared.messages.load(Relaxed);
        Ok(Found { run: Run { decisions, messages }, largest_sum: world.largest_sum })
    })
}

impl<'a> World<'a> {
    fn new(traffic: &'a Traffic, round_trip: u64, seed: u64) -> Self {
        let shared = Shared { decisions: Mutex::new(vec![None; traffic.requests.len()]), ..Shared::default() };
        Self {
            traffic,
            shared: Arc::new(shared),
            delay: round_trip / 2,
            seed,
            leaders: Vec::new(),
            agents: BTreeMap::new(),
            links: BTreeMap::new(),
            opened: 0,
            sharers: 1,
            fault: None,
            largest_sum: 0.0,
        }
    }

    fn begin(&mut self, scenario: &Scenario) {
        for (number, pod) in self.traffic.pods.iter().enumerate() {
            // A Service sends requests to a pod that is ready. A pod needs one round trip until the operator counts for it.
            self.shared.add(pod.from.saturating_sub(2 * self.delay), Event::Begins(number));
            if pod.until < u64::MAX {
                self.shared.add(pod.until, Event::Ends(number));
            }
        }
        self.shared.add(0, Event::Leads);
        self.shared.add(LOOK, Event::Looks);
        self.fault = scenario.fault;
        if let Some((at, fault)) = scenario.fault {
            self.shared.add(at, Event::Fault(fault));
        }
    }

    /// Handles requests and events in the order of their times. Tasks run whenever the clock moves.
    async fn run(&mut self, ends: u64) -> anyhow::Result<()> {
        let mut next_request = 0;
        loop {
            let request_at = self.traffic.requests.get(next_request).map_or(u64::MAX, |request| request.at);
            let event_at = self.shared.next_at().unwrap_or(u64::MAX);
            let now = self.shared.now();
            let next = request_at.min(event_at).max(now);
            if next > now {
                let step = (next - now).min(STEP);
                self.shared.now.store(now + step, Relaxed);
                tokio::time::advance(Duration::from_micros(step)).await;
                settle().await;
                if now >= ends && lock(&self.shared.decisions).iter().all(Option::is_some) {
                    return Ok(());
                }
                ensure!(now < ends + PATIENCE, "requests were not answered");
                continue;
            }
            if event_at <= request_at {
                let event = lock(&self.shared.events).queue.pop_first();
                if let Some((_, event)) = event {
                    self.handle(event)?;
                }
            } else {
                self.request(next_request);
                next_request += 1;
            }
            settle().await;
        }
    }

    fn request(&self, number: usize) {
        let request = self.traffic.requests[number];
        let Some(agent) = self.agents.get(&request.pod) else { return };
        match agent.limiter.claim(KEY, 1, Duration::ZERO) {
            Claim::Granted(grant) => {
                grant.settle();
                self.shared.decide(number, request.at, true);
            }
            Claim::Refused(_) => self.shared.decide(number, request.at, false),
            Claim::AskStore => {
                let (waits, shared) = (agent.limiter.ask(KEY, 1, Duration::ZERO), Arc::clone(&self.shared));
                tokio::spawn(async move {
                    let granted = waits.await;
                    let is_admitted = granted.is_ok();
                    if let Ok(grant) = granted {
                        grant.settle();
                    }
                    shared.decide(number, request.at, is_admitted);
                });
            }
        }
    }

    fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        let now = self.shared.now();
        match event {
            Event::Begins(pod) => self.add_agent(pod)?,
            Event::Ends(pod) => self.end_agent(pod)?,
            Event::Calls(pod) => self.call(pod),
            Event::Up(link, message) => self.up(link, message),
            Event::Down(link, message) => self.down(link, message),
            Event::Status(link) => {
                if let Some(link) = self.links.get(&link) {
                    let number = link.number;
                    self.shared.add(now + self.delay, Event::Up(number, Up::Status));
                    self.shared.add(now + STATUS_EVERY, Event::Status(number));
                }
            }
            Event::Fault(fault) => self.fail(fault),
            Event::Leads => self.lead(),
            Event::ClosesSilent(link) => self.close_silent(link),
            Event::Looks => {
                self.look();
                self.shared.add(now + LOOK, Event::Looks);
            }
        }
        Ok(())
    }

    fn leader(&mut self) -> Option<&mut Leader> {
        let now = self.shared.now();
        self.leaders.last_mut().filter(|leader| leader.is_alive && leader.resumes_at <= now)
    }

    fn add_agent(&mut self, pod: usize) -> anyhow::Result<()> {
        let now = self.shared.now();
        let clock = {
            let shared = Arc::clone(&self.shared);
            move || Duration::from_micros(EPOCH + shared.now())
        };
        let store = OperatorStore::new(clock.clone());
        let opened = Arc::clone(&store);
        let open = move || Ok(Backend::Operator(Arc::clone(&opened)));
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(pod as u64);
        let client = StoreClient::start(StoreParts { seed, ..StoreParts::new("operator", open, clock) });
        let limiter = SharedLimiter::new(Arc::clone(&client), rule(self.sharers, self.traffic.limit)?);
        let (cut_off_until, heard_at, was_closed) = (0, now, false);
        self.agents.insert(pod, Agent { store, client, limiter, link: None, cut_off_until, heard_at, was_closed });
        self.change_sharers()?;
        let rules = rules(self.sharers);
        if let Some(leader) = self.leader() {
            leader.counter.expect(&name(pod), &rules, true, Duration::from_micros(now));
        }
        self.shared.add(now, Event::Calls(pod));
        Ok(())
    }

    fn end_agent(&mut self, pod: usize) -> anyhow::Result<()> {
        let now = Duration::from_micros(self.shared.now());
        let Some(agent) = self.agents.remove(&pod) else { return Ok(()) };
        let link = agent.link.and_then(|number| self.links.remove(&number));
        if let Some(leader) = self.leader() {
            leader.counter.expect(&name(pod), &[], true, now);
            if let Some(link) = link {
                leader.counter.ended(&name(pod), link.channel, now);
            }
        }
        self.change_sharers()
    }

    /// All agents learn the number of sharers, which is a power of two, as the planner computes it.
    fn change_sharers(&mut self) -> anyhow::Result<()> {
        let sharers = u32::try_from(self.agents.len())?.max(1).next_power_of_two();
        if self.sharers == sharers {
            return Ok(());
        }
        self.sharers = sharers;
        let (rules, now) = (rules(self.sharers), Duration::from_micros(self.shared.now()));
        let pods: Vec<_> = self.agents.keys().copied().collect();
        for pod in pods {
            self.agents[&pod].limiter.retune(rule(sharers, self.traffic.limit)?);
            if let Some(leader) = self.leader() {
                leader.counter.expect(&name(pod), &rules, true, now);
            }
        }
        Ok(())
    }

    fn lead(&mut self) {
        let now = Duration::from_micros(self.shared.now());
        // A suspended leader does not renew its term. The other leaders do.
        let ends = match self.fault {
            Some((at, Fault::Suspended { .. })) if self.leaders.is_empty() => Duration::from_micros(at + TERM_LEFT),
            _ => Duration::MAX,
        };
        let mut counter = Counter::new(Term::ending(ends), now, EPOCH + self.shared.now());
        let rules = rules(self.sharers);
        for pod in self.agents.keys() {
            counter.expect(&name(*pod), &rules, true, now);
        }
        counter.planned(now);
        self.leaders.push(Leader { counter, is_alive: true, resumes_at: 0, has_released: false });
        let count = self.agents.len().max(1) as u64;
        for (place, pod) in (0..).zip(self.agents.keys()) {
            self.shared.add(self.shared.now() + CALLING * place / count, Event::Calls(*pod));
        }
    }

    fn fail(&mut self, fault: Fault) {
        let now = self.shared.now();
        match fault {
            Fault::Killed { next_after } => {
                let last = self.leaders.len() - 1;
                self.leaders[last].is_alive = false;
                // The kernel closes its connections.
                for link in self.links.values().filter(|link| link.leader == last) {
                    self.shared.add(now + self.delay, Event::Down(link.number, Down::Closed));
                }
                self.shared.add(now + next_after, Event::Leads);
            }
            Fault::Suspended { resumes_after, next_after } => {
                if let Some(leader) = self.leaders.last_mut() {
                    leader.resumes_at = now + resumes_after;
                }
                self.shared.add(now + next_after, Event::Leads);
            }
            Fault::CutOff { pods, lasts } => {
                for (pod, agent) in self.agents.iter_mut().take(pods) {
                    agent.cut_off_until = now + lasts;
                    if let Some(link) = agent.link {
                        self.shared.add(now + SILENT_LINK, Event::ClosesSilent(link));
                    }
                    self.shared.add(now + lasts, Event::Calls(*pod));
                }
            }
        }
    }

    /// Compares what can be admitted now with the limit.
    fn look(&mut self) {
        let now = self.shared.now();
        let may_use_share = |agent: &Agent| {
            !agent.client.condition().reached && (agent.was_closed || now >= agent.heard_at + SHARE_AFTER)
        };
        let shares = self.agents.values().filter(|agent| may_use_share(agent)).count();
        let absent = match self.leader() {
            Some(leader) if leader.counter.is_counting() => Some(leader.counter.absent()),
            _ => None,
        };
        let part = |pods: usize| float(pods) / f64::from(self.sharers);
        let counted = absent.map_or(0.0, |absent| 1.0 - part(absent));
        self.largest_sum = self.largest_sum.max(part(shares) + counted);
    }
}

/// Lets all tasks run until they wait.
async fn settle() {
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

fn name(pod: usize) -> String {
    format!("shop/api-{pod}")
}

fn rules(sharers: u32) -> [CountedRule; 1] {
    [CountedRule { counters: COUNTERS.to_owned(), policy: POLICY.into(), stamp: 1, sharers, accepts_limits: false }]
}

fn rule(sharers: u32, limit: u64) -> anyhow::Result<SharedRule> {
    let quota = Quota::new(Strategy::TokenBucket, limit, Duration::from_secs(1), Some(limit))?;
    Ok(SharedRule::new(COUNTERS, 1, &[vec![(0, quota)]], OnLoss::LocalShare, sharers, 10_000)?)
}
