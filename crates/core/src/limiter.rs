//! One limit, shared by any number of threads. Nobody waits for another thread to decide, but for a few turns
//! of the scheduler where a place is just being handed over.

mod cell;

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use self::cell::Cell;
use crate::forecast::{Forecast, Longest};
use crate::meter::{Meter, Place, SEALED, Stop, Taken};
use crate::queue::NoPlace;
use crate::sync::{Ordering, lock};
use crate::{Quota, Standing, Ticket, Time};

/// A limit that threads share. Clones share one state.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
/// assert!(limiter.check(now, 1).is_ok());
/// assert!(limiter.check(now, 1).is_ok());
///
/// let refused = limiter.check(now, 1).unwrap_err();
/// let retry_after = refused.retry_after().expect("one request fits the burst");
/// assert_eq!(retry_after, Duration::from_millis(500));
/// assert!(limiter.check(now.saturating_add(retry_after), 1).is_ok());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    cell: Arc<Cell>,
}

impl Limiter {
    /// A limiter with all of its burst free.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// assert_eq!(limiter.peek(now).remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(now: Time, quota: Quota) -> Self {
        Self { cell: Arc::new(Cell::new(Meter::new(quota, now), now)) }
    }

    /// Charges `cost` if the quota has room for it. A refusal charges nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// match limiter.check(now, 3) {
    ///     Ok(admitted) => assert_eq!(admitted.standing.remaining(), 7),
    ///     Err(refused) => panic!("come back in {:?}", refused.retry_after()),
    /// }
    /// assert!(limiter.check(now, 8).is_err());
    /// assert_eq!(limiter.peek(now).remaining(), 7); // it cost nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when to come back.
    #[inline(always)] // an answer that is passed on in memory costs more than the decision: 20 ns with the clock instead of 10
    pub fn check(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        match self.cell.check_at_once(now, cost) {
            Some(decided) => decided,
            None => self.check_with_patience(now, cost),
        }
    }

    /// Everything that is not one look and one compare-and-swap. Kept apart so that those are inlined, and what their
    /// caller does not want of the answer is never worked out.
    #[inline(never)]
    fn check_with_patience(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.check(now, cost) {
                Ok(Taken { standing, place, .. }) => {
                    return Ok(Admitted { standing, charge: Charge { place, generation: cell.generation } });
                }
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// Takes a place for `cost` at the first moment at which there is one, if that is not after `latest`. Whoever comes
    /// later gets a later place; whoever cannot be served in time is refused at once, and charged nothing.
    ///
    /// At most twelve hours ahead; for [`SlidingWindowCounter`](crate::Strategy::SlidingWindowCounter) within the window
    /// that is running. A place in a later window of [`FixedWindow`](crate::Strategy::FixedWindow) gives up what is left of
    /// those before. Who does not go gives the place back with [`refund`](Self::refund).
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{Limiter, Quota, Strategy, Time};
    ///
    /// let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), Some(2))?);
    /// let latest = now.saturating_add(Duration::from_millis(150));
    /// assert_eq!(limiter.reserve(now, 1, latest)?.at, now);
    /// assert_eq!(limiter.reserve(now, 1, latest)?.at, now.saturating_add(Duration::from_millis(100)));
    /// let refused = limiter.reserve(now, 1, latest).unwrap_err(); // its turn would come after 200 ms
    /// assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when the request would be admitted without waiting.
    #[inline]
    pub fn reserve(&self, now: Time, cost: u64, latest: Time) -> Result<Reserved, Refused> {
        if now <= latest
            && let Some(Ok(Admitted { standing, charge })) = self.cell.check_at_once(now, cost)
        {
            return Ok(Reserved { at: now, standing, charge });
        }
        self.reserve_ahead(now, cost, latest)
    }

    /// All that may have to wait, and refusals.
    #[inline(never)]
    fn reserve_ahead(&self, now: Time, cost: u64, latest: Time) -> Result<Reserved, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.reserve(now, cost, latest) {
                Ok(Taken { at, standing, place }) => {
                    return Ok(Reserved { at, standing, charge: Charge { place, generation: cell.generation } });
                }
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// Waits in the limiter's queue, if its turn comes by `latest`, or at any time without one. It is charged nothing yet: at
    /// its turn (see [`Ticket::position`]) it asks with [`check`](Self::check) like any other, and then drops the ticket.
    ///
    /// First come, first served: a newcomer goes when all that wait before it are gone. When one of them leaves, those behind
    /// move forward. All handles of a limiter share its queue, also across changes of its quota. Requests that do not wait
    /// may pass those that do: ask [`queue_len`](Self::queue_len) first.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{Limiter, Quota, Strategy, Time};
    ///
    /// let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// limiter.check(now, 1)?;
    /// let latest = Some(now.saturating_add(Duration::from_millis(250)));
    /// let (first, second) = (limiter.enqueue(now, 1, latest)?, limiter.enqueue(now, 1, latest)?);
    /// let refused = limiter.enqueue(now, 1, latest).unwrap_err(); // it would go after 300 ms
    /// assert_eq!(refused.retry_after(), Some(Duration::from_millis(300)));
    /// drop(first); // gives up: the other one moves forward
    /// assert!(limiter.enqueue(now, 1, latest).is_ok());
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], which knows when the request would go behind the queue.
    pub fn enqueue(&self, now: Time, cost: u64, latest: Option<Time>) -> Result<Ticket, Refused> {
        let queue = self.cell.queue();
        match queue.join(now, cost, latest, || self.forecast(now)) {
            Ok(number) => Ok(Ticket::of(queue, number)),
            Err(NoPlace::Refused(Longest { standing, .. })) => Err(Refused { standing, cost }),
            Err(NoPlace::Closed) => unreachable!("only the queues of keys close"),
        }
    }

    /// How many requests wait.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let ticket = limiter.enqueue(now, 1, None)?;
    /// assert_eq!(limiter.queue_len(), 1);
    /// drop(ticket);
    /// assert_eq!(limiter.queue_len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn queue_len(&self) -> usize {
        self.cell.known_queue().map_or(0, |queue| queue.len())
    }

    fn forecast(&self, now: Time) -> Forecast {
        Forecast::new(now, [self.copy(now)])
    }

    /// The limit as it is, to go on with elsewhere.
    pub(crate) fn copy(&self, now: Time) -> (Meter, Vec<u64>) {
        let mut cell = &*self.cell;
        loop {
            match cell.copy(now) {
                Ok(copied) => return copied,
                Err(_) => cell = cell.follow(),
            }
        }
    }

    /// What [`check`](Self::check) would say, charging nothing.
    pub(crate) fn ask(&self, now: Time, cost: u64) -> Result<Standing, Refused> {
        let mut cell = &*self.cell;
        loop {
            match cell.ask(now, cost) {
                Ok(standing) => return Ok(standing),
                Err(Stop::Refused(standing)) => return Err(Refused { standing, cost }),
                Err(Stop::Sealed) => cell = cell.follow(),
            }
        }
    }

    /// Where the limiter stands, charging nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// limiter.check(now, 9)?;
    /// let standing = limiter.peek(now);
    /// assert_eq!((standing.remaining(), standing.retry_after(2)), (1, Some(Duration::from_millis(100))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek(&self, now: Time) -> Standing {
        let mut cell = &*self.cell;
        loop {
            match cell.standing(now) {
                Ok(standing) => return standing,
                Err(_) => cell = cell.follow(),
            }
        }
    }

    /// The quota in force.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// let old_handle = limiter.clone();
    /// let twice = Quota::new(Strategy::TokenBucket, 20, Duration::from_secs(1), None)?;
    /// let limiter = limiter.retune(|| now, twice);
    /// assert_eq!((limiter.quota(), old_handle.quota()), (twice, twice));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quota(&self) -> Quota {
        let mut cell = &*self.cell;
        while cell.first().load(Ordering::SeqCst) & SEALED != 0 {
            cell = cell.follow();
        }
        cell.meter.quota()
    }

    /// Gives back a charge of this limiter.
    ///
    /// At once, it leaves no trace; later, what would have been lost meanwhile is not given back: after the end of its window,
    /// once it is refilled anyway, and after a retune, a charge gives back nothing. Of places that are reserved ahead, those
    /// behind keep their moments: what is given back is what nobody has been promised yet. A sliding window log takes back
    /// the latest charge only.
    ///
    /// `clock` is read after the state: only so is its time not earlier than that of any charge in it. Let it read the
    /// clock, not repeat an earlier reading.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
    /// let admitted = limiter.check(now, 2).expect("all of the burst is free");
    /// limiter.refund(admitted.charge, || now);
    /// assert_eq!(limiter.peek(now).remaining(), 2);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[expect(clippy::needless_pass_by_value, reason = "a charge is given back once")]
    pub fn refund(&self, charge: Charge, clock: impl Fn() -> Time) {
        let mut cell = &*self.cell;
        while cell.generation <= charge.generation {
            if cell.generation == charge.generation {
                // Sealed meanwhile: it stays charged.
                if cell.refund(&charge.place, &clock).is_ok()
                    && let Some(queue) = cell.known_queue()
                {
                    queue.wake_head();
                }
                return;
            }
            if cell.first().load(Ordering::SeqCst) & SEALED == 0 {
                return;
            }
            cell = cell.follow();
        }
    }

    /// Puts another quota in force and keeps what was consumed, while other threads go on deciding.
    ///
    /// State is kept in requests. A window or a log goes on with what was counted, so a raise helps at once, and changing
    /// back restores what was there. A bucket goes on with what is left, cut to the new burst, and refills at the new rate.
    /// What is overdrawn or reserved stays as many requests. Between strategies, or windows of other periods, requests count
    /// as late as they can have come. That is exact if another change came within sixteen periods before: for so long each charge
    /// is noted, under a short lock, and takes some 30 ns more. An equal quota touches nothing. To or from a sliding window log the first decision
    /// afterwards may have to go through the whole log.
    ///
    /// The limiter returned starts at the new quota. All others of the same state follow to it, one step for each retune
    /// that came since they were made: drop them when you can. `clock` is read after the state, as for
    /// [`refund`](Self::refund).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, per_second(10)?);
    /// limiter.check(now, 10).expect("all of the burst is free");
    /// let limiter = limiter.retune(|| now, per_second(1000)?);
    /// assert!(limiter.check(now, 1).is_err()); // no fresh burst
    /// assert!(limiter.check(now.saturating_add(Duration::from_millis(1)), 1).is_ok()); // but the new rate
    ///
    /// let window = |requests| Quota::new(Strategy::FixedWindow, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, window(10)?);
    /// limiter.check(now, 10).expect("all of the window is free");
    /// let limiter = limiter.retune(|| now, window(40)?);
    /// assert_eq!(limiter.peek(now).remaining(), 30);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[must_use = "the limiter it is called on stays behind the new one by a step"]
    pub fn retune(&self, clock: impl Fn() -> Time, quota: Quota) -> Self {
        let mut cell = &self.cell;
        loop {
            let guard = lock(&cell.retuning);
            if cell.first().load(Ordering::SeqCst) & SEALED != 0 {
                drop(guard);
                cell = cell.follow();
            } else if cell.meter.quota() == quota {
                return Self { cell: Arc::clone(cell) };
            } else {
                let retuned = Self { cell: Arc::clone(cell.succeed(quota, &clock)) };
                drop(guard);
                if let Some(queue) = retuned.cell.known_queue() {
                    let now = clock();
                    queue.reassess(now, || retuned.forecast(now));
                }
                return retuned;
            }
        }
    }
}

/// A request that was let through.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// let admitted = limiter.check(now, 4)?;
/// assert_eq!(admitted.standing.remaining(), 6); // for the response's headers
/// limiter.refund(admitted.charge, || now); // if the work was never done
/// assert_eq!(limiter.peek(now).remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Admitted {
    /// Where the limiter stands, this request counted.
    pub standing: Standing,
    /// What can be given back.
    pub charge: Charge,
}

/// A request that may go, now or later.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// limiter.check(now, 10)?;
/// let in_a_second = now.saturating_add(Duration::from_secs(1));
/// let reserved = limiter.reserve(now, 1, in_a_second)?;
/// assert_eq!(reserved.at.duration_since(now), Duration::from_millis(100)); // sleep that long
/// // Or, if the client goes away meanwhile, let the next one have the place.
/// limiter.refund(reserved.charge, || now);
/// assert_eq!(limiter.reserve(now, 1, in_a_second)?.at, reserved.at);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reserved {
    /// The moment from which it may go.
    pub at: Time,
    /// Where the limiter stands, this request counted.
    pub standing: Standing,
    /// What can be given back.
    pub charge: Charge,
}

/// What a limiter was charged for one request: for [`Limiter::refund`], once.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// let charge = limiter.check(now, 1)?.charge;
/// // It can travel with the request, and be given back by another thread.
/// let there = limiter.clone();
/// std::thread::spawn(move || there.refund(charge, || now)).join().expect("no panic");
/// assert_eq!(limiter.peek(now).remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Charge {
    pub(crate) place: Place,
    pub(crate) generation: u64,
}

/// A request that was not let through. It was charged nothing.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limiter = Limiter::new(now, quota);
/// limiter.check(now, 10)?;
/// let refused = limiter.check(now, 2).unwrap_err();
/// assert_eq!((refused.cost, refused.standing.remaining()), (2, 0));
/// assert_eq!(refused.to_string(), "over the limit: retry after 200ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// Where the limiter stood.
    pub standing: Standing,
    /// What the request would have cost.
    pub cost: u64,
}

impl Refused {
    /// How long until the request would be admitted, if nothing else is; none if it never will be, because its cost
    /// exceeds what can be admitted at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// limiter.check(now, 10)?;
    /// let refused = limiter.check(now, 2).unwrap_err();
    /// let later = now.saturating_add(refused.retry_after().expect("it fits the burst"));
    /// assert!(limiter.check(later, 2).is_ok());
    /// assert_eq!(limiter.check(later, 11).unwrap_err().retry_after(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after(self.cost)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after() {
            Some(wait) => write!(f, "over the limit: retry after {wait:?}"),
            None => {
                write!(f, "a cost of {} exceeds the {} that can be admitted", self.cost, self.standing.quota().most())
            }
        }
    }
}

impl Error for Refused {}
