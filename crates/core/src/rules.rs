//! The charge of several rules for one request: all rules are charged or none.

use std::{cell::Cell, error::Error, fmt};

use crate::{RuleAdmitted, RuleCharge, RuleChargedAhead, RuleLimiter, RuleRefused, Tightest, Time};

/// One of several rules that a request must pass, with the request's key and cost.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Demand, Quota, RuleLimiter, Strategy, Terms, Time, charge_rules};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let everybody = RuleLimiter::unkeyed(now, Terms::new([("all", quota)])?);
/// let each = RuleLimiter::keyed(now, Terms::new([("each", quota)])?, std::num::NonZeroUsize::MIN);
/// let demands = [
///     Demand { rule: &everybody, key: &[], cost: 1, latest: None },
///     Demand { rule: &each, key: b"ann", cost: 2, latest: None },
/// ];
/// assert!(charge_rules(demands.into_iter(), || now, &mut Vec::new()).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    /// The rule.
    pub rule: &'a RuleLimiter,
    /// The request's key, if the rule counts by key.
    pub key: &'a [u8],
    /// The number of units to charge.
    pub cost: u64,
    /// The latest time at which the request can proceed. `None` if the request does not wait.
    pub latest: Option<Time>,
}

/// The charge of one of several rules.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Demand, Quota, RuleLimiter, Strategy, Terms, Time, charge_rules};
/// # let now = Time::from_nanos(0);
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(1), None)?;
/// let rule = RuleLimiter::unkeyed(now, Terms::new([("limit", quota)])?);
/// let in_a_second = now.saturating_add(Duration::from_secs(1));
/// let demand = Demand { rule: &rule, key: &[], cost: 1, latest: Some(in_a_second) };
/// let mut charged = Vec::new();
/// charge_rules([demand].into_iter(), || now, &mut charged)?;
/// assert_eq!(charged[0].at, None);
/// charge_rules([demand].into_iter(), || now, &mut charged)?;
/// assert_eq!(charged[0].at, Some(in_a_second));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct RuleCharged {
    /// The time at which the rule admits the request, if this time is in the future.
    pub at: Option<Time>,
    /// The charge, for a refund.
    pub charge: RuleCharge,
    /// The limit that is nearest to refusing.
    pub tightest: Tightest,
}

impl Demand<'_> {
    fn charge(&self, clock: impl Fn() -> Time) -> Result<RuleCharged, RuleRefused> {
        let Some(latest) = self.latest else {
            let RuleAdmitted { charge, tightest } = self.rule.charge(clock, self.key, self.cost)?;
            return Ok(RuleCharged { at: None, charge, tightest });
        };
        // The rule decides at the time of its first reading of the clock.
        let now = Cell::new(None);
        let clock = || {
            let reading = clock();
            now.set(now.get().or(Some(reading)));
            reading
        };
        let RuleChargedAhead { at, charge, tightest } = self.rule.charge_ahead(clock, self.key, self.cost, latest)?;
        Ok(RuleCharged { at: Some(at).filter(|at| Some(*at) > now.get()), charge, tightest })
    }
}

/// Charges every rule, or none. The charges are stored in `charged`, in order; after a refusal it is empty.
///
/// All rules are checked first, so a rule that refuses now, without [`Demand::latest`], or that can never admit the cost
/// charges no other rule. A charge is given back only after a lost race, or if a rule admits only after
/// [`Demand::latest`].
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Demand, Quota, RuleLimiter, Strategy, Terms, Time, charge_rules};
///
/// let now = Time::from_nanos(0);
/// let rule = |requests| {
///     let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None)?;
///     Ok::<_, Box<dyn std::error::Error>>(RuleLimiter::unkeyed(now, Terms::new([("limit", quota)])?))
/// };
/// let (wide, narrow) = (rule(10)?, rule(1)?);
/// let demands = [&wide, &narrow].map(|rule| Demand { rule, key: &[], cost: 1, latest: None });
/// let mut charged = Vec::new();
/// charge_rules(demands.into_iter(), || now, &mut charged)?;
/// assert_eq!(charged.len(), 2);
/// assert_eq!(charge_rules(demands.into_iter(), || now, &mut charged).unwrap_err().index, 1);
/// assert_eq!(wide.peek(now, &[], 1)?.standing.remaining(), 9); // the refusal charged nothing
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`RuleRefusedAt`], with the first rule in order that refuses.
pub fn charge_rules<'a>(
    demands: impl ExactSizeIterator<Item = Demand<'a>> + Clone,
    clock: impl Fn() -> Time,
    charged: &mut Vec<RuleCharged>,
) -> Result<(), RuleRefusedAt> {
    charged.clear();
    if demands.len() > 1 {
        let now = clock();
        for (index, demand) in demands.clone().enumerate() {
            match demand.rule.peek(now, demand.key, demand.cost) {
                Err(refused) if demand.latest.is_none() || refused.retry_after().is_none() => {
                    return Err(RuleRefusedAt { index, refused });
                }
                _ => {}
            }
        }
    }
    for (index, demand) in demands.clone().enumerate() {
        match demand.charge(&clock) {
            Ok(one) => charged.push(one),
            Err(refused) => {
                for (demand, one) in demands.zip(charged.drain(..)) {
                    demand.rule.refund(demand.key, one.charge, &clock);
                }
                return Err(RuleRefusedAt { index, refused });
            }
        }
    }
    Ok(())
}

/// The index of the rule that refused, and its refusal.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Demand, Quota, RuleLimiter, Strategy, Terms, Time, charge_rules};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let rule = RuleLimiter::unkeyed(now, Terms::new([("all", quota)])?);
/// let demand = Demand { rule: &rule, key: &[], cost: 11, latest: None };
/// let at = charge_rules([demand].into_iter(), || now, &mut Vec::new()).unwrap_err();
/// assert_eq!((at.index, at.refused.limit, at.refused.retry_after()), (0, 0, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleRefusedAt {
    /// The index of the rule.
    pub index: usize,
    /// The rule's refusal.
    pub refused: RuleRefused,
}

impl fmt::Display for RuleRefusedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.index, self.refused)
    }
}

impl Error for RuleRefusedAt {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.refused)
    }
}
