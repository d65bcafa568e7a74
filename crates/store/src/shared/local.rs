//! Decisions while the store is lost.

use std::time::Duration;

use weir_seats::{
    Next, StoreTerms, StoreTime, Take,
    model::{Outcome, take, used_up},
    state::start_of,
    terms::Limit,
};

use super::{
    Entry, OnLoss, SOON, SharedLimiter, SharedRule,
    answer::{Denied, Grant},
    micros,
    table::Local,
};

impl SharedLimiter {
    /// The time of this program's share: the store's time, so that the windows of all shares begin when the store's
    /// windows begin. The program's own time before the first answer.
    pub(super) fn share_time(&self, now: Duration) -> u64 {
        self.client.time(now).map_or(micros(now), |time| time.earliest)
    }

    /// Returns how long the store's time can be in either of two windows. Then the share admits nothing. After a long
    /// loss, the store's time is not known well enough for short windows, and their beginnings are not respected.
    fn between_windows(&self, terms: &StoreTerms, now: Duration) -> Option<Duration> {
        let StoreTime { earliest, latest } = self.client.time(now)?;
        let gap = latest - earliest;
        let is_between = |limit: &Limit| {
            limit.has_windows() && start_of(limit, earliest) != start_of(limit, latest) && gap <= limit.period / 10
        };
        terms.raw().iter().any(is_between).then_some(Duration::from_micros(gap))
    }

    /// Decides as the rule defines for a lost store. `loss` is the number of this loss.
    pub(super) fn without_store(
        &self,
        entry: &mut Entry,
        rule: &SharedRule,
        (hash, cost): (u128, u32),
        (now, loss): (Duration, u64),
    ) -> Result<Grant, Denied> {
        let left = None;
        if let Some(rest) = self.client.time(now).and_then(|time| entry.ban_rest(rule, time)) {
            return Err(Denied::banned(rest));
        }
        match rule.on_loss {
            OnLoss::Open => Ok(self.grant(hash, entry.set, None, left)),
            OnLoss::Closed => Err(Denied::new(Some(SOON), left)),
            OnLoss::LocalShare => {
                let Some(terms) = &rule.set(entry.set).local else {
                    return Err(Denied::new(Some(SOON), left));
                };
                if let Some(gap) = self.between_windows(terms, now) {
                    return Err(Denied::new(Some(gap), left));
                }
                let at = self.share_time(now);
                // The share begins without credit, because the store has given the credit to other programs.
                let begin = || {
                    let begins = self.client.share_begins(now);
                    (begins, used_up(terms, at + micros(begins.saturating_sub(now))))
                };
                let (begins, value, admitted) = match entry.local.take() {
                    Some(Local { loss: before, begins, value, admitted }) if before == loss => {
                        // Before the share begins, an answer of the operator can show that it must begin later.
                        let is_early = now < begins && self.client.lost().is_some();
                        let is_kept = !is_early && value.stamp == terms.stamp();
                        let (begins, value) = if is_kept { (begins, value) } else { begin() };
                        (begins, value, admitted)
                    }
                    earlier => {
                        entry.add_owed(earlier.map_or(0, |earlier| earlier.owed(at)).into());
                        let (begins, value) = begin();
                        (begins, value, 0)
                    }
                };
                let Some(encoded) = (Take { cost, ..Take::new(terms) }).encode() else {
                    return Err(Denied::new(None, left));
                };
                let Outcome { answer, value, .. } = take(Some(&value), &encoded, at);
                let granted = answer.granted * u64::from(cost);
                entry.local = Some(Local { loss, begins, value, admitted: admitted + granted });
                if granted > 0 {
                    return Ok(self.grant(hash, entry.set, None, left));
                }
                let retry_after = match answer.next {
                    Next::Now => Some(SOON),
                    Next::At(opens) => Some(Duration::from_micros(opens.saturating_sub(at))),
                    Next::Never => None,
                };
                Err(Denied::new(retry_after, left))
            }
        }
    }
}
