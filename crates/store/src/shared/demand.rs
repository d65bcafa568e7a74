//! Measures the demand for one key: how many units per second this program's requests need.

use std::time::Duration;

/// The shortest time over which a rate is measured.
const SPAN: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct DemandRate {
    since: Duration,
    units: u32,
    per_second: f64,
}

impl DemandRate {
    /// Counts a request with this cost.
    pub(super) fn count(&mut self, now: Duration, cost: u32) {
        let span = now.saturating_sub(self.since);
        if span >= SPAN {
            let rate = f64::from(self.units) / span.as_secs_f64();
            // After a pause, the rate before the pause is ignored.
            self.per_second = if span >= 10 * SPAN { rate } else { (self.per_second + rate) / 2.0 };
            (self.since, self.units) = (now, 0);
        }
        self.units = self.units.saturating_add(cost);
    }

    /// The expected number of units within this time.
    pub(super) fn within(&self, time: Duration) -> f64 {
        self.per_second * time.as_secs_f64()
    }
}
