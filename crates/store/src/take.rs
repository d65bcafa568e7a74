//! The question that a pod asks a store, and the answer.

use std::time::Duration;

use crate::{
    seats::Seats,
    state::{Mark, Reach, State},
    terms::{Limit, MOST_UNITS, Terms},
};

/// The longest wait for a slot: an hour.
const LONGEST_PATIENCE: u64 = 3_600_000_000;

/// The largest guard and lookahead: a minute.
const LARGEST_REACH: u64 = 60_000_000;

/// A question: requests that wait, and seats for later.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// The limits, all of which are charged or none.
    pub terms: &'a Terms,
    /// How many requests wait for an answer.
    pub requests: u32,
    /// How many units each of them costs; at least one.
    pub cost: u32,
    /// How long a request may wait for its slot in a bucket. Windows and logs have no slots: ask again at
    /// [`Next::At`].
    pub patience: Duration,
    /// How many seats to take for requests to come, if all requests are served.
    pub prefetch: u32,
    /// Seats of a bucket begin this long after the store's time, because those that begin sooner expire on their way.
    pub guard: Duration,
    /// Seats of a bucket may fall due this much later than the store's time.
    pub lookahead: Duration,
    /// What was used without asking: costs that became known later, or decisions while the store was lost. At most 2^20.
    pub owed: u32,
    /// The level of this key that the asker knows. It restores what a store lost in a failover, so send it with the
    /// first question after a connection was lost. It also undoes what others have given back since.
    pub seen: Option<&'a Level>,
    /// Unused seats. The store takes them back if they still can be used. Give seats back once only, also if
    /// the answer is lost.
    pub returned: Option<&'a Seats>,
}

impl<'a> Take<'a> {
    /// A question for one request with a cost of one.
    pub const fn new(terms: &'a Terms) -> Self {
        Self {
            terms,
            requests: 1,
            cost: 1,
            patience: Duration::ZERO,
            prefetch: 0,
            guard: Duration::ZERO,
            lookahead: Duration::ZERO,
            owed: 0,
            seen: None,
            returned: None,
        }
    }

    /// The numbers of this question. None if the cost is zero or more than a store counts at once.
    pub(crate) fn ask(&self) -> Option<Ask> {
        if self.cost == 0 || self.cost > MOST_UNITS {
            return None;
        }
        let stamp = self.terms.stamp();
        let fits = |at: u64, marks: &[Mark]| at == stamp && marks.len() == self.terms.raw().len();
        let seen = self.seen.filter(|seen| fits(seen.stamp, &seen.marks)).map(|seen| seen.marks.clone());
        let returned = self.returned.filter(|seats| fits(seats.stamp, &seats.start) && seats.left() > 0);
        Some(Ask {
            stamp,
            limits: self.terms.raw().to_vec(),
            requests: self.requests.min(MOST_UNITS / self.cost).into(),
            cost: self.cost.into(),
            patience: micros(self.patience, LONGEST_PATIENCE),
            prefetch: self.prefetch.min(MOST_UNITS).into(),
            reach: Reach { guard: micros(self.guard, LARGEST_REACH), lookahead: micros(self.lookahead, LARGEST_REACH) },
            owed: self.owed.min(MOST_UNITS).into(),
            seen,
            returned: returned.map(|seats| (seats.birth, u64::from(seats.left()), seats.end(self.terms))),
        })
    }
}

/// A question in numbers.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) stamp: u64,
    pub(crate) limits: Vec<Limit>,
    pub(crate) requests: u64,
    pub(crate) cost: u64,
    pub(crate) patience: u64,
    pub(crate) prefetch: u64,
    pub(crate) reach: Reach,
    pub(crate) owed: u64,
    pub(crate) seen: Option<Vec<Mark>>,
    /// The birth of their history, how many, and where they end.
    pub(crate) returned: Option<(u64, u64, Vec<Mark>)>,
}

/// An answer in numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) granted: u64,
    pub(crate) prefetched: u64,
    pub(crate) time: u64,
    pub(crate) birth: u64,
    pub(crate) next: Next,
    pub(crate) stamp: u64,
    /// The limits, if they are not those of the asker.
    pub(crate) limits: Option<Vec<Limit>>,
    /// After which marks the requests were served, and the seats begin; where the limits are now.
    pub(crate) marks: [Vec<Mark>; 3],
}

/// When it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// All requests were served.
    Now,
    /// The first refused request may go at this time of the store, in microseconds, if no other comes first. To ask
    /// sooner is useless.
    At(u64),
    /// It costs more than a limit ever allows.
    Never,
}

/// Where the limits of a key are, as the store said it last. Keep the newest of each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    stamp: u64,
    marks: Vec<Mark>,
}

/// How much a key has left, as far as a level says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The index of the limit that has the least.
    pub limit: usize,
    /// How many units it would admit now.
    pub units: u64,
    /// How long until it is full again if no other request comes.
    pub full_in: Duration,
}

impl Level {
    /// What the tightest limit has left at this time of the store. None if the level is of other terms.
    pub(crate) fn left(&self, terms: &Terms, now: u64) -> Option<Left> {
        if self.stamp != terms.stamp() || self.marks.len() != terms.raw().len() {
            return None;
        }
        let each = terms.raw().iter().zip(&self.marks).enumerate().map(|(index, (limit, &mark))| {
            let Some(mut state) = State::of_numbers(limit, mark) else {
                // A log: when it was looked at, and how much it had used.
                let is_past = now >= mark[0].saturating_add(limit.period);
                let units = limit.requests.saturating_sub(if is_past { 0 } else { mark[1] });
                let full_in = Duration::from_micros(mark[0].saturating_add(limit.period).saturating_sub(now));
                return Left { limit: index, units, full_in };
            };
            state.advance(limit, now);
            let most = u64::from(MOST_UNITS);
            let full_in = Duration::from_micros(state.full_at(limit).saturating_sub(now));
            Left { limit: index, units: state.fits(limit, now, (most, 1), 0), full_in }
        });
        each.min_by_key(|left| left.units)
    }
}

/// A store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How many of the requests may go, each at its slot if it had patience: see [`Seats::due`].
    pub granted: u32,
    /// The seats of the granted requests. Requests that do not go can leave them to others or give them back.
    pub served: Option<Seats>,
    /// Seats for requests to come.
    pub prefetched: Option<Seats>,
    /// To send with the next question.
    pub level: Level,
    /// The store's time, in microseconds since the Unix epoch.
    pub time: u64,
    /// When it is worth asking again.
    pub next: Next,
    /// The store's terms, if they are newer than those of the question. The answer follows them.
    pub newer: Option<Terms>,
}

impl Answer {
    /// The answer to a question. None if it does not fit the question.
    pub(crate) fn reply(self, ask: &Ask) -> Option<Reply> {
        let count = self.limits.as_ref().unwrap_or(&ask.limits).len();
        let newer = match &self.limits {
            Some(limits) => Some(Terms::parse(self.stamp, &crate::terms::text_of(limits))?),
            None => None,
        };
        if self.granted > ask.requests
            || self.prefetched > ask.prefetch
            || self.marks.iter().any(|marks| marks.len() != count)
        {
            return None;
        }
        let (stamp, birth) = (self.stamp, self.birth);
        let seats = |start, units: u64| {
            let left = u32::try_from(units).ok().filter(|&units| units > 0)?;
            Some(Seats::new(stamp, birth, start, left))
        };
        let [served, prefetched, level] = self.marks;
        Some(Reply {
            granted: u32::try_from(self.granted).ok()?,
            served: seats(served, self.granted * ask.cost),
            prefetched: seats(prefetched, self.prefetched),
            level: Level { stamp, marks: level },
            time: self.time,
            next: self.next,
            newer,
        })
    }
}

fn micros(duration: Duration, most: u64) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(most).min(most)
}
