use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service};
use tower_test::mock;
use weir_core::InFlight;

use super::{Admit, LatencyLayer, LatencyService};
use crate::{Answer, Answers, Errors, LimitError, bounded::handed};

/// Admits all requests except "no", and counts them.
#[derive(Clone, Default)]
struct Gate {
    asked: Arc<AtomicUsize>,
}

impl Gate {
    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Admit<&'static str> for Gate {
    type Pass = usize;
    type Refusal = usize;

    fn admit(&self, request: &&'static str) -> Result<usize, usize> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        if *request == "no" { Err(number) } else { Ok(number) }
    }
}

#[derive(Clone)]
struct Words;

impl Answer<usize, usize, String> for Words {
    fn refused(&self, number: usize) -> String {
        format!("refused {number}")
    }

    fn admitted(&self, number: usize, response: String) -> String {
        format!("{response} {number}")
    }
}

/// An answer that changes only refusals.
#[derive(Clone)]
struct OnlyRefusals;

impl Answer<usize, usize, String> for OnlyRefusals {
    fn refused(&self, _: usize) -> String {
        String::from("refused")
    }
}

type Inner = mock::Mock<&'static str, String>;
type Handle = mock::Handle<&'static str, String>;

fn spawn(gate: &Gate) -> (mock::Spawn<LatencyService<Inner, Gate, Answers<Words>>>, Handle) {
    let layer = LatencyLayer::new(gate.clone(), Words);
    mock::spawn_with(move |inner| layer.layer(inner))
}

#[tokio::test]
async fn it_is_ready_when_the_inner_service_is_and_nobody_is_charged_before() {
    let gate = Gate::default();
    let (mut service, mut handle) = spawn(&gate);
    handle.allow(0);
    assert_pending!(service.poll_ready());
    assert_eq!(gate.asked(), 0);

    handle.allow(1);
    assert!(service.is_woken());
    assert_ready_ok!(service.poll_ready());
    assert_eq!(gate.asked(), 0);
}

#[tokio::test]
async fn a_refusal_leaves_the_inner_service_ready() {
    let (mut service, mut handle) = spawn(&Gate::default());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    assert_eq!(assert_ready_ok!(task::spawn(service.call("no")).poll()), "refused 0");

    // The inner service has room for one request, which the refused request does not use.
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("yes"));
    assert_pending!(response.poll());
    let (request, _reply) = handed(&mut handle);
    assert_eq!(request, "yes");
    assert_pending!(service.poll_ready());
}

#[tokio::test]
async fn errors_pass_through() {
    let (mut service, mut handle) = spawn(&Gate::default());
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("yes"));
    assert_pending!(response.poll());
    let (_, reply) = handed(&mut handle);
    reply.send_error("broken");
    assert_eq!(assert_ready_err!(response.poll()).to_string(), "broken");
}

#[tokio::test]
async fn an_error_of_readiness_passes_through() {
    let (mut service, mut handle) = spawn(&Gate::default());
    handle.send_error("gone");
    assert_eq!(assert_ready_err!(service.poll_ready()).to_string(), "gone");
}

#[tokio::test]
async fn clones_share_the_gate_and_are_ready_each_for_themselves() {
    let gate = Gate::default();
    let (mut service, mut handle) = spawn(&gate);
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("yes"));
    let mut clone = service.clone();
    assert_pending!(clone.poll_ready());
    assert_pending!(response.poll());
    let (_, reply) = handed(&mut handle);
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello 0");

    handle.allow(1);
    assert_ready_ok!(clone.poll_ready());
    assert_eq!(assert_ready_ok!(task::spawn(clone.call("no")).poll()), "refused 1");
    assert_eq!(gate.asked(), 2);
}

#[tokio::test]
async fn a_cancelled_request_is_cancelled_inside_and_disturbs_no_other() {
    let (mut service, mut handle) = spawn(&Gate::default());
    assert_ready_ok!(service.poll_ready());
    let mut cancelled = task::spawn(service.call("first"));
    assert_pending!(cancelled.poll());
    let (_, cancelled_reply) = handed(&mut handle);
    drop(cancelled);
    cancelled_reply.send_response(String::from("not delivered"));

    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("second"));
    assert_pending!(response.poll());
    let (request, reply) = handed(&mut handle);
    assert_eq!(request, "second");
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello 1");
}

#[tokio::test]
async fn an_unpolled_future_can_be_dropped() {
    let (mut service, mut handle) = spawn(&Gate::default());
    assert_ready_ok!(service.poll_ready());
    drop(service.call("no"));
    assert_ready_ok!(service.poll_ready());
    drop(service.call("yes"));
    let (request, _reply) = handed(&mut handle);
    assert_eq!(request, "yes");
}

#[tokio::test]
async fn by_default_an_admitted_response_is_unchanged() {
    let (mut service, mut handle) =
        mock::spawn_with(|inner| LatencyLayer::new(Gate::default(), OnlyRefusals).layer(inner));
    assert_ready_ok!(service.poll_ready());
    let mut response = task::spawn(service.call("yes"));
    assert_pending!(response.poll());
    let (_, reply) = handed(&mut handle);
    reply.send_response(String::from("hello"));
    assert_eq!(assert_ready_ok!(response.poll()), "hello");
}

/// A service with at most one request in flight.
fn spawn_in_flight() -> (mock::Spawn<LatencyService<Inner, InFlight, Errors>>, Handle, InFlight) {
    let in_flight = InFlight::new(NonZeroU64::MIN);
    let layer = LatencyLayer::with_errors(in_flight.clone());
    let (service, handle) = mock::spawn_with(move |inner| layer.layer(inner));
    (service, handle, in_flight)
}

#[tokio::test]
async fn a_request_is_in_flight_until_it_is_answered() {
    let (mut service, mut handle, in_flight) = spawn_in_flight();
    for answer in [Ok("hello"), Err("broken")] {
        assert_ready_ok!(service.poll_ready());
        let mut response = task::spawn(service.call("first"));
        assert_pending!(response.poll());
        assert_ready_ok!(service.poll_ready());
        let refused = assert_ready_err!(task::spawn(service.call("second")).poll());
        assert!(matches!(refused, LimitError::Refused(_)), "{refused:?}");

        let (_, reply) = handed(&mut handle);
        match answer {
            Ok(hello) => reply.send_response(String::from(hello)),
            Err(broken) => reply.send_error(broken),
        }
        assert_eq!(in_flight.in_use(), 1);
        assert!(response.poll().is_ready());
        // The permit is released although the future still exists.
        assert_eq!(in_flight.in_use(), 0);
    }
}

#[tokio::test]
async fn a_cancelled_request_is_not_in_flight() {
    let (mut service, _handle, in_flight) = spawn_in_flight();
    assert_ready_ok!(service.poll_ready());
    let response = service.call("first");
    assert_eq!(in_flight.in_use(), 1);
    drop(response);
    assert_eq!(in_flight.in_use(), 0);
}

#[tokio::test]
async fn with_errors_refusals_and_inner_errors_are_distinct() {
    let (mut service, mut handle, _) = spawn_in_flight();
    handle.send_error("gone");
    let error = assert_ready_err!(service.poll_ready());
    assert!(matches!(error, LimitError::Inner(_)), "{error:?}");
}

#[test]
fn the_service_is_send_and_clone_with_its_parts() {
    fn assert_send_and_clone<T: Send + Clone>() {}
    fn assert_service<T: Service<&'static str>>() {}
    assert_send_and_clone::<LatencyService<Inner, Gate, Answers<Words>>>();
    assert_service::<LatencyService<Inner, Gate, Answers<Words>>>();
}

#[test]
#[should_panic(expected = "polled again after it was ready")]
fn polling_again_after_ready_panics_with_a_reason() {
    let gate = Gate::default();
    let mut future = None;
    tokio_test::block_on(async {
        let (mut service, _handle) = spawn(&gate);
        assert_ready_ok!(service.poll_ready());
        future = Some(task::spawn(service.call("no")));
    });
    let mut future = future.expect("set above");
    let _: String = assert_ready!(future.poll()).expect("a refusal is a response, not an error");
    let _ = future.poll();
}
