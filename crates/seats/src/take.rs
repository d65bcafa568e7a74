//! The question that a pod sends to a store, and the store's answer.

use std::time::Duration;

use weir_core::Strategy;

use crate::{
    ban::{BanQuestion, Banned, EncodedBan},
    seats::Seats,
    state::{Mark, Reach, State},
    terms::{MOST_UNITS, StoreLimit, StoreTerms},
};

/// The longest wait for a slot: one hour.
pub(crate) const LONGEST_PATIENCE: u64 = 3_600_000_000;

/// The maximum of guard and lookahead: one minute.
pub(crate) const LARGEST_REACH: u64 = 60_000_000;

/// A question: it takes units for waiting requests, and seats for later requests.
#[derive(Clone, Copy, Debug)]
pub struct Take<'a> {
    /// The limits. Either all of them are charged, or none.
    pub terms: &'a StoreTerms,
    /// The number of requests that wait for the answer.
    pub requests: u32,
    /// The cost of each request in units, at least one.
    pub cost: u32,
    /// The longest time that a request can wait for its slot in a bucket. Windows and logs have no slots: the
    /// caller asks about them again at [`Next::At`].
    pub patience: Duration,
    /// The number of seats to take for later requests. The store gives them only if it has granted all requests.
    pub prefetch: u32,
    /// Seats of a bucket begin this long after the store's time. Seats that begin sooner would expire on their way.
    pub guard: Duration,
    /// The longest time from the store's time until the last seat of a bucket can be used.
    pub lookahead: Duration,
    /// Units that were used without asking the store: costs that became known later, or decisions while the store was
    /// lost. At most 2^20.
    pub owed: u32,
    /// Units of earlier requests that were not used after all. Each limit gets these units back, up to full credit. A
    /// window or a counter subtracts them from the current window, and a log forgets its newest requests. At most 2^20.
    /// Send them only once, even if the answer is lost.
    pub credit: u32,
    /// The newest level of this key that the caller has received. The store raises its count to this level. Send it
    /// with the first question after a lost connection, because the store can have lost writes in a failover. It also
    /// undoes returns of seats by other callers since then.
    pub seen: Option<&'a Level>,
    /// Unused seats. The store takes them back if they can still be used. Give seats back only once, even if the answer
    /// is lost.
    pub returned: Option<&'a Seats>,
    /// The part about the ban of the key. None if the rule has no ban.
    pub ban: Option<BanQuestion>,
}

impl<'a> Take<'a> {
    /// Creates a question for one request with a cost of one.
    pub const fn new(terms: &'a StoreTerms) -> Self {
        Self {
            terms,
            requests: 1,
            cost: 1,
            patience: Duration::ZERO,
            prefetch: 0,
            guard: Duration::ZERO,
            lookahead: Duration::ZERO,
            owed: 0,
            credit: 0,
            seen: None,
            returned: None,
            ban: None,
        }
    }

    /// Converts the question to numbers. None if the cost is zero or above [`MOST_UNITS`].
    pub fn encode(&self) -> Option<EncodedTake> {
        if self.cost == 0 || self.cost > MOST_UNITS {
            return None;
        }
        let stamp = self.terms.stamp();
        let fits = |at: u64, marks: &[Mark]| at == stamp && marks.len() == self.terms.raw().len();
        let seen = self.seen.filter(|seen| fits(seen.stamp, &seen.marks));
        let returned = self.returned.filter(|seats| fits(seats.stamp, &seats.start) && seats.left() > 0);
        Some(EncodedTake {
            stamp,
            limits: self.terms.raw().to_vec(),
            requests: self.requests.min(MOST_UNITS / self.cost).into(),
            cost: self.cost.into(),
            patience: micros(self.patience, LONGEST_PATIENCE),
            prefetch: self.prefetch.min(MOST_UNITS).into(),
            reach: Reach { guard: micros(self.guard, LARGEST_REACH), lookahead: micros(self.lookahead, LARGEST_REACH) },
            owed: self.owed.min(MOST_UNITS).into(),
            credit: self.credit.min(MOST_UNITS).into(),
            seen: seen.map(|seen| seen.marks.to_vec()),
            ban: self.ban.map(|ban| ban.encode(seen.and_then(Level::banned))),
            returned: returned.map(|seats| (seats.birth, u64::from(seats.left()), seats.end(self.terms))),
        })
    }
}

impl EncodedTake {
    /// A question with these terms that charges nothing and starts no ban.
    #[must_use]
    pub fn emptied(&self) -> Self {
        let mut emptied =
            Self { requests: 0, prefetch: 0, owed: 0, credit: 0, seen: None, returned: None, ..self.clone() };
        emptied.keep_ban();
        emptied
    }

    /// Changes no ban.
    pub fn keep_ban(&mut self) {
        if let Some(ban) = &mut self.ban {
            (ban.started, ban.is_lifted) = (None, false);
        }
    }

    /// Converts the level that the caller has seen, if a counter with another clock made it. That clock was up to
    /// `margin` microseconds behind the clock of `now`, or ahead of it by any time.
    pub fn rebase_seen(&mut self, now: u64, margin: u64) {
        for (limit, mark) in self.limits.iter().zip(self.seen.iter_mut().flatten()) {
            *mark = State::rebased(limit, *mark, now, margin);
        }
    }

    /// Converts the level that the caller has seen, if an earlier counter made it and this counter has collected it. This
    /// counter began to count at `since`. A log does not know the exact times of the units that it has collected, only
    /// that they are not later than that.
    pub fn settle_seen(&mut self, since: u64, now: u64) {
        for (limit, [at, used, _]) in self.limits.iter().zip(self.seen.iter_mut().flatten()) {
            if limit.strategy == Strategy::SlidingWindowLog && *at <= since {
                (*at, *used) = (since, if *at + limit.period > now { *used } else { 0 });
            }
        }
    }
}

/// A question as numbers.
#[derive(Clone, Debug)]
pub struct EncodedTake {
    /// The stamp of the terms.
    pub stamp: u64,
    /// The limits of the terms.
    pub limits: Vec<StoreLimit>,
    /// See [`Take::requests`].
    pub requests: u64,
    /// See [`Take::cost`].
    pub cost: u64,
    /// See [`Take::patience`]. In microseconds.
    pub patience: u64,
    /// See [`Take::prefetch`].
    pub prefetch: u64,
    /// See [`Take::guard`] and [`Take::lookahead`].
    pub reach: Reach,
    /// See [`Take::owed`].
    pub owed: u64,
    /// See [`Take::credit`].
    pub credit: u64,
    /// The marks of the level that the caller has seen.
    pub seen: Option<Vec<Mark>>,
    /// The returned seats: the birth of their history, their number, and the marks at which they end.
    pub returned: Option<(u64, u64, Vec<Mark>)>,
    /// See [`Take::ban`].
    pub ban: Option<EncodedBan>,
}

/// A reply as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedReply {
    /// The number of granted requests.
    pub granted: u64,
    /// The number of seats for later requests.
    pub prefetched: u64,
    /// The time of the decision.
    pub time: u64,
    /// The time at which the store began to count this key.
    pub birth: u64,
    /// The time at which the caller can usefully ask again.
    pub next: Next,
    /// The stamp of the terms in the store.
    pub stamp: u64,
    /// The limits in the store. None if the caller has the same limits.
    pub limits: Option<Vec<StoreLimit>>,
    /// Three lists of marks: where the seats of the granted requests begin, where the seats for later requests begin,
    /// and the current positions of the limits.
    pub marks: [Vec<Mark>; 3],
    /// The beginning of the ban that is in force. Zero if the key is not banned, or if the question is not about bans.
    pub banned_since: u64,
    /// See [`Seats::reserved`].
    pub reserved: u32,
}

/// The time at which the caller can usefully ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// All requests were granted.
    Now,
    /// The first refused request can proceed at this time of the store, in microseconds, if no other request is charged
    /// before. Asking sooner is useless.
    At(u64),
    /// The request costs more than a limit ever allows.
    Never,
}

/// The positions of a key's limits, from an answer of the store. Callers keep the newest level of each key, so a level is
/// small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    stamp: u64,
    marks: Box<[Mark]>,
    /// Few keys are banned.
    banned: Option<Box<Banned>>,
}

/// The remaining units of a key, computed from a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The index of the limit with the fewest remaining units.
    pub limit: usize,
    /// The number of units that this limit admits now.
    pub units: u64,
    /// The time until this limit is at full credit again if it is not charged before.
    pub full_in: Duration,
}

impl Level {
    /// The ban of the key. It can have ended since the answer.
    pub fn banned(&self) -> Option<Banned> {
        self.banned.as_deref().copied()
    }

    /// Returns true if all limits are at full credit at this time, and the key is not banned. None if the level is of
    /// other terms.
    pub fn is_full(&self, terms: &StoreTerms, now: u64) -> Option<bool> {
        Some(self.full_at(terms)? <= now)
    }

    /// Returns the time from which all limits are at full credit and the key is not banned. None if the level is of
    /// other terms.
    pub fn full_at(&self, terms: &StoreTerms) -> Option<u64> {
        if self.stamp != terms.stamp() || self.marks.len() != terms.raw().len() {
            return None;
        }
        let each = terms.raw().iter().zip(&self.marks).map(|(limit, &mark)| match State::of_numbers(limit, mark) {
            Some(state) => state.full_at(limit),
            None if mark[1] == 0 => 0,
            // For a log, the mark contains the time of the answer.
            None => mark[0].saturating_add(limit.period),
        });
        each.chain(self.banned().map(|banned| banned.end())).max().or(Some(0))
    }

    /// The remaining units of the tightest limit at this time of the store. None if the level is of other terms.
    pub fn left(&self, terms: &StoreTerms, now: u64) -> Option<Left> {
        if self.stamp != terms.stamp() || self.marks.len() != terms.raw().len() {
            return None;
        }
        let each = terms.raw().iter().zip(&self.marks).enumerate().map(|(index, (limit, &mark))| {
            let Some(mut state) = State::of_numbers(limit, mark) else {
                // For a log, the mark contains the time of the answer and the used units at that time.
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

    /// The remaining units and the size of the limit with the smallest part of its requests left, at this time of the
    /// store. None if the level is of other terms.
    pub fn headroom(&self, terms: &StoreTerms, now: u64) -> Option<(u64, u64)> {
        if self.stamp != terms.stamp() || self.marks.len() != terms.raw().len() {
            return None;
        }
        let each = terms.raw().iter().zip(&self.marks).map(|(limit, &mark)| {
            let units = match State::of_numbers(limit, mark) {
                Some(mut state) => {
                    state.advance(limit, now);
                    state.fits(limit, now, (u64::MAX, 1), 0)
                }
                // For a log, the mark contains the time of the answer and the used units at that time.
                None if now >= mark[0].saturating_add(limit.period) => limit.requests,
                None => limit.requests.saturating_sub(mark[1]),
            };
            (units.min(limit.at_once()), limit.at_once())
        });
        each.min_by_key(|&(units, of)| (u128::from(units) << 64) / u128::from(of))
    }
}

/// A store's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The number of granted requests. With patience, each of them goes at its slot: see [`Seats::due`].
    pub granted: u32,
    /// The seats of the granted requests. If a request does not go, the caller can use its seats for another request,
    /// or give them back.
    pub served: Option<Seats>,
    /// Seats for later requests.
    pub prefetched: Option<Seats>,
    /// The level of the key after this answer.
    pub level: Level,
    /// The store's time, in microseconds since the Unix epoch.
    pub time: u64,
    /// The time at which the caller can usefully ask again.
    pub next: Next,
    /// The store's terms, if they are newer than those of the question. Then the store has decided by the newer terms.
    pub newer: Option<StoreTerms>,
}

impl EncodedReply {
    /// Converts the numbers to a reply. None if they do not fit the question.
    pub fn reply(self, encoded: &EncodedTake) -> Option<Reply> {
        let count = self.limits.as_ref().unwrap_or(&encoded.limits).len();
        let newer = match &self.limits {
            Some(limits) => Some(StoreTerms::parse(self.stamp, &crate::terms::text_of(limits))?),
            None => None,
        };
        if self.granted > encoded.requests
            || self.prefetched > encoded.prefetch
            || self.marks.iter().any(|marks| marks.len() != count)
        {
            return None;
        }
        let (stamp, birth) = (self.stamp, self.birth);
        let banned = |ban: &EncodedBan| Banned { since: self.banned_since, length: ban.length };
        let banned = encoded.ban.as_ref().filter(|_| self.banned_since > 0).map(banned);
        let seats = |start, units: u64| {
            let left = u32::try_from(units).ok().filter(|&units| units > 0)?;
            Some(Seats::new((stamp, birth), start, self.reserved, left))
        };
        let [served, prefetched, level] = self.marks;
        Some(Reply {
            granted: u32::try_from(self.granted).ok()?,
            served: seats(served, self.granted * encoded.cost),
            prefetched: seats(prefetched, self.prefetched),
            level: Level { stamp, marks: level.into(), banned: banned.map(Box::new) },
            time: self.time,
            next: self.next,
            newer,
        })
    }
}

fn micros(duration: Duration, most: u64) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(most).min(most)
}
