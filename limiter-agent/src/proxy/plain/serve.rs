//! Serves a client's connection on the short path, request by request, until one is not plain.

use std::{future::poll_fn, mem, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use tokio::{
    net::TcpStream,
    task::{unconstrained, yield_now},
};
use weir_core::Time;
use weir_enforce::{Fields, Format, Headers, Pass, Refusal};

use super::{
    Client,
    buffer::{Buffer, Outbox, SIZE},
    client_connection::{ClientConnection, Gone, SendHalf},
    exchange::{Answered, AppRequest, ResponseContext, ending, exchange, finish},
    field::RequestFields,
    request::{Look, Request},
    write,
};
use crate::proxy::hand_over::{End, HandOver};

/// The time limit for the whole rest of a request. After this time, hyper's path takes over, which handles slow clients.
const MOMENT: Duration = Duration::from_millis(50);

/// The unsent rest of a response.
struct UnsentRest {
    text: Outbox,
    closes: bool,
}

/// The kind of a request, and what the short path did with it. The type has two words, so it is returned in registers.
/// Returned through memory, it would delay a refusal for longer than a decision takes.
enum Decided {
    /// The request is incomplete. Its rest will fit into the buffer, or its length is not known yet.
    Part,
    /// The short path cannot serve the request: it is not plain, it is too long, or the gate cannot decide on it
    /// immediately.
    Other,
    /// The request was refused at this time, and the whole refusal was sent.
    Refused(Time),
    /// The whole refusal was sent, and the connection must close.
    Closed,
    /// The request was refused, and this rest of the refusal must be sent.
    Unsent(Box<UnsentRest>),
    Gone,
    Admitted(Box<AppRequest>),
}

const _: () = assert!(size_of::<Decided>() <= 2 * size_of::<u64>());

/// Serves plain requests until one is not plain. The bytes in `before`, and then those on the socket, belong to the first
/// request. `used` is true if the connection has served requests before.
pub(in super::super) async fn serve(stream: TcpStream, before: Bytes, used: bool, client: &Client) -> End {
    let mut connection = ClientConnection::new(stream, client, used);
    if !before.is_empty() {
        connection.inbox.insert(client.worker.buffers.lend()).put(&before);
    }
    let drain = &client.worker.drain;
    let mut times = drain.times();
    let mut wakes = pin!(drain.wakes());
    let mut evicted = pin!(client.open.evicted());
    // The polls are unconstrained: if the task's budget delayed them, nothing would wake the task.
    let _ = futures::poll!(pin!(unconstrained(wakes.as_mut())));
    let _ = futures::poll!(pin!(unconstrained(evicted.as_mut())));
    // The time of the last decision, if the task has not waited since then.
    let mut just_now = None;
    let mut served = false;
    // Whether the time limit for the rest of a request runs.
    let mut is_timed = false;
    loop {
        if connection.inbox.is_none() {
            if drain.times() != times {
                // In the meantime, the app refused connections and then accepted them again.
                times = drain.times();
                wakes.set(drain.wakes());
                let _ = futures::poll!(pin!(unconstrained(wakes.as_mut())));
            }
            let _parked = client.worker.traffic.park();
            let now = just_now.take().unwrap_or_else(|| client.worker.proxy.clock.now());
            connection.pause.begin_at(now, client.worker.proxy.settings.idle_timeout);
            client.open.set_idle(now);
            let mut now = Some(now);
            let first = poll_fn(|cx| {
                if let Poll::Ready(read) = connection.poll_fill(cx) {
                    return Poll::Ready(Some(read));
                }
                // A client that has already sent a request gets a response.
                let over = drain.has_begun()
                    || client.open.is_evicted()
                    || connection.pause.poll_over_by(now.take(), cx).is_ready();
                if over { Poll::Ready(None) } else { Poll::Pending }
            });
            let first = match first.await {
                // If the process was stopped, the timer can expire before the runtime has looked at the sockets.
                None => {
                    yield_now().await;
                    match futures::poll!(poll_fn(|cx| connection.poll_fill(cx))) {
                        Poll::Ready(read) => Some(read),
                        Poll::Pending => None,
                    }
                }
                first => first,
            };
            match first {
                Some(Ok(1..)) if client.open.set_busy() => {}
                Some(Ok(1..)) => return End::Closed,
                Some(Ok(0)) | None => return End::Leave(connection.stream),
                Some(Err(Gone)) => return End::Closed,
            }
        }
        let answered = match parse_and_decide(&mut connection) {
            // The future is boxed, so that an idle connection uses no memory for it.
            Decided::Admitted(app_request) => Box::pin(exchange(&mut connection, app_request)).await,
            Decided::Closed => Answered::Leave,
            Decided::Refused(now) => {
                just_now = Some(now);
                Answered::NextRequest
            }
            Decided::Unsent(rest) => finish(&mut connection, &rest.text.bytes, &[], rest.closes).await,
            Decided::Gone => Answered::Closed,
            Decided::Part if more_arrives(&mut connection, mem::replace(&mut is_timed, true)).await => continue,
            Decided::Part | Decided::Other => {
                let bytes = Bytes::copy_from_slice(connection.inbox.as_ref().map_or(&[], Buffer::unread));
                let ClientConnection { stream, used, .. } = connection;
                return End::HandOver(HandOver { stream, before: bytes, used, served });
            }
        };
        is_timed = false;
        match answered {
            Answered::NextRequest => (connection.used, served) = (true, true),
            Answered::Leave => return End::Leave(connection.stream),
            Answered::Closed => return End::Closed,
        }
    }
}

/// Waits for more bytes of an incomplete request. Returns false if none arrive in time. `is_timed` says that the time
/// runs since earlier bytes of this request.
async fn more_arrives(connection: &mut ClientConnection<'_>, is_timed: bool) -> bool {
    let Some(inbox) = &mut connection.inbox else { return false };
    if !inbox.make_room(SIZE) {
        return false;
    }
    if !is_timed {
        connection.pause.begin(Some(MOMENT));
    }
    poll_fn(|cx| {
        if is_timed && connection.pause.poll_over(cx).is_ready() {
            return Poll::Ready(false);
        }
        match connection.poll_fill(cx) {
            Poll::Ready(read) => Poll::Ready(matches!(read, Ok(1..))),
            Poll::Pending => connection.pause.poll_over(cx).map(|()| false),
        }
    })
    .await
}

/// Parses the bytes that were read, and decides on them if they are a plain request.
#[inline(always)] // see the docs of `calls`
fn parse_and_decide(connection: &mut ClientConnection<'_>) -> Decided {
    let client = connection.client;
    let Some((bytes, back)) = connection.ends() else { return Decided::Part };
    let (decided, length) = decide_on_bytes(client, back, bytes);
    connection.consume(length);
    decided
}

/// Decides on the request in `bytes`, and returns its length. The length is 0 if the request must stay in the buffer.
#[inline(always)] // see the docs of `calls`
fn decide_on_bytes(client: &Client, back: SendHalf<'_>, bytes: &[u8]) -> (Decided, usize) {
    let Client { worker, gate, peer, .. } = client;
    let mut lines = RequestFields::default();
    let request = match Request::look(bytes, &mut lines, worker.head_bounds) {
        Look::Plain(request) => request,
        Look::Part(whole) if whole.is_none_or(|whole| whole <= SIZE) => return (Decided::Part, 0),
        Look::Part(_) | Look::Other => return (Decided::Other, 0),
    };
    let (to_head, last, length) = (request.is_head(), request.last, request.length);
    // If more requests follow, the refusal is not sent immediately. So a client that sends many requests gets only its
    // share of the runtime.
    let alone = bytes.len() == length;
    let target = (request.path, request.query);
    // The same engine decides as in the layers on hyper's path, by the same rules in force.
    let (headers, body) = (Headers::Lines(request.fields), request.body.len());
    let decided = gate.decide_at_once(request.method, target, headers, body, |verdict| match verdict {
        Ok(Pass { fields, follow_up }) => {
            // The copy makes refusals fast. Without it, a refusal would also write the unneeded parts of the request to
            // memory.
            let plain = request;
            let mut out = worker.buffers.outbox();
            write::to_app(&plain, peer, &mut out.bytes);
            let repeatable = plain.is_repeatable();
            Decided::Admitted(Box::new(AppRequest {
                request: out,
                repeatable,
                context: ResponseContext { to_head, last, fields, follow_up },
            }))
        }
        Err(refusal) => {
            let format = Format::of(Headers::Lines(request.fields));
            refuse(client, back, refusal, format, to_head, last, alone)
        }
    });
    let Some(decided) = decided else { return (Decided::Other, 0) };
    worker.traffic.request();
    (decided, length)
}

/// Sends a refusal. If `at_once` is true, it immediately sends as many bytes as the socket accepts.
#[inline(always)] // see the docs of `calls`
fn refuse(
    client: &Client,
    back: SendHalf<'_>,
    refusal: &Refusal<'_>,
    format: Format,
    to_head: bool,
    last: bool,
    at_once: bool,
) -> Decided {
    let worker = &client.worker;
    let rest = |text: &[u8], closes| {
        let mut rest = worker.buffers.outbox();
        rest.bytes.extend_from_slice(text);
        Decided::Unsent(Box::new(UnsentRest { text: rest, closes }))
    };
    match format {
        Format::Http => {
            let ending = ending(client, last, refusal.at());
            let (closes, now) = (ending.closes, ending.now);
            worker.refusals.write(refusal, to_head, ending, |text| {
                let sent = if at_once { back.send_at_once(text) } else { Ok(0) };
                match sent {
                    Ok(sent) if sent == text.len() && closes => Decided::Closed,
                    Ok(sent) if sent == text.len() => Decided::Refused(now),
                    Ok(sent) => rest(&text[sent..], closes),
                    Err(Gone) => Decided::Gone,
                }
            })
        }
        Format::Grpc => {
            let (text, closes) = refuse_grpc(client, refusal, to_head, last);
            rest(&text, closes)
        }
    }
}

/// The response to send, and whether the connection closes after it. gRPC is rare over HTTP/1.1, so these refusals
/// are not cached.
#[cold]
fn refuse_grpc(client: &Client, refusal: &Refusal<'_>, to_head: bool, last: bool) -> (Vec<u8>, bool) {
    let (head, body) = weir_enforce::refused(refusal, Format::Grpc).into_parts();
    let ending = ending(client, last, client.worker.proxy.clock.now());
    let (closes, mut text) = (ending.closes, Vec::new());
    write::own(&head, &body, to_head, &Fields::default(), ending, &mut text);
    (text, closes)
}
