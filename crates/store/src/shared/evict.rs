//! Forgets keys to make room for others.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    Entry, SharedLimiter,
    request::micros,
    table::{Forgotten, Room},
};

impl SharedLimiter {
    /// The time at which a key is at full credit again, as far as this program knows.
    fn full_at(&self, entry: &Entry) -> u64 {
        let level = entry.level_full_at().unwrap_or(0);
        let share = entry.share.as_ref().filter(|share| share.admitted > 0).map_or(0, |share| share.value.full_at());
        level.max(share)
    }

    /// Makes up for the room that a key got. The caller must hold no lock.
    pub(super) fn settle(&self, room: Room) {
        if let Some(forgotten) = room.forgotten {
            self.forget(forgotten);
        }
        if room.is_new {
            self.client.parts.keys.make_room();
        }
    }

    /// Gives the seats of an evicted key back to the store.
    pub(super) fn forget(&self, (hash, mut entry): Forgotten) {
        self.evicted.fetch_add(1, Relaxed);
        if self.client.asks_operator() {
            self.evicted_full_at.fetch_max(self.full_at(&entry), Relaxed);
        }
        if entry.share.as_ref().is_some_and(|share| share.admitted > 0) {
            self.shares_evicted_at.fetch_max(micros(self.client.now()), Relaxed);
        }
        for seats in entry.drain_seats() {
            self.give_back_of_request(hash, seats);
        }
    }
}
