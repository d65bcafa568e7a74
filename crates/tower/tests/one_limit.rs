//! Layers that refuse immediately and layers that wait, over one limit: requests that wait keep their turns.

use std::{
    future::pending,
    io,
    num::NonZeroUsize,
    task::{Context, Waker},
    time::Duration,
};

use tokio::time::advance;
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, service_fn};
use weir_core::{Limiter, Quota, RuleLimiter, Strategy, Terms};
use weir_tower::{
    Admit, KeyedAdmit, LatencyLayer, LimitError, LimiterAdmit, MonotonicClock, NoKey, QueueTicket, RateLimitLayer,
    Reserve, ThroughputLayer, Turn, WithoutKey,
};

const TENTH: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

fn limiter(strategy: Strategy) -> (Limiter, MonotonicClock) {
    let clock = MonotonicClock::of_tokio();
    (Limiter::new(clock.now(), Quota::new(strategy, 10, SECOND, None).expect("valid")), clock)
}

#[tokio::test(start_paused = true)]
async fn requests_that_do_not_wait_take_no_turn_of_those_that_wait() {
    let (limiter, clock) = limiter(Strategy::Gcra);
    let limit = LimiterAdmit::new(limiter.clone(), clock);
    let inner = service_fn(async |()| Ok::<_, io::Error>(()));
    let refuses = LatencyLayer::with_errors(limit.clone()).layer(inner);
    let mut waits = ThroughputLayer::with_errors(limit, SECOND / 2).layer(inner);
    let mut paced = task::spawn(RateLimitLayer::new(limiter, clock).layer(inner).oneshot(()));

    refuses.clone().oneshot(()).await.expect("the limit is not used yet");
    let mut first = task::spawn(waits.call(()));
    assert_pending!(first.poll());
    assert_pending!(paced.poll());
    for turn in 1..=2 {
        advance(TENTH).await;
        // Ten requests arrive before the waiting task is polled.
        for _ in 0..10 {
            let Err(LimitError::Refused(refused)) = refuses.clone().oneshot(()).await else {
                panic!("turn {turn} is taken")
            };
            assert_eq!(refused.retry_after(), Some(TENTH * (3 - turn)));
        }
        if turn == 1 { assert_ready_ok!(first.poll()) } else { assert_ready_ok!(paced.poll()) }
    }
    advance(TENTH).await;
    refuses.oneshot(()).await.expect("no request waits");
}

#[tokio::test(start_paused = true)]
async fn a_key_keeps_its_turn_and_holds_up_no_other_key() {
    let clock = MonotonicClock::of_tokio();
    let terms = Terms::new([("each", Quota::new(Strategy::Gcra, 10, SECOND, None).expect("valid"))]).expect("valid");
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).expect("not zero"));
    let by_name = |name: &&str, key: &mut Vec<u8>| -> Result<(), NoKey> {
        key.extend_from_slice(name.as_bytes());
        Ok(())
    };
    let limit = KeyedAdmit::new(rule, clock, by_name, WithoutKey::Share);
    assert!(limit.admit(&"ann").is_ok());
    let Ok(Turn::Later(mut ticket)) = limit.reserve(&"ann", SECOND) else { panic!("not now") };
    let mut context = Context::from_waker(Waker::noop());
    assert!(ticket.poll_turn(&"ann", &mut context).is_pending());
    advance(TENTH).await;
    assert_eq!(limit.admit(&"ann").expect_err("another's turn").retry_after(), Some(TENTH));
    assert!(limit.admit(&"bob").is_ok());
    assert!(ticket.poll_turn(&"ann", &mut context).map_ok(|_| ()).is_ready());
}

#[tokio::test(start_paused = true)]
async fn room_for_all_is_room_for_one_that_does_not_wait() {
    let (limiter, clock) = limiter(Strategy::TokenBucket);
    let limit = LimiterAdmit::new(limiter.clone(), clock);
    limiter.charge(clock.now(), 10).expect("the burst");
    let waits = ThroughputLayer::with_errors(limit.clone(), SECOND);
    let mut waits = waits.layer(service_fn(|()| pending::<Result<(), io::Error>>()));
    let mut first = task::spawn(waits.call(()));
    assert_pending!(first.poll());
    // One unit is of the request that waits, and three are free.
    advance(4 * TENTH).await;
    assert_eq!((0..10).filter(|_| limit.admit(&()).is_ok()).count(), 3);
    assert_pending!(first.poll());
    assert_eq!(limiter.peek(clock.now()).remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_request_costs_what_its_layer_finds() {
    let (limiter, clock) = limiter(Strategy::TokenBucket);
    let limit = LimiterAdmit::new(limiter.clone(), clock).with_cost(|cost: &u64| *cost);
    let service = ThroughputLayer::with_errors(limit.clone(), SECOND)
        .layer(service_fn(async |cost: u64| Ok::<_, io::Error>(cost)));
    service.clone().oneshot(8).await.expect("the burst is ten");
    let mut waits = task::spawn(service.clone().oneshot(7));
    assert_pending!(waits.poll());
    // The two units that are left are for the request that waits. A cost of 0 needs none.
    assert_eq!(limit.admit(&2).expect_err("it does not wait").retry_after(), Some(7 * TENTH));
    assert!(limit.admit(&0).is_ok());
    assert_ready_ok!(task::spawn(service.clone().oneshot(0)).poll());
    assert_eq!(limit.admit(&11).expect_err("larger than the burst").retry_after(), None);
    advance(5 * TENTH).await;
    assert_eq!(assert_ready_ok!(waits.poll()), 7);
    assert_eq!(limiter.peek(clock.now()).remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_key_pays_what_its_requests_cost() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::TokenBucket, 10, SECOND, None).expect("valid");
    let terms = Terms::new([("each", quota)]).expect("valid");
    let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100).expect("not zero"));
    let by_name = |(name, _): &(&str, u64), key: &mut Vec<u8>| -> Result<(), NoKey> {
        key.extend_from_slice(name.as_bytes());
        Ok(())
    };
    let limit = KeyedAdmit::new(rule, clock, by_name, WithoutKey::Share).with_cost(|(_, cost): &(&str, u64)| *cost);
    assert!(limit.admit(&("ann", 8)).is_ok());
    assert!(limit.admit(&("ann", 3)).is_err());
    let ann = ("ann", 7);
    let mut waits = task::spawn(limit.admitted(&ann, SECOND));
    assert_pending!(waits.poll());
    assert!(limit.admit(&("ann", 2)).is_err() && limit.admit(&("ann", 0)).is_ok());
    assert!(limit.admit(&("bob", 10)).is_ok());
    advance(5 * TENTH).await;
    assert_ready_ok!(waits.poll());
    assert!(limit.admit(&("ann", 1)).is_err());
    assert!(limit.admitted(&("ann", 11), SECOND).await.is_err(), "larger than the burst");
}
