//! What the simulated agents do for a rule of scope Fleet: they join an operator as real agents do, and ask it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::sync::{mpsc, oneshot};
use weir_core::{Quota, Strategy};
use weir_store::{Key, StoreTerms, Take};
use weir_wire::{Answer, Mark, Outcome, Question, Shared};

use crate::clock;

const LOOK: Duration = Duration::from_millis(5);

/// The questions of all agents.
pub(crate) struct Asking {
    agents: Box<[Mutex<Asker>]>,
    /// A question about the rule that is in force. None before there is such a rule.
    question: RwLock<Option<Question>>,
    open: Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
    last_id: AtomicU64,
    counted: AtomicUsize,
}

#[derive(Default)]
struct Asker {
    to_operator: Option<mpsc::UnboundedSender<Question>>,
    level: Option<Vec<Mark>>,
}

/// The part of one channel in the questions of its agent.
pub(super) struct Channel {
    asking: Arc<Asking>,
    number: usize,
    has_joined: bool,
    /// The number of empty answers so far. The first says that the operator counts.
    releases: u64,
    questions: mpsc::UnboundedReceiver<Question>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Asking {
    pub(super) fn new(agents: usize) -> Arc<Self> {
        Arc::new(Self {
            agents: (0..agents).map(|_| Mutex::default()).collect(),
            question: RwLock::default(),
            open: Mutex::default(),
            last_id: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
        })
    }

    /// Records the rule of scope Fleet of a content.
    pub(super) fn learn(&self, shared: &Shared, requests: u64) -> anyhow::Result<()> {
        let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), Some(requests))?;
        let terms = StoreTerms::new(shared.stamp, &[(0, quota)])?;
        let encoded = Take { requests: 1, ..Take::new(&terms) }.encode().context("a question")?;
        let question = encoded.message(0, &Key::new(&shared.counters, 0)?);
        *self.question.write().unwrap_or_else(PoisonError::into_inner) = Some(question);
        Ok(())
    }

    /// The number of agents for which an operator counts.
    pub(crate) fn counted(&self) -> usize {
        self.counted.load(Relaxed)
    }

    /// Waits until an operator counts for this number of agents.
    pub(crate) async fn until_counted(&self, agents: usize, patience: Duration) -> anyhow::Result<()> {
        let begun = clock::now();
        while self.counted() != agents {
            if clock::since(begun) > patience {
                bail!("an operator counts for {} agents, not {agents}", self.counted());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Asks the operator of this agent for one request. The answer is missing if the channel ends.
    pub(crate) fn ask(&self, number: usize) -> oneshot::Receiver<Outcome> {
        let (sender, answer) = oneshot::channel();
        let question = self.question.read().unwrap_or_else(PoisonError::into_inner).clone();
        let agent = lock(&self.agents[number]);
        if let Some((question, to_operator)) = question.zip(agent.to_operator.as_ref()) {
            let id = self.last_id.fetch_add(1, Relaxed) + 1;
            lock(&self.open).insert(id, sender);
            // The channel can have ended.
            let _ = to_operator.send(Question { id, ..question });
        }
        answer
    }

    /// Begins a channel of this agent.
    pub(super) fn open(self: &Arc<Self>, number: usize) -> Channel {
        let (to_operator, questions) = mpsc::unbounded_channel();
        lock(&self.agents[number]).to_operator = Some(to_operator);
        Channel { asking: Arc::clone(self), number, has_joined: false, releases: 0, questions }
    }
}

impl Channel {
    /// Returns the levels that the agent reports to a new operator, when its first snapshot is in force.
    pub(super) fn joins(&mut self) -> Option<Vec<Question>> {
        if std::mem::replace(&mut self.has_joined, true) {
            return None;
        }
        let seen = lock(&self.asking.agents[self.number]).level.clone();
        let question = self.asking.question.read().unwrap_or_else(PoisonError::into_inner).clone();
        let known =
            seen.zip(question).map(|(seen, question)| Question { id: 0, requests: 0, seen: Some(seen), ..question });
        Some(known.into_iter().collect())
    }

    /// Handles answers. If they are empty, the operator counts and waits for a confirmation: returns the number of empty
    /// ones so far.
    pub(super) fn answered(&mut self, answers: Vec<Answer>) -> Option<u64> {
        if answers.is_empty() {
            self.releases += 1;
            self.asking.counted.fetch_add(usize::from(self.releases == 1), Relaxed);
            return Some(self.releases);
        }
        for Answer { id, outcome } in answers {
            if let Outcome::Counted(granted) = &outcome {
                lock(&self.asking.agents[self.number]).level = Some(granted.level.clone());
            }
            if let Some(asks) = lock(&self.asking.open).remove(&id) {
                let _ = asks.send(outcome);
            }
        }
        None
    }

    /// Waits for the next question.
    pub(super) async fn question(&mut self) -> Question {
        match self.questions.recv().await {
            Some(question) => question,
            // A later channel has replaced this one.
            None => std::future::pending().await,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.releases > 0 {
            self.asking.counted.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_wire::OnStoreLoss;

    use super::*;

    #[tokio::test]
    async fn an_agent_joins_once_and_is_counted_until_its_channel_ends() {
        let asking = Asking::new(1);
        let shared = Shared {
            store: "operator".to_owned(),
            counters: "fleet/counted.all".to_owned(),
            stamp: 7,
            on_store_loss: OnStoreLoss::LocalShare,
            sharers: 1,
        };
        asking.learn(&shared, 50).expect("a rule");
        let mut channel = asking.open(0);
        assert!(channel.joins().is_some_and(|levels| levels.is_empty()) && channel.joins().is_none());
        assert_eq!([(); 2].map(|()| channel.answered(Vec::new())), [Some(1), Some(2)]);
        assert_eq!(asking.counted(), 1);
        let answer = asking.ask(0);
        let question = channel.question().await;
        assert_eq!((question.stamp, question.requests), (7, 1));
        channel.answered(vec![Answer { id: question.id, outcome: Outcome::NotYet }]);
        assert_eq!(answer.await, Ok(Outcome::NotYet));
        drop(channel);
        assert_eq!(asking.counted(), 0);
    }
}
