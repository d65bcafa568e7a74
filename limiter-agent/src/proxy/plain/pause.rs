//! One timer for all waits of a connection.
//!
//! Starting and stopping a timer takes longer than a whole small request. So each connection has one timer, and a wait
//! only stores its deadline. The timer fires too early and is then set to the deadline. It is set immediately only if
//! the new deadline is earlier.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    task::unconstrained,
    time::{Sleep, sleep_until},
};
use weir_core::Time;
use weir_tower::MonotonicClock;

use crate::clock;

/// If a timer's time is at least this far in the future, the timer has not fired, even if this clock differs from the
/// runtime's clock.
const FAR: Duration = Duration::from_secs(1);

/// The timer of one connection. Only one task is allowed to poll it.
#[derive(Debug)]
pub(super) struct Pause {
    clock: MonotonicClock,
    timer: Pin<Box<Sleep>>,
    /// The time at which the timer fires, or `None` if it was never set.
    set: Option<Time>,
    until: Option<Time>,
}

impl Pause {
    pub(super) fn new(clock: MonotonicClock) -> Self {
        Self { clock, timer: Box::pin(sleep_until(clock::now())), set: None, until: None }
    }

    /// Starts a wait with this limit; `None` means no limit.
    pub(super) fn begin(&mut self, limit: Option<Duration>) {
        self.until = limit.map(|limit| self.clock.now().saturating_add(limit));
    }

    /// Starts a wait with a limit, for a caller that has read the clock.
    pub(super) fn begin_at(&mut self, now: Time, limit: Duration) {
        self.until = Some(now.saturating_add(limit));
    }

    /// Ends the wait at `end` at the latest.
    pub(super) fn end_by(&mut self, end: Time) {
        self.until = Some(self.until.map_or(end, |until| until.min(end)));
    }

    /// Returns ready when the wait has exceeded its limit.
    #[inline]
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_over_by(None, cx)
    }

    /// Like [`Self::poll_over`], but `now` was read after the task was woken: by then, the timer has fired, or it will
    /// still wake the task.
    #[inline]
    pub(super) fn poll_over_by(&mut self, now: Option<Time>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.until else { return Poll::Pending };
        match self.set {
            // The timer will wake the task, because the same task always polls it.
            Some(set) if set <= until && self.is_still_to_go_off(set, now) => Poll::Pending,
            _ => self.poll_until(until, cx),
        }
    }

    /// Returns ready if the deadline has passed; otherwise sets the timer to the deadline.
    #[cold]
    fn poll_until(&mut self, until: Time, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let left = until.duration_since(self.clock.now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(clock::now() + left);
            self.set = Some(until);
            // If the task's budget delayed the timer, nothing would wake the task.
            ready!(pin!(unconstrained(self.timer.as_mut())).poll(cx));
        }
    }

    /// Whether the timer has not fired. Reads the timer only if necessary: when a request arrives on an idle
    /// connection, the timer's memory is not in a CPU cache, and loading it takes longer than reading a clock.
    fn is_still_to_go_off(&self, set: Time, now: Option<Time>) -> bool {
        let now = now.unwrap_or_else(|| self.clock.now());
        now.saturating_add(FAR) < set || !self.timer.is_elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::poll;

    use super::*;

    async fn is_over(pause: &mut Pause) -> bool {
        poll!(pin!(poll_fn(|cx| pause.poll_over(cx)))).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_last_wait_counts() {
        let second = Duration::from_secs(1);
        let mut pause = Pause::new(MonotonicClock::of_tokio());
        assert!(!is_over(&mut pause).await, "no limit yet");
        // Deadlines that are later or earlier than the timer's, in several orders.
        for limits in [&[5][..], &[5, 9], &[9, 5], &[5, 9, 2], &[1, 5]] {
            for limit in limits {
                pause.begin(Some(*limit * second));
                assert!(!is_over(&mut pause).await);
            }
            let last = *limits.last().expect("at least one") * second;
            let begun = clock::now();
            poll_fn(|cx| pause.poll_over(cx)).await;
            assert!(begun.elapsed() >= last && begun.elapsed() < last + second / 10, "{limits:?}");
        }
        // From here on, the task has used up its budget.
        while poll!(pin!(tokio::task::consume_budget())).is_ready() {}
        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        let over = tokio::time::timeout(10 * second, poll_fn(|cx| pause.poll_over(cx)));
        over.await.expect("the timer was set without budget");

        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        pause.begin(None);
        tokio::time::sleep(2 * second).await;
        assert!(!is_over(&mut pause).await, "the timer fired, but the wait has no limit");
        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        tokio::time::sleep(second).await;
        assert!(is_over(&mut pause).await);
    }
}
