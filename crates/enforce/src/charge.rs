//! Charging several rules on one request, each with its own cost: all are charged, or none.
//!
//! As in `weir_core::charge_all` all are asked first, so that a refusal of one costs the others nothing; only a lost race is given
//! back. How a request waits for its rules is in [`wait`](super::wait). A policy in shadow mode holds nothing up: there a rule
//! that would let a request wait is charged for the moment at which it would go.

use std::{cell::Cell, ops::Range, sync::Arc, time::Duration};

use weir_core::{MAX_LIMITS, RuleAdmitted, RuleCharge, RuleChargedAhead, RuleRefused, Tightest, Time};

use super::in_force::{Limits, Rule};

/// What a request asks of one rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'r, 'k> {
    pub(super) rule: &'r Arc<Rule>,
    pub(super) limits: &'r Limits,
    pub(super) key: &'k [u8],
    pub(super) cost: u64,
    /// The latest moment at which the request may go; none if it may not wait.
    pub(super) latest: Option<Time>,
}

/// What one rule was charged.
#[derive(Debug)]
pub(super) struct Charged {
    /// When its limits let the request through, if that is later.
    pub(super) at: Option<Time>,
    pub(super) charge: RuleCharge,
    pub(super) tightest: Tightest,
}

/// The rule that refused, by its place among those that were asked.
#[derive(Debug)]
pub(super) struct RefusedAt {
    pub(super) ask: usize,
    pub(super) refused: RuleRefused,
}

impl Ask<'_, '_> {
    pub(super) fn charge(&self, clock: impl Fn() -> Time) -> Result<Charged, RuleRefused> {
        let limiter = &self.limits.limiter;
        match self.latest {
            None => {
                let RuleAdmitted { charge, tightest } = limiter.charge(clock, self.key, self.cost)?;
                Ok(Charged { at: None, charge, tightest })
            }
            Some(latest) => {
                // What the limiter takes for now is the first reading that it makes.
                let now = Cell::new(None);
                let clock = || {
                    let reading = clock();
                    now.set(now.get().or(Some(reading)));
                    reading
                };
                let RuleChargedAhead { at, charge, tightest } =
                    limiter.charge_ahead(clock, self.key, self.cost, latest)?;
                Ok(Charged { at: Some(at).filter(|at| Some(*at) > now.get()), charge, tightest })
            }
        }
    }
}

/// Charges every rule, or none.
pub(super) fn charge_all(asks: &[Ask<'_, '_>], clock: impl Fn() -> Time) -> Result<Vec<Charged>, RefusedAt> {
    if asks.len() > 1 {
        let now = clock();
        for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.latest.is_none()) {
            let peeked = ask.limits.limiter.peek(now, ask.key, ask.cost);
            peeked.map_err(|refused| RefusedAt { ask: index, refused })?;
        }
    }
    let mut charged = Vec::with_capacity(asks.len());
    for (index, ask) in asks.iter().enumerate() {
        match ask.charge(&clock) {
            Ok(one) => charged.push(one),
            Err(refused) => {
                for (ask, one) in asks.iter().zip(charged) {
                    ask.limits.limiter.refund(ask.key, one.charge, &clock);
                }
                return Err(RefusedAt { ask: index, refused });
            }
        }
    }
    Ok(charged)
}

/// Until all limits of all rules admit this request, behind those that wait: a client that comes back then is not refused by
/// another limit. A limit that admits goes on to do so, hence each has to be asked only once.
pub(super) fn opens_after(asks: &[Ask<'_, '_>], now: Time) -> Duration {
    let mut at = now;
    for ask in asks {
        if ask.limits.limiter.queue_len(ask.key) > 0
            && let Ok(opens) = ask.limits.limiter.opens(now, ask.key, ask.cost)
        {
            at = at.max(opens);
        }
        for _ in 0..MAX_LIMITS {
            match ask.limits.limiter.peek(at, ask.key, ask.cost).map_err(|refused| refused.retry_after()) {
                Err(Some(wait)) => at = at.saturating_add(wait),
                Ok(_) | Err(None) => break,
            }
        }
    }
    at.duration_since(now)
}

/// A key for each of several rules, one after the other in `keys`.
pub(super) fn slices<'a>(keys: &'a [u8], ranges: &[Range<usize>]) -> Vec<&'a [u8]> {
    ranges.iter().map(|range| &keys[range.clone()]).collect()
}
