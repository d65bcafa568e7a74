//! The count of what a program admits of a key while the store is lost.

use std::time::Duration;

use weir_seats::{
    StoreTerms, Take, Value,
    model::{charged, take, used, used_up},
    terms::MOST_UNITS,
};

/// The count of this program's share of a key while the store is lost.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// The number of the loss.
    pub(super) loss: u64,
    /// The time from which the share admits requests.
    pub(super) begins: Duration,
    pub(super) value: Value,
    /// The units that were admitted during this loss.
    pub(super) admitted: u64,
}

impl Share {
    /// Charges units. Later requests wait until they are repaid. Returns the units beyond the share's capacity.
    pub(super) fn charge(&mut self, terms: &StoreTerms, at: u64, units: u64) -> u64 {
        let owed = u32::try_from(units).unwrap_or(u32::MAX).min(MOST_UNITS);
        let Some(encoded) = (Take { requests: 0, owed, ..Take::new(terms) }).encode() else { return units };
        let before = used(&self.value, at);
        self.value = take(Some(&self.value), &encoded, at).value;
        let covered = used(&self.value, at).saturating_sub(before).min(units);
        self.admitted += covered;
        units - covered
    }

    /// Continues under changed limits, without credit. What the share admitted stays charged as long as it counts. Returns
    /// the units for which the changed share is too small.
    pub(super) fn retune(&mut self, terms: &StoreTerms, at: u64) -> u64 {
        let owed = u64::from(self.owed(at));
        self.value = used_up(terms, at);
        self.admitted = owed.min(used(&self.value, at));
        owed - self.admitted
    }

    /// The units of the share that still count at this time. The store must charge them when it returns. It must not
    /// charge earlier ones, because the limit has refilled since.
    pub(super) fn owed(&self, at: u64) -> u32 {
        self.at_most(used(&self.value, at))
    }

    /// The units that a new operator must charge. Unlike a store, it has not counted anything before.
    pub(super) fn owed_to_new(&self, at: u64) -> u32 {
        self.at_most(charged(&self.value, at))
    }

    fn at_most(&self, units: u64) -> u32 {
        u32::try_from(self.admitted.min(units)).unwrap_or(u32::MAX)
    }
}
