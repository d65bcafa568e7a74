//! Bounds for the tests: if an expected event never happens, the test fails instead of hanging. No bound depends on
//! wall time.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    time::Duration,
};

use tokio_test::{assert_ready, task};
use tower_test::mock::{Handle, SendResponse};

/// A day of tokio's clock. While the clock is paused, the day passes as soon as no task can run.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The maximum number of polls, far more than any test needs. A request that waits an hour for its turn polls once per
/// second.
const POLLS: u32 = 10_000;

/// Awaits a future that must become ready on a paused clock.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    let counted = poll_fn(|context| {
        polls += 1;
        assert!(polls < POLLS, "the future is woken again and again without progress");
        future.as_mut().poll(context)
    });
    tokio::time::timeout(DAY, counted).await.expect("no task wakes this future")
}

/// Returns the request that the inner service was called with. Layers call the inner service in `call` or `poll`, so
/// the request must already be there.
pub(crate) fn handed<T, U>(handle: &mut Handle<T, U>) -> (T, SendResponse<U>) {
    assert_ready!(task::spawn(handle.next_request()).poll(), "the inner service was not called").expect("a request")
}
