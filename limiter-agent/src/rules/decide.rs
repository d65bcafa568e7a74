//! One decision: through, or refused by one limit of one rule.
//!
//! Bypasses come first and charge nothing. Then all matching rules of the policies that enforce are charged together or
//! not at all. Only for a request that they let through is each policy in shadow mode tried in the same way, by itself:
//! it is charged if it would have admitted, counted if not, and has no say. For the same reason a bypass of a policy in
//! shadow mode spares a request that policy's own limits and nothing else.

use std::{cell::RefCell, net::IpAddr, ops::Range, sync::Arc, time::Duration};

use weir_core::{Ask, MAX_LIMITS, RuleAdmitted, RuleRefused, RuleRefusedAt, Time, charge_all};
use weir_tower::retry_after_seconds;
use weir_wire::HeaderStyle;

use super::{
    fields::{self, Fields, Place},
    in_force::{Limits, Rule, RulesInForce},
};
use crate::matching::RequestView;

/// A refusal, with all that its response says.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(super) rule: Arc<Rule>,
    pub(super) place: Place,
    pub(super) override_index: Option<usize>,
}

/// A request as the rules see it.
pub(super) struct Asked<'a, C> {
    pub(super) request: RequestView<'a>,
    pub(super) peer: IpAddr,
    pub(super) clock: C,
}

thread_local! {
    /// Keys are written here, so that a key that is known already costs no allocation.
    static KEYS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl RulesInForce {
    pub(super) fn decide<C: Fn() -> Time>(&self, asked: &Asked<'_, C>) -> Result<Fields, Refusal> {
        if let Some(bypass) = self.bypasses.iter().find(|rule| rule.matcher.matches(&asked.request)) {
            bypass.counters.count_bypassed();
            return Ok(Fields::default());
        }
        let fields = asked.enforce(&self.enforced)?;
        for policy in &self.shadows {
            asked.try_out(&policy.rules);
        }
        Ok(fields)
    }
}

/// The rules that match a request, with its key for each, and what their limiters said.
struct Charge<'a> {
    rules: &'a [(&'a Arc<Rule>, &'a Limits)],
    outcome: Result<&'a [RuleAdmitted], Refused>,
}

struct Refused {
    rule: usize,
    refused: RuleRefused,
    /// Until all of the rules admit, if nobody else comes.
    retry_after: Duration,
}

impl<C: Fn() -> Time> Asked<'_, C> {
    fn enforce(&self, rules: &[Arc<Rule>]) -> Result<Fields, Refusal> {
        self.charge(rules, |Charge { rules, outcome }| match outcome {
            Ok(admitted) => {
                for (rule, _) in rules {
                    rule.counters.count_allowed();
                }
                Ok(admitted_fields(rules, admitted))
            }
            Err(Refused { rule, refused, retry_after }) => {
                let (rule, _) = rules[rule];
                rule.counters.count_limited();
                let place = Place {
                    limit: refused.limit,
                    quota: refused.standing.quota(),
                    remaining: 0,
                    seconds: retry_after_seconds(retry_after),
                };
                Err(Refusal { rule: Arc::clone(rule), place, override_index: refused.override_index })
            }
        })
        .unwrap_or_else(|| Ok(Fields::default()))
    }

    fn try_out(&self, rules: &[Arc<Rule>]) {
        if let Some(bypass) = rules.iter().find(|rule| rule.is_bypass() && rule.matcher.matches(&self.request)) {
            bypass.counters.count_bypassed();
            return;
        }
        self.charge(rules, |Charge { rules, outcome }| match outcome {
            Ok(_) => rules.iter().for_each(|(rule, _)| rule.counters.count_allowed()),
            Err(refused) => rules[refused.rule].0.counters.count_shadow_limited(),
        });
    }

    /// Charges all rules that match or none, and says how it went; does nothing if no rule matches.
    fn charge<R>(&self, rules: &[Arc<Rule>], then: impl FnOnce(Charge<'_>) -> R) -> Option<R> {
        let mut matching = rules
            .iter()
            .filter_map(|rule| Some((rule, rule.limits.as_ref()?)))
            .filter(|(rule, _)| rule.matcher.matches(&self.request));
        let first = matching.next()?;
        KEYS.with_borrow_mut(|keys| {
            keys.clear();
            match matching.next() {
                None => Some(self.charge_one(first, keys, then)),
                Some(second) => {
                    let matching: Vec<_> = [first, second].into_iter().chain(matching).collect();
                    Some(self.charge_several(&matching, keys, then))
                }
            }
        })
    }

    /// The ordinary case, which needs no list.
    fn charge_one<R>(&self, only: (&Arc<Rule>, &Limits), keys: &mut Vec<u8>, then: impl FnOnce(Charge<'_>) -> R) -> R {
        let limits = only.1;
        limits.key.write(self.request.headers(), self.peer, keys);
        match limits.limiter.charge(&self.clock, keys, 1) {
            Ok(admitted) => then(Charge { rules: &[only], outcome: Ok(&[admitted]) }),
            Err(refused) => {
                let retry_after = self.opens_after(&[Ask { rule: &limits.limiter, key: keys }]);
                then(Charge { rules: &[only], outcome: Err(Refused { rule: 0, refused, retry_after }) })
            }
        }
    }

    fn charge_several<R>(
        &self,
        matching: &[(&Arc<Rule>, &Limits)],
        keys: &mut Vec<u8>,
        then: impl FnOnce(Charge<'_>) -> R,
    ) -> R {
        let ranges: Vec<Range<usize>> = matching
            .iter()
            .map(|(_, limits)| {
                let start = keys.len();
                limits.key.write(self.request.headers(), self.peer, keys);
                start..keys.len()
            })
            .collect();
        let asks: Vec<Ask<'_>> = matching
            .iter()
            .zip(ranges)
            .map(|((_, limits), range)| Ask { rule: &limits.limiter, key: &keys[range] })
            .collect();
        let mut admitted = Vec::with_capacity(asks.len());
        match charge_all(&asks, &self.clock, 1, &mut admitted) {
            Ok(()) => then(Charge { rules: matching, outcome: Ok(&admitted) }),
            Err(RuleRefusedAt { ask: rule, refused }) => {
                let retry_after = self.opens_after(&asks);
                then(Charge { rules: matching, outcome: Err(Refused { rule, refused, retry_after }) })
            }
        }
    }

    /// Until all limits of all rules admit this request, if nobody else comes: a client that waits so long must not be
    /// refused by the next limit in line. A limit that admits goes on to do so, hence each has to be asked only once.
    fn opens_after(&self, asks: &[Ask<'_>]) -> Duration {
        let now = (self.clock)();
        let mut at = now;
        for ask in asks {
            for _ in 0..MAX_LIMITS {
                match ask.rule.peek(at, ask.key, 1).map_err(|refused| refused.retry_after()) {
                    Err(Some(wait)) => at = at.saturating_add(wait),
                    Ok(_) | Err(None) => break,
                }
            }
        }
        at.duration_since(now)
    }
}

/// The fields of the rule whose limit has the fewest requests left, which name the limits of all rules.
fn admitted_fields(rules: &[(&Arc<Rule>, &Limits)], admitted: &[RuleAdmitted]) -> Fields {
    let telling = || rules.iter().zip(admitted).filter(|((_, limits), _)| limits.advice.style != HeaderStyle::None);
    let places =
        telling().map(|((_, limits), admitted)| (limits, &admitted.tightest, admitted.tightest.standing.remaining()));
    let Some((limits, tightest, remaining)) = places.min_by_key(|(_, _, remaining)| *remaining) else {
        return Fields::default();
    };
    let place = Place {
        limit: tightest.limit,
        quota: tightest.standing.quota(),
        remaining,
        seconds: retry_after_seconds(tightest.standing.reset_after()),
    };
    let policies = telling().map(|((_, limits), admitted)| limits.advice.policy(admitted.tightest.override_index));
    limits.advice.fields(&place, fields::join(policies))
}
