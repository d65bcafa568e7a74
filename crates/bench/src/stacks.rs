//! The compared stacks of middleware. Each stack wraps the same service with the same limit, as its documentation
//! recommends.

mod failure;
mod governed;

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use tower::{BoxError, Layer as _, Service, ServiceBuilder};
use weir_core::{Limiter, Quota, Strategy};
use weir_tower::{LatencyLayer, LimiterAdmit, MonotonicClock, RateLimitLayer, ThroughputLayer};

pub(crate) use self::failure::{Failure, HasFailure};
use self::governed::Governed;

/// The limit of all stacks, with a burst of the same size, and related settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) per_second: u32,
    /// The timeout of a request. For layers that wait, it is the longest wait.
    pub(crate) timeout: Duration,
    /// The capacity of tower's buffers.
    pub(crate) buffer: usize,
}

/// A visitor that receives the stacks, one after another.
pub(crate) trait Visitor<Request, Response> {
    /// Receives a stack that can be cloned.
    fn visit<S>(&mut self, stack: &'static str, counts: Counts, service: S)
    where
        S: Service<Request, Response = Response, Error: HasFailure + Send, Future: Send> + Clone + Send + 'static;

    /// Receives a stack that cannot be cloned.
    fn visit_single<S>(&mut self, stack: &'static str, service: S)
    where
        S: Service<Request, Response = Response, Error: HasFailure>;
}

/// The way in which the limit counts. It determines the maximum number of admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    Bucket,
    Window,
}

/// A service that every stack can wrap.
pub(crate) trait Inner<Request>:
    Service<Request, Error = BoxError, Response: Send + 'static, Future: Send + Sync + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S, Request> Inner<Request> for S where
    S: Service<Request, Error = BoxError, Response: Send + 'static, Future: Send + Sync + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

pub(crate) const WEIR_RATE: &str = "weir RateLimitLayer";
pub(crate) const WEIR_LATENCY: &str = "weir LatencyLayer";
pub(crate) const WEIR_THROUGHPUT: &str = "weir ThroughputLayer";
pub(crate) const SHOT_RATE: &str = "tower-shot RateLimitLayer";
pub(crate) const SHOT_LATENCY: &str = "tower-shot latency";
pub(crate) const SHOT_THROUGHPUT: &str = "tower-shot throughput";
pub(crate) const TOWER_OUTSIDE: &str = "tower: buffer outside";
pub(crate) const TOWER_INSIDE: &str = "tower: buffer inside";
pub(crate) const GOVERNED: &str = "governor, wait adapter";

/// Passes each stack, newly created, to the visitor. Call it on a runtime.
pub(crate) fn show<Request, I>(limit: Limit, inner: &I, visitor: &mut impl Visitor<Request, I::Response>)
where
    Request: Send + 'static,
    I: Inner<Request>,
{
    ours(limit, inner, visitor);
    tower_shot(limit, inner, visitor);
    towers(limit, inner, visitor);
    visitor.visit(GOVERNED, Counts::Bucket, Governed::new(inner.clone(), limit.per_second));
}

fn ours<Request, I>(limit: Limit, inner: &I, visitor: &mut impl Visitor<Request, I::Response>)
where
    Request: Send + 'static,
    I: Inner<Request>,
{
    let clock = MonotonicClock::start();
    let limiter = |strategy| {
        let quota = Quota::new(strategy, u64::from(limit.per_second), Duration::from_secs(1), None).expect("valid");
        Limiter::new(clock.now(), quota)
    };
    let bucket = || LimiterAdmit::new(limiter(Strategy::TokenBucket), clock);
    let rate = RateLimitLayer::new(limiter(Strategy::TokenBucket), clock);
    visitor.visit(WEIR_RATE, Counts::Bucket, rate.layer(inner.clone()));
    visitor.visit(WEIR_LATENCY, Counts::Bucket, LatencyLayer::with_errors(bucket()).layer(inner.clone()));
    let throughput = ThroughputLayer::with_errors(bucket(), limit.timeout);
    visitor.visit(WEIR_THROUGHPUT, Counts::Bucket, throughput.layer(inner.clone()));
    let window = LimiterAdmit::new(limiter(Strategy::FixedWindow), clock);
    let throughput = ThroughputLayer::with_errors(window, limit.timeout);
    visitor.visit("weir ThroughputLayer, FixedWindow", Counts::Window, throughput.layer(inner.clone()));
}

/// Passes the stacks of tower-shot: with its GCRA, which is exact, and with the fixed window of its documentation.
fn tower_shot<Request, I>(limit: Limit, inner: &I, visitor: &mut impl Visitor<Request, I::Response>)
where
    Request: Send + 'static,
    I: Inner<Request>,
{
    let requests = NonZeroUsize::new(limit.per_second as usize).expect("no limit is zero");
    let second = Duration::from_secs(1);
    let bucket = || Arc::new(shot_limit::Gcra::new(requests, second));
    let rate = tower_shot::RateLimitLayer::new(bucket());
    visitor.visit(SHOT_RATE, Counts::Bucket, rate.layer(inner.clone()));
    let latency = tower_shot::make_latency_svc(bucket(), limit.timeout, inner.clone());
    visitor.visit(SHOT_LATENCY, Counts::Bucket, latency);
    let throughput = tower_shot::make_timeout_svc(bucket(), limit.timeout, inner.clone());
    visitor.visit(SHOT_THROUGHPUT, Counts::Bucket, throughput);
    let window = Arc::new(shot_limit::FixedWindow::new(requests, second));
    let throughput = tower_shot::make_timeout_svc(window, limit.timeout, inner.clone());
    visitor.visit("tower-shot throughput, FixedWindow", Counts::Window, throughput);
}

fn towers<Request, I>(limit: Limit, inner: &I, visitor: &mut impl Visitor<Request, I::Response>)
where
    Request: Send + 'static,
    I: Inner<Request>,
{
    let (requests, second) = (u64::from(limit.per_second), Duration::from_secs(1));
    let single = ServiceBuilder::new().rate_limit(requests, second).service(inner.clone());
    visitor.visit_single("tower RateLimit, no clone", single);
    let outside = ServiceBuilder::new()
        .buffer(limit.buffer)
        .timeout(limit.timeout)
        .load_shed()
        .rate_limit(requests, second)
        .service(inner.clone());
    visitor.visit(TOWER_OUTSIDE, Counts::Window, outside);
    let inside = ServiceBuilder::new()
        .timeout(limit.timeout)
        .load_shed()
        .buffer(limit.buffer)
        .rate_limit(requests, second)
        .service(inner.clone());
    visitor.visit(TOWER_INSIDE, Counts::Window, inside);
}
