//! Counts the limits of scope Fleet: one limit for all pods of a policy, without a store.
//!
//! The leader counts. Agents send it the questions that they send to a store in scope Shared, over their channels, and
//! the leader answers as a store does (`weir-seats`). A pure machine (`fleet/counter.rs`) decides, and owns the counts.
//! Each term of leadership has its own machine. A new one first collects the levels that agents know
//! (`fleet/pods.rs`), and it keeps the shares of cut-off pods free. An empty answer is a *release*: it ends the share of
//! the agent. `docs/design/fleet.md` explains the rules.
//!
//! A counter admits nothing without proof: outside of its term, while it collects levels, or for a rule that the pod
//! does not have, it refuses.

mod counter;
mod pods;
mod room;
mod unknown;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;
use weir_wire::{Answer, LevelsSent, Outcome, Question};

pub use self::{
    counter::Counter,
    unknown::{FewPods, UnknownUse, UsedUp},
};
use crate::{clock, leader::Term, metrics::Metrics, plan::Content};

/// What the counter keeps, for statuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By the namespace and the name of each policy: how many of its pods may decide with their share, and into how many
    /// shares they divide the limits.
    pub policies: HashMap<Arc<str>, Vec<(u32, u32)>>,
    /// The number of keys, by the name of the counters.
    pub keys: HashMap<String, usize>,
    /// The limits that count as used up, if there are any.
    pub used_up: Option<UsedUp>,
    /// By the namespace and the name of each policy: its pods whose deletion does not end, while their agents may decide
    /// with their share.
    pub leaving: HashMap<Arc<str>, FewPods>,
}

/// The counter of one term, which all links share.
#[derive(Debug)]
pub struct FleetCounter {
    counter: Mutex<Counter>,
    /// True once agents that have sent their levels can end their shares.
    has_levels: watch::Sender<bool>,
    metrics: Metrics,
}

impl FleetCounter {
    /// Returns the counter of a term that begins now.
    pub fn new(term: Term, metrics: Metrics) -> Arc<Self> {
        let counter = Counter::new(term, clock::since_boot(), clock::unix_micros());
        Arc::new(Self { counter: Mutex::new(counter), has_levels: watch::Sender::new(false), metrics })
    }

    /// Sets the content that the engine has planned for the pod with this UID and name. `None` if the pod is gone.
    /// `has_run` is false if its agent has never run.
    pub fn expect(&self, pod: &str, name: &Arc<str>, has_run: bool, content: Option<&Content>) {
        self.with(|counter, now| match content {
            Some(content) => {
                counter.expect(pod, &content.fleet, has_run, now);
                counter.name(pod, name);
            }
            None => counter.gone(pod, now),
        });
    }

    /// Records that the pod with this UID is being deleted. The counter expects it until it is gone.
    pub fn leave(&self, pod: &str, has_run: bool) {
        self.with(|counter, now| counter.leave(pod, has_run, now));
    }

    /// Records that the engine has planned all pods that it knows.
    pub fn planned(&self) {
        self.with(Counter::planned);
    }

    /// Handles the passage of time.
    pub fn tick(&self) {
        self.with(Counter::advance);
    }

    /// Returns what the counter keeps.
    pub fn usage(&self) -> Usage {
        self.with(Counter::usage)
    }

    /// Registers a new channel to this pod.
    pub fn connected(self: &Arc<Self>, pod: &Arc<str>) -> Presence {
        let number = self.with(|counter, now| counter.connected(pod, now));
        Presence { fleet: self.clone(), pod: pod.clone(), number, has_levels: self.has_levels.subscribe() }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Counter, Duration) -> T) -> T {
        let mut counter = self.lock();
        let now = clock::since_boot();
        let result = change(&mut counter, now);
        let (is_starting, has_levels) = (counter.is_starting(now), counter.has_levels());
        let (keys, absent) = (counter.keys(), counter.absent());
        drop(counter);
        self.metrics.set_fleet(keys, absent, is_starting);
        self.has_levels.send_if_modified(|before| std::mem::replace(before, has_levels) != has_levels);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Counter> {
        self.counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The registration of one agent's channel in the counter. Dropping it records that the channel has ended.
#[derive(Debug)]
pub struct Presence {
    fleet: Arc<FleetCounter>,
    pod: Arc<str>,
    number: u64,
    has_levels: watch::Receiver<bool>,
}

impl Presence {
    /// Records a message from the agent. Without another one within `silence`, the pod counts as cut off. Returns true
    /// if the agent must get empty answers now, which end its share.
    pub fn record_message(&self, silence: Duration) -> bool {
        self.fleet.with(|counter, now| {
            counter.record_message(&self.pod, self.number, silence, now);
            counter.release(&self.pod, self.number, now)
        })
    }

    /// Returns true if the agent must get empty answers now, which end its share.
    pub fn release(&self) -> bool {
        self.fleet.with(|counter, now| counter.release(&self.pod, self.number, now))
    }

    /// Records that the agent has sent the levels that it knows.
    pub fn levels_sent(&self, sent: LevelsSent) {
        self.fleet.with(|counter, now| counter.levels_sent(&self.pod, self.number, sent, now));
    }

    /// Records that the agent has acknowledged this content.
    pub fn acknowledged(&self, content: &Content) {
        self.fleet.with(|counter, now| counter.acknowledged(&self.pod, self.number, &content.fleet, now));
    }

    /// Answers questions. `contents` are the contents that the agent can have in force.
    pub fn answer(&self, questions: &[Question], contents: [Option<&Content>; 2]) -> Vec<Answer> {
        let rules = contents.map(|content| content.map_or(&[][..], |content| &content.fleet));
        let answers = self.fleet.with(|counter, now| counter.answer(questions, rules, now));
        let count = |is: fn(&Outcome) -> bool| answers.iter().filter(|answer| is(&answer.outcome)).count();
        let counted = count(|outcome| matches!(outcome, Outcome::Counted(_)));
        let refused = count(|outcome| matches!(outcome, Outcome::Refused(_)));
        self.fleet.metrics.asked(counted, refused);
        answers
    }

    /// Waits until the counter has collected the levels of agents.
    pub async fn levels_collected(&mut self) {
        let is_over = self.has_levels.changed().await.is_err();
        if is_over {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.fleet.with(|counter, now| counter.ended(&self.pod, self.number, now));
    }
}

#[cfg(test)]
#[path = "fleet/simulation_tests.rs"]
mod simulation;
