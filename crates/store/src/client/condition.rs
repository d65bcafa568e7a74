//! What a client knows about its store.

use std::time::Duration;

use weir_seats::{Key, StoreError};

use super::refusal::Refusals;
use crate::{breaker::Breaker, deadline::AdaptiveDeadline};

/// The time between two losses up to which shares continue.
const BRIEF: Duration = Duration::from_secs(1);

/// The shortest time between two log lines about losses.
const BETWEEN_LOGS: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Condition {
    pub(super) breaker: Breaker,
    pub(super) deadline: AdaptiveDeadline,
    /// The number of answers that `deadline` has measured.
    pub(super) answers: u32,
    /// The average duration of a question.
    pub(super) round: Option<Duration>,
    pub(super) error: Option<String>,
    pub(super) refusals: Refusals,
    /// The time since which the store answers.
    pub(super) reached_since: Option<Duration>,
    pub(super) begun: Duration,
    pub(super) asked: Option<Duration>,
    /// The number of times that the store was lost.
    pub(super) losses: u64,
    /// The time since which shares are in use, over losses that follow each other closely.
    pub(super) shares_since: Duration,
    /// The end of the last loss. None if there was none.
    pub(super) returned_at: Option<Duration>,
    /// The time of the last log line about a loss.
    pub(super) logged_at: Option<Duration>,
    /// True if the log says that the store is lost.
    pub(super) is_logged: bool,
    /// The time at which the configuration of the store was read last because of a refusal on an open connection.
    pub(super) configuration_read_at: Option<Duration>,
    /// The time of the last missed answer.
    pub(super) missed_at: Duration,
}

impl Condition {
    /// Records an answer. Returns true if the log must say that the store is back.
    pub(super) fn answered(&mut self, now: Duration) -> bool {
        if self.breaker.lost_since().is_some() {
            self.returned_at = Some(now);
        }
        self.breaker.answered();
        self.error = None;
        self.reached_since.get_or_insert(now);
        std::mem::take(&mut self.is_logged)
    }

    /// Records whether the store refuses this question. Returns the line that the log must contain, if any.
    pub(super) fn learn_refusal(&mut self, key: &Key, error: Option<&StoreError>, now: Duration) -> Option<String> {
        match error {
            None => {
                self.end_refusal(key.counters(), now);
                None
            }
            Some(StoreError::Refused(text)) if self.breaker.lost_since().is_none() => {
                self.refusals.refused(key, text, now)
            }
            Some(_) => None,
        }
    }

    /// Ends the refusal of the rule with these counters.
    pub(super) fn end_refusal(&mut self, counters: &str, now: Duration) {
        if self.refusals.end(counters, now) {
            self.reached_since = Some(now);
        }
    }

    /// Records that the store is lost since this time.
    pub(super) fn lost(&mut self, since: Duration) {
        self.losses += 1;
        self.reached_since = None;
        // Otherwise a store that comes and goes would leave the shares without credit all the time.
        if self.returned_at.is_none_or(|returned| returned + BRIEF <= since) {
            self.shares_since = since;
        }
        // Latencies from before the loss do not apply to the time after it.
        (self.deadline, self.answers) = (AdaptiveDeadline::default(), 0);
    }

    /// Records that other servers answer from now on. The background task asks them next.
    pub(super) fn changed(&mut self) {
        (self.deadline, self.answers, self.asked) = (AdaptiveDeadline::default(), 0, None);
        self.refusals = Refusals::default();
        self.breaker.retry();
    }

    /// Returns true if the log must say now that the store is lost.
    pub(super) fn logs_loss(&mut self, now: Duration) -> bool {
        let is_due = self.logged_at.is_none_or(|logged| logged + BETWEEN_LOGS <= now);
        let logs = self.breaker.lost_since().is_some() && !self.is_logged && is_due;
        if logs {
            (self.logged_at, self.is_logged) = (Some(now), true);
        }
        logs
    }
}
