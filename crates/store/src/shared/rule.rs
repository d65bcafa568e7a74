//! What a shared rule allows, in the three forms that a program needs: for the store, for the time without a store, and
//! what seats can be taken in advance.

use std::{sync::Arc, time::Duration};

use weir_core::{Quota, Strategy};

use crate::{
    bucket::capacity,
    key::{InvalidKey, Key},
    terms::{InvalidTerms, Limit, Terms},
};

/// The least burst from which seats are worth it.
const LEAST_BURST: u64 = 64;

/// The fewest seats that are worth it.
const FEWEST: f64 = 4.0;

/// How long answers are collected beside the round trips: with this, seats last for 100 to 300 ms.
const FLUSH: Duration = Duration::from_millis(100);

/// The longest time that seats are for.
const LONGEST: Duration = Duration::from_millis(300);

/// What happens while the store is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Requests are admitted.
    Open,
    /// Requests are refused.
    Closed,
    /// Each program has an equal part of the limit. It begins without credit.
    LocalShare,
}

/// A rule that several programs share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRule {
    pub(super) counters: String,
    pub(super) on_loss: OnLoss,
    pub(super) most_keys: usize,
    pub(super) sets: Vec<Set>,
}

/// The limits of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) terms: Arc<Terms>,
    /// None if a part of these limits is too small to be counted. Then requests are refused while the store is lost.
    pub(super) local: Option<Arc<Terms>>,
    lends: bool,
}

/// Why a rule cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// The name of its counters.
    #[error(transparent)]
    Counters(#[from] InvalidKey),
    /// Its limits.
    #[error(transparent)]
    Terms(#[from] InvalidTerms),
}

impl SharedRule {
    /// A rule. `counters` names what it counts in the store: programs with the same name share one count. `sets` are the
    /// limits of most keys, and then those of other keys; each limit has a number that stays when the limit changes.
    /// `sharers` is the number of programs, for the time without a store.
    ///
    /// # Errors
    ///
    /// [`InvalidRule`].
    pub fn new(
        counters: &str,
        stamp: u64,
        sets: &[Vec<(u32, Quota)>],
        on_loss: OnLoss,
        sharers: u32,
        most_keys: usize,
    ) -> Result<Self, InvalidRule> {
        Key::new(counters, 0)?;
        let set = |limits: &Vec<(u32, Quota)>| Set::new(stamp, limits, sharers.max(1));
        let sets = sets.iter().map(set).collect::<Result<Vec<_>, _>>()?;
        if sets.is_empty() {
            return Err(InvalidTerms::Count.into());
        }
        Ok(Self { counters: counters.to_owned(), on_loss, most_keys: most_keys.max(1), sets })
    }

    pub(super) fn set(&self, index: usize) -> &Set {
        self.sets.get(index).unwrap_or(&self.sets[0])
    }
}

impl Set {
    fn new(stamp: u64, limits: &[(u32, Quota)], sharers: u32) -> Result<Self, InvalidTerms> {
        let terms = Terms::new(stamp, limits)?;
        let parts = limits.iter().map(|&(number, quota)| Some((number, part(quota, sharers)?)));
        let parts = parts.collect::<Option<Vec<_>>>();
        let local = parts.and_then(|parts| Terms::new(stamp, &parts).ok()).map(Arc::new);
        let lends = terms.raw().iter().all(|limit| limit.lends() && limit.at_once() >= LEAST_BURST);
        Ok(Self { terms: Arc::new(terms), local, lends })
    }

    /// Whether a limit never admits this cost.
    pub(super) fn never_admits(&self, cost: u32) -> bool {
        self.terms.raw().iter().any(|limit| u64::from(cost) > limit.most())
    }

    /// Whether a request that waits has a place in the store. Otherwise it asks again.
    pub(super) fn has_slots(&self) -> bool {
        self.terms.raw().iter().all(Limit::is_bucket)
    }

    /// How many seats to hold if this much is asked for in the time that seats are for.
    pub(super) fn wanted(&self, demand: f64, round: Duration) -> u32 {
        if !self.lends || demand < FEWEST {
            return 0;
        }
        // A bucket is emptied and filled again within `burst / rate`. Seats must be a small part of that.
        let least = 4 * (reach(round) + round);
        let is_slow = self.terms.raw().iter().all(|limit| {
            let whole = if limit.is_bucket() { capacity(limit).us } else { limit.period };
            Duration::from_micros(whole) >= least
        });
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number; `as` saturates"
        )]
        let demand = demand as u32;
        if is_slow { demand } else { 0 }
    }
}

/// How long seats are for: guard, lookahead and supply.
pub(super) fn reach(round: Duration) -> Duration {
    (2 * round + FLUSH).min(LONGEST)
}

/// One of equal parts of a quota. None if there is no such quota.
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
