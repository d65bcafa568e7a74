//! The loop that ties everything together: changes of the world in, pushes and reports out.
//!
//! The engine owns all state and is alone with it; what it calls is pure or does not wait. It pushes nothing before the
//! world is complete, because a pod whose policies are not listed yet would lose its limits.
//!
//! Without a term of leadership it takes in, compiles and plans just the same, but talks to no agent and reports
//! nothing: with the first moment of a term everything that is planned is pushed.

mod report;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::compile::Compiler;
use crate::followed::Followed;
use crate::inject::Question;
use crate::leader::{Term, Terms};
use crate::link::{Link, Observation, Seen, Shared};
use crate::metrics::Metrics;
use crate::observed::Observed;
use crate::plan::{Plan, foresee, plan};
use crate::report::{Landed, Message};
use crate::telemetry::{Pulse, Ready};
use crate::traffic::Traffic;
use crate::world::{Beside, Change, ObjectKey, Update, World};

/// Changes that come closer together are handled together.
const GATHER: Duration = Duration::from_millis(5);
/// Traffic and the passing of time are looked at this often.
const TICK: Duration = Duration::from_millis(500);

/// The engine and all it knows.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    metrics: Metrics,
    ready: Ready,
    pulse: Pulse,
    reports: mpsc::UnboundedSender<Message>,
    /// Between two status writes that only bring traffic.
    traffic_interval: Duration,
    /// Since when it leads, if it does.
    leads_since: Option<Instant>,

    world: World,
    /// When the world was complete.
    complete_at: Option<Instant>,
    compiler: Compiler,
    plan: Plan,
    links: BTreeMap<ObjectKey, Link>,
    observed: Observed,
    traffic: Traffic,
    policies: HashMap<ObjectKey, Followed>,
    /// What is beside the policies that nobody here looks after yet.
    found: HashMap<ObjectKey, Beside>,
    /// When the first change that is not planned yet was seen.
    changed_at: Option<Instant>,
}

/// Why an engine ended by itself.
#[derive(Debug, thiserror::Error)]
#[error("the source of policies ended")]
pub struct SourceEnded;

impl Engine {
    /// Knows nothing yet.
    pub fn new(
        shared: Shared,
        ready: Ready,
        pulse: Pulse,
        reports: mpsc::UnboundedSender<Message>,
        traffic_interval: Duration,
    ) -> Self {
        Self {
            metrics: shared.metrics.clone(),
            shared,
            ready,
            pulse,
            reports,
            traffic_interval,
            leads_since: None,
            world: World::default(),
            complete_at: None,
            compiler: Compiler::default(),
            plan: Plan::default(),
            links: BTreeMap::new(),
            observed: Observed::default(),
            traffic: Traffic::default(),
            policies: HashMap::new(),
            found: HashMap::new(),
            changed_at: None,
        }
    }

    /// Runs until it is told to stop.
    ///
    /// # Errors
    ///
    /// The source ended before.
    pub async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        mut observations: mpsc::Receiver<Observation>,
        mut landings: mpsc::Receiver<Landed>,
        mut questions: mpsc::Receiver<Question>,
        mut terms: Terms,
        stop: CancellationToken,
    ) -> Result<(), SourceEnded> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_at: Option<Instant> = None;
        terms.mark_changed();
        loop {
            let due = look_at.unwrap_or_else(|| clock::now() + TICK);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Ok(()) = terms.changed() => {
                    let term = terms.borrow_and_update().clone();
                    self.serve(clock::now(), term);
                    look_at = Some(clock::now());
                }
                update = updates.recv() => {
                    if self.take_in(clock::now(), update.ok_or(SourceEnded)?) {
                        look_at.get_or_insert(clock::now() + GATHER);
                    }
                }
                Some(landed) = landings.recv() => self.land(clock::now(), landed),
                Some(observation) = observations.recv() => {
                    if self.observe(&observation) {
                        look_at.get_or_insert(clock::now() + GATHER);
                    }
                }
                Some(question) = questions.recv() => self.foresee(question),
                () = sleep_until(due), if look_at.is_some() => {
                    look_at = None;
                    self.look(clock::now());
                }
                _ = tick.tick() => {
                    self.pulse.beat(clock::since_boot());
                    self.traffic.expire(clock::now());
                    self.look(clock::now());
                }
            }
        }
    }

    /// Begins a term, or stands by.
    fn serve(&mut self, now: Instant, term: Option<Term>) {
        // Links and what they told end with their term: another leader may have pushed since.
        self.links.clear();
        self.observed = Observed::default();
        self.traffic = Traffic::default();
        self.found.extend(self.policies.drain().map(|(key, followed)| (key, followed.leave())));
        self.metrics.forget_pods();
        self.leads_since = term.is_some().then_some(now);
        self.shared.term = term.unwrap_or_else(Term::over);
        self.changed_at.get_or_insert(now);
    }

    /// True if there is something to plan. The operator's own status writes come back through here and are not.
    fn take_in(&mut self, now: Instant, update: Update) -> bool {
        for mut change in update.changes {
            match &mut change {
                Change::Policy(key, Some((policy, beside))) => {
                    let beside = std::mem::take(beside);
                    match self.policies.get_mut(key).filter(|followed| followed.uid == policy.uid) {
                        Some(followed) => followed.shown(now, beside),
                        None => drop(self.found.insert(key.clone(), beside)),
                    }
                }
                Change::Policy(key, None) => drop(self.found.remove(key)),
                Change::Pod(..) | Change::Workload(..) => {}
            }
            if self.world.apply(change) {
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

    fn land(&mut self, now: Instant, landed: Landed) {
        if let Some(followed) = self.policies.get_mut(&landed.key).filter(|followed| followed.uid == landed.uid) {
            followed.landed(now, landed.number, landed.stored);
        }
    }

    fn observe(&mut self, observation: &Observation) -> bool {
        let is_current = self.plan.agents.get(&observation.pod).is_some_and(|a| a.pod_uid == observation.pod_uid);
        // What a link of an earlier term told may have been overtaken by another leader.
        if !is_current || self.leads_since.is_none_or(|since| observation.at < since) {
            return false;
        }
        if let Seen::Status(status) = &observation.seen {
            self.traffic.observe(observation.at, &observation.pod, status);
        }
        self.observed.observe(observation)
    }

    /// Says what a pod will have to enforce that is about to be created. Before the world is complete nobody knows.
    fn foresee(&self, question: Question) {
        if self.complete_at.is_some() {
            let Question { namespace, labels, answer } = question;
            // Whoever has waited too long went on without.
            let _ = answer.send(foresee(&self.world, self.compiler.compiled(), &namespace, labels));
        }
    }

    fn look(&mut self, now: Instant) {
        let Some(complete_at) = self.complete_at else { return };
        if let Some(changed_at) = self.changed_at.take() {
            self.compiler.update(&self.world.policies);
            self.plan = plan(&self.world, self.compiler.compiled(), &self.plan);
            if self.leads_since.is_some() {
                self.push(changed_at);
            }
            self.ready.set(true);
        }
        if let Some(leads_since) = self.leads_since {
            self.report(now, complete_at.max(leads_since));
        }
    }

    /// Tells the links what is planned.
    fn push(&mut self, changed_at: Instant) {
        self.follow_policies(changed_at);

        let gone: Vec<ObjectKey> =
            self.links.keys().filter(|pod| !self.plan.agents.contains_key(*pod)).cloned().collect();
        for pod in gone {
            self.links.remove(&pod);
            self.observed.forget(&pod);
            self.traffic.forget(&pod);
        }
        for (pod, agent) in &self.plan.agents {
            match self.links.get(pod) {
                Some(link) if link.is_for(&agent.pod_uid, &agent.url) => link.want(&agent.content),
                _ => {
                    self.observed.expect(changed_at, pod, &agent.pod_uid);
                    let (uid, url) = (agent.pod_uid.clone(), agent.url.clone());
                    let link = Link::start(self.shared.clone(), pod.clone(), uid, url, agent.content.clone());
                    self.links.insert(pod.clone(), link);
                }
            }
        }
    }

    fn follow_policies(&mut self, changed_at: Instant) {
        let compiled = self.compiler.compiled();
        let (reports, metrics) = (&self.reports, &self.metrics);
        self.policies.retain(|key, _| {
            let stays = compiled.contains_key(key);
            if !stays {
                // Closed only while the process ends, when nothing is left to report to.
                let _ = reports.send(Message::Removed(key.clone()));
                metrics.forget_policy(key);
            }
            stays
        });
        for (key, policy) in compiled {
            match self.policies.get_mut(key).filter(|followed| followed.uid == policy.uid) {
                Some(followed) => followed.story.want(changed_at, policy.rules.as_ref()),
                None => {
                    let found = self.found.remove(key).unwrap_or_default();
                    let followed = Followed::begin(changed_at, policy, self.traffic_interval, found);
                    self.policies.insert(key.clone(), followed);
                }
            }
        }
        self.found.clear();
    }
}
