//! When requests will go that are not charged yet: the arithmetic of a queue.
//!
//! A forecast copies the words of all limits of a request, and then admits one request after the other on the copies, by the
//! code that decides for real. It charges nothing, and it is exact as long as nothing else charges, refunds or retunes.

use std::time::Duration;

use crate::meter::{Meter, Stop};
use crate::sync::AtomicU64;
use crate::{Standing, Time};

/// The limits of one queue, as they will be once all requests in it are gone.
#[derive(Debug)]
pub(crate) struct Forecast {
    limits: Vec<Copied>,
    /// When the last of them goes.
    at: Time,
}

/// A limit with words of its own.
#[derive(Debug)]
struct Copied {
    meter: Meter,
    words: Vec<AtomicU64>,
}

/// The limit that a request has to wait for longest, and where it will stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Longest {
    pub(crate) limit: usize,
    pub(crate) standing: Standing,
}

impl Forecast {
    /// From the words of each limit at `now`.
    pub(crate) fn new(now: Time, limits: impl IntoIterator<Item = (Meter, Vec<u64>)>) -> Self {
        let copied = |(meter, words): (Meter, Vec<u64>)| Copied {
            meter,
            words: words.into_iter().map(AtomicU64::new).collect(),
        };
        Self { limits: limits.into_iter().map(copied).collect(), at: now }
    }

    /// Whether only the sum of the costs matters, and not how it is split.
    pub(crate) fn is_additive(&self) -> bool {
        matches!(self.limits.as_slice(), [only] if only.meter.is_additive())
    }

    /// Admits a sum of costs, where that [is all that matters](Self::is_additive).
    pub(crate) fn add(&mut self, cost: u64) {
        for Copied { meter, words } in &self.limits {
            meter.add(words, self.at, cost);
        }
    }

    /// The first moment from `from` on at which this cost is admitted behind all that were; none if it never is.
    pub(crate) fn opens(&self, from: Time, cost: u64) -> Option<Time> {
        let mut at = self.at.max(from);
        // A limit that admits goes on to do so, hence one round for each is enough.
        for _ in 0..=self.limits.len() {
            let before = at;
            for limit in &self.limits {
                at = at.saturating_add(limit.wait(at, cost)?);
            }
            if at == before {
                break;
            }
        }
        Some(at)
    }

    /// Admits this cost at a moment that [`opens`](Self::opens) gave.
    pub(crate) fn admit(&mut self, at: Time, cost: u64) {
        for Copied { meter, words } in &self.limits {
            let admitted = meter.check(words, at, cost);
            debug_assert!(admitted.is_ok(), "{:?} opens at {at:?} for {cost}: {admitted:?}", meter.quota());
        }
        self.at = self.at.max(at);
    }

    /// When a newcomer of this cost goes; an error is what refuses it, if it never does or a leaky bucket is full.
    pub(crate) fn newcomer(&self, now: Time, cost: u64) -> Result<Time, Longest> {
        let opens = self.opens(now, cost).filter(|_| !self.overflows(now, cost));
        opens.ok_or_else(|| self.longest(now, cost))
    }

    /// Whether a leaky bucket would hold more than its burst, with this cost added.
    pub(crate) fn overflows(&self, now: Time, cost: u64) -> bool {
        self.limits.iter().any(|Copied { meter, words }| meter.overflows(words, now, cost))
    }

    /// What a request of this cost is refused by, at `now`.
    pub(crate) fn longest(&self, now: Time, cost: u64) -> Longest {
        let from = self.at.max(now);
        let wait = |limit: &Copied| limit.wait(from, cost).unwrap_or(Duration::MAX);
        let (limit, copied) =
            self.limits.iter().enumerate().max_by_key(|(_, limit)| wait(limit)).expect("a rule has limits");
        let quota = copied.meter.quota();
        let opens = self.opens(now, cost).map(|at| at.duration_since(now));
        Longest { limit, standing: Standing::queued(quota, cost, opens) }
    }
}

impl Copied {
    fn wait(&self, at: Time, cost: u64) -> Option<Duration> {
        match self.meter.ask(&self.words, at, cost) {
            Ok(_) => Some(Duration::ZERO),
            Err(Stop::Refused(standing)) => standing.retry_after(cost),
            Err(Stop::Sealed) => unreachable!("a copy is never sealed"),
        }
    }
}
