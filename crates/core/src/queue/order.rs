//! The order of the requests in a queue, and which of them are called. No locks: the queue calls this with its lock
//! held, and wakes and drops the wakers after it.

use std::{collections::BTreeMap, task::Waker, time::Duration};

use crate::{Time, forecast::Forecast};

/// The time that a called request has before other requests overtake it. If the request comes later, it is first again:
/// a delayed task loses its turn, not its position.
pub(super) const GRACE: Duration = Duration::from_millis(2);

/// The number of requests behind the head that are near it: they check whether the head comes for its turn.
const WATCH: usize = 4;

/// The number of requests that are called together if the head did not come: often many callers give up at the same
/// time and still have their tickets.
const ROLL: usize = 64;

/// The time of a call until the next check of the queue, which stores the real time.
const UNKNOWN: Time = Time::from_nanos(0);

#[derive(Debug, Default)]
pub(super) struct Order {
    /// The waiting requests by number, in order of arrival.
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) next: u64,
    /// The cost of all requests that later requests must wait for.
    pub(super) total: u128,
    /// The forecast after the admission of all waiting requests. None if it must be computed again.
    pub(super) tail: Option<Forecast>,
    /// Whether the key has another queue, which must be looked up.
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) cost: u64,
    pub(super) latest: Option<Time>,
    /// The time at which the request tries, or is expected to try, to be admitted.
    pub(super) due: Time,
    /// The time at which the request was called for its turn, until it comes.
    pub(super) called: Option<Time>,
    pub(super) waker: Option<Waker>,
    pub(super) entry_state: EntryState,
}

/// The state of a request in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// The request waits in order.
    Present,
    /// The request waits for another limit, and other requests overtake it.
    Aside,
    /// The request did not come for its turn. Later requests wait for it again when it comes.
    Passed,
    /// The request cannot be admitted in time.
    Late,
}

impl Entry {
    pub(super) fn is_present(&self) -> bool {
        self.entry_state == EntryState::Present
    }

    /// Returns true if later requests must wait for this request.
    pub(super) fn counts(&self) -> bool {
        matches!(self.entry_state, EntryState::Present | EntryState::Aside)
    }
}

impl Order {
    /// Calls the first request that is present. The caller wakes the waker after it released the lock.
    pub(super) fn call_first(&mut self) -> Option<Waker> {
        let first = self.entries.values_mut().find(|entry| entry.is_present())?;
        first.called = Some(UNKNOWN);
        first.waker.clone()
    }

    /// Lets others overtake requests that were called and did not come. Returns the number of the first present
    /// request, and the time until which it must come.
    pub(super) fn first(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<(u64, Time)> {
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
                    passed += u128::from(entry.cost);
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
    pub(super) fn is_near(&self, number: u64) -> bool {
        self.entries.range(..number).filter(|(_, entry)| entry.is_present()).take(WATCH).count() < WATCH
    }

    /// Returns the forecast for a new request.
    pub(super) fn forecast(&mut self, now: Time, forecast: impl FnOnce() -> Forecast) -> &mut Forecast {
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
    pub(super) fn come_back(&mut self, number: u64) {
        let entry = self.entries.get_mut(&number).expect("a ticket has its entry");
        if !entry.counts() {
            self.total += u128::from(entry.cost);
            self.tail = None;
        }
        entry.entry_state = EntryState::Present;
    }

    /// Removes a request. Returns it with the waker of the next request if that is called.
    pub(super) fn remove(&mut self, number: u64) -> (Entry, Option<Waker>) {
        let entry = self.entries.remove(&number).expect("a ticket has its entry");
        if entry.counts() {
            self.total -= u128::from(entry.cost);
        }
        self.tail = None;
        let was_first = entry.is_present()
            && self.entries.iter().find(|(_, entry)| entry.is_present()).is_none_or(|(first, _)| *first > number);
        let called = if was_first { self.call_first() } else { None };
        (entry, called)
    }
}
