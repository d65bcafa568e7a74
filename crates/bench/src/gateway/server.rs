//! A gateway: a process that serves until it is stopped.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::Path,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::any,
};
use http::{StatusCode, Uri};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service};
use weir_core::{Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{Admit, Answer, HttpAnswer, IpKey, KeyedAdmit, LatencyLayer, MonotonicClock, WithoutKey};

use super::limiters::{DASHMAP, DashBuckets, MUTEX, MutexBuckets, Rate, Take, WEIR};
use crate::{
    GATEWAY, in_role,
    proxy::{Cores, Process, free_address},
};

/// Serve as a gateway, until it is stopped.
#[derive(clap::Args)]
pub(crate) struct GatewayArgs {
    limiter: String,
    listen: SocketAddr,
    upstream: Option<SocketAddr>,
    /// How many requests of a client a period admits
    #[arg(long)]
    requests: u32,
    #[arg(long)]
    period_millis: u64,
    #[arg(long)]
    burst: u32,
    /// How long to wait for the upstream
    #[arg(long)]
    timeout_millis: Option<u64>,
}

impl GatewayArgs {
    /// Starts a gateway as a process. Returns its address, too.
    pub(crate) fn start(
        limiter: &str,
        upstream: Option<SocketAddr>,
        rate: Rate,
        timeout: Option<Duration>,
        folder: &Path,
    ) -> anyhow::Result<(Process, SocketAddr)> {
        let listen = free_address()?;
        let mut command = in_role(GATEWAY)?;
        command.args([limiter, &listen.to_string()]).args(upstream.map(|upstream| upstream.to_string()));
        command.arg(format!("--requests={}", rate.requests)).arg(format!("--burst={}", rate.burst));
        command.arg(format!("--period-millis={}", rate.period.as_millis()));
        command.args(timeout.map(|timeout| format!("--timeout-millis={}", timeout.as_millis())));
        let process = Process::start(limiter, &command, Cores::All, &folder.join("gateway.log"), listen)?;
        Ok((process, listen))
    }

    /// Serves until it is stopped.
    pub(crate) fn serve(self) -> anyhow::Result<()> {
        let rate =
            Rate { requests: self.requests, period: Duration::from_millis(self.period_millis), burst: self.burst };
        let upstream = self.upstream.map(|address| Upstream {
            client: Client::builder(TokioExecutor::new()).build_http(),
            address: address.to_string(),
            timeout: self.timeout_millis.map(Duration::from_millis),
        });
        let router = Router::new().fallback(any(handle)).with_state(upstream);
        let router = match self.limiter.as_str() {
            WEIR => limited(router, LatencyLayer::new(weir(rate)?, HttpAnswer)),
            DASHMAP => limited(router, LatencyLayer::new(ByHand(DashBuckets::new(rate)), TooMany)),
            MUTEX => limited(router, LatencyLayer::new(ByHand(MutexBuckets::new(rate)), TooMany)),
            other => anyhow::bail!("unknown limiter {other}"),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind(self.listen).await.context("bind")?;
            axum::serve(listener, router).await.context("serve")
        })
    }
}

fn limited<L>(router: Router, layer: L) -> Router
where
    L: Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request, Response = Response, Error = Infallible> + Clone + Send + Sync + 'static,
    <L::Service as Service<Request>>::Future: Send + 'static,
{
    router.layer(layer)
}

fn weir(
    rate: Rate,
) -> anyhow::Result<impl Admit<Request, Pass: Send, Refusal = weir_core::RuleRefused> + Clone + Send + Sync + 'static> {
    let burst = Some(u64::from(rate.burst));
    let quota = Quota::new(Strategy::TokenBucket, u64::from(rate.requests), rate.period, burst)?;
    let clock = MonotonicClock::start();
    let max_keys = NonZeroUsize::new(100_000).expect("not zero");
    let rule = RuleLimiter::keyed(clock.now(), Terms::new([("per-client", quota)])?, max_keys);
    Ok(KeyedAdmit::new(rule, clock, IpKey::new(client), WithoutKey::Share))
}

/// Returns the client address that the last proxy has added to the request.
fn client(request: &Request) -> Option<IpAddr> {
    let forwarded = request.headers().get("x-forwarded-for")?.to_str().ok()?;
    forwarded.rsplit(',').next()?.trim().parse().ok()
}

/// A limiter that is written by hand, in Weir's layer, so that only the limiters differ.
#[derive(Clone)]
struct ByHand<T>(T);

impl<T: Take> Admit<Request> for ByHand<T> {
    type Pass = ();
    type Refusal = ();

    fn admit(&self, request: &Request) -> Result<(), ()> {
        let client = client(request).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        if self.0.take(client) { Ok(()) } else { Err(()) }
    }
}

#[derive(Clone, Copy)]
struct TooMany;

impl Answer<(), (), Response> for TooMany {
    fn refused(&self, (): ()) -> Response {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    }
}

#[derive(Clone)]
struct Upstream {
    client: Client<HttpConnector, Body>,
    address: String,
    timeout: Option<Duration>,
}

/// Answers every client in the same way, or with the upstream's response.
async fn handle(State(upstream): State<Option<Upstream>>, mut request: Request) -> Response {
    let Some(Upstream { client, address, timeout }) = upstream else {
        return "hello, world\n".into_response();
    };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = Uri::builder().scheme("http").authority(address).path_and_query(path).build() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    *request.uri_mut() = uri;
    let response = client.request(request);
    let response = match timeout {
        Some(timeout) => match tokio::time::timeout(timeout, response).await {
            Ok(response) => response,
            Err(_) => return StatusCode::GATEWAY_TIMEOUT.into_response(),
        },
        None => response.await,
    };
    response.map_or_else(|_| StatusCode::BAD_GATEWAY.into_response(), IntoResponse::into_response)
}
