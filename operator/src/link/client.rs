//! One agent's control API as seen by its caller: two calls over a connection that is kept, bounded in time and size. One
//! of them may have an answer that goes on ([`Following`]), until the next call.
//!
//! The process at a pod's address may be broken or hostile: an answer is read up to a bound and parsed strictly, and
//! nothing in it does more harm than a failed call. Over TLS nobody is heard who does not show the certificate of the
//! very pod that is meant.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, Method, Response, StatusCode};
use serde::Deserialize;
use tokio::time::timeout;
use weir_wire::{ApplyReply, Refusal, RefusalKind, STATUS_LINES, Status};

use super::connection::{Connection, ConnectionError, Mutual};
use super::following::Following;
use super::{Poll as Pace, trust};
use crate::clock;
use crate::identity::{Held, Peer};

/// The longest answer that is read.
const LONGEST_ANSWER: usize = weir_http2::MAX_BODY_BYTES as usize;

/// Calls one agent.
#[derive(Debug)]
pub struct Client {
    address: Arc<str>,
    security: Security,
    connection: Option<Connection>,
    /// If the agent goes on to tell its status, over the connection.
    following: Option<Box<Following>>,
}

/// How an agent is told from somebody else.
#[derive(Debug)]
enum Security {
    /// Not at all.
    Plain,
    /// By its certificate.
    Mutual { peer: Peer, credentials: Option<Held> },
}

/// What an agent answers that is asked for its status.
#[derive(Debug)]
pub enum Told {
    /// This.
    Status {
        /// What it enforces and counted.
        status: Box<Status>,
        /// Names what it said, if the agent can be asked for no more than what is new.
        tag: Option<Tag>,
    },
    /// What it said last time, but for the time that has passed.
    Nothing,
}

/// What is heard of an agent between two calls.
#[derive(Debug)]
pub enum Heard {
    /// What it enforces and counted, because it was asked to go on telling.
    Status(Box<Status>),
    /// It stopped reporting, or must be asked again: it reports more or less often than it should, or over a connection that has
    /// lived long enough. The connection is open.
    Stopped,
    /// It tells nothing any more. The connection was closed.
    Silent,
    /// The connection has ended.
    Closed {
        /// Because nothing was heard of the agent's host for too long.
        is_silent: bool,
    },
    /// What no agent would say. The connection was closed.
    Nonsense(ContactError),
}

/// The entity tag of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(Box<[u8]>);

impl Tag {
    /// No agent's tag is longer. Thousands are kept.
    const LONGEST: usize = 64;

    fn of(head: &HeaderMap) -> Option<Self> {
        let tag = head.get(ETAG)?.as_bytes();
        (tag.len() <= Self::LONGEST).then(|| Self(tag.into()))
    }

    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// What an agent is asked.
struct Call<'a> {
    method: Method,
    path: &'static str,
    body: Bytes,
    /// What is known already.
    known: Option<&'a Tag>,
    /// How often to go on telling, for an agent that can and over a connection that is worth it.
    pace: Option<&'a Pace>,
}

/// Why a call gave nothing.
#[derive(Debug, thiserror::Error)]
pub enum ContactError {
    /// Nobody answered in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection failed.
    #[error("{0}")]
    Connection(String),
    /// The peer is not the pod's agent, or does not trust this operator.
    #[error("{0}")]
    Untrusted(String),
    /// The answer is none that an agent gives.
    #[error("not an agent's answer: {0}")]
    Garbage(String),
    /// The agent does not take the snapshot.
    #[error("{}", describe(.0))]
    Refused(Box<Refusal>),
}

fn describe(refusal: &Refusal) -> String {
    let mut text = refusal.message.clone();
    for fault in refusal.faults.iter().take(3) {
        text.push_str(&format!("; {}: {}", fault.path, fault.message));
    }
    text
}

/// What an agent says to a client that it does not serve.
#[derive(Deserialize)]
struct Forbidden {
    message: String,
}

impl Client {
    /// For the agent at `url`: `http`, or `https` for one that must prove to be `peer`.
    pub(crate) fn new(url: &str, peer: impl Into<Peer>, credentials: Option<Held>) -> Self {
        let (security, address) = match url.split_once("://") {
            Some(("https", address)) => (Security::Mutual { peer: peer.into(), credentials }, address),
            Some((_, address)) => (Security::Plain, address),
            None => (Security::Plain, url),
        };
        Self { address: address.into(), security, connection: None, following: None }
    }

    /// `PUT /v1/config`.
    ///
    /// # Errors
    ///
    /// Any answer but 200, or none within `limit`.
    pub async fn put_config(&mut self, body: impl Into<Bytes>, limit: Duration) -> Result<ApplyReply, ContactError> {
        let call = Call { method: Method::PUT, path: "/v1/config", body: body.into(), known: None, pace: None };
        let answer = self.call(call, limit).await?;
        let status = answer.status();
        if status == StatusCode::OK {
            return parse(&answer);
        }
        let refusal: Refusal = parse(&answer)?;
        let expected = match refusal.error {
            RefusalKind::Malformed => StatusCode::BAD_REQUEST,
            RefusalKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            RefusalKind::Stale => StatusCode::CONFLICT,
            RefusalKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
        };
        if status == expected {
            Err(ContactError::Refused(Box::new(refusal)))
        } else {
            Err(ContactError::Garbage(format!("{status} with a refusal for {expected}")))
        }
    }

    /// `GET /v1/status`; `known`: only if it says something else than what has this tag. An agent that can goes on telling
    /// as often as `pace` says, which is heard by [`hears`](Self::hears).
    ///
    /// # Errors
    ///
    /// Any answer but 200, or 304 to somebody who knows something, or none within `limit`.
    pub async fn status(&mut self, known: Option<&Tag>, pace: &Pace, limit: Duration) -> Result<Told, ContactError> {
        let pace = Some(pace);
        let call = Call { method: Method::GET, path: "/v1/status", body: Bytes::new(), known, pace };
        let answer = self.call(call, limit).await?;
        match answer.status() {
            StatusCode::OK => Ok(Told::Status { status: parse(&answer)?, tag: Tag::of(answer.headers()) }),
            StatusCode::NOT_MODIFIED if known.is_some() => Ok(Told::Nothing),
            status => Err(ContactError::Garbage(format!("GET /v1/status answered {status}"))),
        }
    }

    /// Whether a call would find a connection open. It may end at any moment.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the agent goes on telling its status.
    pub fn is_following(&self) -> bool {
        self.following.is_some()
    }

    /// Waits until something is heard over the connection that is open at the moment; for ever if there is none. An agent
    /// that goes on telling should do so as often as `pace` says; that it has nothing to tell is heard, and not told.
    pub async fn hears(&mut self, pace: &Pace) -> Heard {
        let heard = match (&mut self.connection, &mut self.following) {
            (None, _) => std::future::pending().await,
            (Some(Connection::Mutual(mutual)), Some(following)) => go_on(mutual, following, pace).await,
            (Some(connection), _) => Heard::Closed { is_silent: connection.closed().await },
        };
        match &heard {
            Heard::Status(_) => {}
            Heard::Stopped => self.following = None,
            Heard::Closed { .. } | Heard::Silent | Heard::Nonsense(_) => self.hang_up(),
        }
        heard
    }

    /// Waits until the connection that is open at the moment ends; for ever if there is none. An agent that goes on telling
    /// is told to stop. True if the connection ended because nothing was heard of the agent's host for too long.
    pub async fn closed(&mut self) -> bool {
        self.following = None;
        let is_silent = match &mut self.connection {
            Some(connection) => connection.closed().await,
            None => std::future::pending().await,
        };
        self.connection = None;
        is_silent
    }

    fn hang_up(&mut self) {
        (self.connection, self.following) = (None, None);
    }

    async fn call(&mut self, call: Call<'_>, limit: Duration) -> Result<Response<Bytes>, ContactError> {
        // On the heap: thousands of links are at rest, and what a call needs must not be part of each.
        let answer = timeout(limit, Box::pin(self.exchange(&call))).await;
        let answer = answer.unwrap_or(Err(ContactError::Timeout(limit)));
        if answer.is_err() {
            // Nobody knows what state it is in.
            self.hang_up();
        }
        let answer = answer?;
        if answer.status() == StatusCode::FORBIDDEN
            && let Ok(Forbidden { message }) = serde_json::from_slice(answer.body())
        {
            return Err(ContactError::Untrusted(message));
        }
        Ok(answer)
    }

    async fn exchange(&mut self, call: &Call<'_>) -> Result<Response<Bytes>, ContactError> {
        self.following = None;
        let mut kept = self.connection.take();
        if kept.as_mut().is_some_and(|kept| !kept.is_usable(unix_seconds())) {
            kept = None;
        }
        loop {
            let (connection, is_kept) = match kept.take() {
                Some(connection) => (connection, true),
                None => (self.open().await?, false),
            };
            match self.ask(connection, call).await {
                // The agent may have closed it at the same moment. Both calls may be made twice.
                Err(ContactError::Connection(_)) if is_kept => {}
                answer => return answer,
            }
        }
    }

    /// Opens a connection. What that takes is not part of a call over one that is open: it is larger than what the
    /// allocator has ready at once.
    async fn open(&self) -> Result<Connection, ContactError> {
        let opened = Box::pin(open(&self.address, &self.security)).await;
        opened.map_err(|error| self.contact_error(&error))
    }

    async fn ask(&mut self, mut connection: Connection, call: &Call<'_>) -> Result<Response<Bytes>, ContactError> {
        let fields =
            [(CONTENT_TYPE, b"application/json".as_slice()), (IF_NONE_MATCH, call.known.map_or(b"", Tag::bytes))];
        let fields = &fields[usize::from(call.body.is_empty())..1 + usize::from(call.known.is_some())];
        let (method, authority, path) = (call.method.clone(), &*self.address, call.path);
        let request = weir_http2::Request { method, authority, path, fields, body: call.body.clone() };
        let answer = match (&mut connection, call.pace) {
            (Connection::Mutual(mutual), Some(pace)) => {
                let begun = begin(mutual, request, pace).await;
                begun.map(|(answer, following)| {
                    self.following = following;
                    answer
                })
            }
            (connection, _) => connection.send(request).await,
        };
        let answer = answer.map_err(|error| self.contact_error(&error))?;
        self.connection = Some(connection);
        Ok(answer)
    }

    /// What went wrong with a connection, in words for the user who has to fix it.
    fn contact_error(&self, error: &ConnectionError) -> ContactError {
        if let ConnectionError::Answer(_) = error {
            return ContactError::Garbage(chain(error));
        }
        let told = match &self.security {
            Security::Mutual { peer, .. } => trust::explain(error, peer),
            Security::Plain => trust::explain_plain(error),
        };
        told.map_or_else(|| ContactError::Connection(chain(error)), ContactError::Untrusted)
    }
}

/// Asks for a status: the answer, or its first line if more will follow.
async fn begin(
    connection: &mut Mutual,
    request: weir_http2::Request<'_>,
    pace: &Pace,
) -> Result<(Response<Bytes>, Option<Box<Following>>), ConnectionError> {
    let every = pace.every();
    let path = format!("{}?everyMillis={}", request.path, every.as_millis());
    let (head, ()) = connection.begin(weir_http2::Request { path: &path, ..request }).await?.into_parts();
    let is_followed =
        head.status == StatusCode::OK && head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == STATUS_LINES);
    if !is_followed {
        let mut body = Vec::new();
        while connection.more(&mut body).await? {
            if body.len() > LONGEST_ANSWER {
                return Err(ConnectionError::Answer("it is longer than any answer".into()));
            }
        }
        return Ok((Response::from_parts(head, body.into()), None));
    }
    let mut following = Box::new(Following::new(every, pace.patience(), pace.vigil().place(), clock::now()));
    while connection.more(&mut following.buffer).await? {
        let first = following.came(clock::now()).and_then(|()| following.line(clock::now()));
        if let Some(first) = first.map_err(|fault| ConnectionError::Answer(fault.into()))? {
            return Ok((Response::from_parts(head, first.into()), Some(following)));
        }
    }
    Err(ConnectionError::Answer("it ends before its first line does".into()))
}

/// Listens to an agent that was asked to go on telling, until there is something to tell.
async fn go_on(connection: &mut Mutual, following: &mut Following, pace: &Pace) -> Heard {
    let nonsense = |fault: String| Heard::Nonsense(ContactError::Garbage(fault));
    let mut now = clock::now();
    let mut has_line = true;
    loop {
        if has_line && (!connection.is_good(unix_seconds()) || !following.is_as_often_as(pace.every())) {
            return Heard::Stopped;
        }
        has_line = false;
        match following.line(now) {
            Ok(Some(line)) if line.is_empty() => {
                has_line = true;
                continue;
            }
            Ok(Some(line)) => {
                return match serde_json::from_slice(&line) {
                    Ok(status) => Heard::Status(status),
                    Err(error) => nonsense(error.to_string()),
                };
            }
            Ok(None) => {}
            Err(fault) => return nonsense(fault.to_owned()),
        }
        let more = {
            let Following { buffer, place, .. } = following;
            let mut more = pin!(connection.more(buffer));
            poll_fn(|context| match more.as_mut().poll(context) {
                Poll::Pending => place.poll_overdue(context).map(|()| None),
                more => more.map(Some),
            })
            .await
        };
        let Some(more) = more else { return Heard::Silent };
        match more {
            Ok(true) => {
                now = clock::now();
                if let Err(fault) = following.came(now) {
                    return nonsense(fault.to_owned());
                }
            }
            Ok(false) => return Heard::Stopped,
            Err(error @ ConnectionError::Answer(_)) => return nonsense(chain(&error)),
            Err(error) => return Heard::Closed { is_silent: error.is_silence() },
        }
    }
}

fn unix_seconds() -> u64 {
    clock::unix_micros() / 1_000_000
}

async fn open(address: &str, security: &Security) -> Result<Connection, ConnectionError> {
    match security {
        Security::Plain => Connection::plain(address).await,
        Security::Mutual { peer, credentials } => {
            let credentials = credentials.as_ref().and_then(|held| held.borrow().clone());
            let credentials = credentials.ok_or(ConnectionError::NoCertificate)?;
            Connection::mutual(address, peer, &credentials).await
        }
    }
}

fn parse<T: serde::de::DeserializeOwned>(answer: &Response<Bytes>) -> Result<T, ContactError> {
    let told = |error| ContactError::Garbage(format!("{}: {error}", answer.status()));
    serde_json::from_slice(answer.body()).map_err(told)
}

/// An error with its causes: hyper keeps what people need to know ("connection refused") in the last of them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
#[path = "client_tests.rs"]
pub(super) mod tests;
