//! A connection that many questions share. A separate task opens it when a question needs it. Each question waits for
//! that task until its own deadline. No caller holds a lock while it waits.

use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use weir_seats::StoreError;

/// The number of late answers in a row after which the connection counts as half open, and is replaced.
const TOO_LATE: u32 = 3;

/// The longest pause after a replacement of the connection. The shortest is half of it.
const PAUSE: Duration = Duration::from_secs(6);

#[derive(Debug)]
pub(crate) struct StoreConnection<C> {
    state: watch::Sender<State<C>>,
    late: AtomicU32,
    /// True while a task opens a connection that replaces the open one, and for a pause after this.
    is_replacing: AtomicBool,
}

#[derive(Clone, Debug)]
enum State<C> {
    Idle,
    Opening,
    Open(C),
    Failed(StoreError),
}

/// The task that opens a connection. Its end is the new state, even if it unwinds: a panic must not look like a slow
/// store.
struct Opening<C> {
    connection: Arc<StoreConnection<C>>,
    opened: Option<Result<C, StoreError>>,
}

impl<C> Opening<C> {
    fn end(mut self, opened: Result<C, StoreError>) {
        self.opened = Some(opened);
    }
}

impl<C> Drop for Opening<C> {
    fn drop(&mut self) {
        let ended = || Err(StoreError::Lost("the task that opens the connection has ended".to_owned()));
        let opened = self.opened.take().unwrap_or_else(ended);
        self.connection.state.send_replace(opened.map_or_else(State::Failed, State::Open));
    }
}

/// The task that replaces a connection.
struct Replacing<C>(Weak<StoreConnection<C>>);

impl<C> Drop for Replacing<C> {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.is_replacing.store(false, Ordering::Relaxed);
        }
    }
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
            let opening = Opening { connection: Arc::clone(self), opened: None };
            let open = open();
            // A separate task opens the connection, because the question that starts it can be cancelled.
            tokio::spawn(async move { opening.end(open.await) });
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
    ///
    /// A client of a cluster opens connections to all nodes, and if one node is overloaded, many answers are late. So a pause
    /// follows each replacement. It is random, because many programs have the same late answers.
    pub(crate) fn replace(self: &Arc<Self>, opening: impl Future<Output = Result<C, StoreError>> + Send + 'static) {
        if self.is_replacing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (this, replacing) = (Arc::clone(self), Replacing(Arc::downgrade(self)));
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
            // The task does not keep the connection while it sleeps.
            drop(this);
            sleep(PAUSE.mul_f64(0.5 + random() / 2.0)).await;
            drop(replacing);
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

/// A random number from zero to one.
fn random() -> f64 {
    f64::from(u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// For a minute, every answer is late, and opening a connection is fast.
    #[tokio::test(start_paused = true)]
    async fn late_answers_replace_the_connection_rarely() {
        let (connection, opened) = (Arc::new(StoreConnection::default()), Arc::new(AtomicU32::new(0)));
        let open = || {
            let opened = Arc::clone(&opened);
            async move { Ok(opened.fetch_add(1, Ordering::Relaxed)) }
        };
        assert_eq!(connection.get(open).await, Ok(0));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let renew = || connection.replace(open());
            let late = connection.by(Duration::from_millis(10), std::future::pending::<Result<(), _>>(), renew).await;
            assert_eq!(late, Err(StoreError::Late));
        }
        let opened = opened.load(Ordering::Relaxed);
        assert!((10..=21).contains(&opened), "{opened}");
        assert_eq!(connection.get(open).await, Ok(opened - 1), "the newest connection is in use");
    }

    async fn panics() -> Result<u8, StoreError> {
        panic!("a library panics")
    }

    /// Time is paused, so a wait that never ends would be late immediately.
    #[tokio::test(start_paused = true)]
    async fn a_panic_of_an_opening_task_is_a_failure_with_its_cause() {
        let connection = Arc::new(StoreConnection::default());
        let opened = timeout(Duration::from_secs(60), connection.get(panics)).await.expect("not late");
        assert_eq!(opened, Err(StoreError::Lost("the task that opens the connection has ended".to_owned())));
        assert_eq!(connection.get(async || Ok(1)).await, Ok(1), "the next question opens it again");

        connection.replace(panics());
        tokio::task::yield_now().await;
        connection.replace(async { Ok(2) });
        tokio::task::yield_now().await;
        assert_eq!(connection.get(panics).await, Ok(2), "another task replaces the connection");
    }
}
