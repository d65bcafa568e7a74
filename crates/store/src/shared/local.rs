//! Decisions while the store is lost.

use std::time::Duration;

use weir_seats::{
    Next, Take,
    model::{Outcome, take, used_up},
};

use super::{
    Entry, OnLoss, SOON, SharedLimiter, SharedRule,
    answer::{Denied, Grant},
    micros,
    table::Local,
};

impl SharedLimiter {
    /// Decides as the rule defines for a lost store. `loss` is the number of this loss.
    pub(super) fn without_store(
        &self,
        entry: &mut Entry,
        rule: &SharedRule,
        (hash, cost): (u128, u32),
        (now, loss): (Duration, u64),
    ) -> Result<Grant, Denied> {
        let left = None;
        match rule.on_loss {
            OnLoss::Open => Ok(self.grant(hash, entry.set, None, left)),
            OnLoss::Closed => Err(Denied { retry_after: Some(SOON), left }),
            OnLoss::LocalShare => {
                let Some(terms) = &rule.set(entry.set).local else {
                    return Err(Denied { retry_after: Some(SOON), left });
                };
                let at = micros(now);
                // The share begins without credit, because the store has given the credit to other programs.
                let begins = || used_up(terms, micros(self.client.share_begins(now)));
                let (value, admitted) = match entry.local.take() {
                    Some(Local { loss: before, value, admitted }) if before == loss => {
                        (if value.stamp == terms.stamp() { value } else { begins() }, admitted)
                    }
                    Some(earlier) => {
                        entry.owed = entry.owed.saturating_add(earlier.owed(at));
                        (begins(), 0)
                    }
                    None => (begins(), 0),
                };
                let Some(encoded) = (Take { cost, ..Take::new(terms) }).encode() else {
                    return Err(Denied { retry_after: None, left });
                };
                let Outcome { answer, value, .. } = take(Some(&value), &encoded, at);
                let granted = answer.granted * u64::from(cost);
                entry.local = Some(Local { loss, value, admitted: admitted + granted });
                if granted > 0 {
                    return Ok(self.grant(hash, entry.set, None, left));
                }
                let retry_after = match answer.next {
                    Next::Now => Some(SOON),
                    Next::At(opens) => Some(Duration::from_micros(opens.saturating_sub(at))),
                    Next::Never => None,
                };
                Err(Denied { retry_after, left })
            }
        }
    }
}
