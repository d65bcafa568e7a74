//! Detects HTTP/2 clients that do not read a response.
//!
//! Over HTTP/1, a full socket shows this. In HTTP/2, each response has its own flow-control window. A client can leave
//! that window closed forever while everything else on the connection continues, and each such response occupies a
//! connection to the app. hyper polls for a frame of the body, and then waits until the window is open. It does not
//! report how long that takes. So the body records its last poll. If that was too long ago, the agent ends hyper's task for
//! the stream, which resets the stream and releases the app's connection.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper::rt::Executor;
use tokio::{
    task::spawn_local,
    time::{Sleep, sleep},
};

use super::activity::Activity;
use crate::{
    clock,
    proxy::read_progress::{ReadProgress, TAKING},
};

/// Runs the streams of a connection, and ends a stream if the client reads nothing of it for too long.
///
/// Streams take turns on a connection. While a slow client reads the connection steadily, a stream waits for the other
/// streams and not for the client. So its timeout is multiplied by the number of open streams.
#[derive(Clone, Debug)]
pub(super) struct Watching(pub(super) Arc<Activity>);

impl<F: Future<Output = ()> + 'static> Executor<F> for Watching {
    fn execute(&self, stream: F) {
        let taking = Arc::<ReadProgress>::default();
        let stream = Box::pin(TAKING.scope(Arc::clone(&taking), stream));
        spawn_local(Watched { stream, taking, connection: Arc::clone(&self.0), waiting: None });
    }
}

/// A stream that runs until it ends or the agent ends it.
struct Watched<F> {
    stream: Pin<Box<F>>,
    taking: Arc<ReadProgress>,
    connection: Arc<Activity>,
    waiting: Option<Waiting>,
}

struct Waiting {
    /// The result of [`ReadProgress::waits`] when the timer was set.
    with: u64,
    /// The result of [`Activity::stuck_after`] when the timer was set.
    stuck_after: Option<u64>,
    /// The number of timeouts since then in which other streams made progress.
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
        let connection = &this.connection;
        let timeout = connection.open.proxy.settings.stall_timeout;
        let waiting = this.waiting.get_or_insert_with(|| Waiting {
            with: waits,
            stuck_after: connection.stuck_after(),
            turns: 0,
            until: Box::pin(sleep(timeout)),
        });
        if waiting.with != waits {
            (waiting.with, waiting.stuck_after, waiting.turns) = (waits, connection.stuck_after(), 0);
            waiting.until.as_mut().reset(clock::now() + timeout);
        }
        loop {
            ready!(waiting.until.as_mut().poll(cx));
            let stuck_after = connection.stuck_after();
            let (open, _) = connection.requests();
            if stuck_after.is_none() || stuck_after == waiting.stuck_after || waiting.turns >= open {
                tracing::debug!("the client does not read its response");
                return Poll::Ready(());
            }
            (waiting.stuck_after, waiting.turns) = (stuck_after, waiting.turns + 1);
            waiting.until.as_mut().reset(clock::now() + timeout);
        }
    }
}
