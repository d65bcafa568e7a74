//! What went through in the last minute, per policy and rule, from counters that only grow.
//!
//! Agents report totals since they started. This module turns them into what was learned within the last
//! [`WINDOW`]: it remembers the last totals of each pod and files the differences under the second they came in.
//! It knows no clock, and nothing of targets or conditions.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;
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

    /// What was added since `earlier`; everything if a counter went backwards, because then it started again.
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
    /// The lists of rules that pods have, each once.
    lists: HashSet<Arc<Rules>>,
    /// By policy UID, then by rule name.
    windows: HashMap<String, BTreeMap<String, Window>>,
}

/// Policy UID and name of each rule, as a pod lists them.
type Rules = [(String, String)];

/// What a pod last said.
#[derive(Debug)]
struct Totals {
    instance: String,
    rules: Arc<Rules>,
    /// Of each rule.
    counts: Box<[Counts]>,
}

impl Totals {
    fn of(&self, place: usize, uid: &str, rule: &str) -> Counts {
        let is_it = |(of, name): &(String, String)| of == uid && name == rule;
        // Nearly always the list is the same as last time.
        let here = self.rules.get(place).is_some_and(is_it);
        let place = if here { Some(place) } else { self.rules.iter().position(is_it) };
        place.map_or_else(Counts::default, |place| self.counts[place])
    }
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
            Some(totals) if totals.instance == status.instance => Baseline::Last(totals),
            Some(_) => Baseline::Zero,
            None if young => Baseline::Zero,
            None => Baseline::Now,
        };
        let rules =
            || (status.policies.iter()).flat_map(|policy| policy.rules.iter().map(|rule| (policy.uid.as_str(), rule)));
        let mut counts = Vec::with_capacity(known.as_ref().map_or(0, |totals| totals.counts.len()));
        for (place, (uid, rule)) in rules().enumerate() {
            let total = Counts::of(rule);
            let added = match baseline {
                Baseline::Last(last) => total.since(last.of(place, uid, &rule.name)),
                Baseline::Zero => total,
                Baseline::Now => Counts::default(),
            };
            if added != Counts::default() {
                let window = self.windows.entry(uid.to_owned()).or_default();
                window.entry(rule.name.clone()).or_default().add(now, added);
            }
            counts.push(total);
        }
        let same = known.as_ref().map(|totals| &totals.rules).filter(|known| {
            known.len() == counts.len() && rules().zip(known.iter()).all(|((uid, r), k)| k.0 == uid && k.1 == r.name)
        });
        let list = match same {
            Some(list) => list.clone(),
            None => self.share(rules().map(|(uid, rule)| (uid.to_owned(), rule.name.clone())).collect()),
        };
        let totals = Totals { instance: status.instance.clone(), rules: list, counts: counts.into() };
        self.pods.insert(pod.clone(), totals);
    }

    fn share(&mut self, list: Arc<Rules>) -> Arc<Rules> {
        if let Some(shared) = self.lists.get(&list) {
            return shared.clone();
        }
        // Those that no pod has any more go when the table would have to grow.
        if self.lists.len() == self.lists.capacity() {
            self.lists.retain(|list| Arc::strong_count(list) > 1);
        }
        self.lists.insert(list.clone());
        list
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

    /// Whether anything may have gone through a policy in the last minute.
    pub fn has(&self, uid: &str) -> bool {
        self.windows.contains_key(uid)
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
    Last(&'a Totals),
    Zero,
    Now,
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
