//! The loop that ties everything together: changes of the world in, pushes and reports out.
//!
//! The engine owns all state and is alone with it; what it calls is pure or does not wait. It pushes nothing before the
//! world is complete, because a pod whose policies are not listed yet would lose its limits.
//!
//! Without a term of leadership it watches, compiles and plans in the same way, but talks to no agent and reports
//! nothing: with the first moment of a term everything that is planned is pushed.

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
use crate::leader::{Term, Terms};
use crate::link::{Link, Observation, Seen, Shared};
use crate::metrics::Metrics;
use crate::observed::Observed;
use crate::plan::{Plan, Planned, foresee};
use crate::policy_record::PolicyRecord;
use crate::report::{Message, WrittenStatus};
use crate::telemetry::{Heartbeat, Ready};
use crate::traffic::Traffic;
use crate::world::{Agent, Change, DirtySet, ObjectKey, StoredStatus, Update, World};

/// Changes that come closer together are handled together.
const GATHER: Duration = Duration::from_millis(5);
/// Reports are made no oftener than leaves this many times as long for everything else.
const REST: u32 = 4;
/// Traffic and the passing of time are looked at this often.
const TICK: Duration = Duration::from_millis(500);

/// The engine and all it knows.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    metrics: Metrics,
    ready: Ready,
    heartbeat: Heartbeat,
    reports: mpsc::UnboundedSender<Message>,
    /// Between two status writes that only bring traffic.
    traffic_interval: Duration,
    /// Since when it leads, if it does.
    leads_since: Option<Instant>,

    world: World,
    /// When the world was complete.
    complete_at: Option<Instant>,
    /// What changed in it since it was last planned.
    dirty: DirtySet,
    /// The policies of which something changed since they were last reported: only these are looked at.
    dirty_policies: BTreeSet<ObjectKey>,
    /// Unless time has passed, and with it what all of them say of the last minute.
    ticked: bool,
    compiler: Compiler,
    plan: Plan,
    links: HashMap<ObjectKey, Link>,
    observed: Observed,
    /// The pods of which it is not known that they enforce all that they should: only these are judged one by one.
    unconverged_pods: BTreeSet<ObjectKey>,
    traffic: Traffic,
    policies: HashMap<ObjectKey, PolicyRecord>,
    /// What is beside the policies that nobody here looks after yet.
    found: HashMap<ObjectKey, StoredStatus>,
    /// When the first change that is not planned yet was seen.
    changed_at: Option<Instant>,
    /// Not before: so that looking at thousands of pods that answer one by one leaves time for other things.
    report_at: Option<Instant>,
}

/// Why an engine ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the source of policies ended")]
pub struct SourceEnded;

/// What an engine knew when it was stopped: pods are created while it leaves, too.
#[derive(Debug)]
pub struct Known {
    is_complete: bool,
    world: World,
    compiler: Compiler,
}

impl Known {
    /// Answers for ever.
    pub async fn answer(self, questions: &mut mpsc::Receiver<Question>) -> Infallible {
        while let Some(question) = questions.recv().await {
            foresee_for(question, self.is_complete, &self.world, &self.compiler);
        }
        std::future::pending().await
    }
}

/// Says what a pod will have to enforce that is about to be created. Before the world is complete nobody knows.
fn foresee_for(question: Question, is_complete: bool, world: &World, compiler: &Compiler) {
    if is_complete {
        let Question { namespace, labels, answer } = question;
        // A caller that waited too long has continued without.
        let _ = answer.send(foresee(&world.workloads, compiler.compiled(), &namespace, labels));
    }
}

impl Engine {
    /// Knows nothing yet.
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

    /// Runs until it is told to stop; what it knew then.
    ///
    /// # Errors
    ///
    /// The source ended before.
    pub async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        mut observations: mpsc::Receiver<Observation>,
        mut landings: mpsc::Receiver<WrittenStatus>,
        questions: &mut mpsc::Receiver<Question>,
        mut terms: Terms,
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

    /// Begins a term, or stands by.
    fn serve(&mut self, now: Instant, term: Option<Term>) {
        // Links and what they told end with their term: another leader may have pushed since.
        self.links.clear();
        self.observed = Observed::default();
        self.unconverged_pods.clear();
        self.traffic = Traffic::default();
        self.found.extend(self.policies.drain().map(|(key, record)| (key, record.leave())));
        self.metrics.forget_pods();
        self.leads_since = term.is_some().then_some(now);
        Arc::make_mut(&mut self.shared).term = term.unwrap_or_else(Term::over);
        // Each pod has its first push of the term to come, and each policy its first status.
        self.dirty.pods.extend(self.world.pods.keys().cloned());
        self.dirty.policies.extend(self.world.policies.keys().cloned());
        self.changed_at.get_or_insert(now);
    }

    /// True if there is something to plan. The operator's own status writes come back through here and are not.
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
        // What a link of an earlier term told may have been overtaken by another leader.
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

    /// Notes whether there is anything to judge about a pod.
    fn settle(&mut self, key: &ObjectKey) {
        let (pod, cohort) = (self.world.pods.get(key), self.plan.cohort(key));
        let is_open = pod.zip(cohort).is_some_and(|(pod, cohort)| {
            // A policy without rules in force is in no content, and one that has grown too large is not in it as it should be.
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

    /// Plans what changed and reports what is new; when to look again, if it is too early for a report.
    fn look(&mut self, now: Instant) -> Option<Instant> {
        let complete_at = self.complete_at?;
        if let Some(changed_at) = self.changed_at.take() {
            let dirty = std::mem::take(&mut self.dirty);
            // What this engine follows it remembers better than any status.
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
        // Before and after: what is started now must not all ask at once.
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
                    // Closed only while the process ends, when nothing is left to report to.
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
