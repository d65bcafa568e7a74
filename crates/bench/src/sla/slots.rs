//! The service behind the limits. It has a number of slots with a fixed service time, and serves requests in the order
//! of their arrival. It drops requests that it cannot serve in time.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout_at},
};

use crate::clock;

const SLOTS: usize = 10;
const WORK: Duration = Duration::from_millis(25);
const TIMEOUT: Duration = Duration::from_millis(500);

/// The error of a request that the service has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

#[derive(Clone)]
pub(crate) struct Slots {
    slots: Arc<Semaphore>,
    /// The times since which slots are free. Work is timed from there, so that late timers of the runtime do not make
    /// the service slower.
    free: Arc<Mutex<VecDeque<Instant>>>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        let free = VecDeque::from([clock::timer_now(); SLOTS]);
        Self { slots: Arc::new(Semaphore::new(SLOTS)), free: Arc::new(Mutex::new(free)) }
    }

    /// Works on a request. Work that has begun is finished, even if the caller has left.
    pub(crate) async fn call(&self) -> Result<(), TimedOut> {
        let arrived = clock::timer_now();
        let deadline = arrived + TIMEOUT;
        let Ok(slot) = timeout_at(deadline, Arc::clone(&self.slots).acquire_owned()).await else {
            return Err(TimedOut);
        };
        let slot = slot.expect("never closed");
        let free =
            self.free.lock().expect("no thread panics while it holds the lock").pop_front().expect("as many as slots");
        let done = free.max(arrived) + WORK;
        let upstream = self.clone();
        let work = tokio::spawn(async move {
            sleep_until(done).await;
            upstream.free.lock().expect("no thread panics while it holds the lock").push_back(done);
            drop(slot);
        });
        timeout_at(deadline, work).await.map_err(|_| TimedOut)?.expect("the work does not panic");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ten_are_worked_on_at_once_and_the_next_waits() {
        let upstream = Slots::new();
        let start = clock::timer_now();
        let calls = (0..11).map(|_| {
            let upstream = upstream.clone();
            async move { (upstream.call().await, clock::timer_now() - start) }
        });
        let mut took: Vec<_> = futures::future::join_all(calls).await;
        took.sort_by_key(|(_, took)| *took);
        assert!(took.iter().all(|(result, _)| result.is_ok()));
        assert_eq!(took[9].1, WORK);
        assert_eq!(took[10].1, 2 * WORK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_waits_too_long_times_out() {
        let upstream = Slots::new();
        let start = clock::timer_now();
        let calls = (0..250).map(|_| {
            let upstream = upstream.clone();
            async move { (upstream.call().await, clock::timer_now() - start) }
        });
        let answers = futures::future::join_all(calls).await;
        let failed: Vec<_> = answers.iter().filter(|(result, _)| result.is_err()).collect();
        // 20 rounds of 10 requests fit into the timeout. The last round ends exactly at the timeout, so it can be
        // served or fail.
        assert!((50..=60).contains(&failed.len()), "{}", failed.len());
        assert!(failed.iter().all(|(_, took)| *took == TIMEOUT), "{failed:?}");
    }
}
