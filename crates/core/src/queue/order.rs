//! The order of the requests in a queue, and which of them are called. No locks: the queue calls this with its lock
//! held, and wakes and drops the wakers after it.

use std::{collections::BTreeMap, task::Waker, time::Duration};

use crate::{Time, forecast::Forecast};

/// The time that a called request has before other requests overtake it. If the request arrives later, it is first
/// again: a delayed task loses its turn, not its position.
pub(super) const GRACE: Duration = Duration::from_millis(2);

/// The number of requests behind the head that are near it: they check whether the head comes for its turn.
const WATCH: usize = 4;

/// The number of requests that are called together if the head did not come: often many callers give up at the same
/// time and still have their tickets.
const ROLL: usize = 64;

/// The time of a call until the next check of the queue, which stores the real time.
const UNKNOWN: Time = Time::from_nanos(0);

/// The waiting requests by number, in order of arrival, in one map for each state. So no request is looked at because
/// it is ahead of another: requests that others overtake cost the others nothing.
#[derive(Debug, Default)]
pub(super) struct Order {
    present: BTreeMap<u64, Entry>,
    aside: BTreeMap<u64, Entry>,
    late: BTreeMap<u64, Entry>,
    next: u64,
    /// The cost of all present requests.
    total: u128,
    /// The forecast after the admission of all present requests. None if it must be computed again.
    pub(super) tail: Option<Forecast>,
    /// Whether the key has another queue, which must be looked up.
    pub(super) closed: bool,
    /// The number of entries that the methods have looked at one after the other.
    #[cfg(all(test, not(loom)))]
    pub(super) looks: usize,
}

#[derive(Debug)]
pub(super) struct Entry {
    cost: u64,
    latest: Option<Time>,
    /// The time at which the request tries, or is expected to try, to be admitted.
    pub(super) due: Time,
    /// The time at which the request was called for its turn, until it comes.
    pub(super) called: Option<Time>,
    pub(super) waker: Option<Waker>,
}

/// The state of a request in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// The request waits in order, and later requests wait for it.
    Present,
    /// Other requests overtake the request, because it waits for another limit or did not come for its turn. It reserves
    /// nothing. If it comes and is not at the head, later requests wait for it again.
    Aside,
    /// The request cannot be admitted in time.
    Late,
}

impl Order {
    pub(super) fn len(&mut self) -> usize {
        self.states().into_iter().map(|(_, entries)| entries.len()).sum()
    }

    fn states(&mut self) -> [(EntryState, &mut BTreeMap<u64, Entry>); 3] {
        let Self { present, aside, late, .. } = self;
        [(EntryState::Present, present), (EntryState::Aside, aside), (EntryState::Late, late)]
    }

    fn in_state(&mut self, entry_state: EntryState) -> &mut BTreeMap<u64, Entry> {
        match entry_state {
            EntryState::Present => &mut self.present,
            EntryState::Aside => &mut self.aside,
            EntryState::Late => &mut self.late,
        }
    }

    /// Returns a request and its state.
    pub(super) fn get_mut(&mut self, number: u64) -> (EntryState, &mut Entry) {
        let mut states = self.states().into_iter();
        let found = states.find_map(|(entry_state, entries)| Some((entry_state, entries.get_mut(&number)?)));
        found.expect("a ticket has its entry")
    }

    fn take(&mut self, number: u64) -> (EntryState, Entry) {
        let mut states = self.states().into_iter();
        let found = states.find_map(|(entry_state, entries)| Some((entry_state, entries.remove(&number)?)));
        found.expect("a ticket has its entry")
    }

    /// Adds a request behind all others. Returns its number.
    pub(super) fn push(&mut self, cost: u64, latest: Option<Time>, due: Time) -> u64 {
        let number = self.next;
        self.next += 1;
        self.total += u128::from(cost);
        self.present.insert(number, Entry { cost, latest, due, called: None, waker: None });
        number
    }

    /// Changes the state of a request, which keeps its position.
    pub(super) fn set_state(&mut self, number: u64, entry_state: EntryState) {
        if self.in_state(entry_state).contains_key(&number) {
            return;
        }
        let (before, entry) = self.take(number);
        match (before, entry_state) {
            (_, EntryState::Present) => self.total += u128::from(entry.cost),
            (EntryState::Present, _) => self.total -= u128::from(entry.cost),
            _ => {}
        }
        self.tail.take_if(|_| [before, entry_state].contains(&EntryState::Present));
        self.in_state(entry_state).insert(number, entry);
    }

    /// Calls the first request that is present. The caller wakes the waker after it released the lock.
    pub(super) fn call_first(&mut self) -> Option<Waker> {
        let mut first = self.present.first_entry()?;
        first.get_mut().called = Some(UNKNOWN);
        first.get().waker.clone()
    }

    /// Lets other requests overtake those that were called and did not try in time. Returns the number of the first
    /// present request, and the time until which it must try.
    pub(super) fn first(&mut self, now: Time, wakers: &mut Vec<Waker>) -> Option<(u64, Time)> {
        let (mut passed, mut first, mut calls) = (Vec::new(), None, 0);
        for (number, entry) in &mut self.present {
            if first.is_some() && calls == 0 {
                break;
            }
            #[cfg(all(test, not(loom)))]
            {
                self.looks += 1;
            }
            // A request without a waker cannot be called.
            if first.is_none() && entry.waker.is_none() && entry.due.saturating_add(GRACE) <= now {
                entry.called = Some(entry.due);
            }
            if let Some(at) = &mut entry.called {
                *at = if *at == UNKNOWN { now } else { *at };
                let until = at.saturating_add(GRACE);
                if until <= now {
                    passed.push(*number);
                } else {
                    first = first.or(Some((*number, until)));
                }
                continue;
            }
            if first.is_none() {
                let until = entry.due.saturating_add(GRACE);
                // The request behind the overtaken requests is the new head. If it is overdue, later requests can be
                // overdue, too.
                calls = if until <= now { ROLL } else { usize::from(!passed.is_empty()) };
                first = Some((*number, if calls > 0 { now.saturating_add(GRACE) } else { until }));
            }
            if calls > 0 {
                calls -= 1;
                entry.called = Some(now);
                wakers.extend(entry.waker.clone());
            }
        }
        for number in passed {
            self.set_state(number, EntryState::Aside);
        }
        first
    }

    /// Returns true if fewer than [`WATCH`] present requests are ahead of this request.
    pub(super) fn is_near(&self, number: u64) -> bool {
        self.present.range(..number).take(WATCH).count() < WATCH
    }

    /// Returns the forecast for a new request.
    pub(super) fn forecast(&mut self, now: Time, forecast: impl FnOnce() -> Forecast) -> &mut Forecast {
        // Without present requests, an old forecast is invalid, because other requests were charged since.
        let total = self.total;
        self.tail.take_if(|_| total == 0);
        if self.tail.is_none() {
            let mut tail = forecast();
            if tail.is_additive() {
                tail.add(total);
            } else {
                #[cfg(all(test, not(loom)))]
                {
                    self.looks += self.present.len();
                }
                for entry in self.present.values() {
                    if let Some(at) = tail.opens(now, entry.cost) {
                        tail.admit(at, entry.cost);
                    }
                }
            }
            self.tail = Some(tail);
        }
        self.tail.as_mut().expect("computed above")
    }

    /// Computes all turns again, and adds the wakers of the requests that cannot be admitted in time to `called`.
    pub(super) fn reassess(&mut self, now: Time, mut tail: Forecast, called: &mut Vec<Waker>) {
        let mut late = Vec::new();
        for (number, entry) in &mut self.present {
            match tail.opens(now, entry.cost) {
                Some(due) if entry.latest.is_none_or(|latest| due <= latest) => {
                    tail.admit(due, entry.cost);
                    entry.due = due;
                }
                None if entry.latest.is_none() && tail.end(entry.cost).is_some() => {
                    entry.due = Time::from_nanos(u64::MAX);
                }
                _ => {
                    late.push(*number);
                    called.extend(entry.waker.clone());
                }
            }
        }
        for number in late {
            self.set_state(number, EntryState::Late);
        }
        self.tail = Some(tail);
    }

    /// Removes a request. Returns it with the waker of the next request if that is called.
    pub(super) fn remove(&mut self, number: u64) -> (Entry, Option<Waker>) {
        let (entry_state, entry) = self.take(number);
        if entry_state == EntryState::Present {
            self.total -= u128::from(entry.cost);
        }
        self.tail = None;
        let was_first = entry_state == EntryState::Present
            && self.present.first_key_value().is_none_or(|(first, _)| *first > number);
        let called = if was_first { self.call_first() } else { None };
        (entry, called)
    }
}
