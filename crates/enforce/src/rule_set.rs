//! A *rule set*: the rules for requests, for messages or of a domain, in the order in which the engine tries them, and the
//! search for matching rules.
//!
//! Denials come first, then bypasses, then the other rules that enforce, then the rules in shadow mode, grouped by
//! policy. An index identifies a rule, so a list of matching rules is a list of numbers, and the next request reuses
//! its memory.

use std::sync::Arc;

use super::{
    cost::Cost,
    lower::RuleKind,
    policy_deadline::PolicyDeadline,
    rule::{Limits, Rule},
    statistics::Unmatched,
};
use crate::matching::{Index, RequestView};

/// Rules, by their indices.
#[derive(Debug, Default)]
pub(super) struct RuleSet {
    rules: Vec<Member>,
    index: Index,
    /// The number of rules that deny. These rules come first.
    denials: usize,
    /// The number of denials and bypasses, which precede the rules that limit.
    exceptions: usize,
    /// The number of rules that enforce, which precede the rules in shadow mode.
    enforced: usize,
    /// Whether a rule limits how many requests are in flight.
    pub(super) has_concurrency: bool,
    /// Whether a rule bans keys.
    pub(super) has_bans: bool,
    /// Whether a rule limits request bytes.
    pub(super) counts_bodies: bool,
    /// Whether a rule that enforces sets headers in all responses.
    pub(super) sets_headers: bool,
    /// Whether a rule replaces others.
    has_replacing: bool,
    /// The indices of all rules, if every rule limits and matches every request. Otherwise empty.
    matching_all: Vec<usize>,
}

/// A member of a set: a rule, with the parts of its policy that a decision needs.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) rule: Arc<Rule>,
    /// The index of the policy in the snapshot.
    pub(super) policy: usize,
    pub(super) deadline: Option<Arc<PolicyDeadline>>,
    pub(super) steps: Steps,
    /// Whether the rule limits request bytes.
    pub(super) counts_body: bool,
}

/// The steps that a decision of a rule can need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steps {
    /// An immediate charge. Also of rules without rates.
    Charge,
    /// A charge with a wait, a deadline, or a second charge when the cost is known.
    ChargeAndMore,
    /// A question to a store, and no work after the verdict. `decide_at_once` decides on such a rule if it is the only one
    /// that matches.
    OnlyStore,
    /// A question to a store with a wait, a deadline or a second charge; or a charge for response bytes. `decide_at_once`
    /// cannot decide on such a rule.
    Full,
}

/// Buffers for the indices of rules, reused for the next request.
#[derive(Debug, Default)]
pub(super) struct MatchBuffers {
    candidates: Vec<u32>,
    matching: Vec<usize>,
}

/// The rules that match a request.
#[derive(Debug)]
pub(super) enum Matching<'a> {
    /// A bypass that enforces.
    Bypass(&'a Member),
    /// The rules that decide. A rule that denies is the only rule of the list.
    Rules { enforced: &'a [usize], shadows: &'a [usize] },
}

impl Member {
    pub(super) fn new(rule: &Arc<Rule>, policy: usize, deadline: Option<Arc<PolicyDeadline>>) -> Self {
        let is_of = |property: fn(&Limits) -> bool| rule.rates().is_some_and(property);
        let is_shared = is_of(|limits| limits.shared.is_some());
        let is_delayed = is_of(|limits| limits.is_patient() || limits.cost.is_known_later());
        let needs_more = is_delayed || deadline.is_some();
        let steps = if is_shared && !needs_more {
            Steps::OnlyStore
        } else if is_shared || is_of(|limits| limits.cost == Cost::ResponseBytes) {
            Steps::Full
        } else if needs_more && rule.rates().is_some() {
            Steps::ChargeAndMore
        } else {
            Steps::Charge
        };
        Self {
            steps,
            counts_body: is_of(|limits| limits.cost == Cost::RequestBytes),
            rule: Arc::clone(rule),
            policy,
            deadline,
        }
    }
}

impl RuleSet {
    /// Creates a set. `shadows`, the rules in shadow mode, must be grouped by policy.
    pub(super) fn new(enforced: Vec<Member>, shadows: Vec<Member>) -> Self {
        let mut rules = enforced;
        rules.sort_by_key(|member| match member.rule.kind {
            RuleKind::Deny => 0,
            RuleKind::Bypass => 1,
            RuleKind::Rates(_) | RuleKind::Concurrency(_) => 2,
        });
        let denials = rules.partition_point(|member| member.rule.is_deny());
        let exceptions = rules.partition_point(|member| member.rule.is_exception());
        let enforced = rules.len();
        rules.extend(shadows);
        let index = Index::new(rules.iter().map(|member| &member.rule.matcher));
        let matching_all = exceptions == 0 && rules.iter().all(|member| member.rule.matcher.matches_everything());
        let matching_all = if matching_all { (0..rules.len()).collect() } else { Vec::new() };
        Self {
            has_concurrency: rules.iter().any(|member| member.rule.concurrency().is_some()),
            has_bans: rules.iter().any(|member| member.rule.ban().is_some()),
            counts_bodies: rules.iter().any(|member| member.counts_body),
            sets_headers: rules[..enforced].iter().any(|member| member.rule.sets_headers()),
            has_replacing: rules.iter().any(|member| !member.rule.replaces.is_empty()),
            rules,
            index,
            denials,
            exceptions,
            enforced,
            matching_all,
        }
    }

    pub(super) fn get(&self, index: usize) -> &Member {
        &self.rules[index]
    }

    /// Returns the rules that decide on a request: rules that enforce, and rules in shadow mode. Both lists are empty
    /// if a bypass matches, which is counted, or if no rule matches, which `unmatched` counts.
    #[inline]
    pub(super) fn deciding<'a>(
        &'a self,
        request: &RequestView<'_>,
        buffers: &'a mut MatchBuffers,
        unmatched: &Unmatched,
    ) -> (&'a [usize], &'a [usize]) {
        match self.matching(request, buffers) {
            Matching::Rules { enforced: [], shadows: [] } => {
                unmatched.0.count();
                (&[], &[])
            }
            Matching::Rules { enforced, shadows } => (enforced, shadows),
            Matching::Bypass(member) => {
                member.rule.statistics.bypassed.count();
                (&[], &[])
            }
        }
    }

    /// Finds the matching rules. The index returns candidates, so most rules are not checked.
    pub(super) fn matching<'a>(&'a self, request: &RequestView<'_>, buffers: &'a mut MatchBuffers) -> Matching<'a> {
        // If every rule matches every request, the request need not be inspected.
        if !self.matching_all.is_empty() {
            return self.split(&self.matching_all);
        }
        let MatchBuffers { candidates, matching } = buffers;
        matching.clear();
        for &candidate in self.index.candidates(request, candidates) {
            let (index, entry) = self.index.entry(candidate);
            // One matching entry of a rule is enough.
            if matching.last() == Some(&index) {
                continue;
            }
            let member = &self.rules[index];
            if member.rule.matcher.entry_matches(entry, request) {
                matching.push(index);
                if index < self.denials {
                    return Matching::Rules { enforced: matching, shadows: &[] };
                }
                if index < self.exceptions {
                    return Matching::Bypass(member);
                }
            }
        }
        self.split(matching)
    }

    /// Returns the matching rules that limit, enforce and set headers in all responses, even if a rule that denies
    /// matches. Only rules with such headers are looked at, so that denials stay cheap.
    pub(super) fn limiting_with_headers(&self, request: &RequestView<'_>) -> Vec<usize> {
        let range = self.exceptions..self.enforced;
        self.all_matching(request, |index| range.contains(&index) && self.rules[index].rule.sets_headers())
    }

    /// Returns all matching rules among the relevant ones. If a rule can replace others, this includes rules that a
    /// denial or a bypass makes ineffective, because the denial or the bypass can be replaced.
    pub(super) fn all_matching(&self, request: &RequestView<'_>, is_relevant: impl Fn(usize) -> bool) -> Vec<usize> {
        let (mut candidates, mut matching) = (Vec::new(), Vec::new());
        for &candidate in self.index.candidates(request, &mut candidates) {
            let (index, entry) = self.index.entry(candidate);
            if matching.last() != Some(&index)
                && is_relevant(index)
                && self.rules[index].rule.matcher.entry_matches(entry, request)
            {
                matching.push(index);
                if index < self.exceptions && !self.has_replacing {
                    break;
                }
            }
        }
        matching
    }

    /// Returns the rules that decide, of these rules: their indices are sorted.
    pub(super) fn effective<'a>(&'a self, matching: &'a [usize]) -> Matching<'a> {
        match matching {
            [first, ..] if *first < self.denials => Matching::Rules { enforced: &matching[..1], shadows: &[] },
            [first, ..] if *first < self.exceptions => Matching::Bypass(&self.rules[*first]),
            _ => self.split(matching),
        }
    }

    /// Splits sorted indices into rules that enforce and rules in shadow mode. None of them denies or bypasses.
    #[inline]
    fn split<'a>(&self, indices: &'a [usize]) -> Matching<'a> {
        let (enforced, shadows) = indices.split_at(indices.partition_point(|index| *index < self.enforced));
        Matching::Rules { enforced, shadows }
    }
}
