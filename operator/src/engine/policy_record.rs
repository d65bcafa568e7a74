//! The engine's memory of a policy between two reports. This module does no I/O and reads no clock.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::RateLimitPolicyStatus;

use crate::{
    compile::Compiled,
    engine::{echo::Echo, status_pace::Pace},
    status::{announcer::Announcer, fleet::FleetCounts, stores::LostConnections},
    traffic::Counts,
    world::StoredStatus,
};

/// The inputs of a status, for a policy that every pod enforces.
#[derive(Debug, PartialEq)]
pub(super) struct StatusInputs {
    /// A counter that grows with each change of the policy and of its targets.
    pub(super) changes: u64,
    /// The traffic of each rule in the last minute, in the rules' order.
    pub(super) rules: Vec<(String, Counts)>,
    /// The traffic of all rules.
    pub(super) all: Counts,
    /// The pods that do not reach a store of the policy, or the operator.
    pub(super) lost: LostConnections,
    /// How the operator counts for the policy.
    pub(super) fleet: FleetCounts,
}

/// The record of a policy.
#[derive(Debug)]
pub(super) struct PolicyRecord {
    /// The UID of the policy.
    pub(super) uid: String,
    /// Decides which facts to announce.
    pub(super) announcer: Announcer,
    /// Decides when to write the policy's status.
    pub(super) pace: Pace,
    /// Detects whether the policy's status was overwritten.
    pub(super) echo: Echo,
    /// The policy's resource version, from the source or from the last write.
    pub(super) version: Option<String>,
    /// The inputs of the last report, if nothing more was to be reported.
    last_inputs: Option<StatusInputs>,
}

impl PolicyRecord {
    /// Returns a record for a policy that this operator begins to follow, with its stored status.
    pub(super) fn begin(now: Instant, compiled: &Compiled, traffic_interval: Duration, found: StoredStatus) -> Self {
        let StoredStatus { status, version } = found;
        let found = status.map(|status| *status);
        Self {
            uid: compiled.uid.clone(),
            announcer: Announcer::begin(now, compiled.policy.clone(), found.as_ref()),
            echo: Echo::new(found.clone().map(Box::new)),
            pace: Pace::new(traffic_interval, found),
            version,
            last_inputs: None,
        }
    }

    /// Returns true if these inputs cause no new report for a policy that all its pods enforce.
    pub(super) fn is_same(&self, now: Instant, inputs: &StatusInputs) -> bool {
        self.last_inputs.as_ref() == Some(inputs) && !self.echo.is_foreign(now)
    }

    /// Returns true if a policy without traffic in the last minute needs no new report. This check is cheaper than
    /// [`Self::is_same`].
    pub(super) fn is_at_rest(&self, now: Instant, changes: u64, lost: &LostConnections, fleet: &FleetCounts) -> bool {
        let rests = |last: &StatusInputs| {
            last.changes == changes && last.all == Counts::default() && last.lost == *lost && last.fleet == *fleet
        };
        self.last_inputs.as_ref().is_some_and(rests) && !self.echo.is_foreign(now)
    }

    /// Records a report with this status. If every pod enforces the policy, the same `inputs` lead to the same status
    /// next time.
    pub(super) fn record_report(&mut self, status: &RateLimitPolicyStatus, inputs: Option<StatusInputs>) {
        self.last_inputs = inputs.filter(|_| self.pace.rests_with(status));
    }

    /// Records the status that the source reports.
    pub(super) fn record_source_status(&mut self, now: Instant, stored: StoredStatus) {
        self.version = stored.version;
        self.echo.record_source_status(now, stored.status);
    }

    /// Records a write that succeeded.
    pub(super) fn written(&mut self, now: Instant, number: u64, stored: StoredStatus) {
        self.version = stored.version;
        self.echo.written(now, number, stored.status);
    }

    /// Returns the newest status. The record of the policy in the next term begins with it.
    pub(super) fn into_stored(self) -> StoredStatus {
        StoredStatus { status: self.echo.into_known(), version: self.version }
    }

    /// Returns the number of this status if it must be written: because it is new, or because another writer overwrote
    /// the last one. `waits` is true if pods are expected to change the status soon.
    pub(super) fn start_write(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> Option<u64> {
        let is_due = self.pace.claim_write(now, status, waits)
            || (self.echo.is_foreign(now) && self.pace.claim_rewrite(now, status));
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
            changed: None,
            file: None,
            faults: Vec::new(),
            policy: None,
            target: None,
            good: None,
        };
        PolicyRecord::begin(crate::clock::now(), &policy, Duration::from_secs(10), found)
    }

    /// A leader's term ends while its write fails. After its next election, the status must still be written.
    #[test]
    fn an_unwritten_status_is_written_in_the_next_term() {
        let now = crate::clock::now();
        let found = StoredStatus { status: Some(Box::new(status(1))), version: Some("7".to_owned()) };
        let mut followed = begin(found);
        assert_eq!(followed.start_write(now, &status(2), false), Some(1));
        let mut again = begin(followed.into_stored());
        assert_eq!(again.start_write(now, &status(2), false), Some(1), "a new term must write the status again");

        let stored = StoredStatus { status: Some(Box::new(status(2))), version: Some("8".to_owned()) };
        again.written(now, 1, stored);
        let mut at_rest = begin(again.into_stored());
        assert_eq!(at_rest.start_write(now, &status(2), false), None, "the status is already stored");
    }

    /// A minute after the last request, the status must no longer show that traffic.
    #[test]
    fn a_policy_with_traffic_is_reported_until_the_minute_is_over() {
        let now = crate::clock::now();
        let reported = |all: Counts| {
            let mut followed = begin(StoredStatus { status: Some(Box::new(status(1))), version: None });
            followed.record_report(
                &status(1),
                Some(StatusInputs {
                    changes: 3,
                    rules: Vec::new(),
                    all,
                    lost: LostConnections::default(),
                    fleet: FleetCounts::default(),
                }),
            );
            followed
        };
        let (lost, fleet) = (LostConnections::default(), FleetCounts::default());
        let idle = reported(Counts::default());
        assert!(idle.is_at_rest(now, 3, &lost, &fleet));
        assert!(!idle.is_at_rest(now, 4, &lost, &fleet), "a changed policy must be reported");
        let shares = FleetCounts { pods_with_share: vec![(1, 4)], ..FleetCounts::default() };
        assert!(!idle.is_at_rest(now, 3, &lost, &shares), "a pod that uses its share must be reported");
        assert!(!reported(Counts { allowed: 1, ..Counts::default() }).is_at_rest(now, 3, &lost, &fleet));
        let new = begin(StoredStatus::default());
        assert!(!new.is_at_rest(now, 0, &lost, &fleet), "a new record must be reported");
    }
}
