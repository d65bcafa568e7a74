//! Every layer works around an axum router and around tonic's services, with their types of bodies, errors and futures.
#![expect(clippy::disallowed_methods, reason = "tests measure how long something takes")]

#[expect(dead_code, reason = "these tests use no mock")]
#[path = "../src/bounded.rs"]
mod bounded;

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use axum::{Router, routing::get};
use http::{HeaderName, Request};
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt};
use weir_core::{InFlight, Limiter, Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{
    DeadlineLayer, GrpcAnswer, HeaderKey, HttpAnswer, KeyedAdmit, LatencyLayer, LimiterAdmit, MonotonicClock,
    RateLimitLayer, ThroughputLayer, WithoutKey,
};

use self::bounded::within;

const TENTH: Duration = Duration::from_millis(100);

fn limit(strategy: Strategy) -> LimiterAdmit {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(strategy, 10, Duration::from_secs(1), None).expect("a valid quota");
    LimiterAdmit::new(Limiter::new(clock.now(), quota), clock)
}

fn held_back(requests: u64, period: Duration) -> RateLimitLayer {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::TokenBucket, requests, period, None).expect("a valid quota");
    RateLimitLayer::new(Limiter::new(clock.now(), quota), clock)
}

fn by_key(strategy: Strategy) -> KeyedAdmit<HeaderKey> {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(strategy, 10, Duration::from_secs(1), None).expect("a valid quota");
    let terms = Terms::new([("per-key", quota)]).expect("one limit");
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).expect("not zero"));
    KeyedAdmit::new(rule, clock, HeaderKey::new(HeaderName::from_static("x-api-key")), WithoutKey::Admit)
}

fn slow() -> Router {
    Router::new().route("/", get(async || sleep(TENTH).await))
}

async fn status(app: &Router, key: &str) -> u16 {
    let request = Request::builder().header("x-api-key", key).body(axum::body::Body::empty()).expect("a valid request");
    within(app.clone().oneshot(request)).await.unwrap_or_else(|never| match never {}).status().as_u16()
}

#[tokio::test(start_paused = true)]
async fn axum_refuses_by_key_and_tells_everybody_where_it_stands() {
    let app = slow().layer(LatencyLayer::new(by_key(Strategy::Gcra), HttpAnswer::named(["per-key"]).unwrap()));
    for (key, expected) in [("ann", 200), ("bob", 200)] {
        assert_eq!(status(&app, key).await, expected);
        // A tenth of a second later.
        assert_eq!(tokio::join!(status(&app, key), status(&app, key)), (200, 429));
    }
    let response = app.oneshot(Request::builder().header("x-api-key", "eve").body(axum::body::Body::empty()).unwrap());
    assert_eq!(within(response).await.unwrap().headers()["ratelimit"], "\"per-key\";r=0;t=1");
}

#[tokio::test(start_paused = true)]
async fn axum_waits_for_a_turn_within_a_deadline() {
    let app =
        slow().layer(
            ServiceBuilder::new()
                .layer(DeadlineLayer::new(3 * TENTH - TENTH / 2, HttpAnswer))
                .layer(ThroughputLayer::new(limit(Strategy::Gcra), 2 * TENTH, HttpAnswer)),
        );
    let start = Instant::now();
    let call = || status(&app, "ann");
    // The four requests would wait 0, 100, 200 and 300 ms, and the service takes 100 ms.
    assert_eq!(tokio::join!(call(), call(), call(), call()), (200, 200, 504, 429));
    assert_eq!(start.elapsed(), 3 * TENTH - TENTH / 2);
}

#[tokio::test(start_paused = true)]
async fn axum_is_held_back_with_all_its_clones() {
    let app = slow().layer(held_back(1, TENTH));
    let start = Instant::now();
    let call = || status(&app, "ann");
    assert_eq!(tokio::join!(call(), call(), call()), (200, 200, 200));
    assert_eq!(start.elapsed(), 3 * TENTH);
}

#[tokio::test(start_paused = true)]
async fn axum_has_so_many_in_flight() {
    let app = slow().layer(LatencyLayer::new(InFlight::new(NonZeroU64::new(2).unwrap()), HttpAnswer));
    let call = || status(&app, "ann");
    assert_eq!(tokio::join!(call(), call(), call()), (200, 200, 503));
    assert_eq!(call().await, 200);
}

#[tokio::test(start_paused = true)]
async fn tonic_is_answered_in_its_own_words() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let routes = tonic::service::Routes::new(health).prepare();
    let service = ServiceBuilder::new()
        .layer(DeadlineLayer::new(3 * TENTH, GrpcAnswer))
        .layer(LatencyLayer::new(by_key(Strategy::Gcra), GrpcAnswer))
        .layer(ThroughputLayer::new(limit(Strategy::TokenBucket), TENTH, GrpcAnswer))
        .layer(held_back(100, TENTH))
        .service(routes);
    let call = |key: &'static str| {
        let path = "/grpc.health.v1.Health/Check";
        let request = Request::post(path).header("content-type", "application/grpc").header("x-api-key", key);
        // The frame of an uncompressed message of length zero.
        let body = tonic::body::Body::new(axum::body::Body::from([0; 5].as_slice()));
        let response = service.clone().oneshot(request.body(body).unwrap());
        async move {
            let response = within(response).await.unwrap();
            assert_eq!(response.status(), 200);
            let headers = response.headers();
            ["grpc-status", "grpc-retry-pushback-ms"]
                .map(|name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()))
        }
    };
    // An admitted call has its gRPC status in the trailers, not in the headers.
    assert_eq!(call("ann").await, [None, None]);
    assert_eq!(call("ann").await, [Some(String::from("8")), Some(String::from("100"))]);
    assert_eq!(call("bob").await, [None, None]);
}

#[test]
fn tonics_server_takes_the_layers() {
    let server = tonic::transport::Server::builder();
    let (_reporter, health) = tonic_health::server::health_reporter();
    let layers = ServiceBuilder::new()
        .layer(LatencyLayer::new(InFlight::new(NonZeroU64::MIN), GrpcAnswer))
        .layer(ThroughputLayer::new(limit(Strategy::LeakyBucket), TENTH, GrpcAnswer));
    // This test only builds the server. The `tonic` example runs it.
    let _router = server.layer(layers.into_inner()).add_service(health);
}
