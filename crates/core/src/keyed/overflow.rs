//! The overflow, which counts each key without a cell separately. So a flood of keys never excludes other clients.
//!
//! Each region has its own overflow, which is created when the first key of the region finds no cell. The region's lock
//! guards the overflow. So its words need no atomic steps, and are the smaller words of
//! [`Guarded`](crate::meter::Guarded). A key in the overflow is identified by 32 bits of its fingerprint. These bits
//! also determine the places of its words in every table, before and after a change of the terms. Two keys with the
//! same 32 bits share one count. So the count can refuse too many requests, but never admits too many.
//!
//! The overflow consists of hash buckets. A key has two buckets and takes a place in the emptier bucket, so buckets
//! fill evenly. If both buckets are full, the key with the lowest usage loses its place, and the bucket's *rest* is
//! raised to the usage of that key. A key that is not found starts with the rests of its buckets. A rest is an upper
//! bound of the key's real usage (as in the Space-Saving sketch of Metwally, Agrawal and El Abbadi, 2005). So no key
//! gets more than its limit, with any number of keys. A key is refused because of other keys only if more keys are in
//! use than there are places.
//!
//! A key stays in the overflow until it is idle: only a key without any usage can move to a cell.

use std::ops::Range;

use super::{book::MeterSet, cells::part, zeros};
use crate::{
    Time,
    sync::{AtomicU64, Ordering},
};

/// The number of places for each key of a table: 16 for floods, 2 for well-behaved clients, and 6 as a reserve, because
/// buckets do not fill quite evenly.
const CROWD: usize = 24;

/// The number of places in a bucket. Loom cannot explore more than two.
const BUCKET: usize = if cfg!(loom) { 2 } else { 16 };

/// The largest overflow of a table, in bytes: 1 GiB. The system provides the memory only when it is used.
const MOST: usize = 1 << 30;

/// The tag of a free place.
const FREE: u32 = 0;

/// The overflow of a region.
#[derive(Debug)]
pub(super) struct Overflow {
    tags: Vec<u32>,
    words: Vec<AtomicU64>,
    rests: Vec<AtomicU64>,
    /// Whether each bucket has a rest.
    has_rest: Vec<bool>,
    /// Scratch words for the state of a key before it gets a place.
    draft: Vec<AtomicU64>,
    /// The words of an unknown key.
    start: Vec<AtomicU64>,
    width: usize,
    /// The latest time at which idle keys were forgotten.
    swept: Time,
}

/// The result of looking for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// The key is in the overflow, at this place.
    Found(usize),
    /// The key may have lost its place: the draft is an upper bound of its usage.
    Displaced,
    /// The key has used nothing.
    Unused,
}

/// Returns the part of a key's fingerprint that identifies the key in the overflow. Never [`FREE`].
pub(super) fn tag_of(fingerprint: u64) -> u32 {
    u32::try_from(fingerprint >> 31).unwrap_or(u32::MAX).max(FREE + 1)
}

/// Returns the number of places per region.
pub(super) fn places(keys: usize, regions: usize, set: &MeterSet) -> usize {
    let most = MOST / (size_of::<u32>() + set.words() * size_of::<u64>());
    let places = keys.saturating_mul(CROWD).saturating_mul(set.lives()).min(most);
    (places / regions).div_ceil(BUCKET).max(2) * BUCKET
}

impl Overflow {
    /// Returns an empty overflow. `start` are the words of an unknown key. The allocator provides zeros as untouched
    /// memory, which takes no space yet.
    pub(super) fn new(places: usize, start: &[AtomicU64]) -> Self {
        let width = start.len();
        let places = if cfg!(loom) { 2 * BUCKET } else { places };
        Self {
            tags: vec![FREE; places],
            words: zeros(places * width),
            rests: zeros(places / BUCKET * width),
            has_rest: vec![false; places / BUCKET],
            draft: zeros(width),
            start: copied(start),
            width,
            swept: Time::from_nanos(0),
        }
    }

    /// Looks for a key, and forgets its state if it is idle.
    pub(super) fn look(&mut self, set: &MeterSet, tag: u32, now: Time) -> Look {
        if let Some(place) = self.find(tag) {
            if !set.is_idle(self.words(place), now) {
                return Look::Found(place);
            }
            self.forget(place, now);
        }
        for bucket in self.buckets(tag) {
            let rest = part_of(&self.rests, bucket, self.width);
            if self.has_rest[bucket] && set.is_idle(rest, now) {
                clear(rest);
                self.has_rest[bucket] = false;
                self.swept = self.swept.max(now);
            }
        }
        self.peek(set, tag, now)
    }

    /// [`look`](Self::look) at any time, even in the future. It forgets nothing: a key that will be idle later is not idle
    /// now.
    pub(super) fn peek(&self, set: &MeterSet, tag: u32, at: Time) -> Look {
        if let Some(place) = self.find(tag).filter(|&place| !set.is_idle(self.words(place), at)) {
            return Look::Found(place);
        }
        copy(&self.start, &self.draft);
        let mut look = Look::Unused;
        for bucket in self.buckets(tag) {
            let rest = part_of(&self.rests, bucket, self.width);
            if self.has_rest[bucket] && !set.is_idle(rest, at) {
                set.join(&self.draft, rest);
                look = Look::Displaced;
            }
        }
        look
    }

    /// Returns the latest time at which idle keys were forgotten.
    pub(super) fn swept(&self) -> Time {
        self.swept
    }

    pub(super) fn words(&self, place: usize) -> &[AtomicU64] {
        part_of(&self.words, place, self.width)
    }

    /// Returns the words of the last key that `look` did not find.
    pub(super) fn draft(&self) -> &[AtomicU64] {
        &self.draft
    }

    /// Gives a place to the key whose words are in the draft.
    pub(super) fn insert(&mut self, set: &MeterSet, tag: u32, now: Time) {
        let buckets = self.buckets(tag);
        let place = self.free(buckets).unwrap_or_else(|| {
            // The buckets are swept only now: while there are free places, the words of other keys are not read.
            buckets.into_iter().for_each(|bucket| self.sweep(set, bucket, now));
            self.free(buckets).unwrap_or_else(|| self.make_room(set, tag, now))
        });
        self.tags[place] = tag;
        copy(&self.draft, self.words(place));
    }

    /// Returns a free place in the emptier bucket.
    fn free(&self, buckets: [usize; 2]) -> Option<usize> {
        let [first, second] = buckets.map(|bucket| {
            let mut free = (0, None);
            for place in bucket * BUCKET..(bucket + 1) * BUCKET {
                if self.tags[place] == FREE {
                    free = (free.0 + 1, Some(place));
                }
            }
            free
        });
        if first.0 >= second.0 { first.1 } else { second.1 }
    }

    /// Forgets all idle keys of a bucket.
    fn sweep(&mut self, set: &MeterSet, bucket: usize, now: Time) {
        for place in bucket * BUCKET..(bucket + 1) * BUCKET {
            if self.tags[place] != FREE && set.is_idle(self.words(place), now) {
                self.forget(place, now);
            }
        }
    }

    /// Takes the place of the key with the lowest usage in the first bucket.
    fn make_room(&mut self, set: &MeterSet, tag: u32, now: Time) -> usize {
        let [bucket, _] = self.buckets(tag);
        let first = bucket * BUCKET;
        let place = (first..first + BUCKET).min_by_key(|&place| set.used(self.words(place), now)).unwrap_or(first);
        set.join(part_of(&self.rests, bucket, self.width), self.words(place));
        self.has_rest[bucket] = true;
        place
    }

    fn forget(&mut self, place: usize, now: Time) {
        self.tags[place] = FREE;
        clear(self.words(place));
        self.swept = self.swept.max(now);
    }

    pub(super) fn find(&self, tag: u32) -> Option<usize> {
        let mut places = self.buckets(tag).into_iter().flat_map(|bucket| bucket * BUCKET..(bucket + 1) * BUCKET);
        places.find(|&place| self.tags[place] == tag)
    }

    fn buckets(&self, tag: u32) -> [usize; 2] {
        let spread = u64::from(tag).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        [spread >> 32, spread & 0xffff_ffff].map(|half| part(half, self.has_rest.len()))
    }

    /// Returns a copy of the upper bound of a key's usage. None if the key has used nothing.
    pub(super) fn copy_of(&self, set: &MeterSet, tag: u32) -> Option<Vec<AtomicU64>> {
        let own = copied(&self.start);
        match self.find(tag) {
            Some(place) => copy(self.words(place), &own),
            None if self.buckets(tag).iter().any(|&bucket| self.has_rest[bucket]) => {
                self.buckets(tag).iter().for_each(|&bucket| set.join(&own, part_of(&self.rests, bucket, self.width)));
            }
            None => return None,
        }
        Some(own)
    }

    /// Returns all keys, also idle ones.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &[AtomicU64])> {
        let overflow = self.tags.iter().enumerate().filter(|&(_, &tag)| tag != FREE);
        overflow.map(|(place, &tag)| (tag, self.words(place)))
    }

    /// Returns all rests that are not idle, by bucket.
    pub(super) fn rests<'a>(&'a self, set: &'a MeterSet, now: Time) -> impl Iterator<Item = (usize, &'a [AtomicU64])> {
        let buckets = (0..self.has_rest.len()).filter(|&bucket| self.has_rest[bucket]);
        let rests = buckets.map(|bucket| (bucket, part_of(&self.rests, bucket, self.width)));
        rests.filter(move |(_, rest)| !set.is_idle(rest, now))
    }

    /// Takes over a key from the previous table, unless it is idle here. `put` computes its words.
    pub(super) fn receive(&mut self, set: &MeterSet, tag: u32, now: Time, put: impl FnOnce(&[AtomicU64])) {
        put(&self.draft);
        if set.is_idle(&self.draft, now) {
            return;
        }
        match self.find(tag) {
            Some(place) => set.join(self.words(place), &self.draft),
            None => self.insert(set, tag, now),
        }
    }

    /// Raises the rests of buckets.
    pub(super) fn raise(&mut self, set: &MeterSet, buckets: Range<usize>, by: &[AtomicU64]) {
        for bucket in buckets {
            set.join(part_of(&self.rests, bucket, self.width), by);
            self.has_rest[bucket] = true;
        }
    }

    pub(super) fn places(&self) -> usize {
        self.tags.len()
    }

    pub(super) fn buckets_in_all(&self) -> usize {
        self.has_rest.len()
    }
}

fn copied(words: &[AtomicU64]) -> Vec<AtomicU64> {
    let own = zeros(words.len());
    copy(words, &own);
    own
}

fn part_of(words: &[AtomicU64], place: usize, width: usize) -> &[AtomicU64] {
    &words[place * width..][..width]
}

fn clear(words: &[AtomicU64]) {
    words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
}

fn copy(from: &[AtomicU64], to: &[AtomicU64]) {
    from.iter().zip(to).for_each(|(from, to)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::{super::book::Book, *};
    use crate::{Quota, Strategy, Terms};

    /// Compares the memory of an overflow with the documentation of `RuleLimiter::keyed`.
    #[test]
    fn the_overflow_takes_as_much_memory_as_documented() {
        let book = |strategies: &[Strategy]| {
            let limit = |(place, &strategy): (usize, &Strategy)| {
                (place.to_string(), Quota::new(strategy, 5, Duration::from_secs(1), None).expect("valid"))
            };
            Book::new(Terms::new(strategies.iter().enumerate().map(limit)).expect("valid"), Time::from_nanos(0))
        };
        for (strategies, said) in [
            (&[Strategy::TokenBucket][..], 300),
            (&[Strategy::FixedWindow, Strategy::Gcra], 504),
            (&[Strategy::SlidingWindowLog], 708),
            (&[Strategy::SlidingWindowCounter], 600),
            (&[Strategy::SlidingWindowCounter, Strategy::SlidingWindowLog], 1_824),
        ] {
            let set = book(strategies).overflow;
            let overflow = Overflow::new(places(1_000, 1, &set), &zeros(set.words()));
            let words = overflow.words.len() + overflow.rests.len() + overflow.draft.len();
            let bytes = overflow.tags.len() * size_of::<u32>() + overflow.has_rest.len() + words * size_of::<u64>();
            let each = bytes / 1_000;
            assert!((said - 2..said + 6).contains(&each), "{strategies:?}: {each} bytes a key, not {said}");
        }
        let set = book(&[Strategy::SlidingWindowLog; 8]).overflow;
        assert!(places(1_000_000, 250, &set) * 250 * set.words() * size_of::<u64>() <= MOST, "the memory has a bound");
    }
}
