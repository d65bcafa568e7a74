//! One timer for all that a connection may wait for.
//!
//! A timer costs more to start and to stop than a small request costs altogether. So there is one for each connection,
//! and a wait only notes until when it may last: the timer is left to go off too early and is then set to that. Only a
//! wait that ends sooner than the timer is set to sets it again.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    task::unconstrained,
    time::{Instant, Sleep, sleep_until},
};
use weir_core::Time;
use weir_tower::MonotonicClock;

/// A timer that is set to a moment so far from now has not gone off, however this clock and the runtime's differ.
const FAR: Duration = Duration::from_secs(1);

/// May only be polled by one task.
#[derive(Debug)]
pub(super) struct Pause {
    clock: MonotonicClock,
    timer: Pin<Box<Sleep>>,
    /// When the timer goes off; none if it was never set or has gone off.
    set: Option<Time>,
    until: Option<Time>,
}

impl Pause {
    pub(super) fn new(clock: MonotonicClock) -> Self {
        Self { clock, timer: Box::pin(sleep_until(Instant::now())), set: None, until: None }
    }

    /// What is waited for from now on may take so long; without a limit as long as it takes.
    pub(super) fn begin(&mut self, limit: Option<Duration>) {
        self.until = limit.map(|limit| self.clock.now().saturating_add(limit));
    }

    /// The same, with a limit, by somebody who knows what time it is.
    pub(super) fn begin_at(&mut self, now: Time, limit: Duration) {
        self.until = Some(now.saturating_add(limit));
    }

    /// It may not last longer than until then, whatever its limit.
    pub(super) fn end_by(&mut self, end: Time) {
        self.until = Some(self.until.map_or(end, |until| until.min(end)));
    }

    /// Ready when it has lasted too long.
    #[inline]
    pub(super) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_over_by(None, cx)
    }

    /// The same by a time that was read since the task was woken: then the timer has gone off by it or is still to wake the
    /// task.
    #[inline]
    pub(super) fn poll_over_by(&mut self, now: Option<Time>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(until) = self.until else { return Poll::Pending };
        match self.set {
            // It will wake the task, which is always the same one.
            Some(set) if set <= until && self.is_still_to_go_off(set, now) => Poll::Pending,
            _ => self.poll_until(until, cx),
        }
    }

    /// Ready when it is over by then; otherwise sets the timer to that.
    #[cold]
    fn poll_until(&mut self, until: Time, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let left = until.duration_since(self.clock.now());
            if left.is_zero() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(Instant::now() + left);
            self.set = Some(until);
            // Were it put off because the task has had its share of the runtime, nothing would wake it.
            ready!(pin!(unconstrained(self.timer.as_mut())).poll(cx));
        }
    }

    /// The timer itself is asked only if that has to be: it is one more piece of memory that is in no cache when the next
    /// request of an idle connection comes, and to wait for it takes longer than to read a clock.
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
    async fn it_is_over_when_the_last_wait_is_too_long_whatever_came_before() {
        let second = Duration::from_secs(1);
        let mut pause = Pause::new(MonotonicClock::of_tokio());
        assert!(!is_over(&mut pause).await, "no limit yet");
        // Later, sooner, and later again than the timer is set to.
        for limits in [&[5][..], &[5, 9], &[9, 5], &[5, 9, 2], &[1, 5]] {
            for limit in limits {
                pause.begin(Some(*limit * second));
                assert!(!is_over(&mut pause).await);
            }
            let last = *limits.last().expect("at least one") * second;
            let begun = Instant::now();
            poll_fn(|cx| pause.poll_over(cx)).await;
            assert!(begun.elapsed() >= last && begun.elapsed() < last + second / 10, "{limits:?}");
        }
        // In a task that has used up its share of the runtime.
        while poll!(pin!(tokio::task::consume_budget())).is_ready() {}
        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        let over = tokio::time::timeout(10 * second, poll_fn(|cx| pause.poll_over(cx)));
        over.await.expect("it was set all the same");

        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        pause.begin(None);
        tokio::time::sleep(2 * second).await;
        assert!(!is_over(&mut pause).await, "the timer went off for nothing");
        pause.begin(Some(second));
        assert!(!is_over(&mut pause).await);
        tokio::time::sleep(second).await;
        assert!(is_over(&mut pause).await);
    }
}
