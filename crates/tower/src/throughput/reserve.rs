//! The trait that a user of the layer implements: it gives turns to requests.

use std::{
    fmt,
    task::{Context, Poll},
    time::Duration,
};

/// Gives turns to requests. Its methods must not block, because they are called on the executor.
///
/// [`LimiterAdmit`](crate::LimiterAdmit) and [`KeyedAdmit`](crate::KeyedAdmit) implement this trait.
///
/// ```
/// use std::task::{Context, Poll};
/// use std::time::Duration;
/// use weir_tower::{QueueTicket, Reserve, Turn};
///
/// /// Admits a request when its task is polled again.
/// #[derive(Clone)]
/// struct NextPoll(bool);
///
/// impl<Request> QueueTicket<Request> for NextPoll {
///     type Pass = ();
///     type Refusal = Duration;
///
///     fn poll_turn(&mut self, _: &Request, context: &mut Context<'_>) -> Poll<Result<(), Duration>> {
///         if std::mem::replace(&mut self.0, true) {
///             return Poll::Ready(Ok(()));
///         }
///         context.waker().wake_by_ref();
///         Poll::Pending
///     }
/// }
///
/// impl<Request> Reserve<Request> for NextPoll {
///     type Ticket = Self;
///     type Pass = ();
///     type Refusal = Duration;
///
///     fn reserve(&self, _: &Request, max_wait: Duration) -> Result<Turn<(), Self>, Duration> {
///         if max_wait.is_zero() { Err(Duration::from_millis(1)) } else { Ok(Turn::Later(self.clone())) }
///     }
/// }
///
/// assert_eq!(NextPoll(false).reserve(&"a request", Duration::ZERO).err(), Some(Duration::from_millis(1)));
/// ```
pub trait Reserve<Request> {
    /// The position of a waiting request.
    type Ticket: QueueTicket<Request, Pass = Self::Pass, Refusal = Self::Refusal>;
    /// Data about an admitted request, kept until the inner service has answered.
    type Pass;
    /// The reason why a request cannot wait.
    type Refusal;

    /// Admits the request now if possible, otherwise takes the last position in the queue if its turn comes within
    /// `max_wait`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{LimiterAdmit, Reserve, Turn};
    ///
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// assert!(matches!(line.reserve(&"first", Duration::ZERO)?, Turn::Now(_)));
    /// assert!(line.reserve(&"second", Duration::ZERO).is_err());
    /// assert!(matches!(line.reserve(&"second", Duration::from_secs(60))?, Turn::Later(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The refusal; the request then does not reach the inner service.
    fn reserve(&self, request: &Request, max_wait: Duration) -> Result<Turn<Self::Pass, Self::Ticket>, Self::Refusal>;
}

/// A position in a queue. When it is dropped, the request leaves the queue, and the requests behind it move forward.
///
/// ```
/// use std::future::poll_fn;
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{LimiterAdmit, MonotonicClock, QueueTicket, Reserve, Turn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = MonotonicClock::of_tokio();
/// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None)?);
/// let limit = LimiterAdmit::new(limiter, clock);
/// limit.reserve(&"goes now", Duration::ZERO)?;
/// if let Turn::Later(mut ticket) = limit.reserve(&"in a second", Duration::from_secs(1))? {
///     let admitted = poll_fn(|context| ticket.poll_turn(&"in a second", context)).await?; // charged at this moment, not before
///     assert_eq!(admitted.standing.remaining(), 0);
/// }
/// # Ok(())
/// # }
/// ```
pub trait QueueTicket<Request> {
    /// Data about an admitted request, kept until the inner service has answered.
    type Pass;
    /// The reason why a request that waited is refused.
    type Refusal;

    /// Ready when the request that took this position is admitted, or refused because it cannot be admitted in time: a
    /// change of the limit moved its turn, or [others have overtaken it](crate#waits) because its task was late. Do not
    /// poll a ticket again after it was ready: the tickets of this crate panic.
    ///
    /// ```
    /// # use std::task::{Context, Waker};
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// use weir_tower::{LimiterAdmit, MonotonicClock, QueueTicket, Reserve, Turn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// limit.reserve(&"first", Duration::ZERO)?;
    /// let Turn::Later(mut ticket) = limit.reserve(&"second", Duration::from_secs(90))? else { panic!("not now") };
    /// assert!(ticket.poll_turn(&"second", &mut Context::from_waker(Waker::noop())).is_pending());
    /// # Ok(())
    /// # }
    /// ```
    fn poll_turn(&mut self, request: &Request, context: &mut Context<'_>) -> Poll<Result<Self::Pass, Self::Refusal>>;
}

/// The time at which a request is admitted.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{LimiterAdmit, MonotonicClock, Reserve, Turn};
///
/// let clock = MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None)?);
/// let line = LimiterAdmit::new(limiter, clock);
/// let patience = Duration::from_millis(1500);
/// assert!(matches!(line.reserve(&"first", patience)?, Turn::Now(_)));
/// let second = line.reserve(&"second", patience)?;
/// assert!(matches!(second, Turn::Later(_)));
/// assert!(line.reserve(&"third", patience).is_err()); // it would wait two seconds
/// drop(second); // the second request leaves the queue
/// assert!(line.reserve(&"fourth", patience).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a turn cancels its request"]
pub enum Turn<Pass, Ticket> {
    /// The request is admitted now, and charged.
    Now(Pass),
    /// The request waits. It is charged when it is admitted.
    Later(Ticket),
}

impl<Pass, Ticket> fmt::Debug for Turn<Pass, Ticket> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(_) => f.write_str("Now"),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
