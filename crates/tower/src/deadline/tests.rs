use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::mpsc::unbounded_channel,
    time::{Instant, advance, sleep},
};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_test::mock;
use weir_core::{Admitted, Limiter, Quota, Refused, Strategy};

use super::{DeadlineLayer, DeadlineService};
use crate::{
    Answer, Answers, DeadlineExceeded, LimitError, LimiterAdmit, LimiterTicket, MonotonicClock, QueueTicket, Reserve,
    ThroughputLayer, Timed, Turn,
    bounded::{handed, within},
};

const AFTER: Duration = Duration::from_millis(500);

#[derive(Clone)]
struct Words;

impl Answer<(), DeadlineExceeded, String> for Words {
    fn refused(&self, refusal: DeadlineExceeded) -> String {
        refusal.to_string()
    }
}

type Inner = mock::Mock<&'static str, String>;
type Handle = mock::Handle<&'static str, String>;

fn spawn() -> (mock::Spawn<DeadlineService<Inner, Answers<Words>>>, Handle) {
    mock::spawn_layer(DeadlineLayer::new(AFTER, Words))
}

#[tokio::test(start_paused = true)]
async fn a_response_in_time_is_unchanged_even_in_the_last_moment() {
    let (mut service, mut handle) = spawn();
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("request"));
    assert_pending!(response.poll());
    let (request, reply) = handed(&mut handle);
    assert_eq!(request, "request");
    advance(AFTER).await;
    assert!(response.is_woken());
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello");
}

#[tokio::test(start_paused = true)]
async fn past_the_deadline_it_is_answered_and_not_before() {
    let (mut service, mut handle) = spawn();
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("request"));
    assert_pending!(response.poll());
    let _reply = handed(&mut handle);
    advance(AFTER - Duration::from_millis(1)).await;
    assert!(!response.is_woken());
    assert_pending!(response.poll());
    advance(Duration::from_millis(1)).await;
    assert!(response.is_woken());
    assert_eq!(assert_ready_ok!(response.poll()), "not answered within 500ms");
}

#[tokio::test(start_paused = true)]
async fn the_time_runs_from_the_call() {
    let (mut service, _handle) = spawn();
    assert_ready_ok!(service.poll_ready());
    advance(2 * AFTER).await;
    let mut response = task::spawn(service.call("request"));
    assert_pending!(response.poll());
    assert_ready_ok!(service.poll_ready());
    let mut late = task::spawn(service.call("polled late"));
    advance(AFTER).await;
    assert_eq!(assert_ready_ok!(late.poll()), "not answered within 500ms");
}

#[tokio::test(start_paused = true)]
async fn the_inner_future_is_dropped_before_the_answer() {
    let held = Arc::new(());
    let for_requests = Arc::clone(&held);
    let inner = service_fn(move |()| {
        let _held = Arc::clone(&for_requests);
        async move {
            let _held = _held;
            std::future::pending::<Result<String, std::io::Error>>().await
        }
    });
    let mut service = DeadlineLayer::new(AFTER, Words).layer(inner);
    let mut response = task::spawn(within(service.ready()).await.unwrap().call(()));
    assert_pending!(response.poll());
    assert_eq!(Arc::strong_count(&held), 3);
    advance(AFTER).await;
    assert_ready_ok!(response.poll());
    assert_eq!(Arc::strong_count(&held), 2);
}

#[tokio::test(start_paused = true)]
async fn it_covers_the_wait_and_the_service_together() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None).unwrap();
    let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    let mut service = ServiceBuilder::new()
        .layer(DeadlineLayer::with_errors(AFTER))
        .layer(ThroughputLayer::with_errors(limit, AFTER))
        .service_fn(async |takes: Duration| {
            sleep(takes).await;
            Ok::<_, std::io::Error>(takes)
        });
    let start = Instant::now();
    let mut responses = Vec::new();
    // The three requests wait 0, 100 and 200 ms.
    for takes in [450, 350, 350].map(Duration::from_millis) {
        responses.push(tokio::spawn(within(within(service.ready()).await.unwrap().call(takes))));
    }
    let mut results = Vec::new();
    for response in responses {
        results.push(within(response).await.unwrap());
    }
    let [first, second, third] = results.try_into().expect("three");
    assert!(first.is_ok());
    assert!(second.is_ok());
    assert!(matches!(third, Err(LimitError::Refused(DeadlineExceeded { after: AFTER }))), "{third:?}");
    assert_eq!(start.elapsed(), AFTER);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_during_the_wait_gives_the_place_back() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None).unwrap();
    let limiter = Limiter::new(clock.now(), quota);
    let mut service = ServiceBuilder::new()
        .layer(DeadlineLayer::with_errors(AFTER))
        .layer(ThroughputLayer::with_errors(LimiterAdmit::new(limiter.clone(), clock), Duration::from_secs(10)))
        .service_fn(async |()| Ok::<_, std::io::Error>(()));
    let mut call = async || within(within(service.ready()).await.unwrap().call(())).await;
    call().await.unwrap();
    let error = call().await.unwrap_err();
    assert!(matches!(error, LimitError::Refused(DeadlineExceeded { .. })));
    // Half a second later, the limit has room for one request.
    assert_eq!(limiter.peek(clock.now()).retry_after(1), Some(AFTER));
}

#[tokio::test(start_paused = true)]
async fn errors_pass_through() {
    let (mut service, mut handle) = spawn();
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("request"));
    let (_, reply) = handed(&mut handle);
    reply.send_error("broken");
    assert_eq!(assert_ready_err!(response.poll()).to_string(), "broken");
    handle.send_error("gone");
    assert_eq!(assert_ready_err!(service.poll_ready()).to_string(), "gone");
}

#[tokio::test(start_paused = true)]
async fn it_is_ready_when_the_inner_service_is() {
    let (mut service, mut handle) = spawn();
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled again after it was ready")]
async fn polling_again_after_ready_panics_with_a_reason() {
    let (mut service, _handle) = spawn();
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("request"));
    assert_pending!(response.poll());
    advance(AFTER).await;
    assert_ready_ok!(response.poll());
    let _ = response.poll();
}

/// A limit that gives each request the deadline `AFTER`.
#[derive(Clone)]
struct Hurried(LimiterAdmit);

struct Due<T>(T, Option<Duration>);

impl<T> Timed for Due<T> {
    type Exceeded = DeadlineExceeded;

    fn take_deadline(&mut self) -> Option<(Duration, DeadlineExceeded)> {
        self.1.take().map(|after| (after, DeadlineExceeded { after }))
    }
}

impl QueueTicket<()> for Due<LimiterTicket> {
    type Pass = Due<Admitted>;
    type Refusal = Refused;

    fn poll_turn(&mut self, request: &(), context: &mut Context<'_>) -> Poll<Result<Due<Admitted>, Refused>> {
        self.0.poll_turn(request, context).map_ok(|admitted| Due(admitted, None))
    }
}

impl Reserve<()> for Hurried {
    type Ticket = Due<LimiterTicket>;
    type Pass = Due<Admitted>;
    type Refusal = Refused;

    fn reserve(&self, request: &(), max_wait: Duration) -> Result<Turn<Self::Pass, Self::Ticket>, Refused> {
        Ok(match self.0.reserve(request, max_wait)? {
            Turn::Now(admitted) => Turn::Now(Due(admitted, Some(AFTER))),
            Turn::Later(ticket) => Turn::Later(Due(ticket, Some(AFTER))),
        })
    }
}

impl Answer<Due<Admitted>, Refused, String> for Words {
    fn refused(&self, _: Refused) -> String {
        String::from("too many")
    }
}

/// The deadline of a request counts from its call, and includes both the wait and the work of the inner service.
#[tokio::test(start_paused = true)]
async fn a_request_of_its_own_deadline_waits_and_is_served_within_it() {
    let clock = MonotonicClock::of_tokio();
    let quota = Quota::new(Strategy::Gcra, 1, Duration::from_millis(400), None).expect("valid");
    let limiter = Limiter::new(clock.now(), quota);
    let work = Arc::new(Mutex::new(Duration::from_millis(600)));
    let works = Arc::clone(&work);
    let inner = service_fn(move |()| {
        let work = *works.lock().expect("no panic");
        async move {
            sleep(work).await;
            Ok::<_, Infallible>(String::from("hello"))
        }
    });
    let limit = ThroughputLayer::new(Hurried(LimiterAdmit::new(limiter.clone(), clock)), Duration::MAX, Words);
    let mut service = DeadlineLayer::of_requests(Words).layer(limit.layer(inner));
    let start = Instant::now();
    let goes = service.call(());
    *work.lock().expect("no panic") = Duration::from_millis(50);
    let (waits, gives_up) = (service.call(()), service.call(()));
    assert_eq!(limiter.queue_len(), 2);
    let (goes, waits, gives_up) = within(async { tokio::join!(goes, waits, gives_up) }).await;
    assert_eq!([goes, gives_up].map(Result::unwrap), ["not answered within 500ms"; 2].map(String::from));
    assert_eq!((waits.unwrap(), limiter.queue_len()), (String::from("hello"), 0));
    assert_eq!(start.elapsed(), AFTER);
}

/// A future whose source is always ready: it uses up the task's budget in each poll.
async fn always_busy() -> Result<String, Infallible> {
    let (sender, mut receiver) = unbounded_channel();
    loop {
        sender.send(()).expect("the receiver is here");
        receiver.recv().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_uses_up_its_budget_ends_at_its_deadline() {
    let mut service = DeadlineLayer::new(AFTER, Words).layer(service_fn(|()| always_busy()));
    let mut response = task::spawn(service.call(()));
    assert_pending!(response.poll());
    // The next poll of this test has a new budget.
    advance(AFTER).await;
    assert_eq!(assert_ready_ok!(response.poll()), "not answered within 500ms");
}
