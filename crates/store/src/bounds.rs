//! What a pod knows about the store's time. Monotonic clocks are arguments, as durations since a moment that the caller
//! chooses; nobody's wall clock is involved.

use std::time::Duration;

/// How much a pod's monotonic clock and the store's clock may drift apart: 200 parts in a million.
const DRIFT: u64 = 5_000;

/// The store's time is somewhere between these, in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTime {
    /// The lower bound, for ceilings.
    pub earliest: u64,
    /// The upper bound, for floors.
    pub latest: u64,
}

/// What the answers of a store say about its clock: it read `time` between the moments at which the question was sent
/// and the answer was received.
///
/// ```
/// use std::time::Duration;
/// use weir_store::StoreClock;
///
/// let mut clock = StoreClock::default();
/// assert_eq!(clock.at(Duration::ZERO), None);
/// clock.learn(1_000_000, Duration::from_millis(10), Duration::from_millis(12));
/// let time = clock.at(Duration::from_millis(20)).expect("it has learned");
/// assert_eq!((time.earliest, time.latest), (1_007_997, 1_010_003)); // 8 and 10 ms later, widened
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreClock {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    time: u64,
    sent: Duration,
    received: Duration,
}

impl Known {
    fn at(&self, now: Duration) -> StoreTime {
        let since = |moment: Duration| micros(now.saturating_sub(moment));
        let (least, most) = (since(self.received), since(self.sent));
        // The clock of the pod has whole microseconds, too: one more to each side.
        StoreTime {
            earliest: self.time + least.saturating_sub(least.div_ceil(DRIFT)).saturating_sub(1),
            latest: self.time + most + most.div_ceil(DRIFT) + 1,
        }
    }
}

impl StoreClock {
    /// An answer with the store's time. The bounds stay as narrow as the answers allow. An answer that contradicts them
    /// means that the store's clock was set, or that it is another store now: it alone counts from then on.
    pub fn learn(&mut self, time: u64, sent: Duration, received: Duration) {
        let new = Known { time, sent, received };
        let keeps = self.known.is_some_and(|old| {
            let (was, is) = (old.at(received), new.at(received));
            let agrees = was.earliest <= is.latest && is.earliest <= was.latest;
            agrees && was.latest - was.earliest <= is.latest - is.earliest
        });
        if !keeps {
            self.known = Some(new);
        }
    }

    /// The bounds at a moment that is not before the last answer. None before the first answer.
    pub fn at(&self, now: Duration) -> Option<StoreTime> {
        self.known.map(|known| known.at(now))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX / 4).min(u64::MAX / 4)
}
