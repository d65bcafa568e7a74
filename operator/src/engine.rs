//! The main loop: receives changes of the world, pushes snapshots and sends reports.
//!
//! A pure machine (`engine/machine.rs`) decides, and owns the whole state. The engine passes events to it and performs
//! its actions. No action blocks.

mod echo;
mod event;
mod machine;
mod policy_record;
mod status_pace;
mod statuses;

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use tokio::{
    sync::mpsc,
    task::yield_now,
    time::{MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use self::{
    event::{EngineAction, EngineEvent, EngineMoment},
    machine::EngineMachine,
};
use crate::{
    clock,
    fleet::FleetCounter,
    inject::ContentRequest,
    leader::{Term, TermReceiver},
    link::{Link, LinkContext, LinkTask, ObservationReceiver},
    report::{Message, WrittenStatus},
    telemetry::{Heartbeat, Ready},
    world::{ObjectKey, Update},
};

/// The interval at which the engine checks traffic and deadlines.
const TICK: Duration = Duration::from_millis(500);

/// The engine with its links.
#[derive(Debug)]
pub struct Engine {
    context: Arc<LinkContext>,
    ready: Ready,
    heartbeat: Heartbeat,
    reports: mpsc::UnboundedSender<Message>,
    links: HashMap<ObjectKey, Link>,
    /// The links of pods that are gone or being deleted.
    retired: Vec<LinkTask>,
    machine: EngineMachine,
}

/// The error of an engine that ended without a request to stop.
#[derive(Debug, thiserror::Error)]
#[error("the source of policies ended")]
pub struct SourceEnded;

/// The state of a stopped engine, which answers requests about pods that are created during the shutdown.
#[derive(Debug)]
pub struct StoppedEngine(EngineMachine);

impl StoppedEngine {
    /// Answers requests forever.
    pub async fn answer(self, requests: &mut mpsc::Receiver<ContentRequest>) -> Infallible {
        while let Some(request) = requests.recv().await {
            answer(&self.0, request);
        }
        std::future::pending().await
    }
}

fn answer(machine: &EngineMachine, request: ContentRequest) {
    let ContentRequest { namespace, membership, answer } = request;
    if let Some(content) = machine.content_for_pod(&namespace, &membership) {
        // The caller may have timed out and continued without an answer.
        let _ = answer.send(content);
    }
}

impl Engine {
    /// Returns an engine without any state. `traffic_interval` is the minimum time between two status writes that
    /// change only traffic counts.
    pub fn new(
        context: LinkContext,
        ready: Ready,
        heartbeat: Heartbeat,
        reports: mpsc::UnboundedSender<Message>,
        traffic_interval: Duration,
    ) -> Self {
        let (context, links, machine) = (Arc::new(context), HashMap::new(), EngineMachine::new(traffic_interval));
        Self { context, ready, heartbeat, reports, links, retired: Vec::new(), machine }
    }

    /// Runs until stopped, and returns the state.
    ///
    /// # Errors
    ///
    /// The source ended before the stop.
    pub async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        mut observations: ObservationReceiver,
        mut written: mpsc::Receiver<WrittenStatus>,
        requests: &mut mpsc::Receiver<ContentRequest>,
        mut terms: TermReceiver,
        stop: CancellationToken,
    ) -> Result<StoppedEngine, SourceEnded> {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        terms.mark_changed();
        loop {
            let (due, is_compiling) = (self.machine.due(), self.machine.is_compiling());
            if is_compiling {
                // The other tasks may have only this thread.
                yield_now().await;
            }
            let event = tokio::select! {
                () = stop.cancelled() => return Ok(StoppedEngine(self.machine)),
                Ok(()) = terms.changed() => EngineEvent::Term(terms.borrow_and_update().clone()),
                update = updates.recv(), if !is_compiling => EngineEvent::Update(update.ok_or(SourceEnded)?),
                Some(written) = written.recv() => EngineEvent::Written(written),
                Some(observation) = observations.recv() => EngineEvent::Observed(observation),
                Some(request) = requests.recv(), if !is_compiling => {
                    answer(&self.machine, request);
                    continue;
                }
                () = sleep_until(due.unwrap_or_else(clock::now)), if due.is_some() => EngineEvent::Due,
                _ = tick.tick() => {
                    self.heartbeat.beat(clock::since_boot());
                    self.context.fleet.tick();
                    EngineEvent::Tick
                }
            };
            self.handle(event);
        }
    }

    fn handle(&mut self, event: EngineEvent) {
        let moment = EngineMoment { now: clock::now(), timestamp: clock::timestamp() };
        for action in self.machine.handle(event, moment) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: EngineAction) {
        let metrics = &self.context.metrics;
        match action {
            EngineAction::StartTerm(term) => {
                self.links.clear();
                self.retired.clear();
                metrics.forget_counts();
                let (term, metrics) = (term.unwrap_or_else(Term::over), metrics.clone());
                let context = Arc::make_mut(&mut self.context);
                (context.term, context.fleet) = (term.clone(), FleetCounter::new(term, metrics));
            }
            EngineAction::Link { pod, uid, url, content } => {
                let link = Link::start(self.context.clone(), pod.clone(), uid, &url, content);
                self.links.insert(pod, link);
            }
            EngineAction::Push { pod, content } => {
                if let Some(link) = self.links.get(&pod) {
                    link.want(&content);
                }
            }
            EngineAction::Unlink(pod) => {
                self.retired.retain(|task| !task.is_finished());
                self.retired.extend(self.links.remove(&pod).map(Link::retire));
            }
            EngineAction::Expect { name, uid, has_run, content } => {
                self.context.fleet.expect(&uid, &name, has_run, content.as_deref());
            }
            EngineAction::Leave { uid, has_run } => self.context.fleet.leave(&uid, has_run),
            EngineAction::Planned => self.context.fleet.planned(),
            EngineAction::SpreadStatuses(agents) => self.context.status_interval.spread(agents),
            EngineAction::LogListed { policies, pods } => {
                tracing::info!(policies, pods, "all policies and pods are listed");
            }
            EngineAction::Ready => self.ready.set(true),
            EngineAction::WriteStatuses => {
                let begun = clock::now();
                self.handle(EngineEvent::WriteStatuses(self.context.fleet.usage()));
                self.handle(EngineEvent::StatusesWritten(clock::now() - begun));
            }
            EngineAction::Send(message) => {
                if let Message::Removed(policy) = &message {
                    metrics.forget_policy(policy);
                }
                // The channel closes only when the process ends, and then nobody needs the report.
                let _ = self.reports.send(message);
            }
            EngineAction::CountPods(counts) => metrics.set_pods(counts),
            EngineAction::CountPolicyPods(policy, counts) => metrics.set_policy_pods(&policy, counts),
            EngineAction::CountPolicies { accepted, refused } => metrics.set_policies(accepted, refused),
            EngineAction::CountPropagated(took) => metrics.propagated(took),
        }
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
