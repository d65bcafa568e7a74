//! A worker's connections to the app that nobody reads but this module: plain sockets, without hyper around them.
//!
//! As in the ordinary [`pool`](super::super::pool) the connection used last is used next, and one that was idle for a
//! whole interval is closed. One on which anything came while it was idle, be it bytes or an end, is never used again:
//! bytes that nobody asked for would be taken for the next answer.

use std::cell::RefCell;

use tokio::net::TcpStream;

/// Connections kept at most; beyond it they are closed after use.
const MAX_IDLE: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Pool(RefCell<Idle>);

#[derive(Debug, Default)]
struct Idle {
    stack: Vec<TcpStream>,
    /// The smallest height of the stack since the last check: what is below it was not used since.
    low_water: usize,
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

    /// Takes a connection whose last answer was read to its end, and nothing behind it.
    pub(super) fn push(&self, stream: TcpStream) {
        let idle = &mut *self.0.borrow_mut();
        if idle.stack.len() < MAX_IDLE {
            idle.stack.push(stream);
        }
    }

    /// Closes what was idle since the last call.
    pub(super) fn close_idle(&self) {
        let idle = &mut *self.0.borrow_mut();
        idle.stack.drain(..idle.low_water);
        idle.low_water = idle.stack.len();
    }
}

/// Whether nothing has come. Costs no system call unless the runtime knows of something.
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
    async fn what_said_something_while_idle_is_not_used_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let pool = Pool::default();
        let (silent, _silent_app) = pair(&listener).await;
        let (talking, mut talking_app) = pair(&listener).await;
        let (closed, closed_app) = pair(&listener).await;
        let port = silent.local_addr().expect("connected");
        talking_app.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.expect("sent");
        drop(closed_app);
        for stream in [&talking, &closed] {
            stream.readable().await.expect("something came");
        }
        [silent, talking, closed].into_iter().for_each(|stream| pool.push(stream));
        assert_eq!(pool.pop().expect("the silent one").local_addr().expect("connected"), port);
        assert!(pool.pop().is_none());
    }

    #[tokio::test]
    async fn what_was_idle_for_a_whole_interval_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let pool = Pool::default();
        let (low, _app) = pair(&listener).await;
        let (high, _other_app) = pair(&listener).await;
        let port = high.local_addr().expect("connected");
        [low, high].into_iter().for_each(|stream| pool.push(stream));
        pool.close_idle();
        let used = pool.pop().expect("the one on top");
        assert_eq!(used.local_addr().expect("connected"), port);
        pool.push(used);
        pool.close_idle();
        assert_eq!(pool.pop().expect("used since").local_addr().expect("connected"), port);
        assert!(pool.pop().is_none(), "the other one was not");
    }
}
