//! A limit on the number of requests in flight, without a rate. An admitted request has a permit, and dropping the
//! permit makes room for other requests. No function here waits.

mod by_key;

use std::{error::Error, fmt, num::NonZeroU64, sync::Arc};

pub use self::by_key::{InFlightByKey, KeyPermit};
use crate::sync::{AtomicU64, Ordering};

/// A limit on the total cost of the requests in flight. All clones share one count.
///
/// ```
/// use std::num::NonZeroU64;
/// use weir_core::InFlight;
///
/// let in_flight = InFlight::new(NonZeroU64::new(2).expect("not zero"));
/// let permit = in_flight.acquire(2)?;
/// assert!(in_flight.acquire(1).is_err());
/// drop(permit);
/// assert!(in_flight.acquire(1).is_ok());
/// # Ok::<(), weir_core::Full>(())
/// ```
#[derive(Clone, Debug)]
pub struct InFlight {
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    in_use: AtomicU64,
    limit: AtomicU64,
}

impl InFlight {
    /// Returns a count with nothing in flight and room for `limit`.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// let in_flight = weir_core::InFlight::new(NonZeroU64::new(100).expect("not zero"));
    /// assert_eq!((in_flight.in_use(), in_flight.limit()), (0, 100));
    /// ```
    pub fn new(limit: NonZeroU64) -> Self {
        Self { state: Arc::new(State { in_use: AtomicU64::new(0), limit: AtomicU64::new(limit.get()) }) }
    }

    /// Admits a request of this cost, if there is room for the whole cost. A cost of 0 takes no room and is never
    /// refused.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::new(5).expect("not zero"));
    /// let large = in_flight.acquire(4)?;
    /// assert_eq!(in_flight.acquire(2).unwrap_err().in_use, 4);
    /// let small = in_flight.acquire(1)?;
    /// # drop((large, small));
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Full`], if there is not enough room. No retry time is known.
    pub fn acquire(&self, cost: u64) -> Result<Permit, Full> {
        let State { in_use, limit } = &*self.state;
        let mut before = in_use.load(Ordering::Acquire);
        loop {
            let limit = limit.load(Ordering::Acquire);
            let Some(after) = before.checked_add(cost).filter(|&after| after <= limit || cost == 0) else {
                return Err(Full { in_use: before, limit, cost });
            };
            match in_use.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Permit { state: Arc::clone(&self.state), cost }),
                Err(moved_on) => before = moved_on,
            }
        }
    }

    /// Returns the cost in flight.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::new(5).expect("not zero"));
    /// let permit = in_flight.acquire(3)?;
    /// assert_eq!(in_flight.in_use(), 3);
    /// # drop(permit);
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    pub fn in_use(&self) -> u64 {
        self.state.in_use.load(Ordering::Acquire)
    }

    /// Returns the largest cost that can be in flight.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::new(5).expect("not zero"));
    /// assert_eq!(in_flight.limit(), 5);
    /// ```
    pub fn limit(&self) -> u64 {
        self.state.limit.load(Ordering::Acquire)
    }

    /// Sets the limit. Requests in flight stay: with a lower limit, no request is admitted until enough of them are
    /// done.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// # let in_flight = weir_core::InFlight::new(NonZeroU64::new(5).expect("not zero"));
    /// let first = in_flight.acquire(3)?;
    /// in_flight.set_limit(NonZeroU64::MIN);
    /// assert!(in_flight.acquire(1).is_err());
    /// drop(first);
    /// assert!(in_flight.acquire(1).is_ok());
    /// # Ok::<(), weir_core::Full>(())
    /// ```
    pub fn set_limit(&self, limit: NonZeroU64) {
        self.state.limit.store(limit.get(), Ordering::Release);
    }
}

/// The room of one request, until the permit is dropped.
///
/// ```
/// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::MIN);
/// let permit = in_flight.acquire(1)?;
/// std::thread::spawn(move || drop(permit)).join().expect("no panic"); // any thread can drop it
/// assert_eq!(in_flight.in_use(), 0);
/// # Ok::<(), weir_core::Full>(())
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped immediately limits nothing"]
pub struct Permit {
    state: Arc<State>,
    cost: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.state.in_use.fetch_sub(self.cost, Ordering::AcqRel);
    }
}

/// The error if too much is in flight.
///
/// ```
/// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::MIN);
/// let full = in_flight.acquire(2).unwrap_err();
/// assert_eq!(full.to_string(), "0 of 1 in flight: no room for 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Full {
    /// The cost in flight.
    pub in_use: u64,
    /// The limit.
    pub limit: u64,
    /// The cost of the refused request.
    pub cost: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} in flight: no room for {}", self.in_use, self.limit, self.cost)
    }
}

impl Error for Full {}
