mod kept;

use std::time::Duration;

use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_test::mock;
use weir_core::{Limiter, Quota, Strategy};

use super::{RateLimit, RateLimitLayer};
use crate::{
    MonotonicClock,
    bounded::{handed, within},
};

type Inner = mock::Mock<&'static str, &'static str>;
type Handle = mock::Handle<&'static str, &'static str>;

const TENTH: Duration = Duration::from_millis(100);

struct Bench {
    limiter: Limiter,
    clock: MonotonicClock,
    service: mock::Spawn<RateLimit<Inner>>,
    handle: Handle,
}

/// A limit of ten requests per second.
fn bench(strategy: Strategy, burst: u64) -> Bench {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(strategy, 10, Duration::from_secs(1), Some(burst)).unwrap();
    let limiter = Limiter::new(clock.now(), quota);
    let layer = RateLimitLayer::new(limiter.clone(), clock);
    let (service, handle) = mock::spawn_with(|inner| layer.layer(inner));
    Bench { limiter, clock, service, handle }
}

impl Bench {
    fn remaining(&self) -> u64 {
        self.limiter.peek(self.clock.now()).remaining()
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_its_turn_comes_and_not_before() {
    let Bench { mut service, mut handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("first"));
    assert_pending!(response.poll());
    let (request, reply) = handed(&mut handle);
    assert_eq!(request, "first");
    reply.send_response("hello");
    assert_eq!(assert_ready_ok!(response.poll()), "hello");

    assert_pending!(service.poll_ready());
    advance(TENTH - Duration::from_millis(1)).await;
    assert!(!service.is_woken());
    assert_pending!(service.poll_ready());
    advance(Duration::from_millis(1)).await;
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn the_second_wait_uses_the_timer_of_the_first() {
    let Bench { mut service, handle: _handle, .. } = bench(Strategy::Gcra, 1);
    let start = Instant::now();
    for _ in 0..5 {
        while service.poll_ready().is_pending() {
            assert!(start.elapsed() < 5 * TENTH, "the service did not become ready");
            advance(Duration::from_millis(1)).await;
        }
        drop(service.call("request"));
    }
    assert_eq!(start.elapsed(), 4 * TENTH);
}

#[tokio::test(start_paused = true)]
async fn while_the_inner_service_is_not_ready_nobody_is_charged() {
    let mut bench = bench(Strategy::TokenBucket, 3);
    bench.handle.allow(0);
    assert_pending!(bench.service.poll_ready());
    assert_eq!(bench.remaining(), 3);
    bench.handle.allow(1);
    assert!(bench.service.is_woken());
    assert_ready_ok!(bench.service.poll_ready());
    assert_eq!(bench.remaining(), 2);
}

#[tokio::test(start_paused = true)]
async fn ready_and_not_called_keeps_one_charge() {
    let mut bench = bench(Strategy::TokenBucket, 3);
    for _ in 0..10 {
        assert_ready_ok!(bench.service.poll_ready());
        assert_eq!(bench.remaining(), 2);
    }
    drop(bench.service.call("request"));
    assert_eq!(bench.remaining(), 2);
    assert_ready_ok!(bench.service.poll_ready());
    assert_eq!(bench.remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_limit_and_start_without_a_charge() {
    let mut bench = bench(Strategy::TokenBucket, 2);
    assert_ready_ok!(bench.service.poll_ready());
    let mut clone = bench.service.clone();
    assert_eq!(bench.remaining(), 1);
    assert_ready_ok!(clone.poll_ready());
    assert_eq!(bench.remaining(), 0);
    assert_pending!(clone.clone().poll_ready());
}

#[tokio::test(start_paused = true)]
async fn the_charge_of_a_dropped_service_goes_to_the_next() {
    let mut bench = bench(Strategy::Gcra, 1);
    let mut ready = bench.service.clone();
    assert_ready_ok!(ready.poll_ready());
    assert_eq!(bench.remaining(), 0);
    drop(ready);
    assert_eq!(bench.remaining(), 1);
    assert_ready_ok!(bench.service.poll_ready());

    let (mut gives_up, mut next) = (bench.service.clone(), bench.service.clone());
    assert_pending!(gives_up.poll_ready());
    advance(TENTH / 2).await;
    drop(gives_up);
    assert_pending!(next.poll_ready());
    advance(TENTH / 2).await;
    assert_ready_ok!(next.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_waits_can_be_cloned_and_the_clone_waits_behind_it() {
    let Bench { mut service, handle: _handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    let mut second = service.clone();
    assert_pending!(second.poll_ready());
    let mut third = second.clone();
    assert_pending!(third.poll_ready());
    advance(TENTH).await;
    assert_pending!(third.poll_ready());
    assert_ready_ok!(second.poll_ready());
    advance(TENTH).await;
    assert_ready_ok!(third.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_in_any_order_of_polls() {
    let Bench { mut service, handle: _handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    let mut waiting: Vec<_> = (0..5).map(|_| service.clone()).collect();
    for service in &mut waiting {
        assert_pending!(service.poll_ready());
    }
    for turn in 0..waiting.len() {
        advance(TENTH).await;
        for (place, service) in waiting.iter_mut().enumerate().rev() {
            assert_eq!(service.poll_ready().is_ready(), place <= turn, "place {place} at turn {turn}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_forgotten_and_none_goes_early() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_millis(10), None).unwrap();
    let layer = RateLimitLayer::new(Limiter::new(clock.now(), quota), clock);
    let service = layer.layer(service_fn(async |()| Ok::<_, std::io::Error>(())));
    let start = Instant::now();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(within(async move {
                for _ in 0..5 {
                    service.ready().await.unwrap().call(()).await.unwrap();
                }
            }))
        })
        .collect();
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::from_millis(990));
}

#[tokio::test(start_paused = true)]
async fn every_strategy_serves_everybody_and_none_too_many() {
    let second = Duration::from_secs(1);
    for strategy in Strategy::ALL {
        let clock = MonotonicClock::of_tokio();
        let quota = Quota::new(strategy, 10, second, None).unwrap();
        let start = Instant::now();
        let service = RateLimitLayer::new(Limiter::new(clock.now(), quota), clock)
            .layer(service_fn(move |()| async move { Ok::<_, std::io::Error>(start.elapsed()) }));
        let tasks: Vec<_> = (0..45).map(|_| tokio::spawn(within(service.clone().oneshot(())))).collect();
        let mut served = Vec::new();
        for task in tasks {
            served.push(within(task).await.unwrap().unwrap());
        }
        served.sort_unstable();
        // The maximum that each strategy admits in less than a period.
        let most = match strategy {
            Strategy::FixedWindow | Strategy::TokenBucket | Strategy::TokenBucketWithDebt => 20,
            Strategy::SlidingWindowCounter => 19,
            _ => 10,
        };
        let early = served.windows(most + 1).find(|some| some[most] - some[0] < second);
        assert_eq!(early, None, "{strategy:?}");
        assert!(served[44] <= Duration::from_millis(6500), "{strategy:?}: {served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_is_heard_during_the_wait() {
    let Bench { mut service, mut handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    assert_pending!(service.poll_ready());
    handle.send_error("gone");
    assert!(assert_ready_err!(service.poll_ready()).to_string().contains("gone"));
}

#[tokio::test(start_paused = true)]
async fn errors_pass_through() {
    let Bench { mut service, mut handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("request"));
    let (_, reply) = handed(&mut handle);
    reply.send_error("broken");
    assert_eq!(assert_ready_err!(response.poll()).to_string(), "broken");
}

#[tokio::test(start_paused = true)]
async fn a_changed_limit_counts_for_those_who_come_afterwards() {
    let Bench { limiter, clock, mut service, handle: _handle } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    let faster = Quota::new(Strategy::Gcra, 100, Duration::from_secs(1), None).unwrap();
    drop(limiter.retune(|| clock.now(), faster));
    assert_pending!(service.poll_ready());
    advance(TENTH / 10).await;
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_shortens_the_waits_of_those_who_wait() {
    let clock = MonotonicClock::of_tokio();
    let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(3600), None).unwrap());
    let inner = service_fn(async |()| Ok::<_, std::io::Error>(()));
    let mut service = RateLimitLayer::new(limiter.clone(), clock).layer(inner);
    within(within(service.ready()).await.unwrap().call(())).await.unwrap();

    let start = Instant::now();
    let mut others =
        [service.clone(), service.clone(), service.clone()].map(|service| tokio::spawn(within(service.oneshot(()))));
    advance(Duration::from_secs(60)).await;
    let raised = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None).unwrap();
    let limiter = limiter.retune(|| clock.now(), raised);
    for other in &mut others {
        within(other).await.unwrap().unwrap();
    }
    // The callers poll again within a second. The four requests of the backlog take at most twice their usual time.
    assert!(start.elapsed() <= Duration::from_millis(61_800), "{:?}", start.elapsed());
    // By this time, the backlog is empty.
    advance(TENTH).await;
    assert!(limiter.charge(clock.now(), 1).is_ok());
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "call without poll_ready")]
async fn a_call_before_its_turn_panics() {
    let Bench { mut service, handle: _handle, .. } = bench(Strategy::Gcra, 1);
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    assert_pending!(service.poll_ready());
    drop(service.call("second"));
}

#[test]
fn the_service_is_send_sync_and_clone() {
    fn assert_usable<T: Send + Sync + Clone>() {}
    assert_usable::<RateLimit<()>>();
    assert!(RateLimitLayer::per(0, Duration::from_secs(1)).is_err());
}
