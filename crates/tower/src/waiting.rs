//! A request in the queues of its limits. This is the only module that waits for a turn.
//!
//! Only the request at the head of its queues checks the limits, and is charged when it is admitted. The other requests
//! sleep until they are woken. A request that is dropped leaves its queues.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures_timer::Delay;
use tokio::time::Sleep;
use weir_core::{Position, Quota, Strategy, Ticket, Time};

use crate::MonotonicClock;

/// The longest sleep of the request at the head: no event wakes it when a limit or a clock changes.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The maximum delay of tokio's timers. A limit that saves nothing loses the time by which a request is late, so the
/// last part of its wait uses a finer timer.
const COARSE: Duration = Duration::from_millis(2);

/// The operations of a request at the head of its queues. Like [`Waiting`], it is for the crates of this workspace.
///
/// ```
/// use std::time::Duration;
/// use weir_core::{Admitted, Limiter, Quota, Refused, Strategy, Time};
/// use weir_tower::{AtHead, MonotonicClock, Waiting};
///
/// struct One(Limiter);
///
/// impl AtHead for One {
///     type Pass = Admitted;
///     type Refusal = Refused;
///
///     fn charge(&self, now: Time) -> Result<Admitted, Refused> {
///         self.0.charge(now, 1)
///     }
///
///     fn late(&self, now: Time) -> Refused {
///         self.0.enqueue(now, 1, Some(Time::default())).expect_err("no turn comes before now")
///     }
///
///     fn retry_after(refused: &Refused) -> Option<Duration> {
///         refused.retry_after()
///     }
///
///     fn quota(refused: &Refused) -> Quota {
///         refused.standing.quota()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = MonotonicClock::of_tokio();
/// let limit = One(Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?));
/// limit.charge(clock.now())?;
/// let ticket = limit.0.enqueue(clock.now(), 1, None)?;
/// let mut waiting = Waiting::new(vec![ticket], None, clock);
/// let start = tokio::time::Instant::now();
/// std::future::poll_fn(|context| waiting.poll(&limit, context)).await?;
/// assert_eq!(start.elapsed(), Duration::from_millis(100));
/// # Ok(())
/// # }
/// ```
pub trait AtHead {
    /// Data about an admitted request.
    type Pass;
    /// The reason for a refusal.
    type Refusal;

    /// Charges all limits if all of them have room now; otherwise charges none of them.
    ///
    /// # Errors
    ///
    /// The refusal. The request tries again after [`retry_after`](Self::retry_after).
    fn charge(&self, now: Time) -> Result<Self::Pass, Self::Refusal>;

    /// The refusal of a request that can no longer be admitted in time, because a limit was changed.
    fn late(&self, now: Time) -> Self::Refusal;

    /// The time until a refused request would be admitted, or none if the request must not try again.
    fn retry_after(refusal: &Self::Refusal) -> Option<Duration>;

    /// The quota that refused the request.
    fn quota(refusal: &Self::Refusal) -> Quota;

    /// The number of the limit that refused. The first numbers are those of the request's queues, in their order.
    fn limit(&self, refusal: &Self::Refusal) -> usize {
        let _ = refusal;
        0
    }

    /// Takes a position in the queue of the limit that refused. It is none of the request's queues, and is for requests
    /// that already had their turn.
    fn join(&self, refusal: &Self::Refusal, now: Time) -> Option<Ticket> {
        let _ = (refusal, now);
        None
    }
}

/// A request that waits in one or several queues. The request is admitted when it is at the head of all queues and all
/// limits have room. [`AtHead`] has an example.
///
/// This type is for the crates of this workspace, and changes with them. Other programs use [`Reserve`](crate::Reserve)
/// or [`LimiterAdmit::admitted`](crate::LimiterAdmit::admitted).
///
/// ```
/// # use std::time::Duration;
/// # use weir_core::{Limiter, Quota, Strategy};
/// # let clock = weir_tower::MonotonicClock::start();
/// let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
/// let waiting = weir_tower::Waiting::new(vec![limiter.enqueue(clock.now(), 1, None)?], None, clock);
/// assert_eq!(limiter.queue_len(), 1);
/// drop(waiting);
/// assert_eq!(limiter.queue_len(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped leaves the queue"]
pub struct Waiting {
    tickets: Vec<Ticket>,
    /// The number of a limit without one of these queues that had no room at the request's turn, and the position among
    /// the requests that it refused in the same way.
    refused: Option<(usize, Ticket)>,
    latest: Option<Time>,
    clock: MonotonicClock,
    timer: Option<Pin<Box<Sleep>>>,
    fine: Option<Delay>,
    /// The current sleep, and its timer.
    nap: Option<Nap>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nap {
    Coarse(Time),
    Fine(Time),
}

/// The result for a request that is not refused.
pub(crate) enum Entry<P> {
    Goes(P),
    /// Boxed: most requests never wait, and should not be as large as the requests that wait.
    Waits(Box<Waiting>),
}

/// A limit with one queue.
pub(crate) trait Enqueue: AtHead {
    /// The number of requests for which this request must wait.
    fn queue_len(&self) -> usize;

    /// Takes the last position in the queue.
    fn enqueue(&self, now: Time, latest: Option<Time>) -> Result<Ticket, Self::Refusal>;
}

/// Charges the request if no other request waits and the limit has room; otherwise takes a position in the queue.
/// Refuses the request immediately if its turn would come after `latest`.
#[inline]
pub(crate) fn enter<L: Enqueue>(
    limit: &L,
    now: Time,
    latest: Option<Time>,
    clock: MonotonicClock,
) -> Result<Entry<L::Pass>, L::Refusal> {
    if limit.queue_len() == 0 {
        match limit.charge(now) {
            Ok(pass) => return Ok(Entry::Goes(pass)),
            Err(refusal) => {
                let at = L::retry_after(&refusal).map(|wait| now.saturating_add(wait));
                if at.is_none_or(|at| latest.is_some_and(|latest| at > latest)) {
                    return Err(refusal);
                }
            }
        }
    }
    enter_queue(limit, now, latest, clock)
}

/// Takes the last position in the queue for a request that does not wait, and charges it. The request is refused unless
/// the limit has room now for this request and for all requests before it in the queue. This function is separate, so
/// that the usual path is inlined.
#[inline(never)]
pub(crate) fn join_behind<L: Enqueue>(limit: &L, now: Time) -> Result<Ticket, L::Refusal> {
    limit.enqueue(now, Some(now))
}

#[inline(never)]
fn enter_queue<L: Enqueue>(
    limit: &L,
    now: Time,
    latest: Option<Time>,
    clock: MonotonicClock,
) -> Result<Entry<L::Pass>, L::Refusal> {
    let ticket = limit.enqueue(now, latest)?;
    // The request is at the head if all requests before it have missed their turns.
    if ticket.is_head(now)
        && let Ok(pass) = limit.charge(now)
    {
        return Ok(Entry::Goes(pass));
    }
    Ok(Entry::Waits(Box::new(Waiting::new(vec![ticket], latest, clock))))
}

impl Waiting {
    /// Creates a waiting request with a position in each queue, and an optional latest time of admission.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let latest = Some(clock.now().saturating_add(Duration::from_secs(1)));
    /// let ticket = limiter.enqueue(clock.now(), 1, latest)?;
    /// let waiting = weir_tower::Waiting::new(vec![ticket], latest, clock);
    /// # drop(waiting);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(tickets: Vec<Ticket>, latest: Option<Time>, clock: MonotonicClock) -> Self {
        Self { tickets, refused: None, latest, clock, timer: None, fine: None, nap: None }
    }

    /// Ready with a pass when the request is admitted, or with a refusal if the request must not try again or cannot be
    /// admitted in time. The request has then left its queues.
    ///
    /// ```
    /// # use std::task::{Context, Waker};
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # use weir_core::{Admitted, Refused, Time};
    /// use weir_tower::{AtHead, MonotonicClock, Waiting};
    ///
    /// struct One(Limiter); // implements `AtHead`, as in the example of that trait
    /// # impl AtHead for One {
    /// #     type Pass = Admitted;
    /// #     type Refusal = Refused;
    /// #     fn charge(&self, now: Time) -> Result<Admitted, Refused> {
    /// #         self.0.charge(now, 1)
    /// #     }
    /// #     fn late(&self, now: Time) -> Refused {
    /// #         self.0.enqueue(now, 1, Some(Time::default())).expect_err("no turn comes before now")
    /// #     }
    /// #     fn retry_after(refused: &Refused) -> Option<Duration> {
    /// #         refused.retry_after()
    /// #     }
    /// #     fn quota(refused: &Refused) -> Quota {
    /// #         refused.standing.quota()
    /// #     }
    /// # }
    ///
    /// # let clock = MonotonicClock::start();
    /// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 1, Duration::from_secs(1), None)?);
    /// let mut waiting = Waiting::new(vec![limiter.enqueue(clock.now(), 1, None)?], None, clock);
    /// let mut context = Context::from_waker(Waker::noop());
    /// assert!(waiting.poll(&One(limiter.clone()), &mut context).is_ready()); // at the head, and there is room
    /// assert_eq!(limiter.queue_len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The refusal.
    ///
    /// # Panics
    ///
    /// If it was ready before: the request would be charged twice.
    pub fn poll<L: AtHead>(&mut self, limits: &L, context: &mut Context<'_>) -> Poll<Result<L::Pass, L::Refusal>> {
        assert!(!self.tickets.is_empty(), "polled again after it was ready");
        let decided = ready!(self.poll_decision(limits, context));
        self.tickets.clear();
        self.refused = None;
        Poll::Ready(decided)
    }

    fn poll_decision<L: AtHead>(&mut self, limits: &L, context: &mut Context<'_>) -> Poll<Result<L::Pass, L::Refusal>> {
        loop {
            let now = self.clock.now();
            let nap = match self.position(now, context.waker()) {
                Position::Behind(until) => Nap::Coarse(until),
                Position::Late => return Poll::Ready(Err(limits.late(now))),
                Position::Head => match limits.charge(now) {
                    Ok(pass) => return Poll::Ready(Ok(pass)),
                    Err(refusal) => match self.next_try(now, &refusal, limits, context.waker()) {
                        Some(at) => self.nap(now, at.min(now.saturating_add(MAX_SLEEP)), L::quota(&refusal)),
                        None => return Poll::Ready(Err(refusal)),
                    },
                },
            };
            ready!(self.poll_sleep(now, nap, context));
        }
    }

    /// Ready while the request is at the head of all queues. This is for a request without a latest time that charges its
    /// limits itself.
    ///
    /// ```
    /// # use std::task::{Context, Waker};
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let mut waiting = weir_tower::Waiting::new(vec![limiter.enqueue(clock.now(), 1, None)?], None, clock);
    /// assert!(waiting.poll_head(&mut Context::from_waker(Waker::noop())).is_ready());
    /// assert_eq!(limiter.queue_len(), 1); // it keeps its position
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = self.clock.now();
            let Position::Behind(until) = self.position(now, context.waker()) else { return Poll::Ready(()) };
            ready!(self.poll_sleep(now, Nap::Coarse(until), context));
        }
    }

    /// Keeps the head of all queues until this time, for a request that is already charged but admitted later. No
    /// request behind it is admitted earlier.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use weir_core::{Limiter, Quota, Strategy};
    /// # let clock = weir_tower::MonotonicClock::start();
    /// # let limiter = Limiter::new(clock.now(), Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?);
    /// let waiting = weir_tower::Waiting::new(vec![limiter.enqueue(clock.now(), 1, None)?], None, clock);
    /// waiting.stay_until(clock.now().saturating_add(Duration::from_secs(1)));
    /// assert_eq!(limiter.queue_len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stay_until(&self, at: Time) {
        self.tickets.iter().for_each(|ticket| ticket.retry_at(at));
    }

    /// The position in all queues together. If the request is at the head of some queues only, requests behind it can
    /// pass it there, and everywhere while it waits for a limit without one of these queues.
    fn position(&mut self, now: Time, waker: &Waker) -> Position {
        let mut behind = None;
        for ticket in &self.tickets {
            match ticket.position(now, waker) {
                Position::Head => {}
                Position::Behind(until) => behind = behind.max(Some(until)),
                Position::Late => return Position::Late,
            }
        }
        let Some(until) = behind else {
            let refused = self.refused.as_ref().map(|(_, ticket)| ticket.position(now, waker));
            let Some(Position::Behind(until)) = refused else { return Position::Head };
            // A request ahead can have a later latest time. So this one does not wait for it beyond its own.
            let until = self.latest.map_or(until, |latest| until.min(latest));
            if until <= now {
                return Position::Head;
            }
            self.tickets.iter().for_each(|ticket| ticket.step_aside(until));
            return Position::Behind(until);
        };
        self.refused = None;
        if let [_, _, ..] = self.tickets.as_slice() {
            let heads = self.tickets.iter().filter(|ticket| ticket.position(now, waker) == Position::Head);
            heads.for_each(|ticket| ticket.step_aside(until));
        }
        Position::Behind(until)
    }

    /// The time at which the request at the head tries again, or none if that is too late.
    fn next_try<L: AtHead>(&mut self, now: Time, refusal: &L::Refusal, limits: &L, waker: &Waker) -> Option<Time> {
        let at = now.saturating_add(L::retry_after(refusal)?);
        if self.latest.is_some_and(|latest| at > latest) {
            return None;
        }
        let limit = limits.limit(refusal);
        self.refused.take_if(|(known, _)| *known != limit);
        if limit < self.tickets.len() {
            for (queue, ticket) in self.tickets.iter().enumerate() {
                if queue == limit { ticket.retry_at(at) } else { ticket.step_aside(at) }
            }
        } else {
            self.tickets.iter().for_each(|ticket| ticket.step_aside(at));
            self.refused = self.refused.take().or_else(|| Some((limit, limits.join(refusal, now)?)));
            if let Some((_, ticket)) = &self.refused {
                // This stores the waker, for a call before the next try.
                let _ = ticket.position(now, waker);
                ticket.retry_at(at);
            }
        }
        Some(at)
    }

    /// Chooses the timer with which the request at the head sleeps until its turn.
    fn nap(&self, now: Time, until: Time, quota: Quota) -> Nap {
        if !self.clock.is_fine() || !saves_little(quota) {
            Nap::Coarse(until)
        } else if until.duration_since(now) > COARSE {
            Nap::Coarse(until.saturating_sub(COARSE))
        } else {
            Nap::Fine(until)
        }
    }

    fn poll_sleep(&mut self, now: Time, nap: Nap, context: &mut Context<'_>) -> Poll<()> {
        let is_set = self.nap.replace(nap) == Some(nap);
        match nap {
            Nap::Coarse(until) => {
                let at = self.clock.instant(until);
                let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
                if !is_set {
                    timer.as_mut().reset(at);
                }
                ready!(timer.as_mut().poll(context));
            }
            Nap::Fine(until) => {
                let wait = until.duration_since(now);
                let timer = self.fine.get_or_insert_with(|| Delay::new(wait));
                if !is_set {
                    timer.reset(wait);
                }
                ready!(Pin::new(timer).poll(context));
            }
        }
        self.nap = None;
        Poll::Ready(())
    }
}

/// Whether a limit has room for only about one request: such a limit loses the time by which a request is late.
fn saves_little(quota: Quota) -> bool {
    let saved = match quota.strategy() {
        Strategy::LeakyBucket => 0,
        Strategy::TokenBucket | Strategy::TokenBucketWithDebt | Strategy::Gcra => quota.most() - 1,
        _ => return false,
    };
    quota.period().as_nanos() * u128::from(saved) < COARSE.as_nanos() * u128::from(quota.requests())
}
