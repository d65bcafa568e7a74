//! The readiness of one service: its position in the queue of a limit, and then the charge of one request. A charge
//! that no request used is given back.

use std::task::{Context, Poll};

use weir_core::{Admitted, Charge, Limiter, Refused};

use crate::{
    LimiterAdmit, MonotonicClock, Waiting,
    waiting::{Entry, enter},
};

#[derive(Debug)]
pub(super) struct Readiness {
    limit: LimiterAdmit,
    /// The charge of the next request.
    taken: Option<Charge>,
    waiting: Option<Box<Waiting>>,
}

impl Readiness {
    pub(super) const fn new(limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { limit: LimiterAdmit::new(limiter, clock), taken: None, waiting: None }
    }

    /// Charges one request, once, when its turn comes.
    #[inline]
    pub(super) fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.taken.is_some() {
            return Poll::Ready(());
        }
        if self.waiting.is_none()
            && self.limit.limiter.queue_len() == 0
            && let Ok(Admitted { charge, .. }) = self.limit.limiter.charge(self.limit.clock.now(), 1)
        {
            self.taken = Some(charge);
            return Poll::Ready(());
        }
        self.poll_queue(context)
    }

    /// The path for requests that may have to wait. This function is separate, so that the fast path is inlined.
    #[inline(never)]
    fn poll_queue(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.waiting.is_none() {
            match enter(&self.limit.of_cost(1), self.limit.clock.now(), None, self.limit.clock) {
                Ok(Entry::Goes(Admitted { charge, .. })) => {
                    self.taken = Some(charge);
                    return Poll::Ready(());
                }
                Ok(Entry::Waits(waiting)) => self.waiting = Some(waiting),
                Err(refused) => unreachable!("every burst has room for one request: {refused}"),
            }
        }
        if let Some(waiting) = &mut self.waiting {
            self.taken = match waiting.poll(&self.limit.of_cost(1), context) {
                Poll::Ready(Ok(Admitted { charge, .. })) => Some(charge),
                Poll::Ready(Err(Refused { .. })) => unreachable!("a wait without a latest time is never refused"),
                Poll::Pending => self.overtake(),
            };
        }
        if self.taken.is_none() {
            return Poll::Pending;
        }
        self.waiting = None;
        Poll::Ready(())
    }

    /// Charges one request before its turn, if the limit has room for it and for all requests ahead. Some services join
    /// the queue and are never polled again, for example under `load_shed`. They must not delay others while the limit
    /// has enough room.
    fn overtake(&self) -> Option<Charge> {
        let LimiterAdmit { limiter, clock, .. } = &self.limit;
        let now = clock.now();
        // The number includes this service.
        if usize::try_from(limiter.peek(now).remaining()).is_ok_and(|remaining| remaining < limiter.queue_len()) {
            return None;
        }
        // The requests ahead can cost more than one. Others that try this see the place until the charge is made.
        let _place = limiter.enqueue(now, 1, Some(now)).ok()?;
        limiter.charge(now, 1).ok().map(|admitted| admitted.charge)
    }

    /// Uses the charge.
    ///
    /// # Panics
    ///
    /// If the turn of this service has not come.
    #[inline]
    pub(super) fn take(&mut self) {
        assert!(self.taken.take().is_some(), "call without poll_ready");
    }
}

/// A clone has neither the position nor the charge of the original.
impl Clone for Readiness {
    fn clone(&self) -> Self {
        Self::new(self.limit.limiter.clone(), self.limit.clock)
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        if let Some(charge) = self.taken.take() {
            self.limit.limiter.refund(charge, || self.limit.clock.now());
        }
    }
}
