//! The FIFO queue of requests that wait for a limit.
//!
//! A waiting request has no charge: all its limits are charged together when it leaves the head of the queue. So a
//! request that gives up frees only its position, and the requests behind it move forward. A [`Forecast`] predicts the
//! wait of a new request: it admits all waiting requests first.
//!
//! The queue has no timer and no thread. The owner of a request calls [`Ticket::position`] and passes a waker. At the
//! head, the refusal of the limit contains the time of the next attempt. A waiting request is *called* when the queue
//! wakes its waker because its turn has come.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use crate::{
    Time,
    forecast::{Forecast, Longest},
    sync::{AtomicUsize, Mutex, Ordering, lock},
};

/// The time that a called request has before other requests overtake it. If the request comes later, it is first again:
/// a delayed task loses its turn, not its position.
const GRACE: Duration = Duration::from_millis(2);

/// The number of requests behind the head that check whether the head comes for its turn.
const WATCH: usize = 4;

/// The interval of this check for all other requests. In between, they sleep until they are called.
const PATROL: Duration = Duration::from_millis(250);

/// The number of requests that are called together if the head did not come: often many callers give up at the same
/// time and still have their tickets.
const ROLL: usize = 64;

/// The time of a call until the next check of the queue, which stores the real time.
const UNKNOWN: Time = Time::from_nanos(0);

/// The requests that wait for one limit, or for one key of a rule.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    waiting: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    /// The waiting requests by number, in order of arrival.
    entries: BTreeMap<u64, Entry>,
    next: u64,
    /// The cost of all requests that later requests must wait for.
    total: u64,
    /// The forecast after the admission of all waiting requests. None if it must be computed again.
    tail: Option<Forecast>,
    /// Whether the key has another queue, which must be looked up.
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    cost: u64,
    latest: Option<Time>,
    /// The time at which the request tries, or is expected to try, to be admitted.
    due: Time,
    /// The time at which the request was called for its turn, until it comes.
    called: Option<Time>,
    waker: Option<Waker>,
    entry_state: EntryState,
}

/// The state of a request in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// The request waits in order.
    Present,
    /// The request waits for another limit, and other requests overtake it.
    Aside,
    /// The request did not come for its turn. Later requests wait for it again when it comes.
    Passed,
    /// The request cannot be admitted in time.
    Late,
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
pub struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    /// The queues of the table and the key's mark, if this is the queue of a key.
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
pub(crate) enum NoPlace {
    Refused(Longest),
    /// The queue no longer belongs to the key.
    Closed,
}

impl Entry {
    fn is_present(&self) -> bool {
        self.entry_state == EntryState::Present
    }

    /// Returns true if later requests must wait for this request.
    fn counts(&self) -> bool {
        matches!(self.entry_state, EntryState::Present | EntryState::Aside)
    }
}

impl State {
    /// Calls the first request that is present. The caller wakes the waker after it released the lock.
    fn call_first(&mut self) -> Option<Waker> {
        let first = self.entries.values_mut().find(|entry| entry.is_present())?;
        first.called = Some(UNKNOWN);
        first.waker.clone()
    }

    /// Lets others overtake requests that were called and did not come. Returns the number of the first present
    /// request, and the time until which it must come.
    fn first(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<(u64, Time)> {
        let (mut passed, mut first, mut calls) = (0, None, 0);
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| entry.is_present()) {
            if first.is_some() && calls == 0 {
                break;
            }
            // A request without a waker cannot be called.
            if first.is_none() && entry.waker.is_none() && entry.due.saturating_add(GRACE) <= now {
                entry.called = Some(entry.due);
            }
            if let Some(at) = &mut entry.called {
                *at = if *at == UNKNOWN { now } else { *at };
                let until = at.saturating_add(GRACE);
                if until <= now {
                    entry.entry_state = EntryState::Passed;
                    passed += entry.cost;
                } else {
                    first = first.or(Some((*number, until)));
                }
                continue;
            }
            if first.is_none() {
                let until = entry.due.saturating_add(GRACE);
                // The request behind the overtaken requests is the new head. If it is overdue, later requests can be
                // overdue, too.
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

    /// Returns true if fewer than [`WATCH`] present requests are ahead of this request.
    fn is_near(&self, number: u64) -> bool {
        self.entries.range(..number).filter(|(_, entry)| entry.is_present()).take(WATCH).count() < WATCH
    }

    /// Returns the forecast for a new request.
    fn forecast(&mut self, now: Time, forecast: impl FnOnce() -> Forecast) -> &mut Forecast {
        let (entries, total) = (&self.entries, self.total);
        // Without waiting requests, an old forecast is invalid, because other requests were charged since.
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

    /// Puts a request back in order. The queue calls it when it is first.
    fn come_back(&mut self, number: u64) {
        let entry = self.entries.get_mut(&number).expect("a ticket has its entry");
        if !entry.counts() {
            self.total += entry.cost;
            self.tail = None;
        }
        entry.entry_state = EntryState::Present;
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
                let entry = Entry { cost, latest, due, called: None, waker: None, entry_state: EntryState::Present };
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

    /// Returns the time at which a new request would be admitted, after all waiting requests. The error contains the
    /// limit that would refuse it.
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
        let position = if entry.entry_state == EntryState::Late {
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

    fn set_state(&self, number: u64, entry_state: EntryState, due: Time) {
        let mut state = lock(&self.state);
        let entry = state.entries.get_mut(&number).expect("a ticket has its entry");
        if entry.entry_state == EntryState::Late {
            return;
        }
        let steps_aside = entry.is_present() && entry_state == EntryState::Aside;
        entry.due = due;
        state.come_back(number);
        if entry_state == EntryState::Aside {
            state.entries.get_mut(&number).expect("looked at above").entry_state = EntryState::Aside;
        }
        let called = if steps_aside { state.call_first() } else { None };
        drop(state);
        called.into_iter().for_each(Waker::wake);
    }

    /// Calls the head again, because the limits can admit more or less than before.
    pub(crate) fn wake_head(&self) {
        if self.len() > 0 {
            let mut state = lock(&self.state);
            state.tail = None;
            let called = state.call_first();
            drop(state);
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
                    entry.entry_state = EntryState::Late;
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

    /// Removes a request. Returns true if the queue is empty.
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
    /// Returns the number of waiting requests for this key.
    pub(crate) fn len(&self, mark: u64) -> usize {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        lock(&self.by_key).get(&mark).map_or(0, |queue| queue.len())
    }

    pub(crate) fn find(&self, mark: u64) -> Option<Arc<Queue>> {
        if self.waiting.load(Ordering::Relaxed) == 0 { None } else { lock(&self.by_key).get(&mark).cloned() }
    }

    /// Returns the queues of all keys with waiting requests.
    pub(crate) fn all(&self) -> Vec<(u64, Arc<Queue>)> {
        lock(&self.by_key).iter().map(|(mark, queue)| (*mark, Arc::clone(queue))).collect()
    }

    /// [`Queue::join`] for the queue of a key.
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
        self.queue.set_state(self.number, EntryState::Present, at);
    }

    /// Lets other requests overtake this request, because it waits for another limit until this time. The request keeps
    /// its position.
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
        self.queue.set_state(self.number, EntryState::Aside, until);
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
