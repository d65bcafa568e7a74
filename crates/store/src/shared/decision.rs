//! The decisions of a shared limiter.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::sync::oneshot;
use weir_seats::{Left, Seats};

use super::SharedLimiter;

/// The right of one request to proceed. If the grant is dropped before [`settle`](Self::settle), other requests get its
/// seats.
#[derive(Debug)]
#[must_use = "the grant is charged: settle it when the request goes"]
pub struct Grant {
    pub(super) limiter: Arc<SharedLimiter>,
    pub(super) hash: u128,
    /// The charged seats. None if the request was decided without the store.
    pub(super) seats: Option<Seats>,
    pub(super) left: Option<Left>,
}

impl Grant {
    /// Settles the grant: the request goes.
    pub fn settle(self) {
        drop(self.into_used());
    }

    /// Settles the grant, and returns its seats. The caller can give them back if the request costs nothing after all.
    pub fn into_used(mut self) -> UsedSeats {
        UsedSeats { limiter: Arc::clone(&self.limiter), hash: self.hash, seats: self.seats.take() }
    }

    /// The remaining units of the key, if they are known.
    pub fn left(&self) -> Option<Left> {
        self.left
    }

    /// Returns true if the window of a seat may have ended. Then the request needs another one.
    pub fn has_ended(&self) -> bool {
        self.seats.as_ref().is_some_and(|seats| self.limiter.have_ended(self.hash, seats))
    }
}

/// The seats of a request that went. If the value is dropped, they stay used.
#[derive(Debug)]
pub struct UsedSeats {
    limiter: Arc<SharedLimiter>,
    hash: u128,
    seats: Option<Seats>,
}

impl UsedSeats {
    /// Gives the seats back to the store, as far as the store can still use them: a window until its end, and a bucket or
    /// a log if it has charged nothing after them. Memcached, a Redis Cluster and a lost store take nothing
    /// back. The seats are also lost if 1,024 returns of the rule are on their way.
    pub fn give_back(self) {
        if let Some(seats) = self.seats {
            self.limiter.give_back_of_request(self.hash, seats);
        }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(seats) = self.seats.take() {
            self.limiter.put_back(self.hash, seats, self.limiter.client.now());
        }
    }
}

/// The refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The time until the next request can proceed. None if the cost is more than a limit ever admits.
    pub retry_after: Option<Duration>,
    /// The remaining units of the key, if they are known.
    pub left: Option<Left>,
    /// The rest of the key's ban. None if the key is not banned.
    pub ban_rest: Option<Duration>,
}

impl Refused {
    /// The refusal of a request whose key is not banned.
    pub const fn new(retry_after: Option<Duration>, left: Option<Left>) -> Self {
        Self { retry_after, left, ban_rest: None }
    }

    /// The refusal of a request whose key is banned.
    pub const fn banned(rest: Duration) -> Self {
        Self { retry_after: Some(rest), left: None, ban_rest: Some(rest) }
    }
}

/// A decision that needs no wait.
#[derive(Debug)]
pub enum Claim {
    /// The request may proceed.
    Granted(Grant),
    /// The request is refused.
    Refused(Refused),
    /// The store must be asked.
    AskStore,
}

impl From<Decision> for Claim {
    fn from(decision: Decision) -> Self {
        decision.map_or_else(Self::Refused, Self::Granted)
    }
}

pub(super) type Decision = Result<Grant, Refused>;

/// The queue of a request: its key, its cost, and the stamp of its limits. The requests of one queue are
/// interchangeable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueId {
    pub(super) hash: u128,
    pub(super) stamp: u64,
    pub(super) cost: u32,
}

/// A request that waits for the store, and then for its slot. If it is dropped, other requests get its seats.
#[derive(Debug)]
pub struct PendingGrant {
    pub(super) limiter: Arc<SharedLimiter>,
    pub(super) receiver: oneshot::Receiver<Decision>,
    pub(super) queue_id: QueueId,
    pub(super) id: u64,
}

impl Future for PendingGrant {
    type Output = Result<Grant, Refused>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let gone = Refused::new(Some(Duration::from_secs(1)), None);
        Poll::Ready(ready!(Pin::new(&mut self.receiver).poll(context)).unwrap_or(Err(gone)))
    }
}

impl Drop for PendingGrant {
    fn drop(&mut self) {
        // An answer that arrives later finds the receiver closed.
        self.receiver.close();
        self.limiter.leave(self.queue_id, self.id);
    }
}
