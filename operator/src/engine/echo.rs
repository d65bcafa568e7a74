//! Distinguishes echoes of the operator's own writes from edits by others. This module does no I/O. There is one
//! [`Echo`] per policy.
//!
//! Every write comes back through the source, sometimes before its response, sometimes after a newer write. So no
//! status is judged while a write is in progress. The status from the source is compared with the *stored* result of
//! the newest write, because the apiserver may set defaults, change the order and merge. A difference counts only after
//! it has lasted for a short time. Only a status from the source can differ, so a silent source never causes a write.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

/// The time for which a difference must last, because the echo of the newest write may arrive soon.
const ECHO_DELAY: Duration = Duration::from_millis(250);
/// The minimum time between two corrections, if someone edits the status repeatedly.
const BETWEEN: Duration = Duration::from_secs(1);

/// A status as the source reports it, or `None` if it is absent or cannot be read.
pub(super) type SourceStatus = Option<Box<RateLimitPolicyStatus>>;

/// The stored result of the newest write, and the status that the source reports.
#[derive(Debug)]
pub(super) struct Echo {
    stored: SourceStatus,
    /// The current status as far as known: the last one from the source or from a write.
    known: SourceStatus,
    /// The number of the newest write, and the time at which it was requested.
    sent: u64,
    sent_at: Option<Instant>,
    written: u64,
    /// The last status that the source reported while a write was in progress.
    meanwhile: Option<SourceStatus>,
    foreign_since: Option<Instant>,
}

impl Echo {
    /// Returns an echo. `stored` is the status that the policy had when this operator first received it.
    pub(super) fn new(stored: SourceStatus) -> Self {
        let known = stored.clone();
        Self { stored, known, sent: 0, sent_at: None, written: 0, meanwhile: None, foreign_since: None }
    }

    /// Starts a write, and returns its number. If the source reports a status before the write succeeds, the write
    /// overwrites that status, or the status is judged afterwards.
    pub(super) fn send(&mut self, now: Instant) -> u64 {
        self.sent += 1;
        self.sent_at = Some(now);
        self.meanwhile = None;
        self.foreign_since = None;
        self.sent
    }

    /// Reports that a write succeeded, with the stored result.
    pub(super) fn written(&mut self, now: Instant, number: u64, stored: SourceStatus) {
        if number != self.sent {
            return;
        }
        self.written = number;
        self.stored = stored;
        match self.meanwhile.take() {
            Some(shown) => self.judge(now, &shown),
            None => self.known.clone_from(&self.stored),
        }
    }

    /// Reports a status from the source.
    pub(super) fn record_source_status(&mut self, now: Instant, status: SourceStatus) {
        self.known.clone_from(&status);
        if self.written == self.sent {
            self.judge(now, &status);
        } else {
            self.meanwhile = Some(status);
        }
    }

    /// Returns the current status as far as known. It ignores a write in progress, which may never succeed: the writer
    /// drops writes of a term that has ended.
    pub(super) fn into_known(self) -> SourceStatus {
        self.known
    }

    /// Returns true if another writer's status has replaced the operator's.
    pub(super) fn is_foreign(&self, now: Instant) -> bool {
        self.foreign_since.is_some_and(|since| now.duration_since(since) >= ECHO_DELAY)
            && self.sent_at.is_none_or(|at| now.duration_since(at) >= BETWEEN)
    }

    fn judge(&mut self, now: Instant, shown: &SourceStatus) {
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
