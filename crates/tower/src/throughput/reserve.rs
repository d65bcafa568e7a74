//! What a user of the layer says: whose turn comes when.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

/// Gives requests their turns. Must not block: it is called on the executor.
///
/// [`LimiterAdmit`](crate::LimiterAdmit) and [`KeyedAdmit`](crate::KeyedAdmit) are the ready-made ones.
///
/// ```
/// use std::time::Duration;
/// use weir_tower::{Place, Reserve, Turn};
///
/// /// Lets everybody wait a second who can.
/// #[derive(Clone)]
/// struct Second;
///
/// impl Place for Second {
///     type Pass = ();
///
///     fn take(self) {}
/// }
///
/// impl<Request> Reserve<Request> for Second {
///     type Place = Self;
///     type Refusal = Duration;
///
///     fn reserve(&self, _: &Request, max_wait: Duration) -> Result<Turn<Self>, Duration> {
///         let second = Duration::from_secs(1);
///         if max_wait < second { Err(second) } else { Ok(Turn::At(tokio::time::Instant::now() + second, Self)) }
///     }
/// }
///
/// assert_eq!(Second.reserve(&"a request", Duration::ZERO).err(), Some(Duration::from_secs(1)));
/// ```
pub trait Reserve<Request> {
    /// What is held by a request that waits.
    type Place: Place;
    /// Why one may not wait.
    type Refusal;

    /// Takes the next place, if its turn comes within `max_wait`.
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
    /// assert!(matches!(line.reserve(&"second", Duration::from_secs(60))?, Turn::At(..)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The refusal; the request then goes no further.
    fn reserve(&self, request: &Request, max_wait: Duration) -> Result<Turn<Self::Place>, Self::Refusal>;
}

/// A place in a line. Dropping it before its turn gives it back.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{LimiterAdmit, MonotonicClock, Place, Reserve, Turn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = MonotonicClock::of_tokio();
/// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None)?);
/// let line = LimiterAdmit::new(limiter, clock);
/// line.reserve(&"goes now", Duration::ZERO)?;
/// if let Turn::At(at, place) = line.reserve(&"goes in a second", Duration::from_secs(1))? {
///     tokio::time::sleep_until(at).await; // cancelled here, the place would be the next one's
///     assert_eq!(place.take().standing.remaining(), 0);
/// }
/// # Ok(())
/// # }
/// ```
pub trait Place {
    /// What is known of a request whose turn has come. It is held until the inner service has answered.
    type Pass;

    /// Uses the place: it cannot be given back any more.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{LimiterAdmit, Place, Reserve, Turn};
    ///
    /// let line = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let patience = Duration::from_secs(90);
    /// line.reserve(&"first", patience)?;
    /// let Turn::At(_, place) = line.reserve(&"second", patience)? else { panic!("not now") };
    /// place.take(); // it goes: nobody else gets the place
    /// assert!(line.reserve(&"third", patience).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn take(self) -> Self::Pass;
}

/// When a request may go.
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
/// assert!(matches!(second, Turn::At(..)));
/// assert!(line.reserve(&"third", patience).is_err()); // two seconds are too long
/// drop(second); // went away: its place is free again
/// assert!(line.reserve(&"fourth", patience).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub enum Turn<P: Place> {
    /// At once, and nothing can be given back.
    Now(P::Pass),
    /// Later, with what to hold until then.
    At(Instant, P),
}

impl<P: Place> fmt::Debug for Turn<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(_) => f.write_str("Now"),
            Self::At(at, _) => write!(f, "At({at:?})"),
        }
    }
}
