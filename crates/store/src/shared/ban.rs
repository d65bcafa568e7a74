//! Bans of keys in the store. A program starts a ban, and every program learns of it with its next question about the
//! key. A rule with a ban takes no seats in advance, so each request of the key asks the store.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use weir_seats::{BanChange, BanQuestion, Banned, Key, Reply, StoreError, StoreTime, Take};

use super::{
    Entry, SharedLimiter, SharedRule,
    entry::Answer,
    question::Owned,
    request::{Moment, micros},
};

/// The age of an answer after which the store is asked whether a ban is still in force.
const RECENT: Duration = Duration::from_secs(1);

/// What a ban means for a request.
pub(super) enum ByBan {
    /// It is refused for this time.
    Refused(Duration),
    /// The store must be asked whether the ban is still in force.
    Asks,
}

/// What a question says about a ban that this program started.
pub(super) fn started(since: Duration, now: Duration) -> BanChange {
    BanChange::Start { ago: now.saturating_sub(since) }
}

impl SharedRule {
    /// Bans keys for this time.
    #[must_use]
    pub fn with_ban(self, length: Duration) -> Self {
        Self { ban: Some(length), ..self }
    }

    /// The part of a question that is about the ban of its key.
    pub(super) fn ban(&self, change: BanChange) -> Option<BanQuestion> {
        self.ban.map(|length| BanQuestion { length, change })
    }
}

impl SharedLimiter {
    /// Starts a ban of a key, without waiting for the store. If the store is lost, the ban starts in the store when it
    /// returns.
    pub fn start_ban(&self, hash: u128) {
        self.with_entry(hash, |entry, now| {
            entry.rare_mut().ban_started.get_or_insert(now);
            true
        });
    }

    /// Returns true if another program has lifted the ban of a key. The caller knows the ban for the time `known`. This
    /// asks the store if its last answer is not recent, and does not wait for the answer. If the entry of the key was
    /// evicted, the new entry has the caller's ban until the store answers.
    pub fn is_lifted(&self, hash: u128, known: Duration) -> bool {
        let mut is_lifted = false;
        let rest = self.rule().ban.unwrap_or_default().saturating_sub(known);
        self.with_entry(hash, |entry, now| {
            let (asked_at, level) = (entry.asked_at(), entry.level());
            let is_banned = level.is_none_or(|level| level.banned().is_some());
            is_lifted = entry.rare().ban_started.is_none() && !is_banned && asked_at + known > now;
            let looks = !is_lifted && asked_at + RECENT <= now;
            if entry.answer.is_none() {
                entry.rare_mut().banned_until = now + rest;
            }
            if looks {
                entry.rare_mut().asks_for_ban = true;
            }
            looks
        });
        is_lifted
    }

    /// Returns true if a request of a banned key must wait for the store, because its last answer about the ban is not
    /// recent: another program can have lifted the ban. Without an answer, the ban stays in force.
    pub fn must_ask_about_ban(&self, hash: u128) -> bool {
        let (rule, moment) = (self.rule(), self.moment());
        let shard = self.table.shard_of(hash);
        shard.get(&hash).is_some_and(|entry| {
            entry.rare().ban_started.is_none() && matches!(self.by_ban(entry, &rule, moment), Some(ByBan::Asks))
        })
    }

    /// What a ban that the store or the caller has reported means for a request of the key. `None` if there is no such ban.
    pub(super) fn by_ban(&self, entry: &Entry, rule: &SharedRule, moment: Moment) -> Option<ByBan> {
        let Moment { now, time, lost } = moment;
        let rest = entry.ban_rest(rule, now, time)?;
        let is_recent = entry.asked_at() + RECENT > now;
        // After a question without an answer, the next one waits.
        let can_ask = lost.is_none() && now >= entry.rare().retry_at;
        Some(if !is_recent && can_ask { ByBan::Asks } else { ByBan::Refused(rest) })
    }

    /// Lifts the ban of a key in the store. Returns true if the key was banned there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer.
    pub async fn lift_ban(&self, hash: u128) -> Result<bool, StoreError> {
        let (mut started, mut earlier) = (None, None);
        if let Some(entry) = self.table.shard_of(hash).get_mut(&hash) {
            let rare = entry.rare_mut();
            earlier = rare.lifted_at.replace(self.client.now());
            started = rare.ban_started.take();
        }
        let lifted = self.lift_in_store(hash).await;
        if lifted.is_err()
            && let Some(entry) = self.table.shard_of(hash).get_mut(&hash)
        {
            let rare = entry.rare_mut();
            (rare.ban_started, rare.lifted_at) = (rare.ban_started.or(started), earlier);
        }
        lifted
    }

    async fn lift_in_store(&self, hash: u128) -> Result<bool, StoreError> {
        let was_banned = self.change_ban(hash, BanChange::Keep).await?.is_some();
        self.change_ban(hash, BanChange::Lift).await?;
        Ok(was_banned)
    }

    /// Lifts a ban that a question has started after the lift overtook it.
    pub(super) fn lift_again(&self, hash: u128) {
        let Some(me) = self.me.upgrade() else { return };
        self.client.spawn(async move { drop(me.change_ban(hash, BanChange::Lift).await) });
    }

    /// Asks the store about the ban of a key, and waits for the answer. Returns the ban that is in force then.
    async fn change_ban(&self, hash: u128, change: BanChange) -> Result<Option<Banned>, StoreError> {
        let rule = self.rule();
        let Ok(key) = Key::new(&rule.counters, hash) else { return Ok(None) };
        let terms = Arc::clone(&rule.set(hash).terms);
        let failures = self.client.failures();
        let last = self.table.shard_of(hash).get_mut(&hash).and_then(|entry| entry.answer.clone());
        let seen = last.filter(|last| last.failures != failures).map(|last| last.level);
        let question = Take { requests: 0, seen: seen.as_ref(), ban: rule.ban(change), ..Take::new(&terms) };
        let answer = timeout(self.client.deadline(), self.client.ask(&key, &question)).await;
        let Reply { level, newer, .. } = answer.map_err(|_| StoreError::Late)??.reply;
        let banned = level.banned();
        if let Some(entry) = self.table.shard_of(hash).get_mut(&hash) {
            let last = entry.answer.take();
            let (failures, asked_at) = last.map_or((0, Duration::ZERO), |last| (last.failures, last.asked_at));
            entry.answer = Some(Answer { level, terms: newer.map_or(terms, Arc::new), failures, asked_at });
        }
        Ok(banned)
    }

    /// Changes the entry of a key. If `change` returns true, the store is asked about the key.
    fn with_entry(&self, hash: u128, change: impl FnOnce(&mut Entry, Duration) -> bool) {
        let (rule, now) = (self.rule(), self.client.now());
        let mut shard = self.table.shard_of(hash);
        let Some((entry, room)) = self.table.entry(&mut shard, hash, rule.most_keys) else { return };
        entry.note_use(now);
        let asks = change(entry, now);
        if asks {
            entry.wake();
        }
        let begins = asks && self.client.current_loss().is_none() && entry.begins_task();
        drop(shard);
        if begins {
            self.start_task(hash);
        }
        self.settle(room);
    }
}

impl Entry {
    /// Returns true if this program has lifted the ban that the question starts.
    pub(super) fn has_lifted(&self, question: &Owned) -> bool {
        question.ban_started().is_some_and(|started| self.rare().lifted_at >= Some(started))
    }

    /// The rest of the key's ban, as far as this program knows it.
    pub(super) fn ban_rest(&self, rule: &SharedRule, now: Duration, time: Option<StoreTime>) -> Option<Duration> {
        let length = rule.ban?;
        let rest = match self.level() {
            Some(level) => {
                Duration::from_micros((level.banned()?.since + micros(length)).saturating_sub(time?.earliest))
            }
            None => self.rare().banned_until.saturating_sub(now),
        };
        (!rest.is_zero()).then_some(rest)
    }
}
