//! A bounded table with the keys of a shared rule. A forgotten key loses no count, because the store has all counts.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::{Notify, oneshot};
use weir_seats::{
    Level, StoreTerms, Take, Value,
    model::{charged, take, used},
    terms::MOST_UNITS,
};

use super::{
    decision::{Decision, QueueId},
    demand::DemandRate,
    hand::Hand,
};
use crate::lock::lock;

/// The extra room of a shard. It is used when every key has a request that waits, a question on its way, or debt.
const ROOM: usize = 64;

/// The time between a question without an answer and the next one that no request waits for.
pub(super) const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// The number of keys that are compared to select one to forget.
const LOOKS: usize = 16;

#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Shard = HashMap<u128, Box<Entry>>;

/// A key that was removed to make room for another key.
pub(super) type Forgotten = Option<(u128, Box<Entry>)>;

/// The state of one key in this program.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) hand: Hand,
    pub(super) waiting: VecDeque<Waiter>,
    /// True if a task asks the store for this key. At most one task does.
    pub(super) asks: bool,
    /// Wakes the task while it sleeps. None if it does not sleep.
    pub(super) sleeps: Option<Arc<Notify>>,
    pub(super) refused: Option<LastRefusal>,
    pub(super) level: Option<Level>,
    /// The terms of the level. They can be older than those in force.
    pub(super) level_terms: Option<Arc<StoreTerms>>,
    /// The number of failed questions (`StoreClient::failures`) when the level was asked for.
    pub(super) level_failures: u64,
    /// Used units that were not yet reported to the store.
    pub(super) owed: u32,
    /// The last report to the operator, until it is confirmed.
    pub(super) report: Option<Report>,
    /// Units of earlier requests that were not used after all, and that were not yet reported to the store.
    pub(super) credit: u32,
    pub(super) demand: DemandRate,
    /// The earliest time at which the program asks for more seats.
    pub(super) refill_after: Duration,
    /// The earliest time of a question that no request waits for, if the last question had no answer.
    pub(super) retry_at: Duration,
    /// The time at which the last request goes that the store admitted.
    pub(super) last_slot: Duration,
    /// The number of questions without an answer since the last answer.
    pub(super) misses: u32,
    pub(super) share: Option<Share>,
    pub(super) used: Duration,
    /// The time at which this program started a ban that was not yet reported to the store.
    pub(super) ban_started: Option<Duration>,
    /// The end of a ban that the caller knows. It counts as long as this entry has no level: the entry of a banned key can
    /// be evicted.
    pub(super) banned_until: Duration,
    /// True if the store must be asked whether the key is banned.
    pub(super) looks: bool,
    /// The time at which the newest answered question was asked.
    pub(super) asked_at: Duration,
}

impl Entry {
    /// Records that a question was not answered. The next question that no request waits for comes at this time.
    pub(super) fn missed(&mut self, retry_at: Duration) {
        (self.misses, self.retry_at) = (self.misses.saturating_add(1), retry_at);
    }

    /// Charges units to this program's share, if there is one. Returns the units that the share does not cover.
    pub(super) fn charge_share(&mut self, terms: Option<&StoreTerms>, at: u64, units: u64) -> u64 {
        match (&mut self.share, terms) {
            (Some(share), Some(terms)) if share.value.stamp == terms.stamp() => share.charge(terms, at, units),
            _ => units,
        }
    }

    /// Adds units to those that the next question reports.
    pub(super) fn add_owed(&mut self, units: u64) {
        self.owed = self.owed.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// Returns true if this program's share admitted units that must be reported to the store.
    pub(super) fn owes_share(&self, at: u64) -> bool {
        self.share.as_ref().is_some_and(|share| share.owed(at) > 0)
    }

    /// Takes the units that the operator must know when the share ends, at most [`MOST_UNITS`]. The next question reports
    /// the rest. Units of a report that nothing has confirmed are reported again: charging them twice never admits too
    /// many requests.
    pub(super) fn report(&mut self, share_time: u64, now: Duration) -> u32 {
        if let Some(share) = self.share.take() {
            self.add_owed(share.owed_to_new(share_time).into());
        }
        if let Some(lost) = self.report.take() {
            self.add_owed(lost.units.into());
        }
        let units = self.owed.min(MOST_UNITS);
        if units > 0 {
            self.owed -= units;
            self.report = Some(Report { units, sent_at: now });
            // Requests of the key can confirm the report first, and save a question.
            self.retry_at = now + BETWEEN_ATTEMPTS;
        }
        units
    }

    /// Records an answer to a question of this time.
    pub(super) fn confirm_report(&mut self, asked_at: Duration) {
        self.report = self.report.filter(|report| report.sent_at > asked_at);
    }

    /// Ends the count of this program's share. `reported` is the number of its units that the last question contained;
    /// the rest is owed to the store.
    pub(super) fn end_share(&mut self, reported: u64) {
        if let Some(share) = self.share.take() {
            self.add_owed(share.admitted.saturating_sub(reported));
        }
    }
}

/// Units that a program reported to the operator when its share ended. A report has no answer, and it is lost if the
/// channel breaks too early. An answer to a later question confirms it, because a channel keeps the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) units: u32,
    pub(super) sent_at: Duration,
}

/// The count of this program's share while the store is lost.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The number of the loss.
    pub(super) loss: u64,
    /// The time from which the share admits requests.
    pub(super) begins: Duration,
    pub(super) value: Value,
    /// The units that were admitted during this loss.
    pub(super) admitted: u64,
}

impl Share {
    /// Charges units. Later requests wait until they are repaid. Returns the units beyond the share's capacity.
    fn charge(&mut self, terms: &StoreTerms, at: u64, units: u64) -> u64 {
        let owed = u32::try_from(units).unwrap_or(u32::MAX).min(MOST_UNITS);
        let Some(encoded) = (Take { requests: 0, owed, ..Take::new(terms) }).encode() else { return units };
        let before = used(&self.value, at);
        self.value = take(Some(&self.value), &encoded, at).value;
        let covered = used(&self.value, at).saturating_sub(before).min(units);
        self.admitted += covered;
        units - covered
    }

    /// The units of the share that still count at this time. The store must charge them when it returns. It must not
    /// charge earlier ones, because the limit has refilled since.
    pub(super) fn owed(&self, at: u64) -> u32 {
        self.at_most(used(&self.value, at))
    }

    /// The units that a new operator must charge. Unlike a store, it has not counted anything before.
    pub(super) fn owed_to_new(&self, at: u64) -> u32 {
        self.at_most(charged(&self.value, at))
    }

    fn at_most(&self, units: u64) -> u32 {
        u32::try_from(self.admitted.min(units)).unwrap_or(u32::MAX)
    }
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The number of the request, in the order of arrival.
    pub(super) id: u64,
    pub(super) queue_id: QueueId,
    /// The end of the request's patience.
    pub(super) latest: Duration,
    /// True if the request can wait for a slot, not only for the store's answer.
    pub(super) is_patient: bool,
    pub(super) sender: oneshot::Sender<Decision>,
}

impl Waiter {
    /// The remaining patience of the request.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_patient { self.latest.saturating_sub(now) } else { Duration::ZERO }
    }
}

/// A refusal by the store, until which asking again is useless.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastRefusal {
    pub(super) cost: u32,
    /// The time at which the refused request can go, on the store's clock.
    pub(super) until: u64,
    /// The time until which this program does not ask: `until`, or earlier if units can come back.
    pub(super) asks_at: u64,
    /// The delay after `asks_at` with which a request that waits asks, so that programs do not ask at the same moment. A
    /// new request asks immediately, because its client has waited for `until`.
    pub(super) jitter: Duration,
}

impl Entry {
    /// Returns true if the key can be forgotten. A used share does not hold its key: clients choose keys, so they could
    /// fill the table, and all other keys would be refused until the store returns.
    fn is_quiet(&self) -> bool {
        !self.asks && self.waiting.is_empty() && !self.owes()
    }

    /// Returns true if there is something to report to the store, or a report to confirm.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0 || self.credit > 0 || self.ban_started.is_some() || self.report.is_some()
    }
}

impl Table {
    /// A retune keeps the shards, because tasks and requests find the entry of a key by them.
    pub(super) fn new(most_keys: usize) -> Self {
        let shards = if most_keys < 1_024 { 1 } else { 64 };
        Self { shards: (0..shards).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index % self.shards.len()])
    }

    pub(super) fn shard_of(&self, hash: u128) -> MutexGuard<'_, Shard> {
        // Hashes are uniform, so any bits select the shard.
        self.shard(usize::try_from(hash >> 96).unwrap_or_default())
    }

    /// Finds or creates the entry of a key. Also returns the key that was forgotten for it, if any. None if the table
    /// is full.
    pub(super) fn entry<'a>(
        &self,
        shard: &'a mut Shard,
        hash: u128,
        most_keys: usize,
    ) -> Option<(&'a mut Entry, Forgotten)> {
        let most = most_keys.div_ceil(self.shards.len());
        let mut forgotten = None;
        if !shard.contains_key(&hash) && shard.len() >= most {
            let quiet = shard.iter().filter(|(_, entry)| entry.is_quiet()).take(LOOKS);
            let oldest = quiet.min_by_key(|(_, entry)| entry.used).map(|(hash, _)| *hash);
            forgotten = oldest.and_then(|hash| Some((hash, shard.remove(&hash)?)));
            if forgotten.is_none() && shard.len() >= most + ROOM {
                return None;
            }
        }
        Some((shard.entry(hash).or_default(), forgotten))
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

/// Forgets idle keys without seats, owed units and a valid refusal, unless they are needed. The store has their counts.
pub(super) fn forget_idle(shard: &mut Shard, before: Duration, time: u64, is_needed: impl Fn(&Entry) -> bool) {
    shard.retain(|_, entry| {
        let is_refused = entry.refused.is_some_and(|refused| refused.until > time);
        !entry.is_quiet() || is_refused || entry.used > before || entry.hand.units() > 0 || is_needed(entry)
    });
}
