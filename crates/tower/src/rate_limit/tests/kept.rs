//! Services that joined the queue and are then kept without a poll, by a layer that sheds or a caller that gave up.

use std::time::Duration;

use tokio::time::{advance, timeout};
use tokio_test::{assert_pending, assert_ready_ok};
use tower::{
    Layer, Service, ServiceExt,
    load_shed::{LoadShed, error::Overloaded},
    service_fn,
};
use tower_test::mock::Spawn;
use weir_core::{Limiter, Quota, Strategy};

use super::super::{RateLimit, RateLimitLayer};
use crate::MonotonicClock;

const GRACE: Duration = Duration::from_millis(2);

/// A limit of a hundred requests per second.
fn hundred(strategy: Strategy, burst: u64) -> (Limiter, MonotonicClock, RateLimitLayer) {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(strategy, 100, Duration::from_secs(1), Some(burst)).unwrap();
    let limiter = Limiter::new(clock.now(), quota);
    (limiter.clone(), clock, RateLimitLayer::new(limiter, clock))
}

/// A service for `assert_pending` and `assert_ready_ok`.
fn spawned<S>(layer: &RateLimitLayer, inner: S) -> Spawn<RateLimit<S>> {
    Spawn::new(layer.layer(inner))
}

#[tokio::test(start_paused = true)]
async fn after_an_idle_time_a_service_that_was_shed_holds_up_nobody() {
    let (limiter, clock, layer) = hundred(Strategy::TokenBucket, 100);
    let api = layer.layer(service_fn(async |()| Ok::<_, std::io::Error>(())));
    limiter.charge(clock.now(), 100).unwrap();
    let mut kept = LoadShed::new(api.clone());
    let shed = kept.ready().await.unwrap().call(()).await.unwrap_err();
    assert!(shed.is::<Overloaded>());

    advance(Duration::from_secs(10)).await;
    let mut admitted = 0;
    for _ in 0..100 {
        admitted += u32::from(LoadShed::new(api.clone()).oneshot(()).await.is_ok());
    }
    // One unit is left for the kept service.
    assert!(admitted >= 98, "{admitted}");
    assert!(kept.ready().await.unwrap().call(()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn callers_that_gave_up_and_kept_their_services_hold_up_nobody() {
    let (limiter, clock, layer) = hundred(Strategy::TokenBucket, 100);
    limiter.charge(clock.now(), 100).unwrap();
    let api = layer.layer(service_fn(async |()| Ok::<_, std::io::Error>(())));
    let mut kept: Vec<_> = (0..50).map(|_| api.clone()).collect();
    for service in &mut kept {
        timeout(Duration::from_millis(1), service.ready()).await.unwrap_err();
    }
    advance(Duration::from_secs(10)).await;
    for _ in 0..50 {
        LoadShed::new(api.clone()).oneshot(()).await.unwrap();
    }
    // The turns of the kept services end, so the other units go to those who come.
    let mut next = spawned(&layer, service_fn(async |()| Ok::<_, std::io::Error>(())));
    assert_pending!(next.poll_ready());
    advance(GRACE).await;
    assert_ready_ok!(next.poll_ready());
    for _ in 0..49 {
        LoadShed::new(api.clone()).oneshot(()).await.unwrap();
    }
    assert!(LoadShed::new(api.clone()).oneshot(()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn without_a_unit_for_both_a_kept_service_holds_up_others_once_and_briefly() {
    let (limiter, clock, layer) = hundred(Strategy::Gcra, 1);
    limiter.charge(clock.now(), 1).unwrap();
    let inner = service_fn(async |()| Ok::<_, std::io::Error>(()));
    let (mut kept, mut next) = (spawned(&layer, inner), spawned(&layer, inner));
    assert_pending!(kept.poll_ready());
    advance(Duration::from_secs(10)).await;
    assert_pending!(next.poll_ready());
    advance(GRACE).await;
    assert_ready_ok!(next.poll_ready());
    drop(next.call(()));
    advance(Duration::from_secs(10)).await;
    assert_ready_ok!(next.poll_ready());
    // The kept service has lost turns, not its position.
    drop(next.call(()));
    assert_pending!(kept.poll_ready());
    assert_pending!(next.poll_ready());
    advance(Duration::from_millis(10)).await;
    assert_pending!(next.poll_ready());
    assert_ready_ok!(kept.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_a_unit_of_those_who_wait() {
    let (limiter, clock, layer) = hundred(Strategy::TokenBucket, 10);
    let inner = service_fn(async |()| Ok::<_, std::io::Error>(()));
    limiter.charge(clock.now(), 7).unwrap();
    let expensive = limiter.enqueue(clock.now(), 5, None).unwrap();
    let mut service = spawned(&layer, inner);
    assert_eq!(limiter.peek(clock.now()).remaining(), 3);
    assert_pending!(service.poll_ready());
    // In 40 ms, there are units for both.
    advance(Duration::from_millis(20)).await;
    assert_pending!(service.poll_ready());
    assert!(limiter.charge(clock.now(), 5).is_ok());
    drop(expensive);
    assert_pending!(service.poll_ready());
    advance(Duration::from_millis(10)).await;
    assert_ready_ok!(service.poll_ready());
}
