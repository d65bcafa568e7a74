//! The operator as a store: it counts the rules of scope Fleet. The questions use the program's channel to the
//! operator, so this store has no connection of its own.
//!
//! While the program does not reach the operator, it enforces its share of each limit, and the operator keeps that
//! share free. So a program must not begin its share before the operator has noticed that the program is cut off. The
//! share begins:
//!
//! - immediately, if the operator closed the channel or has ended,
//! - after the longest time in which the operator notices the failure, if the channel failed,
//! - after the same time in which the program sent nothing, if the channel is open and the operator does not answer.
//!   Otherwise the operator could receive messages of a program that receives no answers, and count it as present.
//! - after the time in which an operator connects to a new pod, if there was no channel yet.
//!
//! A new channel begins as *joining*: the operator collects the levels that programs know, and the share continues. When
//! the operator has collected them, the share ends, and the program asks.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{sleep, timeout},
};
use weir_seats::{EncodedReply, EncodedTake, Key, Reply, StoreError, Take};
use weir_wire::{Answer, FIRST_CHANNEL, MOST_QUESTIONS, Outcome, PRESENCE, Question};

use crate::lock::lock;

/// The maximum number of questions that wait to be sent.
const MOST_QUEUED: usize = 4_096;

/// The time without an answer to a question after which a program prepares its share.
const UNANSWERED: Duration = Duration::from_secs(1);

/// The pause before a question that arrived too early is asked again.
const NOT_YET: Duration = Duration::from_millis(10);

/// The operator, as a store of a program that has a channel to it.
pub struct OperatorStore {
    state: Mutex<State>,
    /// True once the operator has ended a share of the program.
    has_released: watch::Sender<bool>,
    clock: Box<dyn Fn() -> Duration + Send + Sync>,
}

#[derive(Debug, Default)]
struct State {
    contact: Contact,
    /// The number of channels so far.
    channels: u64,
    /// The number of times that the operator ended a share.
    releases: u64,
    last_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    /// If the program does not ask the operator now, the time at which it stopped asking.
    away_since: Duration,
    /// The time of the last message that ended a share or answered a counted question.
    last_counted_at: Duration,
    /// The time of the first question since the last answers. None if there was none.
    unanswered_since: Option<Duration>,
    /// The time since which the program sends nothing on an open channel, until its share begins. None while the
    /// operator answers.
    quiet_since: Option<Duration>,
    /// The interval of statuses that the operator requested.
    status_interval: Duration,
    /// The time from which the share can be used, if the program does not reach the operator. None before the operator
    /// was reached for the first time.
    share_from: Option<Duration>,
}

#[derive(Debug, Default)]
enum Contact {
    #[default]
    None,
    /// There is a channel, and the share continues.
    Joining(mpsc::Sender<Question>),
    /// The program asks the operator.
    Asking(mpsc::Sender<Question>),
}

/// One channel to the operator. Dropping it ends the use of the channel.
#[derive(Debug)]
pub struct OperatorChannel {
    store: Arc<OperatorStore>,
    number: u64,
    questions: mpsc::Receiver<Question>,
    is_closed_by_operator: bool,
}

/// A question that waits for its answer. Dropping it forgets the question.
struct PendingQuestion<'a> {
    store: &'a OperatorStore,
    id: u64,
}

impl fmt::Debug for OperatorStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorStore").field("state", &self.state).finish_non_exhaustive()
    }
}

impl OperatorStore {
    /// Creates a store without a channel. `clock` is the clock of the program's [`StoreClient`](crate::StoreClient).
    pub fn new(clock: impl Fn() -> Duration + Send + Sync + 'static) -> Arc<Self> {
        let state = State { away_since: clock(), ..State::default() };
        Arc::new(Self { state: Mutex::new(state), has_released: watch::Sender::new(false), clock: Box::new(clock) })
    }

    /// Begins to use a new channel. Questions on an earlier channel are lost.
    pub fn open(self: &Arc<Self>) -> OperatorChannel {
        let (sender, questions) = mpsc::channel(MOST_QUEUED);
        let now = (self.clock)();
        let mut state = lock(&self.state);
        state.leave(false, now);
        state.contact = Contact::Joining(sender);
        state.channels += 1;
        OperatorChannel { store: Arc::clone(self), number: state.channels, questions, is_closed_by_operator: false }
    }

    /// Returns how many times the operator ended a share, and whether shares can be in use now, because this program does
    /// not ask the operator.
    pub(crate) fn shares(&self) -> (u64, bool) {
        let state = lock(&self.state);
        (state.releases, state.contact.away().is_some())
    }

    /// The reason why this program does not ask the operator, and since when. None if it asks.
    pub(crate) fn away(&self) -> Option<(&'static str, Duration)> {
        let state = lock(&self.state);
        Some((state.contact.away()?, state.away_since))
    }

    /// The time of the last message that ended a share or answered a counted question. Zero before the first one.
    pub(crate) fn last_counted_at(&self) -> Duration {
        lock(&self.state).last_counted_at
    }

    /// Returns when the operator has ended the program's share, or when a program that started at `started` uses its
    /// share because there was no channel.
    pub(crate) async fn first_release(&self, started: Duration) {
        let share_begins = started + FIRST_CHANNEL;
        let mut has_released = self.has_released.subscribe();
        let released = has_released.wait_for(|has_released| *has_released);
        // At the end of the time, the share begins.
        let _ = timeout(share_begins.saturating_sub((self.clock)()), released).await;
    }

    /// Prepares this program's share. If the operator does not answer, the program sends nothing from now on, so that its
    /// share can begin.
    pub(crate) fn prepare_share(&self, now: Duration) {
        let mut state = lock(&self.state);
        state.quiet_since = state.quiet_from(now);
    }

    /// The time at which a program that started at `started` can begin to use its share of a limit, and whether the
    /// operator is lost for it.
    pub(crate) fn share_begins(&self, started: Duration, now: Duration) -> (Duration, bool) {
        let state = lock(&self.state);
        let is_asking = state.contact.away().is_none();
        let quiet_from = state.quiet_from(now);
        let begins = match state.share_from {
            _ if is_asking => quiet_from.unwrap_or(now) + state.silence(),
            Some(share_from) => share_from,
            None => started + FIRST_CHANNEL,
        };
        (begins.max(now), quiet_from.is_some() || !is_asking)
    }

    pub(crate) async fn take(&self, key: &Key, question: &Take<'_>, deadline: Duration) -> Result<Reply, StoreError> {
        let encoded = question.encode().ok_or(StoreError::Cost)?;
        let latest = (self.clock)() + deadline;
        loop {
            let (_pending, answer) = self.send(key, &encoded)?;
            let outcome = timeout(latest.saturating_sub((self.clock)()), answer).await;
            return match outcome {
                Ok(Ok(Outcome::Counted(granted))) => {
                    let reply = EncodedReply::read(granted, &encoded);
                    reply.and_then(|reply| reply.reply(&encoded)).ok_or(StoreError::Garbled)
                }
                Ok(Ok(Outcome::NotYet)) => {
                    sleep(NOT_YET).await;
                    continue;
                }
                Ok(Ok(Outcome::Refused(reason))) => Err(StoreError::Refused(reason)),
                Ok(Err(_)) => Err(StoreError::Lost("the channel to the operator was closed".to_owned())),
                Err(_) => Err(StoreError::Late),
            };
        }
    }

    fn send(
        &self,
        key: &Key,
        encoded: &EncodedTake,
    ) -> Result<(PendingQuestion<'_>, oneshot::Receiver<Outcome>), StoreError> {
        let mut state = lock(&self.state);
        let now = (self.clock)();
        let Contact::Asking(questions) = &state.contact else {
            return Err(StoreError::Lost(state.contact.away().unwrap_or_default().to_owned()));
        };
        if state.is_quiet(now) {
            return Err(StoreError::Lost("the operator does not answer".to_owned()));
        }
        let id = state.last_id + 1;
        if questions.try_send(encoded.message(id, key)).is_err() {
            return Err(StoreError::Lost("too many questions wait for the operator".to_owned()));
        }
        let (sender, receiver) = oneshot::channel();
        state.last_id = id;
        state.unanswered_since.get_or_insert(now);
        state.waiting.insert(id, sender);
        Ok((PendingQuestion { store: self, id }, receiver))
    }
}

impl Drop for PendingQuestion<'_> {
    fn drop(&mut self) {
        lock(&self.store.state).waiting.remove(&self.id);
    }
}

impl Contact {
    fn away(&self) -> Option<&'static str> {
        match self {
            Self::None => Some("the operator has no channel to this agent: it must reach the control port"),
            Self::Joining(_) => Some("the operator does not count yet"),
            Self::Asking(..) => None,
        }
    }
}

impl State {
    /// The time after which the operator has noticed that a program is silent. The last message can arrive at the end of
    /// the time for which the program counts as present, and this time begins again when it arrives.
    fn silence(&self) -> Duration {
        2 * (self.status_interval + PRESENCE)
    }

    /// The time from which a program that prepares its share at `now` sends nothing. None if the operator answers, or if
    /// the program does not ask it.
    fn quiet_from(&self, now: Duration) -> Option<Duration> {
        let is_asking = self.contact.away().is_none();
        let is_unanswered = self.unanswered_since.is_some_and(|since| since + UNANSWERED <= now);
        self.quiet_since.or((is_asking && is_unanswered).then_some(now))
    }

    /// Returns true while the program must not send anything, so that the operator notices its absence.
    fn is_quiet(&self, now: Duration) -> bool {
        self.quiet_since.is_some_and(|since| now < since + self.silence())
    }

    /// Ends the use of the current channel.
    fn leave(&mut self, is_closed_by_operator: bool, now: Duration) {
        if let Contact::Asking(..) = std::mem::take(&mut self.contact) {
            let last_sent = self.quiet_since.unwrap_or(now);
            self.share_from = Some(if is_closed_by_operator { now } else { last_sent + self.silence() });
            self.away_since = now;
        }
        (self.unanswered_since, self.quiet_since) = (None, None);
        self.waiting.clear();
    }
}

impl OperatorChannel {
    /// Begins to ask the operator, which has sent a message without answers: this program's share is over.
    /// The operator sends another one after it has missed this program for some time. Returns true if the program must
    /// report what its shares used, and false if a later channel has replaced this one.
    pub fn begin_asking(&self) -> bool {
        let mut state = lock(&self.store.state);
        if state.channels != self.number {
            return false;
        }
        let (Contact::Joining(questions) | Contact::Asking(questions)) = std::mem::take(&mut state.contact) else {
            return false;
        };
        state.contact = Contact::Asking(questions);
        (state.unanswered_since, state.quiet_since) = (None, None);
        state.releases += 1;
        self.store.has_released.send_replace(true);
        true
    }

    /// Waits for questions to send, at most [`MOST_QUESTIONS`]. Cancel safe.
    pub async fn questions(&mut self) -> Vec<Question> {
        let mut batch = Vec::new();
        self.questions.recv_many(&mut batch, MOST_QUESTIONS).await;
        if batch.is_empty() {
            // A later channel has replaced this one.
            std::future::pending::<()>().await;
        }
        // The questions may have been asked before the program prepared its share.
        self.message_sent();
        batch
    }

    /// Passes answers to the questions. A message without answers has ended the share.
    pub fn answer(&self, answers: Vec<Answer>) {
        let now = (self.store.clock)();
        let mut state = lock(&self.store.state);
        if state.channels != self.number {
            return;
        }
        (state.unanswered_since, state.quiet_since) = (None, None);
        // An operator that does not count yet answers `NotYet`.
        if answers.is_empty() || answers.iter().any(|answer| answer.outcome != Outcome::NotYet) {
            state.last_counted_at = now;
        }
        for answer in answers {
            if let Some(sender) = state.waiting.remove(&answer.id) {
                let _ = sender.send(answer.outcome);
            }
        }
    }

    /// Returns true if the program must not send its status now, because it prepares its share.
    pub fn is_quiet(&self) -> bool {
        let state = lock(&self.store.state);
        state.channels == self.number && state.is_quiet((self.store.clock)())
    }

    /// Records a message other than a status. If the program prepares its share, the share begins later.
    pub fn message_sent(&self) {
        let now = (self.store.clock)();
        let mut state = lock(&self.store.state);
        if state.channels == self.number && state.is_quiet(now) {
            state.quiet_since = Some(now);
        }
    }

    /// Records the interval of statuses that the operator requested: it notices a silent program after this time.
    pub fn status_interval(&self, interval: Duration) {
        let mut state = lock(&self.store.state);
        if state.channels == self.number {
            state.status_interval = interval;
        }
    }

    /// Records that the operator closed the channel.
    pub fn closed_by_operator(&mut self) {
        self.is_closed_by_operator = true;
    }
}

impl Drop for OperatorChannel {
    fn drop(&mut self) {
        let now = (self.store.clock)();
        let mut state = lock(&self.store.state);
        if state.channels == self.number {
            state.leave(self.is_closed_by_operator, now);
        }
    }
}

#[cfg(test)]
mod tests;
