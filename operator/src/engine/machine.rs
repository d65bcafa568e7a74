//! Decides what the engine does next: a pure function of the events and their times. It contacts nobody, reads no
//! clock and never waits. [`Engine`](super::Engine) does that for it.
//!
//! The machine owns everything that the operator knows. It pushes nothing before the world is complete, because a pod
//! whose policies are not listed yet would lose its limits. Without a term of leadership it takes in, compiles and
//! plans in the same way, but contacts no agent and reports nothing. When a term begins, it pushes everything that is
//! planned. A simulation (`simulation_tests.rs`) tests it with slow and lost messages, failing writes and other
//! leaders, against a definition of each status (`oracle_tests.rs`).

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;
use weir_api::RateLimitStoreStatus;

use super::event::{Action, Event, Moment};
use crate::{
    compile::Compiler,
    leader::Term,
    link::{Observation, Seen},
    observed::Observed,
    plan::{Content, Plan, Planned, foresee},
    policy_record::PolicyRecord,
    report::{Message, WrittenStatus},
    traffic::Traffic,
    world::{Agent, Change, DirtySet, ObjectKey, Pod, StoredStatus, Update, World},
};

/// Changes within this time are handled together.
const GATHER: Duration = Duration::from_millis(5);
/// After a report, the engine does other work for this many times as long as the report took.
const REST: u32 = 4;

/// The state of the engine.
#[derive(Debug)]
pub(super) struct Machine {
    /// The minimum time between two status writes that only update traffic.
    traffic_interval: Duration,
    /// The term and its begin, if this operator leads.
    pub(super) term: Option<(Term, Instant)>,

    pub(super) world: World,
    /// When the world became complete.
    pub(super) complete_at: Option<Instant>,
    /// The changes since the last plan.
    dirty: DirtySet,
    /// The policies that changed since the last report. Only these are reported.
    pub(super) dirty_policies: BTreeSet<ObjectKey>,
    /// Time has passed, so every policy's traffic of the last minute may have changed.
    pub(super) ticked: bool,
    pub(super) compiler: Compiler,
    pub(super) plan: Plan,
    /// What is known of each agent that has a link.
    pub(super) observed: Observed,
    /// The pods that are not known to enforce everything that they should. Only these are judged one by one.
    pub(super) unconverged_pods: BTreeSet<ObjectKey>,
    pub(super) traffic: Traffic,
    pub(super) policies: HashMap<ObjectKey, PolicyRecord>,
    /// The stored statuses of policies that have no record yet.
    found: HashMap<ObjectKey, StoredStatus>,
    /// The stores that changed since the last report, or of which agents said something new.
    pub(super) dirty_stores: BTreeSet<ObjectKey>,
    /// The statuses of stores, as last shown or sent.
    pub(super) store_statuses: HashMap<ObjectKey, RateLimitStoreStatus>,
    /// When the first change was seen that is not planned yet.
    changed_at: Option<Instant>,
    /// When to plan and report.
    look_at: Option<Instant>,
    /// The earliest time of the next report. It leaves time for other work while thousands of pods answer one by one.
    report_at: Option<Instant>,
}

impl Machine {
    /// A machine without any knowledge.
    pub(super) fn new(traffic_interval: Duration) -> Self {
        Self {
            traffic_interval,
            term: None,
            world: World::default(),
            complete_at: None,
            dirty: DirtySet::default(),
            dirty_policies: BTreeSet::new(),
            ticked: false,
            compiler: Compiler::default(),
            plan: Plan::default(),
            observed: Observed::default(),
            unconverged_pods: BTreeSet::new(),
            traffic: Traffic::default(),
            policies: HashMap::new(),
            found: HashMap::new(),
            dirty_stores: BTreeSet::new(),
            store_statuses: HashMap::new(),
            changed_at: None,
            look_at: None,
            report_at: None,
        }
    }

    /// When to report [`Event::Due`], unless another event comes first.
    pub(super) fn due(&self) -> Option<Instant> {
        self.look_at
    }

    /// What a new pod will have to enforce. Before the world is complete there is no answer.
    pub(super) fn foresee(&self, namespace: &str, labels: BTreeMap<String, String>) -> Option<Content> {
        self.complete_at.map(|_| foresee(&self.world.workloads, self.compiler.compiled(), namespace, labels))
    }

    /// Handles an event and returns what to do.
    pub(super) fn handle(&mut self, event: Event, at: Moment) -> Vec<Action> {
        let (mut actions, now) = (Vec::new(), at.now);
        match event {
            Event::Term(term) => self.serve(now, term, &mut actions),
            Event::Update(update) => self.take_in(now, update, &mut actions),
            Event::Observed(observation) => self.observe(now, &observation),
            Event::Landed(landed) => self.land(now, landed),
            Event::Tick => {
                self.traffic.expire(now);
                self.ticked = true;
                self.look(now, &mut actions);
            }
            Event::Due => self.look(now, &mut actions),
            Event::Report => self.report(at, &mut actions),
            Event::Reported(took) => self.report_at = Some(now + REST * took),
        }
        actions
    }

    /// Begins a term, or becomes a standby.
    fn serve(&mut self, now: Instant, term: Option<Term>, actions: &mut Vec<Action>) {
        // Links and their results end with their term: another leader may have pushed since.
        self.observed = Observed::default();
        self.unconverged_pods.clear();
        self.traffic = Traffic::default();
        // A policy may have been replaced by one of the same name since the last plan. It has its own status.
        let is_same = |key: &ObjectKey, uid: &str| self.world.policies.get(key).is_some_and(|it| it.uid == uid);
        let records = self.policies.drain().filter(|(key, record)| is_same(key, &record.uid));
        self.found.extend(records.map(|(key, record)| (key, record.leave())));
        self.term = term.clone().map(|term| (term, now));
        actions.push(Action::Serve(term));
        // In the next term, each pod needs its first push, and each policy its first status.
        self.dirty.pods.extend(self.world.pods.keys().cloned());
        self.dirty.policies.extend(self.world.policies.keys().cloned());
        self.dirty_stores.extend(self.world.stores.keys().cloned());
        self.changed_at.get_or_insert(now);
        self.look_at = Some(now);
    }

    /// Takes in an update. The operator's own status writes arrive here, too, and need no plan.
    fn take_in(&mut self, now: Instant, update: Update, actions: &mut Vec<Action>) {
        for mut change in update.changes {
            match &mut change {
                Change::Policy(key, Some((policy, stored))) => {
                    let stored = std::mem::take(stored);
                    match self.policies.get_mut(key).filter(|record| record.uid == policy.uid) {
                        Some(record) => record.shown(now, stored),
                        None => drop(self.found.insert(key.clone(), stored)),
                    }
                }
                Change::Policy(key, None) => drop(self.found.remove(key)),
                Change::Store(key, shown) => {
                    // The status of a store of which nothing was sent yet, perhaps from an earlier leader.
                    let stored = shown.as_mut().and_then(|(_, status)| status.take());
                    if let Some(status) = stored.filter(|_| !self.store_statuses.contains_key(key)) {
                        self.store_statuses.insert(key.clone(), *status);
                    }
                    self.dirty_stores.insert(key.clone());
                }
                Change::Pod(..) | Change::Workload(..) | Change::Service(..) => {}
            }
            if self.world.apply(change, &mut self.dirty) {
                self.changed_at.get_or_insert(now);
            }
        }
        if update.complete && self.complete_at.is_none() {
            self.complete_at = Some(now);
            self.changed_at.get_or_insert(now);
            actions.push(Action::Listed { policies: self.world.policies.len(), pods: self.world.pods.len() });
        }
        if self.changed_at.is_some() {
            let soon = now + GATHER;
            self.look_at = Some(self.look_at.map_or(soon, |look_at| look_at.min(soon)));
        }
    }

    fn land(&mut self, now: Instant, landed: WrittenStatus) {
        if let Some(record) = self.policies.get_mut(&landed.key).filter(|record| record.uid == landed.uid) {
            record.landed(now, landed.number, landed.stored);
        }
    }

    fn observe(&mut self, now: Instant, observation: &Observation) {
        let Observation { pod: key, at, .. } = observation;
        let is_current = self.world.pods.get(key).is_some_and(|pod| pod.uid == observation.pod_uid);
        // Another leader may have overwritten what a link of an earlier term reported.
        if !is_current || self.term.as_ref().is_none_or(|(_, since)| at < since) {
            return;
        }
        if let Seen::Status(status) = &observation.seen {
            self.traffic.observe(*at, key, status);
        }
        let wanted = self.plan.cohort(key).map(|cohort| &cohort.content);
        if !self.observed.observe(observation, wanted) {
            return;
        }
        self.settle(key);
        for policy in self.plan.cohort(key).into_iter().flat_map(|cohort| &cohort.policies) {
            if !self.dirty_policies.contains(policy) {
                self.dirty_policies.insert(policy.clone());
            }
        }
        let soon = now + GATHER;
        self.look_at.get_or_insert(self.report_at.map_or(soon, |report_at| report_at.max(soon)));
    }

    /// Records whether the pod has to be judged.
    fn settle(&mut self, key: &ObjectKey) {
        let (pod, cohort) = (self.world.pods.get(key), self.plan.cohort(key));
        let is_open = pod.zip(cohort).is_some_and(|(pod, cohort)| {
            // A policy without rules in force is in no content. One that has grown too large is in it with its old
            // rules.
            let all_have_rules = cohort.policies.len() == cohort.content.policies.len() && cohort.left_out.is_empty();
            let has_converged = all_have_rules && self.observed.has_converged(key, pod, &cohort.content);
            !cohort.policies.is_empty() && !has_converged
        });
        if is_open {
            self.unconverged_pods.insert(key.clone());
        } else {
            self.unconverged_pods.remove(key);
        }
    }

    /// Plans the changes and requests a report. If it is too early for a report, sets when to try again.
    fn look(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.look_at = None;
        if self.complete_at.is_none() {
            return;
        }
        if let Some(changed_at) = self.changed_at.take() {
            let mut dirty = std::mem::take(&mut self.dirty);
            // For policies with a record, the engine's memory is newer than any status.
            let kept = |key: &ObjectKey| self.found.get(key)?.status.as_ref()?.last_known_good.as_ref();
            self.compiler.update(&self.world, &mut dirty, kept);
            let Planned { mut pods, mut policies } = self.plan.update(&self.world, self.compiler.compiled(), &dirty);
            // The rules of scope Shared name the number of pods, which only the plan knows.
            let targeted = |key: &ObjectKey| self.plan.targets(key).map_or(0, |targets| targets.pods);
            let recounted = self.compiler.count_pods(&self.world, &policies, targeted);
            if !recounted.is_empty() {
                dirty.policies.extend(recounted.iter().cloned());
                let recounted = DirtySet { policies: recounted, ..DirtySet::default() };
                let again = self.plan.update(&self.world, self.compiler.compiled(), &recounted);
                pods.extend(again.pods);
                policies.extend(again.policies);
            }
            if self.term.is_some() {
                self.follow_policies(changed_at, &dirty.policies, actions);
                self.push(now, pods, actions);
                self.dirty_policies.append(&mut policies);
            }
            actions.push(Action::Ready);
        }
        match self.report_at.filter(|report_at| now < *report_at) {
            _ if self.term.is_none() => {}
            None => actions.push(Action::Report),
            too_early => self.look_at = too_early,
        }
    }

    /// Tells the links of these pods what is planned.
    fn push(&mut self, now: Instant, pods: BTreeSet<ObjectKey>, actions: &mut Vec<Action>) {
        // Counts the links before and after, because the new ones must not all ask at once.
        actions.push(Action::Spread(self.observed.agents() + pods.len()));
        for pod in pods {
            let planned = self.world.pods.get(&pod).zip(self.plan.cohort(&pod));
            let action = if let Some((Pod { uid, agent: Agent::At(url), .. }, cohort)) = planned {
                let content = cohort.content.clone();
                if self.observed.expect(now, &pod, uid, url) {
                    Action::Link { pod: pod.clone(), uid: uid.clone(), url: url.clone(), content }
                } else {
                    Action::Push { pod: pod.clone(), content }
                }
            } else {
                self.observed.forget(&pod);
                self.traffic.forget(&pod);
                Action::Unlink(pod.clone())
            };
            self.settle(&pod);
            actions.push(action);
        }
        actions.push(Action::Spread(self.observed.agents()));
    }

    fn follow_policies(&mut self, changed_at: Instant, dirty: &BTreeSet<ObjectKey>, actions: &mut Vec<Action>) {
        for key in dirty {
            let Some(policy) = self.compiler.compiled().get(key) else {
                if self.policies.remove(key).is_some() {
                    actions.push(Action::Send(Message::Removed(key.clone())));
                }
                continue;
            };
            match self.policies.get_mut(key).filter(|record| record.uid == policy.uid) {
                Some(record) => record.announcer.want(changed_at, policy.rules.as_ref()),
                None => {
                    let found = self.found.remove(key).unwrap_or_default();
                    let record = PolicyRecord::begin(changed_at, policy, self.traffic_interval, found);
                    self.policies.insert(key.clone(), record);
                }
            }
        }
        self.found.clear();
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod oracle;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
