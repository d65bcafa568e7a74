//! A connection that many questions share. A separate task opens it when a question needs it. Each question waits for
//! that task until its own deadline. No caller holds a lock while it waits.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::timeout};
use weir_seats::StoreError;

/// The number of late answers in a row after which the connection counts as half open, and is replaced.
const TOO_LATE: u32 = 3;

#[derive(Debug)]
pub(crate) struct StoreConnection<C> {
    state: watch::Sender<State<C>>,
    late: AtomicU32,
    /// True while a task opens a connection that replaces the open one.
    is_replacing: AtomicBool,
}

#[derive(Clone, Debug)]
enum State<C> {
    Idle,
    Opening,
    Open(C),
    Failed(StoreError),
}

impl<C> Default for StoreConnection<C> {
    fn default() -> Self {
        Self { state: watch::Sender::new(State::Idle), late: AtomicU32::new(0), is_replacing: AtomicBool::new(false) }
    }
}

impl<C: Clone + Send + Sync + 'static> StoreConnection<C> {
    /// Returns the open connection, or opens one and waits for it.
    pub(crate) async fn get<F>(self: &Arc<Self>, open: impl FnOnce() -> F) -> Result<C, StoreError>
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
            let (this, opening) = (Arc::clone(self), open());
            // A separate task opens the connection, because the question that starts it can be cancelled.
            tokio::spawn(async move {
                this.state.send_replace(opening.await.map_or_else(State::Failed, State::Open));
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

    /// Returns true if the connection is open.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open(_))
    }

    /// Drops the connection, so that the next question opens a new one.
    pub(crate) fn disconnect(&self) {
        self.state.send_if_modified(|state| {
            let is_open = matches!(state, State::Open(_));
            if is_open {
                *state = State::Idle;
            }
            is_open
        });
    }

    /// Opens another connection, and then drops the old one. Until then, questions use the old one.
    pub(crate) fn replace(self: &Arc<Self>, opening: impl Future<Output = Result<C, StoreError>> + Send + 'static) {
        if self.is_replacing.swap(true, Ordering::Relaxed) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            if let Ok(connection) = opening.await {
                this.state.send_if_modified(|state| {
                    let is_open = matches!(state, State::Open(_));
                    if is_open {
                        *state = State::Open(connection);
                    }
                    is_open
                });
            }
            this.is_replacing.store(false, Ordering::Relaxed);
        });
    }

    /// Waits for the answer, at most until the deadline. After the deadline, it returns [`StoreError::Late`]. If too many
    /// answers in a row are late, it calls `renew`, which must replace the connection.
    pub(crate) async fn by<T>(
        &self,
        deadline: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
        renew: impl FnOnce(),
    ) -> Result<T, StoreError> {
        let answer = timeout(deadline, answer).await;
        if answer.is_ok() {
            self.late.store(0, Ordering::Relaxed);
        } else if self.late.fetch_add(1, Ordering::Relaxed) + 1 >= TOO_LATE {
            self.late.store(0, Ordering::Relaxed);
            renew();
        }
        answer.unwrap_or(Err(StoreError::Late))
    }
}
