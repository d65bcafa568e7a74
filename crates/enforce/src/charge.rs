//! Charges several rules for one request, each with its own cost: all of them, or none.
//!
//! As in `weir_core::charge_all`, all rules are checked first, so a refusal by one charges none of the others. A charge
//! is given back only after a lost race. How a request waits for its rules is in [`wait`](super::wait). A policy in
//! shadow mode delays nothing: a rule that would let a request wait is charged for the moment at which the request
//! would go.

use std::{cell::Cell, ops::Range, sync::Arc, time::Duration};

use weir_core::{MAX_LIMITS, RuleAdmitted, RuleCharge, RuleChargedAhead, RuleRefused, RuleRefusedAt, Tightest, Time};

use super::rule::{Limits, Rule};

/// What a request asks of one rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'r, 'k> {
    pub(super) rule: &'r Arc<Rule>,
    pub(super) limits: &'r Limits,
    pub(super) key: &'k [u8],
    pub(super) cost: u64,
    /// The latest time at which the request may be admitted. `None` if it may not wait.
    pub(super) latest: Option<Time>,
}

/// The charge of one rule.
#[derive(Debug)]
pub(super) struct Charged {
    /// When its limits admit the request, if that is later than now.
    pub(super) at: Option<Time>,
    pub(super) charge: RuleCharge,
    pub(super) tightest: Tightest,
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
                // The limiter's time of the decision is its first reading of the clock.
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
pub(super) fn charge_all(asks: &[Ask<'_, '_>], clock: impl Fn() -> Time) -> Result<Vec<Charged>, RuleRefusedAt> {
    if asks.len() > 1 {
        let now = clock();
        for (index, ask) in asks.iter().enumerate().filter(|(_, ask)| ask.latest.is_none()) {
            let peeked = ask.limits.limiter.peek(now, ask.key, ask.cost);
            peeked.map_err(|refused| RuleRefusedAt { ask: index, refused })?;
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
                return Err(RuleRefusedAt { ask: index, refused });
            }
        }
    }
    Ok(charged)
}

/// How long until all limits of all rules admit this request, after those that wait already. A client that comes back
/// then is not refused by another limit. A limit that admits now still admits later, so each limit is asked only once.
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

/// The keys of several rules. `keys` holds them one after the other.
pub(super) fn slices<'a>(keys: &'a [u8], ranges: &[Range<usize>]) -> Vec<&'a [u8]> {
    ranges.iter().map(|range| &keys[range.clone()]).collect()
}
