//! One request to the app, and its answer back to the client.

use std::{
    future::poll_fn,
    io,
    task::{Poll, ready},
    time::Duration,
};

use http::Version;
use tokio::{net::TcpStream, time::timeout};
use weir_core::Time;
use weir_enforce::Fields;

use super::{
    Client,
    buffer::Outbox,
    field::Room,
    framing::Framing,
    line::{Gone, Line},
    response::{self, Answer},
    upstream::Upstream,
    write::{self, Ending},
};
use crate::proxy::{
    failure::{Failure, Garbled},
    headers::MAX_ANSWER_BYTES,
};

/// How much of a body is held at most while the client does not take it.
const MAX_HELD: usize = super::buffer::ANSWER_SIZE;

/// Of a body, what is copied behind the head or the chunk before it. More is sent from where it was read.
const MAX_COPIED: usize = 2 * 1024;

/// A request that was let through, as it goes to the app.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Outbox,
    /// Whether it may be sent twice.
    pub(super) repeatable: bool,
    pub(super) terms: Terms,
}

/// What its answer depends on, besides the app.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) to_head: bool,
    /// Whether the client wants no other after it.
    pub(super) last: bool,
    pub(super) fields: Fields,
}

/// What is next on the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Request,
    /// The client knows that there is no other, or finds out by a body that has no end.
    Leave,
    /// It has left itself, or may as well have.
    Nothing,
}

/// Why there is no answer.
enum Cut {
    Failure(Failure),
    /// The app's answer cannot be written.
    Unfit,
    Gone,
}

impl<E: Into<Failure>> From<E> for Cut {
    fn from(failure: E) -> Self {
        Self::Failure(failure.into())
    }
}

/// A body that is to come, behind a head that is written.
struct Reply {
    app: Upstream,
    framing: Framing,
    /// Whether the app keeps its connection.
    kept: bool,
    /// Whether the client's is closed behind it.
    closes: bool,
}

#[expect(
    clippy::manual_async_fn,
    reason = "the arguments of an async fn are held twice, and this is allocated for each request"
)]
pub(super) fn exchange(line: &mut Line<'_>, asked: Box<Asked>) -> impl Future<Output = Next> {
    async move {
        let mut out = line.client.shared.buffers.outbox();
        line.watch();
        let repeatable = asked.repeatable;
        match ask(line, asked.request, repeatable, &asked.terms, &mut out).await {
            Ok(reply) => relay(line, reply, out).await,
            Err(Cut::Gone) => Next::Nothing,
            Err(Cut::Unfit) => Next::Leave,
            Err(Cut::Failure(failure)) => {
                let failure = line.client.shared.proxy.upstream.blame(failure).await;
                let app_gone = failure.app_gone().is_some();
                let (head, body) = failure.respond(&line.client.shared.proxy.failures, Version::HTTP_11).into_parts();
                if app_gone && repeatable && line.used {
                    // As `client::without_app` says.
                    return Next::Leave;
                }
                let ending = ending(line.client, asked.terms.last || app_gone, line.now());
                out.bytes.clear();
                write::own(&head, &body.into_own(), asked.terms.to_head, &asked.terms.fields, ending, &mut out.bytes);
                let closes = ending.closes;
                finish(line, &out.bytes, &[], closes).await
            }
        }
    }
}

/// How the response to a request ends that is told now.
pub(super) fn ending(client: &Client, last: bool, now: Time) -> Ending<'_> {
    let shared = &client.shared;
    let leaves = shared.drain.has_begun() || shared.proxy.leaving.has_begun() || client.open.is_evicted();
    Ending { closes: last || leaves, date: &shared.date, now }
}

/// Sends what is left of an answer.
pub(super) async fn finish(line: &mut Line<'_>, head: &[u8], body: &[u8], closes: bool) -> Next {
    match line.send(head, body).await {
        Ok(()) if closes => Next::Leave,
        Ok(()) => Next::Request,
        Err(Gone) => Next::Nothing,
    }
}

/// Sends the request; once more, on a new connection, if an idle one turns out to have been closed by the app.
#[expect(clippy::manual_async_fn, reason = "as `exchange`")]
fn ask(
    line: &mut Line<'_>,
    request: Outbox,
    repeatable: bool,
    terms: &Terms,
    out: &mut Outbox,
) -> impl Future<Output = Result<Reply, Cut>> {
    async move {
        let shared = &line.client.shared;
        let limit = shared.proxy.settings.response_timeout;
        let sent = shared.proxy.clock.now();
        line.begin(limit);
        let mut app = match shared.pool.pop() {
            Some(stream) => Upstream::new(stream, false, request),
            None => Upstream::new(Box::pin(connected(line, limit)).await?, true, request),
        };
        loop {
            match hear(line, &mut app, terms, sent, out).await {
                Ok((framing, kept, closes)) => return Ok(Reply { app, framing, kept, closes }),
                // One of which nothing left this program may be sent again, whatever it is.
                Err(Cut::Failure(Failure::Closed)) if !app.fresh && (repeatable || app.is_untouched()) => {
                    let request = app.into_request().ok_or(Failure::Closed)?;
                    app = Upstream::new(Box::pin(connected(line, limit)).await?, true, request);
                }
                Err(cut) => return Err(cut),
            }
        }
    }
}

/// Called on the heap: few requests need a new connection, and the room for making one is large.
async fn connected(line: &Line<'_>, limit: Option<Duration>) -> Result<TcpStream, Cut> {
    let connecting = line.client.shared.proxy.upstream.connect();
    match limit {
        None => Ok(connecting.await?),
        Some(limit) => Ok(timeout(limit, connecting).await.map_err(|_| Failure::Unanswered(limit))??),
    }
}

/// Waits for the final answer and writes its head. Says how its body is framed, whether the app keeps its connection, and
/// whether the client's is closed.
async fn hear(
    line: &mut Line<'_>,
    app: &mut Upstream,
    terms: &Terms,
    sent: Time,
    out: &mut Outbox,
) -> Result<(Framing, bool, bool), Cut> {
    // Of a head that is not whole.
    let mut looked_at = 0;
    loop {
        match read(line, app, MAX_ANSWER_BYTES).await? {
            Ok(1..) => {}
            Ok(0) | Err(_) => return Err(Failure::Closed.into()),
        }
        loop {
            let bytes = app.unread();
            let length = bytes.len();
            if looked_at > 0 && length < MAX_ANSWER_BYTES && !response::may_be_whole(bytes, looked_at) {
                looked_at = length;
                break;
            }
            let mut room = Room::new();
            let mut largest = None;
            let read = match response::read(bytes, &mut room, terms.to_head) {
                Err(Garbled::TooLarge) => response::read(bytes, largest.insert(Room::largest()), terms.to_head),
                read => read,
            };
            let head = match read? {
                Answer::Part => {
                    looked_at = length;
                    break;
                }
                Answer::Interim(length) => {
                    app.consume(length);
                    looked_at = 0;
                    continue;
                }
                Answer::Switched => {
                    note_time(line, sent);
                    return Err(Failure::UnaskedUpgrade.into());
                }
                Answer::Final(head) => head,
            };
            note_time(line, sent);
            // No body shows which length holds. hyper's server drops such an answer, too.
            if terms.to_head && head.contradicts_itself() {
                return Err(Cut::Unfit);
            }
            let ending = ending(line.client, terms.last, line.now());
            write::to_client(&head, terms.to_head, &terms.fields, ending, &mut out.bytes);
            let (length, framing, kept) = (head.length, head.framing, head.kept);
            app.consume(length);
            // Nothing was sent yet: there is a better answer than one that is cut off.
            if framing.begins_wrongly(app.unread()) {
                return Err(Garbled::Chunk.into());
            }
            app.answered();
            return Ok((framing, kept, ending.closes));
        }
    }
}

fn note_time(line: &Line<'_>, sent: Time) {
    let proxy = &line.client.shared.proxy;
    proxy.upstream_time.record(proxy.clock.now().duration_since(sent));
}

/// Waits for more from the app, for as long as the client waits and may wait.
async fn read(line: &mut Line<'_>, app: &mut Upstream, most: usize) -> Result<io::Result<usize>, Cut> {
    let shared = &line.client.shared;
    poll_fn(|cx| {
        if let Poll::Ready(read) = app.poll_read(most, &shared.buffers, cx) {
            return Poll::Ready(Ok(read));
        }
        if line.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(Cut::Gone));
        }
        ready!(line.pause.poll_over(cx));
        Poll::Ready(Err(match shared.proxy.settings.response_timeout {
            Some(limit) if line.poll_gone(cx).is_pending() => Failure::Unanswered(limit).into(),
            _ => Cut::Gone,
        }))
    })
    .await
}

/// Passes the body on behind its head.
#[expect(clippy::manual_async_fn, reason = "as `exchange`")]
fn relay(line: &mut Line<'_>, mut reply: Reply, mut out: Outbox) -> impl Future<Output = Next> {
    async move {
        let shared = &line.client.shared;
        loop {
            // What goes on as it is need not be copied.
            let direct = reply.framing.take_long(reply.app.unread(), MAX_COPIED);
            if direct.is_none() {
                match reply.framing.pass(reply.app.unread(), &mut out.bytes) {
                    Ok(count) => reply.app.consume(count),
                    Err(invalid) => {
                        tracing::debug!(%invalid, "the app's body broke off");
                        return broken_off(line, &out.bytes).await;
                    }
                }
            }
            let count = direct.unwrap_or(0);
            if reply.framing.is_over() {
                let (rest, idle) = reply.app.finish(count);
                if let Some(idle) = idle.filter(|_| reply.kept) {
                    shared.pool.push(idle);
                }
                let body = rest.as_ref().map_or(&[][..], |rest| &rest.unread()[..count]);
                return finish(line, &out.bytes, body, reply.closes).await;
            }
            if line.send(&out.bytes, &reply.app.unread()[..count]).await.is_err() {
                return Next::Nothing;
            }
            reply.app.consume(count);
            out.bytes.clear();
            // Whatever the app takes its time for is its business.
            line.begin(None);
            match read(line, &mut reply.app, MAX_HELD).await {
                Ok(Ok(1..)) => {}
                Ok(Ok(0)) if reply.framing.closed(&mut out.bytes) => {
                    return finish(line, &out.bytes, &[], reply.closes).await;
                }
                Ok(Ok(0) | Err(_)) | Err(Cut::Failure(_) | Cut::Unfit) => return broken_off(line, &[]).await,
                Err(Cut::Gone) => return Next::Nothing,
            }
        }
    }
}

/// The client gets what there is, and learns from its connection's end that it is not all.
async fn broken_off(line: &mut Line<'_>, bytes: &[u8]) -> Next {
    finish(line, bytes, &[], true).await
}
