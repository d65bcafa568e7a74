//! How long a request waits for a store: twice what all but one in a hundred answers take, and never longer than the
//! rule allows. Pure: it measures nothing.

use std::time::Duration;

/// How many answers it remembers.
const RECENT: usize = 128;

/// It computes again after this many answers.
const EVERY: usize = 16;

/// The most, unless the store is always slower.
const MOST: Duration = Duration::from_millis(50);

/// The least: a busy processor alone delays an answer by some milliseconds.
const LEAST: Duration = Duration::from_millis(5);

/// Learns how fast a store answers.
///
/// ```
/// use std::time::Duration;
/// use weir_store::Deadline;
///
/// let mut deadline = Deadline::default();
/// assert_eq!(deadline.within(Duration::from_secs(1)), Duration::from_millis(50));
/// for _ in 0..100 {
///     deadline.learn(Duration::from_millis(4));
/// }
/// assert_eq!(deadline.within(Duration::from_secs(1)), Duration::from_millis(8));
/// assert_eq!(deadline.within(Duration::from_millis(3)), Duration::from_millis(3));
/// ```
#[derive(Clone, Debug)]
pub struct Deadline {
    recent: Vec<Duration>,
    /// How many were learned.
    count: usize,
    now: Duration,
}

impl Default for Deadline {
    fn default() -> Self {
        Self { recent: Vec::with_capacity(RECENT), count: 0, now: MOST }
    }
}

impl Deadline {
    /// Records how long an answer took, or how long a caller waited for an answer that it missed. So a store that
    /// becomes slower gets more time, up to 50 ms, or up to twice its median if that is more.
    pub fn learn(&mut self, took: Duration) {
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

    /// How long to wait for an answer if the rule allows this much.
    pub fn within(&self, most: Duration) -> Duration {
        self.now.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn after(millis: impl IntoIterator<Item = u64>) -> u128 {
        let mut deadline = Deadline::default();
        for millis in millis {
            deadline.learn(Duration::from_millis(millis));
        }
        deadline.within(MINUTE).as_millis()
    }

    #[test]
    fn it_is_twice_the_99th_percentile() {
        // One of 128 is slower, and does not count; two of 128 do.
        assert_eq!(after((0..128).map(|index| if index == 7 { 40 } else { 10 })), 20);
        assert_eq!(after((0..128).map(|index| if index < 2 { 24 } else { 10 })), 48);
        assert_eq!(after([]), 50);
        assert_eq!(after([1; 128]), 5);
    }

    #[test]
    fn only_recent_answers_count() {
        assert_eq!(after([20; 128].into_iter().chain([3; 128])), 6);
        assert_eq!(after([3; 128].into_iter().chain([20; 16])), 40);
    }

    /// A store that is slow, and was always missed at first, is waited for in the end.
    #[test]
    fn a_slow_store_gets_the_time_that_it_takes() {
        let (mut deadline, takes) = (Deadline::default(), Duration::from_millis(67));
        for _ in 0..200 {
            deadline.learn(takes.min(deadline.within(MINUTE)));
        }
        assert!(deadline.within(MINUTE) > takes, "{deadline:?}");
        assert!(deadline.within(MINUTE) <= 2 * takes, "{deadline:?}");
    }

    /// Some slow answers of a fast store are not waited for longer than 50 ms.
    #[test]
    fn slow_answers_of_a_fast_store_are_missed() {
        assert_eq!(after((0..128).map(|index| if index % 4 == 0 { 400 } else { 2 })), 50);
    }
}
