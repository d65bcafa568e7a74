//! A gateway: a process that serves until it is stopped.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
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
use clap::Parser;
use http::{StatusCode, Uri};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service};
use weir_core::{Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{Admit, Answer, HttpAnswer, IpKey, KeyedAdmit, LatencyLayer, MonotonicClock, WithoutKey};

use super::limiters::{BUCKET, DASHMAP, DashBuckets, MUTEX, MutexBuckets, PER_SECOND, Take, WEIR};

/// A gateway of `cargo xtask bench gateway`, which starts this program.
#[derive(Parser)]
pub(crate) struct GatewayArgs {
    limiter: String,
    listen: SocketAddr,
    upstream: Option<SocketAddr>,
}

/// The command that starts a gateway.
pub(super) struct GatewayCommand {
    pub(super) words: Vec<String>,
    pub(super) listen: SocketAddr,
}

impl GatewayArgs {
    pub(super) fn command(
        limiter: &str,
        listen: SocketAddr,
        upstream: Option<SocketAddr>,
    ) -> anyhow::Result<GatewayCommand> {
        let program = std::env::current_exe().context("find this program")?.with_file_name("weir-bench-gateway");
        let mut words = vec![program.display().to_string(), limiter.to_owned(), listen.to_string()];
        words.extend(upstream.map(|upstream| upstream.to_string()));
        Ok(GatewayCommand { words, listen })
    }

    /// Serves until it is stopped.
    pub(crate) fn serve(self) -> anyhow::Result<()> {
        let upstream = self.upstream.map(|address| Upstream {
            client: Client::builder(TokioExecutor::new()).build_http(),
            address: address.to_string(),
        });
        let router = Router::new().fallback(any(handle)).with_state(upstream);
        let router = match self.limiter.as_str() {
            WEIR => limited(router, LatencyLayer::new(weir()?, HttpAnswer)),
            DASHMAP => limited(router, LatencyLayer::new(ByHand(DashBuckets::default()), TooMany)),
            MUTEX => limited(router, LatencyLayer::new(ByHand(MutexBuckets::default()), TooMany)),
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

fn weir()
-> anyhow::Result<impl Admit<Request, Pass: Send, Refusal = weir_core::RuleRefused> + Clone + Send + Sync + 'static> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "hundreds")]
    let (requests, burst) = (PER_SECOND as u64, BUCKET as u64);
    let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), Some(burst))?;
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
}

/// Answers every client in the same way, or with the upstream's response.
async fn handle(State(upstream): State<Option<Upstream>>, mut request: Request) -> Response {
    let Some(Upstream { client, address }) = upstream else {
        return "hello, world\n".into_response();
    };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let Ok(uri) = Uri::builder().scheme("http").authority(address).path_and_query(path).build() else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    *request.uri_mut() = uri;
    client.request(request).await.map_or_else(|_| StatusCode::BAD_GATEWAY.into_response(), IntoResponse::into_response)
}
