//! The refusal by one of several limits, which charges nothing.

use std::{error::Error, fmt, time::Duration};

use crate::{Refused, Standing, forecast::Longest};

/// A request that was refused by one of several limits. Nothing was charged.
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
/// let refused = rule.charge(|| now, b"ann", 5).unwrap_err();
/// assert_eq!((refused.limit, refused.cost, refused.override_index), (0, 5, None));
/// assert_eq!(refused.to_string(), "limit 0: over the limit: retry after 500ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuleRefused {
    /// The index of the limit among the limiters of [`charge_limiters`](crate::charge_limiters), or in the terms of a rule.
    pub limit: usize,
    /// The limit's standing.
    pub standing: Standing,
    /// The cost of the request.
    pub cost: u64,
    /// The index of the override that applies to the key.
    pub override_index: Option<usize>,
}

impl RuleRefused {
    pub(crate) fn by(limit: usize, refused: Refused) -> Self {
        Self { limit, standing: refused.standing, cost: refused.cost, override_index: None }
    }

    /// Returns the refusal by the limit with the longest wait, for a request behind a queue.
    pub(crate) fn queued(longest: Longest, cost: u64, override_index: Option<usize>) -> Self {
        Self { limit: longest.limit, standing: longest.standing, cost, override_index }
    }

    /// Returns the time until this limit would admit the request, if no other request is admitted before. None if the
    /// limit can never admit it, because the cost exceeds the burst.
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
    /// let refused = rule.charge(|| now, b"ann", 5).unwrap_err();
    /// let later = now.saturating_add(refused.retry_after().expect("it fits the burst"));
    /// assert!(rule.charge(|| later, b"ann", 5).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.standing.retry_after(self.cost)
    }
}

impl fmt::Display for RuleRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = Refused { standing: self.standing, cost: self.cost };
        write!(f, "limit {}: {refused}", self.limit)
    }
}

impl Error for RuleRefused {}
