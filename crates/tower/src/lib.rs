//! Rate limits as tower middleware, for any axum, tonic, hyper or other tower program; no Kubernetes needed.
//!
//! A limit in front of an axum program:
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use weir_core::{Limiter, Quota, Strategy};
//! use weir_tower::{HttpAnswer, LatencyLayer, LimiterAdmit, MonotonicClock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = MonotonicClock::start();
//! let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(3600), None)?;
//! let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(LatencyLayer::new(limit, HttpAnswer));
//!
//! // axum::serve(listener, app).await; or, to show that the limit works:
//! for _ in 0..100 {
//!     assert_eq!(app.clone().oneshot(Request::new(Body::empty())).await?.status(), 200);
//! }
//! let refused = app.oneshot(Request::new(Body::empty())).await?;
//! assert_eq!(refused.status(), 429);
//! assert!(refused.headers().contains_key("retry-after"));
//! # Ok(())
//! # }
//! ```
//!
//! # Layers
//!
//! | layer | a request over the limit | for |
//! |---|---|---|
//! | [`LatencyLayer`] | is refused immediately | services whose clients can retry; in-flight limits |
//! | [`ThroughputLayer`] | waits if its turn comes soon enough, otherwise is refused immediately | smoothing short bursts |
//! | [`RateLimitLayer`] | is not accepted: the service is not ready | callers that can be slowed down, such as a client of a third party's API |
//! | [`DeadlineLayer`] | (this layer limits the time of a request, waits included) | requests that must not hang |
//!
//! No layer spawns a task. All layers are `Clone`, and clones share their limits, so they need no `Buffer`. A service is
//! `Clone` if its inner service is, which a [`ThroughputLayer`] requires: a waiting request takes the inner service that
//! is ready, and a clone takes its place. Around any other service, put a `Buffer` inside of this layer. Each waiting
//! request keeps a slot of that buffer, so give the buffer more slots than requests can wait: more than the rate
//! multiplied by `max_wait`, or than the burst of a leaky bucket. A caller without a slot waits in `poll_ready`, and
//! neither `max_wait` nor a [`DeadlineLayer`] bounds that wait.
//!
//! # Waits
//!
//! Waiting requests are in the limit's own queue, and are charged when they are admitted: a cancelled request leaves the
//! queue, and the requests behind it move forward. First come, first served, as long as each request is polled within
//! 2 ms of its turn. A later one is overtaken, so that it does not hold up the others. It keeps its position, and is
//! first again when it is polled. If its next turn is then too late, it is refused. The documentation of each layer
//! explains when the layer is ready and what a waiting request holds.
//!
//! A request that waits needs a tokio runtime with timers, and so does each `call` of a [`DeadlineLayer`];
//! [`LatencyLayer`] needs no runtime. Tokio's timers round waits up to whole milliseconds. A limit that cannot make up
//! for this, such as a leaky bucket or a [burst](weir_core::Quota) of one, waits with a finer timer in the last 2 ms.
//! The first such wait of a process starts one thread, `futures-timer`. With [`MonotonicClock::of_tokio`], all waits
//! use tokio's timers.
//!
//! A layer calls a [`LimiterAdmit`], one limit for all requests; a [`KeyedAdmit`], one limit for each key that a
//! [`KeyExtractor`] finds; an [`InFlight`](weir_core::InFlight) limit; or your own [`Admit`] or [`Reserve`]. All of
//! them can be changed while they are in use.
//!
//! [`LimiterAdmit::admitted`] and [`KeyedAdmit::admitted`] wait without a service, for a client that calls an API. Each
//! request costs one unit of its limit, or as many as [`with_cost`](LimiterAdmit::with_cost) finds.
//!
//! A refused client gets an [`Answer`]: [`HttpAnswer`] (429 with `Retry-After`, and the `RateLimit` headers if the
//! limit has a [name](HttpAnswer::named)), [`GrpcAnswer`] (`RESOURCE_EXHAUSTED`, with the time to retry), or your own.
//! The layer's errors are then the errors of the inner service, as axum requires. For any other service, use the
//! `with_errors` constructors: their callers get a [`LimitError`], which converts to tower's `BoxError`, so these
//! layers fit between tower's own.
//!
//! # A limit for each client
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::time::Duration;
//!
//! use http::{HeaderName, Request, Response};
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use weir_core::{Quota, RuleLimiter, Strategy, Terms};
//! use weir_tower::{HeaderKey, HttpAnswer, KeyedAdmit, LatencyLayer, MonotonicClock, WithoutKey};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = MonotonicClock::start();
//! let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
//! let max_keys = NonZeroUsize::new(100_000).expect("not zero");
//! let rule = RuleLimiter::keyed(clock.now(), Terms::new([("per-key", quota)])?, max_keys);
//! let by_api_key = HeaderKey::new(HeaderName::from_static("x-api-key"));
//! let limit = KeyedAdmit::new(rule, clock, by_api_key, WithoutKey::Share);
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(LatencyLayer::new(limit, HttpAnswer::named(["per-key"])?))
//!     .service_fn(async |_: Request<String>| Ok::<_, std::convert::Infallible>(Response::new(String::from("hello"))));
//!
//! let from = |api_key| Request::builder().header("x-api-key", api_key).body(String::new());
//! let ann = service.ready().await?.call(from("ann")?).await?;
//! assert_eq!((ann.status().as_u16(), ann.body().as_str()), (200, "hello"));
//! let again = service.ready().await?.call(from("ann")?).await?;
//! assert_eq!(again.status(), 429);
//! assert_eq!(again.headers()["retry-after"], "60");
//! assert_eq!(again.headers()["ratelimit"], r#""per-key";r=0;t=60"#);
//! let bob = service.ready().await?.call(from("bob")?).await?;
//! assert_eq!(bob.status(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Wait, but not too long
//!
//! ```
//! use std::time::Duration;
//!
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use weir_core::{Limiter, Quota, Strategy};
//! use weir_tower::{DeadlineLayer, LimitError, LimiterAdmit, MonotonicClock, ThroughputLayer};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = MonotonicClock::of_tokio();
//! let quota = Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), None)?;
//! let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
//!
//! // Half a second in total. The service takes up to 300 ms, so no request should wait longer than 200 ms.
//! let mut service = ServiceBuilder::new()
//!     .layer(DeadlineLayer::with_errors(Duration::from_millis(500)))
//!     .layer(ThroughputLayer::with_errors(limit, Duration::from_millis(200)))
//!     .service_fn(async |number: u32| Ok::<_, std::io::Error>(number * 2));
//!
//! let mut turns = Vec::new();
//! for number in 0..4 {
//!     turns.push(service.ready().await?.call(number));
//! }
//! // The fourth request would wait 300 ms: it is refused immediately.
//! let fourth = turns.pop().expect("four of them").await;
//! let Err(LimitError::Inner(LimitError::Refused(refused))) = fourth else { panic!("too late") };
//! assert_eq!(refused.retry_after(), Some(Duration::from_millis(300)));
//!
//! let start = tokio::time::Instant::now();
//! for (number, turn) in (0..3).zip(turns) {
//!     assert_eq!(turn.await?, number * 2);
//! }
//! assert_eq!(start.elapsed().as_millis(), 200);
//! # Ok(())
//! # }
//! ```
//!
//! # Change a limit that is in use
//!
//! ```
//! # use std::time::Duration;
//! # use weir_core::{Limiter, Quota, Strategy};
//! # use weir_tower::{Admit, LimiterAdmit, MonotonicClock};
//! # let clock = MonotonicClock::start();
//! # let per_hour = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(3600), None);
//! let limiter = Limiter::new(clock.now(), per_hour(4)?);
//! let admit = LimiterAdmit::new(limiter.clone(), clock);
//! assert!(admit.admit(&"a request").is_ok());
//! assert!(admit.admit(&"a request").is_ok());
//!
//! // Two requests remain, also after the change: a change gives no fresh burst.
//! let limiter = limiter.retune(|| clock.now(), per_hour(3)?);
//! assert!(admit.admit(&"a request").is_ok());
//! assert!(admit.admit(&"a request").is_ok());
//! assert!(admit.admit(&"a request").is_err());
//! # let _ = limiter;
//! # Ok::<(), weir_core::InvalidQuota>(())
//! ```
//!
//! The crate's `examples` are complete programs: `axum`, `tonic`, and `live`, which changes a limit under load.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

mod answer;
#[cfg(test)]
mod bounded;
mod clock;
mod cost;
mod deadline;
mod exceeded;
mod inner;
mod keyed;
mod latency;
mod rate_limit;
mod single;
mod throughput;
mod timed;
mod waiting;

/// The limits, so that a program needs only this crate.
pub use weir_core;

pub use self::{
    answer::{
        Answer, Answers, Errors, GrpcAnswer, HttpAnswer, InvalidName, LimitError, NamedHttpAnswer, Outcome,
        retry_after_seconds,
    },
    clock::MonotonicClock,
    cost::{CostExtractor, UnitCost},
    deadline::{DeadlineFuture, DeadlineLayer, DeadlineService, Deadlines, OfRequests},
    exceeded::DeadlineExceeded,
    keyed::{HeaderKey, IpKey, KeyExtractor, KeyedAdmit, KeyedTicket, NoKey, WithoutKey},
    latency::{Admit, LatencyFuture, LatencyLayer, LatencyService},
    rate_limit::{RateLimit, RateLimitLayer},
    single::{LimiterAdmit, LimiterTicket},
    throughput::{QueueTicket, Reserve, ThroughputFuture, ThroughputLayer, ThroughputService, Turn},
    timed::Timed,
    waiting::{AtHead, Waiting},
};
