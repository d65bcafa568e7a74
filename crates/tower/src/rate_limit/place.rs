//! One service's place in the line of a limit: taken once, kept until it is used, given back if it never is.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::Sleep;
use weir_core::{Charge, Limiter, Reserved, Standing, Time};

use crate::MonotonicClock;

/// Nobody who asks for back-pressure is told that it takes too long.
const ANY_TIME: Time = Time::from_nanos(u64::MAX);

/// The finest that tokio's timers tell apart.
const TICK: Duration = Duration::from_millis(1);

/// How long a change of the limit can go unnoticed by those who wait: who was promised a place in an hour must not sit
/// out that hour when the limit has been raised.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Far more than one poll takes, unless the limit is changed under it that often.
const ROUNDS: u32 = 1_000;

#[derive(Debug)]
pub(super) struct Place {
    limiter: Limiter,
    clock: MonotonicClock,
    taken: Option<Taken>,
    /// Made when somebody has to wait for the first time, and used again from then on.
    timer: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

#[derive(Debug)]
struct Taken {
    turn: Time,
    /// Has the quota by which the turn was promised.
    standing: Standing,
    charge: Charge,
}

impl Place {
    pub(super) const fn new(limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { limiter, clock, taken: None, timer: None, waiting: false }
    }

    /// Takes a place, once, and is ready when its moment has come.
    pub(super) fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut rounds = 0;
        loop {
            rounds += 1;
            debug_assert!(rounds < ROUNDS, "each round finds the turn come, or a moment to wait for");
            if self.waiting {
                let timer = self.timer.as_mut().expect("made before the wait");
                ready!(timer.as_mut().poll(context));
                self.waiting = false;
            }
            let now = self.clock.now();
            if self.taken.is_none() {
                self.ask(now);
            }
            match &self.taken {
                Some(taken) if taken.turn <= now => return Poll::Ready(()),
                Some(taken) if taken.standing.quota() == self.limiter.quota() => {
                    self.wait_until(taken.turn.min(now.saturating_add(LOOK_UP)));
                }
                // What was promised is void: the change has made it part of the new limit's backlog.
                Some(_) => self.taken = None,
                // The line is full.
                None => {}
            }
        }
    }

    /// Takes a place, or waits until it is worth while to ask again.
    fn ask(&mut self, now: Time) {
        match self.limiter.reserve(now, 1, ANY_TIME) {
            Ok(Reserved { at, standing, charge }) => self.taken = Some(Taken { turn: at, standing, charge }),
            Err(refused) => {
                let wait = refused.retry_after().expect("every burst has room for one");
                self.wait_until(now.saturating_add(wait.clamp(TICK, LOOK_UP)));
            }
        }
    }

    /// Uses the place.
    ///
    /// # Panics
    ///
    /// If its turn has not come.
    pub(super) fn take(&mut self) {
        assert!(self.taken.is_some() && !self.waiting, "call without poll_ready");
        self.taken = None;
    }

    fn wait_until(&mut self, time: Time) {
        let at = self.clock.instant(time);
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(at),
            None => self.timer = Some(Box::pin(tokio::time::sleep_until(at))),
        }
        self.waiting = true;
    }
}

/// A clone is another place, not taken yet.
impl Clone for Place {
    fn clone(&self) -> Self {
        Self::new(self.limiter.clone(), self.clock)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            self.limiter.refund(taken.charge, || self.clock.now());
        }
    }
}
