//! Clients of HTTP/2 that do not take an answer.
//!
//! Over HTTP/1 it is the socket that does not take more. Here each answer has a window of its own, which a client can leave closed for
//! ever, on a connection on which everything else goes on; behind each is a connection to the app. hyper asks a body for more only
//! while there is room for it, and tells nobody how long there was none. So the body notes when it was last asked, and the task that
//! hyper runs for the stream is ended when that was too long ago: that resets the stream, and lets go of the app.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use hyper::rt::Executor;
use tokio::{
    task::spawn_local,
    task_local,
    time::{Instant, Sleep, sleep},
};

use super::activity::Activity;

task_local! {
    /// Of the stream that the task is about.
    static TAKING: Arc<Taking>;
}

/// Whether a client takes its answer: counts up with each frame of the body, and with each time that it is asked for the next. So
/// it is odd while the client has to take what there is.
#[derive(Debug, Default)]
pub(super) struct Taking(AtomicU64);

impl Taking {
    /// That of the stream that is being answered; none over HTTP/1.
    pub(super) fn current() -> Option<Arc<Self>> {
        TAKING.try_with(Arc::clone).ok()
    }

    /// There is room for more.
    pub(super) fn asked(&self) {
        if self.waits().is_some() {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// There was more.
    pub(super) fn given(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// For what is waited, while it is the client that has to do something.
    fn waits(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|count| count % 2 == 1)
    }
}

/// Runs the streams of a connection, each until its client has taken nothing for so long.
///
/// Streams take turns on a connection. While a slow client reads the connection steadily, a stream waits for its turn, and not for the
/// client: so it is given as much time for each of the streams that are open.
#[derive(Clone, Debug)]
pub(super) struct Watching {
    patience: Duration,
    connection: Arc<Activity>,
}

impl Watching {
    pub(super) fn new(patience: Duration, connection: &Arc<Activity>) -> Self {
        Self { patience, connection: Arc::clone(connection) }
    }
}

impl<F: Future<Output = ()> + 'static> Executor<F> for Watching {
    fn execute(&self, stream: F) {
        let taking = Arc::<Taking>::default();
        let stream = Box::pin(TAKING.scope(Arc::clone(&taking), stream));
        spawn_local(Watched { stream, taking, watching: self.clone(), waiting: None });
    }
}

/// A stream until it ends, or is ended.
struct Watched<F> {
    stream: Pin<Box<F>>,
    taking: Arc<Taking>,
    watching: Watching,
    waiting: Option<Waiting>,
}

struct Waiting {
    /// As [`Taking::waits`].
    with: u64,
    /// As [`Activity::stuck_after`], when the timer was set.
    stuck_after: Option<u64>,
    /// How often others had their turn since.
    turns: u64,
    until: Pin<Box<Sleep>>,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some(waits) = this.taking.waits() else {
            this.waiting = None;
            return Poll::Pending;
        };
        let Watching { patience, connection } = &this.watching;
        let waiting = this.waiting.get_or_insert_with(|| Waiting {
            with: waits,
            stuck_after: connection.stuck_after(),
            turns: 0,
            until: Box::pin(sleep(*patience)),
        });
        if waiting.with != waits {
            (waiting.with, waiting.stuck_after, waiting.turns) = (waits, connection.stuck_after(), 0);
            waiting.until.as_mut().reset(Instant::now() + *patience);
        }
        loop {
            ready!(waiting.until.as_mut().poll(cx));
            let stuck_after = connection.stuck_after();
            let (open, _) = connection.requests();
            if stuck_after.is_none() || stuck_after == waiting.stuck_after || waiting.turns >= open {
                tracing::debug!("client does not read its response");
                return Poll::Ready(());
            }
            (waiting.stuck_after, waiting.turns) = (stuck_after, waiting.turns + 1);
            waiting.until.as_mut().reset(Instant::now() + *patience);
        }
    }
}
