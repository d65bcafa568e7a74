//! A worker's HTTP/2 connections to the app: one connection, and more if it has as many open streams as the app allows.
//!
//! The windows are so large that no client waits for another: even if clients that do not read block all open streams
//! of a connection, the next stream still makes progress. One case remains: h2 bounds the memory of unread frames, and
//! ends a connection beyond [`CONNECTION_WINDOW`].

use std::{
    cell::RefCell,
    error::Error,
    future::poll_fn,
    iter,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::task::AtomicWaker;
use hyper::{client::conn::http2, rt::Executor};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    sync::{self, oneshot},
    task::spawn_local,
    time::timeout,
};
use tokio_util::io::InspectReader;

use super::request_body::ForwardedBody;
use crate::proxy::{
    app::{AppAddress, ConnectError},
    stalled_uploads::{CURRENT, Stall, Upload},
};

/// The maximum number of streams on one connection, if the app allows as many.
const MAX_STREAMS: usize = 100;

/// The maximum number of bytes of one response to accept while its client does not read them. With 32 KiB, several
/// large responses at the same time would be faster, but an unread stream could have twice as many small frames.
const STREAM_WINDOW: u32 = 16 * 1024;

/// The window of a connection. The stream windows already bound its unread bytes. h2 also counts 256 bytes for each
/// unread frame of less data, without its data. If this is more than half of the window of the connection, h2 ends the
/// connection. So 100 streams of frames of 12 bytes or more can be unread, and the memory of these frames is at most
/// 32 MiB.
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;

/// The maximum size of a response's head.
const MAX_HEADER_BYTES: u32 = 64 * 1024;

/// The maximum number of bytes of one request to buffer while the app does not read it.
const SEND_BUFFER: usize = 64 * 1024;

/// How long to wait for the app's first SETTINGS, which say how many streams it allows. Each app sends them at once.
const SETTINGS_TIMEOUT: Duration = Duration::from_secs(2);

/// The HTTP/2 connections of one worker.
#[derive(Debug)]
pub(super) struct Streams {
    address: Arc<AppAddress>,
    connections: Mutex<Vec<Arc<Connection>>>,
    /// Locked while a connection is opened, so that a burst of requests opens only one.
    connecting: sync::Mutex<()>,
}

#[derive(Debug)]
struct Connection {
    sender: http2::SendRequest<ForwardedBody>,
    open: AtomicUsize,
    /// The maximum number of streams that the app allows.
    max: AtomicUsize,
    /// Whether the connection was used since the last check.
    used: AtomicBool,
}

/// One stream. It counts as open until this value is dropped.
#[derive(Debug)]
pub(super) struct Stream {
    connection: Arc<Connection>,
    /// The connection was opened for this request. If it fails, a retry on another connection would fail, too.
    pub(super) fresh: bool,
}

impl Streams {
    pub(super) fn new(address: Arc<AppAddress>) -> Self {
        Self { address, connections: Mutex::default(), connecting: sync::Mutex::default() }
    }

    /// Whether there is a connection to the app now.
    pub(super) fn any(&self) -> bool {
        self.connections().iter().any(|connection| !connection.sender.is_closed())
    }

    /// Opens a stream on a connection with capacity, or on a new connection.
    pub(super) async fn open(&self) -> Result<Stream, ConnectError> {
        if let Some(stream) = self.on_existing() {
            return Ok(stream);
        }
        let _turn = self.connecting.lock().await;
        if let Some(stream) = self.on_existing() {
            return Ok(stream);
        }
        let connection = Box::pin(self.connect()).await?;
        self.connections().push(Arc::clone(&connection));
        Ok(Stream::on(connection, true))
    }

    /// Drops connections that are closed, or were not used since the last call.
    pub(super) fn close_idle(&self) {
        self.connections().retain(|connection| {
            !connection.sender.is_closed()
                && (connection.used.swap(false, Relaxed) || connection.open.load(Relaxed) > 0)
        });
    }

    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn on_existing(&self) -> Option<Stream> {
        let mut connections = self.connections();
        connections.retain(|connection| !connection.sender.is_closed());
        let free =
            connections.iter().find(|connection| connection.open.load(Relaxed) < connection.max.load(Relaxed))?;
        Some(Stream::on(Arc::clone(free), false))
    }

    /// Opens a connection, and waits for the number of streams that the app allows. An app refuses more streams, and a
    /// request whose body has been read cannot be sent again.
    async fn connect(&self) -> Result<Arc<Connection>, ConnectError> {
        let stream = self.address.connect().await?;
        let on_read = Arc::new(AtomicWaker::new());
        let waker = Arc::clone(&on_read);
        let stream = InspectReader::new(stream, move |_: &[u8]| waker.wake());
        let (sender, driver) = http2::Builder::new(AppTasks)
            .timer(TokioTimer::new())
            .initial_max_send_streams(0)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_send_buf_size(SEND_BUFFER)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| ConnectError::Handshake(self.address.named(), error))?;
        let (open, max, used) = (0.into(), 1.into(), true.into());
        let connection = Arc::new(Connection { sender, open, max, used });
        let weak = Arc::downgrade(&connection);
        let address = Arc::clone(&self.address);
        let (sender, has_settings) = oneshot::channel();
        spawn_local(CURRENT.scope(RefCell::default(), async move {
            let mut driver = pin!(driver);
            let mut sender = Some(sender);
            let ended = poll_fn(|cx| {
                if sender.is_some() {
                    // Another task of hyper reads the SETTINGS.
                    on_read.register(cx.waker());
                }
                let ended = driver.as_mut().poll(cx);
                let max = driver.current_max_send_streams();
                if let Some(connection) = weak.upgrade() {
                    // With 0, the app accepts no streams for now, and hyper delays one request until the app accepts a
                    // stream.
                    connection.max.store(max.clamp(1, MAX_STREAMS), Relaxed);
                }
                if let Some(sender) = sender.take_if(|_| max > 0 || ended.is_ready()) {
                    let _ = sender.send(());
                }
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "upstream connection ended");
            }
            // A connection that is still in the pool was closed by the app: the pool drops an idle connection before
            // this task ends.
            if weak.strong_count() > 0 {
                address.suspect();
            }
        }));
        // Without SETTINGS, the request waits for them on the connection.
        let _ = timeout(SETTINGS_TIMEOUT, has_settings).await;
        Ok(connection)
    }
}

impl Stream {
    fn on(connection: Arc<Connection>, fresh: bool) -> Self {
        connection.open.fetch_add(1, Relaxed);
        connection.used.store(true, Relaxed);
        Self { connection, fresh }
    }

    pub(super) fn sender(&self) -> http2::SendRequest<ForwardedBody> {
        self.connection.sender.clone()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.open.fetch_sub(1, Relaxed);
    }
}

/// Runs hyper's tasks on the connection's own thread, and ends the task of an upload that the agent has given up.
///
/// hyper polls a body once before it starts a task for it. So the upload of a new task is the one that was entered last.
#[derive(Clone, Copy, Debug)]
pub(super) struct AppTasks;

impl<F: Future<Output = ()> + 'static> Executor<F> for AppTasks {
    fn execute(&self, task: F) {
        match CURRENT.try_with(RefCell::take) {
            Ok(Some(upload)) => spawn_local(Watched { task: Box::pin(task), upload, waits: None, stall: None }),
            _ => spawn_local(task),
        };
    }
}

/// A task that sends an upload.
struct Watched<F> {
    task: Pin<Box<F>>,
    upload: Arc<Upload>,
    /// The result of [`ReadProgress::waits`](crate::proxy::read_progress::ReadProgress::waits) when the pause began.
    waits: Option<u64>,
    stall: Option<Stall>,
}

impl<F: Future<Output = ()>> Future for Watched<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.task.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let waits = this.upload.progress.waits();
        if waits != this.waits {
            (this.waits, this.stall) = (waits, None);
        }
        if waits.is_some() {
            ready!(this.stall.get_or_insert_with(|| Stall::new(&this.upload)).poll_given_up(cx));
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

/// Whether the app reported that it did not process the request (RFC 9113 section 8.7). Then a request with any method
/// can be retried.
pub(super) fn is_unprocessed(error: &hyper::Error) -> bool {
    http2_error(error).is_some_and(|error| {
        let refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
        // A stream that can finish after a GOAWAY does not get this error.
        let leaving = error.is_go_away() && error.reason() == Some(h2::Reason::NO_ERROR);
        error.is_remote() && (refused || leaving)
    })
}

/// Whether the connection ended before a response. A reset of the stream and an invalid response do not count, because
/// the app answered.
pub(super) fn is_cut_off(error: &hyper::Error) -> bool {
    http2_error(error).is_none_or(|error| {
        // The unread frames of other streams took too much memory.
        let flooded = error.is_library() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM);
        error.is_go_away() && (error.is_remote() || flooded)
    })
}

/// The error of HTTP/2 behind `error`, or `None` for an error of the socket.
pub(super) fn http2_error(error: &hyper::Error) -> Option<&h2::Error> {
    iter::successors(error.source(), |&error| error.source()).find_map(|error| error.downcast_ref())
}
