//! Bounds for the tests: a test fails instead of hanging if an event never comes. No bound depends on wall time.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    time::Duration,
};

use tokio_test::{assert_ready, task};
use tower_test::mock::{Handle, SendResponse};

/// A day of tokio's clock. While the clock is paused, it passes as soon as no task can run.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Far more than any test needs: a request that waits an hour for its turn polls once per second.
const POLLS: u32 = 10_000;

/// Awaits a future that must become ready on a paused clock.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    let counted = poll_fn(|context| {
        polls += 1;
        assert!(polls < POLLS, "it is woken again and again, for nothing");
        future.as_mut().poll(context)
    });
    tokio::time::timeout(DAY, counted).await.expect("nobody will ever wake this")
}

/// The request that the inner service was called with. Layers call it in `call` or when they are polled, so the request
/// is set now or never.
pub(crate) fn handed<T, U>(handle: &mut Handle<T, U>) -> (T, SendResponse<U>) {
    assert_ready!(task::spawn(handle.next_request()).poll(), "the inner service was not called").expect("it is there")
}
