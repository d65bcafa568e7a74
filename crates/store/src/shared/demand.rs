//! Measures how many units a second this program's requests need for one key.

use std::time::Duration;

/// How long it counts before it computes again.
const SPAN: Duration = Duration::from_millis(100);

#[derive(Debug, Default)]
pub(super) struct Demand {
    since: Duration,
    units: u32,
    per_second: f64,
}

impl Demand {
    /// A request with this cost came.
    pub(super) fn count(&mut self, now: Duration, cost: u32) {
        let span = now.saturating_sub(self.since);
        if span >= SPAN {
            let rate = f64::from(self.units) / span.as_secs_f64();
            // After a pause the time before it says nothing.
            self.per_second = if span >= 10 * SPAN { rate } else { (self.per_second + rate) / 2.0 };
            (self.since, self.units) = (now, 0);
        }
        self.units = self.units.saturating_add(cost);
    }

    /// How many units come in this time.
    pub(super) fn within(&self, time: Duration) -> f64 {
        self.per_second * time.as_secs_f64()
    }
}
