//! A connection that many questions share. One task opens it when it is needed; questions watch that task, each for as
//! long as it has time. No caller holds a lock while it waits.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::timeout};

use crate::error::StoreError;

/// After this many late answers in a row the connection is taken for half open.
const TOO_LATE: u32 = 3;

#[derive(Debug)]
pub(crate) struct Link<C> {
    state: watch::Sender<State<C>>,
    late: AtomicU32,
}

#[derive(Clone, Debug)]
enum State<C> {
    Idle,
    Opening,
    Open(C),
    Failed(StoreError),
}

impl<C> Default for Link<C> {
    fn default() -> Self {
        Self { state: watch::Sender::new(State::Idle), late: AtomicU32::new(0) }
    }
}

impl<C: Clone + Send + Sync + 'static> Link<C> {
    /// The connection, as soon as there is one.
    pub(crate) async fn connection<F>(self: &Arc<Self>, open: impl FnOnce() -> F) -> Result<C, StoreError>
    where
        F: Future<Output = Result<C, StoreError>> + Send + 'static,
    {
        if let State::Open(connection) = &*self.state.borrow() {
            return Ok(connection.clone());
        }
        let mut state = self.state.subscribe();
        let begins = self.state.send_if_modified(|state| {
            let begins = matches!(state, State::Idle | State::Failed(_));
            if begins {
                *state = State::Opening;
            }
            begins
        });
        if begins {
            let (link, opening) = (Arc::clone(self), open());
            // A task of its own, because the question that begins it may be cancelled.
            tokio::spawn(async move {
                link.state.send_replace(opening.await.map_or_else(State::Failed, State::Open));
            });
        }
        let closed = || StoreError::Lost("the store is closed".to_owned());
        match &*state
            .wait_for(|state| matches!(state, State::Open(_) | State::Failed(_)))
            .await
            .map_err(|_| closed())?
        {
            State::Open(connection) => Ok(connection.clone()),
            State::Failed(error) => Err(error.clone()),
            State::Idle | State::Opening => Err(closed()),
        }
    }

    /// The next question opens another connection.
    pub(crate) fn disconnect(&self) {
        self.state.send_if_modified(|state| {
            let is_open = matches!(state, State::Open(_));
            if is_open {
                *state = State::Idle;
            }
            is_open
        });
    }

    /// The answer, or [`StoreError::Late`].
    pub(crate) async fn by<T>(
        &self,
        deadline: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = timeout(deadline, answer).await;
        if answer.is_ok() {
            self.late.store(0, Ordering::Relaxed);
        } else if self.late.fetch_add(1, Ordering::Relaxed) + 1 >= TOO_LATE {
            self.late.store(0, Ordering::Relaxed);
            self.disconnect();
        }
        answer.unwrap_or(Err(StoreError::Late))
    }
}
