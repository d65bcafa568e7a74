//! Tells the echoes of the operator's own writes from edits by somebody else. Pure, one [`Echo`] per policy.
//!
//! Every write comes back through the source, sometimes before its answer, sometimes behind a newer write. So nothing is
//! judged while a write is on its way, what is shown is compared with what was *stored* by the newest write (the
//! apiserver may default, order and merge), and a difference must last for a moment. Only something that was shown
//! makes a difference: a source that falls silent never causes writes.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

/// How long a difference must last: the echo of the newest write may be right behind.
const HOLD: Duration = Duration::from_millis(250);
/// Somebody who insists is answered this often at most.
const BETWEEN: Duration = Duration::from_secs(1);

/// A status as its source shows it; none if it has none, or one that cannot be read.
pub type Shown = Option<Box<RateLimitPolicyStatus>>;

/// Remembers what was stored.
#[derive(Debug)]
pub struct Echo {
    stored: Shown,
    /// What is there, as far as is known: what was last shown, or stored since.
    known: Shown,
    /// The newest write, and when it was asked for.
    sent: u64,
    sent_at: Option<Instant>,
    landed: u64,
    /// What was last shown while a write was on its way.
    meanwhile: Option<Shown>,
    foreign_since: Option<Instant>,
}

impl Echo {
    /// `stored` is the status that the policy had when it was first seen.
    pub fn new(stored: Shown) -> Self {
        let known = stored.clone();
        Self { stored, known, sent: 0, sent_at: None, landed: 0, meanwhile: None, foreign_since: None }
    }

    /// A write is asked for: its number. Whatever is shown before it has landed is overwritten by it, or judged then.
    pub fn send(&mut self, now: Instant) -> u64 {
        self.sent += 1;
        self.sent_at = Some(now);
        self.meanwhile = None;
        self.foreign_since = None;
        self.sent
    }

    /// A write has landed, and this is what became of it.
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

    /// The source shows this status.
    pub fn shown(&mut self, now: Instant, status: Shown) {
        self.known.clone_from(&status);
        if self.landed == self.sent {
            self.judge(now, &status);
        } else {
            self.meanwhile = Some(status);
        }
    }

    /// What is there, as far as is known. A write that has not landed is not in it: perhaps it never will, for what is left
    /// of a term that is over is not written.
    pub fn into_known(self) -> Shown {
        self.known
    }

    /// Whether somebody else's status stands where the operator's should.
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
