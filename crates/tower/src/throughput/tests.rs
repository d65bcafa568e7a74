use std::{
    future::{Ready, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, advance};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::ServiceFn};
use tower_test::mock;
use weir_core::{Admitted, Limiter, Quota, Refused, Strategy};

use super::{ThroughputFuture, ThroughputLayer, ThroughputService};
use crate::{
    Answer, Answers, Errors, LatencyFuture, LimitError, LimiterAdmit, LimiterTicket, MonotonicClock, QueueTicket,
    Reserve, Turn,
    bounded::{handed, within},
};

const TENTH: Duration = Duration::from_millis(100);
const MILLI: Duration = Duration::from_millis(1);

/// An answer with the time until a retry.
#[derive(Clone)]
struct Wait;

impl Answer<Admitted, Refused, String> for Wait {
    fn refused(&self, refusal: Refused) -> String {
        format!("{:?}", refusal.retry_after())
    }

    fn admitted(&self, pass: Admitted, response: String) -> String {
        format!("{response}, {} left", pass.standing.remaining())
    }
}

type Inner = mock::Mock<&'static str, String>;
type Handle = mock::Handle<&'static str, String>;

fn limit(burst: u64) -> (Limiter, MonotonicClock) {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), Some(burst)).unwrap();
    (Limiter::new(clock.now(), quota), clock)
}

/// A service with one request per tenth of a second and this maximum wait.
fn spawn(max_wait: Duration) -> (mock::Spawn<ThroughputService<Inner, LimiterAdmit, Answers<Wait>>>, Handle) {
    let (limiter, clock) = limit(1);
    let layer = ThroughputLayer::new(LimiterAdmit::new(limiter, clock), max_wait, Wait);
    mock::spawn_with(move |inner| layer.layer(inner))
}

/// Thousands of futures can exist at the same time, and few of them wait: futures that do not wait must stay small.
#[test]
fn a_future_that_does_not_wait_has_no_room_for_a_wait() {
    type Inner = Ready<Result<(), std::io::Error>>;
    type Decided = LatencyFuture<Inner, Errors, Admitted, Refused>;
    type Future = ThroughputFuture<ServiceFn<fn(()) -> Inner>, (), LimiterTicket, Errors>;

    let more = size_of::<Future>() - size_of::<Decided>();
    assert!(more <= 2 * size_of::<usize>(), "{more} bytes larger");
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_turn_is_now_goes_in_call() {
    let (mut service, mut handle) = spawn(Duration::ZERO);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("now"));
    // `call` itself calls the inner service, before the future is polled.
    let (request, reply) = handed(&mut handle);
    assert_eq!(request, "now");
    assert_pending!(response.poll());
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello, 0 left");
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_when_its_turn_comes_and_not_before() {
    let (mut service, mut handle) = spawn(TENTH);
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    drop(handed(&mut handle));

    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("second"));
    assert_pending!(response.poll());
    let mut next = task::spawn(handle.next_request());
    advance(TENTH - MILLI).await;
    assert!(!response.is_woken());
    assert_pending!(response.poll());
    assert_pending!(next.poll());
    advance(MILLI).await;
    assert!(response.is_woken());
    assert_pending!(response.poll());
    let (request, reply) = assert_ready!(next.poll()).expect("the request was admitted");
    assert_eq!(request, "second");
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello, 0 left");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_would_be_late_is_refused_at_once_with_a_retry_time() {
    let (mut service, mut handle) = spawn(TENTH * 3 / 2);
    let start = Instant::now();
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    drop(handed(&mut handle));
    assert_ready_ok!(service.poll_ready());
    let _second = service.call("second");
    assert_ready_ok!(service.poll_ready());
    let mut third = task::spawn(service.call("third"));
    assert_eq!(assert_ready_ok!(third.poll()), "Some(200ms)");
    assert_eq!(start.elapsed(), Duration::ZERO);

    // A caller that retries after that time is admitted without a wait.
    advance(2 * TENTH).await;
    assert_ready_ok!(service.poll_ready());
    drop(service.call("third again"));
    let (request, _) = handed(&mut handle);
    assert_eq!(request, "third again");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_charges_nothing_and_leaves_the_inner_service_ready() {
    let (mut service, mut handle) = spawn(Duration::ZERO);
    handle.allow(2);
    assert_ready_ok!(service.poll_ready());
    drop(service.call("first"));
    assert_ready_ok!(service.poll_ready());
    for _ in 0..100 {
        assert_eq!(assert_ready_ok!(task::spawn(service.call("no")).poll()), "Some(100ms)");
    }
    advance(TENTH).await;
    // The inner service still has room for a second request.
    assert_ready_ok!(service.poll_ready());
    drop(service.call("second"));
    assert_pending!(service.poll_ready());
    drop(handed(&mut handle));
    let (request, _) = handed(&mut handle);
    assert_eq!(request, "second");
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_in_any_order_of_polls() {
    let (mut service, mut handle) = spawn(Duration::from_secs(1));
    let names = ["a", "b", "c", "d"];
    let mut responses = Vec::new();
    for name in names {
        assert_ready_ok!(service.poll_ready());
        responses.push(task::spawn(service.call(name)));
    }
    for name in names {
        for response in responses.iter_mut().rev() {
            assert_pending!(response.poll());
        }
        let (request, reply) = handed(&mut handle);
        assert_eq!(request, name);
        reply.send_response(String::from("hello"));
        assert_pending!(task::spawn(handle.next_request()).poll());
        let mut first = responses.remove(0);
        assert_eq!(assert_ready_ok!(first.poll()), "hello, 0 left");
        advance(TENTH).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_client_that_goes_away_is_that_of_the_next() {
    for polled in [true, false] {
        let (mut service, mut handle) = spawn(TENTH);
        assert_ready_ok!(service.poll_ready());
        drop(service.call("first"));
        drop(handed(&mut handle));

        assert_ready_ok!(service.poll_ready());
        let mut goes_away = task::spawn(service.call("goes away"));
        if polled {
            assert_pending!(goes_away.poll());
        }
        assert_ready_ok!(service.poll_ready());
        assert_eq!(assert_ready_ok!(task::spawn(service.call("no")).poll()), "Some(200ms)");
        advance(TENTH / 2).await;
        drop(goes_away);

        assert_ready_ok!(service.poll_ready());
        let mut next = task::spawn(service.call("next"));
        assert_pending!(next.poll());
        advance(TENTH / 2).await;
        assert_pending!(next.poll());
        let (request, _) = handed(&mut handle);
        assert_eq!(request, "next");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_let_through_stays_charged() {
    let (limiter, clock) = limit(2);
    let layer = ThroughputLayer::new(LimiterAdmit::new(limiter.clone(), clock), TENTH, Wait);
    let (mut service, _handle): (_, Handle) = mock::spawn_with(|inner| layer.layer(inner));
    assert_ready_ok!(service.poll_ready());
    drop(service.call("cancelled"));
    assert_eq!(limiter.peek(clock.now()).remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn while_the_inner_service_is_not_ready_nobody_is_charged() {
    let (limiter, clock) = limit(2);
    let layer = ThroughputLayer::new(LimiterAdmit::new(limiter.clone(), clock), TENTH, Wait);
    let (mut service, mut handle): (_, Handle) = mock::spawn_with(|inner| layer.layer(inner));
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    assert_eq!(limiter.peek(clock.now()).remaining(), 2);
}

/// A service that panics if this instance is called without being ready. Its clones are not ready.
struct Strict {
    ready: bool,
    answered: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false, answered: Arc::clone(&self.answered) }
    }
}

impl Service<()> for Strict {
    type Response = ();
    type Error = std::io::Error;
    type Future = Ready<Result<(), std::io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being made ready");
        self.answered.fetch_add(1, Ordering::Relaxed);
        ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_ready_is_the_one_that_is_called() {
    let (limiter, clock) = limit(1);
    let answered = Arc::default();
    let strict = Strict { ready: false, answered: Arc::clone(&answered) };
    let mut service = ThroughputLayer::with_errors(LimiterAdmit::new(limiter, clock), TENTH * 10).layer(strict);
    let mut responses = Vec::new();
    for _ in 0..5 {
        responses.push(within(service.ready()).await.unwrap().call(()));
    }
    for response in responses {
        within(response).await.unwrap();
    }
    assert_eq!(answered.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn what_the_inner_service_set_aside_goes_with_the_request_that_waits() {
    let (limiter, clock) = limit(1);
    let mut service = task::spawn(
        ServiceBuilder::new()
            .layer(ThroughputLayer::with_errors(LimiterAdmit::new(limiter, clock), TENTH))
            .concurrency_limit(1)
            .service_fn(async |()| Ok::<_, std::io::Error>(())),
    );
    within(within(service.ready()).await.unwrap().call(())).await.unwrap();
    let mut waits = task::spawn(within(service.ready()).await.unwrap().call(()));
    assert_pending!(waits.poll());
    let mut poll_ready = || service.enter(|context, mut service| service.poll_ready(context));
    // The waiting request holds the only permit.
    assert_pending!(poll_ready());
    advance(TENTH).await;
    assert_ready_ok!(waits.poll());
    drop(waits);
    assert_ready_ok!(poll_ready());
}

#[tokio::test(start_paused = true)]
async fn errors_pass_through_also_after_a_wait() {
    let (mut service, mut handle) = spawn(TENTH);
    assert_ready_ok!(service.poll_ready());
    let mut at_once = task::spawn(service.call("at once"));
    assert_ready_ok!(service.poll_ready());
    let mut waits = task::spawn(service.call("waits"));
    assert_pending!(waits.poll());
    advance(TENTH).await;
    assert_pending!(waits.poll());
    for (name, response) in [("at once", &mut at_once), ("waits", &mut waits)] {
        let (request, reply) = handed(&mut handle);
        assert_eq!(request, name);
        reply.send_error("broken");
        assert_eq!(assert_ready_err!(response.poll()).to_string(), "broken");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_readiness_passes_through() {
    let (mut service, mut handle) = spawn(TENTH);
    handle.send_error("gone");
    assert_eq!(assert_ready_err!(service.poll_ready()).to_string(), "gone");
}

#[tokio::test(start_paused = true)]
async fn with_errors_a_refusal_is_typed() {
    let (limiter, clock) = limit(1);
    let inner = service_fn(async |number: u32| if number == 0 { Err("zero") } else { Ok(number) });
    let mut service = ThroughputLayer::with_errors(LimiterAdmit::new(limiter, clock), TENTH / 2).layer(inner);
    let mut call = async |number| within(within(service.ready()).await.unwrap().call(number)).await;
    assert_eq!(call(7).await.unwrap(), 7);
    let Err(LimitError::Refused(refused)) = call(7).await else { panic!("too soon") };
    assert_eq!(refused.retry_after(), Some(TENTH));
    advance(TENTH).await;
    let Err(LimitError::Inner(error)) = call(0).await else { panic!("zero fails") };
    assert_eq!(error, "zero");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_clones_are_served_at_the_rate_of_the_limit() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::LeakyBucket, 1000, Duration::from_secs(1), Some(499)).unwrap();
    let reserve = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    let layer = ThroughputLayer::with_errors(reserve, Duration::from_secs(1));
    let start = Instant::now();
    let service = layer.layer(service_fn(move |()| async move { Ok::<_, std::io::Error>(start.elapsed()) }));
    let tasks: Vec<_> = (0..1000).map(|_| tokio::spawn(within(service.clone().oneshot(())))).collect();
    let (mut served, mut refused) = (Vec::new(), 0);
    for task in tasks {
        match within(task).await.unwrap() {
            Ok(at) => served.push(at),
            Err(LimitError::Refused(_)) => refused += 1,
            Err(LimitError::Inner(error)) => panic!("{error}"),
        }
    }
    assert_eq!((served.len(), refused), (500, 500));
    served.sort_unstable();
    assert!(served.iter().zip(0..).all(|(at, place)| *at >= place * MILLI), "{served:?}");
    assert_eq!(served.last(), Some(&(499 * MILLI)));
}

/// A `select` loop can poll a ticket again by mistake.
#[tokio::test(start_paused = true)]
async fn a_ticket_charges_once_and_then_leaves_the_queue() {
    let (limiter, clock) = limit(1);
    let line = LimiterAdmit::new(limiter.clone(), clock);
    limiter.charge(clock.now(), 1).unwrap();
    let Ok(Turn::Later(mut ticket)) = line.reserve(&(), TENTH) else { panic!("not now") };
    let mut context = Context::from_waker(Waker::noop());
    assert!(ticket.poll_turn(&(), &mut context).is_pending());
    advance(TENTH).await;
    assert!(matches!(ticket.poll_turn(&(), &mut context), Poll::Ready(Ok(_))));
    assert_eq!(limiter.queue_len(), 0);
    advance(TENTH).await;
    let again = catch_unwind(AssertUnwindSafe(|| ticket.poll_turn(&(), &mut context).is_ready()));
    assert!(again.is_err(), "polled again after it was ready");
    assert_eq!(limiter.peek(clock.now()).remaining(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn on_many_threads_no_one_too_many_is_let_through_and_no_one_too_few() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::TokenBucket, 100, Duration::from_secs(3600), None).unwrap();
    let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    let inner = service_fn(async |()| Ok::<_, std::io::Error>(()));
    let service = ThroughputLayer::with_errors(line, Duration::from_secs(30)).layer(inner);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move {
                let mut served = 0;
                for _ in 0..1000 {
                    // The next turn is more than half a minute away: no request waits.
                    let ready = assert_ready_ok!(task::spawn(service.ready()).poll());
                    served += u32::from(assert_ready!(task::spawn(ready.call(())).poll()).is_ok());
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for caller in callers {
        served += caller.await.unwrap();
    }
    assert_eq!(served, 100);
}

#[test]
fn the_service_is_send_sync_and_clone_and_its_future_can_be_spawned() {
    fn assert_usable<T: Send + Sync + Clone>() {}
    fn assert_future<T: Service<&'static str, Future: Send + 'static>>() {}
    assert_usable::<ThroughputService<(), LimiterAdmit, Answers<Wait>>>();
    assert_future::<ThroughputService<Inner, LimiterAdmit, Answers<Wait>>>();
}
