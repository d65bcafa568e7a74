//! A small gateway around one of the stacks of layers: a process that serves until it is stopped.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::TryFutureExt as _;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{Client, Error, ResponseFuture, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, runtime::Handle};
use tower::{BoxError, Service};

use crate::stacks::{self, Counts, Failure, HasFailure, Limit, Visitor};

/// Serve as a gateway around a stack of layers, until it is stopped.
#[derive(clap::Args)]
pub(crate) struct StackArgs {
    /// The stack of layers
    stack: String,
    listen: SocketAddr,
    upstream: SocketAddr,
    /// The limit, with a burst of the same size
    #[arg(long)]
    per_second: u32,
    #[arg(long)]
    timeout_millis: u64,
    /// HTTP/2 to the upstream, in place of HTTP/1.1
    #[arg(long)]
    http2: bool,
}

impl StackArgs {
    /// Serves until it is stopped.
    pub(crate) fn serve(self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
        let _entered = runtime.enter();
        let limit = Limit {
            per_second: self.per_second,
            timeout: Duration::from_millis(self.timeout_millis),
            buffer: usize::try_from(self.per_second).context("a buffer")?.min(100_000),
        };
        let client = Client::builder(TokioExecutor::new()).http2_only(self.http2).build_http();
        let inner = Forward { client, upstream: self.upstream };
        let mut serving = Serving { args: &self, runtime: runtime.handle(), result: None };
        stacks::show(limit, &inner, &mut serving);
        serving.result.with_context(|| format!("there is no stack {}", self.stack))?
    }
}

/// Serves the stack that was asked for, when it comes.
struct Serving<'a> {
    args: &'a StackArgs,
    runtime: &'a Handle,
    result: Option<anyhow::Result<()>>,
}

impl Visitor<Request<Incoming>, Response<Incoming>> for Serving<'_> {
    fn visit<S>(&mut self, stack: &'static str, _: Counts, service: S)
    where
        S: Service<Request<Incoming>, Response = Response<Incoming>, Error: HasFailure + Send, Future: Send>
            + Clone
            + Send
            + 'static,
    {
        if stack == self.args.stack {
            self.result = Some(self.runtime.block_on(serve(self.args.listen, service)));
        }
    }

    /// A gateway needs clones.
    fn visit_single<S>(&mut self, _: &'static str, _: S)
    where
        S: Service<Request<Incoming>, Response = Response<Incoming>, Error: HasFailure>,
    {
    }
}

async fn serve<S>(listen: SocketAddr, service: S) -> anyhow::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Incoming>, Error: HasFailure + Send, Future: Send>
        + Clone
        + Send
        + 'static,
{
    let listener = TcpListener::bind(listen).await.context("bind")?;
    loop {
        let (stream, _) = listener.accept().await.context("accept")?;
        let _ = stream.set_nodelay(true);
        let service = service.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let service = service.clone();
                async move { Ok::<_, Infallible>(answer(service, request).await) }
            });
            // The client counts a broken connection.
            let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer<S>(mut service: S, request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>>
where
    S: Service<Request<Incoming>, Response = Response<Incoming>, Error: HasFailure>,
{
    let answer = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(request).await,
        Err(error) => Err(error),
    };
    let failure = match answer {
        Ok(response) => return response.map(Incoming::boxed),
        Err(error) => error.failure(),
    };
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed());
    *response.status_mut() = match failure {
        Failure::Refused => StatusCode::TOO_MANY_REQUESTS,
        Failure::Shed => StatusCode::SERVICE_UNAVAILABLE,
        Failure::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Failure::Other => StatusCode::BAD_GATEWAY,
    };
    response
}

/// Passes a request without a body to the upstream.
#[derive(Clone)]
struct Forward {
    client: Client<HttpConnector, Empty<Bytes>>,
    upstream: SocketAddr,
}

impl Service<Request<Incoming>> for Forward {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = futures::future::MapErr<ResponseFuture, fn(Error) -> BoxError>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri = Uri::builder().scheme("http").authority(self.upstream.to_string()).path_and_query(path).build();
        let mut request = Request::new(Empty::new());
        // An address and a path that was parsed are a URI.
        *request.uri_mut() = uri.unwrap_or_default();
        self.client.request(request).map_err(BoxError::from as fn(Error) -> BoxError)
    }
}
