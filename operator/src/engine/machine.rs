//! Decides what the engine does next: a pure function of the events and their times. The machine does no I/O, reads no
//! clock and never waits; [`Engine`](super::Engine) does.
//!
//! The machine owns the whole state of the operator. It pushes nothing before the world is complete, because a pod
//! whose policies are not listed yet would lose its limits. Without a term of leadership it applies changes, compiles
//! and plans in the same way, but contacts no agent and reports nothing. When a term begins, it pushes the whole plan.
//! A simulation (`simulation_tests.rs`) tests the machine with slow and lost messages, failing writes and other
//! leaders, against a definition of each status (`oracle_tests.rs`).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use weir_api::RateLimitStoreStatus;

use super::event::{EngineAction, EngineEvent, EngineMoment};
use crate::{
    compile::{Compiler, Uncompiled},
    engine::policy_record::PolicyRecord,
    leader::Term,
    link::{Observation, Seen},
    observed::Observed,
    plan::{Content, Plan, Planned, content_for_pod},
    report::{Message, WrittenStatus},
    traffic::Traffic,
    world::{AgentAddress, Change, DirtySet, Membership, ObjectKey, Pod, StoredStatus, Update, World},
};

/// The time for which changes are gathered, to be handled together.
const GATHER: Duration = Duration::from_millis(5);
/// After a report, the engine does other work for this multiple of the duration of the report.
const REST: u32 = 4;

#[derive(Debug)]
pub(super) struct EngineMachine {
    /// The minimum time between two status writes that change only traffic counts.
    traffic_interval: Duration,
    /// The term and the time at which it began, if this operator leads.
    pub(super) term: Option<(Term, Instant)>,

    pub(super) world: World,
    pub(super) complete_at: Option<Instant>,
    /// The changes since the last plan.
    dirty: DirtySet,
    /// The lost namespaces that are listed again since the last plan. Their policies are not compiled yet.
    regained: BTreeSet<Arc<str>>,
    /// The policies that changed since the last report. Only these are reported.
    pub(super) dirty_policies: BTreeSet<ObjectKey>,
    /// True after a tick: the traffic of the last minute may have changed for every policy.
    pub(super) ticked: bool,
    pub(super) compiler: Compiler,
    /// The policies that are left to compile before the next plan, or `None` if nothing or everything is compiled. A
    /// change of the world starts again, because the plan needs everything that changed.
    uncompiled: Option<Uncompiled>,
    pub(super) plan: Plan,
    /// The last results from each agent that has a link.
    pub(super) observed: Observed,
    /// The pods that are not known to enforce all their policies. Only these are judged one by one.
    pub(super) unconverged_pods: BTreeSet<ObjectKey>,
    pub(super) traffic: Traffic,
    pub(super) policies: HashMap<ObjectKey, PolicyRecord>,
    /// The stored statuses of policies that have no record yet.
    found: HashMap<ObjectKey, StoredStatus>,
    /// The stores that changed since the last report, or whose state an agent reported since.
    pub(super) dirty_stores: BTreeSet<ObjectKey>,
    /// The UIDs of the pods that the counter of scope Fleet expects.
    fleet_pods: HashMap<ObjectKey, Arc<str>>,
    pub(super) store_statuses: HashMap<ObjectKey, KnownStoreStatus>,
    /// The time of the first change that is not planned yet.
    changed_at: Option<Instant>,
    /// The time of the next planning and reporting.
    plan_at: Option<Instant>,
    /// The earliest time of the next report. It leaves time for other work while thousands of pods answer one by one.
    report_at: Option<Instant>,
}

/// The current status of a store as far as known.
#[derive(Debug, Default)]
pub(super) struct KnownStoreStatus {
    /// The last status from the source.
    stored: Option<Box<RateLimitStoreStatus>>,
    /// The last status that this operator has sent in this term, if the source has reported none since.
    sent: Option<RateLimitStoreStatus>,
}

impl KnownStoreStatus {
    pub(super) fn newest(&self) -> Option<&RateLimitStoreStatus> {
        self.sent.as_ref().or(self.stored.as_deref())
    }

    pub(super) fn send(&mut self, status: RateLimitStoreStatus) {
        self.sent = Some(status);
    }
}

impl EngineMachine {
    /// Returns a machine without any state.
    pub(super) fn new(traffic_interval: Duration) -> Self {
        Self {
            traffic_interval,
            term: None,
            world: World::default(),
            complete_at: None,
            dirty: DirtySet::default(),
            regained: BTreeSet::new(),
            dirty_policies: BTreeSet::new(),
            ticked: false,
            compiler: Compiler::default(),
            uncompiled: None,
            plan: Plan::default(),
            observed: Observed::default(),
            unconverged_pods: BTreeSet::new(),
            traffic: Traffic::default(),
            policies: HashMap::new(),
            found: HashMap::new(),
            dirty_stores: BTreeSet::new(),
            fleet_pods: HashMap::new(),
            store_statuses: HashMap::new(),
            changed_at: None,
            plan_at: None,
            report_at: None,
        }
    }

    /// Returns the time at which the engine must report [`EngineEvent::Due`], unless another event comes first.
    pub(super) fn due(&self) -> Option<Instant> {
        self.plan_at
    }

    /// Returns true if some policies are compiled and others are not. Then the engine should let other tasks run, and pass
    /// no update: a user who changes policies without end would delay the plan.
    pub(super) fn is_compiling(&self) -> bool {
        self.uncompiled.is_some()
    }

    /// Returns the content that a pod has to enforce, even before it exists, or `None` before the world is complete,
    /// while policies are compiled, and in a namespace whose policies are not known.
    pub(super) fn content_for_pod(&self, namespace: &str, membership: &Membership) -> Option<Content> {
        self.complete_at
            .filter(|_| !self.is_compiling() && !self.world.lost.contains(namespace))
            .map(|_| content_for_pod(&self.world.workloads, self.compiler.compiled(), namespace, membership))
    }

    /// Handles an event, and returns the actions to perform.
    pub(super) fn handle(&mut self, event: EngineEvent, at: EngineMoment) -> Vec<EngineAction> {
        let (mut actions, now) = (Vec::new(), at.now);
        match event {
            EngineEvent::Term(term) => self.start_term(now, term, &mut actions),
            EngineEvent::Update(update) => self.apply_update(now, update, &mut actions),
            EngineEvent::Observed(observation) => self.observe(now, &observation),
            EngineEvent::Written(written) => self.record_write(now, written),
            EngineEvent::Tick => {
                self.traffic.expire(now);
                self.ticked = true;
                self.plan_and_report(now, &mut actions);
            }
            EngineEvent::Due => self.plan_and_report(now, &mut actions),
            EngineEvent::WriteStatuses(usage) => self.report(at, &usage, &mut actions),
            EngineEvent::StatusesWritten(took) => self.report_at = Some(now + REST * took),
        }
        actions
    }

    /// Begins a term, or becomes a standby.
    fn start_term(&mut self, now: Instant, term: Option<Term>, actions: &mut Vec<EngineAction>) {
        // Links and their results end with their term, because another leader may push in the meantime.
        self.observed = Observed::default();
        self.unconverged_pods.clear();
        self.traffic = Traffic::default();
        self.fleet_pods.clear();
        // A policy may have been replaced by one of the same name since the last plan. The new policy has its own
        // status.
        let is_same = |key: &ObjectKey, uid: &str| self.world.policies.get(key).is_some_and(|it| it.uid == uid);
        let records = self.policies.drain().filter(|(key, record)| is_same(key, &record.uid));
        self.found.extend(records.map(|(key, record)| (key, record.into_stored())));
        self.term = term.clone().map(|term| (term, now));
        actions.push(EngineAction::StartTerm(term));
        // The writer drops what was sent in the last term.
        self.store_statuses.values_mut().for_each(|known| known.sent = None);
        self.uncompiled = None;
        // In the next term, each pod needs its first push, and each policy its first status.
        self.dirty.pods.extend(self.world.pods.keys().chain(self.world.leaving.keys()).cloned());
        self.dirty.policies.extend(self.world.policies.keys().cloned());
        self.dirty_stores.extend(self.world.stores.keys().cloned());
        self.changed_at.get_or_insert(now);
        self.plan_at = Some(now);
    }

    /// Applies an update. The operator's own status writes arrive here, too, and need no plan.
    fn apply_update(&mut self, now: Instant, update: Update, actions: &mut Vec<EngineAction>) {
        for mut change in update.changes {
            match &mut change {
                Change::Policy(key, Some((policy, stored))) => {
                    let stored = std::mem::take(stored);
                    match self.policies.get_mut(key).filter(|record| record.uid == policy.uid) {
                        Some(record) => record.record_source_status(now, stored),
                        None => drop(self.found.insert(key.clone(), stored)),
                    }
                }
                Change::Policy(key, None) => drop(self.found.remove(key)),
                Change::Store(key, shown) => {
                    // The stored status can come from another leader, or be older than the last write. Then the next
                    // report writes the status once more.
                    let stored = shown.as_mut().and_then(|(_, status)| status.take());
                    self.store_statuses.insert(key.clone(), KnownStoreStatus { stored, sent: None });
                    self.dirty_stores.insert(key.clone());
                }
                Change::Lost(namespace, false) => {
                    // Until the next plan, new pods would get none of its policies.
                    self.regained.insert(namespace.clone());
                    self.changed_at.get_or_insert(now);
                    continue;
                }
                Change::Lost(namespace, true) => drop(self.regained.remove(namespace)),
                Change::Pod(..) | Change::Leaving(..) | Change::Workload(..) | Change::Service(..) => {}
            }
            if self.world.apply(change, &mut self.dirty) {
                self.changed_at.get_or_insert(now);
                // This list is made again, without the policies that are already compiled.
                self.uncompiled = None;
            }
        }
        if update.complete && self.complete_at.is_none() {
            self.complete_at = Some(now);
            self.changed_at.get_or_insert(now);
            actions.push(EngineAction::LogListed { policies: self.world.policies.len(), pods: self.world.pods.len() });
        }
        if self.changed_at.is_some() {
            let soon = now + GATHER;
            self.plan_at = Some(self.plan_at.map_or(soon, |plan_at| plan_at.min(soon)));
        }
    }

    fn record_write(&mut self, now: Instant, written: WrittenStatus) {
        if let Some(record) = self.policies.get_mut(&written.key).filter(|record| record.uid == written.uid) {
            record.written(now, written.number, written.stored);
        }
    }

    fn observe(&mut self, now: Instant, observation: &Observation) {
        let Observation { pod: key, at, .. } = observation;
        let is_current = self.world.pods.get(key).is_some_and(|pod| pod.uid == observation.pod_uid);
        // A link of an earlier term may report a state that another leader has overwritten.
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
        self.record_convergence(key);
        for policy in self.plan.cohort(key).into_iter().flat_map(|cohort| &cohort.policies) {
            if !self.dirty_policies.contains(policy) {
                self.dirty_policies.insert(policy.clone());
            }
        }
        let soon = now + GATHER;
        self.plan_at.get_or_insert(self.report_at.map_or(soon, |report_at| report_at.max(soon)));
    }

    /// Records whether the pod must be judged one by one.
    fn record_convergence(&mut self, key: &ObjectKey) {
        let (pod, cohort) = (self.world.pods.get(key), self.plan.cohort(key));
        let is_open = pod.zip(cohort).is_some_and(|(pod, cohort)| {
            // A policy without rules in force is in no content. A policy that has grown too large is in it with its old
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

    /// Plans the changes and requests a report. If it is too early for a report, schedules the next attempt.
    fn plan_and_report(&mut self, now: Instant, actions: &mut Vec<EngineAction>) {
        self.plan_at = None;
        if self.complete_at.is_none() {
            return;
        }
        if let Some(changed_at) = self.changed_at {
            if self.compile_some() {
                // Without a report in between: it would judge policies that are not planned yet.
                self.plan_at = Some(now);
                return;
            }
            self.changed_at = None;
            let mut dirty = std::mem::take(&mut self.dirty);
            let Planned { mut pods, mut policies } = self.plan.update(&self.world, self.compiler.compiled(), &dirty);
            for namespace in std::mem::take(&mut self.regained) {
                self.world.apply(Change::Lost(namespace, false), &mut dirty);
            }
            // The rules of scope Shared and Fleet contain the number of pods, which only the plan can compute.
            let targeted = |key: &ObjectKey| self.plan.targets(key).map_or(0, |targets| targets.pods);
            let recounted = self.compiler.count_pods(&policies, targeted);
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
            actions.push(EngineAction::Ready);
        }
        match self.report_at.filter(|report_at| now < *report_at) {
            _ if self.term.is_none() => {}
            None => actions.push(EngineAction::WriteStatuses),
            too_early => self.plan_at = too_early,
        }
    }

    /// Compiles some of the changed policies. Returns false once all are compiled.
    fn compile_some(&mut self) -> bool {
        // If a policy has a record, the compiler already has a newer generation than its status.
        let stored_good = |key: &ObjectKey| self.found.get(key)?.status.as_ref()?.last_known_good.as_ref();
        let uncompiled = self.uncompiled.take();
        let mut uncompiled = uncompiled.unwrap_or_else(|| self.compiler.uncompiled(&self.world, &mut self.dirty));
        let is_left = self.compiler.compile_some(&self.world, &mut uncompiled, stored_good);
        self.uncompiled = is_left.then_some(uncompiled);
        is_left
    }

    /// Passes the planned content to the links of these pods.
    fn push(&mut self, now: Instant, mut pods: BTreeSet<ObjectKey>, actions: &mut Vec<EngineAction>) {
        // The interval is set for the larger number of links first, so that the new links do not all send at the same
        // time.
        actions.push(EngineAction::SpreadStatuses(self.observed.agents() + pods.len()));
        while let Some(pod) = pods.pop_first().or_else(|| self.observed.take_uncontested()) {
            self.expect(&pod, actions);
            let planned = self.world.pods.get(&pod).zip(self.plan.cohort(&pod));
            let action = if let Some((Pod { uid, agent: AgentAddress::At(url), .. }, cohort)) = planned {
                let content = cohort.content.clone();
                if self.observed.track(now, &pod, uid, url) {
                    EngineAction::Link { pod: pod.clone(), uid: uid.clone(), url: url.clone(), content }
                } else {
                    EngineAction::Push { pod: pod.clone(), content }
                }
            } else {
                self.observed.forget(&pod);
                self.traffic.forget(&pod);
                EngineAction::Unlink(pod.clone())
            };
            self.record_convergence(&pod);
            actions.push(action);
        }
        actions.push(EngineAction::Planned);
        actions.push(EngineAction::SpreadStatuses(self.observed.agents()));
    }

    /// Informs the counter of scope Fleet about a pod. Until a pod that is being deleted is gone, the counter expects
    /// it with the rules that its agent had: an agent that is cut off continues with them.
    fn expect(&mut self, pod: &ObjectKey, actions: &mut Vec<EngineAction>) {
        let leaving = self.world.leaving.get(pod);
        let leave = |leaving: &Pod| EngineAction::Leave { uid: leaving.uid.clone(), has_run: leaving.has_run };
        if let Some(leaving) = leaving.filter(|leaving| self.fleet_pods.get(pod) == Some(&leaving.uid)) {
            return actions.push(leave(leaving));
        }
        let planned = self.world.pods.get(pod).zip(self.plan.cohort(pod).map(|cohort| cohort.content.clone()));
        let known = planned.or_else(|| leaving.map(|leaving| (leaving, self.content_of_leaving(pod, leaving))));
        let with_agent = known.filter(|(known, _)| matches!(known.agent, AgentAddress::At(_)));
        let counted = with_agent.clone().filter(|(_, content)| !content.fleet.is_empty());
        let before = match &counted {
            Some((known, _)) => self.fleet_pods.insert(pod.clone(), known.uid.clone()),
            None => self.fleet_pods.remove(pod),
        };
        let expect = |uid: Arc<str>, known: Option<(&Pod, Arc<Content>)>| {
            let has_run = known.as_ref().is_none_or(|(known, _)| known.has_run);
            EngineAction::Expect { name: pod.name.clone(), uid, has_run, content: known.map(|(_, content)| content) }
        };
        if let Some(uid) = before.filter(|before| counted.as_ref().is_none_or(|(known, _)| known.uid != *before)) {
            let still = with_agent.filter(|(known, _)| known.uid == uid);
            actions.push(expect(uid, still));
        }
        if let Some((known, content)) = counted {
            actions.push(expect(known.uid.clone(), Some((known, content))));
            actions.extend(leaving.map(leave));
        }
    }

    /// Returns the content that a pod would have to enforce if it were not being deleted.
    fn content_of_leaving(&self, pod: &ObjectKey, leaving: &Pod) -> Arc<Content> {
        let (compiled, namespace) = (self.compiler.compiled(), &*pod.namespace);
        // Usually there are other pods of its workload.
        self.plan.content_of(namespace, &leaving.membership).unwrap_or_else(|| {
            Arc::new(content_for_pod(&self.world.workloads, compiled, namespace, &leaving.membership))
        })
    }

    fn follow_policies(&mut self, changed_at: Instant, dirty: &BTreeSet<ObjectKey>, actions: &mut Vec<EngineAction>) {
        for key in dirty {
            let Some(compiled) = self.compiler.compiled().get(key) else {
                if self.policies.remove(key).is_some() {
                    actions.push(EngineAction::Send(Message::Removed(key.clone())));
                }
                continue;
            };
            match self.policies.get_mut(key).filter(|record| record.uid == compiled.uid) {
                Some(record) => record.announcer.want(changed_at, compiled.policy.as_ref()),
                None => {
                    let found = self.found.remove(key).unwrap_or_default();
                    let record = PolicyRecord::begin(changed_at, compiled, self.traffic_interval, found);
                    self.policies.insert(key.clone(), record);
                }
            }
        }
        self.found.clear();
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod cluster;

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod oracle;

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod simulation;
