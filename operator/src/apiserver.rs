//! How the apiserver is asked.
//!
//! An answer that says when to come back (429 and 503 with `Retry-After`) is asked for again then. Everything else is left
//! to the caller: watches, the Lease, statuses and Events each pause in their own way, and none of them for more than a
//! few seconds. The retries that kube's client comes with must stay off: they double up to a quarter of an hour, so that an
//! apiserver that was away for a minute would be missed for two.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response};
use kube::client::retry::{InvalidBackoff, RetryPolicy};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use tower::BoxError;
use tower::buffer::BufferLayer;
use tower::retry::{Policy, RetryLayer};

/// A longer `Retry-After` than this goes to the caller instead of being waited for: not every proxy means what it says.
const LONGEST: u64 = 30;
/// How often in a row one request is tried again; then the caller gets the error.
const TIMES: u32 = 10;
/// Pauses grow from here, where the apiserver names shorter ones.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// They grow up to here.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Questions that wait to be sent.
const WAITING: usize = 256;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The configuration does not do.
    #[error("{0}")]
    Config(#[from] kube::Error),
    /// The pauses of this module do not go together.
    #[error("pauses between retries: {0}")]
    Pauses(#[from] InvalidBackoff),
}

/// A client for everything that the operator asks of the apiserver.
///
/// # Errors
///
/// The configuration names files that cannot be read, or makes no sense.
pub(crate) fn client(mut config: Config) -> Result<Client, ClientError> {
    config.default_retry = false;
    let client = ClientBuilder::try_from(config)?;
    Ok(client.with_layer(&BufferLayer::new(WAITING)).with_layer(&RetryLayer::new(WhenTold::new()?)).build())
}

/// Tries again when it was told to.
#[derive(Clone)]
struct WhenTold(RetryPolicy);

impl WhenTold {
    fn new() -> Result<Self, InvalidBackoff> {
        Ok(Self(RetryPolicy::new(FIRST_PAUSE, LONGEST_PAUSE, TIMES, true)?))
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for WhenTold {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let header = result.as_ref().ok()?.headers().get(RETRY_AFTER)?;
        let told: u64 = header.to_str().ok()?.parse().ok()?;
        if told <= LONGEST { self.0.retry(request, result) } else { None }
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut self.0, request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http::StatusCode;
    use tokio::time::Instant;
    use tower::{Layer as _, ServiceExt as _, service_fn};

    use super::*;

    /// Asks somebody who always answers this; with what it ends, and when each question came.
    async fn ask(status: StatusCode, retry_after: Option<&'static str>) -> (StatusCode, Vec<Duration>) {
        let (start, asked) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let seen = asked.clone();
        let apiserver = service_fn(move |_: Request<Body>| {
            seen.lock().unwrap().push(start.elapsed());
            async move {
                let answer = retry_after
                    .into_iter()
                    .fold(Response::builder().status(status), |answer, told| answer.header(RETRY_AFTER, told));
                Ok::<_, BoxError>(answer.body(())?)
            }
        });
        let service = RetryLayer::new(WhenTold::new().unwrap()).layer(apiserver);
        let answer = service.oneshot(Request::patch("/status").body(Body::from(vec![1])).unwrap()).await.unwrap();
        let asked = asked.lock().unwrap().clone();
        (answer.status(), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_told_when_to_come_back_comes_back_then_and_not_for_ever() {
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            let (ended, asked) = ask(status, Some("2")).await;
            let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let told = Duration::from_secs(2);
            // Timers are rounded up to a millisecond.
            let most = LONGEST_PAUSE + Duration::from_millis(1);
            assert!(pauses.iter().all(|pause| (told..=most).contains(pause)), "{pauses:?}");
            assert_eq!((ended, pauses.len()), (status, TIMES as usize));
        }
    }

    /// The caller pauses in its own way.
    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_told_nothing_is_told_so_at_once() {
        for (status, retry_after) in [
            (StatusCode::TOO_MANY_REQUESTS, None),
            (StatusCode::SERVICE_UNAVAILABLE, None),
            (StatusCode::GATEWAY_TIMEOUT, None),
            (StatusCode::INTERNAL_SERVER_ERROR, Some("1")),
            (StatusCode::CONFLICT, Some("1")),
            (StatusCode::OK, Some("1")),
            (StatusCode::SERVICE_UNAVAILABLE, Some("86400")),
            (StatusCode::SERVICE_UNAVAILABLE, Some("soon")),
        ] {
            assert_eq!(ask(status, retry_after).await, (status, vec![Duration::ZERO]), "{retry_after:?}");
        }
    }
}
