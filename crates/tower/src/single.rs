//! One limit for all requests of a service.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Duration,
};

use weir_core::{Admitted, Limiter, Quota, Refused, Ticket, Time};

use crate::{
    Admit, AtHead, CostExtractor, MonotonicClock, QueueTicket, Reserve, Turn, UnitCost, Waiting,
    waiting::{Enqueue, Entry, enter, join_behind},
};

/// Charges one [`Limiter`] for each request: a cost of one, or the cost that [`with_cost`](Self::with_cost) finds.
/// Clones share the limiter. Layers that wait and layers that refuse immediately can share it, too: no request takes
/// the capacity of a request that waits.
///
/// Keep a clone of the limiter to [`retune`](Limiter::retune) it at run time. The new quota is reached in one step, after
/// any number of retunes.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// use weir_tower::{Admit, LimiterAdmit, MonotonicClock};
///
/// let clock = MonotonicClock::start();
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(3600), None)?;
/// let admit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
/// assert!(admit.admit(&"a request").is_ok());
/// assert!(admit.admit(&"another").is_err());
/// # Ok::<(), weir_core::InvalidQuota>(())
/// ```
#[derive(Clone, Debug)]
pub struct LimiterAdmit<C = UnitCost> {
    pub(crate) limiter: Limiter,
    pub(crate) clock: MonotonicClock,
    cost: C,
}

impl LimiterAdmit {
    /// Charges `limiter` with the time of `clock`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    ///
    /// use weir_tower::{Admit, LimiterAdmit};
    ///
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let clone = limit.clone(); // shares the limit
    /// assert!(limit.admit(&"a request").is_ok());
    /// assert!(clone.admit(&"another").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(limiter: Limiter, clock: MonotonicClock) -> Self {
        Self { limiter, clock, cost: UnitCost }
    }

    /// Waits for the turn of one request, at most `max_wait`, for a caller without a service. If the future is dropped, the
    /// request leaves the queue.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// use weir_tower::{LimiterAdmit, MonotonicClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = MonotonicClock::of_tokio();
    /// let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?;
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..3 {
    ///     limit.admitted(Duration::from_secs(1)).await?;
    ///     // Here, call the API that has the limit.
    /// }
    /// assert_eq!(start.elapsed().as_millis(), 200);
    /// assert!(limit.admitted(Duration::from_millis(99)).await.is_err()); // it would wait 100 ms
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`] immediately, if the turn would not come within `max_wait`. A request in the queue is refused if its
    /// turn becomes too late: the limit was changed, or the task was late and [others have overtaken it](crate#waits).
    pub async fn admitted(&self, max_wait: Duration) -> Result<Admitted, Refused> {
        self.admitted_with_cost(1, max_wait).await
    }
}

impl<C> LimiterAdmit<C> {
    /// Charges each request the cost that `cost` finds, a [`CostExtractor`]. The clones of a limit can have different
    /// costs.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// use http::Request;
    /// use weir_tower::{Admit, LimiterAdmit, MonotonicClock};
    ///
    /// let clock = MonotonicClock::start();
    /// let quota = Quota::new(Strategy::TokenBucket, 10, Duration::from_secs(3600), None)?;
    /// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// // A batch costs as much as its items, sent one by one.
    /// let of_batches = limit.clone().with_cost(|batch: &Request<Vec<u32>>| batch.body().len() as u64);
    /// assert!(of_batches.admit(&Request::new(vec![0; 9])).is_ok());
    /// assert!(of_batches.admit(&Request::new(vec![0; 2])).is_err());
    /// assert!(limit.admit(&Request::new(0_u32)).is_ok());
    /// # Ok::<(), weir_core::InvalidQuota>(())
    /// ```
    pub fn with_cost<Request, F: Fn(&Request) -> u64>(self, cost: F) -> LimiterAdmit<F> {
        LimiterAdmit { limiter: self.limiter, clock: self.clock, cost }
    }

    /// Waits as [`admitted`](LimiterAdmit::admitted), for a request of this cost.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// use weir_tower::{LimiterAdmit, MonotonicClock};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = MonotonicClock::of_tokio();
    /// let quota = Quota::new(Strategy::TokenBucket, 1_000, Duration::from_secs(1), None)?;
    /// let bytes = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
    /// let start = tokio::time::Instant::now();
    /// for packet in [1_000, 300] {
    ///     bytes.admitted_with_cost(packet, Duration::from_secs(1)).await?;
    /// }
    /// assert_eq!(start.elapsed().as_millis(), 300);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused`], as for [`admitted`](LimiterAdmit::admitted), and immediately if the cost is larger than the burst.
    pub async fn admitted_with_cost(&self, cost: u64, max_wait: Duration) -> Result<Admitted, Refused> {
        match self.reserve_cost(cost, max_wait)? {
            Turn::Now(admitted) => Ok(admitted),
            Turn::Later(mut ticket) => poll_fn(|context| ticket.poll_turn(&(), context)).await,
        }
    }

    fn reserve_cost(&self, cost: u64, max_wait: Duration) -> Result<Turn<Admitted, LimiterTicket>, Refused> {
        let now = self.clock.now();
        Ok(match enter(&self.of_cost(cost), now, Some(now.saturating_add(max_wait)), self.clock)? {
            Entry::Goes(admitted) => Turn::Now(admitted),
            Entry::Waits(waiting) => Turn::Later(LimiterTicket { limiter: self.limiter.clone(), cost, waiting }),
        })
    }

    pub(crate) fn of_cost(&self, cost: u64) -> OfCost<'_> {
        OfCost { limiter: &self.limiter, cost }
    }
}

impl<Request, C: CostExtractor<Request>> Admit<Request> for LimiterAdmit<C> {
    type Pass = Admitted;
    type Refusal = Refused;

    fn admit(&self, request: &Request) -> Result<Admitted, Refused> {
        let (limit, now) = (self.of_cost(self.cost.cost(request)), self.clock.now());
        if limit.queue_len() > 0 {
            let _position = join_behind(&limit, now)?;
            return limit.charge(now);
        }
        limit.charge(now)
    }
}

impl<Request, C: CostExtractor<Request>> Reserve<Request> for LimiterAdmit<C> {
    type Ticket = LimiterTicket;
    type Pass = Admitted;
    type Refusal = Refused;

    fn reserve(&self, request: &Request, max_wait: Duration) -> Result<Turn<Admitted, LimiterTicket>, Refused> {
        self.reserve_cost(self.cost.cost(request), max_wait)
    }
}

/// A limit for a request of one cost.
pub(crate) struct OfCost<'a> {
    limiter: &'a Limiter,
    cost: u64,
}

impl AtHead for OfCost<'_> {
    type Pass = Admitted;
    type Refusal = Refused;

    fn charge(&self, now: Time) -> Result<Admitted, Refused> {
        self.limiter.charge(now, self.cost)
    }

    fn late(&self, now: Time) -> Refused {
        self.enqueue(now, Some(Time::default())).expect_err("no turn comes before now")
    }

    fn retry_after(refused: &Refused) -> Option<Duration> {
        refused.retry_after()
    }

    fn quota(refused: &Refused) -> Quota {
        refused.standing.quota()
    }
}

impl Enqueue for OfCost<'_> {
    fn queue_len(&self) -> usize {
        if self.cost == 0 { 0 } else { self.limiter.queue_len() }
    }

    fn enqueue(&self, now: Time, latest: Option<Time>) -> Result<Ticket, Refused> {
        self.limiter.enqueue(now, self.cost, latest)
    }
}

/// A position in the queue of a [`LimiterAdmit`]; [`Turn`] has an example.
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// # let clock = weir_tower::MonotonicClock::start();
/// # let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
///
/// use weir_tower::{LimiterAdmit, Reserve, Turn};
///
/// let limit = LimiterAdmit::new(Limiter::new(clock.now(), quota), clock);
/// let patience = Duration::from_secs(90);
/// limit.reserve(&"first", patience)?;
/// let Turn::Later(ticket) = limit.reserve(&"second", patience)? else { panic!("not now") };
/// assert!(limit.reserve(&"third", patience).is_err()); // it would wait two minutes
/// drop(ticket); // the second request leaves the queue
/// assert!(limit.reserve(&"third", patience).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped leaves the queue"]
pub struct LimiterTicket {
    limiter: Limiter,
    cost: u64,
    waiting: Box<Waiting>,
}

impl<Request> QueueTicket<Request> for LimiterTicket {
    type Pass = Admitted;
    type Refusal = Refused;

    fn poll_turn(&mut self, _: &Request, context: &mut Context<'_>) -> Poll<Result<Admitted, Refused>> {
        self.waiting.poll(&OfCost { limiter: &self.limiter, cost: self.cost }, context)
    }
}
