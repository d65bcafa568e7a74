//! Charges in as few steps as possible: the path of nearly all requests. What it cannot decide needs the slow path.

use super::Supply;
use crate::Time;

impl Supply {
    /// Returns the floor if the window with this number, which an earlier division computed, is still the current
    /// window.
    #[inline(always)]
    pub(crate) fn flowed_in(&self, window: u64, elapsed: u64) -> Option<u64> {
        // A window supplies as many units as its period has nanoseconds.
        let start = window.wrapping_mul(self.nanos);
        (elapsed.wrapping_sub(start) < self.nanos).then_some(start)
    }

    /// Returns true if one unit flows in per nanosecond, so that the floor equals the elapsed time.
    pub(crate) fn is_time(&self) -> bool {
        self.is_time
    }

    /// The number of nanoseconds after the base in which [`charge_at_once`](Self::charge_at_once) is correct: 73 years,
    /// or zero.
    #[inline(always)]
    pub(crate) fn direct(&self) -> u64 {
        self.direct
    }

    /// Returns the nanoseconds since the base, modulo 2^64. Times before the base give values beyond
    /// [`direct`](Self::direct).
    #[inline(always)]
    pub(crate) fn elapsed(&self, now: Time) -> u64 {
        now.as_nanos().wrapping_sub(self.base.as_nanos())
    }

    /// [`charge`](Self::charge) in as few steps as possible, for a floor of less than [`direct`](Self::direct). None if
    /// the charge is refused or needs the slow path. A sealed or unset level is too far ahead for any charge, so it
    /// needs no separate check.
    #[inline(always)]
    pub(crate) fn charge_at_once(&self, level: u64, floor: u64, cost: u64) -> Option<u64> {
        let (units, spare) = self.room_for(cost)?;
        let start = level.max(floor);
        if start - floor <= spare { Some(start + units) } else { None }
    }

    /// Like `charge_at_once`, for a window that was already charged. A level below the floor needs the slow path. This
    /// function does not compute the maximum of level and floor, so the level after the charge does not depend on the
    /// time. If the processor predicts an admission, it can write this level before it knows the time.
    #[inline(always)]
    pub(crate) fn charge_in_window(&self, level: u64, floor: u64, cost: u64) -> Option<u64> {
        let (units, spare) = self.room_for(cost)?;
        if level >= floor && level - floor <= spare { Some(level + units) } else { None }
    }

    /// Returns true if a charge that failed on the fast path is refused. Otherwise the charge needs the slow path: the
    /// level is sealed, unset, or from a clock that was set back, or the cost is unusual.
    #[inline(always)]
    pub(crate) fn refuses_at_once(&self, level: u64, floor: u64, cost: u64) -> bool {
        let ahead = level.saturating_sub(floor);
        self.room_for(cost).is_some_and(|(_, spare)| ahead > spare) && ahead <= self.day
    }

    /// Returns the units of a cost, and the largest distance of a level above the floor that still admits the cost.
    /// None if the cost is impossible, or 0, which needs the slow path.
    #[inline(always)]
    fn room_for(&self, cost: u64) -> Option<(u64, u64)> {
        if cost == 1 {
            return Some((self.unit, self.spare));
        }
        let units = cost.checked_mul(self.unit).filter(|units| *units > 0)?;
        Some((units, self.capacity.checked_sub(units)?))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::{
        super::{DIRECT, LEVELS},
        *,
    };
    use crate::{
        Quota, Strategy,
        word::{SEALED, UNSET},
    };

    /// Returns supplies of all kinds, including one request in 73 years, the largest burst, and rates that are not
    /// whole numbers.
    fn supplies() -> impl Iterator<Item = Supply> {
        let numbers = [(1, 1 << 61), (3, 1_000_000_000), (10, 7), (100, 1_000_000_000), (999_999_937, 1_000_000_007)];
        let strategies = [Strategy::TokenBucket, Strategy::Gcra, Strategy::LeakyBucket, Strategy::FixedWindow];
        let quotas = strategies.into_iter().flat_map(move |strategy| {
            let bursts =
                if strategy == Strategy::FixedWindow { vec![None] } else { vec![None, Some(5), Some(1 << 61)] };
            numbers.into_iter().flat_map(move |(requests, nanos)| {
                let quota = move |burst| Quota::new(strategy, requests, Duration::from_nanos(nanos), burst).ok();
                bursts.clone().into_iter().filter_map(quota)
            })
        });
        quotas.map(|quota| Supply::new(quota, Time::from_nanos(1_700_000_000_000_000_000)))
    }

    #[test]
    fn whole_requests_are_right_or_one_short() {
        let (mut exact, mut short) = (0, 0);
        for supply in supplies() {
            let unit = supply.unit;
            let ends = [0, 1, unit - 1, unit, unit + 1, supply.capacity / 2, supply.capacity - 1, supply.capacity];
            let multiples = [2, 3, 1000].map(|times| unit.saturating_mul(times));
            let around = multiples.into_iter().flat_map(|units| [units - 1, units, units.saturating_add(1)]);
            for units in ends.into_iter().chain(around).filter(|units| *units <= supply.capacity) {
                let (whole, fast) = (units / unit, supply.whole_or_less(units));
                if (units + 1).checked_mul(unit).is_some() {
                    assert_eq!(fast, whole, "{supply:?}, {units}");
                    exact += 1;
                } else {
                    assert!(fast == whole || fast + 1 == whole, "{supply:?}, {units}");
                    short += u32::from(fast < whole);
                }
            }
        }
        assert!(exact > 100 && short > 0, "{exact} {short}");
    }

    #[test]
    fn the_fast_path_agrees_with_the_slow_path() {
        let (mut charged, mut refused, mut neither) = (0, 0, 0);
        for supply in supplies() {
            let moments = [0, 1, 999, 1_000_000_007, 1 << 40, (1 << 59) + 3, DIRECT - 1];
            for elapsed in moments.into_iter().filter(|elapsed| *elapsed < supply.direct()) {
                let now = Time::from_nanos(supply.base.as_nanos() + elapsed);
                let (floor, ceiling) = (supply.floor(now), supply.ceiling(now));
                assert_eq!((supply.elapsed(now), supply.flowed(elapsed)), (elapsed, floor));
                if supply.is_window() {
                    let window = floor / supply.each();
                    assert_eq!(supply.flowed_in(window, elapsed), Some(floor));
                    assert_eq!(supply.flowed_in(window + 1, elapsed), None);
                    assert_eq!(supply.flowed_in(window.wrapping_sub(1), elapsed), None);
                    if let Some(before) = supply.base.as_nanos().checked_sub(1).map(Time::from_nanos) {
                        assert_eq!(supply.flowed_in(window, supply.elapsed(before)), None);
                    }
                }
                let far = floor.saturating_add(supply.day);
                let levels = [0, 1, floor / 2, floor, ceiling, far, LEVELS - 1].into_iter();
                let levels =
                    levels.flat_map(|level| [level.saturating_sub(1), level, level.saturating_sub(supply.unit)]);
                for level in levels.chain([floor + 1, ceiling + 1, far + 1]).filter(|level| *level < LEVELS) {
                    for cost in [1, 2, 5, 1 << 61, u64::MAX] {
                        let after = supply.charge(level, floor, cost);
                        let refuses = supply.refuses_at_once(level, floor, cost);
                        match supply.charge_at_once(level, floor, cost) {
                            Some(level) => assert!(after == Some(level) && !refuses),
                            None if refuses => assert!(after.is_none() && !supply.is_set_back(level, floor)),
                            None => {
                                neither += 1;
                                // The fast path decides all simple cases.
                                assert!(cost > 1 || after.is_none() && supply.is_set_back(level, floor));
                                continue;
                            }
                        }
                        let in_window = supply.charge_in_window(level, floor, cost);
                        assert_eq!(in_window, after.filter(|_| level >= floor));
                        *if after.is_some() { &mut charged } else { &mut refused } += 1;
                    }
                    for sealed in [level | SEALED, UNSET] {
                        assert_eq!(supply.charge_at_once(sealed, floor, 1), None, "{supply:?}, {level}");
                        assert_eq!(supply.charge_in_window(sealed, floor, 1), None, "{supply:?}, {level}");
                        assert!(!supply.refuses_at_once(sealed, floor, 1), "{supply:?}, {level}");
                    }
                }
            }
        }
        assert!(charged > 100 && refused > 100 && neither > 100, "{charged} {refused} {neither}");
    }
}
