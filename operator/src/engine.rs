//! The loop that ties everything together: changes of the world in, pushes and reports out.
//!
//! The engine owns all state and is alone with it; what it calls is pure or does not wait. It pushes nothing before the
//! world is complete, because a pod whose policies are not listed yet would lose its limits.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use weir_api::RateLimitPolicyStatus;

use crate::clock;
use crate::compile::{Compiled, Compiler};
use crate::followed::Followed;
use crate::inject::Question;
use crate::link::{Link, Observation, Seen, Shared};
use crate::metrics::{Metrics, PodCounts};
use crate::observed::{Observed, PATIENCE, Standing, Wanted};
use crate::plan::{Plan, foresee, plan};
use crate::report::{Announcement, Landed, Message, Report};
use crate::status::{self, Facts, Tally};
use crate::story::Telling;
use crate::telemetry::Ready;
use crate::traffic::Traffic;
use crate::world::{Change, ObjectKey, Update, World};

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
    reports: mpsc::UnboundedSender<Message>,
    /// Between two status writes that only bring traffic.
    traffic_interval: Duration,

    world: World,
    /// When the world was complete.
    complete_at: Option<Instant>,
    compiler: Compiler,
    plan: Plan,
    links: BTreeMap<ObjectKey, Link>,
    observed: Observed,
    traffic: Traffic,
    policies: HashMap<ObjectKey, Followed>,
    /// Statuses that policies had when they were first seen.
    found: HashMap<ObjectKey, RateLimitPolicyStatus>,
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
        reports: mpsc::UnboundedSender<Message>,
        traffic_interval: Duration,
    ) -> Self {
        Self {
            metrics: shared.metrics.clone(),
            shared,
            ready,
            reports,
            traffic_interval,
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
        stop: CancellationToken,
    ) -> Result<(), SourceEnded> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_at: Option<Instant> = None;
        loop {
            let due = look_at.unwrap_or_else(|| clock::now() + TICK);
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
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
                    self.traffic.expire(clock::now());
                    self.look(clock::now());
                }
            }
        }
    }

    /// True if there is something to plan. The operator's own status writes come back through here and are not.
    fn take_in(&mut self, now: Instant, update: Update) -> bool {
        for mut change in update.changes {
            if let Change::Policy(key, Some((policy, status))) = &mut change {
                let status = status.take();
                if let Some(followed) = self.policies.get_mut(key).filter(|followed| followed.uid == policy.uid) {
                    followed.echo.shown(now, status);
                } else if let Some(status) = status {
                    self.found.insert(key.clone(), *status);
                }
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
            followed.echo.landed(now, landed.number, landed.stored);
        }
    }

    fn observe(&mut self, observation: &Observation) -> bool {
        let is_current = self.plan.agents.get(&observation.pod).is_some_and(|a| a.pod_uid == observation.pod_uid);
        if !is_current {
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
            self.replan(changed_at);
            self.ready.set(true);
        }
        self.report(now, complete_at);
    }

    /// Compiles what changed, plans anew and tells the links.
    fn replan(&mut self, changed_at: Instant) {
        self.compiler.update(&self.world.policies);
        let compiled = self.compiler.compiled();
        self.plan = plan(&self.world, compiled, &self.plan);
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
        let reports = &self.reports;
        self.policies.retain(|key, _| {
            let stays = compiled.contains_key(key);
            if !stays {
                // Closed only while the process ends, when nothing is left to report to.
                let _ = reports.send(Message::Removed(key.clone()));
            }
            stays
        });
        for (key, policy) in compiled {
            match self.policies.get_mut(key).filter(|followed| followed.uid == policy.uid) {
                Some(followed) => followed.story.want(changed_at, policy.rules.as_ref()),
                None => {
                    let found = self.found.remove(key);
                    let followed = Followed::begin(changed_at, policy, self.traffic_interval, found);
                    self.policies.insert(key.clone(), followed);
                }
            }
        }
        self.found.clear();
    }

    /// Looks at every policy and reports what is new.
    fn report(&mut self, now: Instant, complete_at: Instant) {
        let mut pods: HashMap<&ObjectKey, Standing> = HashMap::new();
        let mut accepted = 0;
        for (key, compiled) in self.compiler.compiled() {
            let Some(followed) = self.policies.get_mut(key) else { continue };
            let targets = self.plan.policies.get(key).expect("every compiled policy is planned");
            accepted += usize::from(compiled.faults.is_empty());
            let since = followed.story.since();
            let revision = compiled.rules.as_ref().map_or("", |rules| &rules.revision);
            let wanted = Wanted { uid: &compiled.uid, revision, since };
            let standings: Vec<(&ObjectKey, Standing)> = (targets.pods.iter())
                .map(|pod| (pod, self.observed.standing(now, pod, &self.world.pods[pod], wanted)))
                .collect();
            for (pod, standing) in &standings {
                let worst = pods.entry(pod).or_insert(Standing::Enforcing);
                if standing.severity() > worst.severity() {
                    *worst = standing.clone();
                }
            }
            // After a start nothing is known of any pod; what the status says is better than "Pending" until it is.
            let just_started = now.duration_since(complete_at) < PATIENCE;
            let unheard = |pod: &ObjectKey| self.plan.agents.contains_key(pod) && !self.observed.heard(pod);
            if just_started && targets.pods.iter().any(unheard) {
                continue;
            }
            let rules = rule_traffic(now, compiled, &self.traffic);
            let facts = Facts {
                compiled,
                targets,
                standings: &standings,
                traffic: (&rules, self.traffic.policy(now, &compiled.uid)),
            };
            let tally = Tally::of(&standings);
            let (_, reason, message) = status::enforced(&facts, tally);
            if let Some(telling) = followed.story.tell(now, reason, &message, tally) {
                announce(key, &compiled.uid, telling, &self.reports, &self.metrics);
            }
            let status = status::build(&facts, followed.pace.written(), clock::timestamp());
            if let Some(number) = followed.writes(now, &status) {
                let (key, uid, file) = (key.clone(), compiled.uid.clone(), compiled.file.clone());
                let _ = self.reports.send(Message::Status(Box::new(Report { key, uid, file, number, status })));
            }
        }
        self.metrics.set_policies(accepted, self.compiler.compiled().len() - accepted);
        self.metrics.set_pods(count(pods.values()));
    }
}

fn announce(key: &ObjectKey, uid: &str, telling: Telling, reports: &mpsc::UnboundedSender<Message>, metrics: &Metrics) {
    if let Some(took) = telling.took {
        metrics.propagated(took);
    }
    let Telling { warning, reason, note, .. } = telling;
    let _ =
        reports.send(Message::Announce(Announcement { key: key.clone(), uid: uid.to_owned(), warning, reason, note }));
}

fn rule_traffic(now: Instant, compiled: &Compiled, traffic: &Traffic) -> Vec<(String, crate::traffic::Counts)> {
    let rules = compiled.rules.iter().flat_map(|rules| &rules.rules);
    rules.map(|rule| (rule.name.clone(), traffic.rule(now, &compiled.uid, &rule.name))).collect()
}

fn count<'a>(standings: impl Iterator<Item = &'a Standing>) -> PodCounts {
    let mut counts = PodCounts::default();
    for standing in standings {
        match standing {
            Standing::Enforcing => counts.enforcing += 1,
            Standing::Waiting(..) => counts.pending += 1,
            Standing::Drifted(..) => counts.drifted += 1,
        }
    }
    counts
}
