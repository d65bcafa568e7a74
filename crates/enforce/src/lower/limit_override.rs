//! Limits that descriptors contain, for rules that accept them.

use std::{collections::HashMap, time::Duration};

use weir_core::Quota;
use weir_wire::{Limit, Mode, Rule, Strategy};

use super::{
    LoweredRule,
    faults::{Faults, Path},
    lower_rule,
};

/// A limit that a descriptor contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescriptorLimit {
    /// The number of requests per period. With 0, a rule that accepts the limit refuses the descriptor.
    pub requests: u64,
    /// The period.
    pub period: Duration,
}

/// A rule that accepts limits of descriptors, in the form from which the rule with such a limit is made.
#[derive(Debug)]
pub(crate) struct LoweredLimitOverride {
    /// The largest rate: this many requests in this time.
    largest: (u64, Duration),
    rule: Box<Rule>,
    mode: Mode,
    is_memcached: bool,
    position: usize,
}

impl LoweredLimitOverride {
    /// Returns `None` if the rule accepts no limits. `is_memcached`: the kind of the store of a rule of scope Shared.
    pub(super) fn new(rule: &Rule, mode: Mode, is_memcached: bool) -> Option<Self> {
        let own = rule.limit_override?;
        let rule = Rule { limit_override: None, overrides: Vec::new(), ..rule.clone() };
        let largest = (own.max_requests, Duration::from_millis(own.period_millis));
        Some(Self { largest, rule: Box::new(rule), mode, is_memcached, position: 0 })
    }

    /// Sets the position of the rule among all rules.
    pub(super) fn set_position(&mut self, position: usize) {
        self.position = position;
    }

    /// The name of the store that counts the rule.
    pub(crate) fn store(&self) -> Option<&str> {
        self.rule.shared.as_ref().map(|shared| shared.store.as_str())
    }

    /// Returns the rule with this limit in place of its own. `None` if the limit does not fit the strategy.
    pub(crate) fn rule_with(&self, limit: DescriptorLimit, policy: &str) -> Option<LoweredRule> {
        let mut rule = (*self.rule).clone();
        let own = rule.limits.first_mut()?;
        let (requests, period) = self.capped(limit);
        let is_counter = own.strategy == Strategy::SlidingWindowCounter;
        *own = Limit {
            name: own.name.clone(),
            strategy: own.strategy,
            requests: if is_counter { most_counted(requests, period) } else { requests },
            period_millis: u64::try_from(period.as_millis()).ok()?,
            // The burst and the debt of the rule's limit do not fit other numbers.
            burst: None,
            debt: None,
        };
        if let Some(shared) = &mut rule.shared {
            shared.counters = format!("{}@{}-{}", shared.counters, limit.requests, limit.period.as_millis());
        }
        let kinds: HashMap<_, _> = self.store().map(|store| (store, self.is_memcached)).into_iter().collect();
        let mut faults = Faults::default();
        let lowered = lower_rule((&rule, self.mode, policy), &kinds, &Path::default(), &mut faults);
        let mut lowered = lowered.filter(|_| faults.len() == 0)?;
        lowered.set_position(self.position);
        Some(lowered.counting_hits())
    }

    /// The requests and the period of a limit, at most as many requests as the largest rate allows in this period. If
    /// the largest rate has less than one request in it, returns the largest rate.
    fn capped(&self, limit: DescriptorLimit) -> (u64, Duration) {
        let (requests, period) = self.largest;
        let most = u128::from(requests) * limit.period.as_nanos() / period.as_nanos().max(1);
        match u64::try_from(most) {
            Ok(0) => self.largest,
            most => (limit.requests.min(most.unwrap_or(u64::MAX)), limit.period),
        }
    }
}

/// As many of these requests as a sliding window counter can count.
fn most_counted(requests: u64, period: Duration) -> u64 {
    let fits = |requests| Quota::new(weir_core::Strategy::SlidingWindowCounter, requests, period, None).is_ok();
    let (mut most, mut too_many) = (1, requests.saturating_add(1));
    while too_many - most > 1 {
        let middle = most + (too_many - most) / 2;
        if fits(middle) { most = middle } else { too_many = middle }
    }
    most
}

/// Checks a rule of a policy with a domain that accepts limits.
pub(super) fn check(rule: &Rule, path: &Path, faults: &mut Faults) {
    let Some(own) = rule.limit_override else { return };
    let at = path.field("limitOverride");
    let largest = Duration::from_millis(own.period_millis);
    if let Err(invalid) = Quota::new(weir_core::Strategy::FixedWindow, own.max_requests, largest, None) {
        let field = if invalid.field() == "period" { "periodMillis" } else { "maxRequests" };
        faults.add(&at.field(field), invalid.to_string());
    }
    for (is_unfit, why) in [
        (rule.limits.len() != 1, "needs a rule with exactly one limit, whose strategy it uses"),
        (
            rule.limits.iter().any(|limit| limit.strategy == Strategy::SlidingWindowLog),
            "is not allowed with SlidingWindowLog, which remembers each request: use SlidingWindowCounter",
        ),
        (rule.ban.is_some(), "is not allowed with a ban: remove one of them"),
    ] {
        if is_unfit {
            faults.add(&at, why);
        }
    }
}
