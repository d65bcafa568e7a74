//! The limits of a rule, as numbers that a store keeps together with the counts. Every [`StoreTerms`] is valid: all numbers
//! computed from it stay below 2^53, so a script in a store computes them exactly.

use std::{fmt::Write as _, time::Duration};

use weir_core::{MAX_LIMITS, Quota, Strategy};

/// The bound of numbers in a script, whose numbers are doubles. Doubles are exact below 2^53. Half of that is the
/// bound, so that sums are exact, too.
pub const EXACT: u64 = 1 << 52;

/// The maximum number of units in one question.
pub const MOST_UNITS: u32 = 1 << 20;

/// The maximum length of a log in a store.
pub const LONGEST_STORE_LOG: u64 = 8_192;

/// The maximum time by which a level can be ahead of the units that are usable now: one day in microseconds. A larger
/// value shows that the store's clock was set back.
pub const DAY: u64 = 86_400_000_000;

/// The limits of one rule. Each limit has a number that stays the same when the limit changes. The stamp orders
/// changes: the store keeps the newest terms that it has received, and returns them to callers with older terms.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Quota, Strategy};
/// use weir_seats::StoreTerms;
///
/// let quota = Quota::new(Strategy::FixedWindow, 100, Duration::from_secs(1), None)?;
/// let terms = StoreTerms::new(7, &[(0, quota)])?;
/// assert_eq!(terms.limits().collect::<Vec<_>>(), [(0, quota)]);
/// assert_eq!(terms.stamp(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreTerms {
    stamp: u64,
    limits: Vec<StoreLimit>,
}

/// One limit. All durations in this crate's arithmetic are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimit {
    /// The number of the limit in its rule.
    pub id: u32,
    /// The strategy.
    pub strategy: Strategy,
    /// The number of requests per period. For a bucket, `requests` and `period` are divided by their greatest common
    /// divisor.
    pub requests: u64,
    /// The period in microseconds.
    pub period: u64,
    /// The size of a bucket; the requests of a window.
    pub burst: u64,
    /// The largest debt of a bucket.
    pub debt: u64,
}

/// The reason why limits cannot be counted in a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidStoreTerms {
    /// The rule has no limit, or too many.
    #[error("a rule must have 1 to {MAX_LIMITS} limits")]
    Count,
    /// Two limits have the same number.
    #[error("two limits have the number {0}")]
    SameNumber(u32),
    /// A period is not a whole number of microseconds.
    #[error("the period of a shared limit must be a whole number of microseconds")]
    Period,
    /// A log is too long for a value in a store.
    #[error("a shared sliding window log keeps at most {LONGEST_STORE_LOG} requests: choose SlidingWindowCounter")]
    Log,
    /// A script could not compute these numbers exactly.
    #[error("requests, period or burst are too large to be counted in a store: lower them")]
    TooLarge,
    /// A script could not compare the stamp exactly.
    #[error("the stamp must be below 2^52")]
    Stamp,
}

impl StoreTerms {
    /// Creates terms from the limits of a rule, each with its number.
    ///
    /// # Errors
    ///
    /// See [`InvalidStoreTerms`].
    pub fn new(stamp: u64, limits: &[(u32, Quota)]) -> Result<Self, InvalidStoreTerms> {
        if stamp >= EXACT {
            return Err(InvalidStoreTerms::Stamp);
        }
        let limits = limits.iter().map(|&(id, quota)| StoreLimit::new(id, quota)).collect::<Result<Vec<_>, _>>()?;
        if limits.is_empty() || limits.len() > MAX_LIMITS {
            return Err(InvalidStoreTerms::Count);
        }
        for (index, limit) in limits.iter().enumerate() {
            if limits[..index].iter().any(|before| before.id == limit.id) {
                return Err(InvalidStoreTerms::SameNumber(limit.id));
            }
        }
        Ok(Self { stamp, limits })
    }

    /// Divides the limits into equal parts, for programs that each decide alone. None if a part is not a valid limit.
    pub fn share(&self, of: u32) -> Option<Self> {
        let limits = self.limits.iter().map(|limit| limit.share(of)).collect::<Option<Vec<_>>>()?;
        Some(Self { stamp: self.stamp, limits })
    }

    /// The stamp, which orders terms. The terms with the highest stamp are in force.
    pub const fn stamp(&self) -> u64 {
        self.stamp
    }

    /// The limits with their numbers. The requests and the period of a bucket can be smaller than those passed to
    /// [`new`](Self::new), with the same rate.
    pub fn limits(&self) -> impl Iterator<Item = (u32, Quota)> {
        self.limits.iter().filter_map(|limit| Some((limit.id, limit.quota()?)))
    }

    /// The limits as numbers.
    pub fn raw(&self) -> &[StoreLimit] {
        &self.limits
    }

    /// Parses the output of [`text_of`]. None if the text is invalid.
    pub fn parse(stamp: u64, text: &str) -> Option<Self> {
        let limits = text.split(',').map(|text| StoreLimit::of_numbers(numbers(text)?.as_array()?));
        Self::of_limits(stamp, &limits.collect::<Option<Vec<_>>>()?)
    }

    /// Creates terms from the numbers of limits: see [`StoreLimit::numbers`]. None if the numbers are invalid.
    pub fn of_numbers(stamp: u64, limits: &[[u64; 6]]) -> Option<Self> {
        Self::of_limits(stamp, &limits.iter().map(StoreLimit::of_numbers).collect::<Option<Vec<_>>>()?)
    }

    fn of_limits(stamp: u64, limits: &[StoreLimit]) -> Option<Self> {
        let quotas = limits.iter().map(|limit| Some((limit.id, limit.quota()?))).collect::<Option<Vec<_>>>()?;
        Self::new(stamp, &quotas).ok().filter(|terms| terms.limits == limits)
    }
}

/// Checks that a store can count a limit of a snapshot, as [`StoreTerms::new`] does. A limit that is no valid [`Quota`]
/// passes, because agents refuse it in any case.
///
/// # Errors
///
/// See [`InvalidStoreTerms`].
///
/// ```
/// use weir_seats::{InvalidStoreTerms, terms};
/// use weir_wire::{Limit, Strategy};
///
/// let log = |requests| Limit {
///     name: "rate".to_owned(),
///     strategy: Strategy::SlidingWindowLog,
///     requests,
///     period_millis: 1_000,
///     burst: None,
///     debt: None,
/// };
/// assert_eq!(terms::check(&log(terms::LONGEST_STORE_LOG)), Ok(()));
/// assert_eq!(terms::check(&log(terms::LONGEST_STORE_LOG + 1)), Err(InvalidStoreTerms::Log));
/// ```
pub fn check(limit: &weir_wire::Limit) -> Result<(), InvalidStoreTerms> {
    let weir_wire::Limit { name: _, strategy, requests, period_millis, burst, debt } = limit;
    let strategy = match strategy {
        weir_wire::Strategy::FixedWindow => Strategy::FixedWindow,
        weir_wire::Strategy::SlidingWindowCounter => Strategy::SlidingWindowCounter,
        weir_wire::Strategy::SlidingWindowLog => Strategy::SlidingWindowLog,
        weir_wire::Strategy::TokenBucket => Strategy::TokenBucket,
        weir_wire::Strategy::TokenBucketWithDebt => Strategy::TokenBucketWithDebt,
        weir_wire::Strategy::LeakyBucket => Strategy::LeakyBucket,
        weir_wire::Strategy::Gcra => Strategy::Gcra,
    };
    let quota = Quota::new(strategy, *requests, Duration::from_millis(*period_millis), *burst);
    let quota = quota.and_then(|quota| debt.map_or(Ok(quota), |debt| quota.with_debt(debt)));
    quota.map_or(Ok(()), |quota| StoreLimit::new(0, quota).map(drop))
}

/// Formats limits for a store.
pub fn text_of(limits: &[StoreLimit]) -> String {
    let mut text = String::new();
    for limit in limits {
        let comma = if text.is_empty() { "" } else { "," };
        let [id, strategy, requests, period, burst, debt] = limit.numbers();
        let _ = write!(text, "{comma}{id} {strategy} {requests} {period} {burst} {debt}");
    }
    text
}

impl StoreLimit {
    fn new(id: u32, quota: Quota) -> Result<Self, InvalidStoreTerms> {
        let nanos = quota.period().as_nanos();
        if !nanos.is_multiple_of(1_000) {
            return Err(InvalidStoreTerms::Period);
        }
        let period = u64::try_from(nanos / 1_000).map_err(|_| InvalidStoreTerms::TooLarge)?;
        let (requests, burst, debt) = (quota.requests(), quota.burst(), quota.debt());
        let limit = Self { id, strategy: quota.strategy(), requests, period, burst, debt };
        match quota.strategy() {
            Strategy::SlidingWindowLog if requests > LONGEST_STORE_LOG => return Err(InvalidStoreTerms::Log),
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
                let fits = period < EXACT / 4 && requests < EXACT / 4;
                return if fits { Ok(limit) } else { Err(InvalidStoreTerms::TooLarge) };
            }
            Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::LeakyBucket | Strategy::Gcra => {}
        }
        let divisor = gcd(requests, period);
        let limit = Self { requests: requests / divisor, period: period / divisor, ..limit };
        // The script multiplies a number of units by a number below `requests`, and computes the time of a whole burst.
        let most = u128::from(burst) + u128::from(debt) + 1;
        let parts = (most + 4 * u128::from(MOST_UNITS)) * u128::from(limit.requests);
        let time = most * u128::from(limit.period) / u128::from(limit.requests);
        let fits = parts < u128::from(EXACT) && time < u128::from(EXACT / 4) && limit.period < EXACT / 4;
        if fits { Ok(limit) } else { Err(InvalidStoreTerms::TooLarge) }
    }

    /// The fields in their order, with a number for the strategy.
    pub fn numbers(&self) -> [u64; 6] {
        let Self { id, strategy, requests, period, burst, debt } = *self;
        [u64::from(id), u64::from(code(strategy)), requests, period, burst, debt]
    }

    fn of_numbers(&[id, strategy, requests, period, burst, debt]: &[u64; 6]) -> Option<Self> {
        let strategy = Strategy::ALL.into_iter().find(|known| u64::from(code(*known)) == strategy)?;
        Some(Self { id: u32::try_from(id).ok()?, strategy, requests, period, burst, debt })
    }

    fn quota(&self) -> Option<Quota> {
        let burst = self.is_bucket().then_some(self.burst);
        let quota = Quota::new(self.strategy, self.requests, Duration::from_micros(self.period), burst).ok()?;
        if self.debt > 0 { quota.with_debt(self.debt).ok() } else { Some(quota) }
    }

    /// Divides the limit into equal parts. None if a part is not a valid limit.
    pub fn share(&self, of: u32) -> Option<Self> {
        Self::new(self.id, part(self.quota()?, of)?).ok()
    }

    /// Returns true if the limit is a bucket, which has a level. Other limits have windows or a log.
    pub fn is_bucket(&self) -> bool {
        match self.strategy {
            Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => false,
            Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::LeakyBucket | Strategy::Gcra => true,
        }
    }

    /// Returns true if the state of a window or a log is the same under both limits.
    pub(crate) fn counts_like(&self, other: &Self) -> bool {
        !self.is_bucket() && (self.strategy, self.period) == (other.strategy, other.period)
    }

    /// Returns true if the limit counts in windows that begin at fixed times.
    pub fn has_windows(&self) -> bool {
        matches!(self.strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter)
    }

    /// Returns true if requests leave the bucket one by one.
    pub fn is_leaky(&self) -> bool {
        self.strategy == Strategy::LeakyBucket
    }

    /// Returns true if the store can hand out seats of this limit before a request needs them.
    pub fn gives_in_advance(&self) -> bool {
        matches!(
            self.strategy,
            Strategy::TokenBucket | Strategy::Gcra | Strategy::FixedWindow | Strategy::SlidingWindowCounter
        )
    }

    /// The maximum cost of one request.
    pub fn most(&self) -> u64 {
        self.burst + self.debt + u64::from(self.is_leaky())
    }

    /// The number of units of a full bucket that can be used at the same time.
    pub fn at_once(&self) -> u64 {
        if self.is_leaky() { 1 } else { self.most() }
    }
}

/// Divides a quota into `of` equal parts. None if a part is not a valid quota.
fn part(quota: Quota, of: u32) -> Option<Quota> {
    let (strategy, requests, of) = (quota.strategy(), quota.requests(), u64::from(of));
    let slower = |times: u64| quota.period().checked_mul(u32::try_from(times).ok()?);
    match strategy {
        Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog => {
            let (requests, period) = match requests / of {
                0 => (1, slower(of.div_ceil(requests))?),
                part => (part, quota.period()),
            };
            Quota::new(strategy, requests, period, None).ok()
        }
        _ => {
            let burst = (quota.burst() / of).max(1);
            let part = Quota::new(strategy, requests, slower(of)?, Some(burst)).ok()?;
            if quota.debt() > 0 { part.with_debt(quota.debt() / of).ok() } else { Some(part) }
        }
    }
}

/// The number of a strategy in a store's value.
fn code(strategy: Strategy) -> u8 {
    match strategy {
        Strategy::FixedWindow => 0,
        Strategy::SlidingWindowCounter => 1,
        Strategy::SlidingWindowLog => 2,
        Strategy::TokenBucket => 3,
        Strategy::TokenBucketWithDebt => 4,
        Strategy::LeakyBucket => 5,
        Strategy::Gcra => 6,
    }
}

/// Parses whole numbers that are separated by single spaces.
pub fn numbers(text: &str) -> Option<Vec<u64>> {
    let is_number = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    text.split(' ').map(|word| Some(word).filter(is_number)?.parse().ok()).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(strategy: Strategy, requests: u64, millis: u64, burst: Option<u64>) -> Quota {
        Quota::new(strategy, requests, Duration::from_millis(millis), burst).expect("a quota")
    }

    #[test]
    fn what_is_written_is_read() {
        for strategy in Strategy::ALL {
            let burst = (![0, 1, 2].contains(&code(strategy))).then_some(9);
            let debt = quota(Strategy::TokenBucketWithDebt, 5, 900_000, None).with_debt(3).expect("a quota");
            let terms = StoreTerms::new(3, &[(1, quota(strategy, 7, 1_000, burst)), (4, debt)]).expect("terms");
            assert_eq!(StoreTerms::parse(3, &text_of(terms.raw())), Some(terms.clone()), "{terms:?}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "1", "1 3 1 1000 1", "1 9 1 1000 1 0", "1 3 2 2000 1 0", "1 3 0 1000 1 0", "a 3 1 1000 1 0"] {
            assert_eq!(StoreTerms::parse(1, text), None, "{text}");
        }
        assert!(StoreTerms::parse(1, "1 3 1 1000 1 0").is_some());
    }

    #[test]
    fn a_script_can_count_all_valid_terms() {
        let year = 365 * 86_400_000;
        let one = |quota| StoreTerms::new(1, &[(0, quota)]).map(|_| ());
        assert_eq!(one(quota(Strategy::TokenBucket, 100_000_000, 86_400_000, None)), Ok(()));
        assert_eq!(one(quota(Strategy::TokenBucket, 999_999_937, year, None)), Err(InvalidStoreTerms::TooLarge));
        assert_eq!(one(quota(Strategy::SlidingWindowLog, 8_193, 1_000, None)), Err(InvalidStoreTerms::Log));
        let nanos = Quota::new(Strategy::Gcra, 1, Duration::from_nanos(1_500), None).expect("a quota");
        assert_eq!(one(nanos), Err(InvalidStoreTerms::Period));
        let same = (2, quota(Strategy::Gcra, 1, 1_000, None));
        assert_eq!(StoreTerms::new(1, &[same, same]), Err(InvalidStoreTerms::SameNumber(2)));
        assert_eq!(StoreTerms::new(1, &[]), Err(InvalidStoreTerms::Count));
        assert_eq!(StoreTerms::new(EXACT, &[same]), Err(InvalidStoreTerms::Stamp));
    }
}
