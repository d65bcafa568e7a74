//! Requests that wait for a limit, first come, first served.
//!
//! A queue holds no charge: the request at its head is charged when it goes, by all its limits at once. So a request that
//! leaves gives back its place and nothing else, and those behind it move forward. A newcomer's wait follows from a
//! [`Forecast`], which lets all that wait go before it.
//!
//! The queue has no timer and no thread. Its owner asks for a request's [`Position`] and brings a waker; the head learns from the
//! limit when to try again.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::Time;
use crate::forecast::{Forecast, Longest};
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};

/// How long a request that was called may take to come before others pass it. If it comes later it is first again, so a task
/// that was held up loses its turn and not its place.
const GRACE: Duration = Duration::from_millis(2);

/// How many requests behind the head watch whether it comes for its turn. The others sleep until they are called, but for a look
/// at this interval.
const WATCH: usize = 4;
const PATROL: Duration = Duration::from_millis(250);

/// How many are called together when the head did not come: callers who gave up and still hold their tickets come in crowds.
const ROLL: usize = 64;

/// Called at a moment that the caller did not know.
const UNKNOWN: Time = Time::from_nanos(0);

/// The requests that wait for one limit, or for one key of a rule.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// By number, in order of coming.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// The cost of all that count.
    total: u64,
    /// The limits once all that wait are gone; none if it has to be worked out again.
    tail: Option<Forecast>,
    /// Of a key that has no queue any more: look for its queue again.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    cost: u64,
    latest: Option<Time>,
    /// When it tries to go, or is expected to.
    due: Time,
    /// When it was called, until it comes.
    called: Option<Time>,
    waker: Option<Waker>,
    stands: Stands,
}

/// How a request stands in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    /// In order.
    Present,
    /// It waits for another limit, and lets others pass.
    Aside,
    /// It did not come for its turn: it counts again when it does.
    Passed,
    /// It cannot go in time any more.
    Late,
}

/// The queues of a rule's keys.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    by_key: Mutex<HashMap<u64, Arc<Queue>>>,
    waiting: AtomicUsize,
}

/// A place in the queue of a limit. Dropping it leaves the queue.
///
/// ```
/// use std::task::Waker;
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time, Position};
///
/// let now = Time::from_nanos(1_700_000_000_000_000_000);
/// let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
/// limiter.check(now, 1)?;
/// let second = now.saturating_add(Duration::from_secs(1));
/// let ticket = limiter.enqueue(now, 1, Some(second))?;
/// assert_eq!(ticket.position(now, Waker::noop()), Position::Head); // no request is ahead: the limit says when
/// let wait = limiter.check(now, 1).unwrap_err().retry_after().expect("it fits");
/// assert!(limiter.check(now.saturating_add(wait), 1).is_ok());
/// drop(ticket); // the next request is at the head
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    /// Of a key: where the queue is kept, and the key's mark.
    kept: Option<(Arc<Queues>, u64)>,
}

/// Whether it is a request's turn.
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
    /// It may ask its limits: they say whether it goes.
    Head,
    /// Others are before it. It is woken when it is its turn; it should look again at this time, in case they never come.
    Behind(Time),
    /// A change of the limit made its wait longer than it can wait.
    Late,
}

/// Why a request may not wait.
#[derive(Debug)]
pub(crate) enum NoPlace {
    Refused(Longest),
    /// The queue is not the key's any more.
    Closed,
}

impl Entry {
    fn is_present(&self) -> bool {
        self.stands == Stands::Present
    }

    /// Whether those behind it have to reckon with it.
    fn counts(&self) -> bool {
        matches!(self.stands, Stands::Present | Stands::Aside)
    }
}

impl State {
    /// Calls the first that is there. To be woken once the lock is released.
    fn call_first(&mut self) -> Option<Waker> {
        let first = self.entries.values_mut().find(|entry| entry.is_present())?;
        first.called = Some(UNKNOWN);
        first.waker.clone()
    }

    /// Passes those that were called and did not come. The number of the first that is there, and until when it has to come.
    fn first(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<(u64, Time)> {
        let (mut passed, mut first, mut calls) = (0, None, 0);
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_present()) {
            if first.is_some() && calls == 0 {
                break;
            }
            // One that has no waker cannot be called.
            if first.is_none() && entry.waker.is_none() && entry.due.saturating_add(GRACE) <= now {
                entry.called = Some(entry.due);
            }
            if let Some(at) = &mut entry.called {
                *at = if *at == UNKNOWN { now } else { *at };
                let until = at.saturating_add(GRACE);
                if until <= now {
                    entry.stands = Stands::Passed;
                    passed += entry.cost;
                } else {
                    first = first.or(Some((*number, until)));
                }
                continue;
            }
            if first.is_none() {
                let until = entry.due.saturating_add(GRACE);
                // The one behind those that were passed is the head now. One that is overdue may not be the only one.
                calls = if until <= now { ROLL } else { usize::from(passed > 0) };
                first = Some((*number, if calls > 0 { now.saturating_add(GRACE) } else { until }));
            }
            if calls > 0 {
                calls -= 1;
                entry.called = Some(now);
                wakers.extend(entry.waker.clone());
            }
        }
        self.total -= passed;
        self.tail.take_if(|_| passed > 0);
        first
    }

    /// Whether fewer than [`WATCH`] are before it.
    fn is_near(&self, number: u64) -> bool {
        self.entries.range(..number).filter(|(_, entry)| entry.is_present()).take(WATCH).count() < WATCH
    }

    /// When a newcomer of this cost would go.
    fn forecast(&mut self, now: Time, forecast: impl FnOnce() -> Forecast) -> &mut Forecast {
        let (entries, total) = (&self.entries, self.total);
        // While no request waits, they are charged without asking here.
        self.tail.take_if(|_| total == 0);
        self.tail.get_or_insert_with(|| {
            let mut tail = forecast();
            if tail.is_additive() {
                tail.add(total);
                return tail;
            }
            for entry in entries.values().filter(|entry| entry.counts()) {
                if let Some(at) = tail.opens(now, entry.cost) {
                    tail.admit(at, entry.cost);
                }
            }
            tail
        })
    }

    /// In order again, to be called when it is first.
    fn come_back(&mut self, number: u64) {
        let entry = self.entries.get_mut(&number).expect("a ticket has its entry");
        if !entry.counts() {
            self.total += entry.cost;
            self.tail = None;
        }
        entry.stands = Stands::Present;
    }

    fn remove(&mut self, number: u64) -> Option<Waker> {
        let entry = self.entries.remove(&number)?;
        if entry.counts() {
            self.total -= entry.cost;
        }
        self.tail = None;
        let was_first = entry.is_present()
            && self.entries.iter().find(|(_, entry)| entry.is_present()).is_none_or(|(first, _)| *first > number);
        if was_first { self.call_first() } else { None }
    }
}

impl Queue {
    /// How many requests wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes the last place, if its turn comes by `latest`. `forecast` copies the limits as they are.
    pub(crate) fn join(
        &self,
        now: Time,
        cost: u64,
        latest: Option<Time>,
        forecast: impl FnOnce() -> Forecast,
    ) -> Result<u64, NoPlace> {
        let mut called = Vec::new();
        let mut state = lock(&self.state);
        if state.closed {
            return Err(NoPlace::Closed);
        }
        state.first(now, &mut called);
        let tail = state.forecast(now, forecast);
        let due = tail.opens(now, cost);
        let is_in_time = |due: Time| latest.is_none_or(|latest| due <= latest && !tail.overflows(now, cost));
        let joined = match due.filter(|due| is_in_time(*due)) {
            Some(due) => {
                tail.admit(due, cost);
                let number = state.next;
                state.next += 1;
                state.total += cost;
                let entry = Entry { cost, latest, due, called: None, waker: None, stands: Stands::Present };
                state.entries.insert(number, entry);
                self.waiting.store(state.entries.len(), Ordering::Relaxed);
                Ok(number)
            }
            None => Err(NoPlace::Refused(tail.longest(now, cost))),
        };
        drop(state);
        called.into_iter().for_each(Waker::wake);
        joined
    }

    /// When a newcomer would go, behind all that wait; an error is what would refuse it.
    pub(crate) fn opens(&self, now: Time, cost: u64, forecast: impl FnOnce() -> Forecast) -> Result<Time, Longest> {
        lock(&self.state).forecast(now, forecast).newcomer(now, cost)
    }

    fn position(&self, number: u64, now: Time, waker: Option<&Waker>) -> Position {
        let mut called = Vec::new();
        let mut state = lock(&self.state);
        let entry = state.entries.get_mut(&number).expect("a ticket has its entry");
        match &mut entry.waker {
            Some(known) if waker.is_none_or(|waker| known.will_wake(waker)) => {}
            known => *known = waker.cloned(),
        }
        let position = if entry.stands == Stands::Late {
            Position::Late
        } else {
            entry.called = None;
            entry.due = entry.due.max(now);
            let own = entry.due;
            match state.first(now, &mut called) {
                Some((first, until)) if first < number => {
                    state.come_back(number);
                    let look = own.saturating_add(GRACE).max(now.saturating_add(PATROL));
                    Position::Behind(if state.is_near(number) { until } else { until.max(look) })
                }
                _ => {
                    state.entries.get_mut(&number).expect("looked at above").called = None;
                    Position::Head
                }
            }
        };
        drop(state);
        called.into_iter().for_each(Waker::wake);
        position
    }

    fn stand(&self, number: u64, stands: Stands, due: Time) {
        let mut state = lock(&self.state);
        let entry = state.entries.get_mut(&number).expect("a ticket has its entry");
        if entry.stands == Stands::Late {
            return;
        }
        let steps_aside = entry.is_present() && stands == Stands::Aside;
        entry.due = due;
        state.come_back(number);
        if stands == Stands::Aside {
            state.entries.get_mut(&number).expect("looked at above").stands = Stands::Aside;
        }
        let called = if steps_aside { state.call_first() } else { None };
        drop(state);
        called.into_iter().for_each(Waker::wake);
    }

    /// What the limits can admit has grown, or shrunk: the head looks again.
    pub(crate) fn wake_head(&self) {
        if self.len() > 0 {
            let mut state = lock(&self.state);
            state.tail = None;
            let called = state.call_first();
            drop(state);
            called.into_iter().for_each(Waker::wake);
        }
    }

    /// The limits are others: those who cannot go in time any more learn so at once.
    pub(crate) fn reassess(&self, now: Time, forecast: impl FnOnce() -> Forecast) {
        if self.len() == 0 {
            return;
        }
        let mut called = Vec::new();
        let mut state = lock(&self.state);
        let mut tail = forecast();
        let mut late = 0;
        for entry in state.entries.values_mut().filter(|entry| entry.counts()) {
            match tail.opens(now, entry.cost) {
                Some(due) if entry.latest.is_none_or(|latest| due <= latest) => {
                    tail.admit(due, entry.cost);
                    entry.due = due;
                }
                _ => {
                    entry.stands = Stands::Late;
                    late += entry.cost;
                    called.extend(entry.waker.clone());
                }
            }
        }
        state.total -= late;
        state.tail = Some(tail);
        called.extend(state.call_first());
        drop(state);
        called.into_iter().for_each(Waker::wake);
    }

    /// Returns whether the queue is empty.
    fn leave(&self, number: u64, closes: bool) -> bool {
        let mut state = lock(&self.state);
        let called = state.remove(number);
        let waiting = state.entries.len();
        self.waiting.store(waiting, Ordering::Relaxed);
        state.closed = closes && waiting == 0;
        drop(state);
        called.into_iter().for_each(Waker::wake);
        waiting == 0
    }

    fn close_if_empty(&self) -> bool {
        let mut state = lock(&self.state);
        state.closed = state.entries.is_empty();
        state.closed
    }
}

impl Queues {
    /// How many requests wait for this key.
    pub(crate) fn len(&self, mark: u64) -> usize {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        lock(&self.by_key).get(&mark).map_or(0, |queue| queue.len())
    }

    pub(crate) fn find(&self, mark: u64) -> Option<Arc<Queue>> {
        if self.waiting.load(Ordering::Relaxed) == 0 { None } else { lock(&self.by_key).get(&mark).cloned() }
    }

    /// All keys that requests wait for.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Queue>)> {
        lock(&self.by_key).iter().map(|(mark, queue)| (*mark, Arc::clone(queue))).collect()
    }

    /// As [`Queue::join`], in the queue of a key.
    pub(crate) fn join(
        self: &Arc<Self>,
        mark: u64,
        now: Time,
        cost: u64,
        latest: Option<Time>,
        forecast: impl Fn() -> Forecast,
    ) -> Result<Ticket, Longest> {
        loop {
            let queue = Arc::clone(lock(&self.by_key).entry(mark).or_default());
            match queue.join(now, cost, latest, &forecast) {
                Ok(number) => {
                    self.waiting.fetch_add(1, Ordering::Relaxed);
                    return Ok(Ticket { queue, number, kept: Some((Arc::clone(self), mark)) });
                }
                Err(NoPlace::Closed) => self.forget(mark, &queue),
                Err(NoPlace::Refused(longest)) => {
                    if queue.close_if_empty() {
                        self.forget(mark, &queue);
                    }
                    return Err(longest);
                }
            }
        }
    }

    fn forget(&self, mark: u64, queue: &Arc<Queue>) {
        let mut by_key = lock(&self.by_key);
        if by_key.get(&mark).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            by_key.remove(&mark);
        }
    }
}

impl Ticket {
    pub(crate) fn of(queue: &Arc<Queue>, number: u64) -> Self {
        Self { queue: Arc::clone(queue), number, kept: None }
    }

    /// Whether it is this request's turn. `waker` is woken when it may be, until the ticket is dropped.
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

    /// Whether it is at the head, for a request that looks once and does not wait yet.
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

    /// The limits did not let it go: it stays at the head, and tries again at this time.
    ///
    /// ```
    /// # use std::task::Waker;
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time, Position};
    /// # let now = Time::from_nanos(1_700_000_000_000_000_000);
    /// # let limiter = Limiter::new(now, Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// limiter.check(now, 1)?;
    /// let ticket = limiter.enqueue(now, 1, None)?;
    /// if let (Position::Head, Err(refused)) = (ticket.position(now, Waker::noop()), limiter.check(now, 1)) {
    ///     ticket.retry_at(now.saturating_add(refused.retry_after().expect("it fits")));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_at(&self, at: Time) {
        self.queue.stand(self.number, Stands::Present, at);
    }

    /// It waits for another limit until this time: those behind may pass, and it keeps its place.
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
        self.queue.stand(self.number, Stands::Aside, until);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_empty = self.queue.leave(self.number, self.kept.is_some());
        if let Some((queues, mark)) = &self.kept {
            queues.waiting.fetch_sub(1, Ordering::Relaxed);
            if is_empty {
                queues.forget(*mark, &self.queue);
            }
        }
    }
}
