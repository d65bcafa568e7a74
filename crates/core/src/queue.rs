//! The FIFO queue of requests that wait for a limit.
//!
//! A waiting request has no charge: all its limits are charged together when it leaves the head of the queue. So a
//! request that gives up frees only its position, and the requests behind it move forward. A [`Forecast`] predicts the
//! wait of a new request: it admits all waiting requests first.
//!
//! The queue has no timer and no thread. The owner of a request calls [`Ticket::position`] and passes a waker. At the
//! head, the refusal of the limit contains the time of the next attempt. A waiting request is *called* when the queue
//! wakes its waker because its turn has come.

mod order;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{collections::HashMap, sync::Arc, task::Waker, time::Duration};

use self::order::{EntryState, GRACE, Order};
use crate::{
    Time,
    forecast::{Forecast, Longest},
    sync::{AtomicUsize, Mutex, Ordering, lock},
};

/// The interval at which requests that are not near the head check whether the head comes for its turn. In between, they
/// sleep until they are called.
const PATROL: Duration = Duration::from_millis(250);

/// The requests that wait for one limit, or for one key of a rule.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    order: Mutex<Order>,
    waiting: AtomicUsize,
}

/// The queues of a rule's keys.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_key: Mutex<HashMap<u64, Arc<Queue>>>,
    waiting: AtomicUsize,
}

/// A position in the queue of a limit. Dropping the ticket leaves the queue.
///
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time, Position};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
/// limiter.charge(now, 1)?;
/// let second = now.saturating_add(Duration::from_secs(1));
/// let ticket = limiter.enqueue(now, 1, Some(second))?;
/// assert_eq!(ticket.position(now, Waker::noop()), Position::Head); // no request is ahead: only the limit decides
/// let wait = limiter.charge(now, 1).unwrap_err().retry_after().expect("it fits");
/// assert!(limiter.charge(now.saturating_add(wait), 1).is_ok());
/// drop(ticket); // the next request is at the head
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping the ticket leaves the queue"]
pub struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    /// The queues of the table and the key's fingerprint, if this is the queue of a key.
    kept: Option<(Arc<Queues>, u64)>,
}

/// The position of a request, which shows whether it is the request's turn.
///
/// ```
/// # use std::task::Waker;
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time, Position};
/// # let now = Time::from_nanos(1_700_000_000_000_000_000);
/// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
/// let first = limiter.enqueue(now, 1, None)?;
/// let second = limiter.enqueue(now, 1, None)?;
/// assert!(matches!(second.position(now, Waker::noop()), Position::Behind(_)));
/// drop(first);
/// assert_eq!(second.position(now, Waker::noop()), Position::Head);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It is the request's turn: its limits decide whether it is admitted.
    Head,
    /// Other requests are ahead. The request is woken at its turn. It should also check again at this time, in case the
    /// requests ahead never come.
    Behind(Time),
    /// After a change of the limit, the request's turn would come too late.
    Late,
}

/// The reason why a request cannot wait.
#[derive(Debug)]
pub(crate) enum NotQueued {
    Refused(Longest),
    /// The queue no longer belongs to the key.
    Closed,
}

impl Queue {
    /// Returns the number of waiting requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes the last position for a request, if its turn comes by `latest`. `forecast` copies the limits in their
    /// current state.
    pub(crate) fn join(
        &self,
        now: Time,
        cost: u64,
        latest: Option<Time>,
        forecast: impl FnOnce() -> Forecast,
    ) -> Result<u64, NotQueued> {
        let mut called = Vec::new();
        let mut order = lock(&self.order);
        if order.closed {
            return Err(NotQueued::Closed);
        }
        order.first(now, &mut called);
        let tail = order.forecast(now, forecast);
        let due = tail.opens(now, cost);
        let is_in_time = |due: Time| latest.is_none_or(|latest| due <= latest && !tail.overflows(now, cost));
        let due = due.filter(|due| is_in_time(*due)).inspect(|due| tail.admit(*due, cost));
        // The turn of a request that waits forever can be later than a limit can represent.
        let joined = match due.or_else(|| latest.is_none().then(|| tail.end(cost)).flatten()) {
            Some(due) => {
                let number = order.push(cost, latest, due);
                self.waiting.store(order.len(), Ordering::Relaxed);
                Ok(number)
            }
            None => Err(NotQueued::Refused(tail.longest(now, cost))),
        };
        drop(order);
        called.into_iter().for_each(Waker::wake);
        joined
    }

    /// Returns the time at which a new request would be admitted, after all waiting requests. The error contains the
    /// limit that would refuse it.
    pub(crate) fn opens(&self, now: Time, cost: u64, forecast: impl FnOnce() -> Forecast) -> Result<Time, Longest> {
        lock(&self.order).forecast(now, forecast).newcomer(now, cost)
    }

    fn position(&self, number: u64, now: Time, waker: Option<&Waker>) -> Position {
        let mut called = Vec::new();
        let mut order = lock(&self.order);
        let (entry_state, entry) = order.get_mut(number);
        let replaced = match &mut entry.waker {
            Some(known) if waker.is_none_or(|waker| known.will_wake(waker)) => None,
            known => std::mem::replace(known, waker.cloned()),
        };
        let position = if entry_state == EntryState::Late {
            Position::Late
        } else {
            entry.called = None;
            entry.due = entry.due.max(now);
            let own = entry.due;
            match order.first(now, &mut called) {
                Some((first, until)) if first < number => {
                    order.set_state(number, EntryState::Present);
                    let look = own.saturating_add(GRACE).max(now.saturating_add(PATROL));
                    Position::Behind(if order.is_near(number) { until } else { until.max(look) })
                }
                _ => {
                    order.get_mut(number).1.called = None;
                    Position::Head
                }
            }
        };
        drop(order);
        called.into_iter().for_each(Waker::wake);
        // A waker may own another ticket, whose drop takes the lock.
        drop(replaced);
        position
    }

    /// Changes the time of the next attempt, and the state if it is given.
    fn set(&self, number: u64, due: Time, entry_state: EntryState) {
        let mut order = lock(&self.order);
        let (before, entry) = order.get_mut(number);
        if before == EntryState::Late {
            return;
        }
        entry.due = due;
        order.set_state(number, entry_state);
        let steps_aside = before == EntryState::Present && entry_state == EntryState::Aside;
        let called = if steps_aside { order.call_first() } else { None };
        drop(order);
        called.into_iter().for_each(Waker::wake);
    }

    /// Calls the head again, because the limits can admit more or less than before.
    pub(crate) fn wake_head(&self) {
        if self.len() > 0 {
            let mut order = lock(&self.order);
            order.tail = None;
            let called = order.call_first();
            drop(order);
            called.into_iter().for_each(Waker::wake);
        }
    }

    /// Computes all turns again after a change of the limits. Requests that cannot be admitted in time are refused
    /// immediately.
    pub(crate) fn reassess(&self, now: Time, forecast: impl FnOnce() -> Forecast) {
        if self.len() == 0 {
            return;
        }
        let mut called = Vec::new();
        let mut order = lock(&self.order);
        order.reassess(now, forecast(), &mut called);
        called.extend(order.call_first());
        drop(order);
        called.into_iter().for_each(Waker::wake);
    }

    /// Removes a request. Returns true if the queue is empty.
    fn leave(&self, number: u64, closes: bool) -> bool {
        let mut order = lock(&self.order);
        let (entry, called) = order.remove(number);
        let waiting = order.len();
        self.waiting.store(waiting, Ordering::Relaxed);
        order.closed = closes && waiting == 0;
        drop(order);
        called.into_iter().for_each(Waker::wake);
        drop(entry); // without the lock, as in `position`
        waiting == 0
    }

    fn close_if_empty(&self) -> bool {
        let mut order = lock(&self.order);
        order.closed = order.len() == 0;
        order.closed
    }
}

impl Queues {
    /// Returns the number of waiting requests for this key.
    pub(crate) fn len(&self, fingerprint: impl FnOnce() -> u64) -> usize {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let fingerprint = fingerprint();
        lock(&self.by_key).get(&fingerprint).map_or(0, |queue| queue.len())
    }

    pub(crate) fn find(&self, fingerprint: u64) -> Option<Arc<Queue>> {
        if self.waiting.load(Ordering::Relaxed) == 0 { None } else { lock(&self.by_key).get(&fingerprint).cloned() }
    }

    /// Returns the queues of all keys with waiting requests.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Queue>)> {
        lock(&self.by_key).iter().map(|(fingerprint, queue)| (*fingerprint, Arc::clone(queue))).collect()
    }

    /// [`Queue::join`] for the queue of a key.
    pub(crate) fn join(
        self: &Arc<Self>,
        fingerprint: u64,
        now: Time,
        cost: u64,
        latest: Option<Time>,
        forecast: impl Fn() -> Forecast,
    ) -> Result<Ticket, Longest> {
        loop {
            let queue = Arc::clone(lock(&self.by_key).entry(fingerprint).or_default());
            match queue.join(now, cost, latest, &forecast) {
                Ok(number) => {
                    self.waiting.fetch_add(1, Ordering::Relaxed);
                    return Ok(Ticket { queue, number, kept: Some((Arc::clone(self), fingerprint)) });
                }
                Err(NotQueued::Closed) => self.forget(fingerprint, &queue),
                Err(NotQueued::Refused(longest)) => {
                    if queue.close_if_empty() {
                        self.forget(fingerprint, &queue);
                    }
                    return Err(longest);
                }
            }
        }
    }

    fn forget(&self, fingerprint: u64, queue: &Arc<Queue>) {
        let mut by_key = lock(&self.by_key);
        if by_key.get(&fingerprint).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            by_key.remove(&fingerprint);
        }
    }
}

impl Ticket {
    pub(crate) fn of(queue: &Arc<Queue>, number: u64) -> Self {
        Self { queue: Arc::clone(queue), number, kept: None }
    }

    /// Returns the request's position. `waker` is woken after each possible change of the position, until the ticket is
    /// dropped.
    ///
    /// ```
    /// # use std::task::Waker;
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time, Position};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let ticket = limiter.enqueue(now, 1, None)?;
    /// assert_eq!(ticket.position(now, Waker::noop()), Position::Head);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn position(&self, now: Time, waker: &Waker) -> Position {
        self.queue.position(self.number, now, Some(waker))
    }

    /// Returns true if the request is at the head. Use this for a request that checks once and does not wait yet.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let (first, second) = (limiter.enqueue(now, 1, None)?, limiter.enqueue(now, 1, None)?);
    /// assert!(first.is_head(now) && !second.is_head(now));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_head(&self, now: Time) -> bool {
        self.queue.position(self.number, now, None) == Position::Head
    }

    /// Keeps the request at the head after its limits refused it. The request tries again at this time.
    ///
    /// ```
    /// # use std::task::Waker;
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time, Position};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// limiter.charge(now, 1)?;
    /// let ticket = limiter.enqueue(now, 1, None)?;
    /// if let (Position::Head, Err(refused)) = (ticket.position(now, Waker::noop()), limiter.charge(now, 1)) {
    ///     ticket.retry_at(now.saturating_add(refused.retry_after().expect("it fits")));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_at(&self, at: Time) {
        self.queue.set(self.number, at, EntryState::Present);
    }

    /// Lets other requests overtake this request, because it waits for another limit until this time. The request keeps
    /// its position, but reserves nothing.
    ///
    /// ```
    /// # use std::task::Waker;
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time, Position};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let (first, second) = (limiter.enqueue(now, 1, None)?, limiter.enqueue(now, 1, None)?);
    /// first.step_aside(now.saturating_add(Duration::from_secs(1)));
    /// assert_eq!(second.position(now, Waker::noop()), Position::Head);
    /// assert_eq!(first.position(now, Waker::noop()), Position::Head);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn step_aside(&self, until: Time) {
        self.queue.set(self.number, until, EntryState::Aside);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_empty = self.queue.leave(self.number, self.kept.is_some());
        if let Some((queues, fingerprint)) = &self.kept {
            queues.waiting.fetch_sub(1, Ordering::Relaxed);
            if is_empty {
                queues.forget(*fingerprint, &self.queue);
            }
        }
    }
}
