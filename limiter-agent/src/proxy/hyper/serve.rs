//! Serves a connection with hyper, over HTTP/1 or HTTP/2.
//!
//! An HTTP/1 client that closes its sending side may still wait for its response, or may have disconnected. The agent
//! cannot distinguish these cases, so it still sends the response. The client counts as disconnected if there is
//! nothing to write for a few seconds, or if it answers a write with a reset. While its request waits in a queue, the
//! client counts as disconnected immediately. If a client resets the connection, the agent detects this immediately, or
//! within a [`TICK`] if the client had sent its next request.

use std::{cell::Cell, convert::Infallible, future::poll_fn, pin::pin, rc::Rc, sync::Arc, task::Poll, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH},
};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::{Service, service_fn},
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    time::{sleep, sleep_until},
};
use weir_client::agent::Eviction;

use super::{
    activity::{Activity, Answering, TrackedBody},
    expect,
    failure::{AppDown, Unprocessed},
    request_body::RequestBody,
    response_body::without_body,
    socket::Socket,
    stalled_streams::Watching,
    strict::asks_for_upgrade,
};
use crate::{
    clock,
    proxy::{
        hand_over::{End, HandOver},
        open_connection::{HALF_CLOSED_TIMEOUT, OpenConnection},
        traffic::Protocol,
    },
    resets::max_pending_resets,
};

/// The idle time after which a connection releases its buffers, and the interval between checks for a stall.
const TICK: Duration = Duration::from_secs(1);

/// The maximum number of unread bytes of one HTTP/2 request body. Bytes stay unread while the app does not read them, or
/// while a limit delays the request or its body. This is the default of HTTP/2.
const STREAM_WINDOW: u32 = 64 * 1024;

/// The least window of an HTTP/2 connection. If unread frames take more than half of the window, h2 ends the connection:
/// it counts 256 bytes for each frame of less data, without its data.
const LEAST_CONNECTION_WINDOW: u32 = 16 * 1024 * 1024;

/// The maximum number of bytes of one HTTP/2 response to buffer while the client does not read it.
const SEND_BUFFER: usize = 64 * 1024;

/// Serves HTTP/1 requests. Returns the connection for the short path after `requests` requests, or when it has been idle
/// for a [`TICK`]. The bytes in `before`, and then those on the socket, belong to the first request. `used` is true if the
/// connection has served requests before.
pub(in super::super) async fn http1<S, F>(
    stream: TcpStream,
    before: Bytes,
    used: bool,
    (service, open, requests): (&S, &Arc<OpenConnection>, u64),
) -> End
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let proxy = &open.proxy;
    let settings = &proxy.settings;
    let activity = Activity::new(open, Protocol::Http1);
    let io = TokioIo::new(Socket::new(stream, before, &activity));
    let up = proxy.upstream.up();
    // During a drain, this function must not hand the socket over, because its caller would immediately call it again.
    let mut draining = up.is_cancelled() || open.is_evicted();
    let head = settings.max_header_bytes as usize;
    let last_upgrade = LastUpgrade::default();
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_headers(settings.max_headers.into())
        .max_header_size(head)
        .max_buf_size(head)
        .keep_alive(!draining)
        .serve_connection(io, tracked(service, &activity, used, &last_upgrade))
        .with_upgrades();
    let mut connection = Box::new(connection);
    let mut tick = pin!(sleep(TICK));
    let (mut stall, mut left) = (Unchanged::default(), Unchanged::default());
    loop {
        // hyper has written the whole response if it waits, the last write was complete, and no request is in progress.
        let ended = poll_fn(|cx| match connection.poll_unpin(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if activity.has_left_queue() => Poll::Ready(Some(Ok(()))),
            Poll::Pending if !draining && activity.requests().1 >= requests && activity.is_idle() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        tokio::select! {
            ended = ended => match ended {
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    tracing::debug!(%error, "client connection ended");
                    break;
                }
                None => return handed_over(connection.into_parts(), true),
            },
            () = first_of(up.cancelled(), open.evicted()), if !draining => {
                if open.eviction() == Eviction::AtOnce {
                    return End::Closed;
                }
                if activity.is_between_requests() {
                    // Part of the next request may be in the buffer.
                    return handed_over(connection.into_parts(), true);
                }
                draining = true;
                std::pin::Pin::new(&mut *connection).graceful_shutdown();
            }
            () = &mut tick => {
                // Part of the next head can have arrived. While its rest arrives, hyper's state would only take memory.
                if !draining && activity.is_between_requests() {
                    let used = used || activity.requests().1 > 0;
                    return handed_over(connection.into_parts(), used);
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
    let socket = match connection.into_parts() {
        Some(parts) => Some(parts.io.into_inner()),
        None if activity.is_tunnel() => None,
        None => taken_back(&last_upgrade),
    };
    match socket {
        Some(socket) if !socket.ended() => End::Leave(socket.into_stream()),
        Some(_) | None => End::Closed,
    }
}

async fn first_of(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    tokio::select! {
        () = one => {}
        () = other => {}
    }
}

/// The last upgrade that a client requested, as hyper knows it. At the end of the connection hyper moves the socket into
/// it, also if the upgrade was not taken: a rule has refused the request, or the app has answered it normally.
type LastUpgrade = Rc<Cell<Option<OnUpgrade>>>;

/// Returns the socket if the upgrade was not taken. If it were dropped, the kernel would answer unread bytes with a
/// reset.
fn taken_back(last_upgrade: &LastUpgrade) -> Option<Socket> {
    let upgraded = last_upgrade.take()?.now_or_never()?.ok()?;
    Some(upgraded.downcast::<TokioIo<Socket>>().ok()?.io.into_inner())
}

/// Returns the connection for another path. `parts` is `None` after an upgrade.
fn handed_over<S>(parts: Option<http1::Parts<TokioIo<Socket>, S>>, used: bool) -> End {
    match parts {
        Some(parts) => {
            let (stream, unread) = parts.io.into_inner().into_parts();
            let before = if unread.is_empty() { parts.read_buf } else { [parts.read_buf, unread].concat().into() };
            End::HandOver(HandOver { stream, before, used, served: true })
        }
        None => End::Closed,
    }
}

/// The window of an HTTP/2 connection. It has room for the windows of all streams, so unread bodies never delay the body
/// of another request.
fn connection_window(max_streams: u32) -> u32 {
    max_streams.saturating_mul(STREAM_WINDOW).clamp(LEAST_CONNECTION_WINDOW, i32::MAX.unsigned_abs())
}

/// Serves an HTTP/2 connection to its end.
pub(in super::super) async fn http2<S, F>(stream: TcpStream, service: S, open: &Arc<OpenConnection>)
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let proxy = &open.proxy;
    let settings = &proxy.settings;
    let activity = Activity::new(open, Protocol::Http2);
    let io = TokioIo::new(Socket::new(stream, Bytes::new(), &activity));
    let connection = http2::Builder::new(Watching(Arc::clone(&activity)))
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.max_streams.get())
        .max_pending_accept_reset_streams(max_pending_resets(settings.max_streams.get()))
        .max_header_list_size(settings.max_header_bytes)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(connection_window(settings.max_streams.get()))
        .max_send_buf_size(SEND_BUFFER)
        .serve_connection(io, tracked(&service, &activity, false, &LastUpgrade::default()));
    let mut connection = Box::pin(connection);
    open.set_idle(proxy.clock.now());
    let (mut leaving, mut evicted) = (false, false);
    let (mut asked_before, mut stuck_before) = (0, None);
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
    let must_go = async {
        tokio::select! {
            () = up.cancelled() => {}
            () = told_to_go => {}
            () = activity.sent_away() => {}
        }
    };
    let mut must_go = pin!(must_go);
    loop {
        let ended = poll_fn(|cx| {
            let ended = connection.as_mut().poll(cx);
            activity.polled();
            ended
        });
        tokio::select! {
            ended = ended => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "client connection ended");
                }
                return;
            }
            () = &mut must_go, if !leaving => {
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
                (asked_before, stuck_before) = (activity.requests().1, activity.stuck_after());
                tick.as_mut().reset(clock::now() + settings.stall_timeout);
            }
            () = &mut tick => {
                let (in_flight, asked) = activity.requests();
                let stuck = activity.stuck_after();
                // Since the last tick, the client has read responses whose requests have ended, or has stopped to read them.
                let is_reading = stuck != stuck_before;
                if in_flight == 0 && asked == asked_before && !is_reading {
                    if leaving {
                        return;
                    }
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                (asked_before, stuck_before) = (asked, stuck);
                let longest = if stuck.is_some() { settings.stall_timeout } else { settings.idle_timeout };
                tick.as_mut().reset(clock::now() + longest);
            }
        }
    }
}

/// Wraps `service` for hyper and records every request in `activity`.
fn tracked<S, F>(
    service: &S,
    activity: &Arc<Activity>,
    used: bool,
    last_upgrade: &LastUpgrade,
) -> impl Service<Request<Incoming>, Response = Response<TrackedBody<Body>>, Error = h2::Error, Future: 'static> + use<S, F>
where
    S: Fn(Request<Body>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<Body>, Infallible>> + 'static,
{
    let (service, activity, last_upgrade) = (service.clone(), Arc::clone(activity), Rc::clone(last_upgrade));
    let protocol = activity.protocol;
    service_fn(move |mut request: Request<Incoming>| {
        let answering = Answering::new(&activity);
        activity.open.proxy.traffic.request(protocol);
        // The bytes after a request for a tunnel are not checked, so the connection cannot be used again.
        let tunnel = asks_for_upgrade(request.headers());
        if let Some(requested) = request.extensions().get::<OnUpgrade>() {
            last_upgrade.set(Some(requested.clone()));
        }
        let is_expected = protocol == Protocol::Http1 && expect::is_expected(request.headers());
        let to_head = request.method() == Method::HEAD;
        let repeatable = request.method().is_idempotent() && request.body().is_end_stream();
        let used = used || activity.requests().1 > 1;
        if protocol == Protocol::Http1 {
            activity.in_queue.clear();
            request.extensions_mut().insert(activity.in_queue.clone());
        }
        let activity = Arc::clone(&activity);
        let answer = service(RequestBody::of(request, &activity));
        // An async block would store the future of the answer twice.
        answer.map(move |answer| {
            let Ok(mut response) = answer;
            activity.in_queue.clear();
            let (open, proxy) = (&activity.open, &activity.open.proxy);
            if let Some(app_gone) = response.extensions_mut().remove::<AppDown>() {
                activity.send_away();
                without_app(app_gone, protocol, used, repeatable, proxy.leaving.has_begun())?;
            }
            if response.extensions_mut().remove::<Unprocessed>().is_some() && protocol == Protocol::Http2 {
                // RFC 9113 section 8.7: the client can send any request again, as it could without the agent.
                return Err(h2::Reason::REFUSED_STREAM.into());
            }
            if response.status() == StatusCode::NO_CONTENT {
                // RFC 9110 section 8.6 forbids a length here. For the target `*`, axum adds one to a response without a
                // body.
                response.headers_mut().remove(CONTENT_LENGTH);
            }
            if to_head && protocol == Protocol::Http2 {
                // hyper removes the body only for HTTP/1.
                response = without_body(response);
            }
            let leaves = proxy.leaving.has_begun() || open.is_evicted();
            // The client may send its next request instead of the rest of an expected body (RFC 9110 section 10.1.1).
            let is_unread = is_expected && activity.has_open_body();
            let last = tunnel || is_unread || (protocol == Protocol::Http1 && leaves);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                activity.become_tunnel();
            } else if last {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| TrackedBody::new(body, answering)))
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
struct Unchanged {
    with: Option<u64>,
    lasted: Duration,
}

impl Unchanged {
    /// Returns true if the value has not changed for `limit`. Call this function once per [`TICK`], and pass `None`
    /// while there is progress.
    fn is_over(&mut self, with: Option<u64>, limit: Duration) -> bool {
        self.lasted = if with.is_some() && with == self.with { self.lasted + TICK } else { Duration::ZERO };
        self.with = with;
        self.lasted >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest window is that of RFC 9113 section 6.9.1.
    #[test]
    fn the_window_of_a_connection_has_room_for_all_streams() {
        let windows = [1, 200, 1_000, u32::MAX].map(connection_window);
        assert_eq!(windows, [16 << 20, 16 << 20, 1_000 * STREAM_WINDOW, (1 << 31) - 1]);
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
