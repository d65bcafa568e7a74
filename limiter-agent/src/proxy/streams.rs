//! A worker's HTTP/2 connections to the app: one, and more when it has as many streams open as the app allows.
//!
//! The windows are such that all streams of a connection can be held up by clients that do not read, and the next still
//! gets through: nobody waits for another client.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    pin::pin,
    rc::Rc,
    sync::Arc,
};

use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Mutex;

use super::{address::AppAddress, app::ConnectError, body::RequestBody, client::OnThisThread};

/// Streams of one connection at most, if the app allows that many.
const MAX_STREAMS: usize = 100;

/// How much of one response is taken while the client does not read it, and of all on a connection together.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = STREAM_WINDOW * 100;

/// How large the head of a response may be.
const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// How much of one request is held while the app does not read it.
const SEND_BUFFER: usize = 64 * 1024;

/// The HTTP/2 connections of one worker.
#[derive(Debug)]
pub(super) struct Streams {
    address: Arc<AppAddress>,
    connections: RefCell<Vec<Rc<Connection>>>,
    /// Held while a connection is made, so that a burst makes one and not one each.
    connecting: Mutex<()>,
}

#[derive(Debug)]
struct Connection {
    sender: http2::SendRequest<RequestBody>,
    open: Cell<usize>,
    /// What the app allows.
    max: Cell<usize>,
    /// Whether it was in use since the last check.
    used: Cell<bool>,
}

/// One stream, as long as this lives.
#[derive(Debug)]
pub(super) struct Stream {
    connection: Rc<Connection>,
    /// Its connection was made for this request: if it fails, no other would do better.
    pub(super) fresh: bool,
}

impl Streams {
    pub(super) fn new(address: Arc<AppAddress>) -> Self {
        Self { address, connections: RefCell::default(), connecting: Mutex::default() }
    }

    /// Whether there is a connection to the app now.
    pub(super) fn any(&self) -> bool {
        self.connections.borrow().iter().any(|connection| !connection.sender.is_closed())
    }

    /// A stream on a connection that has room for it, or else on a new one.
    pub(super) async fn open(&self) -> Result<Stream, ConnectError> {
        if let Some(stream) = self.on_existing() {
            return Ok(stream);
        }
        let _turn = self.connecting.lock().await;
        if let Some(stream) = self.on_existing() {
            return Ok(stream);
        }
        let connection = self.connect().await?;
        self.connections.borrow_mut().push(Rc::clone(&connection));
        Ok(Stream::on(connection, true))
    }

    /// Forgets what is closed, and what nothing was asked on since the last call.
    pub(super) fn close_idle(&self) {
        self.connections.borrow_mut().retain(|connection| {
            !connection.sender.is_closed() && (connection.used.replace(false) || connection.open.get() > 0)
        });
    }

    fn on_existing(&self) -> Option<Stream> {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| !connection.sender.is_closed());
        let free = connections.iter().find(|connection| connection.open.get() < connection.max.get())?;
        Some(Stream::on(Rc::clone(free), false))
    }

    async fn connect(&self) -> Result<Rc<Connection>, ConnectError> {
        let stream = self.address.connect().await?;
        let (sender, driver) = http2::Builder::new(OnThisThread)
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectError::Handshake(self.address.named(), error))?;
        let max = Cell::new(MAX_STREAMS);
        let connection = Rc::new(Connection { sender, open: Cell::new(0), max, used: Cell::new(true) });
        let weak = Rc::downgrade(&connection);
        let address = Arc::clone(&self.address);
        tokio::task::spawn_local(async move {
            let mut driver = pin!(driver);
            let ended = poll_fn(|cx| {
                let ended = driver.as_mut().poll(cx);
                if let Some(connection) = weak.upgrade() {
                    // 0 would be an app that takes nothing for now: hyper holds the one request until it does.
                    connection.max.set(driver.current_max_send_streams().clamp(1, MAX_STREAMS));
                }
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            // One that is idle for too long is dropped before it ends.
            if weak.strong_count() > 0 {
                address.suspect();
            }
        });
        Ok(connection)
    }
}

impl Stream {
    fn on(connection: Rc<Connection>, fresh: bool) -> Self {
        connection.open.set(connection.open.get() + 1);
        connection.used.set(true);
        Self { connection, fresh }
    }

    pub(super) fn sender(&self) -> http2::SendRequest<RequestBody> {
        self.connection.sender.clone()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.open.set(self.connection.open.get() - 1);
    }
}

/// Whether the app said that it did nothing about the request (RFC 9113 section 8.7): it may be sent again, whatever it
/// asks.
pub(super) fn is_unprocessed(error: &hyper::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
            // Streams that a GOAWAY leaves to be finished do not get to see it.
            let leaving = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
            return error.is_remote() && (refused || leaving);
        }
        source = error.source();
    }
    false
}
