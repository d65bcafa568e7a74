//! A shared rule, in the three forms that a program needs: the limits in the store, the limits while the store is lost,
//! and the number of seats to take in advance.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::Quota;
use weir_seats::{
    InvalidKey, Key, Left, Take, Value,
    bucket::capacity,
    model::take,
    terms::{InvalidStoreTerms, StoreLimit, StoreTerms},
};

/// The smallest burst for which seats are taken in advance.
const LEAST_BURST: u64 = 64;

/// The smallest number of seats that is taken in advance.
const FEWEST: u64 = 4;

/// The part of a limit that a program can hold as seats in any case.
const PART: u64 = 32;

/// The time for which seats should last, in addition to two round trips.
const FLUSH: Duration = Duration::from_millis(100);

/// The longest time for which seats should last.
const LONGEST: Duration = Duration::from_millis(300);

/// The decision about requests while the store is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// Requests are admitted.
    Open,
    /// Requests are refused.
    Closed,
    /// Each program enforces an equal part of the limit, which begins without credit.
    LocalShare,
}

/// A rule that several programs share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedRule {
    pub(super) counters: String,
    pub(super) on_loss: OnLoss,
    pub(super) most_keys: usize,
    pub(super) sets: Vec<LimitSet>,
    /// The keys with limits of their own, each with the index of its set.
    pub(super) overrides: HashMap<u128, usize>,
    /// The length of bans. None if the rule bans no keys.
    pub(super) ban: Option<Duration>,
    /// True if programs give back units of refused keys.
    pub(super) has_credits: bool,
    /// True if programs give back seats of refused keys.
    pub(super) has_returns: bool,
}

/// The limits of some keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitSet {
    pub(super) terms: Arc<StoreTerms>,
    /// This program's part of the limits, for the time in which the store is lost. None if the parts are not valid
    /// limits. Then requests are refused during that time.
    pub(super) share_terms: Option<Arc<StoreTerms>>,
    /// The remaining units of a key at full credit.
    pub(super) full: Option<Left>,
    /// `None` if programs take no seats of these limits in advance.
    in_advance: Option<InAdvance>,
}

/// Bounds the seats that a program takes in advance. Unused seats are missing until the limit refills, which can take a
/// day. So a program holds no more seats than all limits refill while the seats last, or a small part of each limit.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InAdvance {
    /// For each limit, the time in which it refills one unit, in nanoseconds, and the units that a program can hold even
    /// if the limit refills more slowly.
    limits: Box<[(u64, u64)]>,
    /// The shortest time in which a limit refills completely.
    refill: Duration,
}

/// The reason why a rule cannot be shared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRule {
    /// The name of the rule's counters is invalid.
    #[error(transparent)]
    Counters(#[from] InvalidKey),
    /// The limits of the rule are invalid.
    #[error(transparent)]
    Terms(#[from] InvalidStoreTerms),
}

impl SharedRule {
    /// Creates a rule. `counters` names the rule's counters in the store: programs with the same name share one count.
    /// The first of the `sets` has the limits of most keys, and the others have those of
    /// [overrides](Self::with_overrides). Each limit has a number that stays the same when the limit changes. `sharers` is the number of programs that divide the
    /// limit while the store is lost.
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
        let set = |limits: &Vec<(u32, Quota)>| LimitSet::new(stamp, limits, sharers.max(1));
        let sets = sets.iter().map(set).collect::<Result<Vec<_>, _>>()?;
        if sets.is_empty() {
            return Err(InvalidStoreTerms::Count.into());
        }
        Ok(Self {
            counters: counters.to_owned(),
            on_loss,
            most_keys: most_keys.max(1),
            sets,
            overrides: HashMap::new(),
            ban: None,
            has_credits: false,
            has_returns: false,
        })
    }

    /// The rule, of which programs give units back with [`credit`](super::SharedLimiter::credit). The store is asked at
    /// least once per second for a refused key, because another program can have given its units back.
    #[must_use]
    pub fn with_credits(self) -> Self {
        Self { has_credits: true, ..self }
    }

    /// The rule, of which programs give seats back with [`give_back`](super::UsedSeats::give_back). A store that takes
    /// seats back is asked at least once per second for a refused key.
    #[must_use]
    pub fn with_returns(self) -> Self {
        Self { has_returns: true, ..self }
    }

    /// The rule with other limits for some keys. Each of these keys has the index of its limits in the sets.
    ///
    /// The limiter finds the limits of a key, and not its caller, who can have the rule from before a change. The
    /// limits and their stamp must be of the same generation.
    #[must_use]
    pub fn with_overrides(self, overrides: impl IntoIterator<Item = (u128, usize)>) -> Self {
        Self { overrides: overrides.into_iter().collect(), ..self }
    }

    /// The limits of a key.
    pub(super) fn set(&self, hash: u128) -> &LimitSet {
        let index = self.overrides.get(&hash).copied().unwrap_or(0);
        self.sets.get(index).unwrap_or(&self.sets[0])
    }
}

impl LimitSet {
    fn new(stamp: u64, limits: &[(u32, Quota)], sharers: u32) -> Result<Self, InvalidStoreTerms> {
        let terms = StoreTerms::new(stamp, limits)?;
        let share_terms = terms.share(sharers).map(Arc::new);
        let in_advance = InAdvance::of(terms.raw());
        let full = left_of(&Value::new(terms.stamp(), terms.raw(), 0), &terms, 0);
        Ok(Self { terms: Arc::new(terms), share_terms, full, in_advance })
    }

    /// Returns true if a limit never admits this cost.
    pub(super) fn never_admits(&self, cost: u32) -> bool {
        self.terms.raw().iter().any(|limit| u64::from(cost) > limit.most())
    }

    /// Returns true if the store gives slots to waiting requests. Otherwise a waiting request asks again.
    pub(super) fn has_slots(&self) -> bool {
        self.terms.raw().iter().all(StoreLimit::is_bucket)
    }

    /// The number of seats to hold. `requested` is the number of units that are requested within [`reach`].
    pub(super) fn wanted(&self, requested: f64, round: Duration) -> u32 {
        let Some(InAdvance { limits, refill }) = &self.in_advance else { return 0 };
        let reach = reach(round);
        // The time for which seats last must be a small part of the time in which the limits refill.
        if *refill < 4 * (reach + round) {
            return 0;
        }
        let most = limits.iter().map(|(unit, part)| (nanos(reach) / unit).max(*part)).min().unwrap_or(0);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive number; `as` saturates"
        )]
        let wanted = (requested as u64).min(most);
        if wanted < FEWEST { 0 } else { u32::try_from(wanted).unwrap_or(u32::MAX) }
    }
}

impl InAdvance {
    /// `None` if a limit gives no seats in advance.
    fn of(limits: &[StoreLimit]) -> Option<Self> {
        if !limits.iter().all(|limit| limit.gives_in_advance() && limit.at_once() >= LEAST_BURST) {
            return None;
        }
        let unit = |limit: &StoreLimit| nanos(Duration::from_micros(limit.period)).div_ceil(limit.requests).max(1);
        let whole = |limit: &StoreLimit| if limit.is_bucket() { capacity(limit).us } else { limit.period };
        Some(Self {
            limits: limits.iter().map(|limit| (unit(limit), limit.at_once() / PART)).collect(),
            refill: Duration::from_micros(limits.iter().map(whole).min()?),
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The remaining units of the tightest limit of a value.
pub(super) fn left_of(value: &Value, terms: &StoreTerms, at: u64) -> Option<Left> {
    let encoded = Take { requests: 0, ..Take::new(terms) }.encode()?;
    take(Some(value), &encoded, at).answer.reply(&encoded)?.level.left(terms, at)
}

/// The time for which seats should last. It is also the guard and the lookahead.
pub(super) fn reach(round: Duration) -> Duration {
    (2 * round + FLUSH).min(LONGEST)
}
