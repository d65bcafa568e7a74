//! A worker's HTTP/1.1 connections to the app.
//!
//! All connections go to one address, so the pool is a stack: the connection used last is used next, and those at the
//! bottom become idle. Two things must not happen. A connection with unread bytes must not be used again, so only a
//! finished body returns its [`PooledConnection`] to the pool. And a connection that the app closed while it was idle
//! must not fail a request (see [`PooledConnection::fresh`] and [`IDLE_CHECK`](super::IDLE_CHECK)).

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::Version;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::{app_stream::AppStream, fairness::FairReader, request_body::ForwardedBody};
use crate::proxy::{
    app::{AppAddress, ConnectError},
    headers::{MAX_ANSWER_BYTES, MAX_ANSWER_FIELDS},
    stalled_uploads::CURRENT,
};

/// The maximum number of idle connections. Additional connections are closed after use.
const MAX_IDLE: usize = 1024;

type Sender = http1::SendRequest<ForwardedBody>;

/// The HTTP/1.1 connections of one worker.
#[derive(Debug)]
pub(super) struct Pool {
    address: Arc<AppAddress>,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    stack: Vec<Sender>,
    /// The smallest height of the stack since the last check. Connections below this height were not used since then.
    low_water: usize,
}

/// One connection, for one request.
#[derive(Debug)]
pub(super) struct PooledConnection {
    pub(super) sender: Sender,
    /// The connection was opened for this request. If it fails, a retry on another connection would fail, too.
    pub(super) fresh: bool,
    /// The app responds with HTTP/1.0. On this connection hyper would then send HTTP/1.0 requests, and a body of
    /// unknown length without an end marker: the app would read the body as the next request.
    once: bool,
    pool: Arc<Pool>,
}

impl Pool {
    pub(super) fn new(address: Arc<AppAddress>) -> Arc<Self> {
        Arc::new(Self { address, idle: Mutex::default() })
    }

    /// An idle connection, or a new one if there is none.
    pub(super) async fn checkout(self: &Arc<Self>) -> Result<PooledConnection, ConnectError> {
        match self.pop() {
            Some(sender) => Ok(PooledConnection { sender, fresh: false, once: false, pool: Arc::clone(self) }),
            None => Box::pin(self.connect()).await,
        }
    }

    /// A new connection, for a request that failed on an idle one.
    pub(super) async fn connect(self: &Arc<Self>) -> Result<PooledConnection, ConnectError> {
        let (reader, writer) = self.address.connect().await?.into_split();
        let io = TokioIo::new(AppStream::new(tokio::io::join(FairReader::new(reader), writer)));
        let (sender, connection) = http1::Builder::new()
            .max_headers(MAX_ANSWER_FIELDS)
            .max_header_size(MAX_ANSWER_BYTES)
            .max_buf_size(MAX_ANSWER_BYTES)
            .handshake(io)
            .await
            .map_err(|error| ConnectError::Handshake(self.address.named(), error))?;
        let pool = Arc::downgrade(self);
        tokio::task::spawn_local(CURRENT.scope(RefCell::default(), async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection ended");
            }
            if let Some(pool) = pool.upgrade()
                && pool.forget_closed()
            {
                pool.address.suspect();
            }
        }));
        Ok(PooledConnection { sender, fresh: true, once: false, pool: Arc::clone(self) })
    }

    /// Closes the connections that were idle since the last call.
    pub(super) fn close_idle(&self) {
        let idle = &mut *self.idle();
        idle.stack.drain(..idle.low_water);
        idle.low_water = idle.stack.len();
    }

    /// Removes idle connections that the app has closed. Returns whether there were any.
    fn forget_closed(&self) -> bool {
        let idle = &mut *self.idle();
        let before = idle.stack.len();
        idle.stack.retain(|sender| !sender.is_closed());
        idle.low_water = idle.low_water.min(idle.stack.len());
        idle.stack.len() < before
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Sender> {
        let idle = &mut *self.idle();
        let mut busy = None;
        let mut found = None;
        while let Some(sender) = idle.stack.pop() {
            if sender.is_ready() {
                found = Some(sender);
                break;
            }
            // The connection is closed, or was returned a moment ago and has not finished its last request. One busy
            // connection may become ready soon. After a second one in a row, looking further is useless.
            if !sender.is_closed()
                && let Some(first) = busy.replace(sender)
            {
                idle.stack.push(first);
                break;
            }
        }
        idle.stack.extend(busy);
        idle.low_water = idle.low_water.min(idle.stack.len());
        found
    }
}

impl PooledConnection {
    /// Records the version of the response.
    pub(super) fn answered(&mut self, version: Version) {
        self.once |= version < Version::HTTP_11;
    }

    /// Returns the connection to the pool. Call this function when the response was read to its end.
    pub(super) fn give_back(self) {
        let idle = &mut *self.pool.idle();
        if !self.once && idle.stack.len() < MAX_IDLE && !self.sender.is_closed() {
            idle.stack.push(self.sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, task::LocalSet};
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn an_app_that_closes_what_is_idle_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let at = listener.local_addr().expect("bound");
        let address = Arc::new(AppAddress::new(at, ([127, 0, 0, 2], 1).into(), &CancellationToken::new()));
        let pool = Pool::new(Arc::clone(&address));
        let noticed = async {
            let (connection, app) = tokio::join!(pool.connect(), listener.accept());
            connection.expect("connected").give_back();
            drop(app);
            address.suspected().await;
        };
        let patience = std::time::Duration::from_secs(90);
        tokio::time::timeout(patience, LocalSet::new().run_until(noticed)).await.expect("the pool detects it");
        assert!(pool.pop().is_none());
    }
}
