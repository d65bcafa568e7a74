//! The rules for one kind of event in the order in which they are tried, and the search for those that match.
//!
//! Denials come first, then bypasses, then the other rules that enforce, then those in shadow mode, policy by policy. An
//! index identifies a rule, so lists of matching rules are lists of numbers, and the next request reuses their memory.

use std::{sync::Arc, time::Duration};

use weir_wire::Action;

use super::{
    cost::Cost,
    counters::Unmatched,
    rule::{Limits, Rule},
};
use crate::matching::{Index, RequestView};

/// Rules, by their indices.
#[derive(Debug, Default)]
pub(super) struct RuleSet {
    rules: Vec<Member>,
    index: Index,
    /// How many of the rules deny. They come first.
    denials: usize,
    /// How many rules precede those that limit: denials and bypasses.
    exceptions: usize,
    /// How many rules precede those in shadow mode.
    enforced: usize,
    /// The indices of all rules, if each limits and matches every request. Otherwise empty.
    about_all: Vec<usize>,
}

/// A member of a set: a rule, with the parts of its policy that a decision needs.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) rule: Arc<Rule>,
    /// The index of the policy in the snapshot.
    pub(super) policy: usize,
    pub(super) deadline: Option<Duration>,
    /// Whether an admitted request may have to wait, may get a deadline, or may be charged again.
    pub(super) may_take_more: bool,
    /// Whether a store must be asked, or the bytes of the response pass when the limits admit them.
    pub(super) needs_all: bool,
    /// Whether only a question to a store may delay a request, and nothing follows.
    pub(super) may_ask_only: bool,
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
    /// The rules that decide. A rule that denies is alone.
    Rules { enforced: &'a [usize], shadows: &'a [usize] },
}

impl Member {
    pub(super) fn new(rule: &Arc<Rule>, policy: usize, deadline: Option<Duration>) -> Self {
        let more = |limits: &Limits| {
            deadline.is_some() || limits.is_patient() || limits.cost.is_known_later() || limits.shared.is_some()
        };
        let may_take_more = rule.limits.as_ref().is_some_and(more);
        let all = |limits: &Limits| limits.shared.is_some() || limits.cost == Cost::ResponseBytes;
        let needs_all = rule.limits.as_ref().is_some_and(all);
        let asks = |limits: &Limits| limits.shared.is_some() && !limits.cost.is_known_later() && !limits.is_patient();
        let may_ask_only = deadline.is_none() && rule.limits.as_ref().is_some_and(asks);
        Self { rule: Arc::clone(rule), policy, deadline, may_take_more, needs_all, may_ask_only }
    }
}

impl RuleSet {
    /// `shadows` are those of one policy after those of another.
    pub(super) fn new(enforced: Vec<Member>, shadows: Vec<Member>) -> Self {
        let mut rules = enforced;
        rules.sort_by_key(|member| match member.rule.action {
            Action::Deny => 0,
            Action::Bypass => 1,
            Action::Limit => 2,
        });
        let denials = rules.partition_point(|member| member.rule.is_deny());
        let exceptions = rules.partition_point(|member| member.rule.limits.is_none());
        let enforced = rules.len();
        rules.extend(shadows);
        let index = Index::new(rules.iter().map(|member| &member.rule.matcher));
        let about_all = exceptions == 0 && rules.iter().all(|member| member.rule.matcher.takes_all());
        let about_all = if about_all { (0..rules.len()).collect() } else { Vec::new() };
        Self { rules, index, denials, exceptions, enforced, about_all }
    }

    pub(super) fn get(&self, index: usize) -> &Member {
        &self.rules[index]
    }

    /// The rules that decide on a request, as in [`Matching::Rules`]. `None` if a bypass matches, which is counted, or
    /// if no rule matches, which `unmatched` counts.
    #[inline]
    pub(super) fn deciding<'a>(
        &'a self,
        request: &RequestView<'_>,
        buffers: &'a mut MatchBuffers,
        unmatched: &Unmatched,
    ) -> (&'a [usize], &'a [usize]) {
        match self.matching(request, buffers) {
            Matching::Rules { enforced: [], shadows: [] } => {
                unmatched.count();
                (&[], &[])
            }
            Matching::Rules { enforced, shadows } => (enforced, shadows),
            Matching::Bypass(member) => {
                member.rule.counters.count_bypassed();
                (&[], &[])
            }
        }
    }

    /// The matching rules. The index returns the candidates, so not every rule is checked.
    pub(super) fn matching<'a>(&'a self, request: &RequestView<'_>, buffers: &'a mut MatchBuffers) -> Matching<'a> {
        // Every rule matches every request, so the request need not be read.
        if !self.about_all.is_empty() {
            return self.split(&self.about_all);
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

    /// `indices` are in order, and all are of rules that limit or of rules in shadow mode.
    #[inline]
    fn split<'a>(&self, indices: &'a [usize]) -> Matching<'a> {
        let (enforced, shadows) = indices.split_at(indices.partition_point(|index| *index < self.enforced));
        Matching::Rules { enforced, shadows }
    }
}
