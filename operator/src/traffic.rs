//! What went through in the last minute, per policy and rule, from counters that only grow.
//!
//! Agents report totals since they started. This module turns them into what was learned within the last
//! [`WINDOW`]: it remembers the last totals of each pod and files the differences under the second they came in.
//! It knows no clock, and nothing of targets or conditions.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::AddAssign;
use std::time::Duration;

use tokio::time::Instant;
use weir_wire::{RuleStatus, Status};

use crate::world::ObjectKey;

/// How far back the numbers reach.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Differences are merged when they are closer than this, so that many pods need no more memory than one.
const GRAIN: Duration = Duration::from_millis(500);

/// Requests by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Let through.
    pub allowed: u64,
    /// Refused.
    pub limited: u64,
    /// Let through, but would have been refused.
    pub shadow_limited: u64,
    /// Of those let through, how many had to wait.
    pub waited: u64,
}

impl Counts {
    fn of(rule: &RuleStatus) -> Self {
        Self { allowed: rule.allowed, limited: rule.limited, shadow_limited: rule.shadow_limited, waited: rule.waited }
    }

    /// What was added since `earlier`; everything if a counter went backwards, because then it started afresh.
    fn since(self, earlier: Self) -> Self {
        let difference = || {
            Some(Self {
                allowed: self.allowed.checked_sub(earlier.allowed)?,
                limited: self.limited.checked_sub(earlier.limited)?,
                shadow_limited: self.shadow_limited.checked_sub(earlier.shadow_limited)?,
                waited: self.waited.checked_sub(earlier.waited)?,
            })
        };
        difference().unwrap_or(self)
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.allowed += other.allowed;
        self.limited += other.limited;
        self.shadow_limited += other.shadow_limited;
        self.waited += other.waited;
    }
}

/// The last minute of all policies.
#[derive(Debug, Default)]
pub struct Traffic {
    pods: HashMap<ObjectKey, Totals>,
    /// By policy UID, then by rule name.
    windows: HashMap<String, BTreeMap<String, Window>>,
}

/// What a pod last said.
#[derive(Debug)]
struct Totals {
    instance: String,
    rules: HashMap<(String, String), Counts>,
}

#[derive(Debug, Default)]
struct Window {
    entries: VecDeque<(Instant, Counts)>,
}

impl Window {
    fn add(&mut self, now: Instant, counts: Counts) {
        match self.entries.back_mut() {
            Some((at, sum)) if now.duration_since(*at) < GRAIN => *sum += counts,
            _ => self.entries.push_back((now, counts)),
        }
    }

    fn expire(&mut self, now: Instant) {
        while self.entries.front().is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.entries.pop_front();
        }
    }

    fn sum(&self, now: Instant) -> Counts {
        let mut sum = Counts::default();
        for (_, counts) in self.entries.iter().filter(|(at, _)| now.duration_since(*at) < WINDOW) {
            sum += *counts;
        }
        sum
    }
}

impl Traffic {
    /// Files what a pod says of itself.
    ///
    /// Totals are compared with the pod's last ones. Where there are none, they count in full if all of them are
    /// known to be recent: the pod is known but its agent, policy or rule is new, or the agent started within the
    /// window. Otherwise (the operator restarted) they are where counting starts.
    pub fn observe(&mut self, now: Instant, pod: &ObjectKey, status: &Status) {
        let known = self.pods.remove(pod);
        let young = Duration::from_millis(status.uptime_millis) <= WINDOW;
        let baseline = match &known {
            Some(totals) if totals.instance == status.instance => Baseline::Last(&totals.rules),
            Some(_) => Baseline::Zero,
            None if young => Baseline::Zero,
            None => Baseline::Now,
        };
        let mut rules = HashMap::new();
        for policy in &status.policies {
            for rule in &policy.rules {
                let key = (policy.uid.clone(), rule.name.clone());
                let total = Counts::of(rule);
                let added = match baseline {
                    Baseline::Last(last) => total.since(last.get(&key).copied().unwrap_or_default()),
                    Baseline::Zero => total,
                    Baseline::Now => Counts::default(),
                };
                if added != Counts::default() {
                    let window = self.windows.entry(policy.uid.clone()).or_default();
                    window.entry(rule.name.clone()).or_default().add(now, added);
                }
                rules.insert(key, total);
            }
        }
        self.pods.insert(pod.clone(), Totals { instance: status.instance.clone(), rules });
    }

    /// Forgets a pod's totals; what it let through stays in the window.
    pub fn forget(&mut self, pod: &ObjectKey) {
        self.pods.remove(pod);
    }

    /// Gives up what is older than the window.
    pub fn expire(&mut self, now: Instant) {
        self.windows.retain(|_, rules| {
            rules.retain(|_, window| {
                window.expire(now);
                !window.entries.is_empty()
            });
            !rules.is_empty()
        });
    }

    /// What one rule of a policy did in the last minute.
    pub fn rule(&self, now: Instant, uid: &str, rule: &str) -> Counts {
        self.windows.get(uid).and_then(|rules| rules.get(rule)).map_or_else(Counts::default, |w| w.sum(now))
    }

    /// What all rules of a policy did in the last minute, those that it no longer has included.
    pub fn policy(&self, now: Instant, uid: &str) -> Counts {
        let mut sum = Counts::default();
        for window in self.windows.get(uid).into_iter().flat_map(BTreeMap::values) {
            sum += window.sum(now);
        }
        sum
    }
}

#[derive(Clone, Copy)]
enum Baseline<'a> {
    Last(&'a HashMap<(String, String), Counts>),
    Zero,
    Now,
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
