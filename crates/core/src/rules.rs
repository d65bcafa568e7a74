//! Several rules on one request: all are charged or none.

use std::error::Error;
use std::fmt;

use crate::{RuleAdmitted, RuleLimiter, RuleRefused, Time};

/// One of several rules that a request must pass.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Ask, Quota, RuleLimiter, Strategy, Terms, Time, charge_all};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let everybody = RuleLimiter::shared(now, Terms::new([("all", quota)])?);
/// let each = RuleLimiter::keyed(now, Terms::new([("each", quota)])?, std::num::NonZeroUsize::MIN);
/// let asks = [Ask { rule: &everybody, key: &[] }, Ask { rule: &each, key: b"ann" }];
/// assert!(charge_all(&asks, || now, 1, &mut Vec::new()).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The rule.
    pub rule: &'a RuleLimiter,
    /// The request's key, if the rule counts by key.
    pub key: &'a [u8],
}

/// Charges `cost` to every rule, or to none. The charges are stored in `charged`, in order; after a refusal it is
/// empty.
///
/// As in [`check_all`](crate::check_all), all rules are asked first, and `clock` is read again only to give charges
/// back.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Ask, Quota, RuleLimiter, Strategy, Terms, Time, charge_all};
///
/// let now = Time::from_nanos(0);
/// let rule = |requests| {
///     let quota = Quota::new(Strategy::TokenBucket, requests, Duration::from_secs(1), None)?;
///     Ok::<_, Box<dyn std::error::Error>>(RuleLimiter::shared(now, Terms::new([("limit", quota)])?))
/// };
/// let (wide, narrow) = (rule(10)?, rule(1)?);
/// let asks = [Ask { rule: &wide, key: &[] }, Ask { rule: &narrow, key: &[] }];
/// let mut charged = Vec::new();
/// charge_all(&asks, || now, 1, &mut charged)?;
/// assert_eq!(charged.len(), 2);
/// assert_eq!(charge_all(&asks, || now, 1, &mut charged).unwrap_err().ask, 1);
/// assert_eq!(wide.peek(now, &[], 1)?.standing.remaining(), 9); // the refusal charged nothing
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`RuleRefusedAt`], the first rule in order that refuses.
pub fn charge_all(
    asks: &[Ask<'_>],
    clock: impl Fn() -> Time,
    cost: u64,
    charged: &mut Vec<RuleAdmitted>,
) -> Result<(), RuleRefusedAt> {
    charged.clear();
    if asks.len() > 1 {
        let now = clock();
        for (ask, Ask { rule, key }) in asks.iter().enumerate() {
            rule.peek(now, key, cost).map_err(|refused| RuleRefusedAt { ask, refused })?;
        }
    }
    for (ask, Ask { rule, key }) in asks.iter().enumerate() {
        match rule.charge(&clock, key, cost) {
            Ok(admitted) => charged.push(admitted),
            Err(refused) => {
                for (Ask { rule, key }, admitted) in asks.iter().zip(charged.drain(..)) {
                    rule.refund(key, admitted.charge, &clock);
                }
                return Err(RuleRefusedAt { ask, refused });
            }
        }
    }
    Ok(())
}

/// Which of several rules refused, and its refusal.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Ask, Quota, RuleLimiter, Strategy, Terms, Time, charge_all};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let rule = RuleLimiter::shared(now, Terms::new([("all", quota)])?);
/// let at = charge_all(&[Ask { rule: &rule, key: &[] }], || now, 11, &mut Vec::new()).unwrap_err();
/// assert_eq!((at.ask, at.refused.limit, at.refused.retry_after()), (0, 0, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RuleRefusedAt {
    /// Index of the rule.
    pub ask: usize,
    /// The rule's refusal.
    pub refused: RuleRefused,
}

impl fmt::Display for RuleRefusedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: {}", self.ask, self.refused)
    }
}

impl Error for RuleRefusedAt {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.refused)
    }
}
