//! Rate limits as tower middleware, for any axum, hyper or tonic program; no Kubernetes needed.
//!
//! [`LatencyLayer`] decides on each request at once: it lets the request through or answers it, and never makes one
//! wait. What is decided and how an answer looks is the caller's: [`Admit`] and [`Answer`]. [`LimiterAdmit`] and
//! [`HttpAnswer`] are ready-made for one limit on HTTP.
//!
//! ```
//! use std::time::Duration;
//!
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use weir_core::{Limiter, Quota, Strategy};
//! use weir_tower::{HttpAnswer, LatencyLayer, LimiterAdmit, MonotonicClock};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let clock = MonotonicClock::start();
//! let limiter = Limiter::new(clock.now(), Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?);
//! let mut service = ServiceBuilder::new()
//!     .layer(LatencyLayer::new(LimiterAdmit::new(limiter, clock), HttpAnswer))
//!     .service_fn(async |_: http::Request<String>| {
//!         Ok::<_, std::convert::Infallible>(http::Response::new(String::from("hello")))
//!     });
//!
//! let first = service.ready().await?.call(http::Request::new(String::new())).await?;
//! assert_eq!(first.status(), 200);
//! let second = service.ready().await?.call(http::Request::new(String::new())).await?;
//! assert_eq!(second.status(), 429);
//! assert_eq!(second.headers()["retry-after"], "60");
//! # Ok(())
//! # }
//! ```

mod answer;
mod clock;
mod deadline;
mod keyed;
mod latency;
mod rate_limit;
mod shared;
mod throughput;

pub use answer::{
    Answer, Answers, Errors, GrpcAnswer, HttpAnswer, InvalidName, LimitError, NamedHttpAnswer, Outcome,
    retry_after_seconds,
};
pub use clock::MonotonicClock;
pub use deadline::{DeadlineExceeded, DeadlineFuture, DeadlineLayer, DeadlineService};
pub use keyed::{HeaderKey, IpKey, KeyExtractor, KeyedAdmit, KeyedPlace, NoKey, WithoutKey};
pub use latency::{Admit, LatencyFuture, LatencyLayer, LatencyService};
pub use rate_limit::{RateLimit, RateLimitLayer};
pub use shared::{LimiterAdmit, LimiterPlace};
pub use throughput::{Place, Reserve, ThroughputFuture, ThroughputLayer, ThroughputService, Turn};
