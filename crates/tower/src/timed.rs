//! Requests that each have their own deadline.

use std::time::Duration;

/// A value that contains the deadline of one request. The pass of an [`Admit`](crate::Admit) or a
/// [`Reserve`](crate::Reserve) implements this trait, and so does the future of the layer around it. After the call, a
/// [`DeadlineLayer`](crate::DeadlineLayer) takes the deadline from that future;
/// [`of_requests`](crate::DeadlineLayer::of_requests) has a complete example.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::{DeadlineExceeded, Timed};
///
/// struct Admitted(Option<Duration>);
///
/// impl Timed for Admitted {
///     type Exceeded = DeadlineExceeded;
///
///     fn take_deadline(&mut self) -> Option<(Duration, DeadlineExceeded)> {
///         self.0.take().map(|after| (after, DeadlineExceeded::new(after)))
///     }
/// }
///
/// let mut admitted = Admitted(Some(Duration::from_millis(500)));
/// assert!(admitted.take_deadline().is_some());
/// assert!(admitted.take_deadline().is_none());
/// ```
pub trait Timed {
    /// The reason for the refusal when the deadline is exceeded.
    type Exceeded;

    /// Takes the time that the request may still use, waits included, and the refusal for when that time is over.
    /// Returns none if the request has no deadline, or if an earlier call took it.
    fn take_deadline(&mut self) -> Option<(Duration, Self::Exceeded)>;
}
