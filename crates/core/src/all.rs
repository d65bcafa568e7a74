//! The charge of several limits for one request: all limits are charged or none.
//!
//! All limits are checked first, so that a refusal by the last limit charges nothing. Then all limits are charged in
//! order. Charges are given back only if another thread took the capacity between the check and the charge. So the
//! limits never admit too many requests. But a request can be refused that would be admitted a moment later, when
//! another request's charges have been given back.

use crate::{Limiter, MAX_LIMITS, RuleRefused, Standing, Time, limiter::Charge, meter::Receipt};

/// Charges `cost` to every limiter, or to none.
///
/// `clock` is read once for the decision, and a second time only to give charges back; see [`Limiter::refund`].
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Limiter, Quota, Strategy, Time, charge_limiters};
///
/// let now = Time::from_nanos(0);
/// let per_second = |requests| Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None);
/// let limits = [Limiter::new(now, per_second(10)?), Limiter::new(now, per_second(1)?)];
/// assert!(charge_limiters(&limits, || now, 1).is_ok());
/// assert_eq!(charge_limiters(&limits, || now, 1).unwrap_err().limit, 1);
/// assert_eq!(limits[0].peek(now).remaining(), 9); // the refusal charged nothing
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
///
/// # Errors
///
/// [`RuleRefused`], with the first limit in order that refuses.
///
/// # Panics
///
/// If there are more than [`MAX_LIMITS`] limiters.
pub fn charge_limiters(limiters: &[Limiter], clock: impl Fn() -> Time, cost: u64) -> Result<Charges, RuleRefused> {
    charge_limiters_at(limiters, clock(), clock, cost, |_| {})
}

/// [`charge_limiters`], which also passes the standing of each limiter to `each`.
pub(crate) fn charge_limiters_at(
    limiters: &[Limiter],
    now: Time,
    clock: impl Fn() -> Time,
    cost: u64,
    mut each: impl FnMut(Standing),
) -> Result<Charges, RuleRefused> {
    assert!(limiters.len() <= MAX_LIMITS, "more than MAX_LIMITS limiters");
    if limiters.len() > 1 {
        peek_limiters(limiters, now, cost)?;
    }
    let mut charges = Charges::NONE;
    for (limit, limiter) in limiters.iter().enumerate() {
        match limiter.charge(now, cost) {
            Ok(admitted) => {
                charges.add(&admitted.charge);
                each(admitted.standing);
            }
            Err(refused) => {
                charges.refund(limiters, clock);
                return Err(RuleRefused::by(limit, refused));
            }
        }
    }
    Ok(charges)
}

/// Reserves a turn with each limiter, or with none. Returns the latest of these turns.
pub(crate) fn charge_limiters_ahead(
    limiters: &[Limiter],
    now: Time,
    clock: impl Fn() -> Time,
    cost: u64,
    latest: Time,
    mut each: impl FnMut(Standing),
) -> Result<(Time, Charges), RuleRefused> {
    assert!(limiters.len() <= MAX_LIMITS, "more than MAX_LIMITS limiters");
    if limiters.len() > 1 {
        refuse_impossible(limiters, now, cost)?;
    }
    let (mut at, mut charges) = (now, Charges::NONE);
    for (limit, limiter) in limiters.iter().enumerate() {
        match limiter.reserve(now, cost, latest) {
            Ok(reserved) => {
                at = at.max(reserved.at);
                charges.add(&reserved.charge);
                each(reserved.standing);
            }
            Err(refused) => {
                charges.refund(limiters, clock);
                return Err(RuleRefused::by(limit, refused));
            }
        }
    }
    Ok((at, charges))
}

/// Returns the decision that [`charge_limiters`] would make, and charges nothing.
pub(crate) fn peek_limiters(limiters: &[Limiter], now: Time, cost: u64) -> Result<(), RuleRefused> {
    for (limit, limiter) in limiters.iter().enumerate() {
        limiter.peek_cost(now, cost).map_err(|refused| RuleRefused::by(limit, refused))?;
    }
    Ok(())
}

/// Returns the refusal of the first limiter that can never admit this cost. Such a cost must not be reserved first: a
/// reservation that is given back can leave a trace.
fn refuse_impossible(limiters: &[Limiter], now: Time, cost: u64) -> Result<(), RuleRefused> {
    for (limit, limiter) in limiters.iter().enumerate() {
        match limiter.peek_cost(now, cost) {
            Err(refused) if refused.retry_after().is_none() => return Err(RuleRefused::by(limit, refused)),
            _ => {}
        }
    }
    Ok(())
}

/// The charges of several limiters for one request.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy, Time, charge_limiters};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let limits = [Limiter::new(now, quota), Limiter::new(now, quota)];
/// let charges = charge_limiters(&limits, || now, 4)?;
/// // The request failed before it did any work.
/// charges.refund(&limits, || now);
/// assert_eq!(limits[1].peek(now).remaining(), 10);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Charges {
    /// The receipt and the number of earlier retunes of each charged limiter. The charged limiters are the first ones,
    /// in order.
    receipts: [(Receipt, u64); MAX_LIMITS],
    charged: usize,
}

impl Charges {
    const NONE: Self = Self { receipts: [(Receipt::NONE, 0); MAX_LIMITS], charged: 0 };

    fn add(&mut self, charge: &Charge) {
        self.receipts[self.charged] = (charge.receipt, charge.retunes);
        self.charged += 1;
    }

    /// Gives all charges back to the same limiters, in the same order; see [`Limiter::refund`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy, Time, charge_limiters};
    /// # let now = Time::from_nanos(0);
    /// # let limits = [Limiter::new(now, Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None)?)];
    /// let charges = charge_limiters(&limits, || now, 1)?;
    /// charges.refund(&limits, || now);
    /// assert_eq!(limits[0].peek(now).remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refund(self, limiters: &[Limiter], clock: impl Fn() -> Time) {
        for (limiter, &(receipt, retunes)) in limiters.iter().zip(&self.receipts[..self.charged]) {
            limiter.refund(Charge { receipt, retunes }, &clock);
        }
    }
}
