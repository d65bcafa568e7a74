//! Measures the rate of one key: how many units per second this program's requests need.

use std::time::Duration;

use super::request::micros;

/// The shortest time over which a rate is measured.
const SPAN: Duration = Duration::from_millis(100);

/// It is small, because each key has one.
#[derive(Debug, Default)]
pub(super) struct Rate {
    /// The beginning of the measured time, in microseconds of the program's clock.
    since: u64,
    units: u32,
    per_second: f32,
}

impl Rate {
    /// Counts a request with this cost.
    pub(super) fn count(&mut self, now: Duration, cost: u32) {
        let span = now.saturating_sub(Duration::from_micros(self.since));
        if span >= SPAN {
            #[expect(clippy::cast_precision_loss, reason = "the rate is an estimate")]
            let rate = self.units as f32 / span.as_secs_f32();
            // After a pause, the rate before the pause is ignored.
            self.per_second = if span >= 10 * SPAN { rate } else { (self.per_second + rate) / 2.0 };
            (self.since, self.units) = (micros(now), 0);
        }
        self.units = self.units.saturating_add(cost);
    }

    /// The expected number of units within this time.
    pub(super) fn within(&self, time: Duration) -> f64 {
        f64::from(self.per_second) * time.as_secs_f64()
    }
}
