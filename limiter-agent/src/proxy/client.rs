//! One client connection, from its first byte to its end, with any protocol.
//!
//! An idle connection is only a socket and a timer. hyper's state and buffers are created when bytes arrive, and
//! dropped when the connection is idle. So thousands of clients can keep their connections alive.
//!
//! Before the agent closes a connection on which the client may still send, it informs the client (by a FIN,
//! `Connection: close`, or GOAWAY) and waits for a short time. Otherwise the kernel would answer with a reset, which
//! also discards the data that the client has not read yet.
//!
//! An HTTP/1 client that closes its sending side may still wait for its response, or may have disconnected. The agent
//! cannot distinguish these cases, so it still sends the response. The client counts as disconnected if there is
//! nothing to write for a few seconds, or if it answers a write with a reset. If a client resets the connection, the
//! agent detects this immediately.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, UPGRADE},
};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{sleep, sleep_until, timeout, timeout_at},
};

use super::{
    activity::{Activity, Answer, Answering},
    failure::AppDown,
    http1_path::{End, Http1Path},
    open::{HALF_CLOSED_TIMEOUT, Open},
    request_body::RequestBody,
    socket::{Goodbye, Socket},
    stall::Watching,
    strict::{Strict, is_h2c},
    traffic::Protocol,
};
use crate::{clock, slots::Eviction};

/// An HTTP/2 connection begins with these bytes (RFC 9113 section 3.4). No HTTP/1 request begins with them.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The time limit for a preface that arrives in pieces, and the interval at which to check for the rest.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
const PREFACE_PAUSE: Duration = Duration::from_millis(10);

/// The time limit for the first request on a connection, from its acceptance, while the app is down or during a drain.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);

/// The idle time after which a connection releases its buffers, and the interval between checks for a stall.
const TICK: Duration = Duration::from_secs(1);

/// The maximum number of bytes to accept while the app does not read them: of one HTTP/2 request body, and of all
/// bodies on a connection together.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// The maximum number of bytes of one HTTP/2 response to buffer while the client does not read it.
const SEND_BUFFER: usize = 64 * 1024;

/// The next event on an idle connection.
enum Next {
    Http1,
    Http2,
    /// The client has disconnected, or the connection must end.
    End,
}

impl Next {
    fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Http1 => Some(Protocol::Http1),
            Self::Http2 => Some(Protocol::Http2),
            Self::End => None,
        }
    }
}

/// Serves one client until it disconnects or the drain ends the connection. `service` gets every request that the short
/// path does not take.
pub(super) async fn serve<S, F>(mut stream: TcpStream, service: S, short: Option<impl Http1Path>, open: &Arc<Open>)
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let through_hyper = ThroughHyper { service: &service, open };
    let mut before = Bytes::new();
    let mut first = true;
    let mut used = false;
    let mut speaking = None;
    loop {
        let next = if before.is_empty() { next(&stream, first, open).await } else { Next::Http1 };
        if let Some(protocol) = next.protocol() {
            speaking.get_or_insert_with(|| open.proxy.traffic.speaking(protocol));
        }
        match next {
            Next::Http1 => {}
            Next::Http2 => return Box::pin(http2(stream, service, open)).await,
            Next::End => return leave(stream, open).await,
        }
        let end = match &short {
            Some(short) => short.serve(stream, before, used).await,
            None => End::HandOver(stream, before, used),
        };
        let end = match end {
            End::HandOver(stream, before, used) => through_hyper.serve(stream, before, used).await,
            end => end,
        };
        match end {
            End::HandOver(with, bytes, answered) => (stream, before, used) = (with, bytes, answered),
            End::Leave(stream) => return leave(stream, open).await,
            End::Closed => return,
        }
        first = false;
    }
}

/// Waits for the first bytes of a request without reading them.
async fn next(stream: &TcpStream, first: bool, open: &Open) -> Next {
    let proxy = &open.proxy;
    open.rest(proxy.clock.now());
    let next = parked(stream, first, open).await;
    if open.work() { next } else { Next::End }
}

/// Waits for the first bytes, like [`next`]. Meanwhile the connection can be evicted.
async fn parked(stream: &TcpStream, first: bool, open: &Open) -> Next {
    let proxy = &open.proxy;
    let _parked = proxy.traffic.park();
    let look = async {
        let mut start = [0; PREFACE.len()];
        let begun = async {
            loop {
                match stream.peek(&mut start).await {
                    Ok(0) | Err(_) => return Next::End,
                    Ok(count) if !first || !PREFACE.starts_with(&start[..count]) => return Next::Http1,
                    Ok(count) if count == PREFACE.len() => return Next::Http2,
                    // While bytes are unread, the socket does not signal new ones.
                    Ok(_) => sleep(PREFACE_PAUSE).await,
                }
            }
        };
        // The preface's time limit does not apply to the first byte.
        match stream.readable().await {
            Ok(()) => timeout(PREFACE_TIMEOUT, begun).await.unwrap_or(Next::Http1),
            Err(_) => Next::End,
        }
    };
    let up = proxy.upstream.up();
    let (look, dismissed, evicted) = (pin!(look), pin!(up.cancelled()), pin!(open.evicted()));
    begun(look, first, proxy.settings.idle_timeout, dismissed, evicted).await.unwrap_or(Next::End)
}

/// Waits until a request begins. Returns `None` if the connection must end before that: it was idle for too long, it
/// was `dismissed` because the app is down or a drain began, or it was `evicted`.
///
/// A client that has just connected is about to send its first request, so a dismissal does not end its connection
/// within [`FIRST_TIMEOUT`]. Otherwise it would get no response, on a connection on which nothing has worked before.
async fn begun<T>(
    mut look: Pin<&mut impl Future<Output = T>>,
    first: bool,
    idle_timeout: Duration,
    dismissed: Pin<&mut impl Future<Output = ()>>,
    mut evicted: Pin<&mut impl Future<Output = ()>>,
) -> Option<T> {
    let grace = first.then(|| clock::now() + FIRST_TIMEOUT);
    tokio::select! {
        begun = timeout(idle_timeout, &mut look) => return begun.ok(),
        () = dismissed => {}
        () = &mut evicted => return look.now_or_never(),
    }
    let Some(grace) = grace else {
        // A client that has already sent a request gets a response.
        return look.now_or_never();
    };
    tokio::select! {
        begun = timeout_at(grace, &mut look) => begun.ok(),
        () = evicted => look.now_or_never(),
    }
}

/// Serves HTTP/1 requests with hyper.
struct ThroughHyper<'a, S> {
    service: &'a S,
    open: &'a Arc<Open>,
}

impl<S, F> Http1Path for ThroughHyper<'_, S>
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    /// Serves requests with hyper, and returns the connection for another path when it has been idle for a [`TICK`].
    /// The future is boxed, so that an idle connection uses no memory for it.
    fn serve(&self, stream: TcpStream, before: Bytes, used: bool) -> impl Future<Output = End> {
        Box::pin(http1(stream, before, used, self.service, self.open))
    }
}

async fn http1<S, F>(stream: TcpStream, before: Bytes, used: bool, service: &S, open: &Arc<Open>) -> End
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let proxy = &open.proxy;
    let settings = &proxy.settings;
    let activity = Activity::new(open, Protocol::Http1);
    let io =
        TokioIo::new(Socket::new(stream, before, Arc::clone(&activity), Arc::clone(open), Some(Strict::default())));
    let up = proxy.upstream.up();
    // During a drain, this function must not hand the socket over, because its caller would immediately call it again.
    let mut draining = up.is_cancelled() || open.is_evicted();
    let head = settings.max_header_bytes as usize;
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_headers(settings.max_headers.into())
        .max_header_size(head)
        .max_buf_size(head)
        .keep_alive(!draining)
        .serve_connection(io, tracked(service, &activity, open, Protocol::Http1, used))
        .with_upgrades();
    let mut connection = Box::new(connection);
    let mut tick = pin!(sleep(TICK));
    let (mut stall, mut left) = (Patience::default(), Patience::default());
    loop {
        tokio::select! {
            ended = &mut *connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "client connection ended");
                }
                break;
            }
            () = up.cancelled(), if !draining => {
                if activity.is_between_requests() {
                    // Part of the next request may be in the buffer.
                    return handed_over(connection.into_parts());
                }
                draining = true;
                std::pin::Pin::new(&mut *connection).graceful_shutdown();
            }
            () = open.evicted(), if !draining => {
                if open.eviction() == Eviction::AtOnce {
                    return End::Closed;
                }
                if activity.is_between_requests() {
                    return handed_over(connection.into_parts());
                }
                draining = true;
                std::pin::Pin::new(&mut *connection).graceful_shutdown();
            }
            () = &mut tick => {
                if !draining && activity.is_idle() {
                    return handed_over(connection.into_parts());
                }
                if stall.is_over(activity.stuck_after(), settings.stall_timeout) {
                    tracing::debug!("the client does not read its response");
                    return End::Closed;
                }
                if left.is_over(activity.may_be_disconnected().then_some(0), HALF_CLOSED_TIMEOUT) {
                    tracing::debug!("the client closed its side and counts as disconnected");
                    return End::Closed;
                }
                tick.as_mut().reset(clock::now() + TICK);
            }
        }
    }
    match connection.into_parts().map(|parts| parts.io.into_inner()) {
        Some(socket) if !socket.ended() => End::Leave(socket.into_stream()),
        Some(_) | None => End::Closed,
    }
}

/// Returns the connection for another path. `parts` is `None` after an upgrade.
fn handed_over<S>(parts: Option<http1::Parts<TokioIo<Socket>, S>>) -> End {
    match parts {
        Some(parts) => End::HandOver(parts.io.into_inner().into_stream(), parts.read_buf, true),
        None => End::Closed,
    }
}

/// Serves an HTTP/2 connection to its end.
async fn http2<S, F>(stream: TcpStream, service: S, open: &Arc<Open>)
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let proxy = &open.proxy;
    let settings = &proxy.settings;
    let activity = Activity::new(open, Protocol::Http2);
    let io = TokioIo::new(Socket::new(stream, Bytes::new(), Arc::clone(&activity), Arc::clone(open), None));
    let connection = http2::Builder::new(Watching::new(settings.stall_timeout, &activity))
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.max_streams.get())
        .max_header_list_size(settings.max_header_bytes)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .serve_connection(io, tracked(&service, &activity, open, Protocol::Http2, false));
    let mut connection = Box::pin(connection);
    open.rest(proxy.clock.now());
    let (mut leaving, mut evicted) = (false, false);
    let mut asked_before = 0;
    let mut tick = pin!(sleep(settings.idle_timeout));
    // A connection that opens while the agent is leaving, or while the app is down, is allowed to finish its requests.
    // Otherwise some clients would reconnect in a loop.
    let up = proxy.upstream.up();
    let is_down = up.is_cancelled() && !proxy.drain.is_cancelled();
    let newcomer = (proxy.leaving.has_begun() || is_down).then(|| clock::now() + TICK);
    let up = if is_down { proxy.drain.clone() } else { up };
    let told_to_go = async {
        match newcomer {
            Some(moment) => sleep_until(moment).await,
            None => proxy.leaving.begun().await,
        }
    };
    let mut told_to_go = pin!(told_to_go);
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "client connection ended");
                }
                return;
            }
            () = up.cancelled(), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = &mut told_to_go, if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = activity.sent_away(), if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = open.evicted(), if !evicted => {
                (leaving, evicted) = (true, true);
                connection.as_mut().graceful_shutdown();
                if open.eviction() == Eviction::AtOnce {
                    // Sends the GOAWAY if the socket has space for it.
                    let _ = connection.now_or_never();
                    return;
                }
                asked_before = activity.requests().1;
                tick.as_mut().reset(clock::now() + settings.stall_timeout);
            }
            () = &mut tick => {
                let (open, asked) = activity.requests();
                if open == 0 && asked == asked_before {
                    if leaving {
                        return;
                    }
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                asked_before = asked;
                tick.as_mut().reset(clock::now() + settings.idle_timeout);
            }
        }
    }
}

/// Wraps `service` for hyper and records every request in `activity`.
fn tracked<S, F>(
    service: &S,
    activity: &Arc<Activity>,
    open: &Arc<Open>,
    protocol: Protocol,
    used: bool,
) -> impl Service<Request<Incoming>, Response = Response<Answer<Body>>, Error = h2::Error, Future: 'static> + use<S, F>
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let (service, activity, open) = (service.clone(), Arc::clone(activity), Arc::clone(open));
    service_fn(move |request: Request<Incoming>| {
        let answering = Answering::new(&activity);
        let proxy = &open.proxy;
        proxy.traffic.request(protocol);
        // The bytes after a request for a tunnel are not checked, so the connection cannot be used again.
        let tunnel = request.headers().get_all(UPGRADE).iter().any(|value| !is_h2c(value.as_bytes()));
        let repeatable = request.method().is_idempotent() && request.body().is_end_stream();
        let used = used || activity.requests().1 > 1;
        let (activity, open) = (Arc::clone(&activity), Arc::clone(&open));
        let answer =
            service(RequestBody::of(request, &activity, proxy.settings.stall_timeout, protocol == Protocol::Http1));
        // An async block would store the future of the answer twice.
        answer.map(move |answer| {
            let Ok(mut response) = answer;
            let proxy = &open.proxy;
            if let Some(app_gone) = response.extensions_mut().remove::<AppDown>() {
                activity.send_away();
                without_app(app_gone, protocol, used, repeatable, proxy.leaving.has_begun())?;
            }
            if response.status() == StatusCode::NO_CONTENT {
                // RFC 9110 section 8.6 forbids a length here. For the target `*`, axum adds one to a response without a
                // body.
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            let leaves = proxy.leaving.has_begun() || open.is_evicted();
            let last = tunnel || (protocol == Protocol::Http1 && leaves);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                // The agent cannot detect when a tunnel is idle.
                activity.end();
            } else if last {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Answer::new(body, answering)))
        })
    })
}

/// Decides what the client gets if the app has stopped: a response (`Ok`), or an error that makes clients retry.
///
/// An app that stops closes its clients' connections. If a connection has worked before, most clients then retry
/// idempotent requests on a new one (RFC 9110 section 9.2.2). They would not retry after a 502. So the agent closes
/// such a connection without a response. On a new connection the agent responds: a client that fails twice gives up,
/// and the response shows the reason. HTTP/2 has `REFUSED_STREAM`, after which a client is allowed to retry any request
/// (RFC 9113 section 8.7). The agent sends it only if the app has received nothing of the request, and only on a used
/// connection or while the agent is leaving. Otherwise the same client could retry at the same agent forever.
fn without_app(
    app_gone: AppDown,
    protocol: Protocol,
    used: bool,
    repeatable: bool,
    leaving: bool,
) -> Result<(), h2::Error> {
    match protocol {
        Protocol::Http2 if app_gone == AppDown::Unseen && (used || leaving) => Err(h2::Reason::REFUSED_STREAM.into()),
        Protocol::Http1 if used && repeatable => Err(h2::Reason::REFUSED_STREAM.into()),
        _ => Ok(()),
    }
}

/// Measures how long a value that should change has not changed.
#[derive(Default)]
struct Patience {
    with: Option<u64>,
    lasted: Duration,
}

impl Patience {
    /// Returns true if the value has not changed for `limit`. Call this function once per [`TICK`], and pass `None`
    /// while there is progress.
    fn is_over(&mut self, with: Option<u64>, limit: Duration) -> bool {
        self.lasted = if with.is_some() && with == self.with { self.lasted + TICK } else { Duration::ZERO };
        self.with = with;
        self.lasted >= limit
    }
}

/// Closes the connection without a reset, unless other connections need its slot.
async fn leave(mut stream: TcpStream, open: &Open) {
    if open.eviction() == Eviction::AtOnce {
        return;
    }
    open.rest(open.proxy.clock.now());
    let _ = stream.shutdown().await;
    let mut goodbye = Goodbye::default();
    let goodbye = poll_fn(|cx| goodbye.poll_over(&mut stream, cx));
    tokio::select! {
        () = goodbye => {}
        () = open.evicted(), if !open.is_evicted() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    /// What [`begun`] returns for a request after `request`, and a dismissal and an eviction at these times, and when.
    async fn outcome(request: u64, first: bool, dismissed: Option<u64>, evicted: Option<u64>) -> (bool, u64) {
        let at = async |time: Option<u64>| match time {
            Some(time) => sleep(Duration::from_millis(time)).await,
            None => pending().await,
        };
        let started = clock::now();
        let request = pin!(at(Some(request)));
        let begun = begun(request, first, IDLE, pin!(at(dismissed)), pin!(at(evicted))).await;
        let took = clock::now().duration_since(started).as_millis();
        (begun.is_some(), u64::try_from(took).expect("short"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_just_connected_gets_a_response_while_the_app_is_down() {
        // The app goes down between the client's connection and its first request.
        assert_eq!(outcome(300, true, Some(10), None).await, (true, 300));
        // It is down already.
        assert_eq!(outcome(300, true, Some(0), None).await, (true, 300));
        assert_eq!(outcome(1_001, true, Some(10), None).await, (false, 1_000));
        assert_eq!(outcome(5_001, true, Some(5_000), None).await, (false, 5_000), "it did not connect just now");
        assert_eq!(outcome(300, true, Some(10), Some(200)).await, (false, 200), "another client needs the slot");
        // A connection that has worked ends, as it would end at an app that stops.
        assert_eq!(outcome(300, false, Some(10), None).await, (false, 10));
        assert_eq!(outcome(300, false, None, Some(10)).await, (false, 10));
        assert_eq!(outcome(300, false, None, None).await, (true, 300));
        assert_eq!(outcome(70_000, true, None, None).await, (false, 60_000));
        // A request that has begun is served.
        let sent = begun(pin!(ready(7)), false, IDLE, pin!(ready(())), pin!(pending())).await;
        assert_eq!(sent, Some(7));
    }

    #[test]
    fn clients_that_retry_get_back_what_a_stopped_app_left() {
        use AppDown::{InFlight, Unseen};
        for (app_gone, protocol, used, repeatable, leaving, given_back) in [
            (Unseen, Protocol::Http1, true, true, false, true),
            (Unseen, Protocol::Http1, true, false, false, false),
            (Unseen, Protocol::Http1, true, false, true, false),
            (Unseen, Protocol::Http1, false, true, true, false),
            (Unseen, Protocol::Http2, true, false, false, true),
            (Unseen, Protocol::Http2, false, false, true, true),
            (Unseen, Protocol::Http2, false, true, false, false),
            (InFlight, Protocol::Http1, true, true, false, true),
            (InFlight, Protocol::Http1, true, false, true, false),
            (InFlight, Protocol::Http1, false, true, true, false),
            (InFlight, Protocol::Http2, true, true, true, false),
        ] {
            let said = without_app(app_gone, protocol, used, repeatable, leaving);
            assert_eq!(
                said.is_err(),
                given_back,
                "{app_gone:?}, {protocol:?}, used {used}, repeatable {repeatable}, leaving {leaving}"
            );
        }
    }
}
