//! Gives seats back to the store. Each return is one question, which no request waits for.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use weir_seats::{BanChange, Key, Seats, StoreError, Take};

use super::SharedLimiter;

/// The maximum number of returns of a rule on their way that requests cause. Otherwise a slow store would let requests
/// begin any number of them.
pub(super) const MOST_RETURNS: usize = 1_024;

/// A return on its way. It also ends if its task is dropped.
struct OpenReturn(Arc<AtomicUsize>);

impl OpenReturn {
    /// Begins a return, unless this number of returns is on its way.
    fn new(open: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let is_few = open.fetch_add(1, Relaxed) < most;
        let this = Self(Arc::clone(open));
        is_few.then_some(this)
    }
}

impl Drop for OpenReturn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl SharedLimiter {
    /// Returns unused seats to the store.
    pub(super) fn give_back(&self, hash: u128, seats: Seats) {
        self.give_back_of(hash, seats, usize::MAX);
    }

    /// As [`give_back`](Self::give_back), for seats that a request returns or displaces. They are lost if
    /// [`MOST_RETURNS`] returns are on their way.
    pub(super) fn give_back_of_request(&self, hash: u128, seats: Seats) {
        self.give_back_of(hash, seats, MOST_RETURNS);
    }

    fn give_back_of(&self, hash: u128, seats: Seats, most: usize) {
        let rule = self.rule();
        let terms = Arc::clone(&rule.set(hash).terms);
        let units = seats.left();
        let Ok(key) = Key::new(&rule.counters, hash) else { return };
        if units == 0 || !seats.is_of(&terms) || self.client.current_loss().is_some() || !self.client.takes_back() {
            self.client.stats.count_lost_seats(units);
            return;
        }
        let (client, ban, me) = (Arc::clone(&self.client), rule.ban(BanChange::Keep), Weak::clone(&self.me));
        let Some(open) = OpenReturn::new(&self.returns, most) else {
            self.client.stats.count_lost_seats(units);
            return;
        };
        self.client.spawn(async move {
            let _open = open;
            let question = Take { requests: 0, returned: Some(&seats), ban, ..Take::new(&terms) };
            let answer: Result<_, StoreError> = client.ask(&key, &question).await;
            match answer {
                Ok(_) => {
                    client.stats.count_returned(units);
                    // The units are free again, so the next request asks.
                    if let Some(me) = me.upgrade()
                        && let Some(entry) = me.table.shard_of(hash).get_mut(&hash)
                    {
                        entry.refused = None;
                        entry.wake();
                    }
                }
                Err(_) => client.stats.count_lost_seats(units),
            }
        });
    }
}
