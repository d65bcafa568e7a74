//! Bounds for the tests: what never comes makes them fail, and not hang. No bound is one of wall time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use tokio_test::{assert_ready, task};
use tower_test::mock::{Handle, SendResponse};

/// A day of tokio's clock. While it is paused, that is over as soon as no task can go on.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Far more than any test needs: who waits an hour for its turn looks up each second.
const POLLS: u32 = 10_000;

/// Awaits what must come on a paused clock.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    let (mut future, mut polls) = (pin!(future), 0);
    let counted = poll_fn(|context| {
        polls += 1;
        assert!(polls < POLLS, "it is woken again and again, for nothing");
        future.as_mut().poll(context)
    });
    tokio::time::timeout(DAY, counted).await.expect("nobody will ever wake this")
}

/// The request that the inner service has been given. Layers call it in `call` or when they are polled, so it is there by
/// now, or never.
pub(crate) fn handed<T, U>(handle: &mut Handle<T, U>) -> (T, SendResponse<U>) {
    assert_ready!(task::spawn(handle.next_request()).poll(), "the inner service was not called").expect("it is there")
}
