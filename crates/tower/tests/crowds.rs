//! Many callers give up while they wait: the callers that stay use the whole rate of the limit, and a single caller
//! afterwards is admitted immediately. Most tests pause tokio's clock, so a minute takes no time.
#![expect(clippy::disallowed_methods, reason = "tests measure how long something takes")]

use std::{
    convert::Infallible,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{KeyedAdmit, LimiterAdmit, MonotonicClock, NoKey, RateLimitLayer, ThroughputLayer, WithoutKey};

const SECOND: Duration = Duration::from_secs(1);

/// The times at which requests were admitted.
type Went = Arc<Mutex<Vec<Instant>>>;

fn quota(strategy: Strategy) -> Quota {
    Quota::new(strategy, 100, SECOND, None).expect("valid")
}

/// A new caller starts every `pause` for `seconds`. Each caller gives up after its own patience.
async fn crowd<S>(service: S, pause: Duration, seconds: u32, patience: impl Fn(u32) -> Duration)
where
    S: Service<(), Response = ()> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
{
    let mut callers = JoinSet::new();
    let start = Instant::now();
    for number in 0.. {
        let at = pause * number;
        if at >= SECOND * seconds {
            break;
        }
        tokio::time::sleep_until(start + at).await;
        let (service, patience) = (service.clone(), patience(number));
        callers.spawn(async move { drop(timeout(patience, service.oneshot(())).await) });
    }
    while callers.join_next().await.is_some() {}
}

fn inner() -> (Went, impl Service<(), Response = (), Error = Infallible, Future: Send> + Clone + Send + 'static) {
    let went = Went::default();
    let log = Arc::clone(&went);
    let inner = service_fn(move |()| {
        log.lock().expect("no panic").push(Instant::now());
        async { Ok::<_, Infallible>(()) }
    });
    (went, inner)
}

/// Asserts that in every period of time at most the burst plus the refill of that period was admitted.
fn assert_exact(went: &Went, burst: u64) {
    let went = went.lock().expect("no panic");
    for (first, start) in went.iter().enumerate() {
        for (count, at) in (1_u128..).zip(&went[first..]) {
            let flowed = at.duration_since(*start).as_nanos() + 2;
            let most = u128::from(burst) * 1_000_000_000 + 100 * flowed;
            assert!(count * 1_000_000_000 <= most, "{count} within {flowed} ns");
        }
    }
}

async fn assert_alone_goes_at_once<S>(service: S)
where
    S: Service<(), Response = ()> + Clone,
    S::Error: std::fmt::Debug,
{
    sleep(SECOND).await;
    let start = Instant::now();
    service.oneshot(()).await.expect("the request is admitted");
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_serves_its_rate_while_callers_give_up() {
    for (strategy, burst) in [(Strategy::TokenBucket, 100_u64), (Strategy::Gcra, 1), (Strategy::LeakyBucket, 1)] {
        let clock = MonotonicClock::of_tokio();
        let (went, inner) = inner();
        let service = RateLimitLayer::new(Limiter::new(clock.now(), quota(strategy)), clock).layer(inner);
        crowd(service.clone(), SECOND / 200, 60, |_| SECOND / 2).await;
        let served = went.lock().expect("no panic").len();
        assert!(served >= 5_700, "{strategy:?}: {served} of 6,000");
        assert_exact(&went, burst);
        assert_alone_goes_at_once(service).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_serves_those_who_stay_for_any_share_that_leaves() {
    for strategy in [Strategy::TokenBucket, Strategy::Gcra, Strategy::SlidingWindowLog, Strategy::FixedWindow] {
        for leaving_percent in [25, 50, 90, 99] {
            let clock = MonotonicClock::of_tokio();
            let (went, inner) = inner();
            let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota(strategy)), clock);
            let service = ThroughputLayer::with_errors(limit, SECOND * 2).layer(inner);
            // Multiples of a prime spread the values without a visible pattern.
            let patience = move |number: u32| match number * 37 % 100 {
                leaves if leaves < leaving_percent => SECOND / 1000 * (number * 61 % 300),
                _ => SECOND * 10,
            };
            // So many callers start that the callers that stay exceed the limit.
            let pause = SECOND * (100 - leaving_percent) / (150 * 100);
            crowd(service.clone(), pause, 3, patience).await;
            let served = went.lock().expect("no panic").len();
            assert!(served >= 285, "{strategy:?}, {leaving_percent} % leave: {served} of 300");
            assert_alone_goes_at_once(service).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_key_has_a_queue_of_its_own() {
    let clock = MonotonicClock::of_tokio();
    let terms = Terms::new([("rate", quota(Strategy::Gcra))]).expect("valid");
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).expect("not zero"));
    let by_name = |name: &&'static str, key: &mut Vec<u8>| -> Result<(), NoKey> {
        key.extend_from_slice(name.as_bytes());
        Ok(())
    };
    let limit = KeyedAdmit::new(rule.clone(), clock, by_name, WithoutKey::Share);
    let start = Instant::now();
    let inner = service_fn(move |_: &'static str| async move { Ok::<_, Infallible>(start.elapsed()) });
    let service = ThroughputLayer::with_errors(limit, SECOND).layer(inner);
    let mut waits: JoinSet<_> =
        ["ann", "bob"].repeat(20).into_iter().map(|name| service.clone().oneshot(name)).collect();
    tokio::task::yield_now().await;
    assert_eq!((rule.queue_len(b"ann"), rule.queue_len(b"bob")), (19, 19));
    let mut last = Duration::ZERO;
    while let Some(at) = waits.join_next().await {
        last = last.max(at.expect("no panic").expect("within a second"));
    }
    assert_eq!(last, SECOND * 19 / 100);
    assert_eq!((rule.queue_len(b"ann"), rule.queue_len(b"bob")), (0, 0));
}

/// A panic of the inner service must not give the charge back, with or without a wait before it.
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_inner_service_gives_nothing_back() {
    let clock = MonotonicClock::of_tokio();
    let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, SECOND, None).expect("valid"));
    let inner = service_fn(async |()| -> Result<(), Infallible> { panic!("expected by this test") });
    let panics_in_call = tower::util::MapRequest::new(inner, |()| -> () { panic!("expected by this test") });
    let service =
        ThroughputLayer::with_errors(LimiterAdmit::new(limiter.clone(), clock), SECOND * 2).layer(panics_in_call);
    for wait in [Duration::ZERO, SECOND] {
        let start = Instant::now();
        let called = tokio::spawn(service.clone().oneshot(())).await;
        assert!(called.is_err_and(|error| error.is_panic()));
        assert_eq!(start.elapsed(), wait);
        assert_eq!(limiter.peek(clock.now()).remaining(), 0);
    }
}

/// Callers that give up but keep their service, as a connection pool does. The service stays in the queue and is never
/// polled again.
#[tokio::test(start_paused = true)]
async fn services_that_are_kept_and_never_polled_again_stop_no_limit() {
    let clock = MonotonicClock::of_tokio();
    let (went, inner) = inner();
    let limiter = Limiter::new(clock.now(), quota(Strategy::TokenBucket));
    let service = RateLimitLayer::new(limiter.clone(), clock).layer(inner);
    let (start, kept) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let mut callers = JoinSet::new();
    for number in 0..4_000 {
        tokio::time::sleep_until(start + SECOND * number / 200).await;
        let (mut service, kept) = (service.clone(), Arc::clone(&kept));
        callers.spawn(async move {
            if let Ok(Ok(ready)) = timeout(SECOND / 2, service.ready()).await {
                ready.call(()).await.expect("it never fails");
            }
            kept.lock().expect("no panic").push(service);
        });
    }
    callers.join_all().await;
    assert!(limiter.queue_len() > 1_000, "{} gave up", limiter.queue_len());
    let served = went.lock().expect("no panic").len();
    assert!(served >= 1_900, "{served} of 2,000");
    sleep(SECOND).await;
    let start = Instant::now();
    service.oneshot(()).await.expect("it never fails");
    assert!(start.elapsed() <= SECOND / 50, "{:?}", start.elapsed());
}

/// On real threads with a real clock, all callers that stay are admitted, and the rate never exceeds the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn on_many_threads_all_who_stay_go_and_none_too_many() {
    const STAY: u32 = 1_000;
    for (strategy, burst) in
        [(Strategy::TokenBucket, Some(10)), (Strategy::LeakyBucket, None), (Strategy::FixedWindow, None)]
    {
        let clock = MonotonicClock::start();
        let quota = Quota::new(strategy, 10, Duration::from_millis(1), burst).expect("valid");
        let (went, inner) = inner();
        let service = RateLimitLayer::new(Limiter::new(clock.now(), quota), clock).layer(inner);
        let start = Instant::now();
        let mut callers = JoinSet::new();
        for number in 0..2 * STAY {
            let call = service.clone().oneshot(());
            callers.spawn(async move {
                if number % 2 == 0 {
                    return call.await.is_ok();
                }
                // This caller gives up during the wait, unless it was admitted before.
                timeout(Duration::from_micros(u64::from(number)), call).await.is_ok()
            });
        }
        let served = timeout(SECOND * 60, callers.join_all()).await.expect("all callers finish within a minute");
        let stayed = served.iter().filter(|served| **served).count();
        assert!(stayed >= STAY as usize);
        let (went, most) = (went.lock().expect("no panic").len(), start.elapsed().as_micros() / 100 + 20);
        assert!(went as u128 <= most, "{strategy:?}: {went} of {most}");
    }
}
