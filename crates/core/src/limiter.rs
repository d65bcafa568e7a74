//! One limit, shared by any number of threads. Usually, a decision does not wait for other threads. There are two
//! exceptions. Before a refusal, a decision can yield up to a hundred times to a thread that moves leased admissions or
//! stores the time of an admission in a log. A decision takes a short lock if its handle is older than a retune, or if
//! the last retune was less than sixteen periods ago.

mod answer;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{cmp::Ordering, sync::Arc};

pub use self::answer::{Admitted, Charge, Refused, Reserved};
use self::state::State;
use crate::{
    Quota, Standing, Ticket, Time,
    forecast::{Forecast, Longest},
    meter::{Meter, Stop, Taken, When},
    queue::NotQueued,
    sync::lock,
    word::Sealed,
};

/// A limit that threads share. All clones share one state.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
/// assert!(limiter.charge(now, 1).is_ok());
/// assert!(limiter.charge(now, 1).is_ok());
///
/// let refused = limiter.charge(now, 1).unwrap_err();
/// let retry_after = refused.retry_after().expect("one request fits the burst");
/// assert_eq!(retry_after, Duration::from_millis(500));
/// assert!(limiter.charge(now.saturating_add(retry_after), 1).is_ok());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    state: Arc<State>,
}

impl Limiter {
    /// Returns a limiter with its full burst available.
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
        Self { state: Arc::new(State::new(Meter::new(quota, now), now)) }
    }

    /// Charges `cost` if the quota has room for it. A refusal charges nothing. A cost of 0 charges nothing and is never
    /// refused.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// match limiter.charge(now, 3) {
    ///     Ok(admitted) => assert_eq!(admitted.standing.remaining(), 7),
    ///     Err(refused) => panic!("retry after {:?}", refused.retry_after()),
    /// }
    /// assert!(limiter.charge(now, 8).is_err());
    /// assert_eq!(limiter.peek(now).remaining(), 7); // the refusal charged nothing
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], with the time after which to retry.
    #[inline(always)] // without inlining, the answer goes through memory: 20 ns with the clock instead of 10
    pub fn charge(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        match self.state.charge_at_once(now, cost) {
            Some(decided) => decided,
            None => self.charge_slow(now, cost),
        }
    }

    /// Handles all cases beyond one load and one compare-and-swap. This function is separate, so that the fast path is
    /// inlined and the compiler drops the parts of the answer that the caller does not use.
    #[inline(never)]
    fn charge_slow(&self, now: Time, cost: u64) -> Result<Admitted, Refused> {
        match self.state.charge(now, cost) {
            Ok(Taken { standing, receipt, .. }) => {
                Ok(Admitted { standing, charge: Charge { receipt, retunes: self.state.retunes } })
            }
            Err(Stop::Refused(standing)) => Err(Refused { standing, cost }),
            Err(Stop::Sealed) => self.successor().charge(now, cost),
        }
    }

    /// Returns the limiter after a retune. A method that finds sealed words repeats itself there, once for each retune
    /// that is in progress.
    #[cold]
    fn successor(&self) -> Self {
        Self { state: self.state.follow() }
    }

    /// Reserves `cost` at the first time at which it fits, if that time is not after `latest`. A later caller never
    /// gets an earlier time. A request that cannot be served by `latest` is refused immediately and charged nothing. A
    /// `latest` before `now` counts as `now`.
    ///
    /// Reservations reach at most twelve hours ahead. For
    /// [`SlidingWindowCounter`](crate::Strategy::SlidingWindowCounter), they reach to the end of the current window. A
    /// reservation in a later window of [`FixedWindow`](crate::Strategy::FixedWindow) forfeits the remaining requests
    /// of all earlier windows. Give an unused reservation back with [`refund`](Self::refund).
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
    /// let refused = limiter.reserve(now, 1, latest).unwrap_err(); // the request's turn would come after 200 ms
    /// assert_eq!(refused.retry_after(), Some(Duration::from_millis(200)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], with the time after which the request would be admitted without waiting.
    #[inline]
    pub fn reserve(&self, now: Time, cost: u64, latest: Time) -> Result<Reserved, Refused> {
        if let Some(Ok(Admitted { standing, charge })) = self.state.charge_at_once(now, cost) {
            return Ok(Reserved { at: now, standing, charge });
        }
        self.reserve_ahead(now, cost, latest.max(now))
    }

    /// Charges as much as possible of a cost that was already incurred.
    pub(crate) fn incur(&self, now: Time, cost: u64) {
        if let Err(Stop::Sealed) = self.state.take_at(now, cost, When::Incurred) {
            self.successor().incur(now, cost);
        }
    }

    /// The path for requests that may have to wait, and for refusals.
    #[inline(never)]
    fn reserve_ahead(&self, now: Time, cost: u64, latest: Time) -> Result<Reserved, Refused> {
        match self.state.take_at(now, cost, When::By(latest)) {
            Ok(Taken { at, standing, receipt }) => {
                Ok(Reserved { at, standing, charge: Charge { receipt, retunes: self.state.retunes } })
            }
            Err(Stop::Refused(standing)) => Err(Refused { standing, cost }),
            Err(Stop::Sealed) => self.successor().reserve(now, cost, latest),
        }
    }

    /// Adds a request to the limiter's queue if its turn comes by `latest`; without `latest`, always. The queue charges
    /// nothing. At the request's turn (see [`Ticket::position`]), the caller calls [`charge`](Self::charge) and then
    /// drops the ticket.
    ///
    /// The queue is first in, first out. When a request leaves it, all requests behind that request move forward. All
    /// handles of a limiter share its queue, even after a retune. A request that does not join the queue can overtake
    /// waiting requests. If [`queue_len`](Self::queue_len) is not zero, such a request also joins, with `latest` equal
    /// to `now`, and keeps the ticket during its charge.
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{Limiter, Quota, Strategy, Time};
    ///
    /// let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// limiter.charge(now, 1)?;
    /// let latest = Some(now.saturating_add(Duration::from_millis(250)));
    /// let (first, second) = (limiter.enqueue(now, 1, latest)?, limiter.enqueue(now, 1, latest)?);
    /// let refused = limiter.enqueue(now, 1, latest).unwrap_err(); // its turn would come after 300 ms
    /// assert_eq!(refused.retry_after(), Some(Duration::from_millis(300)));
    /// drop(first); // the first request gives up: the second moves forward
    /// assert!(limiter.enqueue(now, 1, latest).is_ok());
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], with the time after which the request would be admitted behind the queue.
    pub fn enqueue(&self, now: Time, cost: u64, latest: Option<Time>) -> Result<Ticket, Refused> {
        let queue = self.state.queue();
        match queue.join(now, cost, latest, || self.forecast(now)) {
            Ok(number) => Ok(Ticket::of(queue, number)),
            Err(NotQueued::Refused(Longest { standing, .. })) => Err(Refused { standing, cost }),
            Err(NotQueued::Closed) => unreachable!("only the queue of a key is closed"),
        }
    }

    /// Returns the number of waiting requests.
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
        self.state.known_queue().map_or(0, |queue| queue.len())
    }

    fn forecast(&self, now: Time) -> Forecast {
        Forecast::new(now, [self.copy(now)])
    }

    /// Returns a copy of the limit in its current state, for a forecast.
    pub(crate) fn copy(&self, now: Time) -> (Meter, Vec<u64>) {
        self.state.copy(now).unwrap_or_else(|Sealed| self.successor().copy(now))
    }

    /// Returns the result that [`charge`](Self::charge) would return, and charges nothing.
    pub(crate) fn peek_cost(&self, now: Time, cost: u64) -> Result<Standing, Refused> {
        match self.state.peek(now, cost) {
            Ok(standing) => Ok(standing),
            Err(Stop::Refused(standing)) => Err(Refused { standing, cost }),
            Err(Stop::Sealed) => self.successor().peek_cost(now, cost),
        }
    }

    /// Returns the limiter's standing, and charges nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let limiter = Limiter::new(now, quota);
    /// limiter.charge(now, 9)?;
    /// let standing = limiter.peek(now);
    /// assert_eq!((standing.remaining(), standing.retry_after(2)), (1, Some(Duration::from_millis(100))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peek(&self, now: Time) -> Standing {
        self.state.standing(now).unwrap_or_else(|Sealed| self.successor().peek(now))
    }

    /// Returns the quota in force.
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
        if self.state.is_sealed() { self.successor().quota() } else { self.state.meter.quota() }
    }

    /// Gives back a charge of this limiter.
    ///
    /// A charge that is given back immediately leaves no trace. Later, the limiter gives back only capacity that is not
    /// lost: nothing after the end of the charge's window, after its tokens were refilled, or after a retune. Later
    /// reservations keep their times: the limiter gives back only capacity that they do not need. A sliding window log
    /// takes back only the latest charge.
    ///
    /// Two reservations for a later time leave a trace, even if they are given back immediately. A reservation in a
    /// later window of [`FixedWindow`](crate::Strategy::FixedWindow) has forfeited the remaining requests of all
    /// earlier windows. A reservation in a [`SlidingWindowLog`](crate::Strategy::SlidingWindowLog) can contain more
    /// than one request. The limiter then frees all of them together, when the last of them leaves the period.
    ///
    /// `clock` is called after the state was read, so that its time is not before any charge in that state. `clock`
    /// must read the clock each time, and not repeat an earlier reading.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?);
    /// let admitted = limiter.charge(now, 2).expect("all of the burst is free");
    /// limiter.refund(admitted.charge, || now);
    /// assert_eq!(limiter.peek(now).remaining(), 2);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub fn refund(&self, charge: Charge, clock: impl Fn() -> Time) {
        match self.state.retunes.cmp(&charge.retunes) {
            Ordering::Less if self.state.is_sealed() => self.successor().refund(charge, clock),
            // If the state was sealed in the meantime, the charge stays.
            Ordering::Equal if self.state.refund(&charge.receipt, &clock).is_ok() => self.wake_head(),
            Ordering::Less | Ordering::Equal | Ordering::Greater => {}
        }
    }

    fn wake_head(&self) {
        if let Some(queue) = self.state.known_queue() {
            queue.wake_head();
        }
    }

    /// Gives back units of any earlier charges, for a program that keeps no receipts. For example, a request can use
    /// less than it was charged for.
    ///
    /// The newest charges become smaller. The limiter has at most its full credit: a bucket is not filled beyond its
    /// burst, a window or a sliding window counter takes off only units of its current window, and a sliding window log
    /// only requests of the last period. Reservations that wait keep their times: a sliding window log gives nothing
    /// back before the time of its last reservation, and a window nothing while a later window has reservations. A
    /// caller that gives back more than it has charged lets other requests pass beyond the limit.
    ///
    /// `clock` is read as for [`refund`](Self::refund).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// let limiter = Limiter::new(now, Quota::new(Strategy::FixedWindow, 10, Duration::from_secs(60), None)?);
    /// limiter.charge(now, 8).expect("an estimate");
    /// limiter.credit(5, || now); // only 3 were used
    /// assert_eq!(limiter.peek(now).remaining(), 7);
    /// limiter.credit(1_000, || now);
    /// assert_eq!(limiter.peek(now).remaining(), 10);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub fn credit(&self, units: u64, clock: impl Fn() -> Time) {
        match self.state.credit(units, &clock) {
            Ok(()) => self.wake_head(),
            Err(Sealed) => self.successor().credit(units, clock),
        }
    }

    /// Puts another quota in force and keeps the usage, while other threads continue to decide.
    ///
    /// The limiter keeps its state as a number of requests. A window or a log keeps its counts, so a higher limit takes
    /// effect immediately, and changing back restores the old state. A bucket keeps its remaining tokens, up to the new
    /// burst, and refills at the new rate. Debts and reservations stay the same number of requests. Between strategies,
    /// or between windows of different periods, each request counts at the latest time at which it can have arrived.
    /// This time is exact if the previous change was less than sixteen periods ago: during these periods, a journal
    /// records each charge under a short lock, which takes about 30 ns more. An equal quota changes nothing. After a
    /// change to or from a sliding window log, the first decision reads the whole log in some cases.
    ///
    /// The returned limiter starts at the new quota. Every older handle reaches the new quota, too, in one step that
    /// takes a lock for a moment, after any number of retunes. So replace a handle that decides often by the returned
    /// one. `clock` is called after the state was read, as for [`refund`](Self::refund).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(0);
    /// # let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, per_second(10)?);
    /// limiter.charge(now, 10).expect("all of the burst is free");
    /// let limiter = limiter.retune(|| now, per_second(1000)?);
    /// assert!(limiter.charge(now, 1).is_err()); // no fresh burst
    /// assert!(limiter.charge(now.saturating_add(Duration::from_millis(1)), 1).is_ok()); // the new rate applies
    ///
    /// let window = |requests| Quota::new(Strategy::FixedWindow, requests, Duration::from_secs(1), None);
    /// let limiter = Limiter::new(now, window(10)?);
    /// limiter.charge(now, 10).expect("all of the window is free");
    /// let limiter = limiter.retune(|| now, window(40)?);
    /// assert_eq!(limiter.peek(now).remaining(), 30);
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    #[must_use = "the returned limiter decides faster than the old one"]
    pub fn retune(&self, clock: impl Fn() -> Time, quota: Quota) -> Self {
        let mut state = Arc::clone(&self.state);
        loop {
            let guard = lock(&state.retuning);
            if state.is_sealed() {
                drop(guard);
                state = state.follow();
            } else if state.meter.quota() == quota {
                drop(guard);
                return Self { state };
            } else {
                let retuned = Self { state: state.succeed(quota, &clock) };
                drop(guard);
                if let Some(queue) = retuned.state.known_queue() {
                    let now = clock();
                    queue.reassess(now, || retuned.forecast(now));
                }
                return retuned;
            }
        }
    }
}
