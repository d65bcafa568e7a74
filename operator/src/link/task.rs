//! The loop of one link: it reports events to the [`LinkMachine`] and performs its actions.

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    task::yield_now,
    time::sleep_until,
};
use weir_channel::{ToAgent, ToOperator};
use weir_wire::{Answer, StatusRequest};

use super::{
    ContactError, LinkContext, Observation, Seen,
    budget::Budget,
    dial::{Connection, Dial, Dialed},
    event::{LinkAction, LinkEvent, LinkMoment},
    machine::LinkMachine,
};
use crate::{clock, fleet::Presence, metrics::Contest, plan::Content, world::ObjectKey};

/// A rare operation in progress. The box keeps the links small: most of the thousands of links are idle.
type InProgress<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

/// The number of messages after which other events come first: an agent can send messages without a pause.
const MOST_IN_ROW: u32 = 64;

pub(super) struct Task {
    context: Arc<LinkContext>,
    pod: ObjectKey,
    pod_uid: Arc<str>,
    dial: Dial,
    wanted: watch::Receiver<Arc<Content>>,
    machine: LinkMachine,
    connection: Option<Connection>,
    /// The number of messages without a pause since other events were looked for.
    in_row: u32,
    /// The questions that the agent may ask.
    budget: Budget,
    /// The agent's presence at the counter of scope Fleet, while there is a connection.
    presence: Option<Presence>,
    dialing: InProgress<Result<Dialed, ContactError>>,
    acquiring: InProgress<(OwnedSemaphorePermit, InProgress<Result<Dialed, ContactError>>)>,
    permit: Option<OwnedSemaphorePermit>,
    /// The dial that follows on the connection that was opened before the permit was granted.
    reached: InProgress<Result<Dialed, ContactError>>,
    /// Counts this agent in the metrics while another operator writes to it.
    contest: Option<Contest>,
    /// True if the pod is gone for the engine. The task ends with the connection.
    is_retired: bool,
}

/// The error that the engine has ended, or the link of a pod that is gone.
struct LinkEnded;

impl Task {
    pub(super) fn new(
        context: Arc<LinkContext>,
        pod: ObjectKey,
        pod_uid: Arc<str>,
        dial: Dial,
        mut wanted: watch::Receiver<Arc<Content>>,
    ) -> Self {
        let content = wanted.borrow_and_update().clone();
        let machine = LinkMachine::new(context.timing.clone(), content, clock::now(), rand::random());
        let (connection, presence, dialing, acquiring, permit, contest) = (None, None, None, None, None, None);
        let (reached, is_retired, in_row, budget) = (None, false, 0, Budget::new(clock::now()));
        Self {
            context,
            pod,
            pod_uid,
            dial,
            wanted,
            machine,
            connection,
            in_row,
            budget,
            presence,
            dialing,
            acquiring,
            permit,
            reached,
            contest,
            is_retired,
        }
    }

    /// Runs until it is dropped or the engine has ended.
    pub(super) async fn run(mut self: Box<Self>) {
        while let Ok(event) = self.next().await {
            if self.handle(event).await.is_err() || (self.is_retired && self.presence.is_none()) {
                return;
            }
        }
    }

    async fn next(&mut self) -> Result<LinkEvent, LinkEnded> {
        let due = self.machine.due();
        Ok(tokio::select! {
            // Messages cause nearly all wake-ups, and they must be handled before their deadline is checked.
            biased;
            received = receive(&mut self.connection, &mut self.in_row, &mut self.budget) => match received {
                Ok(message) => LinkEvent::Received(message),
                Err(error) => {
                    self.close();
                    LinkEvent::Ended(error)
                }
            },
            dialed = progress(&mut self.dialing) => {
                self.dialing = None;
                match dialed {
                    Ok(Dialed { connection, not_after, greeting }) => {
                        self.presence = Some(self.context.fleet.connected(&self.pod_uid));
                        self.connection = Some(connection);
                        LinkEvent::Connected { not_after, greeting }
                    }
                    Err(error) => LinkEvent::Ended(error),
                }
            },
            (permit, reached) = progress(&mut self.acquiring) => {
                (self.acquiring, self.permit, self.reached) = (None, Some(permit), reached);
                LinkEvent::PermitGranted
            },
            () = levels_collected(&mut self.presence) => LinkEvent::LevelsCollected,
            wanted = self.wanted.changed(), if !self.is_retired => match wanted {
                Ok(()) => LinkEvent::Wanted(self.wanted.borrow_and_update().clone()),
                // The engine has ended the link.
                Err(_) if self.asks_counter() => {
                    self.is_retired = true;
                    return Box::pin(self.next()).await;
                }
                Err(_) => return Err(LinkEnded),
            },
            () = sleep_until(due.unwrap_or_else(clock::now)), if due.is_some() => LinkEvent::Due,
        })
    }

    async fn handle(&mut self, event: LinkEvent) -> Result<(), LinkEnded> {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            for action in self.machine.handle(event, &self.moment()) {
                if let Err(error) = self.perform(action).await? {
                    self.close();
                    next = Some(LinkEvent::Ended(error));
                }
            }
        }
        Ok(())
    }

    /// Returns true if the agent is connected, and asks the counter of scope Fleet on it.
    fn asks_counter(&self) -> bool {
        self.presence.is_some() && !self.wanted.borrow().fleet.is_empty()
    }

    fn close(&mut self) {
        (self.presence, self.connection) = (None, None);
    }

    fn moment(&self) -> LinkMoment {
        let term = &self.context.term;
        let since_boot = clock::since_boot();
        // A retired link gets no new content from the engine. If the pod comes back, the engine starts another link, so
        // this one must not push its old content.
        let is_wanted = self.wanted.has_changed().is_ok();
        LinkMoment {
            now: clock::now(),
            unix: clock::unix_micros() / 1_000_000,
            sequence: (is_wanted && term.is_current(since_boot)).then(|| term.sequence(since_boot)),
            every: self.context.status_interval.every(),
        }
    }

    /// Performs an action. The inner error ends the connection.
    async fn perform(&mut self, action: LinkAction) -> Result<Result<(), ContactError>, LinkEnded> {
        let timing = *self.context.timing;
        let limit = timing.timeout;
        match action {
            LinkAction::AcquirePermit { is_silent } => {
                let (lane, dial) = (self.context.lanes.lane(is_silent), self.dial.clone());
                let quick = if is_silent { limit } else { limit.min(timing.quick_answer) };
                self.acquiring = Some(if self.connection.is_some() {
                    Box::pin(async move { (lane.permit().await, None) })
                } else {
                    Box::pin(async move {
                        let (permit, reached) = lane.reach(&dial, timing).await;
                        let greeted: Pin<Box<dyn Future<Output = _> + Send>> =
                            Box::pin(async move { dial.greet(reached?, quick).await });
                        (permit, Some(greeted))
                    })
                });
            }
            LinkAction::ReleasePermit => (self.permit, self.reached) = (None, None),
            // The permit was requested for a push if the connection has ended since then.
            LinkAction::Dial => {
                let dial = self.dial.clone();
                self.dialing = self.reached.take().or_else(|| Some(Box::pin(dial.connect(limit))));
            }
            LinkAction::HangUp => self.close(),
            LinkAction::RequestStatus(every) => {
                if let Some(connection) = &mut self.connection {
                    let every_millis = u64::try_from(every.as_millis()).unwrap_or(u64::MAX);
                    let request = ToAgent::StatusRequest(StatusRequest { every_millis });
                    return Ok(Box::pin(connection.send(request, limit)).await);
                }
            }
            LinkAction::Push { content, sequence } => {
                if let Some(connection) = &mut self.connection {
                    return Ok(Box::pin(connection.push(&content, sequence, limit)).await);
                }
            }
            LinkAction::RecordMessage(silence) => {
                if self.presence.as_ref().is_some_and(|presence| presence.record_message(silence)) {
                    return Ok(self.send_answers(Vec::new()).await);
                }
            }
            LinkAction::Release => return Ok(self.release().await),
            LinkAction::LevelsSent(sent) => {
                if let Some(presence) = &self.presence {
                    presence.levels_sent(sent);
                }
                return Ok(self.release().await);
            }
            LinkAction::Answer { questions, contents } => {
                let contents = contents.each_ref().map(Option::as_deref);
                let answers = self.presence.as_ref().map(|presence| presence.answer(&questions, contents));
                if let Some(answers) = answers.filter(|answers| !answers.is_empty()) {
                    return Ok(self.send_answers(answers).await);
                }
            }
            LinkAction::Count(result, took) => self.context.metrics.pushed(result, took),
            // Boxed, so that an idle link does not keep room for it.
            LinkAction::Observe(seen) => Box::pin(self.report(seen)).await?,
        }
        Ok(Ok(()))
    }

    /// Tells the agent that its share is over, if it does not know that.
    async fn release(&mut self) -> Result<(), ContactError> {
        if self.presence.as_ref().is_some_and(Presence::release) {
            return self.send_answers(Vec::new()).await;
        }
        Ok(())
    }

    async fn send_answers(&mut self, answers: Vec<Answer>) -> Result<(), ContactError> {
        let limit = self.context.timing.timeout;
        match &mut self.connection {
            Some(connection) => Box::pin(connection.send(ToAgent::Answers(answers), limit)).await,
            None => Ok(()),
        }
    }

    async fn report(&mut self, seen: Seen) -> Result<(), LinkEnded> {
        match seen {
            Seen::Contested(true) => {
                tracing::warn!(
                    pod = %self.pod,
                    "another operator writes to this agent, and each overwrites the other's snapshots: stop one \
                     operator, or list the agent in only one of them"
                );
                self.contest = Some(self.context.metrics.contest());
            }
            Seen::Contested(false) => {
                tracing::info!(pod = %self.pod, "the other operator no longer writes to this agent");
                self.contest = None;
            }
            Seen::Acknowledged(ref content) => {
                if let Some(presence) = &self.presence {
                    presence.acknowledged(content);
                }
            }
            Seen::Status(_) | Seen::Failed(_) => {}
        }
        let observation = Observation { pod: self.pod.clone(), pod_uid: self.pod_uid.clone(), at: clock::now(), seen };
        self.context.observations.send(observation).await.map_err(|_| LinkEnded)
    }
}

/// Returns the next message from the connection. Without a connection, it waits forever. After many messages without a
/// pause, it waits until the caller has polled its other branches, and after too many questions, until the agent may ask
/// again.
async fn receive(
    connection: &mut Option<Connection>,
    in_row: &mut u32,
    budget: &mut Budget,
) -> Result<ToOperator, ContactError> {
    let Some(connection) = connection else { return pending().await };
    if budget.read_at() > clock::now() {
        sleep_until(budget.read_at()).await;
    }
    if *in_row >= MOST_IN_ROW {
        *in_row = 0;
        yield_now().await;
    }
    let mut next = pin!(connection.next());
    let message = poll_fn(|cx| {
        let received = next.as_mut().poll(cx);
        *in_row = if received.is_pending() { 0 } else { *in_row + 1 };
        received
    })
    .await?;
    budget.spend(&message, clock::now());
    Ok(message)
}

/// Waits until the counter has collected the levels of agents. Without a connection, it waits forever.
async fn levels_collected(presence: &mut Option<Presence>) {
    match presence {
        Some(presence) => presence.levels_collected().await,
        None => pending().await,
    }
}

/// Returns the result of an operation. Without an operation in progress, this function waits forever.
fn progress<T>(progress: &mut InProgress<T>) -> impl Future<Output = T> {
    poll_fn(|cx| progress.as_mut().map_or(Poll::Pending, |progress| progress.as_mut().poll(cx)))
}

#[cfg(test)]
#[path = "task_tests.rs"]
mod tests;
