//! Meters for words that are guarded by a lock. These words are smaller than shared words, and are never used without
//! the lock. A table of keys uses them for keys in its *overflow*.
//!
//! - A sliding window counter is packed into one word if both counts and the window's index fit. Its decisions are the
//!   same as with two words.
//! - A sliding window log becomes three words with the times of a few groups of requests (`Moments`). Its count is an
//!   upper bound of the count of a log.

mod moments;

pub(crate) use self::moments::Moments;
use super::{Epoch, History, Kind, Meter, Receipt, Stop, Taken, WindowCounter};
use crate::{
    Quota, Standing, Strategy, Time,
    sync::{AtomicU64, Ordering},
    word::Sealed,
};

/// The arithmetic of one quota for words that are guarded by a lock.
#[derive(Clone, Debug)]
pub(crate) enum Guarded {
    /// A state of one word.
    Packed(WindowCounter),
    /// A state of three words.
    Moments(Moments),
}

impl Meter {
    /// Returns a meter for words that are guarded by a lock.
    pub(crate) fn guarded(quota: Quota, base: Time) -> Self {
        match quota.strategy() {
            Strategy::SlidingWindowLog => Self { kind: Kind::Guarded(Guarded::Moments(Moments::new(quota))) },
            Strategy::SlidingWindowCounter => {
                let packed = WindowCounter::to_pack(quota, base).map(|counter| Kind::Guarded(Guarded::Packed(counter)));
                Self { kind: packed.unwrap_or_else(|| Kind::Counter(WindowCounter::new(quota, base))) }
            }
            _ => Self::new(quota, base),
        }
    }

    /// Returns the usage, for comparison with other keys: about 2^40 is a whole limit.
    pub(crate) fn used(&self, words: &[AtomicU64], now: Time) -> u64 {
        // The scale needs no division, because this function runs for each key of a full bucket.
        let scale = |used: u64, most: u64| match 24 + most.leading_zeros() {
            less @ ..64 => used >> (64 - less),
            more => used.saturating_mul(1 << (more - 64)),
        };
        match &self.kind {
            Kind::Level(supply) => {
                let ahead = words[0].load(Ordering::Relaxed).saturating_sub(supply.floor(now));
                scale(ahead, supply.capacity())
            }
            kind => {
                let standing = self.standing(words, now).ok();
                let limit = self.quota().requests();
                let used = standing.map_or(limit, |standing| limit.saturating_sub(standing.remaining()));
                // If two logs have the same usage, the older log counts as less used.
                let age =
                    if let Kind::Guarded(Guarded::Moments(moments)) = kind { moments.freshness(words, now) } else { 0 };
                scale(used, limit).saturating_add(age)
            }
        }
    }

    /// Raises `words` to an upper bound of `words` and `others`: the result refuses each request that `words` or
    /// `others` would refuse, now or later. The caller must hold a lock.
    pub(crate) fn join(&self, words: &[AtomicU64], others: &[AtomicU64]) {
        match &self.kind {
            Kind::Level(_) => {
                let level = words[0].load(Ordering::Relaxed).max(others[0].load(Ordering::Relaxed));
                words[0].store(level, Ordering::Relaxed);
            }
            Kind::Counter(counter) => counter.join(words, others),
            Kind::Guarded(Guarded::Packed(counter)) => {
                counter.packed(&words[0], |own| counter.join(own, &counter.unpack(&others[0])));
            }
            Kind::Guarded(Guarded::Moments(moments)) => moments.join(words, others),
            Kind::Log(_) => unreachable!("logs are not joined: under a lock, moments replace them"),
        }
    }
}

impl Guarded {
    pub(super) fn quota(&self) -> Quota {
        match self {
            Self::Packed(counter) => counter.quota(),
            Self::Moments(moments) => moments.quota(),
        }
    }

    pub(super) fn words(&self) -> usize {
        match self {
            Self::Packed(_) => 1,
            Self::Moments(moments) => moments.words(),
        }
    }

    pub(super) fn reserve(&self, words: &[AtomicU64], now: Time, cost: u64, latest: Time) -> Result<Taken, Stop> {
        match self {
            Self::Packed(counter) => counter.packed(&words[0], |words| counter.reserve(words, now, cost, latest)),
            Self::Moments(moments) => moments.reserve(words, now, cost, latest),
        }
    }

    pub(super) fn peek(&self, words: &[AtomicU64], now: Time, cost: u64) -> Result<Standing, Stop> {
        match self {
            Self::Packed(counter) => counter.peek(&counter.unpack(&words[0]), now, cost),
            Self::Moments(moments) => moments.peek(words, now, cost),
        }
    }

    pub(super) fn standing(&self, words: &[AtomicU64], now: Time) -> Result<Standing, Sealed> {
        match self {
            Self::Packed(counter) => counter.standing(&counter.unpack(&words[0]), now),
            Self::Moments(moments) => Ok(moments.standing(words, now, 1)),
        }
    }

    pub(super) fn refund(&self, words: &[AtomicU64], receipt: &Receipt) -> Result<(), Sealed> {
        match self {
            Self::Packed(counter) => counter.packed(&words[0], |words| counter.refund(words, receipt)),
            Self::Moments(moments) => {
                moments.refund(words, receipt);
                Ok(())
            }
        }
    }

    pub(super) fn credit(&self, words: &[AtomicU64], cost: u64, now: Time) -> Result<(), Sealed> {
        match self {
            Self::Packed(counter) => counter.packed(&words[0], |words| counter.credit(words, cost, now)),
            Self::Moments(moments) => {
                moments.credit(words, cost, now);
                Ok(())
            }
        }
    }

    pub(super) fn is_idle(&self, words: &[AtomicU64], now: Time) -> bool {
        match self {
            Self::Packed(counter) => counter.is_idle(&counter.unpack(&words[0]), now),
            Self::Moments(moments) => moments.is_idle(words, now),
        }
    }

    /// Returns an upper bound of the admissions since the meter came into force, and the remaining requests.
    pub(super) fn epoch(&self, words: &[AtomicU64], history: &History, since: Time) -> (Epoch<'static>, u64) {
        match self {
            Self::Packed(counter) => counter.epoch(&counter.unpack(&words[0]), history, since),
            Self::Moments(moments) => moments.epoch(words, history, since),
        }
    }

    /// Returns the numbers that [`begin`](Self::begin) needs in addition to the old words.
    pub(super) fn first_after(
        &self,
        old: &Meter,
        old_words: &[AtomicU64],
        admitted_since: impl Fn(u64) -> u64,
        since: Time,
    ) -> [u64; 2] {
        match (self, &old.kind) {
            (Self::Packed(counter), Kind::Guarded(Self::Packed(before))) if counter.same_windows(before) => {
                counter.with_counts_of(before, &before.unpack(&old_words[0]), since)
            }
            (Self::Packed(counter), Kind::Counter(before)) if counter.same_windows(before) => {
                counter.with_counts_of(before, old_words, since)
            }
            (Self::Packed(counter), _) => counter.with_admitted(admitted_since, since),
            (Self::Moments(moments), _) => [admitted_since(moments.oldest(since)), 0],
        }
    }

    /// See [`Meter::begin`].
    pub(super) fn begin(&self, words: &[AtomicU64], history: &History, old: &Meter, old_words: &[AtomicU64]) {
        match (self, &old.kind) {
            (Self::Packed(counter), _) => {
                words[0].store(counter.pack(&history.first.map(AtomicU64::new)), Ordering::Relaxed);
            }
            (Self::Moments(moments), Kind::Guarded(Self::Moments(before))) => {
                moments.take_over(words, before, old_words, Time::from_nanos(history.began));
            }
            (Self::Moments(moments), _) => moments.begin(words, history.first[0], Time::from_nanos(history.began)),
        }
    }
}
