//! The agent's control API as seen by its caller: two calls, bounded in time and size.
//!
//! Whoever sits at a pod's address may be broken or hostile: an answer is read up to a bound and parsed strictly, and
//! nothing in it does more harm than a failed call.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::timeout;
use weir_wire::{ApplyReply, Refusal, RefusalKind, Status};

/// The longest answer that is read.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// Calls agents. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: HyperClient<HttpConnector, Full<Bytes>>,
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

impl Default for Client {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        let http = HyperClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(1)
            .build(connector);
        Self { http }
    }
}

impl Client {
    /// `PUT /v1/config`.
    ///
    /// # Errors
    ///
    /// Any answer but 200, or none within `limit`.
    pub async fn put_config(&self, url: &str, body: String, limit: Duration) -> Result<ApplyReply, ContactError> {
        let (status, body) = self.call(Method::PUT, url, "/v1/config", Bytes::from(body), limit).await?;
        if status == StatusCode::OK {
            return parse(status, &body);
        }
        let refusal: Refusal = parse(status, &body)?;
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

    /// `GET /v1/status`.
    ///
    /// # Errors
    ///
    /// Any answer but 200, or none within `limit`.
    pub async fn status(&self, url: &str, limit: Duration) -> Result<Status, ContactError> {
        let (status, body) = self.call(Method::GET, url, "/v1/status", Bytes::new(), limit).await?;
        if status == StatusCode::OK {
            parse(status, &body)
        } else {
            Err(ContactError::Garbage(format!("GET /v1/status answered {status}")))
        }
    }

    async fn call(
        &self,
        method: Method,
        url: &str,
        path: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<(StatusCode, Bytes), ContactError> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{url}{path}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| ContactError::Connection(error.to_string()))?;
        let exchange = async {
            let response = self.http.request(request).await.map_err(|error| ContactError::Connection(chain(&error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| ContactError::Garbage(chain(&*error)))?;
            Ok((head.status, body.to_bytes()))
        };
        timeout(limit, exchange).await.unwrap_or(Err(ContactError::Timeout(limit)))
    }
}

fn parse<T: serde::de::DeserializeOwned>(status: StatusCode, body: &[u8]) -> Result<T, ContactError> {
    serde_json::from_slice(body).map_err(|error| ContactError::Garbage(format!("{status}: {error}")))
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
