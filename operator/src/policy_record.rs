//! What the engine remembers of a policy between two reports. Pure.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

use crate::{
    announcer::Announcer,
    compile::Compiled,
    report::{Stored, echo::Echo, pace::Pace},
    store_status::LostStore,
    traffic::Counts,
    world::StoredStatus,
};

/// The inputs of a status, for a policy that every pod enforces.
#[derive(Debug, PartialEq)]
pub struct StatusInputs {
    /// Grows with each change of the policy and of what it targets.
    pub changes: u64,
    /// The traffic of each rule in the last minute, in the rules' order.
    pub rules: Vec<(String, Counts)>,
    /// The traffic of all rules.
    pub all: Counts,
    /// The pods that do not reach a store of the policy.
    pub lost: Vec<LostStore>,
}

/// The record of a policy.
#[derive(Debug)]
pub struct PolicyRecord {
    /// Its UID.
    pub uid: String,
    /// Decides what to announce.
    pub announcer: Announcer,
    /// Decides when to write its status.
    pub pace: Pace,
    /// Detects whether its status was overwritten.
    pub echo: Echo,
    /// Its resource version, as last shown or stored.
    pub version: Option<String>,
    /// The inputs of the last report, if there was nothing more to report.
    last_inputs: Option<StatusInputs>,
}

impl PolicyRecord {
    /// A record for a policy that this operator has just begun to follow, with its stored status.
    pub fn begin(now: Instant, policy: &Compiled, traffic_interval: Duration, found: StoredStatus) -> Self {
        let StoredStatus { status, version } = found;
        let found = status.map(|status| *status);
        Self {
            uid: policy.uid.clone(),
            announcer: Announcer::begin(now, policy.rules.clone(), found.as_ref()),
            echo: Echo::new(found.clone().map(Box::new)),
            pace: Pace::new(traffic_interval, found),
            version,
            last_inputs: None,
        }
    }

    /// Whether a policy that all its pods enforce has nothing new to report, given these inputs.
    pub fn is_same(&self, now: Instant, inputs: &StatusInputs) -> bool {
        self.last_inputs.as_ref() == Some(inputs) && !self.echo.is_foreign(now)
    }

    /// Whether a policy without traffic in the last minute has nothing new to report. Cheaper than [`Self::is_same`].
    pub fn is_at_rest(&self, now: Instant, changes: u64, lost: &[LostStore]) -> bool {
        let rests = |last: &StatusInputs| last.changes == changes && last.all == Counts::default() && last.lost == lost;
        self.last_inputs.as_ref().is_some_and(rests) && !self.echo.is_foreign(now)
    }

    /// Records a report with this status. If every pod enforces the policy, the same `inputs` next time lead to the
    /// same status.
    pub fn looked(&mut self, status: &RateLimitPolicyStatus, inputs: Option<StatusInputs>) {
        self.last_inputs = inputs.filter(|_| self.pace.rests_with(status));
    }

    /// Records the status that the source shows.
    pub fn shown(&mut self, now: Instant, beside: StoredStatus) {
        self.version = beside.version;
        self.echo.shown(now, beside.status);
    }

    /// Records a write that landed.
    pub fn landed(&mut self, now: Instant, number: u64, stored: Stored) {
        self.version = stored.version;
        self.echo.landed(now, number, stored.status);
    }

    /// What the next record of the policy begins with.
    pub fn leave(self) -> StoredStatus {
        StoredStatus { status: self.echo.into_known(), version: self.version }
    }

    /// Whether to write this status now, and its number: because it is new, or because another writer overwrote the
    /// last one. `waits` says whether pods are expected to change it soon.
    pub fn writes(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> Option<u64> {
        let is_due =
            self.pace.admits(now, status, waits) || (self.echo.is_foreign(now) && self.pace.repeats(now, status));
        is_due.then(|| self.echo.send(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(generation: i64) -> RateLimitPolicyStatus {
        RateLimitPolicyStatus { observed_generation: Some(generation), ..RateLimitPolicyStatus::default() }
    }

    fn begin(found: StoredStatus) -> PolicyRecord {
        let policy = Compiled {
            uid: "uid".to_owned(),
            generation: 2,
            created: None,
            file: None,
            faults: Vec::new(),
            rules: None,
            target: None,
            good: None,
        };
        PolicyRecord::begin(crate::clock::now(), &policy, Duration::from_secs(10), found)
    }

    /// A leader's term ends while its write fails. After it is elected again, the status must still be written.
    #[test]
    fn an_unwritten_status_is_written_in_the_next_term() {
        let now = crate::clock::now();
        let found = StoredStatus { status: Some(Box::new(status(1))), version: Some("7".to_owned()) };
        let mut followed = begin(found);
        assert_eq!(followed.writes(now, &status(2), false), Some(1));
        let mut again = begin(followed.leave());
        assert_eq!(again.writes(now, &status(2), false), Some(1), "it was dropped with its term");

        let stored = Stored { status: Some(Box::new(status(2))), version: Some("8".to_owned()) };
        again.landed(now, 1, stored);
        let mut at_rest = begin(again.leave());
        assert_eq!(at_rest.writes(now, &status(2), false), None, "it is there");
    }

    /// When the minute is over, the status must no longer show its traffic.
    #[test]
    fn a_policy_with_traffic_is_reported_until_the_minute_is_over() {
        let now = crate::clock::now();
        let looked = |all: Counts| {
            let mut followed = begin(StoredStatus { status: Some(Box::new(status(1))), version: None });
            followed.looked(&status(1), Some(StatusInputs { changes: 3, rules: Vec::new(), all, lost: Vec::new() }));
            followed
        };
        let idle = looked(Counts::default());
        assert!(idle.is_at_rest(now, 3, &[]));
        assert!(!idle.is_at_rest(now, 4, &[]), "something changed");
        assert!(!looked(Counts { allowed: 1, ..Counts::default() }).is_at_rest(now, 3, &[]));
        assert!(!begin(StoredStatus::default()).is_at_rest(now, 0, &[]), "it was never looked at");
    }
}
