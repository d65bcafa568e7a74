//! The answers of a rule: what was charged, and which limit is the tightest. It charges nothing.

use crate::{MAX_LIMITS, Standing, Time, all::Charges, limiter::Charge, meter::Receipt};

/// A request that all limits of a rule admitted.
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
pub struct RuleAdmitted {
    /// The charge, to be given back if it is not used.
    pub charge: RuleCharge,
    /// The limit with the fewest requests left, including this request.
    pub tightest: Tightest,
}

/// A cost that a rule was charged, now or in advance; see
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
pub struct RuleChargedAhead {
    /// When the last of the limits has enough: not before now, and not after `latest`.
    pub at: Time,
    /// The charge, to be given back if it is not used.
    pub charge: RuleCharge,
    /// The limit with the fewest requests left, including this request.
    pub tightest: Tightest,
}

/// What a rule was charged for one request. Pass it to [`RuleLimiter::refund`](crate::RuleLimiter::refund) at most
/// once.
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
    One(Charge),
    Several(Charges),
    Key(KeyCharge),
}

/// Where the charged words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargedWords {
    Override,
    Cell(usize),
    Overflow,
}

/// What one key was charged, in a cell or in the overflow.
#[derive(Debug)]
pub(crate) struct KeyCharge {
    pub(crate) receipts: Receipts,
    /// How many retunes came before the charge.
    pub(crate) retunes: u64,
    pub(crate) of: ChargedWords,
}

/// The receipts of the charged limits, in order from the first. Allocating them would cost more than the decision, even
/// for one receipt: a value that may need to be freed must be stored and checked.
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

/// The limit of a rule with the fewest requests left; the first one of equals.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms, Time};
/// # let now = Time::from_nanos(0);
/// # let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(1), None)?;
///
/// let terms = Terms::new([("burst", quota), ("wide", Quota::new(Strategy::TokenBucket, 99, Duration::from_secs(1), None)?)])?;
/// let rule = RuleLimiter::shared(now, terms);
/// let tightest = rule.charge(|| now, &[], 2)?.tightest;
/// assert_eq!((tightest.limit, tightest.standing.remaining(), tightest.override_index), (0, 8, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Tightest {
    /// Index of the limit among the limiters of [`check_all`](crate::check_all), or in the terms of a rule.
    pub limit: usize,
    /// The limit's standing.
    pub standing: Standing,
    /// Index of the override that applies to the key.
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
