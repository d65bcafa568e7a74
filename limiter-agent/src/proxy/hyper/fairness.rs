//! Fairness between the connections of a worker. A peer that sends faster than the agent reads would otherwise stop all other
//! connections.

use std::{
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    task::yield_now,
};

/// The number of bytes that a connection may read in one turn of its task.
pub(super) const READ_BUDGET: usize = 256 * 1024;

/// Ends the turn of a task. The task continues when the worker has served all other tasks, sockets and timers.
///
/// A task that wakes itself continues before sockets and timers: the runtime looks for these only after 61 turns.
pub(super) fn give_way<T>(cx: &mut Context<'_>) -> Poll<T> {
    // The first poll hands the waker to the runtime.
    let _pending = pin!(yield_now()).poll(cx);
    Poll::Pending
}

/// The reading side of a connection to the app, for hyper. hyper reads on while the app sends interim responses, or
/// digits of the size of a chunk.
#[derive(Debug)]
pub(super) struct FairReader<R> {
    reader: R,
    /// The number of bytes that hyper has read in this turn.
    read: usize,
}

impl<R> FairReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, read: 0 }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for FairReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read >= READ_BUDGET {
            self.read = 0;
            return give_way(cx);
        }
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.reader).poll_read(cx, buf);
        self.read = if outcome.is_pending() { 0 } else { self.read + buf.filled().len() - before };
        outcome
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, repeat};

    use super::*;

    #[tokio::test]
    async fn an_app_that_always_sends_gets_one_turn_after_the_other() {
        let mut app = FairReader::new(repeat(b'1'));
        let mut buffer = vec![0; READ_BUDGET / 4];
        for _ in 0..3 {
            let mut read = 0;
            while let Some(count) = app.read(&mut buffer).now_or_never() {
                read += count.expect("the app sends");
            }
            assert_eq!(read, READ_BUDGET);
        }
    }
}
