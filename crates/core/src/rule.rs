//! All limits of a rule, counted for all requests together or by key.

mod unkeyed;

use std::{num::NonZeroUsize, sync::Arc};

use self::unkeyed::Unkeyed;
#[cfg(doc)]
use crate::Limiter;
use crate::{
    KeyStats, KeySurvey, Terms, Ticket, Time,
    all::{charge_limiters_ahead, peek_limiters},
    answer::{Charged, RuleAdmitted, RuleCharge, RuleChargedAhead, Tightest},
    keyed::{Request, Table, least_of},
    meter::When,
    queue::NotQueued,
    quota::EVERYTHING,
    refused::RuleRefused,
};

/// All limits of one rule. Each request is charged to all limits, or refused and charged to none.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
///
/// let now = Time::from_nanos(0);
/// let quota = Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?;
/// let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
/// assert_eq!(rule.charge(|| now, b"ann", 1)?.tightest.standing.remaining(), 1);
/// assert_eq!(rule.charge(|| now, b"bob", 2)?.tightest.standing.remaining(), 0);
/// let refused = rule.charge(|| now, b"bob", 1).unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_millis(500)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuleLimiter {
    counted: Counted,
}

#[derive(Clone, Debug)]
enum Counted {
    Unkeyed(Unkeyed),
    ByKey(Arc<Table>),
}

impl RuleLimiter {
    /// Returns a limiter that counts all requests together. Overrides, which are for keys, have no effect.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("burst", quota)])?);
    /// rule.charge(|| now, &[], 10)?;
    /// assert!(rule.charge(|| now, &[], 1).is_err()); // for any key
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unkeyed(now: Time, terms: Terms) -> Self {
        Self { counted: Counted::Unkeyed(Unkeyed::new(now, terms)) }
    }

    /// Returns a limiter that counts each key separately. Up to `max_keys` keys have a cell, and a request with such a
    /// key takes no lock. Other keys are counted in the *overflow*, under a short lock on a part of the table. No key
    /// gets more than its limits, with or without a cell. If at most 16 times `max_keys` keys are in use, almost no key
    /// is refused because of other keys: the overflow knows a key by 32 bits of a hash, so of 1,048,576 keys about 256
    /// share a count with another key. With more keys, some keys without a cell get less than their limits.
    ///
    /// In the overflow, a [`SlidingWindowLog`](crate::Strategy::SlidingWindowLog) stores six times for each key instead
    /// of the times of all requests. The count is exact for limits of up to six requests and for clients that send in
    /// bursts. A client that sends evenly can use about five sixths of its limit there. A reservation or charge in the
    /// overflow cannot be given back after a retune, or after its key lost its place to another key.
    ///
    /// The memory of all cells is reserved at the start: 9 bytes for each of `max_keys`, and 9 more for each word of
    /// their limits. A [`SlidingWindowCounter`](crate::Strategy::SlidingWindowCounter) has two words, a
    /// [`SlidingWindowLog`](crate::Strategy::SlidingWindowLog) has three plus one for each of its requests, and every
    /// other strategy has one. All cells together take not much more than 1 GiB: a larger `max_keys` is lowered, and
    /// [`KeyStats::capacity`] returns the lowered number.
    ///
    /// The overflow takes memory as keys without a cell arrive: for each of `max_keys`, at most 96 bytes plus 204 for
    /// each limit. A `SlidingWindowLog` counts as three limits. If any limit is a `SlidingWindowCounter`, whose
    /// requests count for two periods, the overflow takes twice as much. For one token bucket, this is 300 bytes a key,
    /// and 20 MB for 65,536 keys. The overflow never takes more than about 1 GiB. So with more than some million
    /// `max_keys`, it has room for fewer than 16 times as many keys.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(100_000).expect("not zero"));
    /// rule.charge(|| now, b"ann", 10)?;
    /// assert!(rule.charge(|| now, b"ann", 1).is_err());
    /// assert!(rule.charge(|| now, b"bob", 1).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keyed(now: Time, terms: Terms, max_keys: NonZeroUsize) -> Self {
        Self { counted: Counted::ByKey(Arc::new(Table::new(now, terms, max_keys))) }
    }

    /// Charges `cost` to every limit, or to none. A rule that does not count by key ignores `key`. A cost of 0 charges
    /// nothing and is never refused.
    ///
    /// `clock` is read once for the decision, and a second time only to give back charges after a lost race; see
    /// [`Limiter::refund`].
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let daily = Quota::new(Strategy::FixedWindow, 12, Duration::from_secs(86_400), None)?;
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("burst", quota), ("daily", daily)])?);
    /// let admitted = rule.charge(|| now, &[], 9)?;
    /// assert_eq!((admitted.tightest.limit, admitted.tightest.standing.remaining()), (0, 1));
    /// let later = now.saturating_add(Duration::from_secs(1));
    /// let refused = rule.charge(|| later, &[], 4).unwrap_err();
    /// assert_eq!((refused.limit, refused.standing.remaining()), (1, 3)); // the limit "burst" was not charged
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`], with the first limit in order that refuses.
    #[inline]
    pub fn charge(&self, clock: impl Fn() -> Time, key: &[u8], cost: u64) -> Result<RuleAdmitted, RuleRefused> {
        match &self.counted {
            Counted::ByKey(table) => match table.charge_at_once(key, cost, &clock) {
                Some(decided) => decided,
                None => table.charge(key, clock(), cost, &clock),
            },
            Counted::Unkeyed(unkeyed) => unkeyed.charge(clock, cost),
        }
    }

    /// Charges a cost that was already incurred, such as the bytes of a response. A limit without enough capacity is
    /// charged in advance, up to `latest`. All limits are charged or none. The returned `at` is the time at which all
    /// limits have enough capacity.
    ///
    /// The time `at` is not the time to send a request: each of several limits is charged for its own time. For
    /// requests that wait, use [`enqueue`](Self::enqueue). A `latest` before now counts as now.
    ///
    /// If a limit refuses a cost that an earlier limit has reserved, the reservation is given back. This can leave a
    /// trace in a window or a log; see [`Limiter::refund`]. A cost that a limit can never admit is refused before that.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::LeakyBucket, 10, Duration::from_secs(1), None)?;
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("paced", quota)])?);
    /// let latest = now.saturating_add(Duration::from_millis(150));
    /// assert_eq!(rule.charge_ahead(|| now, &[], 1, latest)?.at, now);
    /// assert_eq!(rule.charge_ahead(|| now, &[], 1, latest)?.at, now.saturating_add(Duration::from_millis(100)));
    /// assert!(rule.charge_ahead(|| now, &[], 1, latest).is_err()); // the request's turn would come after 200 ms
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`], with the first limit in order that can never admit the cost, or else the first that refuses.
    pub fn charge_ahead(
        &self,
        clock: impl Fn() -> Time,
        key: &[u8],
        cost: u64,
        latest: Time,
    ) -> Result<RuleChargedAhead, RuleRefused> {
        let now = clock();
        let latest = latest.max(now);
        let unkeyed = match &self.counted {
            Counted::ByKey(table) => {
                return table.charge_ahead(key, &Request { now, cost, when: When::By(latest) }, &clock);
            }
            Counted::Unkeyed(unkeyed) => unkeyed.in_force(),
        };
        let mut tightest = Tightest::none();
        let (at, charges) = charge_limiters_ahead(unkeyed.limiters(), now, clock, cost, latest, |standing| {
            tightest.consider(standing);
        })?;
        let charge = RuleCharge { of: unkeyed.several(charges) };
        Ok(RuleChargedAhead { at, charge, tightest: tightest.with_override(None) })
    }

    /// Charges a cost that was already incurred, for a caller that delays nothing. Each limit is charged for itself, so
    /// a small limit does not protect a large one. A bucket owes at most what flows in during twelve hours, and other
    /// strategies are charged until they are used up. The rest of the cost is not charged.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// let bucket = |requests, period| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(period), None);
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("second", bucket(10, 1)?), ("daily", bucket(1000, 86_400)?)])?);
    /// rule.charge_incurred(|| now, &[], 995);
    /// let refused = rule.charge(|| now, &[], 1).unwrap_err();
    /// assert_eq!((refused.limit, refused.retry_after()), (0, Some(Duration::from_millis(98_600))));
    /// let later = now.saturating_add(Duration::from_secs(100));
    /// let tightest = rule.peek(later, &[], 1)?; // the daily limit was charged the whole cost, too
    /// assert_eq!((tightest.limit, tightest.standing.remaining()), (1, 6));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn charge_incurred(&self, clock: impl Fn() -> Time, key: &[u8], cost: u64) {
        if cost == 0 {
            return;
        }
        let now = clock();
        match &self.counted {
            Counted::ByKey(table) => {
                // Never refused.
                let _ = table.charge_ahead(key, &Request { now, cost, when: When::Incurred }, &clock);
            }
            Counted::Unkeyed(unkeyed) => {
                unkeyed.in_force().limiters().iter().for_each(|limiter| limiter.incur(now, cost));
            }
        }
    }

    /// Adds a request to the queue of the rule or of the key if its turn comes by `latest`; without `latest`, always.
    /// The queue works as for [`Limiter::enqueue`], for all limits of the rule. At the request's turn, the caller calls
    /// [`charge`](Self::charge).
    ///
    /// ```
    /// use std::time::Duration;
    /// use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    ///
    /// let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// let paced = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?;
    /// let hourly = Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(3600), None)?;
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("paced", paced), ("hourly", hourly)])?);
    /// rule.charge(|| now, b"", 1)?;
    /// let latest = Some(now.saturating_add(Duration::from_secs(1)));
    /// let second = rule.enqueue(now, b"", 1, latest)?;
    /// let refused = rule.enqueue(now, b"", 1, latest).unwrap_err(); // the second request takes the last of the hour
    /// assert_eq!((refused.limit, refused.retry_after()), (1, Some(Duration::from_secs(1800))));
    /// # drop(second);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`], with the limit that has the longest wait.
    pub fn enqueue(&self, now: Time, key: &[u8], cost: u64, latest: Option<Time>) -> Result<Ticket, RuleRefused> {
        match &self.counted {
            Counted::ByKey(table) => table.enqueue(key, now, cost, latest),
            Counted::Unkeyed(unkeyed) => {
                let queue = unkeyed.queue();
                match queue.join(now, cost, latest, || unkeyed.in_force().forecast(now)) {
                    Ok(number) => Ok(Ticket::of(queue, number)),
                    Err(NotQueued::Refused(longest)) => Err(RuleRefused::queued(longest, cost, None)),
                    Err(NotQueued::Closed) => unreachable!("only the queue of a key is closed"),
                }
            }
        }
    }

    /// Returns the number of waiting requests with this key.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 2, Duration::from_secs(1), None)?;
    /// # let max_keys = std::num::NonZeroUsize::new(100).expect("not zero");
    /// let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, max_keys);
    /// let ticket = rule.enqueue(now, b"ann", 1, None)?;
    /// assert_eq!((rule.queue_len(b"ann"), rule.queue_len(b"bob")), (1, 0));
    /// # drop(ticket);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn queue_len(&self, key: &[u8]) -> usize {
        match &self.counted {
            Counted::ByKey(table) => table.queue_len(key),
            Counted::Unkeyed(unkeyed) => unkeyed.queue().len(),
        }
    }

    /// Returns the time at which a new request would be admitted, after all waiting requests.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?;
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("paced", quota)])?);
    /// assert_eq!(rule.opens(now, b"", 1)?, now);
    /// let (first, second) = (rule.enqueue(now, b"", 1, None)?, rule.enqueue(now, b"", 1, None)?);
    /// assert_eq!(rule.opens(now, b"", 1)?, now.saturating_add(Duration::from_millis(200)));
    /// # drop((first, second));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`], if the request would never be admitted.
    pub fn opens(&self, now: Time, key: &[u8], cost: u64) -> Result<Time, RuleRefused> {
        match &self.counted {
            Counted::ByKey(table) => table.opens(key, now, cost),
            Counted::Unkeyed(unkeyed) => {
                let opens = unkeyed.queue().opens(now, cost, || unkeyed.in_force().forecast(now));
                opens.map_err(|longest| RuleRefused::queued(longest, cost, None))
            }
        }
    }

    /// Returns the result that [`charge`](Self::charge) would return. Charges nothing and does not add the key to the
    /// table.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// assert_eq!(rule.peek(now, b"ann", 10)?.standing.remaining(), 10);
    /// assert!(rule.peek(now, b"ann", 11).is_err());
    /// assert_eq!(rule.keys().expect("it is keyed").tracked, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`], with the first limit in order that refuses.
    pub fn peek(&self, now: Time, key: &[u8], cost: u64) -> Result<Tightest, RuleRefused> {
        match &self.counted {
            Counted::ByKey(table) => table.peek(now, key, cost),
            Counted::Unkeyed(unkeyed) => {
                let unkeyed = unkeyed.in_force();
                peek_limiters(unkeyed.limiters(), now, cost)?;
                let mut tightest = Tightest::none();
                unkeyed.limiters().iter().for_each(|limiter| tightest.consider(limiter.peek(now)));
                Ok(tightest.with_override(None))
            }
        }
    }

    /// Gives back a charge of `key`; see [`Limiter::refund`]. Call this on the limiter that made the charge.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// let admitted = rule.charge(|| now, b"ann", 4)?;
    /// rule.refund(b"ann", admitted.charge, || now);
    /// assert_eq!(rule.peek(now, b"ann", 1)?.standing.remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund(&self, key: &[u8], charge: RuleCharge, clock: impl Fn() -> Time) {
        match (&self.counted, charge.of) {
            (Counted::ByKey(table), Charged::Key(charge)) => table.refund(key, &charge, &clock),
            (Counted::Unkeyed(unkeyed), Charged::One { charge, retunes }) => {
                unkeyed.refund(retunes, |limiters| limiters[0].refund(charge, clock));
            }
            (Counted::Unkeyed(unkeyed), Charged::Several { charges, retunes }) => {
                unkeyed.refund(retunes, |limiters| charges.refund(limiters, clock));
            }
            // Another limiter made this charge.
            (Counted::ByKey(_), _) | (_, Charged::Key(_)) => {}
        }
    }

    /// Gives back units of any earlier charges of `key` to every limit; see [`Limiter::credit`]. A key that is not
    /// known has its full credit.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// rule.charge(|| now, b"ann", 10)?;
    /// rule.credit(b"ann", 4, || now);
    /// assert_eq!(rule.peek(now, b"ann", 1)?.standing.remaining(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn credit(&self, key: &[u8], units: u64, clock: impl Fn() -> Time) {
        match &self.counted {
            Counted::ByKey(table) => table.credit(key, units, &clock),
            Counted::Unkeyed(unkeyed) => {
                unkeyed.in_force().limiters().iter().for_each(|limiter| limiter.credit(units, &clock));
                unkeyed.queue().wake_head();
            }
        }
    }

    /// Returns `key` to its full credit in every limit, as if it had not been charged. Reservations keep their times. A
    /// window with a reservation in a later window, or a log whose newest entry is a reservation, keeps its count. If a
    /// charge from before the reset is given back later, a newer charge becomes smaller, as after
    /// [`credit`](Self::credit).
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::SlidingWindowCounter, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("rate", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// rule.charge(|| now, b"ann", 10)?;
    /// rule.reset(b"ann", || now);
    /// assert_eq!(rule.peek(now, b"ann", 1)?.standing.remaining(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset(&self, key: &[u8], clock: impl Fn() -> Time) {
        self.credit(key, EVERYTHING, clock);
    }

    /// Puts other terms in force and keeps the usage, while other threads continue to decide; see [`Limiter::retune`].
    /// `max_keys` is `None` for a rule that counts all requests together.
    ///
    /// Limits are matched by name. New limits start empty, removed limits are forgotten, and equal terms change
    /// nothing. Keys stay. With a smaller capacity, no new key enters until enough keys are idle. The duration of the
    /// change is proportional to the number of keys. Meanwhile, requests with known keys do not wait. A table of more
    /// than 32,768 keys keeps only their words: if strategies or periods differ, a key may wait for one period. A table
    /// of up to 4,096 keys also records each charge for sixteen periods, as a limiter does. A change between a keyed
    /// and an unkeyed rule keeps nothing: the result starts empty, and older handles keep the old terms.
    ///
    /// After any other change, every older handle reaches the new terms, in one step that takes a lock for a moment. So
    /// replace handles that decide often.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let per_hour = |requests| Quota::new(Strategy::FixedWindow, requests, Duration::from_secs(3600), None);
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("hourly", per_hour(10)?)])?);
    /// rule.charge(|| now, &[], 5)?;
    /// let rule = rule.retune(|| now, Terms::new([("new", per_hour(100)?), ("hourly", per_hour(4)?)])?, None);
    /// assert!(rule.charge(|| now, &[], 1).is_err()); // five requests were counted
    /// let rule = rule.retune(|| now, Terms::new([("hourly", per_hour(8)?)])?, None);
    /// assert_eq!(rule.peek(now, &[], 1)?.standing.remaining(), 3); // the five requests are still counted
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "the returned limiter decides faster than the old one, which keeps its terms if the key changed"]
    pub fn retune(&self, clock: impl Fn() -> Time, terms: Terms, max_keys: Option<NonZeroUsize>) -> Self {
        match (&self.counted, max_keys) {
            (Counted::ByKey(table), Some(max_keys)) => {
                Self { counted: Counted::ByKey(table.retune(&clock, terms, max_keys)) }
            }
            (Counted::Unkeyed(unkeyed), None) => Self { counted: Counted::Unkeyed(unkeyed.retune(&clock, terms)) },
            (Counted::Unkeyed(_), Some(max_keys)) => Self::keyed(clock(), terms, max_keys),
            (Counted::ByKey(_), None) => Self::unkeyed(clock(), terms),
        }
    }

    /// Measures how near keys are to their limits, if the rule counts by key. Reads at most `most` cells, different
    /// cells each time, and no keys in the overflow. Charges nothing and delays no decision.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// rule.charge(|| now, b"ann", 10)?;
    /// rule.charge(|| now, b"bob", 1)?;
    /// let survey = rule.survey(now, 4096).expect("it is keyed");
    /// assert_eq!((survey.exhausted, survey.keys), (1, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn survey(&self, now: Time, most: usize) -> Option<KeySurvey> {
        match &self.counted {
            Counted::ByKey(table) => Some(table.survey(now, most)),
            Counted::Unkeyed(_) => None,
        }
    }

    /// Returns the remaining requests and the size of the limit with the smallest part of its requests left, as
    /// [`KeySurvey::remaining`] and [`KeySurvey::of`], if the rule does not count by key. Charges nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    ///
    /// let rule = RuleLimiter::unkeyed(now, Terms::new([("burst", quota)])?);
    /// rule.charge(|| now, &[], 4)?;
    /// assert_eq!(rule.headroom(now), Some((6, 10)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn headroom(&self, now: Time) -> Option<(u64, u64)> {
        match &self.counted {
            Counted::ByKey(_) => None,
            Counted::Unkeyed(unkeyed) => {
                Some(least_of(unkeyed.in_force().limiters().iter().map(|limiter| limiter.peek(now))))
            }
        }
    }

    /// Returns how full the table of keys is, if the rule counts by key.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
    /// # let now = Time::from_nanos(0);
    /// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    ///
    /// rule.charge(|| now, b"ann", 1)?;
    /// let keys = rule.keys().expect("it is keyed");
    /// assert_eq!((keys.tracked, keys.capacity), (1, 1000));
    /// assert!(RuleLimiter::unkeyed(now, Terms::new([("burst", quota)])?).keys().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keys(&self) -> Option<KeyStats> {
        match &self.counted {
            Counted::ByKey(table) => Some(table.stats()),
            Counted::Unkeyed(_) => None,
        }
    }
}
