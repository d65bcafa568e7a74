//! Decisions while the store is lost.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use weir_core::Strategy;
use weir_seats::{
    Left, Next, StoreTerms, StoreTime, Take, Value,
    model::{Transition, take, used_up},
    state::start_of,
    terms::StoreLimit,
};

use super::{
    KeyView, OnLoss, SOON, SharedLimiter, SharedRule,
    decision::{Grant, Refused},
    entry::{Entry, RareState},
    request::{KeyRequest, micros},
    rule::left_of,
    share::Share,
};

/// The longest `Retry-After` of a share.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// What a share of a key depends on.
#[derive(Default)]
struct ShareInputs {
    /// The share so far.
    share: Option<Share>,
    /// Units that no report contains yet.
    owed: u32,
    /// Questions without an answer.
    misses: u32,
    /// The time at which the last request goes that the store admitted.
    last_slot: Duration,
    /// True if the share decides on a request, and is not only looked at.
    prepares: bool,
}

impl ShareInputs {
    fn of(entry: &Entry, share: Option<Share>, prepares: bool) -> Self {
        let RareState { owed, misses, last_slot, .. } = *entry.rare();
        Self { share, owed, misses, last_slot, prepares }
    }
}

impl SharedLimiter {
    /// The time of this program's share: the store's time, so that the windows of all shares begin when the store's
    /// windows begin. The program's own time before the first answer.
    pub(super) fn share_time(&self, now: Duration) -> u64 {
        self.client.time(now).map_or(micros(now), |time| time.earliest)
    }

    /// Changes the share of a key with the rule. What it admitted stays charged.
    pub(super) fn retune_share(&self, entry: &mut Entry, terms: Option<&StoreTerms>, at: u64) {
        let Some(mut share) = entry.share.take() else { return };
        if self.owed_of(&share, at) == 0 {
            // As for a key without a share, the next one begins with the loss.
            return;
        }
        let rest = match terms {
            Some(terms) if !self.client.asks_operator() => {
                let rest = share.retune(terms, at);
                entry.share = Some(share);
                rest
            }
            _ => self.owed_of(&share, at).into(),
        };
        entry.add_owed(rest);
    }

    /// Returns how long the store's time can be in either of two windows. Then the share admits nothing. After a long
    /// loss, the store's time is not known well enough for short windows, and their beginnings are not respected.
    fn between_windows(&self, terms: &StoreTerms, now: Duration) -> Option<Duration> {
        let StoreTime { earliest, latest } = self.client.time(now)?;
        let gap = latest - earliest;
        let is_between = |limit: &StoreLimit| {
            limit.has_windows() && start_of(limit, earliest) != start_of(limit, latest) && gap <= limit.period / 10
        };
        terms.raw().iter().any(is_between).then_some(Duration::from_micros(gap))
    }

    /// Decides as the rule defines for a lost store. `loss` is the number of this loss.
    pub(super) fn without_store(
        &self,
        entry: &mut Entry,
        rule: &SharedRule,
        KeyRequest { hash, cost, .. }: KeyRequest,
        (now, loss): (Duration, u64),
    ) -> Result<Grant, Refused> {
        if let Some(rest) = entry.ban_rest(rule, now, self.client.time(now)) {
            return Err(Refused::banned(rest));
        }
        match rule.on_loss {
            OnLoss::Open => {
                entry.rare_mut().is_open = true;
                Ok(self.grant(hash, None, rule.set(hash).full))
            }
            OnLoss::Closed => Err(Refused::new(Some(SOON), None)),
            OnLoss::LocalShare => {
                let Some(terms) = &rule.set(hash).share_terms else {
                    return Err(Refused::new(Some(SOON), None));
                };
                if let Some(gap) = self.between_windows(terms, now) {
                    return Err(Refused::new(Some(gap), None));
                }
                let at = self.share_time(now);
                let earlier = entry.share.take().map(|share| *share);
                let (share, owed) = self.share(ShareInputs::of(entry, earlier, true), terms, (now, at, loss));
                entry.add_owed(owed);
                let (value, left, answer) = Self::ask_share(&share, terms, cost, (now, at));
                let granted = if answer.is_ok() { u64::from(cost) } else { 0 };
                entry.share = Some(Box::new(Share { loss, value, admitted: share.admitted + granted, ..share }));
                match answer {
                    Ok(()) => Ok(self.grant(hash, None, left)),
                    Err(wait) => Err(Refused::new(Some(wait), left)),
                }
            }
        }
    }

    /// Returns what is known about the key while the store is lost: what [`without_store`](Self::without_store) would
    /// decide. Does not change the key.
    pub(super) fn known_without_store(
        &self,
        entry: Option<&Entry>,
        rule: &SharedRule,
        KeyRequest { hash, cost, .. }: KeyRequest,
        (now, loss): (Duration, u64),
    ) -> KeyView {
        let known = KeyView { seats: entry.map_or(0, Entry::seats), is_lost: true, ..KeyView::default() };
        let refused = |wait| KeyView { refused_for: Some(wait), ..known };
        match (rule.on_loss, &rule.set(hash).share_terms) {
            (OnLoss::Open, _) => {
                // Everything is admitted, so the last answer does not matter.
                KeyView { seats: 0, left: rule.set(hash).full, ..known }
            }
            (OnLoss::Closed, _) | (OnLoss::LocalShare, None) => refused(SOON),
            (OnLoss::LocalShare, Some(terms)) => {
                if let Some(gap) = self.between_windows(terms, now) {
                    return refused(gap);
                }
                let at = self.share_time(now);
                let before = entry.map(|entry| ShareInputs::of(entry, entry.share.as_deref().cloned(), false));
                let (share, _) = self.share(before.unwrap_or_default(), terms, (now, at, loss));
                let left = left_of(&share.value, terms, at);
                match Self::ask_share(&share, terms, cost, (now, at)).2 {
                    Ok(()) => KeyView { left, ..known },
                    Err(wait) => KeyView { left, ..refused(wait) },
                }
            }
        }
    }

    /// Asks a share for a request. Returns the value after the answer, and its remaining units. The error is the time after
    /// which the client can try again. It also exists for a cost above the share, which the whole limit admits when the
    /// store returns.
    fn ask_share(
        share: &Share,
        terms: &StoreTerms,
        cost: u32,
        (now, at): (Duration, u64),
    ) -> (Value, Option<Left>, Result<(), Duration>) {
        let Some(encoded) = (Take { cost, ..Take::new(terms) }).encode() else {
            return (share.value.clone(), None, Err(Self::longest_wait(share, now)));
        };
        let Transition { answer, value, .. } = take(Some(&share.value), &encoded, at);
        let result = match answer.next {
            _ if answer.granted > 0 => Ok(()),
            Next::Now => Err(SOON),
            Next::At(opens) => Err(Duration::from_micros(opens.saturating_sub(at)).min(Self::longest_wait(share, now))),
            Next::Never => Err(Self::longest_wait(share, now)),
        };
        let left = answer.reply(&encoded).and_then(|reply| reply.level.left(terms, at));
        (value, left, result)
    }

    /// Returns the longest wait for a share. The store can return at any time, and it probably has more units left than
    /// the share.
    fn longest_wait(share: &Share, now: Duration) -> Duration {
        now.saturating_sub(share.begins).clamp(SOON, LONGEST_RETRY)
    }

    /// Returns the share of a key, or begins one. It begins without credit, because the store has given the credit to
    /// other programs. Also returns the units of the earlier share that must be reported.
    fn share(
        &self,
        ShareInputs { share, owed, misses, last_slot, prepares }: ShareInputs,
        terms: &StoreTerms,
        (now, at, loss): (Duration, u64, u64),
    ) -> (Share, u64) {
        let asks_operator = self.client.asks_operator();
        if let Some(operator) = self.client.operator.as_ref().filter(|_| prepares) {
            operator.prepare_share(now);
        }
        let (begins, continues, is_lost) = self.client.share_begins(now);
        // Owed units, and those of a share that was evicted, are not counted by a new share.
        let forgotten = Duration::from_micros(self.shares_evicted_at.load(Relaxed));
        let mut least = if owed > 0 { now } else { forgotten };
        if asks_operator {
            // Until then, the requests that wait use this program's part of the limit.
            least = least.max(last_slot);
        }
        // The operator reserves nothing of a log during the first half of a period (`weir_seats::ReservedUnits`).
        let is_late = |limit: &&StoreLimit| asks_operator && limit.strategy == Strategy::SlidingWindowLog;
        let delay = terms.raw().iter().filter(is_late).map(|limit| limit.period / 2).max().unwrap_or(0);
        let new = |admitted, least| {
            let begins = begins.max(least);
            Share { loss, begins, value: used_up(terms, self.opening(begins, (now, at)) + delay), admitted }
        };
        let Some(mut share) = share else { return (new(0, least), 0) };
        let is_same = share.value.stamp == terms.stamp();
        let is_kept = if asks_operator {
            // Before the share begins, an answer of the operator can show that it must begin later.
            is_same && share.loss == loss && !(is_lost && now < begins)
        } else {
            // An answer about the key would have ended the share. If the store as a whole has returned since, the share
            // continues only for a key that is still cut off: the first question without an answer begins another one.
            let is_current = share.loss == loss || misses > 1;
            is_same && if is_lost { share.begins >= continues } else { is_current }
        };
        if is_kept {
            return (Share { loss, ..share }, 0);
        }
        if asks_operator && share.loss == loss {
            return (new(share.admitted, least), 0);
        }
        if asks_operator || !is_same {
            return (new(0, least.max(now)), share.owed(at).into());
        }
        // What the earlier share admitted stays owed as long as it counts.
        let admitted = share.owed(at).into();
        share.value.use_up(self.opening(begins, (now, at)));
        (Share { loss, begins, admitted, ..share }, 0)
    }

    /// The share's time at which a share opens that begins at this time of the program.
    fn opening(&self, begins: Duration, (now, at): (Duration, u64)) -> u64 {
        if begins >= now {
            return at + micros(begins - now);
        }
        self.client.time(begins).map_or(micros(begins), |time| time.latest).min(at)
    }
}
