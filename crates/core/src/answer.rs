//! The answers of a rule: the charges, and the tightest limit. This module charges nothing.

use crate::{MAX_LIMITS, Standing, Time, all::Charges, limiter::Charge, meter::Receipt};

/// A request that was admitted by all limits of a rule.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
/// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
///
/// let admitted = rule.charge(|| now, b"ann", 3)?;
/// assert_eq!(admitted.tightest.standing.remaining(), 7); // for the response's headers
/// rule.refund(b"ann", admitted.charge, || now); // if the work was never done
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct RuleAdmitted {
    /// The charge. Give it back if the request does not use it.
    pub charge: RuleCharge,
    /// The limit with the fewest requests left, including this request.
    pub tightest: Tightest,
}

/// A cost that was charged to a rule, now or in advance; see
/// [`RuleLimiter::charge_ahead`](crate::RuleLimiter::charge_ahead).
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
/// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
///
/// rule.charge(|| now, b"ann", 10)?;
/// let charged = rule.charge_ahead(|| now, b"ann", 1, now.saturating_add(Duration::from_secs(1)))?;
/// assert_eq!(charged.at.duration_since(now), Duration::from_millis(100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct RuleChargedAhead {
    /// The time at which all limits have enough capacity: not before now, and not after `latest` unless that is before now.
    pub at: Time,
    /// The charge. Give it back if the request does not use it.
    pub charge: RuleCharge,
    /// The limit with the fewest requests left, including this request.
    pub tightest: Tightest,
}

/// The charge of one request on a rule. Pass it to [`RuleLimiter::refund`](crate::RuleLimiter::refund) at most once.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
/// # let rule = RuleLimiter::keyed(now, Terms::new([("burst", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
///
/// let charge = rule.charge(|| now, b"ann", 1)?.charge;
/// rule.refund(b"ann", charge, || now); // with the key that was charged
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RuleCharge {
    pub(crate) of: Charged,
}

#[derive(Debug)]
pub(crate) enum Charged {
    /// The charge of a rule with one limit and no key. `retunes` is the number of retunes of the rule before the charge.
    One {
        charge: Charge,
        retunes: u64,
    },
    Several {
        charges: Charges,
        retunes: u64,
    },
    Key(KeyCharge),
}

/// The location of the charged words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargedWords {
    Override,
    Cell(usize),
    Overflow,
}

/// The charge of one key, in a cell or in the overflow.
#[derive(Debug)]
pub(crate) struct KeyCharge {
    pub(crate) receipts: Receipts,
    /// The number of retunes before the charge.
    pub(crate) retunes: u64,
    pub(crate) of: ChargedWords,
}

/// The receipts of the charged limits, in order from the first. They are not allocated on the heap. An allocation would
/// cost more than the decision, even for one receipt, because the compiler must store and check a value that may need
/// to be freed.
#[derive(Debug)]
pub(crate) enum Receipts {
    One(Receipt),
    Several { receipts: [Receipt; MAX_LIMITS], charged: usize },
}

impl Receipts {
    pub(crate) const NONE: Self = Self::Several { receipts: [Receipt::NONE; MAX_LIMITS], charged: 0 };

    /// Adds the receipt of the next limit.
    pub(crate) fn add(&mut self, receipt: Receipt) {
        if let Self::Several { receipts, charged } = self {
            receipts[*charged] = receipt;
            *charged += 1;
        }
    }

    pub(crate) fn as_slice(&self) -> &[Receipt] {
        match self {
            Self::One(receipt) => std::slice::from_ref(receipt),
            Self::Several { receipts, charged } => &receipts[..*charged],
        }
    }
}

/// The limit of a rule with the fewest remaining requests. Of equal limits, the first.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let terms = Terms::new([("burst", quota), ("wide", Quota::new(Strategy::TokenBucket, 99, Duration::from_secs(1), None)?)])?;
/// let rule = RuleLimiter::unkeyed(now, terms);
/// let tightest = rule.charge(|| now, &[], 2)?.tightest;
/// assert_eq!((tightest.limit, tightest.standing.remaining(), tightest.override_index), (0, 8, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tightest {
    /// The index of the limit among the limiters of [`charge_limiters`](crate::charge_limiters), or in the terms of a rule.
    pub limit: usize,
    /// The limit's standing.
    pub standing: Standing,
    /// The index of the override that applies to the key.
    pub override_index: Option<usize>,
}

/// Finds the [`Tightest`] while the limits are visited in order.
pub(crate) struct Tightening {
    seen: usize,
    tightest: Option<(usize, Standing)>,
}

impl Tightest {
    pub(crate) fn none() -> Tightening {
        Tightening { seen: 0, tightest: None }
    }
}

impl Tightening {
    #[inline]
    pub(crate) fn consider(&mut self, standing: Standing) {
        if self.tightest.is_none_or(|(_, tightest)| standing.remaining() < tightest.remaining()) {
            self.tightest = Some((self.seen, standing));
        }
        self.seen += 1;
    }

    #[inline]
    pub(crate) fn with_override(self, override_index: Option<usize>) -> Tightest {
        let (limit, standing) = self.tightest.expect("terms have at least one limit");
        Tightest { limit, standing, override_index }
    }
}
