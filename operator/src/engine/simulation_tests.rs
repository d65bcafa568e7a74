//! Simulates an operator's engine in a cluster. Policies, pods and Deployments come and go. Agents restart, reject
//! snapshots and fall silent. Links are slow, and lose and delay messages. Writes fail, are lost or arrive late. Users
//! and other leaders overwrite statuses and rules. Terms begin and end, and the process stops and restarts. At the end,
//! each status must equal the one that a definition (`oracle_tests.rs`) computes from the whole cluster, and a quiet
//! engine must do nothing.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;
use weir_api::{LastKnownGood, RateLimitPolicyStatus, RateLimitStoreStatus};

use super::{
    cluster::{Address, Agent, Cluster, Pod, Policy, Spec, Target, deployment, kept, micros, read},
    oracle::{expected, told},
    *,
};
use crate::{
    clock,
    link::{Failure, FailureKind},
    report::{Report, StoreReport},
};

/// The duration of the trouble, in seconds.
const TROUBLE: f64 = 40.0;
/// The time at which the agents count requests. The requests of the trouble are then older than a minute.
const BURST: f64 = TROUBLE + 70.0;
/// The time from which every status must be right. The engine must then do nothing until the end.
const QUIET: f64 = BURST + 25.0;
const END: f64 = QUIET + 20.0;
const TICK: f64 = 0.5;
const TRAFFIC_INTERVAL: Duration = Duration::from_secs(10);
const APPS: [&str; 3] = ["web", "api", "db"];
const POLICIES: [&str; 4] = ["p0", "p1", "p2", "p3"];
const PODS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const DEPLOYMENTS: [&str; 2] = ["front", "back"];

enum Happening {
    /// Something fails or changes.
    Trouble,
    /// An input of the machine since the last restart of the process.
    Machine { life: u32, input: Input },
    /// A link sends a request to its agent.
    Turn { pod: ObjectKey, link: u64, turn: u64 },
    /// The agent's answer reaches the link.
    Seen { pod: ObjectKey, link: u64, seen: Seen },
    /// A status write reaches the apiserver.
    Write { life: u32, attempt: u64, report: Box<Report> },
    /// The waiting status of the store reaches the apiserver.
    WriteStore { life: u32 },
    /// The writer learns the result, or gives up.
    Answer { life: u32, key: ObjectKey, attempt: u64, result: WriteResult },
    /// The writer tries the waiting status of a policy.
    Retry { life: u32, key: ObjectKey },
    /// The process continues after a pause.
    Resume { life: u32 },
    /// A term of this operator begins, or one of another.
    Lead(bool),
    /// The trouble ends.
    Calm,
    /// The agents count requests.
    Burst,
}

enum Input {
    Event(EngineEvent),
    /// The source reports these changes. They contain these policies.
    Shown(Update, Vec<(ObjectKey, Option<Policy>)>),
    Due {
        token: u64,
    },
    Tick,
}

enum WriteResult {
    Stored(StoredStatus),
    Gone,
    Conflict(String),
    Unknown,
}

struct Link {
    number: u64,
    uid: String,
    url: String,
    wanted: Arc<Content>,
    has_acknowledged: bool,
    is_contested: bool,
    misses: u32,
    /// The number of the awaited turn. All other turns are out of date.
    turn: u64,
    /// The time at which the last message arrives. Messages of one link never overtake each other.
    arrives: f64,
}

/// The writer's state of one policy.
#[derive(Default)]
struct Slot {
    waiting: Option<Box<Report>>,
    writing: Option<(u64, Box<Report>)>,
}

struct Simulation {
    rng: SmallRng,
    start: Instant,
    now: f64,
    agenda: BTreeMap<(u64, u64), Happening>,
    count: u64,
    cluster: Cluster,
    /// Rules that were in force on an agent at any time. Another leader may push them.
    contents: Vec<Arc<Content>>,
    /// Statuses that were written at any time. Another leader may write them.
    statuses: VecDeque<(String, RateLimitPolicyStatus)>,
    /// The pod, policy and revision of all rules that were ever in force.
    acknowledged: BTreeSet<(String, String, String)>,
    term: u64,
    is_leader: bool,

    machine: EngineMachine,
    life: u32,
    paused_until: f64,
    /// The inputs that arrived during the pause.
    deferred: VecDeque<Input>,
    /// The term that the machine has received.
    serves: Option<u64>,
    token: u64,
    due: Option<Instant>,
    links: BTreeMap<ObjectKey, Link>,
    agents: usize,
    slots: BTreeMap<ObjectKey, Slot>,
    /// The times at which the last update, observation and term arrive. An input never overtakes an earlier one of its
    /// kind.
    arrives: [f64; 3],
    /// The policies that the source has reported since the last restart.
    shown: BTreeMap<ObjectKey, Policy>,
    /// The last good generation of each policy, by UID.
    good: BTreeMap<String, (i64, Spec)>,
    writes: u64,
    /// The status of the store that waits for its write.
    waiting_store: Option<Box<StoreReport>>,
    /// Statuses of the store that were written at any time.
    store_statuses: Vec<RateLimitStoreStatus>,
    judged: BTreeSet<ObjectKey>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut simulation = Self {
            rng: SmallRng::seed_from_u64(seed),
            start: clock::now(),
            now: 0.0,
            agenda: BTreeMap::new(),
            count: 0,
            cluster: Cluster::default(),
            contents: Vec::new(),
            statuses: VecDeque::new(),
            acknowledged: BTreeSet::new(),
            term: 0,
            is_leader: false,
            machine: EngineMachine::new(TRAFFIC_INTERVAL),
            life: 0,
            paused_until: 0.0,
            deferred: VecDeque::new(),
            serves: None,
            token: 0,
            due: None,
            links: BTreeMap::new(),
            agents: 0,
            slots: BTreeMap::new(),
            arrives: [0.0; 3],
            shown: BTreeMap::new(),
            good: BTreeMap::new(),
            writes: 0,
            waiting_store: None,
            store_statuses: Vec::new(),
            judged: BTreeSet::new(),
        };
        for name in DEPLOYMENTS {
            simulation.cluster.deployments.insert(name.to_owned(), APPS[0].to_owned());
        }
        simulation.restart();
        simulation.plan(0.0, Happening::Lead(true));
        let mut at = 0.1;
        while at < TROUBLE {
            simulation.plan(at, Happening::Trouble);
            at += simulation.rng.random_range(0.0..0.5_f64).powi(2) * 4.0;
        }
        simulation.plan(TROUBLE, Happening::Calm);
        simulation.plan(BURST, Happening::Burst);
        simulation
    }

    fn plan(&mut self, at: f64, happening: Happening) {
        self.count += 1;
        self.agenda.insert((micros(at), self.count), happening);
    }

    fn is_calm(&self) -> bool {
        self.now >= TROUBLE
    }

    /// Returns true with this probability, and never after the trouble.
    fn fails(&mut self, probability: f64) -> bool {
        !self.is_calm() && self.rng.random_bool(probability)
    }

    fn delay(&mut self, longest: f64) -> f64 {
        let longest = if self.fails(0.1) { longest } else { 0.02 };
        self.rng.random_range(0.0..longest)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.rng.random_range(0..of.len())].clone()
    }

    /// Returns a number that is used only once.
    fn unique(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_secs_f64(self.now)
    }

    /// Delivers an input to the machine, after all earlier inputs of its kind.
    fn send(&mut self, kind: usize, input: Input) {
        let at = (self.now + self.delay(2.0)).max(self.arrives[kind] + 2e-6);
        self.arrives[kind] = at;
        self.plan(at, Happening::Machine { life: self.life, input });
    }

    fn show(&mut self, change: Change) {
        self.send(0, Input::Shown(Update { changes: vec![change], complete: false }, Vec::new()));
    }

    fn show_policy(&mut self, key: &ObjectKey) {
        let policy = self.cluster.policies.get(key).cloned();
        let change = Change::Policy(key.clone(), policy.as_ref().map(Policy::shown));
        let update = Update { changes: vec![change], complete: false };
        self.send(0, Input::Shown(update, vec![(key.clone(), policy)]));
    }

    fn show_pod(&mut self, key: &ObjectKey) {
        let pod = self.cluster.pods.get(key).map(Pod::shown);
        self.show(Change::Pod(key.clone(), pod));
    }

    fn show_store(&mut self) {
        let store = self.cluster.shown_store();
        self.show(store);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Trouble => self.trouble(),
            Happening::Machine { life, input } if life == self.life => self.input(input),
            Happening::Turn { pod, link, turn } => self.turn(&pod, link, turn),
            Happening::Seen { pod, link, seen } => {
                if let Some(link) = self.links.get(&pod).filter(|it| it.number == link) {
                    let pod_uid = link.uid.as_str().into();
                    let observation = Observation { pod, pod_uid, at: self.instant(), seen };
                    self.send(1, Input::Event(EngineEvent::Observed(observation)));
                }
            }
            Happening::Write { life, attempt, report } => {
                // After a restart, the process does not take a generation from a status that an earlier process writes
                // late.
                let good = |kept: &LastKnownGood| kept.generation;
                let known = self.good.get(&report.uid).map(|(generation, _)| *generation);
                if life != self.life && report.status.last_known_good.as_ref().map(good) != known {
                    return;
                }
                let result = self.write(&report);
                if !self.fails(0.1) {
                    let (key, after) = (report.key, self.delay(1.0));
                    self.plan(self.now + after, Happening::Answer { life, key, attempt, result });
                }
            }
            Happening::WriteStore { life } if life == self.life => self.write_store(),
            Happening::Answer { life, key, attempt, result } if life == self.life => self.answer(key, attempt, result),
            Happening::Retry { life, key } if life == self.life => self.start_write(&key),
            Happening::Resume { life } if life == self.life && self.now >= self.paused_until => {
                for input in std::mem::take(&mut self.deferred) {
                    self.take(input);
                }
            }
            Happening::Lead(leads) => self.lead(leads),
            Happening::Calm => self.calm(),
            Happening::Burst => {
                for agent in self.cluster.agents.values_mut().filter(|agent| !agent.is_silent) {
                    agent.count(&mut self.rng, true);
                }
            }
            Happening::Machine { .. }
            | Happening::WriteStore { .. }
            | Happening::Answer { .. }
            | Happening::Retry { .. }
            | Happening::Resume { .. } => {}
        }
    }

    // The actions of the world.

    fn trouble(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => {
                let key = ObjectKey::new("shop", self.one(&POLICIES));
                self.change_policy(&key);
            }
            25..50 => self.change_pod(),
            50..52 => self.change_store(),
            52..55 => {
                let (name, app) = (self.one(&DEPLOYMENTS), self.one(&APPS));
                if self.cluster.deployments.remove(name).is_none() {
                    self.cluster.deployments.insert(name.to_owned(), app.to_owned());
                }
                let selector = self.cluster.deployments.get(name).map(|app| Some(selector(app)));
                self.show(Change::Workload(deployment(name), selector));
            }
            55..80 => self.change_agent(),
            80..88 => self.overwrite_status(),
            88..94 => self.lead(!self.is_leader),
            94..97 => self.paused_until = self.now + self.rng.random_range(0.0..6.0),
            _ => self.restart(),
        }
    }

    fn change_policy(&mut self, key: &ObjectKey) {
        let spec = self.spec();
        let number = self.unique();
        match self.cluster.policies.get_mut(key) {
            Some(_) if self.rng.random_bool(0.2) => drop(self.cluster.policies.remove(key)),
            Some(policy) => {
                policy.generation += 1;
                policy.version = number;
                policy.spec = spec;
            }
            None => {
                let policy = Policy {
                    uid: format!("policy-{number}"),
                    generation: 1,
                    created: i64::try_from(number).unwrap(),
                    spec,
                    good: None,
                    status: None,
                    version: number,
                    written_in: 0,
                };
                self.cluster.policies.insert(key.clone(), policy);
            }
        }
        self.show_policy(key);
        // A deleted policy may be replaced immediately.
        if !self.cluster.policies.contains_key(key) && self.rng.random_bool(0.5) {
            self.change_policy(key);
        }
    }

    /// The store gets another address, is replaced, or gets a status from a user or another leader.
    fn change_store(&mut self) {
        match self.rng.random_range(0..3) {
            0 => self.cluster.store += 1,
            1 => {
                self.cluster.store_number += 1;
                self.cluster.store_status = None;
            }
            _ if self.store_statuses.is_empty() => {}
            _ => self.cluster.store_status = Some(Box::new(self.one(&self.store_statuses.clone()))),
        }
        self.show_store();
    }

    fn spec(&mut self) -> Spec {
        if self.rng.random_bool(0.2) {
            return Spec::Invalid;
        }
        let target = if self.rng.random_bool(0.7) {
            Target::App(self.one(&APPS).to_owned())
        } else {
            Target::Deployment(self.one(&DEPLOYMENTS).to_owned())
        };
        let is_large = self.rng.random_bool(0.3);
        Spec::Valid { requests: self.unique(), is_large, target }
    }

    fn change_pod(&mut self) {
        let key = ObjectKey::new("shop", self.one(&PODS));
        let number = self.unique();
        let (app, url) = (self.one(&APPS).to_owned(), format!("http://{number}"));
        let address = match self.rng.random_range(0..10) {
            0 => Address::NoAgent,
            1 => Address::Pending,
            _ => Address::At(url.clone()),
        };
        match self.cluster.pods.get_mut(&key) {
            Some(_) if self.rng.random_bool(0.4) => drop(self.cluster.pods.remove(&key)),
            Some(pod) if self.rng.random_bool(0.3) => pod.app = app,
            Some(pod) => pod.address = address,
            None => {
                let created_by = self.rng.random_bool(0.8).then(|| self.one(&DEPLOYMENTS));
                let pod = Pod { uid: format!("pod-{number}"), app, created_by, address };
                self.cluster.pods.insert(key.clone(), pod);
            }
        }
        let agent = Agent { instance: url.clone(), started: self.now, ..Agent::default() };
        self.cluster.agents.insert(url, agent);
        self.show_pod(&key);
    }

    fn change_agent(&mut self) {
        let urls: Vec<_> = self.links.values().map(|link| link.url.clone()).collect();
        if urls.is_empty() {
            return;
        }
        let (url, number, now) = (self.one(&urls), self.unique(), self.now);
        let content = if self.contents.is_empty() { None } else { Some(self.one(&self.contents.clone())) };
        let Some(agent) = self.cluster.agents.get_mut(&url) else { return };
        match self.rng.random_range(0..11) {
            10 => agent.is_cut_off = !agent.is_cut_off,
            0 => agent.is_silent = !agent.is_silent,
            1 => agent.refuses = !agent.refuses,
            2 => agent.is_contested = !agent.is_contested,
            3 => {
                for policy in content.iter().flat_map(|content| &content.policies) {
                    let pods = self.links.values().filter(|link| link.url == url).map(|link| link.uid.clone());
                    let told = |pod| (pod, policy.uid.clone(), policy.revision.clone());
                    self.acknowledged.extend(pods.map(told));
                }
                agent.in_force = content;
            }
            4 => drop(self.cluster.agents.remove(&url)),
            5 | 6 => agent.restart(number, now),
            _ => agent.count(&mut self.rng, false),
        }
    }

    /// A user or another leader overwrites a status.
    fn overwrite_status(&mut self) {
        let keys: Vec<_> = self.cluster.policies.keys().cloned().collect();
        if keys.is_empty() {
            return;
        }
        let (key, number) = (self.one(&keys), self.unique());
        let by_leader = !self.is_leader;
        let policy = self.cluster.policies.get_mut(&key).unwrap();
        let earlier: Vec<_> = self.statuses.iter().filter(|(uid, _)| *uid == policy.uid).collect();
        let mut status = if earlier.is_empty() || self.rng.random_bool(0.2) {
            RateLimitPolicyStatus::default()
        } else {
            earlier[self.rng.random_range(0..earlier.len())].1.clone()
        };
        status.last_known_good = policy.good.as_ref().and_then(kept);
        if let Some(enforcement) = &mut status.enforcement
            && self.rng.random_bool(0.3)
        {
            enforcement.pods_enforcing += 1;
        }
        policy.status = (by_leader || self.rng.random_bool(0.8)).then(|| Box::new(status));
        policy.version = number;
        if by_leader {
            policy.written_in = self.term;
        }
        self.show_policy(&key);
    }

    /// Begins a term of this operator or of another one.
    fn lead(&mut self, leads: bool) {
        self.term += 1;
        self.is_leader = leads;
        let term = leads.then(|| Term::numbered(self.term));
        self.send(2, Input::Event(EngineEvent::Term(term)));
    }

    /// Restarts the process. Writes that were sent earlier may still arrive.
    fn restart(&mut self) {
        if self.is_leader {
            (self.is_leader, self.term) = (false, self.term + 1);
        }
        self.machine = EngineMachine::new(TRAFFIC_INTERVAL);
        self.life += 1;
        (self.serves, self.due, self.arrives, self.agents) = (None, None, [self.now; 3], 0);
        self.paused_until = self.now;
        self.deferred.clear();
        self.links.clear();
        self.slots.clear();
        self.waiting_store = None;
        self.shown.clear();
        self.good.clear();
        self.cluster.policies.values_mut().for_each(|policy| policy.good = None);
        let deployments = self.cluster.deployments.iter();
        let deployments = deployments.map(|(name, app)| Change::Workload(deployment(name), Some(Some(selector(app)))));
        let pods = self.cluster.pods.iter().map(|(key, pod)| Change::Pod(key.clone(), Some(pod.shown())));
        let update =
            Update { changes: deployments.chain(pods).chain([self.cluster.shown_store()]).collect(), complete: false };
        self.send(0, Input::Shown(update, Vec::new()));
        let policies = self.cluster.policies.clone();
        let changes = policies.iter().map(|(key, policy)| Change::Policy(key.clone(), Some(policy.shown())));
        let update = Update { changes: changes.collect(), complete: true };
        self.send(0, Input::Shown(update, policies.into_iter().map(|(key, policy)| (key, Some(policy))).collect()));
        self.event(EngineEvent::Term(None));
        self.input(Input::Tick);
    }

    fn calm(&mut self) {
        self.paused_until = self.paused_until.min(self.now);
        if !self.is_leader {
            self.lead(true);
        }
        let now = self.now;
        for (number, agent) in (1..).zip(self.cluster.agents.values_mut()) {
            // An agent must not keep rejecting a snapshot because of its history.
            if agent.refuses {
                agent.restart(number, now);
            }
        }
    }

    // The shell, which performs the machine's actions, as `Engine` does.

    fn input(&mut self, input: Input) {
        if self.now < self.paused_until || !self.deferred.is_empty() {
            self.deferred.push_back(input);
            return self.plan(self.paused_until.max(self.now) + 1e-6, Happening::Resume { life: self.life });
        }
        self.take(input);
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.event(event),
            Input::Shown(update, policies) => {
                for (key, policy) in policies {
                    match policy {
                        Some(policy) => drop(self.shown.insert(key, policy)),
                        None => drop(self.shown.remove(&key)),
                    }
                }
                self.event(EngineEvent::Update(update));
            }
            Input::Due { token } if token == self.token => self.event(EngineEvent::Due),
            Input::Due { .. } => {}
            Input::Tick => {
                self.plan(self.now + TICK, Happening::Machine { life: self.life, input: Input::Tick });
                self.event(EngineEvent::Tick);
            }
        }
    }

    fn handle(&mut self, event: EngineEvent) {
        let timestamp = Timestamp::from_second(1_800_000_000).unwrap() + Duration::from_secs_f64(self.now);
        let at = EngineMoment { now: self.instant(), timestamp };
        for action in self.machine.handle(event, at) {
            self.act(action);
        }
    }

    fn event(&mut self, event: EngineEvent) {
        self.handle(event);
        assert_eq!(self.links.len(), self.agents, "the number of agents is wrong");
        if self.due != self.machine.due() {
            self.due = self.machine.due();
            self.token += 1;
            if let Some(due) = self.due {
                let at = due.saturating_duration_since(self.start).as_secs_f64().max(self.now) + 1e-6;
                let input = Input::Due { token: self.token };
                self.plan(at, Happening::Machine { life: self.life, input });
            }
        }
    }

    fn act(&mut self, action: EngineAction) {
        match action {
            EngineAction::StartTerm(term) => {
                self.links.clear();
                self.agents = 0;
                self.serves = term.map(|term| term.sequence(Duration::ZERO));
            }
            EngineAction::Link { pod, uid, url, content } => {
                assert!(self.serves.is_some(), "a link was started outside a term");
                let (number, url) = (self.unique(), url.to_string());
                let link = Link {
                    number,
                    uid: uid.to_string(),
                    url,
                    wanted: content,
                    has_acknowledged: false,
                    is_contested: false,
                    misses: 0,
                    turn: 0,
                    arrives: self.now,
                };
                let before = self.links.insert(pod.clone(), link);
                assert!(
                    before
                        .is_none_or(|before| before.url != self.links[&pod].url || before.uid != self.links[&pod].uid)
                );
                self.turn_soon(&pod);
            }
            EngineAction::Push { pod, content } => {
                self.links.get_mut(&pod).expect("a push needs a link").wanted = content;
                self.turn_soon(&pod);
            }
            EngineAction::Unlink(pod) => drop(self.links.remove(&pod)),
            EngineAction::SpreadStatuses(agents) => self.agents = agents,
            EngineAction::LogListed { .. }
            | EngineAction::Expect { .. }
            | EngineAction::Leave { .. }
            | EngineAction::Planned => {}
            EngineAction::Ready => self.planned(),
            EngineAction::WriteStatuses => {
                let took = if self.fails(0.05) { 100_000 } else { self.rng.random_range(0..2000) };
                self.handle(EngineEvent::WriteStatuses(oracle::usage(&self.cluster)));
                self.handle(EngineEvent::StatusesWritten(Duration::from_micros(took)));
            }
            EngineAction::Send(Message::Status(report)) => {
                self.check_report(&report);
                self.writes += 1;
                let key = report.key.clone();
                self.slots.entry(key.clone()).or_default().waiting = Some(report);
                self.start_write(&key);
            }
            EngineAction::Send(Message::Store(report)) => {
                assert_eq!(Some(report.term.sequence(Duration::ZERO)), self.serves, "sent outside its term");
                self.writes += 1;
                let at = self.now + self.delay(8.0);
                self.plan(at, Happening::WriteStore { life: self.life });
                self.waiting_store = Some(report);
            }
            EngineAction::Send(Message::Announce(it)) => {
                assert_eq!(Some(it.term.sequence(Duration::ZERO)), self.serves, "an Event was sent outside its term");
            }
            EngineAction::Send(Message::Removed(key)) => self.slots.entry(key).or_default().waiting = None,
            EngineAction::CountPolicyPods(key, _) => drop(self.judged.insert(key)),
            EngineAction::Send(Message::Notice(_) | Message::Stores(..)) => {
                panic!("the engine must not send notices and stores of files")
            }
            EngineAction::CountPods(_) | EngineAction::CountPolicies { .. } | EngineAction::CountPropagated(_) => {}
        }
    }

    /// Updates the last good generation of each policy: the newest valid one that was planned, or after a restart the
    /// one that the status stores.
    fn planned(&mut self) {
        for (key, shown) in &self.shown {
            let kept = || Some(read(shown.status.as_ref()?.last_known_good.as_ref()?));
            match &shown.spec {
                spec @ Spec::Valid { .. } => {
                    drop(self.good.insert(shown.uid.clone(), (shown.generation, spec.clone())));
                }
                Spec::Invalid if self.good.contains_key(&shown.uid) => {}
                Spec::Invalid => self.good.extend(kept().map(|good| (shown.uid.clone(), good))),
            }
            if let Some(policy) = self.cluster.policies.get_mut(key).filter(|policy| policy.uid == shown.uid) {
                policy.good = self.good.get(&shown.uid).cloned();
            }
        }
    }

    /// Checks that a status counts no pod that never had the rules in force.
    fn check_report(&self, report: &Report) {
        assert_eq!(Some(report.term.sequence(Duration::ZERO)), self.serves, "the status has another term");
        let enforcing = report.status.enforcement.as_ref().unwrap().pods_enforcing;
        let revision = report.status.revision.as_deref().unwrap_or_default();
        let acknowledged = self.acknowledged.iter().filter(|(_, uid, of)| *uid == report.uid && of == revision);
        let pods: BTreeSet<_> = acknowledged.map(|(pod, ..)| pod).collect();
        assert!(
            usize::try_from(enforcing).unwrap() <= pods.len(),
            "the status counts pods that never had the policy in force: {report:?}"
        );
    }

    // Links.

    fn turn_soon(&mut self, pod: &ObjectKey) {
        let at = self.now + self.delay(3.0);
        self.turn_at(pod, at);
    }

    fn turn_at(&mut self, pod: &ObjectKey, at: f64) {
        let turn = self.unique();
        if let Some(link) = self.links.get_mut(pod) {
            link.turn = turn;
            let link = link.number;
            self.plan(at, Happening::Turn { pod: pod.clone(), link, turn });
        }
    }

    fn turn(&mut self, pod: &ObjectKey, number: u64, turn: u64) {
        let (is_lost, is_unheard) = (self.fails(0.1), self.fails(0.1));
        let Some(link) = self.links.get_mut(pod).filter(|link| (link.number, link.turn) == (number, turn)) else {
            return;
        };
        let mut seen = Vec::new();
        match self.cluster.agents.get_mut(&link.url).filter(|agent| !agent.is_silent) {
            None => {
                link.misses += 1;
                if link.misses >= 2 {
                    seen.push(failed(FailureKind::Unreachable));
                }
            }
            Some(_) if is_lost => {}
            Some(agent) => {
                link.misses = 0;
                if agent.is_contested != link.is_contested {
                    link.is_contested = agent.is_contested;
                    seen.push(Seen::Contested(agent.is_contested));
                }
                let wanted = &link.wanted;
                let has_it = agent.in_force.as_ref().is_some_and(|content| content.revision == wanted.revision);
                if has_it && link.has_acknowledged {
                    seen.push(Seen::Status(Arc::new(agent.status(self.now))));
                } else if agent.refuses {
                    seen.push(failed(FailureKind::Rejected));
                } else {
                    agent.in_force = Some(wanted.clone());
                    for policy in &wanted.policies {
                        self.acknowledged.insert((link.uid.clone(), policy.uid.clone(), policy.revision.clone()));
                    }
                    self.contents.push(wanted.clone());
                    if !is_unheard {
                        link.has_acknowledged = true;
                        seen.push(Seen::Acknowledged(wanted.clone()));
                    }
                }
                if !is_unheard {
                    seen.push(Seen::Status(Arc::new(agent.status(self.now))));
                }
            }
        }
        for seen in seen {
            let after = self.delay(2.0);
            let link = self.links.get_mut(pod).unwrap();
            link.arrives = (link.arrives + 1e-6).max(self.now + after);
            let (at, link) = (link.arrives, link.number);
            self.plan(at, Happening::Seen { pod: pod.clone(), link, seen });
        }
        let at = self.now + self.rng.random_range(0.9..1.1);
        self.turn_at(pod, at);
    }

    // The writer and the store.

    fn start_write(&mut self, key: &ObjectKey) {
        let attempt = self.unique();
        let Some(slot) = self.slots.get_mut(key).filter(|slot| slot.writing.is_none()) else { return };
        let Some(report) = slot.waiting.take() else { return };
        if !self.is_leader || report.term.sequence(Duration::ZERO) != self.term {
            return;
        }
        slot.writing = Some((attempt, report.clone()));
        let (life, at) = (self.life, self.now + self.delay(8.0));
        if !self.fails(0.1) {
            self.plan(at, Happening::Write { life, attempt, report });
        }
        let key = key.clone();
        self.plan(self.now + 5.0, Happening::Answer { life, key, attempt, result: WriteResult::Unknown });
    }

    fn write(&mut self, report: &Report) -> WriteResult {
        let (term, version) = (report.term.sequence(Duration::ZERO), self.unique());
        let stored = self.cluster.policies.get_mut(&report.key).filter(|policy| policy.uid == report.uid);
        let Some(policy) = stored else { return WriteResult::Gone };
        if report.version.as_ref().is_some_and(|version| *version != policy.version.to_string()) {
            return WriteResult::Conflict(policy.version.to_string());
        }
        assert!(term >= policy.written_in, "a status of term {term} replaces one of term {}", policy.written_in);
        policy.written_in = term;
        policy.status = Some(Box::new(report.status.clone()));
        policy.version = version;
        let stored = StoredStatus { status: policy.status.clone(), version: Some(version.to_string()) };
        self.statuses.push_back((report.uid.clone(), report.status.clone()));
        if self.statuses.len() > 50 {
            self.statuses.pop_front();
        }
        self.show_policy(&report.key);
        WriteResult::Stored(stored)
    }

    /// Writes the newest status of the store. The writer tries again until it knows the result.
    fn write_store(&mut self) {
        let Some(report) = self.waiting_store.take() else { return };
        if !self.is_leader || report.term.sequence(Duration::ZERO) != self.term {
            return;
        }
        let (is_lost, is_unheard) = (self.fails(0.1), self.fails(0.1));
        if !is_lost && report.uid == self.cluster.store_uid() {
            self.store_statuses.push(report.status.clone());
            let status = Some(Box::new(report.status.clone()));
            // The apiserver reports no change if there is none.
            if self.cluster.store_status != status {
                self.cluster.store_status = status;
                self.show_store();
            }
        }
        if is_lost || is_unheard {
            self.plan(self.now + 5.0, Happening::WriteStore { life: self.life });
            self.waiting_store = Some(report);
        }
    }

    fn answer(&mut self, key: ObjectKey, attempt: u64, result: WriteResult) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let Some((_, mut report)) = slot.writing.take_if(|(awaited, _)| *awaited == attempt) else { return };
        let (uid, number) = (report.uid.clone(), report.number);
        match result {
            WriteResult::Stored(stored) => {
                let written = WrittenStatus { key: key.clone(), uid, number, stored };
                self.start_write(&key);
                self.input(Input::Event(EngineEvent::Written(written)));
                return;
            }
            WriteResult::Gone => return self.start_write(&key),
            WriteResult::Conflict(version) => report.version = Some(version),
            WriteResult::Unknown => {}
        }
        slot.waiting.get_or_insert(report);
        let at = self.now + self.rng.random_range(0.05..0.1);
        self.plan(at, Happening::Retry { life: self.life, key });
    }

    // The final checks.

    fn run_until(&mut self, end: f64) {
        while let Some(entry) = self.agenda.first_entry() {
            if entry.key().0 > micros(end) {
                break;
            }
            let ((at, _), happening) = entry.remove_entry();
            self.now = at as f64 / 1e6;
            self.happen(happening);
        }
        self.now = end;
    }

    /// Runs to the end. Returns the number of written statuses.
    fn run(mut self, seed: u64) -> u64 {
        self.run_until(QUIET);
        for (key, policy) in &self.cluster.policies {
            let status = policy.status.as_ref().unwrap_or_else(|| panic!("seed {seed}: {key} has no status"));
            let expected = expected(&self.cluster, key, policy);
            assert_eq!(told(&self.cluster, status), expected, "seed {seed}: {key} {status:?}");
        }
        if self.serves.is_some() {
            let status =
                self.cluster.store_status.as_ref().unwrap_or_else(|| panic!("seed {seed}: the store has no status"));
            let cut_off: Vec<&str> = status.cut_off.iter().map(|it| it.pod.as_str()).collect();
            assert!(oracle::agrees(&self.cluster, status.pods_using, &cut_off), "seed {seed}: {status:?}");
        }
        let writes = self.writes;
        self.judged.clear();
        self.run_until(END);
        assert_eq!(self.writes, writes, "seed {seed}: a quiet engine must not write");
        for key in &self.judged {
            let expected = expected(&self.cluster, key, &self.cluster.policies[key]);
            assert!(expected.enforcing < expected.targeted, "seed {seed}: {key} was judged needlessly");
        }
        assert_eq!(self.machine.due(), None, "seed {seed}");
        writes
    }
}

fn selector(app: &str) -> kube::core::Selector {
    [("app".to_owned(), app.to_owned())].into_iter().collect()
}

fn failed(kind: FailureKind) -> Seen {
    Seen::Failed(Failure { kind, message: "why".to_owned() })
}

#[test]
fn after_any_trouble_each_status_is_what_the_world_defines_and_a_quiet_engine_rests() {
    let mut writes = 0;
    for seed in 0..500 {
        writes += Simulation::new(seed).run(seed);
    }
    assert!(writes > 10_000, "only {writes} writes: the simulation has too few events");
}
