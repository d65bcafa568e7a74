//! The traffic of the last minute per policy and rule, from counters that only grow.
//!
//! Agents report totals since their start. This module keeps the last totals of each pod, and adds each difference to a
//! window of length [`WINDOW`], when it arrived. The module reads no clock, and does not depend on targets or
//! conditions.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    ops::AddAssign,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use weir_wire::{RuleStatus, Status};

use crate::world::ObjectKey;

/// The length of the window.
pub const WINDOW: Duration = Duration::from_secs(60);

/// Differences that arrive within this time are merged, so that the memory does not grow with the number of pods.
const GRAIN: Duration = Duration::from_millis(500);

/// Requests by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admitted requests.
    pub allowed: u64,
    /// Refused requests.
    pub limited: u64,
    /// Requests that shadow mode admitted although a limit would have refused them.
    pub shadow_limited: u64,
    /// Admitted requests that had to wait.
    pub waited: u64,
}

impl Counts {
    fn of(rule: &RuleStatus) -> Self {
        Self { allowed: rule.allowed, limited: rule.limited, shadow_limited: rule.shadow_limited, waited: rule.waited }
    }

    /// Returns the difference to `earlier`. If a counter decreased, the agent has restarted, and all counts are
    /// returned.
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

/// The traffic of the last minute of all policies.
#[derive(Debug, Default)]
pub struct Traffic {
    pods: HashMap<ObjectKey, Totals>,
    /// The distinct lists of rules. Pods with equal lists share one.
    lists: HashSet<Arc<Rules>>,
    /// The windows by policy UID and rule name.
    windows: HashMap<String, BTreeMap<String, Window>>,
}

/// The policy UID and name of each rule, in the order in which a pod reports the rules.
type Rules = [(String, String)];

#[derive(Debug)]
struct Totals {
    /// A hash of the agent's instance.
    instance: u64,
    rules: Arc<Rules>,
    counts: Box<[Counts]>,
    /// The time of the last status.
    at: Instant,
    is_gone: bool,
}

/// The last totals of a pod, by rule.
struct LastTotals<'a> {
    totals: &'a Totals,
    /// The place of each rule in the list. Usually the list has not changed since the last status, and this map is not
    /// needed.
    places: OnceCell<HashMap<(&'a str, &'a str), usize>>,
}

impl<'a> LastTotals<'a> {
    fn new(totals: &'a Totals) -> Self {
        Self { totals, places: OnceCell::new() }
    }

    fn of(&self, place: usize, uid: &str, rule: &str) -> Counts {
        let here = self.totals.rules.get(place).is_some_and(|(of, name)| of == uid && name == rule);
        let place = if here { Some(place) } else { self.places().get(&(uid, rule)).copied() };
        place.map_or_else(Counts::default, |place| self.totals.counts[place])
    }

    fn places(&self) -> &HashMap<(&'a str, &'a str), usize> {
        self.places.get_or_init(|| {
            let names = self.totals.rules.iter().map(|(uid, rule)| (uid.as_str(), rule.as_str()));
            names.enumerate().map(|(place, name)| (name, place)).collect()
        })
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
    /// Records a pod's status.
    ///
    /// The difference between these totals and the pod's previous totals is counted. Without previous totals, these
    /// totals count in full if they are known to be recent: the pod is known and not gone, but its agent, policy or rule
    /// is new, or the agent started within the window. Otherwise the operator has restarted, or an agent was listed again,
    /// and counting begins at these totals.
    pub fn observe(&mut self, now: Instant, pod: &ObjectKey, status: &Status) {
        let known = self.pods.remove(pod);
        let instance = hash(&status.instance);
        let young = Duration::from_millis(status.uptime_millis) <= WINDOW;
        let baseline = match &known {
            Some(totals) if totals.instance == instance => Baseline::Last(LastTotals::new(totals)),
            Some(totals) if !totals.is_gone => Baseline::Zero,
            _ if young => Baseline::Zero,
            _ => Baseline::Now,
        };
        let rules =
            || (status.policies.iter()).flat_map(|policy| policy.rules.iter().map(|rule| (policy.uid.as_str(), rule)));
        let mut counts = Vec::with_capacity(known.as_ref().map_or(0, |totals| totals.counts.len()));
        for (place, (uid, rule)) in rules().enumerate() {
            let total = Counts::of(rule);
            let added = match &baseline {
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
        let totals = Totals { instance, rules: list, counts: counts.into(), at: now, is_gone: false };
        self.pods.insert(pod.clone(), totals);
    }

    fn share(&mut self, list: Arc<Rules>) -> Arc<Rules> {
        if let Some(shared) = self.lists.get(&list) {
            return shared.clone();
        }
        // Removes unused lists when the table would have to grow.
        if self.lists.len() == self.lists.capacity() {
            self.lists.retain(|list| Arc::strong_count(list) > 1);
        }
        self.lists.insert(list.clone());
        list
    }

    /// Records that a pod is gone. Its traffic stays in the window. Its totals stay for that time, too: if the pod comes
    /// back, an agent that is still young would count in full again.
    pub fn forget(&mut self, pod: &ObjectKey) {
        if let Some(totals) = self.pods.get_mut(pod) {
            totals.is_gone = true;
        }
    }

    /// Removes the counts that are older than the window.
    pub fn expire(&mut self, now: Instant) {
        self.pods.retain(|_, totals| !totals.is_gone || now.duration_since(totals.at) <= WINDOW);
        self.windows.retain(|_, rules| {
            rules.retain(|_, window| {
                window.expire(now);
                !window.entries.is_empty()
            });
            !rules.is_empty()
        });
    }

    /// Returns true if a policy may have had traffic in the last minute.
    pub fn has(&self, uid: &str) -> bool {
        self.windows.contains_key(uid)
    }

    /// The traffic of one rule of a policy in the last minute.
    pub fn rule(&self, now: Instant, uid: &str, rule: &str) -> Counts {
        self.windows.get(uid).and_then(|rules| rules.get(rule)).map_or_else(Counts::default, |w| w.sum(now))
    }

    /// The traffic of all rules of a policy in the last minute, including removed rules.
    pub fn policy(&self, now: Instant, uid: &str) -> Counts {
        let mut sum = Counts::default();
        for window in self.windows.get(uid).into_iter().flat_map(BTreeMap::values) {
            sum += window.sum(now);
        }
        sum
    }
}

fn hash(instance: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    instance.hash(&mut hasher);
    hasher.finish()
}

enum Baseline<'a> {
    Last(LastTotals<'a>),
    Zero,
    Now,
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
