//! The exact level of a bucket: microseconds of the store's clock, and parts of a microsecond.
//!
//! A level is the theoretical arrival time of GCRA (ITU-T I.371). A unit moves it by `period / requests`, which is
//! rarely a whole number. So a level also has a fraction with the denominator `requests`. The floor of a bucket is the
//! store's time.

use crate::terms::StoreLimit;

/// A level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point {
    /// Whole microseconds.
    pub us: u64,
    /// The numerator of the fraction, less than the limit's `requests`.
    pub parts: u64,
}

impl Point {
    /// The level that equals this time.
    pub const fn at(us: u64) -> Self {
        Self { us, parts: 0 }
    }

    /// The level in microseconds, rounded up.
    pub fn rounded_up(self) -> u64 {
        self.us + u64::from(self.parts > 0)
    }

    /// The level in parts: multiples of `1 / requests` of a microsecond.
    fn total(self, limit: &StoreLimit) -> u128 {
        u128::from(self.us) * u128::from(limit.requests) + u128::from(self.parts)
    }

    fn of_total(total: u128, limit: &StoreLimit) -> Self {
        let requests = u128::from(limit.requests);
        Self { us: narrow(total / requests), parts: narrow(total % requests) }
    }

    /// The level after this many more units.
    pub fn after(self, limit: &StoreLimit, units: u64) -> Self {
        Self::of_total(self.total(limit).saturating_add(u128::from(units) * u128::from(limit.period)), limit)
    }

    /// The level before the last units.
    pub fn before(self, limit: &StoreLimit, units: u64) -> Self {
        Self::of_total(self.total(limit).saturating_sub(u128::from(units) * u128::from(limit.period)), limit)
    }

    /// The sum of two levels, one of which is a duration.
    pub fn plus(self, limit: &StoreLimit, other: Self) -> Self {
        Self::of_total(self.total(limit).saturating_add(other.total(limit)), limit)
    }

    /// The difference of two levels. It is zero if the other level is later.
    pub fn minus(self, limit: &StoreLimit, other: Self) -> Self {
        Self::of_total(self.total(limit).saturating_sub(other.total(limit)), limit)
    }

    /// Returns this duration multiplied by the fraction `by / of`.
    pub fn times(self, limit: &StoreLimit, by: u128, of: u128) -> Self {
        Self::of_total(self.total(limit).saturating_mul(by) / of, limit)
    }

    /// The number of whole units between this level and a later one.
    pub fn units_to(self, limit: &StoreLimit, later: Self) -> u64 {
        narrow(later.total(limit).saturating_sub(self.total(limit)) / u128::from(limit.period))
    }
}

/// A whole limit, in parts. All numbers of sharers that the operator uses divide it.
pub const WHOLE: u128 = 1 << 30;

/// The largest part of a bucket's supply that is reserved. If more programs are cut off, the rest still refills slowly.
pub const MOST_RESERVED: u32 = (1 << 30) - (1 << 20);

/// A bucket of which a part is reserved refills more slowly. Other limits are returned unchanged.
pub fn slowed(limit: &StoreLimit, reserved: u32) -> StoreLimit {
    if reserved == 0 || !limit.is_bucket() {
        return *limit;
    }
    let period = (u128::from(limit.period) * WHOLE).div_ceil(WHOLE - u128::from(reserved.min(MOST_RESERVED)));
    StoreLimit { period: u64::try_from(period).unwrap_or(u64::MAX), ..*limit }
}

/// The time in which a bucket refills completely.
pub fn capacity(limit: &StoreLimit) -> Point {
    Point::default().after(limit, limit.at_once())
}

fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
