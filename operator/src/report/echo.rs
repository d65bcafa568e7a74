//! Distinguishes echoes of the operator's own writes from edits by others. Pure, one [`Echo`] per policy.
//!
//! Every write comes back through the source, sometimes before its response, sometimes after a newer write. So
//! nothing is judged while a write is in progress. The shown status is compared with the *stored* result of the
//! newest write, because the apiserver may default, order and merge. A difference must last for a moment. Only a
//! shown status can differ, so a silent source never causes a write.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

/// How long a difference must last, because the echo of the newest write may be about to arrive.
const HOLD: Duration = Duration::from_millis(250);
/// The minimum time between two corrections, if someone edits the status repeatedly.
const BETWEEN: Duration = Duration::from_secs(1);

/// A status as the source shows it; `None` if it is absent or cannot be read.
pub type Shown = Option<Box<RateLimitPolicyStatus>>;

/// What was stored.
#[derive(Debug)]
pub struct Echo {
    stored: Shown,
    /// The current status as far as known: what was shown last, or stored since.
    known: Shown,
    /// The number of the newest write, and when it was requested.
    sent: u64,
    sent_at: Option<Instant>,
    landed: u64,
    /// The status that was shown last while a write was in progress.
    meanwhile: Option<Shown>,
    foreign_since: Option<Instant>,
}

impl Echo {
    /// `stored` is the status that the policy had when it was first seen.
    pub fn new(stored: Shown) -> Self {
        let known = stored.clone();
        Self { stored, known, sent: 0, sent_at: None, landed: 0, meanwhile: None, foreign_since: None }
    }

    /// Starts a write; returns its number. A status shown before it lands is overwritten by it, or judged afterwards.
    pub fn send(&mut self, now: Instant) -> u64 {
        self.sent += 1;
        self.sent_at = Some(now);
        self.meanwhile = None;
        self.foreign_since = None;
        self.sent
    }

    /// Reports that a write landed, with the stored result.
    pub fn landed(&mut self, now: Instant, number: u64, stored: Shown) {
        if number != self.sent {
            return;
        }
        self.landed = number;
        self.stored = stored;
        match self.meanwhile.take() {
            Some(shown) => self.judge(now, &shown),
            None => self.known.clone_from(&self.stored),
        }
    }

    /// Reports that the source shows this status.
    pub fn shown(&mut self, now: Instant, status: Shown) {
        self.known.clone_from(&status);
        if self.landed == self.sent {
            self.judge(now, &status);
        } else {
            self.meanwhile = Some(status);
        }
    }

    /// The current status as far as known. It ignores a write in progress, which may never land: the writer drops
    /// writes of a term that is over.
    pub fn into_known(self) -> Shown {
        self.known
    }

    /// Whether another writer's status stands in place of the operator's.
    pub fn is_foreign(&self, now: Instant) -> bool {
        self.foreign_since.is_some_and(|since| now.duration_since(since) >= HOLD)
            && self.sent_at.is_none_or(|at| now.duration_since(at) >= BETWEEN)
    }

    fn judge(&mut self, now: Instant, shown: &Shown) {
        if *shown == self.stored {
            self.foreign_since = None;
        } else {
            self.foreign_since.get_or_insert(now);
        }
    }
}

#[cfg(test)]
#[path = "echo_tests.rs"]
mod tests;
