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
