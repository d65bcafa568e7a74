//! No layer allocates for a request that is admitted or refused immediately, or for a key that the rule already tracks.

use std::{
    alloc::System,
    convert::Infallible,
    future::{Future as _, Ready},
    hint::black_box,
    num::{NonZeroU64, NonZeroUsize},
    pin::pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderName, Request};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service, service_fn};
use weir_core::{InFlight, Limiter, Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{
    DeadlineLayer, HeaderKey, KeyedAdmit, LatencyLayer, LimiterAdmit, MonotonicClock, RateLimitLayer, ThroughputLayer,
    WithoutKey,
};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 10;
const HOUR: Duration = Duration::from_secs(3600);

/// Serializes the tests, because the allocations of all threads are counted.
static ALONE: Mutex<()> = Mutex::new(());

/// The number of allocations of `work`. Threads of the test harness sometimes allocate, so this is the minimum of
/// several rounds.
fn allocations(mut work: impl FnMut()) -> usize {
    let rounds = (0..ROUNDS).map(|_| {
        let region = Region::new(ALLOCATOR);
        work();
        let change = region.change();
        change.allocations + change.reallocations
    });
    rounds.min().expect("ROUNDS is not zero")
}

fn quota(requests: u64) -> Quota {
    Quota::new(Strategy::TokenBucket, requests, HOUR, None).expect("valid")
}

/// An inner service that answers immediately. Its future and its error need no allocation.
fn answer(request: Request<()>) -> Ready<Result<Request<()>, Infallible>> {
    std::future::ready(Ok(request))
}

fn limit(requests: u64) -> LimiterAdmit {
    let clock = MonotonicClock::start();
    LimiterAdmit::new(Limiter::new(clock.now(), quota(requests)), clock)
}

fn by_key(requests: u64) -> KeyedAdmit<HeaderKey> {
    let clock = MonotonicClock::start();
    let terms = Terms::new([("per-key", quota(requests))]).expect("one limit");
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).expect("not zero"));
    KeyedAdmit::new(rule, clock, HeaderKey::new(HeaderName::from_static("x-api-key")), WithoutKey::Share)
}

fn from_ann() -> Request<()> {
    Request::builder().header("x-api-key", "ann").body(()).expect("a valid request")
}

/// The number of allocations of a hundred requests of a known client, and the number of admitted requests in all
/// rounds.
fn a_hundred<S: Service<Request<()>>>(mut service: S) -> (usize, usize) {
    let mut through = 0;
    let mut context = Context::from_waker(Waker::noop());
    let mut call = |request| {
        let Poll::Ready(Ok(())) = service.poll_ready(&mut context) else { panic!("the service is not ready") };
        let Poll::Ready(answer) = pin!(service.call(request)).poll(&mut context) else { panic!("the request waits") };
        through += usize::from(answer.is_ok());
    };
    // After this request, the rule tracks the client's key, and the thread has its buffer.
    call(from_ann());
    let mut requests: Vec<_> = (0..ROUNDS * 100).map(|_| from_ann()).collect();
    let counted = allocations(|| requests.drain(..100).for_each(&mut call));
    (counted, through)
}

#[test]
fn what_allocates_is_counted() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let boxes = service_fn(|request: Request<()>| {
        let _ = black_box(Box::new(1));
        answer(request)
    });
    assert_eq!(a_hundred(boxes), (100, 1001));
}

#[test]
fn no_layer_allocates_for_a_request_that_need_not_wait() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Deadlines need a runtime with timers.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _entered = runtime.enter();
    let inner = || service_fn(answer);
    let in_flight = InFlight::new(NonZeroU64::MIN);
    assert_eq!(a_hundred(LatencyLayer::with_errors(limit(500)).layer(inner())), (0, 500));
    assert_eq!(a_hundred(LatencyLayer::with_errors(by_key(500)).layer(inner())), (0, 500));
    assert_eq!(a_hundred(LatencyLayer::with_errors(in_flight).layer(inner())), (0, 1001));
    assert_eq!(a_hundred(ThroughputLayer::with_errors(limit(500), Duration::ZERO).layer(inner())), (0, 500));
    assert_eq!(a_hundred(ThroughputLayer::with_errors(by_key(500), Duration::ZERO).layer(inner())), (0, 500));
    assert_eq!(a_hundred(DeadlineLayer::with_errors(HOUR).layer(inner())), (0, 1001));
    let clock = MonotonicClock::start();
    let held_back = RateLimitLayer::new(Limiter::new(clock.now(), quota(2_000)), clock);
    assert_eq!(a_hundred(held_back.layer(inner())), (0, 1001));
}
