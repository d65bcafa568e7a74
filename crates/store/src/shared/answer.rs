//! What a program learns about a request of a shared rule.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Sleep, sleep},
};

use super::SharedLimiter;
use crate::{seats::Seats, take::Left};

/// A request may go. Dropped before [`settle`](Self::settle), its seats are for other requests.
#[derive(Debug)]
#[must_use = "it is charged: settle it when the request goes"]
pub struct Grant {
    pub(super) limiter: Arc<SharedLimiter>,
    pub(super) hash: u128,
    pub(super) set: usize,
    /// None if it was decided without the store.
    pub(super) seats: Option<Seats>,
    pub(super) left: Option<Left>,
}

impl Grant {
    /// The request goes.
    pub fn settle(mut self) {
        self.seats = None;
    }

    /// What the store had left, if it said so.
    pub fn left(&self) -> Option<Left> {
        self.left
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.take() {
            self.limiter.put_back(self.hash, self.set, seats);
        }
    }
}

/// A request must not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// When the next may go. None if the cost is more than a limit ever admits.
    pub retry_after: Option<Duration>,
    /// What the store has left, if it said so.
    pub left: Option<Left>,
}

/// What a program can say at once.
#[derive(Debug)]
pub enum Claim {
    /// The request may go.
    Granted(Grant),
    /// It must not.
    Denied(Denied),
    /// The store must be asked.
    Ask,
}

/// A grant, and from when on the request may go: the store's time, or zero.
pub(super) type Decision = Result<(Grant, u64), Denied>;

/// A request that waits for the store. Dropping it leaves its seats to other requests.
#[derive(Debug)]
pub struct Waits {
    pub(super) limiter: Arc<SharedLimiter>,
    pub(super) receiver: oneshot::Receiver<Decision>,
    pub(super) slot: Option<(Grant, u64, Pin<Box<Sleep>>)>,
}

impl Future for Waits {
    type Output = Result<Grant, Denied>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if let Some((_, due, sleeps)) = &mut self.slot {
                let due = *due;
                ready!(sleeps.as_mut().poll(context));
                if let Some(rest) = self.limiter.until(due).filter(|rest| !rest.is_zero())
                    && let Some((_, _, sleeps)) = &mut self.slot
                {
                    *sleeps = Box::pin(sleep(rest));
                    continue;
                }
                return Poll::Ready(match self.slot.take() {
                    Some((grant, ..)) => Ok(grant),
                    None => Err(Denied { retry_after: Some(Duration::ZERO), left: None }),
                });
            }
            let gone = Denied { retry_after: Some(Duration::from_secs(1)), left: None };
            match ready!(Pin::new(&mut self.receiver).poll(context)).unwrap_or(Err(gone)) {
                Err(denied) => return Poll::Ready(Err(denied)),
                Ok((grant, due)) => match self.limiter.until(due).filter(|rest| !rest.is_zero()) {
                    None => return Poll::Ready(Ok(grant)),
                    Some(rest) => self.slot = Some((grant, due, Box::pin(sleep(rest)))),
                },
            }
        }
    }
}
