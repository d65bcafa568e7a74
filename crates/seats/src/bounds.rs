//! Estimates the store's time as two bounds. The caller passes times of the pod's monotonic clock, as durations since
//! any fixed moment. The pod's wall clock is not used.

use std::time::Duration;

/// The assumed drift between a pod's monotonic clock and the store's clock: one part in 5,000, which is 200 ppm.
const DRIFT: u64 = 5_000;

/// Two bounds of the store's time, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime {
    /// The lower bound, which decides whether a ceiling has reached a seat.
    pub earliest: u64,
    /// The upper bound, which decides whether a floor has passed a seat.
    pub latest: u64,
}

/// Computes bounds of the store's time from its answers. An answer contains the time of the store's clock. The store
/// read this clock between the moment when the question was sent and the moment when the answer was received.
///
/// ```
/// use std::time::Duration;
/// use weir_seats::StoreClock;
///
/// let mut clock = StoreClock::default();
/// assert_eq!(clock.at(Duration::ZERO), None);
/// clock.learn(1_000_000, Duration::from_millis(10), Duration::from_millis(12));
/// let time = clock.at(Duration::from_millis(20)).expect("bounds");
/// assert_eq!((time.earliest, time.latest), (1_007_997, 1_010_003)); // 8 and 10 ms later, widened
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreClock {
    known: Option<Reading>,
    /// The next answer counts alone.
    is_replaced: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    time: u64,
    sent: Duration,
    received: Duration,
}

impl Reading {
    fn at(&self, now: Duration) -> StoreTime {
        let since = |moment: Duration| micros(now.saturating_sub(moment));
        let (least, most) = (since(self.received), since(self.sent));
        // The pod's clock has whole microseconds, too, so each bound gets one microsecond more.
        StoreTime {
            earliest: self.time + least.saturating_sub(least.div_ceil(DRIFT)).saturating_sub(1),
            latest: self.time + most + most.div_ceil(DRIFT) + 1,
        }
    }
}

impl StoreClock {
    /// Records an answer with the store's time. The narrowest bounds stay in use. If an answer contradicts them, the
    /// store's clock was set, or another server answers. Then only the new answer counts.
    pub fn learn(&mut self, time: u64, sent: Duration, received: Duration) {
        let new = Reading { time, sent, received };
        let keeps = !std::mem::take(&mut self.is_replaced)
            && self.known.is_some_and(|old| {
                let (was, is) = (old.at(received), new.at(received));
                let agrees = was.earliest <= is.latest && is.earliest <= was.latest;
                agrees && was.latest - was.earliest <= is.latest - is.earliest
            });
        if !keeps {
            self.known = Some(new);
        }
    }

    /// Another server answers from now on, and its clock can differ by less than an answer shows. The earlier bounds stay
    /// in use until its first answer.
    pub fn replace(&mut self) {
        self.is_replaced = self.known.is_some();
    }

    /// The bounds at `now`, which must not be before the last answer. None before the first answer.
    pub fn at(&self, now: Duration) -> Option<StoreTime> {
        self.known.map(|known| known.at(now))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use weir_fuzz::Random;

    use super::*;

    /// The store's clock and the pod's clock drift apart by up to 200 ppm, and the delays of answers are random. The
    /// bounds always contain the store's time, and they are never wider than the last answer explains.
    #[test]
    fn the_bounds_hold() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let drift = i64::try_from(random.below(401)).expect("small") - 200;
            let store_at = |pod: u64| {
                let elapsed = i64::try_from(pod).expect("small");
                1_790_000_000_000_000 + u64::try_from(elapsed + elapsed * drift / 1_000_000).expect("forward")
            };
            let (mut clock, mut now) = (StoreClock::default(), 0);
            for _ in 0..50 {
                let sent = now + random.below(2_000_000) as u64;
                let [there, back] = [0, 1].map(|_| random.below(100_000) as u64);
                now = sent + there + back;
                clock.learn(store_at(sent + there), Duration::from_micros(sent), Duration::from_micros(now));
                let later = now + random.below(3_000_000) as u64;
                let bounds = clock.at(Duration::from_micros(later)).expect("bounds");
                let truth = store_at(later);
                assert!(bounds.earliest <= truth && truth <= bounds.latest, "{truth} is not in {bounds:?}");
                let widened = 2 * ((later - sent) / DRIFT + 3);
                assert!(bounds.latest - bounds.earliest <= there + back + widened, "{bounds:?}");
            }
        }
    }

    #[test]
    fn a_quick_answer_counts_longer_than_a_slow_one() {
        let at = Duration::from_millis;
        let width = |clock: &StoreClock| clock.at(at(2_000)).map(|time| time.latest - time.earliest).expect("known");
        let mut clock = StoreClock::default();
        clock.learn(1_000_000, at(1_000), at(1_001));
        let narrow = width(&clock);
        clock.learn(1_500_000, at(1_400), at(1_600));
        assert_eq!(width(&clock), narrow);
    }

    /// A slow answer of another server agrees with the bounds of the earlier one, although the clocks differ by 50 ms.
    #[test]
    fn the_first_answer_of_another_server_counts_alone() {
        let at = Duration::from_millis;
        let mut clock = StoreClock::default();
        clock.learn(1_000_000, at(1_000), at(1_001));
        clock.replace();
        let width = |clock: &StoreClock| clock.at(at(1_500)).map(|time| time.latest - time.earliest).expect("known");
        assert!(width(&clock) < 2_000, "the earlier bounds");
        clock.learn(1_350_000, at(1_200), at(1_400));
        let time = clock.at(at(1_500)).expect("known");
        assert!(time.earliest <= 1_450_000 && 1_450_000 <= time.latest, "{time:?}");
        // Then the narrowest bounds stay in use again.
        clock.learn(1_450_500, at(1_500), at(1_501));
        assert!(width(&clock) < 2_000);
    }

    /// Another server has become the leader, or the server's clock was set.
    #[test]
    fn an_answer_that_contradicts_the_others_counts_alone() {
        let at = Duration::from_millis;
        for jump in [500_000_000, 3_000_000_000] {
            let mut clock = StoreClock::default();
            clock.learn(1_000_000_000, at(1_000), at(1_001));
            clock.learn(jump, at(1_400), at(1_600));
            let time = clock.at(at(1_600)).expect("known");
            assert!(time.earliest <= jump && jump <= time.latest, "{time:?}");
        }
    }
}
