//! One client connection, from its first byte to its end, whatever it speaks.
//!
//! A connection on which nothing is asked is a socket and a timer: hyper's state and its buffers are made when bytes
//! arrive and dropped after an idle moment. That is what lets thousands of clients keep their connections alive.
//!
//! A connection is never closed while the client may still be sending to it without having been told so (a FIN, or
//! `Connection: close`, or GOAWAY) and given a moment to notice: the kernel would answer with a reset, which also
//! destroys what the client had not read yet.
//!
//! A client of HTTP/1 that closes its own side has said all that it wants to, or has left: the two look alike. So it still
//! gets its answer, and has left if nothing can be written to it for a while, or a write is answered by a reset. One that
//! resets the connection has left, and this is seen at once.

use std::{convert::Infallible, error::Error, future::poll_fn, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CONNECTION, UPGRADE},
};
use http_body::Body;
use hyper::{
    body::Incoming,
    rt::Executor,
    server::conn::{http1, http2},
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    activity::{Activity, Answer, Answering},
    body::RequestBody,
    failure::AppGone,
    plain,
    socket::{Goodbye, Socket},
    stall::Watching,
    strict::{Strict, is_h2c},
    traffic::Protocol,
    worker::Open,
};
use crate::places::Eviction;

/// What an HTTP/2 connection begins with (RFC 9113 section 3.4), and no request of HTTP/1 does.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a preface may be in pieces on its way, and how often to look.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
const PREFACE_PAUSE: Duration = Duration::from_millis(10);

/// How long a connection that was waiting to be accepted when the drain began may take to ask something.
const LATE_TIMEOUT: Duration = Duration::from_secs(1);

/// After how long without a request a connection gives its buffers back, and how often to look for a stall.
const TICK: Duration = Duration::from_secs(1);

/// For how long a client that has closed its side is given the benefit of the doubt, while there is nothing to write to it
/// that would tell.
pub(super) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(5);

/// How much of one HTTP/2 request body is taken while the app does not read it, and of all on a connection together.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// How much of one HTTP/2 response is held while the client does not read it.
const SEND_BUFFER: usize = 64 * 1024;

/// What comes next on an idle connection.
enum Next {
    Http1,
    Http2,
    /// Nothing: the client is gone, or it is time that it goes.
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

/// Serves one client until it leaves or the drain sends it away. `service` is called with what it asks, but for what goes
/// the short way.
pub(super) async fn serve<S, F, B>(mut stream: TcpStream, service: S, plain: Option<plain::Client>, open: &Arc<Open>)
where
    S: Fn(Request<RequestBody>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let mut before = Bytes::new();
    let mut first = true;
    let mut used = false;
    let mut speaking = None;
    loop {
        let next = if before.is_empty() { next(&stream, first, open).await } else { Next::Http1 };
        if let Some(protocol) = next.protocol() {
            speaking.get_or_insert_with(|| open.proxy.traffic.speaking(protocol));
        }
        let next = match (next, &plain) {
            (Next::Http1, Some(client)) => match plain::serve(stream, before, client, used).await {
                plain::End::HandOver(with, bytes, answered) => {
                    (stream, before, used) = (with, bytes, answered);
                    Next::Http1
                }
                plain::End::Leave(stream) => return leave(stream, open).await,
                plain::End::Closed => return,
            },
            (next, _) => next,
        };
        match next {
            // On the heap, so that an idle connection does not hold the room for either.
            Next::Http1 => match Box::pin(http1(stream, before, used, &service, open)).await {
                Some((with, bytes)) => (stream, before, used) = (with, bytes, true),
                None => return,
            },
            Next::Http2 => return Box::pin(http2(stream, service, open)).await,
            Next::End => return leave(stream, open).await,
        }
        first = false;
    }
}

/// Waits for the first bytes of a request without taking them.
async fn next(stream: &TcpStream, first: bool, open: &Open) -> Next {
    let proxy = &open.proxy;
    open.rest(proxy.clock.now());
    let next = parked(stream, first, open).await;
    if open.work() { next } else { Next::End }
}

/// While it waits, a newcomer may have the connection's place.
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
                    // Nothing tells that more came while some is unread.
                    Ok(_) => sleep(PREFACE_PAUSE).await,
                }
            }
        };
        // Waits for the first byte without that limit.
        match stream.readable().await {
            Ok(()) => timeout(PREFACE_TIMEOUT, begun).await.unwrap_or(Next::Http1),
            Err(_) => Next::End,
        }
    };
    let mut look = pin!(look);
    let up = proxy.upstream.up();
    let late = up.is_cancelled();
    let patience = if late && first { LATE_TIMEOUT } else { proxy.settings.idle_timeout };
    tokio::select! {
        next = timeout(patience, &mut look) => return next.unwrap_or(Next::End),
        () = up.cancelled(), if !late || !first => {}
        () = open.evicted() => {}
    }
    // A client that has already asked gets an answer.
    look.now_or_never().unwrap_or(Next::End)
}

/// Serves requests of HTTP/1 until the connection has been idle for a moment, and then gives it back.
async fn http1<S, F, B>(
    stream: TcpStream,
    before: Bytes,
    used: bool,
    service: &S,
    open: &Arc<Open>,
) -> Option<(TcpStream, Bytes)>
where
    S: Fn(Request<RequestBody>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let proxy = &open.proxy;
    let settings = &proxy.settings;
    let activity = Activity::new(open, Protocol::Http1);
    let io =
        TokioIo::new(Socket::new(stream, before, Arc::clone(&activity), Arc::clone(open), Some(Strict::default())));
    let up = proxy.upstream.up();
    // A place that is given back would come again at once.
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
                    // The next one may be here in part.
                    return connection.into_parts().map(|parts| (parts.io.into_inner().into_stream(), parts.read_buf));
                }
                draining = true;
                std::pin::Pin::new(&mut *connection).graceful_shutdown();
            }
            () = open.evicted(), if !draining => {
                if open.eviction() == Eviction::AtOnce {
                    return None;
                }
                if activity.is_between_requests() {
                    return connection.into_parts().map(|parts| (parts.io.into_inner().into_stream(), parts.read_buf));
                }
                draining = true;
                std::pin::Pin::new(&mut *connection).graceful_shutdown();
            }
            () = &mut tick => {
                if !draining && activity.is_idle() {
                    return connection.into_parts().map(|parts| (parts.io.into_inner().into_stream(), parts.read_buf));
                }
                if stall.is_over(activity.stuck_after(), settings.stall_timeout) {
                    tracing::debug!("client does not read its response");
                    return None;
                }
                if left.is_over(activity.may_have_left().then_some(0), HALF_CLOSED_TIMEOUT) {
                    tracing::debug!("client has closed its side and is taken for gone");
                    return None;
                }
                tick.as_mut().reset(Instant::now() + TICK);
            }
        }
    }
    let socket = connection.into_parts()?.io.into_inner();
    if !socket.ended() {
        leave(socket.into_stream(), open).await;
    }
    None
}

/// Serves an HTTP/2 connection to its end.
async fn http2<S, F, B>(stream: TcpStream, service: S, open: &Arc<Open>)
where
    S: Fn(Request<RequestBody>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
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
    // One that comes while the agent is leaving, or the app is down, has time for what it came for: others would come again and again.
    let up = proxy.upstream.up();
    let is_down = up.is_cancelled() && !proxy.drain.is_cancelled();
    let newcomer = (proxy.leaving.has_begun() || is_down).then(|| Instant::now() + TICK);
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
                    // Sends the GOAWAY, if there is room for it.
                    let _ = connection.now_or_never();
                    return;
                }
                asked_before = activity.requests().1;
                tick.as_mut().reset(Instant::now() + settings.stall_timeout);
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
                tick.as_mut().reset(Instant::now() + settings.idle_timeout);
            }
        }
    }
}

/// `service` as hyper calls it, with every request noted in `activity`.
fn tracked<S, F, B>(
    service: &S,
    activity: &Arc<Activity>,
    open: &Arc<Open>,
    protocol: Protocol,
    used: bool,
) -> impl Service<Request<Incoming>, Response = Response<Answer<B>>, Error = h2::Error, Future: 'static> + use<S, F, B>
where
    S: Fn(Request<RequestBody>) -> F + Clone + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let (service, activity, open) = (service.clone(), Arc::clone(activity), Arc::clone(open));
    service_fn(move |request: Request<Incoming>| {
        let answering = Answering::new(&activity);
        let proxy = &open.proxy;
        proxy.traffic.request(protocol);
        // What comes after a request for a tunnel was not looked at.
        let tunnel = request.headers().get_all(UPGRADE).iter().any(|value| !is_h2c(value.as_bytes()));
        let repeatable = request.method().is_idempotent() && request.body().is_end_stream();
        let used = used || activity.requests().1 > 1;
        let (activity, open) = (Arc::clone(&activity), Arc::clone(&open));
        let answer =
            service(RequestBody::of(request, &activity, proxy.settings.stall_timeout, protocol == Protocol::Http1));
        async move {
            let Ok(mut response) = answer.await;
            let proxy = &open.proxy;
            if let Some(app_gone) = response.extensions_mut().remove::<AppGone>() {
                activity.send_away();
                without_app(app_gone, protocol, used, repeatable, proxy.leaving.has_begun())?;
            }
            let leaves = proxy.leaving.has_begun() || open.is_evicted();
            let last = tunnel || (protocol == Protocol::Http1 && leaves);
            if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                // Nobody sees when a tunnel is idle.
                activity.end();
            } else if last {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Answer::new(body, answering)))
        }
    })
}

/// What becomes of a request when the app has stopped: an answer, or an error that says so where clients act on it.
///
/// An app that stops closes the connections of its clients. They repeat what was idempotent on a connection that had worked before,
/// most of them by themselves and on a new one (RFC 9110 section 9.2.2); a 502 they would not. So such a connection is closed
/// without an answer. One that is new is answered: a client that is refused twice gives up, and should know why. In HTTP/2 there is a
/// word for it, `REFUSED_STREAM`, after which any request may be repeated (RFC 9113 section 8.7): only where the app has seen nothing
/// of it. It is said on a used connection, or while the agent is leaving: otherwise the same client could ask the same agent for ever.
fn without_app(
    app_gone: AppGone,
    protocol: Protocol,
    used: bool,
    repeatable: bool,
    leaving: bool,
) -> Result<(), h2::Error> {
    match protocol {
        Protocol::Http2 if app_gone == AppGone::Unseen && (used || leaving) => Err(h2::Reason::REFUSED_STREAM.into()),
        Protocol::Http1 if used && repeatable => Err(h2::Reason::REFUSED_STREAM.into()),
        _ => Ok(()),
    }
}

/// For how long something has not changed that should.
#[derive(Default)]
struct Patience {
    with: Option<u64>,
    lasted: Duration,
}

impl Patience {
    /// To be asked once a [`TICK`], with none as long as all is well.
    fn is_over(&mut self, with: Option<u64>, limit: Duration) -> bool {
        self.lasted = if with.is_some() && with == self.with { self.lasted + TICK } else { Duration::ZERO };
        self.with = with;
        self.lasted >= limit
    }
}

/// Closes without a reset, unless others need the place.
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

/// Runs what hyper starts on the thread that the connection is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnThisThread;

impl<F: Future + 'static> Executor<F> for OnThisThread
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        tokio::task::spawn_local(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_app_never_saw_is_given_back_where_clients_repeat_it() {
        for (protocol, used, repeatable, leaving, given_back) in [
            (Protocol::Http1, true, true, false, true),
            (Protocol::Http1, true, false, false, false),
            (Protocol::Http1, true, false, true, false),
            (Protocol::Http1, false, true, true, false),
            (Protocol::Http2, true, false, false, true),
            (Protocol::Http2, false, false, true, true),
            (Protocol::Http2, false, true, false, false),
        ] {
            let said = unseen(protocol, used, repeatable, leaving);
            assert_eq!(
                said.is_err(),
                given_back,
                "{protocol:?}, used {used}, repeatable {repeatable}, leaving {leaving}"
            );
        }
    }
}
