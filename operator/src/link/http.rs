//! The control API over plain HTTP, for agents without certificates. This module has the same interface as the channel.
//!
//! A snapshot is sent as `PUT /v1/config`, and the response is an acknowledgement or a rejection. A `GET /v1/status`
//! requests the status at each interval. One request is in flight at a time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{
    Method, Request, Response, StatusCode,
    header::{CONTENT_TYPE, ETAG, HOST, HeaderValue, IF_NONE_MATCH},
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use rand::Rng;
use serde::{Deserialize, de::DeserializeOwned};
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};
use weir_channel::ToOperator;
use weir_wire::{Rejection, RejectionKind};

use super::{
    ContactError,
    dial_error::{DialError, chain, is_silence},
};
use crate::clock;

/// The size of the read buffer. It is small, because responses of agents are short and connections are many.
const READ_BUFFER: usize = 4096;
const MAX_ANSWER_BYTES: usize = 1024 * 1024;
/// The maximum length of a stored entity tag. Agents send tags of at most this length, and there are thousands of
/// agents.
const LONGEST_TAG: usize = 64;

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct Http {
    authority: Arc<str>,
    limit: Duration,
    /// `None` while a request is in flight.
    sender: Option<Sender>,
    exchange: Option<BoxFuture<'static, (Sender, Result<Answer, ContactError>)>>,
    driver: JoinHandle<hyper::Result<()>>,
    queued: Option<Bytes>,
    /// The entity tag of the last status.
    known: Option<HeaderValue>,
    every: Duration,
    poll_at: Option<Instant>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("authority", &self.authority).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Answer {
    message: ToOperator,
    tag: Option<HeaderValue>,
}

impl Http {
    /// Requests the status, over a stream that has not carried any data yet.
    ///
    /// # Errors
    ///
    /// The response did not come from an agent.
    pub(super) async fn connect(
        stream: TcpStream,
        authority: Arc<str>,
        limit: Duration,
    ) -> Result<(Self, ToOperator), DialError> {
        let http = Builder::new().read_buf_exact_size(Some(READ_BUFFER)).handshake(TokioIo::new(stream)).await;
        let (mut sender, driver) = http.map_err(DialError::Http)?;
        let mut http = Self {
            authority,
            limit,
            sender: None,
            exchange: None,
            driver: tokio::spawn(driver),
            queued: None,
            known: None,
            every: Duration::MAX,
            poll_at: None,
        };
        let request = status_request(&http.authority, None).map_err(DialError::Answer)?;
        let answer = exchange(&mut sender, request).await.map_err(DialError::Http)?;
        let answer = answer.and_then(|answer| status_answer(&answer, false)).map_err(DialError::Answer)?;
        (http.sender, http.known) = (Some(sender), answer.tag);
        Ok((http, answer.message))
    }

    /// Sends a snapshot as soon as no other request is in flight.
    pub(super) fn push(&mut self, body: Bytes) {
        self.queued = Some(body);
    }

    /// Requests the status at this interval. The first delay is random, so that agents that connected at the same time
    /// get requests at different times.
    pub(super) fn request_status(&mut self, every: Duration) {
        self.every = every;
        self.poll_at = Some(clock::now() + every.mul_f64(rand::rng().random_range(0.0..=1.0)));
    }

    /// Waits for the agent's next message. Cancel safe.
    ///
    /// # Errors
    ///
    /// The connection can no longer be used.
    pub(super) async fn next(&mut self) -> Result<ToOperator, ContactError> {
        loop {
            if let Some(exchange) = &mut self.exchange {
                let (sender, answer) = exchange.await;
                (self.exchange, self.sender) = (None, Some(sender));
                let Answer { message, tag } = answer?;
                if matches!(message, ToOperator::Status(_)) {
                    self.known = tag;
                }
                return Ok(message);
            }
            if self.queued.is_some() || self.poll_at.is_some_and(|at| at <= clock::now()) {
                self.begin()?;
                continue;
            }
            tokio::select! {
                ended = &mut self.driver => {
                    let error = ended.ok().and_then(Result::err);
                    return Err(ContactError::Closed { is_silent: error.is_some_and(|error| is_silent(&error)) });
                }
                () = sleep_until(self.poll_at.unwrap_or_else(clock::now)), if self.poll_at.is_some() => {}
            }
        }
    }

    fn begin(&mut self) -> Result<(), ContactError> {
        let Some(mut sender) = self.sender.take() else { return Ok(()) };
        let limit = self.limit;
        let body = self.queued.take();
        let is_push = body.is_some();
        let is_known = self.known.is_some();
        let request = match body {
            Some(body) => {
                let request = Request::builder().method(Method::PUT).uri("/v1/config").header(HOST, &*self.authority);
                let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(body));
                request.map_err(|error| ContactError::Connection(error.to_string()))?
            }
            None => {
                let pause = self.every.mul_f64(rand::rng().random_range(0.9..=1.0));
                self.poll_at = Some(clock::now() + pause);
                status_request(&self.authority, self.known.as_ref())?
            }
        };
        self.exchange = Some(Box::pin(async move {
            let answer = match timeout(limit, exchange(&mut sender, request)).await {
                Err(_) => Err(ContactError::Timeout(limit)),
                Ok(Err(error)) => Err(ContactError::Connection(chain(&error))),
                Ok(Ok(answer)) => answer
                    .and_then(|answer| if is_push { put_answer(&answer) } else { status_answer(&answer, is_known) }),
            };
            (sender, answer)
        }));
        Ok(())
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn status_request(authority: &str, known: Option<&HeaderValue>) -> Result<Request<Full<Bytes>>, ContactError> {
    let mut request = Request::builder().uri("/v1/status").header(HOST, authority);
    if let Some(known) = known {
        request = request.header(IF_NONE_MATCH, known);
    }
    request.body(Full::default()).map_err(|error| ContactError::Connection(error.to_string()))
}

/// Sends a request and reads the whole response. The inner error is about the content of the response.
async fn exchange(
    sender: &mut Sender,
    request: Request<Full<Bytes>>,
) -> hyper::Result<Result<Response<Bytes>, ContactError>> {
    sender.ready().await?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    Ok(match body {
        Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
        Err(error) => Err(ContactError::Garbage(chain(&*error))),
    })
}

fn put_answer(answer: &Response<Bytes>) -> Result<Answer, ContactError> {
    let status = answer.status();
    if status == StatusCode::OK {
        return Ok(Answer { message: ToOperator::Acknowledgement(parse(answer)?), tag: None });
    }
    forbidden(answer)?;
    let rejection: Rejection = parse(answer)?;
    let expected = match rejection.error {
        RejectionKind::Malformed => StatusCode::BAD_REQUEST,
        RejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RejectionKind::Stale => StatusCode::CONFLICT,
        RejectionKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
    };
    if status == expected {
        Ok(Answer { message: ToOperator::Rejection(Box::new(rejection)), tag: None })
    } else {
        Err(ContactError::Garbage(format!("{status} with a rejection for {expected}")))
    }
}

fn status_answer(answer: &Response<Bytes>, is_known: bool) -> Result<Answer, ContactError> {
    forbidden(answer)?;
    match answer.status() {
        StatusCode::OK => {
            let tag = answer.headers().get(ETAG).filter(|tag| tag.len() <= LONGEST_TAG).cloned();
            Ok(Answer { message: ToOperator::Status(parse(answer)?), tag })
        }
        StatusCode::NOT_MODIFIED if is_known => Ok(Answer { message: ToOperator::Unchanged, tag: None }),
        status => Err(ContactError::Garbage(format!("GET /v1/status answered {status}"))),
    }
}

/// Returns an error if the agent refuses to serve this client.
fn forbidden(answer: &Response<Bytes>) -> Result<(), ContactError> {
    #[derive(Deserialize)]
    struct Forbidden {
        message: String,
    }

    if answer.status() == StatusCode::FORBIDDEN
        && let Ok(Forbidden { message }) = serde_json::from_slice(answer.body())
    {
        return Err(ContactError::Untrusted(message));
    }
    Ok(())
}

fn parse<T: DeserializeOwned>(answer: &Response<Bytes>) -> Result<T, ContactError> {
    let garbage = |error| ContactError::Garbage(format!("{}: {error}", answer.status()));
    serde_json::from_slice(answer.body()).map_err(garbage)
}

fn is_silent(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(<dyn std::error::Error>::downcast_ref);
    cause.is_some_and(is_silence)
}
