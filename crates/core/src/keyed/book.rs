//! The terms of a rule in the form that decisions need: a supply for each limit, for each override.

use crate::rule::{Charged, KeyCharge, RuleAdmitted, RuleCharge, RuleRefused, Tightest};
use crate::supply::Supply;
use crate::{Standing, Terms, Time};

/// A level for each limit of a rule, in order.
pub(super) type Levels = Box<[u64]>;

/// Terms, and the supplies that they make, all from the same base.
#[derive(Debug)]
pub(super) struct Book {
    terms: Terms,
    generation: u64,
    /// For most keys, then for each override.
    supplies: Vec<Vec<Supply>>,
}

impl Book {
    pub(super) fn new(terms: Terms, base: Time, generation: u64) -> Self {
        let supplies = terms.sets().map(|set| set.iter().map(|&quota| Supply::new(quota, base)).collect()).collect();
        Self { terms, generation, supplies }
    }

    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Levels with all of the burst free at `now`, and no sooner.
    pub(super) fn idle_at(&self, over: Option<usize>, now: Time) -> Levels {
        self.set(over).iter().map(|supply| supply.floor(now)).collect()
    }

    fn set(&self, override_index: Option<usize>) -> &[Supply] {
        &self.supplies[override_index.map_or(0, |index| index + 1)]
    }

    pub(super) fn ask(
        &self,
        over: Option<usize>,
        levels: &mut [u64],
        now: Time,
        cost: u64,
    ) -> Result<Tightest, RuleRefused> {
        for (limit, (supply, level)) in self.set(over).iter().zip(levels.iter_mut()).enumerate() {
            if supply.charge(*level, now, cost).is_none() {
                if let Some(restart) = supply.after_set_back(*level, now) {
                    *level = restart;
                }
                let standing = Standing::of_line(supply, *level, now);
                return Err(RuleRefused { limit, standing, cost, override_index: over });
            }
        }
        Ok(self.tightest(over, levels, now))
    }

    pub(super) fn charge(
        &self,
        over: Option<usize>,
        levels: &mut [u64],
        now: Time,
        cost: u64,
        overflow: bool,
    ) -> Result<RuleAdmitted, RuleRefused> {
        self.ask(over, levels, now, cost)?;
        for (supply, level) in self.set(over).iter().zip(levels.iter_mut()) {
            *level = supply.charge(*level, now, cost).expect("asked above, and nobody came in between");
        }
        let charge = KeyCharge { at: now, cost, generation: self.generation, overflow };
        Ok(RuleAdmitted { charge: RuleCharge { of: Charged::Key(charge) }, tightest: self.tightest(over, levels, now) })
    }

    pub(super) fn refund(&self, over: Option<usize>, levels: &mut [u64], charge: &KeyCharge, now: Time) {
        if charge.generation == self.generation {
            for (supply, level) in self.set(over).iter().zip(levels.iter_mut()) {
                *level = supply.refund(*level, charge.at, now, charge.cost, u64::MAX);
            }
        }
    }

    pub(super) fn is_idle(&self, over: Option<usize>, levels: &[u64], now: Time) -> bool {
        self.set(over).iter().zip(levels).all(|(supply, &level)| supply.is_idle(level, now))
    }

    /// The levels under these terms for what `levels` were under the `old` ones. `overrides` of the key: old, new.
    pub(super) fn carry_over(
        &self,
        old: &Self,
        overrides: (Option<usize>, Option<usize>),
        levels: &[u64],
        since: Time,
    ) -> Levels {
        let old_set = old.set(overrides.0);
        let places = self.terms.places_in(&old.terms);
        let kept = places.into_iter().zip(self.set(overrides.1)).map(|(place, supply)| match place {
            Some(place) => supply.carry_over(&old_set[place], levels[place], since),
            None => 0,
        });
        kept.collect()
    }

    fn tightest(&self, over: Option<usize>, levels: &[u64], now: Time) -> Tightest {
        Tightest::of(
            self.set(over).iter().zip(levels).map(|(supply, &level)| Standing::of_line(supply, level, now)),
            over,
        )
    }
}
