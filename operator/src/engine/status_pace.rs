//! Decides when to write a status. This module does no I/O. There is one [`Pace`] per policy.
//!
//! A change of enforcement is written immediately. A status that says that pods are still pending is delayed for a
//! short time. So a change that every pod acknowledges within milliseconds takes one write and not two. If one pod does
//! not answer, the write still waits for the others. A message with new words for the same facts is written only at
//! intervals. The same is true for traffic that changed by more than noise. When traffic is steady, it is written once
//! more, so that the status has exactly the statistics of the agents.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::{DriftReason, RateLimitPolicyStatus, Traffic};

/// The time for which a state that waits for pods is held back.
const PODS_DELAY: Duration = Duration::from_millis(250);
/// The minimum time between two writes in which only pod counts and names changed, as in a rollout of thousands of
/// pods.
const COUNTS: Duration = Duration::from_secs(1);
/// The time after which unchanged traffic is steady.
const STEADY: Duration = Duration::from_millis(2500);
/// The divisor for noise: a change of less than one part in this number is noise.
const NOISE: i64 = 50;

/// The last written status, and the time of the write.
#[derive(Debug)]
pub(super) struct Pace {
    /// The minimum time between two writes that change only traffic.
    interval: Duration,
    written: Option<RateLimitPolicyStatus>,
    written_at: Option<Instant>,
    /// True if the last written status waited for pods.
    waited: bool,
    held_since: Option<Instant>,
    seen: Option<Traffic>,
    moved_at: Option<Instant>,
}

impl Pace {
    /// Returns a pace. `written` is the status that the policy already has.
    pub(super) fn new(interval: Duration, written: Option<RateLimitPolicyStatus>) -> Self {
        Self { interval, written, written_at: None, waited: false, held_since: None, seen: None, moved_at: None }
    }

    /// Returns the status that was written last.
    pub(super) fn written(&self) -> Option<&RateLimitPolicyStatus> {
        self.written.as_ref()
    }

    /// Returns true if this status was written, and time alone causes no other write.
    pub(super) fn rests_with(&self, status: &RateLimitPolicyStatus) -> bool {
        self.held_since.is_none() && self.written.as_ref() == Some(status)
    }

    /// Returns true if this status must be written now. It then counts as written. `waits` is true if pods are expected
    /// to change the status soon.
    pub(super) fn claim_write(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> bool {
        if self.seen != status.traffic {
            self.seen.clone_from(&status.traffic);
            self.moved_at = Some(now);
        }
        let is_due = self.is_due(now, status, waits);
        if is_due {
            self.record_write(now, status);
            self.waited = waits;
        }
        is_due
    }

    /// Returns true if this status must be written again, because another writer overwrote it. It then counts as
    /// written. A status that is held back is not repeated, because it or a newer one is written soon.
    pub(super) fn claim_rewrite(&mut self, now: Instant, status: &RateLimitPolicyStatus) -> bool {
        let is_free = self.held_since.is_none();
        if is_free {
            self.record_write(now, status);
        }
        is_free
    }

    fn record_write(&mut self, now: Instant, status: &RateLimitPolicyStatus) {
        self.written = Some(status.clone());
        self.written_at = Some(now);
        self.held_since = None;
    }

    fn is_due(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> bool {
        let same = self.written.as_ref().is_some_and(|written| without_traffic(written) == without_traffic(status));
        if !same {
            let held_since = *self.held_since.get_or_insert(now);
            if waits && now.duration_since(held_since) < PODS_DELAY {
                return false;
            }
            let only_counts = self.written.as_ref().is_some_and(|written| urgent_part(written) == urgent_part(status));
            // The last acknowledgement is written immediately, even if only counts changed.
            let is_over = self.waited && !waits;
            return !only_counts || is_over || self.written_at.is_none_or(|at| now.duration_since(at) >= COUNTS);
        }
        self.held_since = None;
        let rested = self.written_at.is_none_or(|at| now.duration_since(at) >= self.interval);
        if !rested || self.written.as_ref() == Some(status) {
            return false;
        }
        let is_steady = self.moved_at.is_none_or(|at| now.duration_since(at) >= STEADY);
        is_steady
            || self.written.as_ref().is_none_or(|written| said_otherwise(written, status) || moved(written, status))
    }
}

/// The part of a status that does not depend on traffic.
#[derive(PartialEq)]
struct WithoutTraffic<'a> {
    urgent_part: UrgentPart<'a>,
    pods: Option<(i32, i32)>,
    pods_with_share: Option<i32>,
    drifted: Vec<(&'a str, DriftReason)>,
}

/// The part of a status whose change is written immediately.
#[derive(PartialEq)]
struct UrgentPart<'a> {
    generation: Option<i64>,
    revision: Option<&'a str>,
    conditions: Vec<(&'a str, &'a str, &'a str, Option<i64>)>,
}

fn without_traffic(status: &RateLimitPolicyStatus) -> WithoutTraffic<'_> {
    let enforcement = status.enforcement.as_ref();
    WithoutTraffic {
        urgent_part: urgent_part(status),
        pods: enforcement.map(|e| (e.pods_targeted, e.pods_enforcing)),
        pods_with_share: status.fleet.as_ref().map(|fleet| fleet.pods_with_share),
        drifted: enforcement
            .map(|e| e.drifted.iter().map(|drift| (drift.pod.as_str(), drift.reason)).collect())
            .unwrap_or_default(),
    }
}

fn urgent_part(status: &RateLimitPolicyStatus) -> UrgentPart<'_> {
    let conditions = status.conditions.iter();
    UrgentPart {
        generation: status.observed_generation,
        revision: status.revision.as_deref(),
        conditions: conditions
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str(), c.observed_generation))
            .collect(),
    }
}

/// Returns true if the same facts have other words, such as the names of other pods in a message.
fn said_otherwise(before: &RateLimitPolicyStatus, after: &RateLimitPolicyStatus) -> bool {
    before.conditions != after.conditions
        || before.enforcement != after.enforcement
        || before.last_known_good != after.last_known_good
}

/// Returns true if the traffic or the number of keys changed by more than noise.
fn moved(before: &RateLimitPolicyStatus, after: &RateLimitPolicyStatus) -> bool {
    let far = |before: i64, after: i64| before.abs_diff(after) > (before / NOISE).unsigned_abs();
    if keys(before).zip(keys(after)).any(|(before, after)| far(before, after)) {
        return true;
    }
    let (Some(before), Some(after)) = (&before.traffic, &after.traffic) else { return before.traffic != after.traffic };
    far(before.allowed, after.allowed)
        || far(before.limited, after.limited)
        || far(before.shadow_limited, after.shadow_limited)
        || far(before.waited, after.waited)
        || before.by_rule.len() != after.by_rule.len()
}

/// The number of keys of each rule of scope Fleet.
fn keys(status: &RateLimitPolicyStatus) -> impl Iterator<Item = i64> {
    status.fleet.iter().flat_map(|fleet| &fleet.by_rule).map(|rule| rule.keys)
}

#[cfg(test)]
#[path = "status_pace_tests.rs"]
mod tests;
