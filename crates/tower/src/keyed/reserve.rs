//! A rule asked for the next place of each request's key.

use std::cell::Cell;
use std::time::Duration;

use weir_core::{RuleCharge, RuleLimiter, RuleRefused, Tightest};

use super::{KeyExtractor, KeyedAdmit};
use crate::{MonotonicClock, Place, Reserve, Turn};

impl<Request, K: KeyExtractor<Request>> Reserve<Request> for KeyedAdmit<K> {
    type Place = KeyedPlace;
    type Refusal = RuleRefused;

    fn reserve(&self, request: &Request, max_wait: Duration) -> Result<Turn<KeyedPlace>, RuleRefused> {
        let turn = self.with_key(request, |key| {
            let now = self.clock.now();
            // The decision is made at `now`, whoever reads the clock for it.
            let first = Cell::new(Some(now));
            let clock = || first.take().unwrap_or_else(|| self.clock.now());
            let reserved = self.rule.reserve(clock, key, 1, now.saturating_add(max_wait))?;
            if reserved.at <= now {
                return Ok(Turn::Now(Some(reserved.tightest)));
            }
            let place = KeyedPlace {
                rule: self.rule.clone(),
                clock: self.clock,
                key: key.into(),
                charge: Some(reserved.charge),
                tightest: reserved.tightest,
            };
            Ok(Turn::At(self.clock.instant(reserved.at), place))
        });
        turn.unwrap_or(Ok(Turn::Now(None)))
    }
}

/// A place in the line of a key; see [`Turn`] for an example.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms};
/// use weir_tower::{KeyedAdmit, MonotonicClock, NoKey, Reserve, Turn, WithoutKey};
///
/// let clock = MonotonicClock::start();
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
/// let rule = RuleLimiter::keyed(clock.now(), Terms::new([("each", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
/// let by_name = |name: &&str, key: &mut Vec<u8>| -> Result<(), NoKey> {
///     key.extend_from_slice(name.as_bytes());
///     Ok(())
/// };
/// let line = KeyedAdmit::new(rule, clock, by_name, WithoutKey::Share);
/// assert!(matches!(line.reserve(&"ann", Duration::from_secs(90))?, Turn::Now(_)));
/// let Turn::At(_, place) = line.reserve(&"ann", Duration::from_secs(90))? else { panic!("not now") };
/// assert!(line.reserve(&"ann", Duration::from_secs(90)).is_err()); // two minutes
/// drop(place); // she went away
/// assert!(line.reserve(&"ann", Duration::from_secs(90)).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct KeyedPlace {
    rule: RuleLimiter,
    clock: MonotonicClock,
    key: Box<[u8]>,
    /// None once it is used.
    charge: Option<RuleCharge>,
    tightest: Tightest,
}

impl Place for KeyedPlace {
    type Pass = Option<Tightest>;

    fn take(mut self) -> Option<Tightest> {
        self.charge = None;
        Some(self.tightest)
    }
}

impl Drop for KeyedPlace {
    fn drop(&mut self) {
        if let Some(charge) = self.charge.take() {
            self.rule.refund(&self.key, charge, || self.clock.now());
        }
    }
}
