//! The ban of keys that a rule refuses again and again.
//!
//! A rule counts its own refusals of each key. The refusal that completes `after` refusals within the time `within`
//! bans the key: the rule then refuses all requests of the key for a fixed time, and no rule is charged for them.
//! Refusals during a ban do not count, so a ban ends at its time. Then the key starts without refusals. In shadow mode
//! a ban is only counted.
//!
//! Each program counts the refusals that it saw, also for a rule that a store counts. Such a rule also has its bans in
//! the store (`rule/bans.rs`).
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
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

use weir_core::Time;

use super::{lower::LoweredBan, statistics::Statistics};

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

/// A ban that applies to a refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BannedNow {
    pub(super) rest: Duration,
    /// Whether the ban begins with this request. If not, the key was already banned.
    pub(super) begins: bool,
}

/// The ban of a rule in force.
#[derive(Debug)]
pub(super) struct Ban {
    lowered: LoweredBan,
    /// Shared with the rule's successors, so a change of the numbers applies to bans in force.
    table: Arc<Table>,
}

/// The refusals and the bans of each key.
#[derive(Debug)]
struct Table {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// The number of entries.
    keys: AtomicUsize,
    /// The number of entries with a ban, including bans that have ended.
    banned: AtomicUsize,
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

impl Ban {
    /// Creates the ban of a rule. `before` is the ban of the same rule before a change that kept the key. If a ban has
    /// already ended, a longer length does not start it again. Refusals that were too old to count do not count again.
    pub(super) fn from_lowered(before: Option<&Self>, lowered: LoweredBan, now: Time) -> Self {
        let table = before.map(|before| {
            before.banned_keys(now);
            Arc::clone(&before.table)
        });
        Self { lowered, table: table.unwrap_or_default() }
    }

    /// Whether a key may be banned. A request of any other rule need not look for its key.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.table.banned.load(Acquire) > 0
    }

    /// Returns the rest of the key's ban. `None` if the key is not banned.
    pub(super) fn rest(&self, key: &[u8], now: Time) -> Option<Duration> {
        let mut shard = self.table.shard(key);
        let Some(Entry::Banned { since }) = shard.get(key) else { return None };
        let rest = self.rest_since(*since, now);
        if rest.is_none() {
            shard.remove(key);
            self.table.forget(1, 1);
        }
        rest
    }

    /// Counts a refusal of a key by the rule. Returns the ban if the key is banned now.
    pub(super) fn refused(&self, key: &[u8], at: Time, statistics: &Statistics) -> Option<BannedNow> {
        let (mut shard, has_place) = self.shard_with_place(key, at);
        if !has_place {
            statistics.ban_overflow.count();
            return None;
        }
        let entry = shard.entry(key.into()).or_insert_with(|| Entry::Refused(VecDeque::new()));
        if let Entry::Banned { since } = *entry {
            // Another thread banned the key after this request was decided.
            if let Some(rest) = self.rest_since(since, at) {
                return Some(BannedNow { rest, begins: false });
            }
            *entry = Entry::Refused(VecDeque::new());
            self.table.banned.fetch_sub(1, AcqRel);
        }
        let Entry::Refused(times) = entry else { return None };
        let after = self.lowered.after.get();
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
        if last.duration_since(first) >= self.lowered.within {
            // These refusals are too far apart. Only the latest ones can still count.
            times.drain(..=times.len() - after);
            return None;
        }
        *entry = Entry::Banned { since: last };
        self.table.banned.fetch_add(1, AcqRel);
        statistics.bans_started.count();
        Some(BannedNow { rest: self.rest_since(last, at).unwrap_or_default(), begins: true })
    }

    /// Records a ban that another program started.
    pub(super) fn learn(&self, key: &[u8], rest: Duration, at: Time) {
        let since = at.saturating_add(rest).saturating_sub(self.lowered.length);
        let (mut shard, has_place) = self.shard_with_place(key, at);
        if !has_place {
            return;
        }
        let before = shard.insert(key.into(), Entry::Banned { since });
        let was_banned = matches!(before, Some(Entry::Banned { .. }));
        self.table.banned.fetch_add(usize::from(!was_banned), AcqRel);
    }

    /// Removes the ban of a key.
    pub(super) fn lift_one(&self, key: &[u8]) {
        if let Some(removed) = self.table.shard(key).remove(key) {
            self.table.forget(1, usize::from(matches!(removed, Entry::Banned { .. })));
        }
    }

    /// The length of bans.
    pub(super) fn length(&self) -> Duration {
        self.lowered.length
    }

    /// Returns the number of banned keys. Removes the entries of bans that have ended, and of refusals that are too old
    /// to count.
    pub(super) fn banned_keys(&self, now: Time) -> u64 {
        self.table.shards.iter().map(|shard| self.sweep(shard, now).banned).sum()
    }

    /// Returns the number of banned keys, with a bound on the work: of more than 16,384 keys, bans that have ended
    /// count until a later call. Removes old entries, too.
    pub(super) fn count(&self, now: Time) -> u64 {
        let mut searched = 0;
        for _ in 0..SHARDS {
            let next = self.table.next_counted.fetch_add(1, Relaxed) % SHARDS;
            searched += self.sweep(&self.table.shards[next], now).searched;
            if searched > ENTRIES_PER_COUNT {
                break;
            }
        }
        self.table.banned.load(Relaxed) as u64
    }

    /// Calls `each` for every banned key, with the rest of its ban.
    pub(super) fn for_each(&self, now: Time, mut each: impl FnMut(&[u8], Duration)) {
        for shard in &self.table.shards {
            for (key, entry) in &*lock(shard) {
                if let Entry::Banned { since } = entry
                    && let Some(rest) = self.rest_since(*since, now)
                {
                    each(key, rest);
                }
            }
        }
    }

    /// Lifts the bans of these keys. Returns the number of keys that were banned.
    pub(super) fn lift(&self, now: Time, mut is_wanted: impl FnMut(&[u8]) -> bool) -> u64 {
        let mut lifted = 0;
        for shard in &self.table.shards {
            let mut removed = 0;
            lock(shard).retain(|key, entry| {
                let Entry::Banned { since } = entry else { return true };
                let is_removed = is_wanted(key);
                removed += usize::from(is_removed);
                lifted += u64::from(is_removed && self.rest_since(*since, now).is_some());
                !is_removed
            });
            self.table.forget(removed, removed);
        }
        lifted
    }

    fn sweep(&self, shard: &Mutex<Shard>, now: Time) -> Swept {
        let (mut removed, mut ended, mut banned) = (0, 0, 0);
        let mut shard = lock(shard);
        let searched = shard.len();
        shard.retain(|_, entry| {
            let (stays, is_ban) = match entry {
                Entry::Refused(times) => {
                    // After a change of the ban, a refusal that no longer counts must not count again.
                    let old = times.partition_point(|at| now.duration_since(*at) >= self.lowered.within);
                    times.drain(..old);
                    (!times.is_empty(), false)
                }
                Entry::Banned { since } => (self.rest_since(*since, now).is_some(), true),
            };
            removed += usize::from(!stays);
            ended += usize::from(is_ban && !stays);
            banned += u64::from(is_ban && stays);
            stays
        });
        drop(shard);
        self.table.forget(removed, ended);
        Swept { searched, removed, banned }
    }

    /// Removes old entries of the next shards, until there are some or [`ENTRIES_PER_SEARCH`] is reached. A round through all
    /// shards begins at most once in each pause.
    #[cold]
    fn search(&self, now: Time) {
        let mut work = 0;
        while work < ENTRIES_PER_SEARCH
            && let Some(shard) = self.table.next_to_search(now)
        {
            let swept = self.sweep(shard, now);
            if swept.removed > 0 {
                return;
            }
            work += 1 + swept.searched;
        }
    }

    /// Locks the shard of a key. Returns whether the key has an entry, or took a place for one.
    fn shard_with_place(&self, key: &[u8], now: Time) -> (MutexGuard<'_, Shard>, bool) {
        let shard = self.table.shard(key);
        if shard.contains_key(key) || self.take_place() {
            return (shard, true);
        }
        drop(shard);
        self.search(now);
        let shard = self.table.shard(key);
        let has_place = shard.contains_key(key) || self.take_place();
        (shard, has_place)
    }

    /// Takes a place for a new entry, if the table is not full.
    fn take_place(&self) -> bool {
        let more = |keys| (keys < self.lowered.max_keys.get()).then_some(keys + 1);
        self.table.keys.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Returns the rest of a ban. `None` if the ban has ended.
    fn rest_since(&self, since: Time, now: Time) -> Option<Duration> {
        let rest = since.saturating_add(self.lowered.length).duration_since(now);
        (!rest.is_zero()).then_some(rest)
    }
}

impl Table {
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
    fn keys(&self) -> (usize, usize) {
        (self.keys.load(Relaxed), self.banned.load(Relaxed))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No thread panics while it holds a lock, so a poisoned lock guards valid data.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
