//! Decides which status to write next. This module does no I/O and reads no clock.
//!
//! For each policy, store or file at most one status is being written, and at most one waits: the newest. After each failure
//! the pause grows, until the write succeeds or the object is deleted. A newer status replaces a waiting one, and takes
//! its turn. So a status that the apiserver refuses again and again delays no other object.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::{Pending, Target};

/// The upper limit of the pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The upper limit of the pause after many failures that may pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The upper limit of the pause if the apiserver refuses the status itself. A user must change a rule before it can succeed.
const LONGEST_REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// The statuses that are not yet written.
#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: HashMap<Target, Slot>,
    /// The objects with a turn, by time.
    turns: BTreeSet<(Instant, Target)>,
}

#[derive(Debug, Default)]
struct Slot {
    pending: Option<Pending>,
    /// The time from which the status may be written, or `None` while another status of this object is being written.
    turn: Option<Instant>,
    failures: u32,
    /// True if the object was deleted while a status was being written.
    removed: bool,
}

impl Queue {
    /// Adds a status. It replaces an older one that waits.
    pub(super) fn put(&mut self, now: Instant, pending: Pending) {
        let target = pending.target();
        if let Some(slot) = self.slots.get_mut(&target) {
            slot.pending = Some(pending);
            return;
        }
        self.turns.insert((now, target.clone()));
        self.slots.insert(target, Slot { pending: Some(pending), turn: Some(now), ..Slot::default() });
    }

    /// Takes the status that has the next turn. The caller must then call [`Self::ended`] or [`Self::failed`].
    pub(super) fn take(&mut self, now: Instant) -> Option<Pending> {
        if self.next_turn()? > now {
            return None;
        }
        let (_, target) = self.turns.pop_first()?;
        let slot = self.slots.get_mut(&target)?;
        slot.turn = None;
        slot.pending.take()
    }

    /// Returns the time from which the next status may be written.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.turns.first().map(|(turn, _)| *turn)
    }

    /// Returns true if no status waits or is being written.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends a write that succeeded, or whose object does not exist. Returns true if the object was deleted in the
    /// meantime.
    pub(super) fn ended(&mut self, now: Instant, target: &Target) -> bool {
        let Some(slot) = self.slots.get_mut(target) else { return false };
        slot.failures = 0;
        self.next(target, now)
    }

    /// Ends a write that failed. The next attempt waits for `share` of the longest pause. If the failure may pass, that pause
    /// is short. Returns true if the object was deleted in the meantime.
    pub(super) fn failed(&mut self, now: Instant, pending: Pending, may_pass: bool, share: f64) -> bool {
        let target = pending.target();
        let Some(slot) = self.slots.get_mut(&target) else { return false };
        let longest = if may_pass { LONGEST_PAUSE } else { LONGEST_REFUSED_PAUSE };
        let pause = pause(slot.failures, longest, share);
        slot.failures = slot.failures.saturating_add(1);
        if slot.pending.is_none() && !slot.removed {
            slot.pending = Some(pending);
        }
        self.next(&target, now + pause)
    }

    /// Removes an object. Returns true if none of its statuses is being written.
    pub(super) fn remove(&mut self, target: &Target) -> bool {
        match self.slots.get_mut(target) {
            Some(slot) if slot.turn.is_none() => {
                slot.pending = None;
                slot.removed = true;
                return false;
            }
            Some(slot) => {
                let turn = slot.turn.map(|turn| (turn, target.clone()));
                turn.map(|turn| self.turns.remove(&turn));
                self.slots.remove(target);
            }
            None => {}
        }
        true
    }

    fn next(&mut self, target: &Target, turn: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(target) else { return false };
        let removed = std::mem::take(&mut slot.removed);
        if slot.pending.is_some() {
            slot.turn = Some(turn);
            self.turns.insert((turn, target.clone()));
        } else {
            self.slots.remove(target);
        }
        removed
    }
}

/// Returns `share` of the pause after `failures` earlier failures of an Event, which may pass.
pub(super) fn event_pause(failures: u32, share: f64) -> Duration {
    pause(failures, LONGEST_PAUSE, share)
}

fn pause(failures: u32, longest: Duration, share: f64) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(longest).mul_f64(share)
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
