//! Sends one request to the app and returns its response, as the service behind the router's layers.

use std::{convert::Infallible, future::poll_fn, pin::pin, sync::Arc, task::Poll};

use axum::body;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body;
use hyper::{body::Incoming, client::conn::TrySendError};
use tokio_util::task::TaskTracker;
use weir_enforce::BodyCosts;
use weir_tower::MonotonicClock;

use super::{
    connections::{App, Protocol},
    expect::{self, Expectation},
    failure::Failure,
    request_body::ForwardedBody,
    response_body::{ResponseBody, UpstreamConnection},
    streams::{is_cut_off, is_unprocessed},
    upgrade, vetting,
};
use crate::proxy::{
    app::InvalidResponse,
    headers::{self, Peer},
    stalled_uploads::Upload,
    state::Proxy,
};

/// The maximum number of attempts for a request that the app does not process. Several attempts in a row can use a
/// connection that is about to close.
const MAX_ATTEMPTS: usize = 4;

/// Forwards the requests of one worker to the app.
#[derive(Debug)]
pub(in super::super) struct Forwarder {
    pub(in super::super) app: Arc<App>,
    pub(in super::super) proxy: Arc<Proxy>,
    /// The tasks of upgraded connections, which outlive their requests. A drain waits for them.
    pub(in super::super) tunnels: TaskTracker,
}

/// A request to the app. It is boxed because every future that takes a request would store it, in some states twice.
type Outgoing = Box<Request<ForwardedBody>>;

/// Forwards a request to the app, after [`vetting`] and the limits. The request's extensions contain the [`Peer`].
pub(in super::super) fn forward(
    forwarder: Arc<Forwarder>,
    request: Request<body::Body>,
) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> {
    let version = request.version();
    let request = Box::new(limited(request, forwarder.proxy.clock).map(ForwardedBody::new));
    async move {
        let failure = match forwarder.forward(request).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        Ok(failure.or_stopped(&forwarder.proxy.upstream).await.respond(&forwarder.proxy.failures, version))
    }
}

/// Charges the body of a request to the rules that count its bytes.
fn limited(mut request: Request<body::Body>, clock: MonotonicClock) -> Request<body::Body> {
    match request.extensions_mut().remove::<BodyCosts>() {
        Some(costs) => request.map(|body| costs.limit(body, clock).map_or_else(|body| body, body::Body::new)),
        None => request,
    }
}

// Each request in flight holds this future. So rare steps with large futures, such as a new connection, are boxed.
const _: () = assert!(size_of_future(forward) <= 1024);

const fn size_of_future<F>(_: fn(Arc<Forwarder>, Request<body::Body>) -> F) -> usize {
    size_of::<F>()
}

impl Forwarder {
    async fn forward(&self, mut request: Outgoing) -> Result<Response<ResponseBody>, Failure> {
        let peer =
            request.extensions_mut().remove::<Arc<Peer>>().expect("each connection adds the peer to its requests");
        if let Some(response) = count_hop(&mut request)? {
            return Ok(response);
        }
        let upgrade = upgrade::requested(&mut request, |request| self.proxy.rules.messages(peer.ip(), request))?;
        let protocol = self.app.protocol(request.version(), upgrade.is_some()).await?;
        let unknown_length = !request.body().is_end_stream() && !request.headers().contains_key(header::CONTENT_LENGTH);
        headers::to_upstream(request.headers_mut(), &peer, unknown_length && protocol == Protocol::Http1);
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        if protocol == Protocol::Http1 {
            headers::name_te(request.headers_mut());
        }

        let to_head = request.method() == Method::HEAD;
        let sent = self.proxy.clock.now();
        let upload = (!request.body().is_end_stream()).then(|| Upload::new(&self.proxy.stalled_uploads, peer.ip()));
        request.body_mut().upload.clone_from(&upload);
        let mut exchange = pin!(async {
            match protocol {
                Protocol::Http1 => self.over_http1(request).await,
                Protocol::Http2 => self.over_http2(request).await,
            }
        });
        let exchange = poll_fn(|cx| match &upload {
            Some(upload) if upload.poll_given_up(cx).is_ready() => Poll::Ready(Err(Failure::Unread)),
            _ => exchange.as_mut().poll(cx),
        });
        let (mut response, connection) = match self.proxy.settings.response_timeout {
            None => exchange.await?,
            Some(limit) => tokio::time::timeout(limit, exchange).await.unwrap_or(Err(Failure::Unanswered(limit)))?,
        };
        self.proxy.upstream_time.record(self.proxy.clock.now().duration_since(sent));
        if let (Protocol::Http2, Some(upload)) = (protocol, &upload) {
            upload.exempt();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgrade = upgrade.ok_or(Failure::UnaskedUpgrade)?;
            return upgrade.tunnel(&mut response, &self.tunnels, &self.proxy);
        }
        if !headers::is_plainly_coded(response.headers()) {
            return Err(InvalidResponse::Coding.into());
        }
        if to_head && headers::contradicts_itself(response.headers()) {
            return Err(InvalidResponse::Length.into());
        }
        headers::to_client(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        let (head, incoming) = response.into_parts();
        Ok(Response::from_parts(head, ResponseBody::upstream(incoming, connection)?))
    }

    /// Sends the request. If the app has closed the idle connection, sends the request again on a new one.
    async fn over_http1(&self, mut request: Outgoing) -> Result<(Response<Incoming>, UpstreamConnection), Failure> {
        if expect::waits_for_100(&request) && !request.body().is_end_stream() {
            let expectation = Expectation::of(&mut request);
            request.body_mut().expectation = Some(expectation);
        }
        *request.version_mut() = Version::HTTP_11;
        let pool = &self.app.pool;
        let mut connection = pool.checkout().await?;
        if !connection.fresh {
            let spare = copy_if_empty(&request).filter(|spare| spare.method().is_idempotent());
            match connection.sender.try_send_request(*request).await {
                Ok(response) => {
                    connection.answered(response.version());
                    return Ok((response, UpstreamConnection::Http1(connection)));
                }
                Err(failed) => request = again(failed, spare)?,
            }
            connection = Box::pin(pool.connect()).await?;
        }
        let response = connection.sender.send_request(*request).await.map_err(Failure::of)?;
        connection.answered(response.version());
        Ok((response, UpstreamConnection::Http1(connection)))
    }

    /// Sends the request over HTTP/2. Other requests can make the app close the connection, so more than one attempt
    /// may be necessary.
    async fn over_http2(&self, mut request: Outgoing) -> Result<(Response<Incoming>, UpstreamConnection), Failure> {
        to_http2(&mut request)?;
        for _ in 1..MAX_ATTEMPTS {
            let stream = self.app.streams.open().await?;
            let spare = copy_if_empty(&request);
            let failed = match stream.sender().try_send_request(*request).await {
                Ok(response) => return Ok((response, UpstreamConnection::Http2(stream))),
                Err(failed) => failed,
            };
            let error = failed.error();
            let cut_off = !stream.fresh && is_cut_off(error);
            let spare = spare.filter(|spare| is_unprocessed(error) || (cut_off && spare.method().is_idempotent()));
            request = again(failed, spare)?;
        }
        let stream = self.app.streams.open().await?;
        let response = stream.sender().send_request(*request).await.map_err(Failure::of)?;
        Ok((response, UpstreamConnection::Http2(stream)))
    }
}

/// Counts this proxy in `Max-Forwards`. Returns the agent's own response to a request that must not go further.
fn count_hop(request: &mut Request<ForwardedBody>) -> Result<Option<Response<ResponseBody>>, Failure> {
    match vetting::hops_left(request)? {
        None => Ok(None),
        Some(0) if request.method() == Method::TRACE => Err(Failure::TraceMethod),
        Some(0) => Ok(Some(Response::new(ResponseBody::own("")))),
        Some(left) => {
            request.headers_mut().insert(header::MAX_FORWARDS, HeaderValue::from(left - 1));
            Ok(None)
        }
    }
}

/// Returns the request to send again, or the failure.
///
/// A request that was not sent can always be retried. A request that was sent can be retried if it is idempotent (RFC
/// 9110 section 9.2.2), or if the app reported that it did not process the request. Then `spare` is a copy of the
/// request.
fn again(mut failed: TrySendError<Request<ForwardedBody>>, spare: Option<Outgoing>) -> Result<Outgoing, Failure> {
    // True if the connection was closed, reset or cut off in the head. An invalid response does not count.
    let unanswered = !failed.error().is_parse() && !failed.error().is_user();
    let again = failed.take_message().map(Box::new).or_else(|| spare.filter(|_| unanswered));
    again.ok_or_else(|| Failure::of(failed.into_error()))
}

/// Copies a request before it is sent. Only a request without a body can be copied.
fn copy_if_empty(request: &Request<ForwardedBody>) -> Option<Outgoing> {
    request.body().is_end_stream().then(|| {
        let mut copy = Box::new(Request::new(ForwardedBody::default()));
        request.method().clone_into(copy.method_mut());
        request.uri().clone_into(copy.uri_mut());
        request.headers().clone_into(copy.headers_mut());
        *copy.version_mut() = request.version();
        copy
    })
}

/// Converts a request to HTTP/2, which has the host only in the target.
fn to_http2(request: &mut Request<ForwardedBody>) -> Result<(), Failure> {
    let host = request.headers_mut().remove(header::HOST);
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    target.scheme = Some(http::uri::Scheme::HTTP);
    target.authority =
        host.and_then(|host| http::uri::Authority::from_maybe_shared(bytes::Bytes::from_owner(host)).ok());
    *request.uri_mut() = Uri::from_parts(target).map_err(|_| Failure::InvalidRequest(vetting::InvalidRequest::Host))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(())
}
