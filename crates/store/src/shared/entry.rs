//! What a program knows about one key.
//!
//! Clients choose keys, so most entries of a flood are of keys with one request. Such an entry has an answer of the store,
//! and perhaps a refusal. What fewer keys have is in boxes.

use std::{collections::VecDeque, num::NonZeroU32, sync::Arc, time::Duration};

use tokio::sync::{Notify, oneshot};
use weir_seats::{Left, Level, Seats, StoreTerms, terms::MOST_UNITS};

use super::{
    decision::{Decision, QueueId},
    hand::{Found, Hand},
    rate::Rate,
    request::{Clocks, KeyRequest, micros},
    rule::LimitSet,
    share::Share,
};

/// The time between a question without an answer and the next one that no request waits for.
pub(super) const BETWEEN_ATTEMPTS: Duration = Duration::from_secs(1);

/// The state of one key in this program.
#[derive(Debug, Default)]
pub(super) struct Entry {
    /// The time of the last use, in microseconds of the program's clock: a `Duration` would take twice the memory.
    used: u64,
    pub(super) rate: Rate,
    pub(super) answer: Option<Answer>,
    pub(super) refused: Option<LastRefusal>,
    /// Exists while a task asks the store for this key. At most one task does.
    pub(super) task: Option<Box<Task>>,
    hand: Option<Box<Hand>>,
    pub(super) share: Option<Box<Share>>,
    pub(super) rare: Option<Box<RareState>>,
}

/// The newest answer of the store.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) level: Level,
    /// The terms of the level. They can be older than those in force.
    pub(super) terms: Arc<StoreTerms>,
    /// The number of failed questions (`StoreClient::failures`) when the level was asked for.
    pub(super) failures: u64,
    pub(super) asked_at: Duration,
}

/// A refusal by the store, until which asking again is useless.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastRefusal {
    pub(super) cost: NonZeroU32,
    /// In microseconds, the delay after the refusal with which a request that waits asks, so that programs do not ask at the
    /// same moment. A new request asks immediately, because its client has waited for `until`.
    pub(super) jitter: u32,
    /// The time at which the refused request can proceed, on the store's clock.
    pub(super) until: u64,
    /// The time on the program's clock at which a slower store's clock is certainly at `until`. The refusal ends then,
    /// even if the store's clock is set back.
    pub(super) latest: u64,
    /// The time on the program's clock until which it does not ask: `latest`, or earlier because units can come back.
    pub(super) asks_at: u64,
}

/// What the task of a key works on.
#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) waiting: VecDeque<Waiter>,
    /// Wakes the task while it sleeps. None if it does not sleep.
    pub(super) sleeps: Option<Arc<Notify>>,
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

/// The part of an entry that only few keys need: something to report to the store, questions without an answer, a ban,
/// or a time to wait for.
#[derive(Debug)]
pub(super) struct RareState {
    /// Used units that were not yet reported to the store.
    pub(super) owed: u32,
    /// Units of earlier requests that were not used after all, and that were not yet reported to the store.
    pub(super) credit: u32,
    /// The last report to the operator, until it is confirmed.
    pub(super) report: Option<Report>,
    /// The time at which this program started a ban that was not yet reported to the store.
    pub(super) ban_started: Option<Duration>,
    /// The time at which this program last lifted the key's ban.
    pub(super) lifted_at: Option<Duration>,
    /// The end of a ban that the caller knows. It counts as long as this entry has no answer: the entry of a banned key can
    /// be evicted.
    pub(super) banned_until: Duration,
    /// True if the store must be asked whether the key is banned.
    pub(super) asks_for_ban: bool,
    /// The number of questions without an answer since the last answer.
    pub(super) misses: u32,
    /// True if requests were admitted without the store since its last answer, by a rule that then charges nothing.
    pub(super) is_open: bool,
    /// The earliest time of a question that no request waits for, if the last question had no answer.
    pub(super) retry_at: Duration,
    /// The earliest time at which the program asks for more seats.
    pub(super) refill_after: Duration,
    /// The time at which the last request goes that waits for its slot.
    pub(super) last_slot: Duration,
}

/// Units that a program reported to the operator when its share ended. A report has no answer, and it is lost if the
/// channel breaks too early. An answer to a later question confirms it, because a channel keeps the order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) units: u32,
    pub(super) sent_at: Duration,
}

impl Entry {
    pub(super) fn rare(&self) -> &RareState {
        self.rare.as_deref().unwrap_or(&RareState::NONE)
    }

    pub(super) fn rare_mut(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// Returns true if the key can be forgotten. A used share does not hold its key: clients choose keys, so they could
    /// fill the table, and all other keys would be refused until the store returns.
    pub(super) fn is_quiet(&self) -> bool {
        self.task.is_none() && !self.rare().owes()
    }

    /// Records that a task asks the store. Returns false if one does already.
    pub(super) fn begins_task(&mut self) -> bool {
        let begins = self.task.is_none();
        self.task.get_or_insert_default();
        begins
    }

    /// Adds a request that waits for the task. Returns false if a task asks the store already.
    pub(super) fn wait_for_task(&mut self, waiter: Waiter) -> bool {
        let begins = self.task.is_none();
        self.task.get_or_insert_default().waiting.push_back(waiter);
        self.wake();
        begins
    }

    /// Wakes the task of the key if it sleeps.
    pub(super) fn wake(&mut self) {
        if let Some(sleeps) = self.task.as_mut().and_then(|task| task.sleeps.take()) {
            sleeps.notify_one();
        }
    }

    /// Records an answer. Frees what only mattered before it.
    pub(super) fn learn(&mut self, answer: Answer, now: Duration) {
        if let Some(rare) = &mut self.rare {
            rare.report = rare.report.filter(|report| report.sent_at > answer.asked_at);
            (rare.misses, rare.is_open, rare.retry_at) = (0, false, Duration::ZERO);
        }
        self.rare = self.rare.take().filter(|rare| rare.matters(now));
        self.answer = Some(answer);
    }

    pub(super) fn level(&self) -> Option<&Level> {
        self.answer.as_ref().map(|answer| &answer.level)
    }

    /// The time at which the newest answered question was asked. Zero before the first answer.
    pub(super) fn asked_at(&self) -> Duration {
        self.answer.as_ref().map_or(Duration::ZERO, |answer| answer.asked_at)
    }

    /// The time from which the level is at full credit. None without a level.
    pub(super) fn level_full_at(&self) -> Option<u64> {
        self.answer.as_ref().and_then(|answer| answer.level.full_at(&answer.terms))
    }

    /// Returns true if the key is at full credit at this time of the store, as far as the level shows it. None without a
    /// level.
    pub(super) fn is_full(&self, time: u64) -> Option<bool> {
        Some(self.level_full_at()? <= time)
    }

    pub(super) fn left(&self, set: &LimitSet, time: u64) -> Option<Left> {
        self.level()?.left(&set.terms, time)
    }

    pub(super) fn headroom(&self, set: &LimitSet, time: u64) -> Option<(u64, u64)> {
        self.level()?.headroom(&set.terms, time)
    }

    /// The number of seats that the program holds for the key.
    pub(super) fn seats(&self) -> u32 {
        self.hand.as_ref().map_or(0, |hand| hand.units())
    }

    /// Records a use of the key.
    pub(super) fn note_use(&mut self, now: Duration) {
        self.used = micros(now);
    }

    /// The time of the last use.
    pub(super) fn used(&self) -> Duration {
        Duration::from_micros(self.used)
    }

    /// Takes seats for a request, as [`Hand::claim`].
    pub(super) fn claim_seats(&mut self, terms: &StoreTerms, cost: u32, clocks: Clocks) -> (Found, u32) {
        self.hand.as_mut().map_or((Found::Nothing, 0), |hand| hand.claim(terms, cost, clocks))
    }

    /// Adds seats, as [`Hand::add`].
    pub(super) fn add_seats(&mut self, terms: &StoreTerms, seats: Seats, usable_at: Duration) -> u32 {
        if seats.left() == 0 { 0 } else { self.hand.get_or_insert_default().add(terms, seats, usable_at) }
    }

    /// Removes all seats, and returns them.
    pub(super) fn drain_seats(&mut self) -> Vec<Seats> {
        self.hand.take().map_or_else(Vec::new, |hand| hand.into_seats())
    }

    /// Forgets everything that counts against the key. Requests that wait ask again. Returns the number of lost seats.
    pub(super) fn reset(&mut self) -> u32 {
        let lost = self.seats();
        (self.answer, self.refused, self.hand, self.share) = (None, None, None, None);
        let lifted_at = self.rare().lifted_at;
        self.rare = lifted_at.map(|_| Box::new(RareState { lifted_at, ..RareState::default() }));
        self.wake();
        lost
    }

    /// Adds units to those that the next question reports.
    pub(super) fn add_owed(&mut self, units: u64) {
        if units > 0 {
            let rare = self.rare_mut();
            rare.owed = rare.owed.saturating_add(u32::try_from(units).unwrap_or(u32::MAX));
        }
    }

    /// Charges units to this program's share, if there is one. Returns the units that the share does not cover.
    pub(super) fn charge_share(&mut self, terms: Option<&StoreTerms>, at: u64, units: u64) -> u64 {
        match (&mut self.share, terms) {
            (Some(share), Some(terms)) if share.value.stamp == terms.stamp() => share.charge(terms, at, units),
            _ => units,
        }
    }

    /// Returns true if this program's share admitted units that must be reported to the store.
    pub(super) fn owes_share(&self, at: u64) -> bool {
        self.share.as_ref().is_some_and(|share| share.owed(at) > 0)
    }

    /// Ends the count of this program's share. `reported` is the number of its units that the last question contained.
    /// The rest is owed to the store.
    pub(super) fn end_share(&mut self, reported: u64) {
        if let Some(share) = self.share.take() {
            self.add_owed(share.admitted.saturating_sub(reported));
        }
    }

    /// Takes the units that the operator must know when the share ends, at most [`MOST_UNITS`]. The next question reports
    /// the rest. Units of a report that nothing has confirmed are reported again: charging them twice never admits too
    /// many requests.
    pub(super) fn report(&mut self, share_time: u64, now: Duration) -> u32 {
        if let Some(share) = self.share.take() {
            self.add_owed(share.owed_to_new(share_time).into());
        }
        let Some(rare) = &mut self.rare else { return 0 };
        if let Some(lost) = rare.report.take() {
            rare.owed = rare.owed.saturating_add(lost.units);
        }
        let units = rare.owed.min(MOST_UNITS);
        if units > 0 {
            rare.owed -= units;
            rare.report = Some(Report { units, sent_at: now });
            // Requests of the key can confirm the report first, and save a question.
            rare.retry_at = now + BETWEEN_ATTEMPTS;
        }
        units
    }
}

impl RareState {
    const NONE: Self = Self {
        owed: 0,
        credit: 0,
        report: None,
        ban_started: None,
        lifted_at: None,
        banned_until: Duration::ZERO,
        asks_for_ban: false,
        misses: 0,
        is_open: false,
        retry_at: Duration::ZERO,
        refill_after: Duration::ZERO,
        last_slot: Duration::ZERO,
    };

    /// Records that a question was not answered. The next question that no request waits for comes at this time.
    pub(super) fn missed(&mut self, retry_at: Duration) {
        (self.misses, self.retry_at) = (self.misses.saturating_add(1), retry_at);
    }

    /// Returns true if there is something to report to the store, or a report to confirm.
    pub(super) fn owes(&self) -> bool {
        self.owed > 0 || self.credit > 0 || self.ban_started.is_some() || self.report.is_some()
    }

    /// Returns false if nothing here matters after an answer.
    fn matters(&self, now: Duration) -> bool {
        self.owes() || self.asks_for_ban || self.lifted_at.is_some() || self.refill_after > now || self.last_slot > now
    }
}

impl Default for RareState {
    fn default() -> Self {
        Self::NONE
    }
}

impl LastRefusal {
    /// The time until the refused request can certainly go.
    pub(super) fn retry_after(&self, Clocks { now, time }: Clocks) -> Duration {
        Duration::from_micros(self.until.saturating_sub(time.earliest).min(self.latest.saturating_sub(micros(now))))
    }

    /// The time for which this program does not ask.
    pub(super) fn rest(&self, clocks: Clocks) -> Duration {
        self.rest_of(clocks, self.asks_at)
    }

    /// Returns true if asking for this request is useless.
    pub(super) fn applies_to(&self, request: KeyRequest, clocks: Clocks) -> bool {
        let is_asked = micros(clocks.now) >= self.asks_at;
        request.cost >= self.cost.get() && !is_asked && self.rest_of(clocks, self.latest) > request.patience
    }

    fn rest_of(&self, Clocks { now, time }: Clocks, end: u64) -> Duration {
        Duration::from_micros(self.until.saturating_sub(time.latest).min(end.saturating_sub(micros(now))))
    }
}

impl Waiter {
    /// The remaining patience of the request.
    pub(super) fn patience(&self, now: Duration) -> Duration {
        if self.is_patient { self.latest.saturating_sub(now) } else { Duration::ZERO }
    }

    /// The request, with its remaining patience.
    pub(super) fn request(&self, now: Duration) -> KeyRequest {
        let QueueId { hash, cost, .. } = self.queue_id;
        KeyRequest { hash, cost, patience: self.patience(now) }
    }
}
