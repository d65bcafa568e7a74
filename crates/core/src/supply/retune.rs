//! What a limit keeps when its quota changes: the tokens of a bucket, and the used requests of a window.

use super::{LEVELS, MAX_AHEAD, Supply, narrow};
use crate::Time;

/// The remaining tokens of a bucket: `parts` / `unit` requests. Negative if the bucket is overdrawn or has
/// reservations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    pub(crate) parts: i128,
    pub(crate) unit: u64,
}

impl Tokens {
    /// Converts the tokens to other units, rounded down.
    pub(crate) fn in_units(self, unit: u64) -> i128 {
        if unit == self.unit {
            return self.parts;
        }
        let (whole, rest) =
            (self.parts.div_euclid(i128::from(self.unit)), self.parts.rem_euclid(i128::from(self.unit)));
        whole * i128::from(unit) + rest * i128::from(unit) / i128::from(self.unit)
    }
}

impl Supply {
    /// Returns the remaining tokens of a bucket with this level at `since`. Negative if there is a debt.
    pub(crate) fn tokens(&self, level: u64, since: Time) -> Tokens {
        let (floor, ceiling) = (self.floor(since), self.ceiling(since));
        let level = if self.is_set_back(level, floor) { ceiling } else { level.max(floor) };
        let debt = i128::from(self.quota.debt()) * i128::from(self.unit);
        Tokens { parts: i128::from(ceiling) - debt - i128::from(level), unit: self.unit }
    }

    /// Returns the level of a bucket that starts at `since` with these tokens, or with a full burst if this is less. A
    /// debt stays the same number of requests, and is paid back at the new rate.
    pub(crate) fn with_tokens(&self, tokens: Tokens, since: Time) -> u64 {
        let debt = i128::from(self.quota.debt()) * i128::from(self.unit);
        let left = (tokens.in_units(self.unit) + debt).min(i128::from(self.capacity));
        let level = i128::from(self.ceiling(since)) - left;
        u64::try_from(level).unwrap_or(u64::MAX).min(self.ceiling(since.saturating_add(MAX_AHEAD)))
    }

    /// Returns true if both supplies have the same windows.
    pub(crate) fn has_windows_of(&self, other: &Self) -> bool {
        self.is_window() && other.is_window() && self.nanos == other.nanos
    }

    /// Returns the level of a window that admitted `used` requests, with `ahead` more requests reserved in later
    /// windows.
    pub(crate) fn with_used(&self, used: u64, ahead: u64, since: Time) -> u64 {
        let (window, _) = self.window_of(self.floor(since));
        match ahead.checked_sub(1) {
            None => self.in_window(window, used),
            Some(last) => {
                let latest = self.ceiling(since.saturating_add(MAX_AHEAD));
                self.in_window(window.saturating_add(1 + last / self.capacity), last % self.capacity + 1).min(latest)
            }
        }
    }

    /// Returns the remaining requests of the window at `since`.
    pub(crate) fn left_in_window(&self, level: u64, since: Time) -> u64 {
        self.ceiling(since).saturating_sub(level.max(self.floor(since)))
    }

    /// Returns the level of this many requests in a window. A larger number makes the window full.
    fn in_window(&self, window: u64, count: u64) -> u64 {
        (window.saturating_mul(self.each)).saturating_add(count.min((self.each - 1).max(self.capacity))).min(LEVELS)
    }

    /// Returns the level of a fixed window after a window with the same period: the same count in the same window.
    pub(crate) fn same_window(&self, old: &Self, level: u64, since: Time) -> u64 {
        if old.is_set_back(level, old.floor(since)) {
            return self.ceiling(since);
        }
        let at = u128::from(old.base.as_nanos()) + u128::from(level);
        narrow(at.saturating_sub(u128::from(self.base.as_nanos()))).min(LEVELS)
    }

    /// Returns the start of the window at `since`.
    pub(crate) fn start_of_window(&self, since: Time) -> u64 {
        self.base.as_nanos().saturating_add(self.floor(since))
    }
}
