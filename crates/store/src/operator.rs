//! The operator as a store: it counts the rules of scope Fleet. The program's channel to the operator carries the
//! questions, so this store has no connection of its own.
//!
//! While the program does not reach the operator, it enforces its share of each limit, and the operator keeps that share
//! free. So a program must not begin its share before the operator has noticed that the program is cut off:
//!
//! - The operator closed the channel or has ended: immediately.
//! - The channel is silent, or a new operator is not ready yet: after the longest time in which the operator notices
//!   silence.
//! - There was no channel yet: after the time in which an operator connects to a new pod.
//!
//! A share ends when a channel opens. So the operator can hand out the whole limit as soon as all programs are there.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use weir_seats::{Answer, EncodedTake, Key, Reply, StoreError, Take};
use weir_wire::{MOST_QUESTIONS, Outcome, Question};

use crate::client::lock;

/// The maximum number of questions that wait to be sent.
const MOST_QUEUED: usize = 4_096;

/// The time after the start of a program in which the operator should have connected.
const FIRST_CHANNEL: Duration = Duration::from_secs(20);

/// The operator notices a silent program after the interval of its statuses and less than this time.
const SILENCE: Duration = Duration::from_secs(6);

/// The operator, as a program with a channel reaches it.
#[derive(Debug)]
pub struct OperatorStore {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    contact: Contact,
    /// The number of channels so far.
    channels: u64,
    last_id: u64,
    waiting: HashMap<u64, oneshot::Sender<Outcome>>,
    /// The interval of statuses that the operator requested.
    status_interval: Duration,
}

#[derive(Debug)]
enum Contact {
    /// There was no channel yet.
    Never,
    /// The channel is open since this time.
    Open(mpsc::Sender<Question>, Duration),
    /// The operator closed the channel.
    Closed,
    /// The channel ended, and the operator has possibly not noticed.
    Broken,
}

/// One channel to the operator. Dropping it ends the use of the channel.
#[derive(Debug)]
pub struct OperatorChannel {
    store: Arc<OperatorStore>,
    number: u64,
    questions: mpsc::Receiver<Question>,
    is_closed_by_operator: bool,
}

impl Default for OperatorStore {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                contact: Contact::Never,
                channels: 0,
                last_id: 0,
                waiting: HashMap::new(),
                status_interval: Duration::ZERO,
            }),
        }
    }
}

impl OperatorStore {
    /// Begins to use a new channel at this time of the program's clock. Questions on an earlier channel are lost.
    pub fn open(self: &Arc<Self>, now: Duration) -> OperatorChannel {
        let (sender, questions) = mpsc::channel(MOST_QUEUED);
        let mut state = lock(&self.state);
        state.contact = Contact::Open(sender, now);
        state.channels += 1;
        state.waiting.clear();
        OperatorChannel { store: Arc::clone(self), number: state.channels, questions, is_closed_by_operator: false }
    }

    /// Returns true if there is a channel.
    pub(crate) fn is_open(&self) -> bool {
        matches!(lock(&self.state).contact, Contact::Open(..))
    }

    /// The number of channels so far. Each one ends the shares of before.
    pub(crate) fn channels(&self) -> u64 {
        lock(&self.state).channels
    }

    /// The time at which a program can begin to use its share of a limit. `started` is the start of the program, and
    /// `lost` is the time of the first missed answer.
    pub(crate) fn share_begins(&self, started: Duration, lost: Duration, now: Duration) -> Duration {
        let state = lock(&self.state);
        let begins = match state.contact {
            Contact::Never => started + FIRST_CHANNEL,
            Contact::Closed => now,
            Contact::Open(_, since) => lost.max(since) + state.status_interval + SILENCE,
            Contact::Broken => lost + state.status_interval + SILENCE,
        };
        begins.max(now)
    }

    pub(crate) async fn take(&self, key: &Key, question: &Take<'_>, deadline: Duration) -> Result<Reply, StoreError> {
        let encoded = question.encode().ok_or(StoreError::Cost)?;
        let (id, answer) = self.send(key, &encoded)?;
        match timeout(deadline, answer).await {
            Ok(Ok(Outcome::Counted(granted))) => {
                Answer::read(granted, &encoded).and_then(|answer| answer.reply(&encoded)).ok_or(StoreError::Garbled)
            }
            Ok(Ok(Outcome::Refused(reason))) => Err(StoreError::Refused(reason)),
            Ok(Err(_)) => Err(StoreError::Lost("the channel to the operator was closed".to_owned())),
            Err(_) => {
                lock(&self.state).waiting.remove(&id);
                Err(StoreError::Late)
            }
        }
    }

    fn send(&self, key: &Key, encoded: &EncodedTake) -> Result<(u64, oneshot::Receiver<Outcome>), StoreError> {
        let mut state = lock(&self.state);
        let Contact::Open(questions, _) = &state.contact else {
            return Err(StoreError::Lost("there is no channel to the operator".to_owned()));
        };
        let id = state.last_id + 1;
        if questions.try_send(encoded.message(id, key)).is_err() {
            return Err(StoreError::Lost("too many questions wait for the operator".to_owned()));
        }
        let (sender, receiver) = oneshot::channel();
        state.last_id = id;
        state.waiting.insert(id, sender);
        Ok((id, receiver))
    }
}

impl OperatorChannel {
    /// Waits for questions to send, at most [`MOST_QUESTIONS`]. Cancel safe.
    pub async fn questions(&mut self) -> Vec<Question> {
        let mut batch = Vec::new();
        self.questions.recv_many(&mut batch, MOST_QUESTIONS).await;
        if batch.is_empty() {
            // A later channel has replaced this one.
            std::future::pending::<()>().await;
        }
        batch
    }

    /// Passes answers to the questions.
    pub fn answer(&self, answers: Vec<weir_wire::Answer>) {
        let mut state = lock(&self.store.state);
        if state.channels != self.number {
            return;
        }
        for answer in answers {
            if let Some(waits) = state.waiting.remove(&answer.id) {
                let _ = waits.send(answer.outcome);
            }
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
        let mut state = lock(&self.store.state);
        if state.channels == self.number {
            state.contact = if self.is_closed_by_operator { Contact::Closed } else { Contact::Broken };
            state.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests;
