//! The life of a client's connection on the short way: request by request, until one comes that is not plain.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use http::Response;
use tokio::{net::TcpStream, task::unconstrained};
use weir_core::Time;

use super::{
    Client,
    buffer::{Buffer, Outbox, SIZE},
    exchange::{Asked, Next, Terms, ending, exchange, finish},
    field::Lines,
    line::{Gone, Line},
    request::{Look, Request},
    write,
};
use crate::{
    matching::Headers,
    proxy::ResponseBody,
    rules::{Fields, Refused},
};

/// How long the rest of a request may take of which some has come, before the ordinary way takes over, which knows what
/// to do with slow clients.
const MOMENT: Duration = Duration::from_millis(50);

/// How the short way ended.
#[derive(Debug)]
pub(in crate::proxy) enum End {
    /// The ordinary way is to go on, with these bytes first.
    HandOver(TcpStream, Bytes),
    /// To be closed so that the client gets everything that was sent.
    Leave(TcpStream),
    Closed,
}

/// What a request is, and what became of it.
enum Judged {
    Part(Option<usize>),
    /// Not for the short way: not plain, or its rules may want more than a word.
    Other,
    /// Its bytes were used, and it was answered.
    Refused {
        closes: bool,
        now: Time,
    },
    /// The same, but for this rest of the answer.
    Answered {
        rest: Outbox,
        closes: bool,
    },
    Gone,
    Admitted(Asked),
}

/// Serves plain requests, the first of which has begun to come: `before` and what is on the socket.
pub(in crate::proxy) async fn serve(stream: TcpStream, before: Bytes, client: &Client) -> End {
    let mut line = Line::new(stream, client);
    if !before.is_empty() {
        line.inbox.insert(client.shared.buffers.lend()).put(&before);
    }
    let drain = &client.shared.drain;
    let mut wakes = pin!(drain.wakes());
    // Not put off, or nothing would wake it.
    let _ = futures::poll!(pin!(unconstrained(wakes.as_mut())));
    // As it was read for an answer, if nothing was waited for since.
    let mut just_now = None;
    loop {
        if line.inbox.is_none() {
            let _parked = client.shared.traffic.park();
            let now = just_now.take().unwrap_or_else(|| client.shared.proxy.clock.now());
            line.pause.begin_at(now, client.shared.proxy.settings.idle_timeout);
            let mut now = Some(now);
            let first = poll_fn(|cx| {
                if let Poll::Ready(read) = line.poll_fill(cx) {
                    return Poll::Ready(Some(read));
                }
                // Whoever has already asked gets an answer.
                let over = drain.has_begun() || line.pause.poll_over_by(now.take(), cx).is_ready();
                if over { Poll::Ready(None) } else { Poll::Pending }
            });
            match first.await {
                Some(Ok(1..)) => {}
                Some(Ok(0)) | None => return End::Leave(line.stream),
                Some(Err(Gone)) => return End::Closed,
            }
        }
        let next = match judge(&mut line) {
            // On the heap, so that an idle connection does not hold the room for one.
            Judged::Admitted(asked) => Box::pin(exchange(&mut line, asked)).await,
            Judged::Refused { closes: true, .. } => Next::Leave,
            Judged::Refused { now, .. } => {
                just_now = Some(now);
                Next::Request
            }
            Judged::Answered { rest, closes } => finish(&mut line, &rest.bytes, &[], closes).await,
            Judged::Gone => Next::Nothing,
            Judged::Part(whole) if comes(&mut line, whole).await => continue,
            Judged::Part(_) | Judged::Other => {
                let bytes = Bytes::copy_from_slice(line.inbox.as_ref().map_or(&[], Buffer::unread));
                return End::HandOver(line.stream, bytes);
            }
        };
        match next {
            Next::Request => {}
            Next::Leave => return End::Leave(line.stream),
            Next::Nothing => return End::Closed,
        }
    }
}

/// Waits for more of a request of which some is there.
async fn comes(line: &mut Line<'_>, whole: Option<usize>) -> bool {
    let Some(inbox) = &mut line.inbox else { return false };
    if whole.is_some_and(|whole| whole > SIZE) || !inbox.make_room(SIZE) {
        return false;
    }
    line.pause.begin(Some(MOMENT));
    poll_fn(|cx| match line.poll_fill(cx) {
        Poll::Ready(read) => Poll::Ready(matches!(read, Ok(1..))),
        Poll::Pending => line.pause.poll_over(cx).map(|()| false),
    })
    .await
}

/// Looks at what was read, and decides on it if it is a plain request.
#[inline(always)] // as `calls` says
fn judge(line: &mut Line<'_>) -> Judged {
    let Some(inbox) = line.inbox.take() else { return Judged::Part(None) };
    let (judged, used) = judge_bytes(line, inbox.unread());
    line.give_back(inbox, used);
    judged
}

/// The same, and how many of the bytes were used.
#[inline(always)] // as `calls` says
fn judge_bytes(line: &mut Line<'_>, bytes: &[u8]) -> (Judged, usize) {
    let Client { shared, gate, peer } = line.client;
    let mut lines = Lines::default();
    let request = match Request::look(bytes, &mut lines, shared.limits) {
        Look::Plain(request) => request,
        Look::Part(whole) => return (Judged::Part(whole), 0),
        Look::Other => return (Judged::Other, 0),
    };
    let (to_head, last, length) = (request.is_head(), request.last, request.length);
    // Whoever sends many requests together has no more than its share of the runtime.
    let alone = bytes.len() == length;
    let target = (request.path, request.query);
    let judged = gate.admit_at_once(request.method, target, Headers::Lines(request.fields), |decided| match decided {
        Ok(fields) => {
            let mut out = shared.buffers.outbox();
            write::to_app(&request, peer, &mut out.bytes);
            let repeatable = request.is_repeatable();
            Judged::Admitted(Asked { request: out, repeatable, terms: Terms { to_head, last, fields } })
        }
        Err(refused) => refuse(line, refused, to_head, last, alone),
    });
    let Some(judged) = judged else { return (Judged::Other, 0) };
    shared.traffic.request();
    (judged, length)
}

/// Sends a refusal, as much of it as there is room for if that may be done at once.
#[inline(always)] // as `calls` says
fn refuse(line: &mut Line<'_>, refused: Refused<'_>, to_head: bool, last: bool, at_once: bool) -> Judged {
    let shared = &line.client.shared;
    let rest = |text: &[u8], closes| {
        let mut rest = shared.buffers.outbox();
        rest.bytes.extend_from_slice(text);
        Judged::Answered { rest, closes }
    };
    match refused {
        Refused::Http(refused) => {
            let ending = ending(line, last, refused.at());
            let (closes, now) = (ending.closes, ending.now);
            shared.refusals.write(refused, to_head, ending, |text| {
                let sent = if at_once { line.send_at_once(text) } else { Ok(0) };
                match sent {
                    Ok(sent) if sent == text.len() => Judged::Refused { closes, now },
                    Ok(sent) => rest(&text[sent..], closes),
                    Err(Gone) => Judged::Gone,
                }
            })
        }
        Refused::Grpc(response) => {
            let (text, closes) = refuse_grpc(line, *response, to_head, last);
            rest(&text, closes)
        }
    }
}

/// What is to be sent, and whether the connection is closed then.
#[cold]
fn refuse_grpc(line: &Line<'_>, response: Response<ResponseBody>, to_head: bool, last: bool) -> (Vec<u8>, bool) {
    let (head, body) = response.into_parts();
    let ending = ending(line, last, line.now());
    let (closes, mut text) = (ending.closes, Vec::new());
    write::own(&head, &body.into_own(), to_head, &Fields::default(), ending, &mut text);
    (text, closes)
}
