//! A circuit breaker for a store. After three missed answers in a row, of which the last is at least 200 ms after the
//! first, it allows only one probe at a time. The time and the jitter are arguments.

use std::time::Duration;

/// The number of missed answers in a row after which the store is lost.
const MISSES: u32 = 3;

/// The time since the first missed answer after which the store can be lost. A store can pause for some milliseconds,
/// in which many questions miss their deadlines.
const GRACE: Duration = Duration::from_millis(200);

/// The first pause before a probe. Each probe that fails doubles it.
const SHORTEST: Duration = Duration::from_millis(100);

/// The longest pause between probes.
const LONGEST: Duration = Duration::from_secs(5);

/// The time after which another probe is allowed although the last one has no reported outcome: its caller may have
/// been cancelled.
const PROBE: Duration = Duration::from_secs(1);

/// Counts missed answers of a store, and decides whether a caller is allowed to ask. Times are durations on one
/// monotonic clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breaker {
    state: BreakerState,
    /// The time of the first missed answer since the last answer.
    since: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
enum BreakerState {
    Closed { misses: u32 },
    Open { pause: Duration, until: Duration },
    Probing { pause: Duration, until: Duration },
}

impl Default for BreakerState {
    fn default() -> Self {
        Self::Closed { misses: 0 }
    }
}

impl Breaker {
    /// Returns true if the caller is allowed to ask now. Then the caller must report [`answered`](Self::answered) or
    /// [`missed`](Self::missed).
    pub(crate) fn allows(&mut self, now: Duration) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { pause, until } | BreakerState::Probing { pause, until } => {
                let is_due = now >= until;
                if is_due {
                    self.state = BreakerState::Probing { pause, until: now + PROBE };
                }
                is_due
            }
        }
    }

    /// Records that the store has answered.
    pub(crate) fn answered(&mut self) {
        *self = Self::default();
    }

    /// Records that the store has not answered in time. `jitter` is a random number, so that pods do not probe at the
    /// same moment.
    pub(crate) fn missed(&mut self, now: Duration, jitter: u32) {
        let since = *self.since.get_or_insert(now);
        let pause = match self.state {
            BreakerState::Closed { misses } if misses < MISSES - 1 || now < since + GRACE => {
                self.state = BreakerState::Closed { misses: misses.saturating_add(1) };
                return;
            }
            BreakerState::Closed { .. } => SHORTEST,
            // A question from before the loss got no answer, either. The breaker is already open, so nothing changes.
            BreakerState::Open { .. } => return,
            BreakerState::Probing { pause, .. } => (2 * pause).min(LONGEST),
        };
        // The jitter selects a time between half of the pause and the whole pause.
        let share = 0.5 + f64::from(jitter) / f64::from(u32::MAX) / 2.0;
        self.state = BreakerState::Open { pause, until: now + pause.mul_f64(share) };
    }

    /// Allows a probe now, because other servers answer from now on.
    pub(crate) fn retry(&mut self) {
        if self.lost_since().is_some() {
            self.state = BreakerState::Open { pause: SHORTEST, until: Duration::ZERO };
        }
    }

    /// The time since which the store has not answered. None if it is not lost.
    pub(crate) fn lost_since(&self) -> Option<Duration> {
        match self.state {
            BreakerState::Closed { .. } => None,
            BreakerState::Open { .. } | BreakerState::Probing { .. } => self.since,
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_fuzz::Random;

    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn two_misses_are_none_and_an_answer_forgets_them() {
        let mut breaker = Breaker::default();
        for _ in 0..5 {
            breaker.missed(millis(1), 0);
            breaker.missed(millis(2), 0);
            assert!(breaker.allows(millis(2)) && breaker.lost_since().is_none());
            breaker.answered();
        }
    }

    /// A pause of a store that is shorter than 200 ms is no loss, however many questions it delays.
    #[test]
    fn many_misses_at_once_are_no_loss() {
        let mut breaker = Breaker::default();
        for now in 1_000..1_200 {
            breaker.missed(millis(now), 0);
        }
        assert_eq!(breaker.lost_since(), None);
        breaker.missed(millis(1_200), 0);
        assert_eq!(breaker.lost_since(), Some(millis(1_000)));
    }

    /// Loses a store at this time.
    fn lost_at(now: Duration, jitter: u32) -> Breaker {
        let mut breaker = Breaker::default();
        for ago in [GRACE, GRACE, Duration::ZERO] {
            breaker.missed(now.saturating_sub(ago), jitter);
        }
        breaker
    }

    #[test]
    fn a_lost_store_gets_one_probe_at_a_time_ever_more_rarely() {
        let mut breaker = lost_at(millis(250), u32::MAX);
        let mut probes = Vec::new();
        for now in 250..40_000 {
            // Ten callers ask in every millisecond. Each probe fails after 20 ms.
            let allowed = (0..10).filter(|_| breaker.allows(millis(now))).count();
            assert!(allowed <= 1);
            if allowed == 1 {
                probes.push(now);
            }
            if probes.last().is_some_and(|probe| probe + 20 == now) {
                breaker.missed(millis(now), u32::MAX);
                // A missed answer to an earlier question changes nothing.
                breaker.missed(millis(now), 0);
            }
        }
        let gaps: Vec<_> = probes.windows(2).map(|pair| pair[1] - pair[0] - 20).collect();
        assert_eq!(probes[0], 350);
        assert_eq!(gaps[..6], [200, 400, 800, 1_600, 3_200, 5_000]);
        assert!(gaps[6..].iter().all(|&gap| gap == 5_000), "{gaps:?}");
        assert_eq!(breaker.lost_since(), Some(millis(50)));
    }

    #[test]
    fn a_cancelled_probe_is_followed_by_another() {
        let mut breaker = lost_at(millis(200), 0);
        assert!(breaker.allows(millis(300)));
        assert!(!breaker.allows(millis(1_299)));
        assert!(breaker.allows(millis(1_300)));
        breaker.answered();
        assert!(breaker.allows(millis(1_300)), "the store is not lost any more");
    }

    #[test]
    fn pods_probe_at_different_moments() {
        let mut random = Random::new(1);
        let until = |jitter| {
            let mut breaker = lost_at(GRACE, jitter);
            (0..).find(|&after| breaker.allows(GRACE + Duration::from_micros(after))).expect("a probe")
        };
        let moments: Vec<u64> =
            (0..200).map(|_| until(u32::try_from(random.below(1 << 32)).expect("32 bits"))).collect();
        assert!(moments.iter().all(|moment| (50_000..=100_000).contains(moment)));
        for tenth in 0..10_u64 {
            let within = 50_000 + tenth * 5_000..55_000 + tenth * 5_000;
            let count = moments.iter().filter(|moment| within.contains(moment)).count();
            assert!((5..50).contains(&count), "{count} in {within:?}");
        }
    }
}
