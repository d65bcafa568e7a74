//! How many Events one policy may cause. Pure.
//!
//! What is told once is not told again (see [`crate::announcer`]), but pods that come and go are different facts each time. The
//! numbers are those of the filter that client-go has for the same purpose.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::world::ObjectKey;

/// So many at once.
const BURST: u32 = 25;
/// One more each time this has passed.
const EACH: Duration = Duration::from_secs(300);

/// What is left to each policy that has caused any.
#[derive(Debug, Default)]
pub(super) struct Budget {
    spent: HashMap<ObjectKey, Spent>,
}

#[derive(Debug)]
struct Spent {
    /// When all of the burst is there again.
    full_at: Instant,
    untold: u64,
}

impl Budget {
    /// Whether one more may be told, and then how many were not since the last one.
    pub(super) fn spend(&mut self, now: Instant, key: &ObjectKey) -> Option<u64> {
        let spent = self.spent.entry(key.clone()).or_insert(Spent { full_at: now, untold: 0 });
        let full_at = spent.full_at.max(now);
        if full_at > now + EACH * (BURST - 1) {
            spent.untold += 1;
            return None;
        }
        spent.full_at = full_at + EACH;
        Some(std::mem::take(&mut spent.untold))
    }

    /// The policy is gone.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        self.spent.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pods_that_flap_for_a_day_are_told_of_some_three_hundred_times() {
        let mut now = Instant::now();
        let (mut budget, key) = (Budget::default(), ObjectKey::new("shop", "checkout"));
        let (mut told, mut untold) = (0, 0);
        for _ in 0..24 * 3600 {
            now += Duration::from_secs(1);
            if let Some(before) = budget.spend(now, &key) {
                told += 1;
                untold += before;
            }
        }
        assert_eq!(told, 25 + 24 * 12 - 1);
        // Nobody is left to wonder: each says how many it stands for, but for those after the last.
        assert!((24 * 3600 - told - untold) < 300, "{told} {untold}");
        assert_eq!(
            budget.spend(now, &ObjectKey::new("shop", "other")),
            Some(0),
            "one policy has nothing to do with another"
        );
        budget.forget(&key);
        assert_eq!(budget.spend(now, &key), Some(0), "another one of that name");
    }
}
