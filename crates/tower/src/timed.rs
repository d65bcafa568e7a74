//! Requests with deadlines of their own.

use std::time::Duration;

/// What knows the deadline of one request: what an [`Admit`](crate::Admit) or a [`Reserve`](crate::Reserve) found out
/// about it, and so the future of a layer that asked. A [`DeadlineLayer`](crate::DeadlineLayer) around that layer asks
/// the future once the request was called; [`of_requests`](crate::DeadlineLayer::of_requests) shows all of it.
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
///         self.0.take().map(|after| (after, DeadlineExceeded { after }))
///     }
/// }
///
/// let mut admitted = Admitted(Some(Duration::from_millis(500)));
/// assert!(admitted.take_deadline().is_some());
/// assert!(admitted.take_deadline().is_none());
/// ```
pub trait Timed {
    /// Why the request is answered if it takes too long.
    type Exceeded;

    /// How long the request may take from now on, waits included, and what to answer then. None without a deadline,
    /// and when it was taken before.
    fn take_deadline(&mut self) -> Option<(Duration, Self::Exceeded)>;
}
