//! The decisions of a shared limiter.

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
use weir_seats::{Left, Seats};

use super::SharedLimiter;

/// The right of one request to go. If the grant is dropped before [`settle`](Self::settle), other requests get its
/// seats.
#[derive(Debug)]
#[must_use = "the grant is charged: settle it when the request goes"]
pub struct Grant {
    pub(super) limiter: Arc<SharedLimiter>,
    pub(super) hash: u128,
    pub(super) set: usize,
    /// The charged seats. None if the request was decided without the store.
    pub(super) seats: Option<Seats>,
    pub(super) left: Option<Left>,
}

impl Grant {
    /// Settles the grant: the request goes.
    pub fn settle(mut self) {
        self.seats = None;
    }

    /// The remaining units of the key, if they are known.
    pub fn left(&self) -> Option<Left> {
        self.left
    }

    /// Returns true if the window of a seat may have ended. Then the request needs another one.
    pub fn has_ended(&self) -> bool {
        self.seats.as_ref().is_some_and(|seats| self.limiter.have_ended(self.set, seats))
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.take() {
            self.limiter.put_back(self.hash, self.set, seats);
        }
    }
}

/// The refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// The time until the next request can go. None if the cost is more than a limit ever admits.
    pub retry_after: Option<Duration>,
    /// The remaining units of the key, if they are known.
    pub left: Option<Left>,
    /// The rest of the key's ban. None if the key is not banned.
    pub banned: Option<Duration>,
}

impl Denied {
    /// The refusal of a request whose key is not banned.
    pub const fn new(retry_after: Option<Duration>, left: Option<Left>) -> Self {
        Self { retry_after, left, banned: None }
    }

    /// The refusal of a request whose key is banned.
    pub const fn banned(rest: Duration) -> Self {
        Self { retry_after: Some(rest), left: None, banned: Some(rest) }
    }
}

/// A decision that needs no wait.
#[derive(Debug)]
pub enum Claim {
    /// The request may go.
    Granted(Grant),
    /// The request is refused.
    Denied(Denied),
    /// The store must be asked.
    AskStore,
}

/// A grant, and the time from which the request can go, on the store's clock. Zero if it can go immediately.
pub(super) type Decision = Result<(Grant, u64), Denied>;

/// A request that waits for the store. If it is dropped, other requests get its seats.
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
                    None => Err(Denied::new(Some(Duration::ZERO), None)),
                });
            }
            let gone = Denied::new(Some(Duration::from_secs(1)), None);
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
