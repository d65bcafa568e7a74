//! Returns a key to its full credit, when a user requests it.
//!
//! The store forgets the key, once for all programs. This program forgets what it knows about the key. Other programs keep
//! their seats, which were charged before, and they ask again about a refused key after [`BETWEEN_RESETS`].

use std::{sync::Arc, time::Duration};

use weir_seats::{Key, StoreError};

use super::SharedLimiter;

/// The longest time without a question for a refused key: another program can have returned it to its full credit.
pub(super) const BETWEEN_RESETS: Duration = Duration::from_secs(60);

/// The longest time for a change by hand, which no request waits for.
const BY_HAND: Duration = Duration::from_secs(5);

impl SharedLimiter {
    /// Returns a key to its full credit, and lifts its ban. The answer to a question on its way can refuse the key here
    /// for at most a minute.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the store does not answer, or if it is the operator. Then this program forgets nothing.
    pub async fn reset(&self, hash: u128) -> Result<(), StoreError> {
        let rule = self.rule();
        let terms = Arc::clone(&rule.set(hash).terms);
        let Ok(key) = Key::new(&rule.counters, hash) else { return Ok(()) };
        self.client.forget(&key, &terms, BY_HAND).await?;
        let mut shard = self.table.shard_of(hash);
        if let Some(entry) = shard.get_mut(&hash) {
            let lost = entry.reset();
            self.client.stats.count_lost_seats(lost);
        }
        Ok(())
    }
}
