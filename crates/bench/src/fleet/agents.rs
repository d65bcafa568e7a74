//! Simulates ten thousand agents in one process. Each agent has a separate loopback address, and all share one listener
//! on all addresses. The local address of a connection identifies the agent.
//!
//! The agents use the wire format and follow its rules: they refuse snapshots that are older than the one in force.
//! They enforce nothing, so that they use little of the processor, which the operator shares. A content is parsed in
//! full only once, and then identified by its revision.

use std::{
    collections::HashMap,
    net::Ipv4Addr,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use serde::{Deserialize, de::IgnoredAny};
use tokio::{sync::oneshot, time::timeout};
use weir_wire::{
    ApplyReply, PolicyStatus, Rejection, RejectionKind, RuleStatus, Snapshot, SnapshotInForce, Status, WIRE_VERSION,
};

use super::asking::Asking;
use crate::clock;

/// The address of the first agent. The other agents have the following addresses.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// All agents.
pub(crate) struct Agents {
    agents: Box<[Mutex<Agent>]>,
    /// The parsed contents, by revision.
    contents: RwLock<HashMap<String, Arc<Content>>>,
    round: RwLock<Option<Arc<Round>>>,
    rounds: AtomicU64,
    statuses: AtomicU64,
    started: Instant,
    asking: Arc<Asking>,
}

#[derive(Default)]
struct Agent {
    /// The number of starts of this agent.
    instance: u32,
    in_force: Option<(u64, Arc<Content>)>,
    since_unix_millis: u64,
    /// The last round in which the agent was counted.
    round: u64,
}

/// A parsed content, as far as agents need it.
struct Content {
    revision: String,
    /// The name of each policy, and the number of requests of its first limit.
    policies: Vec<(String, u64)>,
    /// The last part of a status: `"policies":[…]}`.
    status: String,
}

/// The snapshot for which a round waits.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// Any snapshot.
    Anything,
    /// A snapshot with this policy, and this number of requests in its first limit.
    Limit(String, u64),
}

struct Round {
    number: u64,
    wanted: Wanted,
    left: AtomicUsize,
    over: Mutex<Option<oneshot::Sender<Instant>>>,
}

/// The wait for a round, which ends when the last agent has acknowledged the wanted snapshot.
pub(crate) struct Waiting {
    round: Arc<Round>,
    over: oneshot::Receiver<Instant>,
}

/// An acknowledgement of a snapshot.
#[derive(Debug)]
pub(crate) struct Acknowledgement {
    body: String,
    /// The sender that ends the round. Set only if this is the answer of the last agent of the round.
    last: Option<oneshot::Sender<Instant>>,
}

impl Acknowledgement {
    /// Returns the body just before it is written, and ends the round if this is its last answer.
    pub(crate) fn given(self) -> String {
        if let Some(over) = self.last {
            // This fails only if the round has timed out.
            let _ = over.send(clock::now());
        }
        self.body
    }
}

/// The fields of a snapshot except its content.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Envelope<'a> {
    wire_version: u32,
    sequence: u64,
    revision: &'a str,
    #[serde(rename = "policies")]
    _policies: IgnoredAny,
    #[serde(default, rename = "stores")]
    _stores: IgnoredAny,
}

impl Agents {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self {
            agents: (0..count).map(|_| Mutex::default()).collect(),
            contents: RwLock::default(),
            round: RwLock::default(),
            rounds: AtomicU64::new(0),
            statuses: AtomicU64::new(0),
            started: clock::now(),
            asking: Asking::new(count),
        })
    }

    /// The address of the agent with this number.
    pub(crate) fn address(number: usize) -> Ipv4Addr {
        let number = u32::try_from(number).expect("the number of an agent fits 32 bits");
        Ipv4Addr::from(u32::from(FIRST) + number)
    }

    /// The number of the agent at this address.
    pub(crate) fn number(&self, address: Ipv4Addr) -> Option<usize> {
        let number = usize::try_from(u32::from(address).checked_sub(u32::from(FIRST))?).ok()?;
        (number < self.agents.len()).then_some(number)
    }

    /// Restarts all agents, without a snapshot in force.
    pub(crate) fn restart(&self) {
        for agent in &self.agents {
            let mut agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
            *agent = Agent { instance: agent.instance + 1, ..Agent::default() };
        }
    }

    /// The questions of all agents about rules of scope Fleet.
    pub(crate) fn asking(&self) -> &Arc<Asking> {
        &self.asking
    }

    /// The number of reports from all agents: a status, or that nothing had changed.
    pub(crate) fn statuses(&self) -> u64 {
        self.statuses.load(Ordering::Relaxed)
    }

    /// Starts a round that waits until this many agents have acknowledged.
    pub(crate) fn await_acknowledgements(&self, wanted: Wanted, agents: usize) -> Waiting {
        let (sender, over) = oneshot::channel();
        let number = self.rounds.fetch_add(1, Ordering::Relaxed) + 1;
        let round = Arc::new(Round { number, wanted, left: AtomicUsize::new(agents), over: Mutex::new(Some(sender)) });
        *self.round.write().unwrap_or_else(PoisonError::into_inner) = Some(round.clone());
        Waiting { round, over }
    }

    /// Fails unless each of the first `agents` has these policies in force, in any order.
    pub(crate) fn check(&self, agents: usize, expected: impl Fn(usize) -> Vec<String>) -> anyhow::Result<()> {
        for (number, agent) in self.agents.iter().enumerate().take(agents) {
            let agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
            let (_, content) = agent.in_force.as_ref().with_context(|| format!("agent {number} has no snapshot"))?;
            let mut held: Vec<_> = content.policies.iter().map(|(name, _)| name.clone()).collect();
            held.sort_unstable();
            let mut expected = expected(number);
            expected.sort_unstable();
            ensure!(held == expected, "agent {number} has {held:?} in force, not {expected:?}");
        }
        Ok(())
    }

    /// Answers a snapshot for the agent with this number: with an acknowledgement, or with a rejection.
    pub(crate) fn take(&self, number: usize, snapshot: &[u8]) -> Result<Acknowledgement, String> {
        let answer = self.apply(number, snapshot);
        answer.unwrap_or_else(|error| Err(rejection(RejectionKind::Malformed, format!("{error:#}"), None)))
    }

    fn apply(&self, number: usize, body: &[u8]) -> anyhow::Result<Result<Acknowledgement, String>> {
        let envelope: Envelope<'_> = serde_json::from_slice(body)?;
        ensure!(envelope.wire_version == WIRE_VERSION, "wire version {}", envelope.wire_version);
        let content = self.content(envelope.revision, body)?;
        let mut agent = self.agents[number].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((sequence, held)) = &agent.in_force
            && (envelope.sequence < *sequence || (envelope.sequence == *sequence && held.revision != content.revision))
        {
            let message = "older than the snapshot in force".to_owned();
            return Ok(Err(rejection(RejectionKind::Stale, message, agent.reported_in_force())));
        }
        agent.in_force = Some((envelope.sequence, content.clone()));
        agent.since_unix_millis = unix_millis();
        let in_force = agent.reported_in_force().context("no snapshot is in force")?;
        let last = self.count(&mut agent, &content);
        drop(agent);
        let body = serde_json::to_string(&ApplyReply { in_force })?;
        Ok(Ok(Acknowledgement { body, last }))
    }

    /// Counts an agent in the round if the round waits for it. Returns the sender that ends the round if it was the
    /// last agent.
    fn count(&self, agent: &mut Agent, content: &Content) -> Option<oneshot::Sender<Instant>> {
        let round = self.round.read().unwrap_or_else(PoisonError::into_inner).clone()?;
        let counts = match &round.wanted {
            Wanted::Anything => true,
            Wanted::Limit(policy, number) => {
                content.policies.iter().any(|(name, held)| name == policy && held == number)
            }
        };
        if !counts || agent.round == round.number {
            return None;
        }
        agent.round = round.number;
        let is_last = round.left.fetch_sub(1, Ordering::AcqRel) == 1;
        is_last.then(|| round.over.lock().unwrap_or_else(PoisonError::into_inner).take()).flatten()
    }

    fn content(&self, revision: &str, body: &[u8]) -> anyhow::Result<Arc<Content>> {
        if let Some(content) = self.contents.read().unwrap_or_else(PoisonError::into_inner).get(revision) {
            return Ok(content.clone());
        }
        let snapshot: Snapshot = serde_json::from_slice(body)?;
        let content = Arc::new(Content::of(&snapshot)?);
        for rule in snapshot.policies.iter().flat_map(|policy| &policy.rules) {
            if let Some((shared, limit)) = rule.shared.as_ref().zip(rule.limits.first()) {
                self.asking.learn(shared, limit.requests)?;
            }
        }
        let mut contents = self.contents.write().unwrap_or_else(PoisonError::into_inner);
        Ok(contents.entry(revision.to_owned()).or_insert(content).clone())
    }

    /// The next status of this agent. None if nothing has changed since the last one, of which `last` has the start of
    /// the agent and the snapshot.
    pub(crate) fn status(&self, number: usize, last: &mut Option<(u32, u64)>) -> Option<String> {
        self.statuses.fetch_add(1, Ordering::Relaxed);
        let agent = self.agents[number].lock().unwrap_or_else(PoisonError::into_inner);
        // The counters are always zero, so nothing else changes.
        let now = (agent.instance, agent.in_force.as_ref().map_or(0, |(sequence, _)| *sequence));
        if last.replace(now) == Some(now) {
            return None;
        }
        let instance = format!("{number}-{}", agent.instance);
        let status = Status {
            wire_version: WIRE_VERSION,
            instance,
            agent_version: "simulated".to_owned(),
            uptime_millis: u64::try_from(clock::since(self.started).as_millis()).unwrap_or(u64::MAX),
            in_force: agent.reported_in_force(),
            policies: Vec::new(),
            stores: Vec::new(),
        };
        let content = agent.in_force.as_ref().map(|(_, content)| content.clone());
        drop(agent);
        let mut text = serde_json::to_string(&status).expect("a status can be serialized");
        if let Some(content) = content {
            text.truncate(text.len() - EMPTY.len());
            text.push_str(&content.status);
        }
        Some(text)
    }
}

/// The last part of a status without policies.
const EMPTY: &str = r#""policies":[]}"#;

impl Content {
    fn of(snapshot: &Snapshot) -> anyhow::Result<Self> {
        let mut policies = Vec::new();
        let mut statuses = Vec::new();
        for policy in &snapshot.policies {
            let first = policy.rules.first().and_then(|rule| rule.limits.first());
            let Some(limit) = first else { bail!("policy {} has no limit", policy.name) };
            policies.push((policy.name.clone(), limit.requests));
            let rule = |rule: &weir_wire::Rule| RuleStatus { name: rule.name.clone(), ..RuleStatus::default() };
            statuses.push(PolicyStatus {
                uid: policy.uid.clone(),
                namespace: policy.namespace.clone(),
                name: policy.name.clone(),
                revision: policy.revision.clone(),
                rules: policy.rules.iter().map(rule).collect(),
            });
        }
        let status = format!(r#""policies":{}}}"#, serde_json::to_string(&statuses)?);
        Ok(Self { revision: snapshot.revision.clone(), policies, status })
    }
}

impl Agent {
    fn reported_in_force(&self) -> Option<SnapshotInForce> {
        let (sequence, content) = self.in_force.as_ref()?;
        let (sequence, revision) = (*sequence, content.revision.clone());
        Some(SnapshotInForce { sequence, revision, since_unix_millis: self.since_unix_millis })
    }
}

impl Waiting {
    /// Waits for the end of the round. Returns the time of the last acknowledgement.
    pub(crate) async fn over(self, patience: Duration) -> anyhow::Result<Instant> {
        match timeout(patience, self.over).await {
            Ok(Ok(moment)) => Ok(moment),
            _ => {
                let left = self.round.left.load(Ordering::Acquire);
                bail!("after {patience:?}, {left} agents have not acknowledged {:?}", self.round.wanted)
            }
        }
    }
}

fn rejection(error: RejectionKind, message: String, in_force: Option<SnapshotInForce>) -> String {
    let rejection = Rejection { error, message, faults: Vec::new(), in_force };
    serde_json::to_string(&rejection).expect("a rejection can be serialized")
}

fn unix_millis() -> u64 {
    let since = clock::since_1970();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A snapshot with a rule of scope Fleet.
    fn body(sequence: u64, revision: &str, requests: u64) -> Vec<u8> {
        let limit = serde_json::json!({"name": "second", "strategy": "TokenBucket", "requests": requests,
            "periodMillis": 1000, "burst": requests});
        let shared = serde_json::json!({"store": "operator", "counters": "fleet/all.all", "stamp": sequence,
            "onStoreLoss": "LocalShare", "sharers": 2});
        let rule = serde_json::json!({"name": "all", "action": "Limit", "limits": [limit], "shared": shared});
        let policy = serde_json::json!({"uid": "u", "namespace": "fleet", "name": "all", "revision": revision,
            "mode": "Enforce", "rules": [rule]});
        let snapshot = serde_json::json!({"wireVersion": WIRE_VERSION, "sequence": sequence, "revision": revision,
            "policies": [policy], "stores": [{"name": "operator", "backend": "operator"}]});
        snapshot.to_string().into_bytes()
    }

    #[test]
    fn every_agent_has_an_address_of_its_own() {
        let agents = Agents::new(300);
        for number in [0, 1, 255, 299] {
            assert_eq!(agents.number(Agents::address(number)), Some(number));
        }
        assert_eq!(agents.number(Agents::address(300)), None);
        assert_eq!(agents.number(Ipv4Addr::LOCALHOST), None);
    }

    #[test]
    fn what_is_older_is_refused_and_a_status_can_be_read() {
        let agents = Agents::new(1);
        assert!(agents.take(0, &body(2, "b", 5)).is_ok());
        assert!(agents.take(0, &body(1, "a", 4)).is_err_and(|rejection| rejection.contains("stale")));
        assert!(agents.take(0, b"{").is_err_and(|rejection| rejection.contains("malformed")));
        let mut last = None;
        let status: Status = serde_json::from_str(&agents.status(0, &mut last).unwrap()).unwrap();
        assert_eq!(status.in_force.map(|in_force| in_force.revision).as_deref(), Some("b"));
        assert_eq!(status.policies[0].rules[0].name, "all");
        assert_eq!(agents.status(0, &mut last), None);
        assert!(agents.take(0, &body(3, "c", 6)).is_ok());
        assert!(agents.status(0, &mut last).is_some());
    }

    #[tokio::test]
    async fn a_round_is_over_when_the_last_one_has_it_and_not_before() {
        let agents = Agents::new(2);
        let waiting = agents.await_acknowledgements(Wanted::Limit("all".to_owned(), 5), 2);
        let put = |number, sequence, revision: &str, requests| {
            agents.take(number, &body(sequence, revision, requests)).expect("newer").given();
        };
        put(0, 1, "a", 4);
        put(0, 2, "b", 5);
        put(0, 3, "b", 5);
        put(1, 1, "a", 4);
        assert_eq!(waiting.round.left.load(Ordering::Acquire), 1);
        put(1, 2, "b", 5);
        assert!(waiting.over(Duration::from_secs(5)).await.is_ok());
    }
}
