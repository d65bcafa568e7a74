//! A contender, and the tasks for which its limit is set up.

use std::time::Duration;

use super::hammer::Batch;

/// The task for which a limit is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// 10^9 requests per second, with a burst of the same size, which no contender can use up.
    Admit,
    /// One request per day, which is already used.
    Deny,
    /// This number of requests, without a refill during the run.
    Budget(u32),
    /// [`REFILL`] requests per millisecond, with a burst of the same size.
    Refill,
}

/// The requests per millisecond that the limit of [`Demand::Refill`] allows.
pub(super) const REFILL: u32 = 1000;

pub(super) const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Weir as users call it, including the reading of the clock.
    Ours,
    /// Weir's decision without the clock. It is measured on one thread only, because several threads would contend for
    /// the shared time.
    Alone,
    Peer,
    /// Only a reading of the clock, without a limit.
    Baseline,
}

/// The way in which a strategy counts. It determines the maximum number of admissions while the limit refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counts {
    Bucket,
    Window,
}

pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) counts: Counts,
    /// True if the contender is not [`Sync`], or is useless on more than one thread.
    pub(super) one_thread: bool,
    /// True if the contender reads no clock for a refusal, because it refuses until a timer has run. Contenders that
    /// read a clock are not compared with it.
    pub(super) refuses_unread: bool,
    /// Creates a limit. None if the contender cannot be set up for this demand.
    pub(super) make: fn(Demand) -> Option<Batch>,
}
