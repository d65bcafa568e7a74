//! The main loop: takes in changes of the world, pushes snapshots and sends reports.
//!
//! The engine owns all state and is its only user. Everything that it calls is pure or does not block. It pushes
//! nothing before the world is complete, because a pod whose policies are not listed yet would lose its limits.
//!
//! Without a term of leadership it watches, compiles and plans in the same way, but contacts no agent and reports
//! nothing. When a term begins, it pushes everything that is planned.

mod report;

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::compile::Compiler;
use crate::inject::Question;
use crate::leader::{Term, TermReceiver};
use crate::link::{Link, Observation, Seen, Shared};
use crate::metrics::Metrics;
use crate::observed::Observed;
use crate::plan::{Plan, Planned, foresee};
use crate::policy_record::PolicyRecord;
use crate::report::{Message, WrittenStatus};
use crate::telemetry::{Heartbeat, Ready};
use crate::traffic::Traffic;
use crate::world::{Agent, Change, DirtySet, ObjectKey, StoredStatus, Update, World};

/// Changes within this time are handled together.
const GATHER: Duration = Duration::from_millis(5);
/// After a report, the engine does other work for this many times as long as the report took.
const REST: u32 = 4;
/// How often to check traffic and the passing of time.
const TICK: Duration = Duration::from_millis(500);

/// The engine with all its state.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    metrics: Metrics,
    ready: Ready,
    heartbeat: Heartbeat,
    reports: mpsc::UnboundedSender<Message>,
    /// The minimum time between two status writes that only update traffic.
    traffic_interval: Duration,
    /// Since when this operator leads, if it does.
    leads_since: Option<Instant>,

    world: World,
    /// When the world became complete.
    complete_at: Option<Instant>,
    /// The changes since the last plan.
    dirty: DirtySet,
    /// The policies that changed since the last report. Only these are reported.
    dirty_policies: BTreeSet<ObjectKey>,
    /// Time has passed, so every policy's traffic of the last minute may have changed.
    ticked: bool,
    compiler: Compiler,
    plan: Plan,
    links: HashMap<ObjectKey, Link>,
    observed: Observed,
    /// The pods that are not known to enforce everything that they should. Only these are judged one by one.
    unconverged_pods: BTreeSet<ObjectKey>,
    traffic: Traffic,
    policies: HashMap<ObjectKey, PolicyRecord>,
    /// The stored statuses of policies that have no record yet.
    found: HashMap<ObjectKey, StoredStatus>,
    /// When the first change was seen that is not planned yet.
    changed_at: Option<Instant>,
    /// The earliest time of the next report. It leaves time for other work while thousands of pods answer one by one.
    report_at: Option<Instant>,
}

/// Why an engine ended without a stop.
#[derive(Debug, thiserror::Error)]
#[error("the source of policies ended")]
pub struct SourceEnded;

/// The state of a stopped engine, to answer for pods that are created during the shutdown.
#[derive(Debug)]
pub struct Known {
    is_complete: bool,
    world: World,
    compiler: Compiler,
}

impl Known {
    /// Answers questions forever.
    pub async fn answer(self, questions: &mut mpsc::Receiver<Question>) -> Infallible {
        while let Some(question) = questions.recv().await {
            foresee_for(question, self.is_complete, &self.world, &self.compiler);
        }
        std::future::pending().await
    }
}

/// Answers what a new pod will have to enforce. Before the world is complete there is no answer.
fn foresee_for(question: Question, is_complete: bool, world: &World, compiler: &Compiler) {
    if is_complete {
        let Question { namespace, labels, answer } = question;
        // The caller may have timed out and continued without an answer.
        let _ = answer.send(foresee(&world.workloads, compiler.compiled(), &namespace, labels));
    }
}

impl Engine {
    /// An engine without any knowledge.
    pub fn new(
        shared: Shared,
        ready: Ready,
        heartbeat: Heartbeat,
        reports: mpsc::UnboundedSender<Message>,
        traffic_interval: Duration,
    ) -> Self {
        Self {
            metrics: shared.metrics.clone(),
            shared: Arc::new(shared),
            ready,
            heartbeat,
            reports,
            traffic_interval,
            leads_since: None,
            world: World::default(),
            complete_at: None,
            dirty: DirtySet::default(),
            dirty_policies: BTreeSet::new(),
            ticked: false,
            compiler: Compiler::default(),
            plan: Plan::default(),
            links: HashMap::new(),
            observed: Observed::default(),
            unconverged_pods: BTreeSet::new(),
            traffic: Traffic::default(),
            policies: HashMap::new(),
            found: HashMap::new(),
            changed_at: None,
            report_at: None,
        }
    }

    /// Runs until stopped; returns its knowledge.
    ///
    /// # Errors
    ///
    /// The source ended before the stop.
    pub async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        mut observations: mpsc::Receiver<Observation>,
        mut landings: mpsc::Receiver<WrittenStatus>,
        questions: &mut mpsc::Receiver<Question>,
        mut terms: TermReceiver,
        stop: CancellationToken,
    ) -> Result<Known, SourceEnded> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_at: Option<Instant> = None;
        terms.mark_changed();
        loop {
            let due = look_at.unwrap_or_else(|| clock::now() + TICK);
            tokio::select! {
                () = stop.cancelled() => {
                    return Ok(Known { is_complete: self.complete_at.is_some(), world: self.world, compiler: self.compiler });
                }
                Ok(()) = terms.changed() => {
                    let term = terms.borrow_and_update().clone();
                    self.serve(clock::now(), term);
                    look_at = Some(clock::now());
                }
                update = updates.recv() => {
                    if self.take_in(clock::now(), update.ok_or(SourceEnded)?) {
                        let soon = clock::now() + GATHER;
                        look_at = Some(look_at.map_or(soon, |look_at| look_at.min(soon)));
                    }
                }
                Some(landed) = landings.recv() => self.land(clock::now(), landed),
                Some(observation) = observations.recv() => {
                    if self.observe(&observation) {
                        let soon = clock::now() + GATHER;
                        look_at.get_or_insert(self.report_at.map_or(soon, |report_at| report_at.max(soon)));
                    }
                }
                Some(question) = questions.recv() => {
                    foresee_for(question, self.complete_at.is_some(), &self.world, &self.compiler);
                }
                () = sleep_until(due), if look_at.is_some() => {
                    look_at = self.look(clock::now());
                }
                _ = tick.tick() => {
                    self.heartbeat.beat(clock::since_boot());
                    self.traffic.expire(clock::now());
                    self.ticked = true;
                    if let Some(again) = self.look(clock::now()) {
                        look_at.get_or_insert(again);
                    }
                }
            }
        }
    }

    /// Begins a term, or becomes a standby.
    fn serve(&mut self, now: Instant, term: Option<Term>) {
        // Links and their results end with their term: another leader may have pushed since.
        self.links.clear();
        self.observed = Observed::default();
        self.unconverged_pods.clear();
        self.traffic = Traffic::default();
        self.found.extend(self.policies.drain().map(|(key, record)| (key, record.leave())));
        self.metrics.forget_pods();
        self.leads_since = term.is_some().then_some(now);
        Arc::make_mut(&mut self.shared).term = term.unwrap_or_else(Term::over);
        // In the next term, each pod needs its first push, and each policy its first status.
        self.dirty.pods.extend(self.world.pods.keys().cloned());
        self.dirty.policies.extend(self.world.policies.keys().cloned());
        self.changed_at.get_or_insert(now);
    }

    /// Takes in an update. Returns true if there is something to plan. The operator's own status writes arrive here,
    /// too, and need no plan.
    fn take_in(&mut self, now: Instant, update: Update) -> bool {
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
                Change::Pod(..) | Change::Workload(..) | Change::Service(..) => {}
            }
            if self.world.apply(change, &mut self.dirty) {
                self.changed_at.get_or_insert(now);
            }
        }
        if update.complete && self.complete_at.is_none() {
            self.complete_at = Some(now);
            self.changed_at.get_or_insert(now);
            tracing::info!(policies = self.world.policies.len(), pods = self.world.pods.len(), "everything is listed");
        }
        self.changed_at.is_some()
    }

    fn land(&mut self, now: Instant, landed: WrittenStatus) {
        if let Some(record) = self.policies.get_mut(&landed.key).filter(|record| record.uid == landed.uid) {
            record.landed(now, landed.number, landed.stored);
        }
    }

    fn observe(&mut self, observation: &Observation) -> bool {
        let Observation { pod: key, at, .. } = observation;
        let is_current = self.world.pods.get(key).is_some_and(|pod| pod.uid == observation.pod_uid);
        // Another leader may have overwritten what a link of an earlier term reported.
        if !is_current || self.leads_since.is_none_or(|since| *at < since) {
            return false;
        }
        if let Seen::Status(status) = &observation.seen {
            self.traffic.observe(*at, key, status);
        }
        let wanted = self.plan.cohort(key).map(|cohort| &cohort.content);
        let changed = self.observed.observe(observation, wanted);
        if changed {
            self.settle(key);
            for policy in self.plan.cohort(key).into_iter().flat_map(|cohort| &cohort.policies) {
                if !self.dirty_policies.contains(policy) {
                    self.dirty_policies.insert(policy.clone());
                }
            }
        }
        changed
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

    /// Plans the changes and reports. If it is too early for a report, returns when to try again.
    fn look(&mut self, now: Instant) -> Option<Instant> {
        let complete_at = self.complete_at?;
        if let Some(changed_at) = self.changed_at.take() {
            let dirty = std::mem::take(&mut self.dirty);
            // For policies with a record, the engine's memory is newer than any status.
            let kept = |key: &ObjectKey| self.found.get(key)?.status.as_ref()?.last_known_good.as_ref();
            self.compiler.update(&self.world.policies, &dirty.policies, kept);
            let Planned { pods, mut policies } = self.plan.update(&self.world, self.compiler.compiled(), &dirty);
            if self.leads_since.is_some() {
                self.follow_policies(changed_at, &dirty.policies);
                self.push(changed_at, &pods);
                self.dirty_policies.append(&mut policies);
            }
            self.ready.set(true);
        }
        let leads_since = self.leads_since?;
        if self.report_at.is_some_and(|report_at| now < report_at) {
            return self.report_at;
        }
        let begun = clock::now();
        self.report(now, complete_at.max(leads_since));
        let ended = clock::now();
        self.report_at = Some(ended + REST * (ended - begun));
        None
    }

    /// Tells the links of these pods what is planned.
    fn push(&mut self, changed_at: Instant, pods: &BTreeSet<ObjectKey>) {
        // Counts the links before and after, because the new ones must not all poll at once.
        self.shared.poll.spread(self.links.len() + pods.len());
        for key in pods {
            let pod = self.world.pods.get(key).zip(self.plan.cohort(key));
            if let Some((pod, cohort)) = pod
                && let Agent::At(url) = &pod.agent
            {
                match self.links.get(key) {
                    Some(link) if link.is_for(&pod.uid, url) => link.want(&cohort.content),
                    _ => {
                        self.observed.expect(changed_at, key, &pod.uid);
                        let (uid, url) = (pod.uid.clone(), url.clone());
                        let link = Link::start(self.shared.clone(), key.clone(), uid, url, cohort.content.clone());
                        self.links.insert(key.clone(), link);
                    }
                }
            } else {
                self.links.remove(key);
                self.observed.forget(key);
                self.traffic.forget(key);
            }
            self.settle(key);
        }
        self.shared.poll.spread(self.links.len());
    }

    fn follow_policies(&mut self, changed_at: Instant, dirty: &BTreeSet<ObjectKey>) {
        for key in dirty {
            let Some(policy) = self.compiler.compiled().get(key) else {
                if self.policies.remove(key).is_some() {
                    // The channel is closed only while the process ends; then nobody needs the report.
                    let _ = self.reports.send(Message::Removed(key.clone()));
                    self.metrics.forget_policy(key);
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
#[path = "engine_tests.rs"]
mod tests;
