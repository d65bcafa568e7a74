//! Computes how long a request waits for a store: twice the 99th percentile of recent answers, within bounds. The
//! caller measures the answers.

use std::time::Duration;

/// The number of recent answers that are kept.
const RECENT: usize = 128;

/// The deadline is computed again after each group of this many answers.
const EVERY: usize = 16;

/// The longest deadline, unless twice the median is longer.
const MOST: Duration = Duration::from_millis(50);

/// The shortest deadline. Even a fast answer can be some milliseconds late on a busy processor.
const LEAST: Duration = Duration::from_millis(5);

/// Computes the deadline from the durations of answers.
#[derive(Clone, Debug)]
pub(crate) struct AdaptiveDeadline {
    recent: Vec<Duration>,
    /// The number of recorded answers.
    count: usize,
    now: Duration,
}

impl Default for AdaptiveDeadline {
    fn default() -> Self {
        Self { recent: Vec::with_capacity(RECENT), count: 0, now: MOST }
    }
}

impl AdaptiveDeadline {
    /// Records the duration of an answer, or the time that a caller waited for a missed answer. So a store that becomes
    /// slower gets more time: up to 50 ms, or up to twice the median if that is longer.
    pub(crate) fn learn(&mut self, took: Duration) {
        if self.recent.len() < RECENT {
            self.recent.push(took);
        } else {
            self.recent[self.count % RECENT] = took;
        }
        self.count += 1;
        if self.count.is_multiple_of(EVERY) {
            let mut sorted = self.recent.clone();
            sorted.sort_unstable();
            let at = |hundredths: usize| sorted[(sorted.len() * hundredths).div_ceil(100) - 1];
            self.now = (2 * at(99)).clamp(LEAST, MOST.max(2 * at(50)));
        }
    }

    /// The time to wait for an answer, at most `most`.
    pub(crate) fn within(&self, most: Duration) -> Duration {
        self.now.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn after(millis: impl IntoIterator<Item = u64>) -> u128 {
        let mut deadline = AdaptiveDeadline::default();
        for millis in millis {
            deadline.learn(Duration::from_millis(millis));
        }
        deadline.within(MINUTE).as_millis()
    }

    #[test]
    fn it_is_twice_the_99th_percentile() {
        // One slow answer in 128 has no effect; two have.
        assert_eq!(after((0..128).map(|index| if index == 7 { 40 } else { 10 })), 20);
        assert_eq!(after((0..128).map(|index| if index < 2 { 24 } else { 10 })), 48);
        assert_eq!(after([]), 50);
        assert_eq!(after([1; 128]), 5);
        assert_eq!(AdaptiveDeadline::default().within(Duration::from_millis(3)).as_millis(), 3, "at most this time");
    }

    #[test]
    fn only_recent_answers_count() {
        assert_eq!(after([20; 128].into_iter().chain([3; 128])), 6);
        assert_eq!(after([3; 128].into_iter().chain([20; 16])), 40);
    }

    /// A store can be so slow that its first answers are all missed. The deadline grows until the answers arrive in
    /// time.
    #[test]
    fn a_slow_store_gets_the_time_that_it_takes() {
        let (mut deadline, takes) = (AdaptiveDeadline::default(), Duration::from_millis(67));
        for _ in 0..200 {
            deadline.learn(takes.min(deadline.within(MINUTE)));
        }
        assert!(deadline.within(MINUTE) > takes, "{deadline:?}");
        assert!(deadline.within(MINUTE) <= 2 * takes, "{deadline:?}");
    }

    /// If a fast store gives some slow answers, the deadline stays at 50 ms or less.
    #[test]
    fn slow_answers_of_a_fast_store_are_missed() {
        assert_eq!(after((0..128).map(|index| if index % 4 == 0 { 400 } else { 2 })), 50);
    }
}
