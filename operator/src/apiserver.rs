//! The client for the apiserver and its retries.
//!
//! If a response has `Retry-After` (429 and 503), the client repeats the request after that time. All other errors go
//! to the caller: watches, the Lease, statuses and Events each have a backoff of a few seconds at most. The default
//! retries of kube's client must stay off: their backoff grows to 15 minutes. After an outage of one minute,
//! the operator would then be two minutes late.
//!
//! Each request has a timeout, because an apiserver can disappear without closing its connections. Otherwise, a listing
//! would wait for it forever.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Request, Response, header::RETRY_AFTER};
use kube::{
    Client, Config,
    client::{
        Body, ClientBuilder,
        retry::{InvalidBackoff, RetryPolicy},
    },
};
use tower::{
    BoxError, Service,
    buffer::BufferLayer,
    layer::layer_fn,
    retry::{Policy, RetryLayer},
};

/// The longest `Retry-After` for which the client waits, in seconds. If the value is larger, the caller gets the
/// response, because not every proxy sets sensible values.
const LONGEST: u64 = 30;
/// The maximum number of retries of one request. After that, the caller gets the error.
const MAX_RETRIES: u32 = 10;
/// The first pause, if the apiserver requests a shorter one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The maximum number of requests that wait to be sent.
const WAITING: usize = 256;
/// The longest wait for a response. The apiserver ends each request after a minute, except for watches: their response
/// can begin with the first event.
const LONGEST_WAIT: Duration = Duration::from_secs(75);
/// The longest time without a byte of a response. Watches end earlier: they request an end after a minute. If an
/// apiserver disappears without closing its connections, the Lease is renewed over new connections, but a watch on an
/// old one is dead until this time is over.
const LONGEST_SILENCE: Duration = Duration::from_secs(90);

/// The reason why the client cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The configuration is not usable.
    #[error("{0}")]
    Config(#[from] kube::Error),
    /// The pauses of this module contradict each other.
    #[error("pauses between retries: {0}")]
    Pauses(#[from] InvalidBackoff),
}

/// The client for all requests to the apiserver.
///
/// # Errors
///
/// The configuration is invalid, or names files that cannot be read.
pub(crate) fn client(mut config: Config) -> Result<Client, ClientError> {
    config.default_retry = false;
    config.read_timeout = Some(LONGEST_SILENCE);
    // The silence of a pooled connection counts from its last request.
    config.reset_reader_on_write = true;
    let client = ClientBuilder::try_from(config)?;
    let client = client.with_layer(&layer_fn(ResponseTimeout)).with_layer(&BufferLayer::new(WAITING));
    Ok(client.with_layer(&RetryLayer::new(RetryAfterPolicy::new()?)).build())
}

/// Fails a request that gets no response within [`LONGEST_WAIT`], unless it is a watch.
#[derive(Clone)]
struct ResponseTimeout<S>(S);

impl<S, B> Service<Request<Body>> for ResponseTimeout<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>, Future: Send + 'static>,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_watch = request.uri().query().is_some_and(|query| query.split('&').any(|field| field == "watch=true"));
        let response = self.0.call(request);
        Box::pin(async move {
            if is_watch {
                return response.await.map_err(Into::into);
            }
            match tokio::time::timeout(LONGEST_WAIT, response).await {
                Ok(response) => response.map_err(Into::into),
                Err(_) => Err(format!("the apiserver has not answered within {} s", LONGEST_WAIT.as_secs()).into()),
            }
        })
    }
}

/// Retries a request if the response has `Retry-After`.
#[derive(Clone)]
struct RetryAfterPolicy(RetryPolicy);

impl RetryAfterPolicy {
    fn new() -> Result<Self, InvalidBackoff> {
        Ok(Self(RetryPolicy::new(FIRST_PAUSE, LONGEST_PAUSE, MAX_RETRIES, true)?))
    }
}

impl<B> Policy<Request<Body>, Response<B>, BoxError> for RetryAfterPolicy {
    type Future = tokio::time::Sleep;

    fn retry(
        &mut self,
        request: &mut Request<Body>,
        result: &mut Result<Response<B>, BoxError>,
    ) -> Option<Self::Future> {
        let header = result.as_ref().ok()?.headers().get(RETRY_AFTER)?;
        let seconds: u64 = header.to_str().ok()?.parse().ok()?;
        if seconds <= LONGEST { self.0.retry(request, result) } else { None }
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        Policy::<_, Response<B>, _>::clone_request(&mut self.0, request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures::{StreamExt as _, TryStreamExt as _};
    use http::StatusCode;
    use k8s_openapi::api::core::v1::Service as KubernetesService;
    use kube::{
        Api,
        api::{WatchEvent, WatchParams},
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::Instant,
    };
    use tower::{Layer as _, ServiceExt as _, service_fn};

    use super::*;

    /// Sends a request to a server that always gives this response. Returns the final status and the times of all
    /// attempts.
    async fn ask(status: StatusCode, retry_after: Option<&'static str>) -> (StatusCode, Vec<Duration>) {
        let (start, asked) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let seen = asked.clone();
        let apiserver = service_fn(move |_: Request<Body>| {
            seen.lock().unwrap().push(start.elapsed());
            async move {
                let answer = retry_after.into_iter().fold(Response::builder().status(status), |answer, retry_after| {
                    answer.header(RETRY_AFTER, retry_after)
                });
                Ok::<_, BoxError>(answer.body(())?)
            }
        });
        let service = RetryLayer::new(RetryAfterPolicy::new().unwrap()).layer(apiserver);
        let answer = service.oneshot(Request::patch("/status").body(Body::from(vec![1])).unwrap()).await.unwrap();
        let asked = asked.lock().unwrap().clone();
        (answer.status(), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_is_obeyed_a_bounded_number_of_times() {
        for status in [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
            let (ended, asked) = ask(status, Some("2")).await;
            let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let retry_after = Duration::from_secs(2);
            // Timers are rounded up to a millisecond.
            let most = LONGEST_PAUSE + Duration::from_millis(1);
            assert!(pauses.iter().all(|pause| (retry_after..=most).contains(pause)), "{pauses:?}");
            assert_eq!((ended, pauses.len()), (status, MAX_RETRIES as usize));
        }
    }

    /// The apiserver accepts requests and never answers. Listings fail, and watches wait for their first event.
    #[tokio::test(start_paused = true)]
    async fn requests_other_than_watches_have_a_timeout() {
        for (path, fails) in
            [("/pods", true), ("/pods?watch=true&timeoutSeconds=290", false), ("/pods?a=watch=true", true)]
        {
            let silent = service_fn(|_: Request<Body>| std::future::pending::<Result<Response<()>, BoxError>>());
            let answer = ResponseTimeout(silent).oneshot(Request::get(path).body(Body::empty()).unwrap());
            let answer = tokio::time::timeout(2 * LONGEST_WAIT, answer).await;
            assert_eq!(answer.is_ok(), fails, "{path}");
            if let Ok(answer) = answer {
                assert_eq!(answer.unwrap_err().to_string(), "the apiserver has not answered within 75 s");
            }
        }
    }

    /// The apiserver disappears without closing the connection of a watch. No byte arrives any more.
    #[tokio::test]
    async fn a_silent_response_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let services: Api<KubernetesService> = Api::all(client(Config::new(url.parse().unwrap())).unwrap());
        let apiserver = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            assert!(connection.read(&mut [0; 8192]).await.unwrap() > 0);
            let bookmark = r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Service","metadata":{"resourceVersion":"2"}}}"#;
            let chunk = format!("{:x}\r\n{bookmark}\n\r\n", bookmark.len() + 1);
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            connection.write_all(format!("{head}{chunk}").as_bytes()).await.unwrap();
            connection
        };
        let watch = async {
            let mut events = services.watch(&WatchParams::default(), "1").await.unwrap().boxed();
            assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Bookmark(_))));
            events
        };
        let (_connection, mut events) = tokio::join!(apiserver, watch);
        tokio::time::pause();
        let start = Instant::now();
        let event = events.next().await;
        assert!(!matches!(event, Some(Ok(_))), "{event:?}");
        let silence = start.elapsed().as_secs();
        assert!((80..=91).contains(&silence), "the watch ended after {silence} s");
    }

    /// The client must not retry here, because each caller has its own backoff.
    #[tokio::test(start_paused = true)]
    async fn responses_without_retry_after_go_to_the_caller_at_once() {
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
