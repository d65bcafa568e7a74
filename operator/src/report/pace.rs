//! When a status is worth writing. Pure, one [`Pace`] per policy.
//!
//! What the pods enforce is written at once. A state in which pods are waited for is held back for a moment, so
//! that a change that every pod acknowledges within milliseconds is one write and not two. Numbers of traffic are
//! written now and then, when they moved by more than noise, and once more when they stopped moving: the last write
//! agrees exactly with what the agents counted. A pod that stays away is no reason not to wait for the others.

use std::time::Duration;

use tokio::time::Instant;
use weir_api::{DriftReason, RateLimitPolicyStatus, Traffic};

/// How long pods must be waited for until that is written.
const HOLD: Duration = Duration::from_millis(250);
/// Where only the counts of pods and their names changed, and what is said of them did not: a rollout of thousands of pods
/// is written so often at most.
const COUNTS: Duration = Duration::from_secs(1);
/// Numbers that did not move for this long have settled.
const SETTLED: Duration = Duration::from_millis(2500);
/// A number that moved by less than this share of it is noise.
const NOISE: i64 = 50;

/// Remembers what was written.
#[derive(Debug)]
pub struct Pace {
    /// Between two writes that only bring traffic.
    interval: Duration,
    written: Option<RateLimitPolicyStatus>,
    written_at: Option<Instant>,
    /// Whether pods were waited for in what was written.
    waited: bool,
    held_since: Option<Instant>,
    seen: Option<Traffic>,
    moved_at: Option<Instant>,
}

impl Pace {
    /// `written` is the status that the policy has already.
    pub fn new(interval: Duration, written: Option<RateLimitPolicyStatus>) -> Self {
        Self { interval, written, written_at: None, waited: false, held_since: None, seen: None, moved_at: None }
    }

    /// What was last written.
    pub fn written(&self) -> Option<&RateLimitPolicyStatus> {
        self.written.as_ref()
    }

    /// Whether this status has been written, so that the passing of time leads to nothing more.
    pub fn rests_with(&self, status: &RateLimitPolicyStatus) -> bool {
        self.held_since.is_none() && self.written.as_ref() == Some(status)
    }

    /// Whether to write this status now; `waits`: pods are expected to change it soon. If so, it counts as written.
    pub fn admits(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> bool {
        if self.seen != status.traffic {
            self.seen.clone_from(&status.traffic);
            self.moved_at = Some(now);
        }
        let admitted = self.is_due(now, status, waits);
        if admitted {
            self.put_down(now, status);
            self.waited = waits;
        }
        admitted
    }

    /// Whether to write this status although nothing is new, because what was written is no longer there. If so, it
    /// counts as written. One that is held back is not: it is written in a moment, or there is a better one by then.
    pub fn repeats(&mut self, now: Instant, status: &RateLimitPolicyStatus) -> bool {
        let repeats = self.held_since.is_none();
        if repeats {
            self.put_down(now, status);
        }
        repeats
    }

    fn put_down(&mut self, now: Instant, status: &RateLimitPolicyStatus) {
        self.written = Some(status.clone());
        self.written_at = Some(now);
        self.held_since = None;
    }

    fn is_due(&mut self, now: Instant, status: &RateLimitPolicyStatus, waits: bool) -> bool {
        let same = self.written.as_ref().is_some_and(|written| essence(written) == essence(status));
        if !same {
            let held_since = *self.held_since.get_or_insert(now);
            if waits && now.duration_since(held_since) < HOLD {
                return false;
            }
            let only_counts = self.written.as_ref().is_some_and(|written| said(written) == said(status));
            // The last acknowledgement is news, however little came before it.
            let is_over = self.waited && !waits;
            return !only_counts || is_over || self.written_at.is_none_or(|at| now.duration_since(at) >= COUNTS);
        }
        self.held_since = None;
        let rested = self.written_at.is_none_or(|at| now.duration_since(at) >= self.interval);
        if !rested || self.written.as_ref() == Some(status) {
            return false;
        }
        let settled = self.moved_at.is_none_or(|at| now.duration_since(at) >= SETTLED);
        settled || self.written.as_ref().is_none_or(|written| moved(written.traffic.as_ref(), status.traffic.as_ref()))
    }
}

/// The part of a status that is written without regard to traffic.
#[derive(PartialEq)]
struct Essence<'a> {
    said: Said<'a>,
    pods: Option<(i32, i32)>,
    drifted: Vec<(&'a str, DriftReason)>,
}

/// The part of it that is written at once.
#[derive(PartialEq)]
struct Said<'a> {
    generation: Option<i64>,
    revision: Option<&'a str>,
    conditions: Vec<(&'a str, &'a str, &'a str, Option<i64>)>,
}

fn essence(status: &RateLimitPolicyStatus) -> Essence<'_> {
    let enforcement = status.enforcement.as_ref();
    Essence {
        said: said(status),
        pods: enforcement.map(|e| (e.pods_targeted, e.pods_enforcing)),
        drifted: enforcement
            .map(|e| e.drifted.iter().map(|drift| (drift.pod.as_str(), drift.reason)).collect())
            .unwrap_or_default(),
    }
}

fn said(status: &RateLimitPolicyStatus) -> Said<'_> {
    let conditions = status.conditions.iter();
    Said {
        generation: status.observed_generation,
        revision: status.revision.as_deref(),
        conditions: conditions
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_str(), c.observed_generation))
            .collect(),
    }
}

fn moved(before: Option<&Traffic>, after: Option<&Traffic>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return before != after };
    let far = |before: i64, after: i64| before.abs_diff(after) > (before / NOISE).unsigned_abs();
    far(before.allowed, after.allowed)
        || far(before.limited, after.limited)
        || far(before.shadow_limited, after.shadow_limited)
        || far(before.waited, after.waited)
        || before.by_rule.len() != after.by_rule.len()
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
