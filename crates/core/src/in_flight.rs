//! How many requests are in flight at once: a limit without a rate. A request that gets in holds a permit, and dropping
//! the permit makes room. Nothing here waits.

use std::{error::Error, fmt, num::NonZeroU64, sync::Arc};

use crate::sync::{AtomicU64, Ordering};

/// At most this much in flight at once. Clones share one count.
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
    /// Nothing in flight, and room for `limit`.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// let in_flight = weir_core::InFlight::new(NonZeroU64::new(100).expect("not zero"));
    /// assert_eq!((in_flight.in_use(), in_flight.limit()), (0, 100));
    /// ```
    pub fn new(limit: NonZeroU64) -> Self {
        Self { state: Arc::new(State { in_use: AtomicU64::new(0), limit: AtomicU64::new(limit.get()) }) }
    }

    /// Lets a request of weight `cost` in, if there is room for all of it.
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
    /// [`Full`]. It does not know when there will be room.
    pub fn acquire(&self, cost: u64) -> Result<Permit, Full> {
        let State { in_use, limit } = &*self.state;
        let mut before = in_use.load(Ordering::Acquire);
        loop {
            let limit = limit.load(Ordering::Acquire);
            let Some(after) = before.checked_add(cost).filter(|&after| after <= limit) else {
                return Err(Full { in_use: before, limit, cost });
            };
            match in_use.compare_exchange_weak(before, after, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Permit { state: Arc::clone(&self.state), cost }),
                Err(moved_on) => before = moved_on,
            }
        }
    }

    /// How much is in flight.
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

    /// How much may be in flight.
    ///
    /// ```
    /// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::new(5).expect("not zero"));
    /// assert_eq!(in_flight.limit(), 5);
    /// ```
    pub fn limit(&self) -> u64 {
        self.state.limit.load(Ordering::Acquire)
    }

    /// Sets the limit. Requests in flight stay: with a lower limit, none gets in until enough of them are done.
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

/// The room that one request takes until this is dropped.
///
/// ```
/// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::MIN);
/// let permit = in_flight.acquire(1)?;
/// std::thread::spawn(move || drop(permit)).join().expect("no panic"); // wherever it is dropped
/// assert_eq!(in_flight.in_use(), 0);
/// # Ok::<(), weir_core::Full>(())
/// ```
#[derive(Debug)]
#[must_use = "dropped at once, it makes room at once"]
pub struct Permit {
    state: Arc<State>,
    cost: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.state.in_use.fetch_sub(self.cost, Ordering::AcqRel);
    }
}

/// Too much is in flight.
///
/// ```
/// # let in_flight = weir_core::InFlight::new(std::num::NonZeroU64::MIN);
/// let full = in_flight.acquire(2).unwrap_err();
/// assert_eq!(full.to_string(), "0 of 1 under way: no room for 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// How much was in flight.
    pub in_use: u64,
    /// The limit.
    pub limit: u64,
    /// The cost of the request that was refused.
    pub cost: u64,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} under way: no room for {}", self.in_use, self.limit, self.cost)
    }
}

impl Error for Full {}
