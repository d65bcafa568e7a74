//! The results of charging a limit, and the receipts for refunds. All strategies share these types.

use crate::{Standing, Time, supply::MAX_AHEAD, word::Sealed};

/// The time at which a request takes its units.
#[derive(Clone, Copy, Debug)]
pub(crate) enum When {
    /// Now, or the request is refused.
    Now,
    /// Now or later, up to this time, or the request is refused.
    By(Time),
    /// As early as possible, because the cost was already incurred. Each limit is charged as much as possible.
    Incurred,
}

impl When {
    /// Returns the latest time of the units of a request at `now`.
    #[inline]
    pub(crate) fn latest(self, now: Time) -> Time {
        match self {
            Self::Now => now,
            Self::By(latest) => latest.max(now),
            Self::Incurred => now.saturating_add(MAX_AHEAD),
        }
    }
}

/// The result of a charge.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The time at which the request is admitted.
    pub(crate) at: Time,
    pub(crate) standing: Standing,
    pub(crate) receipt: Receipt,
}

/// A record of one charge, which is needed to give the charge back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    /// The time of the charge.
    pub(crate) at: Time,
    pub(crate) cost: u64,
    /// For a level, the level after the charge. For a counter, the index of the window. For a log, the position of the
    /// first request.
    pub(crate) mark: u64,
}

impl Receipt {
    pub(crate) const NONE: Self = Self { at: Time::from_nanos(0), cost: 0, mark: 0 };
}

/// The reason why nothing was charged.
#[derive(Debug)]
pub(crate) enum Stop {
    Refused(Standing),
    Sealed,
}

impl From<Sealed> for Stop {
    fn from(_: Sealed) -> Self {
        Self::Sealed
    }
}
