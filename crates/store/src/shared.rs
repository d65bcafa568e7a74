//! One rule that several programs share: decides at once with the seats that it holds, and asks the store otherwise.
//!
//! For each key there is at most one question on its way. Requests that come meanwhile wait for it, and share the next.
//! A decision holds a lock briefly. No lock is held during I/O.

mod answer;
mod demand;
mod drive;
mod hand;
mod local;
mod rule;
mod table;
#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use self::{
    answer::Decision,
    hand::{Found, Hand},
    rule::reach,
    table::{Entry, Forgotten, Refused, Table, Waiter},
};
use crate::{
    bounds::StoreTime,
    client::{StoreClient, Sweep},
    seats::Seats,
    take::Left,
};

pub use self::{
    answer::{Claim, Denied, Grant, Waits},
    rule::{InvalidRule, OnLoss, SharedRule},
};

/// The most requests of a rule that wait for a store.
const MOST_WAITING: usize = 65_536;

/// Seats that were not used for this long go back to the store.
const UNUSED: Duration = Duration::from_secs(1);

/// A key without requests for this long is evicted.
const IDLE: Duration = Duration::from_secs(60);

/// When to come again if this program has no room, or if the store is lost and that closes the rule.
const SOON: Duration = Duration::from_secs(1);

/// A shared rule in a program.
#[derive(Debug)]
pub struct SharedLimiter {
    client: Arc<StoreClient>,
    rule: RwLock<Arc<SharedRule>>,
    table: Table,
    waiting: AtomicUsize,
    overflowed: AtomicU64,
    evicted: AtomicU64,
    swept: AtomicUsize,
    me: Weak<Self>,
    /// Orders changes.
    changes: Mutex<()>,
}

/// How full the table of keys is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedKeys {
    /// Keys that this program knows now.
    pub tracked: u64,
    /// Keys that it was asked to know at most.
    pub capacity: u64,
    /// Keys that were forgotten for others.
    pub evicted: u64,
    /// Requests that were refused because all keys had requests that wait.
    pub overflowed: u64,
}

/// What a key has, as far as this program knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Seats in hand.
    pub seats: u32,
    /// What the store said that it has left.
    pub left: Option<Left>,
    /// How long the store refuses this cost.
    pub refused_for: Option<Duration>,
    /// Whether the store is lost.
    pub is_lost: bool,
}

impl SharedLimiter {
    /// A rule that uses a store.
    pub fn new(client: Arc<StoreClient>, rule: SharedRule) -> Arc<Self> {
        let table = Table::new(rule.most_keys);
        let limiter = Arc::new_cyclic(|me| Self {
            client,
            rule: RwLock::new(Arc::new(rule)),
            table,
            waiting: AtomicUsize::new(0),
            overflowed: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            swept: AtomicUsize::new(0),
            me: Weak::clone(me),
            changes: Mutex::default(),
        });
        let me: Weak<Self> = Arc::downgrade(&limiter);
        limiter.client.sweeps(me);
        limiter
    }

    /// Whether a rule with this store and these counters goes on with this limiter.
    pub fn goes_on_with(&self, client: &Arc<StoreClient>, rule: &SharedRule) -> bool {
        Arc::ptr_eq(&self.client, client) && self.rule().counters == rule.counters
    }

    /// Changes the limits. Seats of the limits before are dropped: they were charged.
    pub fn retune(&self, rule: SharedRule) {
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.rule() == rule {
            return;
        }
        *self.rule.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rule);
        for index in 0..self.table.shards() {
            for entry in self.table.shard(index).values_mut() {
                // A higher limit counts at once.
                entry.refused = None;
                entry.local = None;
            }
        }
    }

    /// The store.
    pub fn client(&self) -> &Arc<StoreClient> {
        &self.client
    }

    /// Runs a task on the runtime of the store client.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.client.runtime().spawn(task);
    }

    fn rule(&self) -> Arc<SharedRule> {
        Arc::clone(&self.rule.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Decides at once, if it can. `set` is the index of the key's limits in the rule. `patience` is how long the request
    /// may wait.
    pub fn claim(&self, hash: u128, set: usize, cost: u32, patience: Duration) -> Claim {
        let (rule, now) = (self.rule(), self.client.now());
        if rule.set(set).never_admits(cost) {
            return Claim::Denied(Denied { retry_after: None, left: None });
        }
        let lost = self.client.lost();
        let time = self.client.time(now);
        let mut shard = self.table.shard_of(hash);
        let Some((entry, forgotten)) = self.table.entry(&mut shard, hash, rule.most_keys) else {
            self.overflowed.fetch_add(1, Relaxed);
            return Claim::Denied(Denied { retry_after: Some(SOON), left: None });
        };
        entry.begin(set, now);
        let claim = self.claim_in(entry, &rule, (hash, cost, patience), (now, time, lost));
        let refills = matches!(claim, Claim::Granted(_)) && lost.is_none() && self.refills(entry, &rule, now);
        if refills {
            entry.asks = true;
        }
        drop(shard);
        if refills {
            self.drive(hash);
        }
        self.forget(forgotten);
        claim
    }

    fn claim_in(
        &self,
        entry: &mut Entry,
        rule: &SharedRule,
        (hash, cost, patience): (u128, u32, Duration),
        (now, time, lost): (Duration, Option<StoreTime>, Option<u64>),
    ) -> Claim {
        let terms = &rule.set(entry.set).terms;
        if let Some(time) = time {
            let (found, expired) = entry.hand.claim(terms, cost, time);
            self.client.stats.count_lost(expired);
            match found {
                Found::Seats(seats) => {
                    entry.demand.count(now, cost);
                    let left = entry.left(rule, time.latest);
                    return Claim::Granted(self.grant(hash, entry.set, Some(seats), left));
                }
                Found::Later(due) if lost.is_none() && due > time.latest + micros(patience) => {
                    entry.demand.count(now, cost);
                    let retry_after = Some(Duration::from_micros(due - time.earliest));
                    return Claim::Denied(Denied { retry_after, left: entry.left(rule, time.latest) });
                }
                Found::Later(_) | Found::Nothing => {}
            }
        }
        if let Some(loss) = lost {
            return match self.without_store(entry, rule, (hash, cost), (now, loss)) {
                Ok(grant) => Claim::Granted(grant),
                Err(denied) => Claim::Denied(denied),
            };
        }
        match (entry.refused, time) {
            (Some(refused), Some(time)) if refused.holds(cost, patience, time) => {
                entry.demand.count(now, cost);
                let retry_after = Some(Duration::from_micros(refused.until.saturating_sub(time.earliest)));
                Claim::Denied(Denied { retry_after, left: entry.left(rule, time.latest) })
            }
            _ => Claim::Ask,
        }
    }

    /// Asks the store for a request that [`claim`](Self::claim) could not decide.
    pub fn ask(&self, hash: u128, set: usize, cost: u32, patience: Duration) -> Waits {
        let (rule, now) = (self.rule(), self.client.now());
        let (sender, receiver) = oneshot::channel();
        let limiter = self.me.upgrade().expect("it is used");
        let waits = Waits { limiter, receiver, slot: None };
        let mut shard = self.table.shard_of(hash);
        let is_full = self.waiting.load(Relaxed) >= MOST_WAITING;
        let Some((entry, forgotten)) = self.table.entry(&mut shard, hash, rule.most_keys).filter(|_| !is_full) else {
            drop(shard);
            self.overflowed.fetch_add(1, Relaxed);
            let _ = sender.send(Err(Denied { retry_after: Some(SOON), left: None }));
            return waits;
        };
        entry.begin(set, now);
        entry.demand.count(now, cost);
        self.waiting.fetch_add(1, Relaxed);
        entry.waiting.push_back(Waiter { cost, latest: now + patience, is_patient: !patience.is_zero(), sender });
        let begins = !std::mem::replace(&mut entry.asks, true);
        if let Some(sleeps) = entry.sleeps.take() {
            sleeps.notify_one();
        }
        drop(shard);
        if begins {
            self.drive(hash);
        }
        self.forget(forgotten);
        waits
    }

    /// Charges a cost that became known after the decision. The next question of this key reports it to the store.
    pub fn owe(&self, hash: u128, set: usize, units: u64) {
        let (rule, now) = (self.rule(), self.client.now());
        let mut shard = self.table.shard_of(hash);
        let Some((entry, forgotten)) = self.table.entry(&mut shard, hash, rule.most_keys) else { return };
        entry.begin(set, now);
        entry.owed = entry.owed.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        let begins = self.client.lost().is_none() && !std::mem::replace(&mut entry.asks, true);
        drop(shard);
        if begins {
            self.drive(hash);
        }
        self.forget(forgotten);
    }

    /// What this program knows about a key. It changes nothing.
    pub fn known(&self, hash: u128, set: usize, cost: u32) -> Known {
        let (rule, now) = (self.rule(), self.client.now());
        let is_lost = self.client.lost().is_some();
        let time = self.client.time(now);
        let shard = self.table.shard_of(hash);
        let Some((entry, time)) = shard.get(&hash).filter(|entry| entry.set == set).zip(time) else {
            return Known { is_lost, ..Known::default() };
        };
        let refused = entry.refused.filter(|refused| refused.holds(cost, Duration::ZERO, time));
        let refused_for = refused.map(|refused| Duration::from_micros(refused.until.saturating_sub(time.earliest)));
        Known { seats: entry.hand.units(), left: entry.left(&rule, time.latest), refused_for, is_lost }
    }

    /// How full the table of keys is.
    pub fn keys(&self) -> SharedKeys {
        SharedKeys {
            tracked: self.table.len() as u64,
            capacity: self.rule().most_keys as u64,
            evicted: self.evicted.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
        }
    }

    /// How long until this time of the store has surely come. None if it has.
    fn until(&self, due: u64) -> Option<Duration> {
        let time = self.client.time(self.client.now())?;
        due.checked_sub(time.earliest).filter(|rest| *rest > 0).map(Duration::from_micros)
    }

    fn grant(&self, hash: u128, set: usize, seats: Option<Seats>, left: Option<Left>) -> Grant {
        Grant { limiter: self.me.upgrade().expect("it is used"), hash, set, seats, left }
    }

    /// Whether to ask for seats before the last of them is used.
    fn refills(&self, entry: &Entry, rule: &SharedRule, now: Duration) -> bool {
        if entry.asks || now < entry.refill_after {
            return false;
        }
        let wanted = self.wanted(entry, rule);
        wanted > 0 && entry.hand.units() <= wanted / 2
    }

    /// How many seats the key should have in hand.
    fn wanted(&self, entry: &Entry, rule: &SharedRule) -> u32 {
        let round = self.client.round();
        rule.set(entry.set).wanted(entry.demand.within(reach(round)), round)
    }

    /// A request did not go.
    fn put_back(&self, hash: u128, set: usize, seats: Seats) {
        let rule = self.rule();
        let terms = &rule.set(set).terms;
        let mut shard = self.table.shard_of(hash);
        let dropped = match shard.get_mut(&hash) {
            Some(entry) => entry.hand.add(terms, seats),
            None => seats.left(),
        };
        drop(shard);
        self.client.stats.count_lost(dropped);
    }

    /// Gives back the seats of a key that was forgotten.
    fn forget(&self, forgotten: Forgotten) {
        let Some((hash, mut entry)) = forgotten else { return };
        self.evicted.fetch_add(1, Relaxed);
        for seats in entry.hand.drain() {
            self.give_back(hash, entry.set, seats);
        }
    }
}

impl Entry {
    /// A request with these limits came.
    fn begin(&mut self, set: usize, now: Duration) {
        self.used = now;
        if self.set != set {
            // Seats of other limits are not for these.
            (self.set, self.refused, self.local, self.hand) = (set, None, None, Hand::default());
        }
    }

    fn left(&self, rule: &SharedRule, time: u64) -> Option<Left> {
        self.level.as_ref()?.left(&rule.set(self.set).terms, time)
    }
}

impl Refused {
    /// Whether it is useless to ask for this cost, for a request that may wait this long.
    fn holds(&self, cost: u32, patience: Duration, time: StoreTime) -> bool {
        cost >= self.cost && self.asks_at > time.latest + micros(patience)
    }
}

impl Sweep for SharedLimiter {
    /// Looks at one part of the keys: gives back unused seats, reports what is owed, forgets idle keys.
    fn sweep(self: Arc<Self>) {
        if self.client.lost().is_some() {
            return;
        }
        let now = self.client.now();
        let Some(time) = self.client.time(now) else { return };
        let (mut unused, mut owing) = (Vec::new(), Vec::new());
        let mut shard = self.table.shard(self.swept.fetch_add(1, Relaxed));
        for (&hash, entry) in shard.iter_mut() {
            if entry.owed > 0 && !entry.asks {
                entry.asks = true;
                owing.push(hash);
            }
            if entry.hand.units() > 0 && entry.used + UNUSED < now {
                unused.push((hash, entry.set, entry.hand.drain()));
            }
        }
        table::forget_idle(&mut shard, now.saturating_sub(IDLE), time.latest);
        drop(shard);
        owing.into_iter().for_each(|hash| self.drive(hash));
        for (hash, set, all) in unused {
            all.into_iter().for_each(|seats| self.give_back(hash, set, seats));
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
