//! No layer allocates for a request that is admitted or refused at once, nor for its key when that is known.

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

/// All threads are counted, so only one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// How often `work` allocates. Threads of the test harness allocate now and then, so this is the minimum of some
/// rounds.
fn allocations(mut work: impl FnMut()) -> usize {
    let rounds = (0..ROUNDS).map(|_| {
        let region = Region::new(ALLOCATOR);
        work();
        let change = region.change();
        change.allocations + change.reallocations
    });
    rounds.min().expect("there are some")
}

fn quota(requests: u64) -> Quota {
    Quota::new(Strategy::TokenBucket, requests, HOUR, None).expect("valid")
}

/// Answers at once. Its future and its error need no allocation.
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

/// How often a hundred requests of a known client allocate, and how many of all requests were admitted.
fn a_hundred<S: Service<Request<()>>>(mut service: S) -> (usize, usize) {
    let mut through = 0;
    let mut context = Context::from_waker(Waker::noop());
    let mut call = |request| {
        let Poll::Ready(Ok(())) = service.poll_ready(&mut context) else { panic!("it is always ready") };
        let Poll::Ready(answer) = pin!(service.call(request)).poll(&mut context) else { panic!("it waits") };
        through += usize::from(answer.is_ok());
    };
    // This makes the client known, and gives the thread its buffer.
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
