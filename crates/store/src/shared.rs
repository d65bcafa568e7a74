//! A limiter for one rule that several programs share. It decides immediately with the seats that it holds, and
//! otherwise asks the store.
//!
//! For each key, at most one question is on its way. Requests that arrive in the meantime wait for its answer, and
//! share the next question. A decision holds a lock briefly. No lock is held during I/O.

mod ban;
mod decision;
mod entry;
mod evict;
mod hand;
mod key_task;
mod question;
mod queue;
mod rate;
mod request;
mod reset;
mod returns;
mod rule;
mod share;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;
mod without_store;

use std::{
    sync::{
        Arc, Mutex, PoisonError, RwLock, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::sync::oneshot;
use weir_seats::{Left, Seats, terms::MOST_UNITS};

use self::{
    ban::ByBan,
    decision::QueueId,
    entry::{Entry, Waiter},
    hand::Found,
    queue::Queues,
    request::{Clocks, KeyRequest, Moment, micros},
    rule::{LimitSet, reach},
    share::Share,
    table::Table,
};
pub use self::{
    decision::{Claim, Grant, PendingGrant, Refused, UsedSeats},
    rule::{InvalidRule, OnLoss, SharedRule},
};
use crate::client::StoreClient;

/// The maximum number of requests of a rule that wait for the store.
const MOST_WAITING: usize = 65_536;

/// The `Retry-After` of a request that is refused because the table is full, or because the store is lost and the rule
/// is closed then.
const SOON: Duration = Duration::from_secs(1);

/// The number of questions in a row without an answer after which a key is cut off from its store.
const MISSES_OF_KEY: u32 = 3;

/// The limiter of a shared rule in one program.
#[derive(Debug)]
pub struct SharedLimiter {
    client: Arc<StoreClient>,
    rule: RwLock<Arc<SharedRule>>,
    table: Table,
    queues: Queues,
    requests: AtomicU64,
    waiting: AtomicUsize,
    /// The number of questions on their way that give seats back.
    returns: Arc<AtomicUsize>,
    overflowed: AtomicU64,
    evicted: AtomicU64,
    /// The time at which all keys that were evicted are at full credit again. The next operator does not learn their
    /// levels from this program.
    evicted_full_at: AtomicU64,
    /// The time at which a key with a share was last evicted, in microseconds of the program's clock. What the share had
    /// admitted is forgotten, so a share that begins again has no credit from before.
    shares_evicted_at: AtomicU64,
    swept: AtomicUsize,
    /// The shard that last made room for keys of other rules.
    shrunk: AtomicUsize,
    me: Weak<Self>,
    /// Serializes changes of the rule.
    changes: Mutex<()>,
}

/// Statistics of the table of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedKeys {
    /// Keys that are in the table now.
    pub tracked: u64,
    /// The configured maximum number of keys.
    pub capacity: u64,
    /// Keys that were evicted to make room for other keys.
    pub evicted: u64,
    /// Requests that were refused because the table had no room for their key, or because too many requests waited.
    pub overflowed: u64,
}

/// What this program knows about a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyView {
    /// The seats that this program holds.
    pub seats: u32,
    /// The remaining units, computed from the last answer of the store. While the store is lost, those of this program's
    /// share.
    pub left: Option<Left>,
    /// The time until the store, or this program's share, can admit this cost. None if it is not known to refuse it.
    pub refused_for: Option<Duration>,
    /// True if the cost is more than the limits ever admit.
    pub never: bool,
    /// True if the store is lost, or does not answer about this key.
    pub is_lost: bool,
}

impl KeyView {
    /// Returns true if the store, or this program's share, is known to refuse this cost.
    pub fn is_refused(&self) -> bool {
        self.never || self.refused_for.is_some()
    }
}

impl Drop for SharedLimiter {
    fn drop(&mut self) {
        self.forget_refusal();
        self.client.parts.keys.resize();
    }
}

impl SharedLimiter {
    /// Creates the limiter of a rule that uses this store.
    pub fn new(client: Arc<StoreClient>, rule: SharedRule) -> Arc<Self> {
        let table = Table::new(rule.most_keys, Arc::clone(&client.parts.keys));
        let limiter = Arc::new_cyclic(|me| Self {
            client,
            rule: RwLock::new(Arc::new(rule)),
            table,
            queues: Queues::default(),
            requests: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            returns: Arc::default(),
            overflowed: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            evicted_full_at: AtomicU64::new(0),
            shares_evicted_at: AtomicU64::new(0),
            swept: AtomicUsize::new(0),
            shrunk: AtomicUsize::new(0),
            me: Weak::clone(me),
            changes: Mutex::default(),
        });
        let me: Weak<Self> = Arc::downgrade(&limiter);
        limiter.client.parts.keys.add_rule(Weak::<Self>::clone(&me));
        limiter.client.add_rule(me);
        limiter
    }

    /// Returns true if a changed rule can keep this limiter: it uses the same store client and the same counters.
    pub fn goes_on_with(&self, client: &Arc<StoreClient>, rule: &SharedRule) -> bool {
        Arc::ptr_eq(&self.client, client) && self.rule().counters == rule.counters
    }

    /// Changes the limits. Seats of the old limits can no longer be used. They stay charged in the store.
    pub fn retune(&self, rule: SharedRule) {
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if *self.rule() == rule {
            return;
        }
        let rule = Arc::new(rule);
        *self.rule.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&rule);
        self.client.parts.keys.resize();
        // The next requests get slots of the new limits.
        self.end_free_slots();
        self.forget_refusal();
        let share_time = self.share_time(self.client.now());
        for index in 0..self.table.shards() {
            for (&hash, entry) in self.table.shard(index).iter_mut() {
                // A higher limit takes effect immediately, also for requests that wait.
                entry.refused = None;
                entry.wake();
                self.retune_share(entry, rule.set(hash).share_terms.as_deref(), share_time);
            }
        }
    }

    /// Forgets that the store refuses the questions of this rule. A program calls this function when the rule is no
    /// longer in force, if it keeps the limiter.
    pub fn forget_refusal(&self) {
        self.client.forget_refusal(&self.rule().counters);
    }

    /// The store.
    pub fn client(&self) -> &Arc<StoreClient> {
        &self.client
    }

    /// Runs a task on the runtime of the store client.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.client.spawn(task);
    }

    fn rule(&self) -> Arc<SharedRule> {
        Arc::clone(&self.rule.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Decides on a request without waiting, if possible. `patience` is the longest time that the request can wait. A cost
    /// of 0 charges nothing and is never refused.
    pub fn claim(&self, hash: u128, cost: u32, patience: Duration) -> Claim {
        let rule = self.rule();
        let set = rule.set(hash);
        if cost > MOST_UNITS || set.never_admits(cost) {
            return Claim::Refused(Refused::new(None, None));
        }
        if cost == 0 {
            return Claim::Granted(self.grant(hash, None, None));
        }
        let moment = self.moment();
        let mut shard = self.table.shard_of(hash);
        let Some((entry, room)) = self.table.entry(&mut shard, hash, rule.most_keys) else {
            drop(shard);
            return self.without_entry(&rule, hash).into();
        };
        let Moment { now, lost, .. } = moment;
        entry.note_use(now);
        let claim = self.claim_in(entry, (&rule, set), KeyRequest { hash, cost, patience }, moment);
        let refills = matches!(claim, Claim::Granted(_)) && lost.is_none() && self.refills(entry, (&rule, set), now);
        if refills {
            entry.begins_task();
        }
        drop(shard);
        if refills {
            self.start_task(hash);
        }
        self.settle(room);
        claim
    }

    /// The time of a decision that is made now.
    fn moment(&self) -> Moment {
        let now = self.client.now();
        let lost = self.client.current_loss();
        Moment { now, time: self.client.time(now), lost }
    }

    fn claim_in(
        &self,
        entry: &mut Entry,
        (rule, set): (&SharedRule, &LimitSet),
        request: KeyRequest,
        moment: Moment,
    ) -> Claim {
        let (KeyRequest { hash, cost, patience }, Moment { now, lost, .. }) = (request, moment);
        let terms = &set.terms;
        let queue_id = QueueId { hash, stamp: terms.stamp(), cost };
        // A rule with a ban asks the store about each request.
        let has_slot = || !patience.is_zero() && rule.ban.is_none() && self.has_slot(queue_id, now + patience);
        match self.by_ban(entry, rule, moment) {
            Some(ByBan::Refused(rest)) => return Claim::Refused(Refused::banned(rest)),
            Some(ByBan::Asks) => return Claim::AskStore,
            None => {}
        }
        let clocks = moment.clocks();
        if let Some(clocks @ Clocks { time, .. }) = clocks {
            let (found, expired) = entry.claim_seats(terms, cost, clocks);
            self.client.stats.count_lost_seats(expired);
            match found {
                Found::Seats(seats) => {
                    entry.rate.count(now, cost);
                    let left = entry.left(set, time.latest);
                    return Claim::Granted(self.grant(hash, Some(seats), left));
                }
                Found::Later(due) if lost.is_none() && due > time.latest + micros(patience) && !has_slot() => {
                    entry.rate.count(now, cost);
                    let retry_after = Some(Duration::from_micros(due - time.earliest));
                    return Claim::Refused(Refused::new(retry_after, entry.left(set, time.latest)));
                }
                Found::Later(_) | Found::Nothing => {}
            }
        }
        if let Some(loss) = lost.or_else(|| self.cut_off(entry, now)) {
            return self.without_store(entry, rule, request, (now, loss)).into();
        }
        match (entry.refused, clocks) {
            (Some(refused), Some(clocks)) if refused.applies_to(request, clocks) && !has_slot() => {
                entry.rate.count(now, cost);
                let left = entry.left(set, clocks.time.latest);
                Claim::Refused(Refused::new(Some(refused.retry_after(clocks)), left))
            }
            _ => Claim::AskStore,
        }
    }

    /// Asks the store for a request that [`claim`](Self::claim) could not decide.
    pub fn ask(&self, hash: u128, cost: u32, patience: Duration) -> PendingGrant {
        let (rule, now) = (self.rule(), self.client.now());
        let (sender, receiver) = oneshot::channel();
        let limiter = self.me.upgrade().expect("the caller has a handle");
        let queue_id = QueueId { hash, stamp: rule.set(hash).terms.stamp(), cost };
        let mut shard = self.table.shard_of(hash);
        // The lock is held, so requests of a key get their numbers in the order in which they join a queue.
        let id = self.requests.fetch_add(1, Relaxed);
        let pending = PendingGrant { limiter, receiver, queue_id, id };
        if cost == 0 {
            let _ = sender.send(Ok(self.grant(hash, None, None)));
            return pending;
        }
        let is_full = self.waiting.load(Relaxed) >= MOST_WAITING;
        let found = if is_full { None } else { self.table.entry(&mut shard, hash, rule.most_keys) };
        let Some((entry, room)) = found else {
            drop(shard);
            let _ = sender.send(self.without_entry(&rule, hash));
            return pending;
        };
        entry.note_use(now);
        entry.rate.count(now, cost);
        let waiter = Waiter { id, queue_id, latest: now + patience, is_patient: !patience.is_zero(), sender };
        // A free slot does not go to this request while the store decides on earlier ones.
        let can_join = entry.task.is_none() && self.client.current_loss().is_none() && rule.ban.is_none();
        let asks = if can_join { self.join(waiter).err() } else { Some(waiter) };
        let begins = asks.is_some_and(|waiter| {
            self.waiting.fetch_add(1, Relaxed);
            entry.wait_for_task(waiter)
        });
        drop(shard);
        if begins {
            self.start_task(hash);
        }
        self.settle(room);
        pending
    }

    /// Decides on a request of a key for which the table has no room. The caller must hold no lock.
    fn without_entry(&self, rule: &SharedRule, hash: u128) -> Result<Grant, Refused> {
        self.client.parts.keys.make_room();
        if rule.on_loss == OnLoss::Open && self.client.current_loss().is_some() {
            return Ok(self.grant(hash, None, rule.set(hash).full));
        }
        self.overflowed.fetch_add(1, Relaxed);
        Err(Refused::new(Some(SOON), None))
    }

    /// Charges a cost that became known after the decision. The next question of this key reports it to the store.
    /// Without the store, this program's share is charged; a rule that then admits all requests charges nothing.
    pub fn owe(&self, hash: u128, units: u64) {
        let (rule, at) = (self.rule(), self.share_time(self.client.now()));
        let can_open = rule.on_loss == OnLoss::Open;
        if can_open && self.client.current_loss().is_some() {
            return;
        }
        self.report(hash, |entry| {
            if can_open && entry.rare().is_open {
                return;
            }
            let rest = entry.charge_share(rule.set(hash).share_terms.as_deref(), at, units);
            entry.add_owed(rest);
        });
    }

    /// Gives back units of earlier requests that were not used after all. The next question of this key reports them to
    /// the store. They are lost if its answer is lost, or if the table of keys is full. A rule that admits all requests
    /// because its store is lost gives nothing back, because it charges nothing.
    pub fn credit(&self, hash: u128, units: u64) {
        let can_open = self.rule().on_loss == OnLoss::Open;
        if can_open && self.client.current_loss().is_some() {
            return;
        }
        self.report(hash, |entry| {
            if can_open && entry.rare().is_open {
                return;
            }
            let rare = entry.rare_mut();
            rare.credit = rare.credit.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        });
    }

    /// Changes what the next question of a key reports, and asks this question now.
    fn report(&self, hash: u128, change: impl FnOnce(&mut Entry)) {
        let (rule, now) = (self.rule(), self.client.now());
        let mut shard = self.table.shard_of(hash);
        let Some((entry, room)) = self.table.entry(&mut shard, hash, rule.most_keys) else { return };
        entry.note_use(now);
        change(entry);
        entry.wake();
        let begins = self.client.current_loss().is_none() && entry.begins_task();
        drop(shard);
        if begins {
            self.start_task(hash);
        }
        self.settle(room);
    }

    /// Returns what this program knows about a key, without a side effect.
    pub fn known(&self, hash: u128, cost: u32) -> KeyView {
        let (rule, request) = (self.rule(), KeyRequest { hash, cost, patience: Duration::ZERO });
        let never = cost > MOST_UNITS || rule.set(hash).never_admits(cost);
        let moment @ Moment { now, lost, .. } = self.moment();
        let shard = self.table.shard_of(hash);
        let entry = shard.get(&hash).map(|entry| &**entry);
        if let Some(loss) = lost.or_else(|| self.cut_off(entry?, now)) {
            let known = self.known_without_store(entry, &rule, request, (now, loss));
            return KeyView { never, refused_for: known.refused_for.filter(|_| !never), ..known };
        }
        let Some((entry, clocks @ Clocks { time, .. })) = entry.zip(moment.clocks()) else {
            return KeyView { never, ..KeyView::default() };
        };
        let refused = entry.refused.filter(|refused| !never && refused.applies_to(request, clocks));
        let refused_for = refused.map(|refused| refused.retry_after(clocks));
        // A ban refuses every cost until its end.
        let refused_for = refused_for.max(entry.ban_rest(&rule, now, Some(time)).filter(|_| !never));
        let left = entry.left(rule.set(hash), time.latest);
        KeyView { seats: entry.seats(), left, refused_for, never, is_lost: false }
    }

    /// Returns the remaining units of a key, and the size of the limit with the smallest part of its requests left.
    /// None without an answer of the store, and while the store is lost.
    pub fn headroom(&self, hash: u128) -> Option<(u64, u64)> {
        let known = self.known(hash, 1);
        if known.is_refused() {
            return Some((0, 1));
        }
        if known.is_lost {
            return None;
        }
        let time = self.moment().clocks()?.time;
        let shard = self.table.shard_of(hash);
        let (units, of) = shard.get(&hash)?.headroom(self.rule().set(hash), time.latest)?;
        Some((units.saturating_add(known.seats.into()).min(of), of))
    }

    /// The statistics of the table of keys.
    pub fn keys(&self) -> SharedKeys {
        SharedKeys {
            tracked: self.table.len() as u64,
            capacity: self.rule().most_keys as u64,
            evicted: self.evicted.load(Relaxed),
            overflowed: self.overflowed.load(Relaxed),
        }
    }

    /// The time until the store's clock has certainly reached `due`. None if it has.
    fn until(&self, due: u64) -> Option<Duration> {
        let time = self.client.time(self.client.now())?;
        due.checked_sub(time.earliest).filter(|rest| *rest > 0).map(Duration::from_micros)
    }

    fn grant(&self, hash: u128, seats: Option<Seats>, left: Option<Left>) -> Grant {
        Grant { limiter: self.me.upgrade().expect("the caller has a handle"), hash, seats, left }
    }

    /// Returns true if the key should ask for seats now, before its last seat is used.
    fn refills(&self, entry: &Entry, (rule, set): (&SharedRule, &LimitSet), now: Duration) -> bool {
        if entry.task.is_some() || now < entry.rare().refill_after {
            return false;
        }
        let wanted = self.wanted(entry, rule, set);
        wanted > 0 && entry.seats() <= wanted / 2
    }

    /// Returns the number of the next loss if the store does not answer about this key, although it answers about
    /// others, because one server of several is lost. Then the key has its share, and this program asks the store about
    /// it once per second.
    fn cut_off(&self, entry: &Entry, now: Duration) -> Option<u64> {
        let rare = entry.rare();
        let is_cut_off = rare.misses >= MISSES_OF_KEY && now < rare.retry_at && !self.client.asks_operator();
        is_cut_off.then(|| self.client.loss_number())
    }

    /// The number of seats that the program should hold for the key.
    fn wanted(&self, entry: &Entry, rule: &SharedRule, set: &LimitSet) -> u32 {
        if rule.ban.is_some() {
            return 0;
        }
        let round = self.client.round();
        set.wanted(entry.rate.within(reach(round)), round)
    }

    /// The units of a share that the store must charge. An operator can be a new one, which has not counted before.
    fn owed_of(&self, share: &Share, share_time: u64) -> u32 {
        if self.client.asks_operator() { share.owed_to_new(share_time) } else { share.owed(share_time) }
    }

    fn have_ended(&self, hash: u128, seats: &Seats) -> bool {
        let time = self.client.time(self.client.now());
        time.is_some_and(|time| seats.have_ended(&self.rule().set(hash).terms, time))
    }

    /// Takes back the seats of a granted request that did not go. They can be used at `usable_at` at the latest.
    fn put_back(&self, hash: u128, seats: Seats, usable_at: Duration) {
        let rule = self.rule();
        let terms = &rule.set(hash).terms;
        // A share can begin while the operator is lost, and it does not count these seats.
        let is_cut_off = self.client.asks_operator() && self.client.current_loss().is_some();
        let mut shard = self.table.shard_of(hash);
        let dropped = match shard.get_mut(&hash).filter(|_| !is_cut_off) {
            Some(entry) => entry.add_seats(terms, seats, usable_at),
            None => seats.left(),
        };
        drop(shard);
        self.client.stats.count_lost_seats(dropped);
    }
}
