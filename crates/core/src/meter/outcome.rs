//! What comes of charging a limit, and what giving the charge back needs: the same for every strategy.

use crate::word::Sealed;
use crate::{Standing, Time};

/// A charge that was made.
#[derive(Debug)]
pub(crate) struct Taken {
    /// When it may go.
    pub(crate) at: Time,
    pub(crate) standing: Standing,
    pub(crate) place: Place,
}

/// What giving it back needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// When it was charged.
    pub(crate) at: Time,
    pub(crate) cost: u64,
    /// The level after it, the window, or the number of requests before it.
    pub(crate) mark: u64,
}

impl Place {
    pub(crate) const NONE: Self = Self { at: Time::from_nanos(0), cost: 0, mark: 0 };
}

/// Why nothing was charged.
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
