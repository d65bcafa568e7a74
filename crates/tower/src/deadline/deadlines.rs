//! The source of the deadline of a request: the layer, or the future of the inner service.

use std::time::Duration;

use tokio::time::{Sleep, sleep};

use crate::{DeadlineExceeded, Timed};

/// Gives deadlines to the futures of requests. Only this crate implements it, for [`Duration`] and [`OfRequests`]: a
/// service with its own deadlines has a future that is [`Timed`].
///
/// ```
/// use std::time::Duration;
/// use weir_tower::{DeadlineLayer, HttpAnswer};
///
/// let of_all = DeadlineLayer::new(Duration::from_millis(500), HttpAnswer);
/// let of_each = DeadlineLayer::of_requests(HttpAnswer);
/// # let _ = (of_all, of_each);
/// ```
#[expect(private_bounds, reason = "only this crate implements the trait")]
pub trait Deadlines<F>: Sealed {
    /// The reason for the refusal of a request that takes too long.
    type Refusal;
    /// The state that is created before the inner service is called.
    type Started;

    /// Called before the inner service.
    fn start(&self) -> Self::Started;

    /// The timer of a request, if it has a deadline.
    fn of(started: Self::Started, called: &mut F) -> Option<(Sleep, Self::Refusal)>;
}

trait Sealed {}

impl Sealed for Duration {}

impl Sealed for OfRequests {}

/// One deadline for all requests. The timer starts before the inner service's `call`, so that the time of `call`
/// counts, too.
impl<F> Deadlines<F> for Duration {
    type Refusal = DeadlineExceeded;
    type Started = (Sleep, DeadlineExceeded);

    fn start(&self) -> Self::Started {
        (sleep(*self), DeadlineExceeded { after: *self })
    }

    fn of(started: Self::Started, _: &mut F) -> Option<(Sleep, DeadlineExceeded)> {
        Some(started)
    }
}

/// A separate deadline, or none, for each request. [`DeadlineLayer::of_requests`](super::DeadlineLayer::of_requests)
/// has an example.
///
/// ```
/// use weir_tower::{Answers, DeadlineLayer, HttpAnswer, OfRequests};
///
/// fn of_each() -> DeadlineLayer<Answers<HttpAnswer>, OfRequests> {
///     DeadlineLayer::of_requests(HttpAnswer)
/// }
/// # let _ = of_each();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OfRequests;

impl<F: Timed> Deadlines<F> for OfRequests {
    type Refusal = F::Exceeded;
    type Started = ();

    fn start(&self) {}

    fn of((): (), called: &mut F) -> Option<(Sleep, F::Exceeded)> {
        called.take_deadline().map(|(after, exceeded)| (sleep(after), exceeded))
    }
}
