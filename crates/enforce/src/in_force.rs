//! The rules in force, and their replacement by the rules of a new snapshot.
//!
//! The policy's UID and the rule's name identify a rule. A rule with the same UID and name as an earlier rule takes
//! over the statistics and the limiter of that rule. The limiter is retuned in place, so requests that still use the
//! old rules charge the same words as requests that use the new rules. So a change of mode, match, refusal or order
//! changes no count.
//!
//! A limiter is new in four cases: the rule is new (or had no limits before), its `key` was added or removed, its `key`
//! uses other parts of the request, or its scope changed. A new limiter has its full burst. If a policy is deleted and
//! created again within a minute, its rules keep their limiters; see `removed`.
//!
//! The bans of a rule stay if its `key` does not change. A removed rule loses its bans immediately.
//!
//! The counts of a rule of scope Shared are in its store, under the namespace and the name of the policy. A new limiter
//! of such a rule continues with these counts.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use weir_core::Time;
use weir_wire::{Mode, Per, Snapshot};

use super::{
    jwt::Jwks,
    lower::{Lowered, full_name},
    removed::Removed,
    rule::{Policy, Predecessor, Rule, Stores},
    rule_set::{Member, RuleSet},
    statistics::Unmatched,
};

/// All rules that are enforced at one time. A change replaces the whole value.
#[derive(Clone, Debug, Default)]
pub struct RulesInForce {
    /// The snapshot, and the time since which its revision is in force. `None` before the first snapshot.
    snapshot: Option<(Arc<Snapshot>, Time)>,
    policies: Vec<Arc<Policy>>,
    /// The rules that decide on requests.
    pub(super) requests: Arc<RuleSet>,
    /// The rules that decide on messages.
    pub(super) messages: Arc<RuleSet>,
    /// The rules that decide on descriptors, by domain.
    pub(super) domains: HashMap<String, Arc<RuleSet>>,
    /// The keys that verify tokens.
    pub(super) jwks: Option<Arc<Jwks>>,
    removed: Removed,
    pub(super) unmatched: Arc<Unmatched>,
}

impl RulesInForce {
    /// Returns the snapshot in force, and the time since which its revision has been in force.
    pub fn snapshot(&self) -> Option<(&Snapshot, Time)> {
        self.snapshot.as_ref().map(|(snapshot, since)| (&**snapshot, *since))
    }

    /// Returns all policies, in the order of the snapshot.
    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// Returns the number of requests that no rule matched, under these rules and all earlier ones.
    pub fn unmatched(&self) -> u64 {
        self.unmatched.0.get()
    }

    pub(super) fn jwks(&self) -> Option<&Jwks> {
        self.jwks.as_deref()
    }

    /// Returns these rules with another key set (JWKS): rules use only the claims of tokens that its keys signed.
    /// Without a key set, they use the claims of any token.
    pub fn with_jwks(&self, jwks: Option<Arc<Jwks>>) -> Self {
        Self { jwks, ..self.clone() }
    }

    /// Returns these rules with a later snapshot of the same revision, which has a higher sequence.
    pub fn with_later_sequence(&self, snapshot: Snapshot, now: Time) -> Self {
        let since = self.snapshot.as_ref().map_or(now, |(_, since)| *since);
        Self { snapshot: Some((Arc::new(snapshot), since)), ..self.clone() }
    }

    /// Returns the rules that replace these. A rule whose store is not in `stores` is counted only in this program.
    pub fn with_snapshot(
        &self,
        snapshot: Snapshot,
        lowered: Lowered,
        stores: &Stores,
        clock: impl Fn() -> Time,
    ) -> Self {
        let before: HashMap<(&str, &str), &Arc<Rule>> =
            self.rules().map(|(policy, rule)| ((policy.uid.as_str(), rule.name.as_str()), rule)).collect();
        let now = clock();
        let mut next = Self {
            snapshot: Some((Arc::new(snapshot), now)),
            jwks: self.jwks.clone(),
            removed: self.removed_by(&lowered, now),
            unmatched: Arc::clone(&self.unmatched),
            ..Self::default()
        };
        for policy in lowered.policies {
            let full_name = full_name(&policy.namespace, &policy.name);
            let rules: Vec<Arc<Rule>> = policy
                .rules
                .into_iter()
                .map(|rule| {
                    let follows = before.get(&(policy.uid.as_str(), rule.name.as_str())).copied();
                    let statistics = follows.map(|before| Arc::clone(&before.statistics)).unwrap_or_default();
                    let removed = if follows.is_none() { next.removed.take(&full_name, &rule.name) } else { None };
                    let predecessor = match (follows, &removed) {
                        (Some(rule), _) => Predecessor::InForce(rule),
                        (None, Some(rule)) => Predecessor::Removed(rule),
                        (None, None) => Predecessor::None,
                    };
                    Arc::new(Rule::from_lowered(statistics, predecessor, rule, &full_name, (&clock, stores)))
                })
                .collect();
            let (uid, namespace, name, revision) = (policy.uid, policy.namespace, policy.name, policy.revision);
            let (mode, domain, deadline) = (policy.mode, policy.domain, policy.deadline.map(Arc::new));
            next.policies.push(Arc::new(Policy { uid, namespace, name, revision, mode, domain, deadline, rules }));
        }
        // Trimmed last, because limiters that the new rules took over need no room here.
        next.removed.trim();
        next.requests = Arc::new(next.rule_set(None, Per::Request));
        next.messages = Arc::new(next.rule_set(None, Per::Message));
        let domains: HashSet<String> = next.policies.iter().filter_map(|policy| policy.domain.clone()).collect();
        next.domains = domains
            .into_iter()
            .map(|domain| {
                let rules = next.rule_set(Some(&domain), Per::Request);
                (domain, Arc::new(rules))
            })
            .collect();
        next
    }

    /// Returns the removed rules whose limiters are kept: the earlier ones, and the rules that `lowered` does not
    /// contain.
    fn removed_by(&self, lowered: &Lowered, now: Time) -> Removed {
        let rules = lowered.policies.iter().flat_map(|policy| policy.rules.iter().map(move |rule| (policy, rule)));
        let stay: HashSet<(&str, &str)> =
            rules.map(|(policy, rule)| (policy.uid.as_str(), rule.name.as_str())).collect();
        let mut removed = self.removed.clone();
        removed.expire(now);
        for (policy, rule) in self.rules().filter(|(policy, rule)| !stay.contains(&(&policy.uid, &rule.name))) {
            removed.add(policy, rule, now);
        }
        removed
    }

    fn rules(&self) -> impl Iterator<Item = (&Policy, &Arc<Rule>)> {
        self.policies.iter().flat_map(|policy| policy.rules.iter().map(|rule| (&**policy, rule)))
    }

    /// Returns the number of removed rules whose limiters are kept, and the time at which the first of them is dropped.
    pub fn removed(&self) -> (usize, Option<Time>) {
        self.removed.held()
    }

    /// Returns these rules without the removed limiters whose time has passed.
    pub fn without_removed(&self, now: Time) -> Self {
        let mut next = self.clone();
        next.removed.expire(now);
        next
    }

    /// Returns the rules that count requests, or the rules that count messages. A bypass is in both sets. A denied
    /// request has no messages. The set for messages is empty if no rule counts messages. With a domain, returns the
    /// rules that count its descriptors.
    fn rule_set(&self, domain: Option<&str>, per: Per) -> RuleSet {
        let (mut enforced, mut shadows) = (Vec::new(), Vec::new());
        let policies = self.policies.iter().enumerate().filter(|(_, policy)| policy.domain.as_deref() == domain);
        for (index, policy) in policies {
            for rule in policy.rules.iter().filter(|rule| rule.is_bypass() || rule.per == per) {
                let member = Member::new(rule, index, policy.deadline.clone());
                match rule.mode {
                    Mode::Enforce => enforced.push(member),
                    Mode::Shadow => shadows.push(member),
                    Mode::Disabled => {}
                }
            }
        }
        let counts = enforced.iter().chain(&shadows).any(|member| !member.rule.is_bypass());
        if per == Per::Message && !counts {
            return RuleSet::default();
        }
        RuleSet::new(enforced, shadows)
    }
}
