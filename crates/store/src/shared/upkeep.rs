//! The work that the client of a store starts for each rule from time to time, and when a channel to an operator begins
//! or ends. Also the work that the common bound of keys starts.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use weir_seats::{BanChange, Key, Seats};

use super::{Entry, SharedLimiter, request::Clocks};
use crate::store_rule::{KeyReport, StoreRule};

/// The time without a request after which the seats of a key are given back to the store, by the next sweep of its shard.
/// A sweep is short, because it visits one shard: with 64 shards, the next one can be 16 s away.
pub(super) const UNUSED: Duration = Duration::from_secs(1);

/// The time without a request after which a key is evicted.
const IDLE: Duration = Duration::from_secs(60);

impl StoreRule for SharedLimiter {
    /// Sweeps one shard of the table: it gives back unused seats, reports owed units, and forgets idle keys.
    fn sweep(self: Arc<Self>) {
        if self.client.current_loss().is_some() {
            return;
        }
        let now = self.client.now();
        let Some(time) = self.client.time(now) else { return };
        let share_time = self.share_time(now);
        let (mut unused, mut owing) = (Vec::new(), Vec::new());
        let mut shard = self.table.shard(self.swept.fetch_add(1, Relaxed));
        for (&hash, entry) in shard.iter_mut() {
            let rare = entry.rare();
            let is_due = (rare.owes() || entry.owes_share(share_time)) && now >= rare.retry_at;
            if is_due && entry.begins_task() {
                owing.push(hash);
            }
            if entry.used() + UNUSED < now {
                let seats = entry.drain_seats();
                if !seats.is_empty() {
                    unused.push((hash, seats));
                }
            }
        }
        // The agents report to the next leader what this one has counted.
        let is_needed = |entry: &Entry| self.client.asks_operator() && entry.is_full(time.earliest) == Some(false);
        self.table.forget_idle(&mut shard, now.saturating_sub(IDLE), Clocks { now, time }, is_needed);
        drop(shard);
        owing.into_iter().for_each(|hash| self.start_task(hash));
        for (hash, all) in unused {
            all.into_iter().for_each(|seats| self.give_back(hash, seats));
        }
    }

    fn give_all_back(&self) {
        self.end_free_slots();
        for index in 0..self.table.shards() {
            let drain = |(&hash, entry): (&u128, &mut Box<Entry>)| (hash, entry.drain_seats());
            let unused: Vec<_> = self.table.shard(index).iter_mut().map(drain).collect();
            for (hash, all) in unused {
                all.into_iter().for_each(|seats| self.give_back(hash, seats));
            }
        }
    }

    fn levels(&self, most: usize, levels: &mut Vec<KeyReport>) -> bool {
        let rule = self.rule();
        let Some(time) = self.client.time(self.client.now()) else { return true };
        let mut is_complete = self.evicted_full_at.load(Relaxed) <= time.earliest;
        for index in 0..self.table.shards() {
            for (&hash, entry) in self.table.shard(index).iter() {
                let Ok(key) = Key::new(&rule.counters, hash) else { continue };
                // A key at full credit is as good as unknown.
                if entry.is_full(time.earliest) != Some(false) {
                    continue;
                }
                let Some(answer) = entry.answer.as_ref().filter(|_| levels.len() < most) else {
                    is_complete = false;
                    continue;
                };
                levels.push(KeyReport {
                    key,
                    terms: Arc::clone(&answer.terms),
                    level: Some(answer.level.clone()),
                    owed: 0,
                    ban: rule.ban(BanChange::Keep),
                });
            }
        }
        is_complete
    }

    fn end_shares(&self, used: &mut Vec<KeyReport>) {
        self.end_free_slots();
        let (rule, now) = (self.rule(), self.client.now());
        let share_time = self.share_time(now);
        for index in 0..self.table.shards() {
            for (&hash, entry) in self.table.shard(index).iter_mut() {
                let seats = entry.drain_seats();
                self.client.stats.count_lost_seats(seats.iter().map(Seats::left).fold(0, u32::saturating_add));
                // The refusal has a time of the earlier operator's clock, and the new operator's clock can differ by hours.
                entry.refused = None;
                entry.wake();
                let owed = entry.report(share_time, now);
                let (Ok(key), true) = (Key::new(&rule.counters, hash), owed > 0) else { continue };
                let terms = Arc::clone(&rule.set(hash).terms);
                used.push(KeyReport { key, terms, level: None, owed, ban: rule.ban(BanChange::Keep) });
            }
        }
    }

    fn keys(&self) -> usize {
        self.table.len()
    }

    fn most_keys(&self) -> usize {
        self.rule().most_keys
    }

    fn make_room(&self) -> bool {
        // In a table with few keys, a shard can be empty.
        let tries = if self.table.has_few() { self.table.shards() } else { 1 };
        let forgotten = (0..tries).find_map(|_| {
            let index = self.shrunk.fetch_add(1, Relaxed);
            self.table.forget_one(&mut self.table.shard(index), index)
        });
        forgotten.map(|forgotten| self.forget(forgotten)).is_some()
    }
}
