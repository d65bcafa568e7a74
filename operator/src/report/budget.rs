//! Limits the number of Events that one policy can cause. This module does no I/O and reads no clock.
//!
//! The announcer announces each fact once (see [`crate::status::announcer`]), but each pod that comes and goes is a new fact.
//! The numbers are those of client-go's filter for the same purpose.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::world::ObjectKey;

/// The maximum number of Events in a burst.
const BURST: u32 = 25;
/// The time after which one more Event is allowed.
const EACH: Duration = Duration::from_secs(300);

/// The remaining budget of each policy that caused an Event.
#[derive(Debug, Default)]
pub(super) struct Budget {
    spent: HashMap<ObjectKey, Spent>,
}

#[derive(Debug)]
struct Spent {
    /// The time at which the whole burst is available again.
    full_at: Instant,
    dropped: u64,
}

impl Budget {
    /// Takes one Event from the budget. Returns the number of Events that were dropped since the last one, or `None` if
    /// this Event must be dropped, too.
    pub(super) fn spend(&mut self, now: Instant, key: &ObjectKey) -> Option<u64> {
        let spent = self.spent.entry(key.clone()).or_insert(Spent { full_at: now, dropped: 0 });
        let full_at = spent.full_at.max(now);
        if full_at > now + EACH * (BURST - 1) {
            spent.dropped += 1;
            return None;
        }
        spent.full_at = full_at + EACH;
        Some(std::mem::take(&mut spent.dropped))
    }

    /// Removes a deleted policy.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.spent.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pods_that_flap_for_a_day_cause_some_three_hundred_events() {
        let mut now = Instant::now();
        let (mut budget, key) = (Budget::default(), ObjectKey::new("shop", "checkout"));
        let (mut told, mut dropped) = (0, 0);
        for _ in 0..24 * 3600 {
            now += Duration::from_secs(1);
            if let Some(before) = budget.spend(now, &key) {
                told += 1;
                dropped += before;
            }
        }
        assert_eq!(told, 25 + 24 * 12 - 1);
        // Each Event contains the number of Events that were dropped before it, so only those after the last one are
        // lost.
        assert!((24 * 3600 - told - dropped) < 300, "{told} {dropped}");
        assert_eq!(budget.spend(now, &ObjectKey::new("shop", "other")), Some(0), "each policy has a separate budget");
        budget.forget(&key);
        assert_eq!(budget.spend(now, &key), Some(0), "a new policy of the same name has a full budget");
    }
}
