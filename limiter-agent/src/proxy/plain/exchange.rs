//! Sends one request to the app, and the response back to the client.

use std::{
    future::poll_fn,
    io,
    task::{Poll, ready},
    time::Duration,
};

use http::Version;
use tokio::{net::TcpStream, time::timeout};
use weir_core::Time;
use weir_enforce::{Deadline, DeferredCost, Fields, FollowUp};

use super::{
    Client,
    buffer::Outbox,
    client_connection::{ClientConnection, Gone},
    field::FieldSpace,
    framing::Framing,
    response::{self, ParsedHead},
    upstream::Upstream,
    write::{self, Ending},
};
use crate::proxy::{app::InvalidResponse, headers::MAX_ANSWER_BYTES, hyper::Failure, settings::SERVER};

/// The maximum number of bytes of a body to buffer while the client does not read them.
const MAX_HELD: usize = super::buffer::ANSWER_SIZE;

/// The longest piece of a body that is copied after the head or the previous chunk. A longer piece is sent from the
/// buffer that it was read into.
const MAX_COPIED: usize = 2 * 1024;

/// An admitted request, in the form that the app gets.
#[derive(Debug)]
pub(super) struct AppRequest {
    pub(super) request: Outbox,
    /// Whether the request can be retried.
    pub(super) repeatable: bool,
    pub(super) context: ResponseContext,
}

/// The properties of the request and its rules that change the response.
#[derive(Debug)]
pub(super) struct ResponseContext {
    pub(super) to_head: bool,
    /// Whether the client sends no more requests after this one.
    pub(super) last: bool,
    pub(super) fields: Fields,
    /// The deadline, the costs that headers of the response contain, and the permits of concurrent limits.
    pub(super) follow_up: Option<Box<FollowUp>>,
}

impl ResponseContext {
    fn deadline(&self) -> Option<&Deadline> {
        self.follow_up.as_ref()?.deadline.as_ref()
    }

    fn costs(&self) -> &[DeferredCost] {
        self.follow_up.as_ref().map_or(&[], |follow_up| &follow_up.costs)
    }
}

/// The next step for the client's connection, after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    NextRequest,
    /// Close the connection. The client expects this, or detects it because the end of the body is missing.
    Leave,
    /// The client has disconnected, or counts as disconnected.
    Closed,
}

/// The reason why there is no response.
enum NoResponse {
    Failure(Failure),
    /// The request exceeded its deadline.
    Late,
    Gone,
}

impl<E: Into<Failure>> From<E> for NoResponse {
    fn from(failure: E) -> Self {
        Self::Failure(failure.into())
    }
}

/// The reason why the agent waits no longer for bytes of the app.
enum Stopped {
    Gone,
    /// The time limit has expired.
    Over,
}

/// The time limits for the app's response to a request.
#[derive(Clone, Copy, Debug)]
struct AnswerTimeout {
    /// The limit of the agent's flag.
    timeout: Option<Duration>,
    /// The limit of the policy.
    deadline: Option<Duration>,
    since: Time,
}

impl AnswerTimeout {
    fn new(timeout: Option<Duration>, deadline: Option<&Deadline>, since: Time) -> Self {
        Self { timeout, deadline: deadline.map(Deadline::after), since }
    }

    fn shortest(self) -> Option<Duration> {
        [self.timeout, self.deadline].into_iter().flatten().min()
    }

    fn left(self, now: Time) -> Option<Duration> {
        self.shortest().map(|limit| limit.saturating_sub(now.duration_since(self.since)))
    }

    /// The reason why there is no response after the time limit. The shorter limit decides.
    fn cut(self) -> NoResponse {
        match self.timeout {
            Some(timeout) if self.deadline.is_none_or(|deadline| timeout < deadline) => {
                Failure::Unanswered(timeout).into()
            }
            _ => NoResponse::Late,
        }
    }
}

/// A body to relay, after its head was written.
struct Reply {
    framing: Framing,
    /// Whether the app's connection stays open.
    kept: bool,
    /// Whether the client's connection closes after the body.
    closes: bool,
}

#[expect(
    clippy::manual_async_fn,
    reason = "an async fn stores its arguments twice, and each request allocates this future"
)]
pub(super) fn exchange(
    connection: &mut ClientConnection<'_>,
    app_request: Box<AppRequest>,
) -> impl Future<Output = Answered> {
    async move {
        let mut out = connection.client.worker.buffers.outbox();
        connection.watch();
        let repeatable = app_request.repeatable;
        match ask(connection, app_request.request, repeatable, &app_request.context, &mut out).await {
            Ok((app, reply)) => relay(connection, app, reply, app_request.context.follow_up, out).await,
            Err(NoResponse::Gone) => Answered::Closed,
            Err(NoResponse::Late) => late(connection, app_request.context, out).await,
            Err(NoResponse::Failure(failure)) => {
                let proxy = &connection.client.worker.proxy;
                let failure = failure.or_stopped(&proxy.upstream).await;
                let app_gone = failure.app_gone().is_some();
                let (head, body) = failure.respond(&proxy.failures, Version::HTTP_11).into_parts();
                if app_gone && repeatable && connection.used {
                    // See `hyper::serve::without_app`.
                    return Answered::Leave;
                }
                let ending = ending(connection.client, app_request.context.last || app_gone, connection.now());
                out.bytes.clear();
                write::own(
                    &head,
                    &body.into_own(),
                    app_request.context.to_head,
                    &app_request.context.fields,
                    ending,
                    &mut out.bytes,
                );
                let closes = ending.closes;
                drop(app_request.context.follow_up);
                finish(connection, &out.bytes, &[], closes).await
            }
        }
    }
}

/// Answers a request that exceeded its deadline.
async fn late(connection: &mut ClientConnection<'_>, context: ResponseContext, mut out: Outbox) -> Answered {
    let Some(deadline) = context.deadline() else { return Answered::Leave };
    let (head, body) = weir_enforce::too_late(deadline, SERVER).into_parts();
    let ending = ending(connection.client, context.last, connection.now());
    let closes = ending.closes;
    out.bytes.clear();
    write::own(&head, &body, context.to_head, &Fields::default(), ending, &mut out.bytes);
    drop(context.follow_up);
    finish(connection, &out.bytes, &[], closes).await
}

/// The last fields of a response that is sent now.
pub(super) fn ending(client: &Client, last: bool, now: Time) -> Ending<'_> {
    let worker = &client.worker;
    let leaves = worker.drain.has_begun() || worker.proxy.leaving.has_begun() || client.open.is_evicted();
    Ending { closes: last || leaves, date: &worker.date, now }
}

/// Sends the rest of a response.
pub(super) async fn finish(connection: &mut ClientConnection<'_>, head: &[u8], body: &[u8], closes: bool) -> Answered {
    match connection.send(head, body).await {
        Ok(()) if closes => Answered::Leave,
        Ok(()) => Answered::NextRequest,
        Err(Gone) => Answered::Closed,
    }
}

/// Sends the request. If the app has closed the idle connection, sends the request again on a new one.
#[expect(clippy::manual_async_fn, reason = "for the same reason as `exchange`")]
fn ask(
    connection: &mut ClientConnection<'_>,
    request: Outbox,
    repeatable: bool,
    context: &ResponseContext,
    out: &mut Outbox,
) -> impl Future<Output = Result<(Upstream, Reply), NoResponse>> {
    async move {
        let worker = &connection.client.worker;
        let now = worker.proxy.clock.now();
        let limit = AnswerTimeout::new(worker.proxy.settings.response_timeout, context.deadline(), now);
        connection.begin(limit.shortest());
        let mut app = match worker.pool.pop() {
            Some(stream) => Upstream::new(stream, false, request),
            None => Upstream::new(Box::pin(connected(connection, limit)).await?, true, request),
        };
        loop {
            match receive_head(connection, &mut app, context, limit, out).await {
                Ok(reply) => return Ok((app, reply)),
                // A request with any method can be retried if no byte of it was sent.
                Err(NoResponse::Failure(Failure::Closed)) if !app.fresh && (repeatable || app.is_untouched()) => {
                    let request = app.into_request().ok_or(Failure::Closed)?;
                    app = Upstream::new(Box::pin(connected(connection, limit)).await?, true, request);
                }
                Err(cut) => return Err(cut),
            }
        }
    }
}

/// Opens a connection to the app. The caller boxes the future, because few requests need a new connection and the
/// future is large.
async fn connected(connection: &ClientConnection<'_>, limit: AnswerTimeout) -> Result<TcpStream, NoResponse> {
    let connecting = connection.client.worker.proxy.upstream.connect();
    match limit.left(connection.now()) {
        None => Ok(connecting.await?),
        Some(left) => Ok(timeout(left, connecting).await.map_err(|_| limit.cut())??),
    }
}

/// Waits for the final response and writes its head.
async fn receive_head(
    connection: &mut ClientConnection<'_>,
    app: &mut Upstream,
    context: &ResponseContext,
    limit: AnswerTimeout,
    out: &mut Outbox,
) -> Result<Reply, NoResponse> {
    let worker = &connection.client.worker;
    // The number of bytes of an incomplete head in which the end was not found.
    let mut looked_at = 0;
    loop {
        match read(connection, app, MAX_ANSWER_BYTES).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Err(Failure::Closed.into()),
            Err(Stopped::Over) => return Err(limit.cut()),
            Err(Stopped::Gone) => return Err(NoResponse::Gone),
        }
        loop {
            let bytes = app.unread();
            let length = bytes.len();
            if looked_at > 0 && length < MAX_ANSWER_BYTES && !response::may_be_whole(bytes, looked_at) {
                looked_at = length;
                break;
            }
            let mut space = FieldSpace::new();
            let head = match response::read(bytes, &mut space, context.to_head)? {
                ParsedHead::Part => {
                    looked_at = length;
                    break;
                }
                ParsedHead::Interim(head) => {
                    let length = head.length;
                    write::interim(&head, context.costs(), &mut out.bytes);
                    app.consume(length);
                    looked_at = 0;
                    // Boxed, because interim responses are rare.
                    Box::pin(send_interim(connection, limit, out)).await?;
                    continue;
                }
                ParsedHead::Switched => {
                    note_time(connection, limit.since);
                    return Err(Failure::UnaskedUpgrade.into());
                }
                ParsedHead::Final(head) => head,
            };
            note_time(connection, limit.since);
            // No body shows which length is right.
            if context.to_head && head.contradicts_itself() {
                return Err(InvalidResponse::Length.into());
            }
            let ending = ending(connection.client, context.last, connection.now());
            for cost in context.costs() {
                cost.charge_value(cost.header().and_then(|name| head.first(name)), worker.proxy.clock);
            }
            write::to_client(&head, context.to_head, (&context.fields, context.costs()), ending, &mut out.bytes);
            let (length, framing, kept) = (head.length, head.framing, head.kept);
            app.consume(length);
            // Nothing was sent yet, so the client can still get an error response in place of a truncated one.
            if framing.begins_wrongly(app.unread()) {
                return Err(InvalidResponse::Chunk.into());
            }
            app.answered();
            return Ok(Reply { framing, kept, closes: ending.closes });
        }
    }
}

/// Sends an interim response, and then waits for the final response again.
async fn send_interim(
    connection: &mut ClientConnection<'_>,
    limit: AnswerTimeout,
    out: &mut Outbox,
) -> Result<(), NoResponse> {
    connection.send(&out.bytes, &[]).await.map_err(|Gone| NoResponse::Gone)?;
    out.bytes.clear();
    let left = limit.left(connection.now());
    connection.begin(left);
    Ok(())
}

fn note_time(connection: &ClientConnection<'_>, sent: Time) {
    let proxy = &connection.client.worker.proxy;
    proxy.upstream_time.record(proxy.clock.now().duration_since(sent));
}

/// Waits for more bytes from the app. Stops when the client leaves or a timeout expires.
async fn read(
    connection: &mut ClientConnection<'_>,
    app: &mut Upstream,
    most: usize,
) -> Result<io::Result<usize>, Stopped> {
    let worker = &connection.client.worker;
    poll_fn(|cx| {
        if let Poll::Ready(read) = app.poll_read(most, &worker.buffers, cx) {
            return Poll::Ready(Ok(read));
        }
        if connection.poll_disconnected(cx).is_ready() {
            return Poll::Ready(Err(Stopped::Gone));
        }
        ready!(connection.pause.poll_over(cx));
        Poll::Ready(Err(if connection.poll_disconnected(cx).is_pending() { Stopped::Over } else { Stopped::Gone }))
    })
    .await
}

/// Relays the body after its head. The request keeps its permits until then.
#[expect(clippy::manual_async_fn, reason = "for the same reason as `exchange`")]
fn relay(
    connection: &mut ClientConnection<'_>,
    mut app: Upstream,
    mut reply: Reply,
    follow_up: Option<Box<FollowUp>>,
    mut out: Outbox,
) -> impl Future<Output = Answered> {
    async move {
        let worker = &connection.client.worker;
        loop {
            // Bytes that are forwarded unchanged need no copy.
            let direct = reply.framing.take_long(app.unread(), MAX_COPIED);
            if direct.is_none() {
                match reply.framing.pass(app.unread(), &mut out.bytes) {
                    Ok(count) => app.consume(count),
                    Err(invalid) => {
                        tracing::debug!(%invalid, "the app's body was cut off");
                        return broken_off(connection, &out.bytes).await;
                    }
                }
            }
            let count = direct.unwrap_or(0);
            if reply.framing.is_over() {
                let (rest, idle) = app.finish(count);
                if let Some(idle) = idle.filter(|_| reply.kept) {
                    worker.pool.push(idle);
                }
                let body = rest.as_ref().map_or(&[][..], |rest| &rest.unread()[..count]);
                // Before the last bytes: a client that has the whole response may send its next request.
                drop(follow_up);
                return finish(connection, &out.bytes, body, reply.closes).await;
            }
            if connection.send(&out.bytes, &app.unread()[..count]).await.is_err() {
                return Answered::Closed;
            }
            app.consume(count);
            out.bytes.clear();
            // There is no time limit for the body.
            connection.begin(None);
            match read(connection, &mut app, MAX_HELD).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0)) if reply.framing.closed(&mut out.bytes) => {
                    drop(follow_up);
                    return finish(connection, &out.bytes, &[], reply.closes).await;
                }
                Ok(Ok(0) | Err(_)) | Err(Stopped::Over) => return broken_off(connection, &[]).await,
                Err(Stopped::Gone) => return Answered::Closed,
            }
        }
    }
}

/// Sends the remaining bytes. The end of the connection shows the client that the body is incomplete.
async fn broken_off(connection: &mut ClientConnection<'_>, bytes: &[u8]) -> Answered {
    finish(connection, bytes, &[], true).await
}
