//! The refusals and the bans of each key.
//!
//! A `RuleLimiter` could count refusals, too, but it prefers to refuse: keys in its overflow, and keys after a change of
//! the period, can count as used without a request. Here, that would ban a key too early. So this table stores the
//! times of refusals, and the whole key. It takes a lock only for a refusal, and for a request while a key is banned.
//!
//! The table has an entry only for a key that was refused. At most `max_keys` keys have one. If the table is full, the
//! refusals of other keys do not count, so that these keys are not banned. Each of these refusals first looks for old
//! entries, with a bound on its work, so there is room again when entries become old.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Relaxed},
        },
    },
    time::Duration,
};

use weir_core::Time;

use super::{BannedNow, LoweredBan};
use crate::statistics::Statistics;

/// With this number, threads seldom lock the same shard, and one shard of a large table has few entries.
const SHARDS: usize = 256;

/// The number of entries and shards after which one search for an old entry stops. The next search continues.
const ENTRIES_PER_SEARCH: usize = 1024;

/// The number of entries after which one count stops. The next count continues.
const ENTRIES_PER_COUNT: usize = 16 * 1024;

/// The pause between two rounds through a full table, for each entry and each shard: 200 times the work. So a small
/// table has room almost at once, and the search of a large table takes little time.
const PAUSE: Duration = Duration::from_micros(10);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// The number of entries.
    keys: AtomicUsize,
    /// The number of entries with a ban, including bans that have ended.
    pub(super) banned: AtomicUsize,
    search: Mutex<Search>,
    /// The shard where the next count begins.
    next_counted: AtomicUsize,
}

type Shard = HashMap<Box<[u8]>, Entry>;

#[derive(Debug)]
enum Entry {
    /// The latest refusals that count, in the order of their times: always fewer than `after`, unless `after` was
    /// lowered.
    Refused(VecDeque<Time>),
    Banned {
        since: Time,
    },
}

/// The result of a search in one shard.
struct Swept {
    searched: usize,
    removed: usize,
    /// The number of keys that are still banned.
    banned: u64,
}

/// The search for old entries in a full table, shard by shard.
#[derive(Debug, Default)]
struct Search {
    next: usize,
    /// The start of this round through all shards.
    began: Option<Time>,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            keys: AtomicUsize::new(0),
            banned: AtomicUsize::new(0),
            search: Mutex::default(),
            next_counted: AtomicUsize::new(0),
        }
    }
}

impl Table {
    pub(super) fn rest(&self, key: &[u8], now: Time, ban: &LoweredBan) -> Option<Duration> {
        let mut shard = self.shard(key);
        let Some(Entry::Banned { since }) = shard.get(key) else { return None };
        let rest = rest(*since, now, ban);
        if rest.is_none() {
            shard.remove(key);
            self.forget(1, 1);
        }
        rest
    }

    pub(super) fn learn(&self, key: &[u8], rest: Duration, at: Time, ban: &LoweredBan) {
        let since = at.saturating_add(rest).saturating_sub(ban.length);
        let (mut shard, has_place) = self.shard_with_place(key, at, ban);
        if !has_place {
            return;
        }
        let before = shard.insert(key.into(), Entry::Banned { since });
        let was_banned = matches!(before, Some(Entry::Banned { .. }));
        self.banned.fetch_add(usize::from(!was_banned), AcqRel);
    }

    pub(super) fn remove(&self, key: &[u8]) {
        if let Some(removed) = self.shard(key).remove(key) {
            self.forget(1, usize::from(matches!(removed, Entry::Banned { .. })));
        }
    }

    pub(super) fn refused(&self, key: &[u8], at: Time, ban: &LoweredBan, statistics: &Statistics) -> Option<BannedNow> {
        let (mut shard, has_place) = self.shard_with_place(key, at, ban);
        if !has_place {
            statistics.count_ban_overflow();
            return None;
        }
        let entry = shard.entry(key.into()).or_insert_with(|| Entry::Refused(VecDeque::new()));
        if let Entry::Banned { since } = *entry {
            // Another thread banned the key after this request was decided.
            if let Some(rest) = rest(since, at, ban) {
                return Some(BannedNow { rest, begins: false });
            }
            *entry = Entry::Refused(VecDeque::new());
            self.banned.fetch_sub(1, AcqRel);
        }
        let Entry::Refused(times) = entry else { return None };
        let after = ban.after.get();
        if times.len() == times.capacity() {
            // Doubles the memory, but not beyond `after`, for which `weir_wire::check_ban` has checked that it fits.
            times.reserve_exact(times.len().max(1).min(after.saturating_sub(times.len())).max(1));
        }
        let place = times.partition_point(|earlier| *earlier <= at);
        times.insert(place, at);
        let (Some(last), Some(first)) = (times.back().copied(), times.len().checked_sub(after).map(|at| times[at]))
        else {
            return None;
        };
        if last.duration_since(first) >= ban.within {
            // These refusals are too far apart. Only the latest ones can still count.
            times.drain(..=times.len() - after);
            return None;
        }
        *entry = Entry::Banned { since: last };
        self.banned.fetch_add(1, AcqRel);
        statistics.count_ban_started();
        Some(BannedNow { rest: rest(last, at, ban).unwrap_or_default(), begins: true })
    }

    /// Removes old entries. Returns the number of banned keys.
    pub(super) fn sweep_all(&self, now: Time, ban: &LoweredBan) -> u64 {
        self.shards.iter().map(|shard| self.sweep(shard, now, ban).banned).sum()
    }

    /// Returns the number of banned keys. The work has a bound: of a large table, only some shards are searched for bans
    /// that have ended, and the others count them until a later call.
    pub(super) fn count(&self, now: Time, ban: &LoweredBan) -> u64 {
        let mut searched = 0;
        for _ in 0..SHARDS {
            let next = self.next_counted.fetch_add(1, Relaxed) % SHARDS;
            searched += self.sweep(&self.shards[next], now, ban).searched;
            if searched > ENTRIES_PER_COUNT {
                break;
            }
        }
        self.banned.load(Relaxed) as u64
    }

    pub(super) fn for_each(&self, now: Time, ban: &LoweredBan, mut each: impl FnMut(&[u8], Duration)) {
        for shard in &self.shards {
            for (key, entry) in &*lock(shard) {
                if let Entry::Banned { since } = entry
                    && let Some(rest) = rest(*since, now, ban)
                {
                    each(key, rest);
                }
            }
        }
    }

    pub(super) fn lift(&self, now: Time, ban: &LoweredBan, mut is_wanted: impl FnMut(&[u8]) -> bool) -> u64 {
        let mut lifted = 0;
        for shard in &self.shards {
            let mut removed = 0;
            lock(shard).retain(|key, entry| {
                let Entry::Banned { since } = entry else { return true };
                let is_removed = is_wanted(key);
                removed += usize::from(is_removed);
                lifted += u64::from(is_removed && rest(*since, now, ban).is_some());
                !is_removed
            });
            self.forget(removed, removed);
        }
        lifted
    }

    fn sweep(&self, shard: &Mutex<Shard>, now: Time, ban: &LoweredBan) -> Swept {
        let (mut removed, mut ended, mut banned) = (0, 0, 0);
        let mut shard = lock(shard);
        let searched = shard.len();
        shard.retain(|_, entry| {
            let (stays, is_ban) = match entry {
                Entry::Refused(times) => {
                    // After a change of the ban, a refusal that no longer counts must not count again.
                    let old = times.partition_point(|at| now.duration_since(*at) >= ban.within);
                    times.drain(..old);
                    (!times.is_empty(), false)
                }
                Entry::Banned { since } => (rest(*since, now, ban).is_some(), true),
            };
            removed += usize::from(!stays);
            ended += usize::from(is_ban && !stays);
            banned += u64::from(is_ban && stays);
            stays
        });
        drop(shard);
        self.forget(removed, ended);
        Swept { searched, removed, banned }
    }

    /// Removes old entries of the next shards, until there are some or [`ENTRIES_PER_SEARCH`] is reached. A round through all
    /// shards begins at most once in each pause.
    #[cold]
    fn search(&self, now: Time, ban: &LoweredBan) {
        let mut work = 0;
        while work < ENTRIES_PER_SEARCH
            && let Some(shard) = self.next_to_search(now)
        {
            let swept = self.sweep(shard, now, ban);
            if swept.removed > 0 {
                return;
            }
            work += 1 + swept.searched;
        }
    }

    /// Returns the next shard to search. `None` during a pause.
    fn next_to_search(&self, now: Time) -> Option<&Mutex<Shard>> {
        let mut search = lock(&self.search);
        if search.next == 0 {
            let size = u32::try_from(SHARDS + self.keys.load(Relaxed)).unwrap_or(u32::MAX);
            let pause = PAUSE.saturating_mul(size).min(LONGEST_PAUSE);
            if search.began.is_some_and(|began| now.duration_since(began) < pause) {
                return None;
            }
            search.began = Some(now);
        }
        let next = search.next;
        search.next = (next + 1) % SHARDS;
        Some(&self.shards[next])
    }

    /// Locks the shard of a key. Returns whether the key has an entry, or took a place for one.
    fn shard_with_place(&self, key: &[u8], now: Time, ban: &LoweredBan) -> (MutexGuard<'_, Shard>, bool) {
        let shard = self.shard(key);
        if shard.contains_key(key) || self.take_place(ban) {
            return (shard, true);
        }
        drop(shard);
        self.search(now, ban);
        let shard = self.shard(key);
        let has_place = shard.contains_key(key) || self.take_place(ban);
        (shard, has_place)
    }

    /// Takes a place for a new entry, if the table is not full.
    fn take_place(&self, ban: &LoweredBan) -> bool {
        let more = |keys| (keys < ban.max_keys.get()).then_some(keys + 1);
        self.keys.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives back the places of removed entries, of which some had a ban.
    fn forget(&self, removed: usize, bans: usize) {
        self.keys.fetch_sub(removed, Relaxed);
        self.banned.fetch_sub(bans, AcqRel);
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        // The remainder is smaller than the number of shards.
        lock(&self.shards[usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or(0)])
    }

    #[cfg(test)]
    pub(super) fn keys(&self) -> (usize, usize) {
        (self.keys.load(Relaxed), self.banned.load(Relaxed))
    }
}

/// Returns the rest of a ban. `None` if the ban has ended.
fn rest(since: Time, now: Time, ban: &LoweredBan) -> Option<Duration> {
    let rest = since.saturating_add(ban.length).duration_since(now);
    (!rest.is_zero()).then_some(rest)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread panics while it holds a lock, so a poisoned lock guards valid data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
