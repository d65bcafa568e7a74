//! Decides which status to write next. This module does no I/O and reads no clock.
//!
//! For each policy at most one status is being written, and at most one waits: the newest. After each failure the pause
//! grows, until the write succeeds or the policy is deleted. A newer status replaces a waiting one, and takes its turn.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::Report;
use crate::world::ObjectKey;

/// The upper limit of the pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The upper limit of the pause after many failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The statuses that are not yet written.
#[derive(Debug, Default)]
pub(super) struct Queue {
    slots: HashMap<ObjectKey, Slot>,
    /// The policies with a turn, by time.
    turns: BTreeSet<(Instant, ObjectKey)>,
}

#[derive(Debug, Default)]
struct Slot {
    report: Option<Box<Report>>,
    /// The time from which the report may be written; `None` while another status of this policy is being written.
    turn: Option<Instant>,
    failures: u32,
    /// True if the policy was deleted while a status was being written.
    removed: bool,
}

impl Queue {
    /// Adds a status. It replaces an older one that waits.
    pub(super) fn put(&mut self, now: Instant, report: Box<Report>) {
        if let Some(slot) = self.slots.get_mut(&report.key) {
            slot.report = Some(report);
            return;
        }
        let key = report.key.clone();
        self.turns.insert((now, key.clone()));
        self.slots.insert(key, Slot { report: Some(report), turn: Some(now), ..Slot::default() });
    }

    /// Takes the status that has the next turn. The caller must then call [`Self::ended`] or [`Self::failed`].
    pub(super) fn take(&mut self, now: Instant) -> Option<Box<Report>> {
        if self.next_turn()? > now {
            return None;
        }
        let (_, key) = self.turns.pop_first()?;
        let slot = self.slots.get_mut(&key)?;
        slot.turn = None;
        slot.report.take()
    }

    /// Returns the time from which the next status may be written.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        self.turns.first().map(|(turn, _)| *turn)
    }

    /// Returns true if no status waits or is being written.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Ends a write that succeeded, or whose policy does not exist. Returns true if the policy was deleted in the
    /// meantime.
    pub(super) fn ended(&mut self, now: Instant, key: &ObjectKey) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        slot.failures = 0;
        self.next(key, now)
    }

    /// Ends a write that failed. The next attempt waits for `share` of the longest pause. Returns true if the policy
    /// was deleted in the meantime.
    pub(super) fn failed(&mut self, now: Instant, report: Box<Report>, share: f64) -> bool {
        let key = report.key.clone();
        let Some(slot) = self.slots.get_mut(&key) else { return false };
        let pause = pause(slot.failures, share);
        slot.failures = slot.failures.saturating_add(1);
        if slot.report.is_none() && !slot.removed {
            slot.report = Some(report);
        }
        self.next(&key, now + pause)
    }

    /// Removes a policy. Returns true if none of its statuses is being written.
    pub(super) fn remove(&mut self, key: &ObjectKey) -> bool {
        match self.slots.get_mut(key) {
            Some(slot) if slot.turn.is_none() => {
                slot.report = None;
                slot.removed = true;
                return false;
            }
            Some(slot) => {
                let turn = slot.turn.map(|turn| (turn, key.clone()));
                turn.map(|turn| self.turns.remove(&turn));
                self.slots.remove(key);
            }
            None => {}
        }
        true
    }

    fn next(&mut self, key: &ObjectKey, turn: Instant) -> bool {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        let removed = std::mem::take(&mut slot.removed);
        if slot.report.is_some() {
            slot.turn = Some(turn);
            self.turns.insert((turn, key.clone()));
        } else {
            self.slots.remove(key);
        }
        removed
    }
}

/// Returns `share` of the longest pause after `failures` earlier failures.
pub(super) fn pause(failures: u32, share: f64) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << failures.min(16)).min(LONGEST_PAUSE).mul_f64(share)
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
