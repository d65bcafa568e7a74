//! One request to the app and its response back, as a tower service.

use std::{convert::Infallible, future::Future, pin::Pin, rc::Rc, sync::Arc, task};

use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header};
use http_body::Body;
use hyper::body::Incoming;
use tower_service::Service;

use super::{
    ResponseBody,
    body::RequestBody,
    failure::{Failure, FailureCounts},
    headers,
    pool::{Lease, Pool},
    upgrade::{self, Tunnels},
};
use crate::rules::Gate;

/// Passes the requests of one client connection on to the app.
#[derive(Clone, Debug)]
pub(super) struct Forward {
    pub(super) pool: Rc<Pool>,
    pub(super) failures: Arc<FailureCounts>,
    pub(super) tunnels: Tunnels,
    /// The client's address as `X-Forwarded-For` has it.
    pub(super) peer: HeaderValue,
    /// Asked for the messages of connections that are upgraded; requests come here when they are through it.
    pub(super) gate: Gate,
}

impl Service<Request<RequestBody>> for Forward {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Infallible>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            Ok(match this.forward(request).await {
                Ok(response) => response,
                Err(failure) => failure.respond(&this.failures),
            })
        })
    }
}

impl Forward {
    async fn forward(&self, mut request: Request<RequestBody>) -> Result<Response<ResponseBody>, Failure> {
        if request.method() == Method::CONNECT {
            return Err(Failure::ConnectMethod);
        }
        self.name_host(&mut request)?;
        let upgrade = upgrade::requested(&mut request, |request| self.gate.messages(request));
        headers::to_upstream(request.headers_mut(), &self.peer);
        if let Some(upgrade) = &upgrade {
            upgrade.ask(request.headers_mut());
        }
        *request.version_mut() = Version::HTTP_11;

        let (mut response, lease) = self.exchange(request).await?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let upgrade = upgrade.ok_or(Failure::UnaskedUpgrade)?;
            return upgrade.tunnel(&mut response, &self.tunnels);
        }
        headers::to_client(response.headers_mut());
        *response.version_mut() = Version::HTTP_11;
        Ok(response.map(|incoming| ResponseBody::upstream(incoming, lease)))
    }

    /// Makes sure that the app sees exactly one host, and the one that the rules saw.
    fn name_host(&self, request: &mut Request<RequestBody>) -> Result<(), Failure> {
        let named = request.headers().get_all(header::HOST).iter().count();
        if named > 1 || (named == 0 && request.version() == Version::HTTP_11) {
            return Err(Failure::Host);
        }
        if let Some(authority) = request.uri().authority() {
            // RFC 9112 section 3.2.2: an absolute target overrules the field.
            let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Failure::Host)?;
            let target = request.uri().path_and_query().cloned().map_or_else(Uri::default, Uri::from);
            request.headers_mut().insert(header::HOST, host);
            *request.uri_mut() = target;
        } else if named == 0 {
            let host = self.pool.address().to_string();
            let host = HeaderValue::from_str(&host).expect("an address is a valid field value");
            request.headers_mut().insert(header::HOST, host);
        }
        Ok(())
    }

    /// Sends the request; once more, on a new connection, if an idle one turns out to have been closed by the app.
    ///
    /// A request that did not leave this program may always be sent again. One that did may be if it is idempotent and
    /// has no body (RFC 9110 section 9.2.2).
    async fn exchange(&self, request: Request<RequestBody>) -> Result<(Response<Incoming>, Lease), Failure> {
        let mut lease = self.pool.lease().await?;
        if lease.fresh {
            let response = lease.sender.send_request(request).await.map_err(Failure::of)?;
            return Ok((response, lease));
        }
        let spare = copy_if_repeatable(&request);
        let mut failed = match lease.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, lease)),
            Err(failed) => failed,
        };
        // Closed, reset or broken off half-way through the head; not an answer that makes no sense.
        let unanswered = !failed.error().is_parse() && !failed.error().is_user();
        let Some(again) = failed.take_message().or_else(|| spare.filter(|_| unanswered)) else {
            return Err(Failure::of(failed.into_error()));
        };
        let mut lease = self.pool.connect().await?;
        let response = lease.sender.send_request(again).await.map_err(Failure::of)?;
        Ok((response, lease))
    }
}

fn copy_if_repeatable(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    (request.method().is_idempotent() && request.body().is_end_stream()).then(|| {
        let mut copy = Request::new(RequestBody::empty());
        request.method().clone_into(copy.method_mut());
        request.uri().clone_into(copy.uri_mut());
        request.headers().clone_into(copy.headers_mut());
        copy
    })
}
