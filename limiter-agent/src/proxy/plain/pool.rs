//! A worker's connections to the app for the short path: plain sockets without hyper.
//!
//! As in [`hyper::pool`](super::super::hyper::pool), the connection used last is used next, and a connection that was
//! idle for a whole interval is closed. If bytes or the end of the stream arrived on an idle connection, the pool never
//! uses it again: the agent would read unexpected bytes as the next response.

use std::{
    cell::RefCell,
    future::poll_fn,
    task::{Context, Poll, Waker},
};

use tokio::net::TcpStream;

/// The maximum number of idle connections. Additional connections are closed after use.
const MAX_IDLE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Pool(RefCell<Idle>);

#[derive(Debug, Default)]
struct Idle {
    stack: Vec<TcpStream>,
    /// The smallest height of the stack since the last check. Connections below this height were not used since then.
    low_water: usize,
    /// The task that watches the connection at the bottom. This is enough, because an app that stops closes all idle
    /// connections.
    watcher: Option<Waker>,
}

impl Pool {
    pub(super) fn pop(&self) -> Option<TcpStream> {
        let idle = &mut *self.0.borrow_mut();
        let found = loop {
            match idle.stack.pop() {
                Some(stream) if is_silent(&stream) => break Some(stream),
                Some(_) => {}
                None => break None,
            }
        };
        idle.low_water = idle.low_water.min(idle.stack.len());
        found
    }

    /// Adds a connection whose last response was read to its end, with no bytes after it.
    pub(super) fn push(&self, stream: TcpStream) {
        let idle = &mut *self.0.borrow_mut();
        if idle.stack.is_empty()
            && let Some(watcher) = &idle.watcher
            && stream.poll_read_ready(&mut Context::from_waker(watcher)).is_ready()
        {
            watcher.wake_by_ref();
        }
        if idle.stack.len() < MAX_IDLE {
            idle.stack.push(stream);
        }
    }

    /// Removes idle connections that the app has closed. Waits until there is at least one.
    pub(super) async fn closed_by_app(&self) {
        poll_fn(|cx| {
            let idle = &mut *self.0.borrow_mut();
            idle.watcher = Some(cx.waker().clone());
            let mut closed = false;
            while let Some(bottom) = idle.stack.first()
                && bottom.poll_read_ready(cx).is_ready()
            {
                // The event may still be from the last response.
                if !is_silent(bottom) {
                    closed = true;
                    idle.stack.retain(is_silent);
                }
            }
            idle.low_water = idle.low_water.min(idle.stack.len());
            if closed { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Closes the connections that were idle since the last call.
    pub(super) fn close_idle(&self) {
        let idle = &mut *self.0.borrow_mut();
        if idle.stack.drain(..idle.low_water).count() > 0
            && let Some(watcher) = &idle.watcher
        {
            // The watcher must register for the connection that is at the bottom now.
            watcher.wake_by_ref();
        }
        idle.low_water = idle.stack.len();
    }
}

/// Whether no bytes have arrived. Makes a system call only if the runtime received an event.
fn is_silent(stream: &TcpStream) -> bool {
    matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    async fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("bound");
        let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
        (ours.expect("connected"), theirs.expect("accepted").0)
    }

    #[tokio::test]
    async fn an_idle_connection_that_received_bytes_is_not_reused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let pool = Pool::default();
        let (silent, _silent_app) = pair(&listener).await;
        let (talking, mut talking_app) = pair(&listener).await;
        let (closed, closed_app) = pair(&listener).await;
        let port = silent.local_addr().expect("connected");
        talking_app.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("sent");
        drop(closed_app);
        for stream in [&talking, &closed] {
            stream.readable().await.expect("bytes or an end arrived");
        }
        [silent, talking, closed].into_iter().for_each(|stream| pool.push(stream));
        assert_eq!(pool.pop().expect("the silent connection").local_addr().expect("connected"), port);
        assert!(pool.pop().is_none());
    }

    #[tokio::test]
    async fn a_connection_idle_for_a_whole_interval_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let pool = Pool::default();
        let (low, _app) = pair(&listener).await;
        let (high, _other_app) = pair(&listener).await;
        let port = high.local_addr().expect("connected");
        [low, high].into_iter().for_each(|stream| pool.push(stream));
        pool.close_idle();
        let used = pool.pop().expect("the connection on top");
        assert_eq!(used.local_addr().expect("connected"), port);
        pool.push(used);
        pool.close_idle();
        assert_eq!(pool.pop().expect("the used connection").local_addr().expect("connected"), port);
        assert!(pool.pop().is_none(), "the other connection was closed");
    }

    #[tokio::test]
    async fn an_app_that_closes_what_is_idle_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let pool = Pool::default();
        let mut watch = std::pin::pin!(pool.closed_by_app());
        assert!(futures::poll!(&mut watch).is_pending());
        let mut apps = Vec::new();
        for _ in 0..3 {
            let (ours, app) = pair(&listener).await;
            pool.push(ours);
            apps.push(app);
        }
        // Replaces the connection at the bottom: a check closes it, and another one takes its position.
        pool.close_idle();
        let used = pool.pop().expect("three are idle");
        pool.close_idle();
        pool.push(used);
        assert!(futures::poll!(&mut watch).is_pending());
        apps.clear();
        tokio::time::timeout(std::time::Duration::from_secs(90), watch).await.expect("the pool detects it");
        assert!(pool.pop().is_none());
    }
}
