//! What agents can have used and a new counter does not know, because they did not report all their levels.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// The maximum number of pods that are named for one policy.
const NAMED: usize = 3;

/// The limits that count as used up since the counter began to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedUp {
    /// The time at which the counter began to count, in microseconds of Unix time.
    pub since: u64,
    /// The rules of these limits, by the name of their counters. Each with its policy.
    pub rules: Arc<HashMap<String, Arc<str>>>,
    /// The reason. If no pod is in it, the operator did not know all pods at that time.
    pub unknown: Arc<UnknownUse>,
}

/// The pods that did not report all that their agents used, by the policies of these agents.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnknownUse {
    /// The pods whose agents knew too many levels, by policy.
    incomplete: HashMap<Arc<str>, FewPods>,
    /// The pods that are missing, by namespace. Their agents can have any policy of it.
    missing: HashMap<Box<str>, FewPods>,
}

/// Some pods, of which the first are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FewPods {
    /// The number of pods.
    pub count: usize,
    /// The first names, in order.
    pub first: BTreeSet<Arc<str>>,
}

impl UnknownUse {
    /// Records that this pod did not report some levels of its policies.
    pub(crate) fn record_incomplete<'a>(&mut self, name: &Arc<str>, policies: impl Iterator<Item = &'a Arc<str>>) {
        for policy in policies {
            self.incomplete.entry(policy.clone()).or_default().add(name);
        }
    }

    /// Records that this pod with these policies was missing.
    pub(crate) fn record_missing<'a>(&mut self, name: &Arc<str>, policies: impl Iterator<Item = &'a Arc<str>>) {
        let namespaces: BTreeSet<&str> = policies.map(|policy| namespace(policy)).collect();
        for namespace in namespaces {
            self.missing.entry(namespace.into()).or_default().add(name);
        }
    }

    /// Returns true if an agent can have used the limits of this policy.
    pub(super) fn contains(&self, policy: &str) -> bool {
        self.incomplete.contains_key(policy) || self.missing.contains_key(namespace(policy))
    }

    /// Returns the missing pods that can have used the limits of a policy.
    pub fn missing(&self, policy: &str) -> FewPods {
        self.missing.get(namespace(policy)).cloned().unwrap_or_default()
    }

    /// Returns the pods with incomplete levels that can have used the limits of a policy.
    pub fn incomplete(&self, policy: &str) -> FewPods {
        self.incomplete.get(policy).cloned().unwrap_or_default()
    }
}

impl FewPods {
    pub(super) fn add(&mut self, name: &Arc<str>) {
        self.count += 1;
        self.first.insert(name.clone());
        if self.first.len() > NAMED {
            self.first.pop_last();
        }
    }
}

/// The namespace of a policy, from `NAMESPACE/NAME`.
pub(super) fn namespace(policy: &str) -> &str {
    policy.split_once('/').map_or(policy, |(namespace, _)| namespace)
}
