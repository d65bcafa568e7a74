//! Bodies of requests and responses whose bytes are counted by limits.
//!
//! A frame passes at the time for which every limit has reserved capacity for it, or earlier if the limits are raised.
//! So the bytes that a limit has admitted are never more than its burst, its debt, and the refill since. A frame that is
//! larger than the burst passes in pieces, and the body is not read faster than it passes.
//!
//! The bodies of one key wait in a queue, and only the first body is charged, a few milliseconds ahead. So each body
//! gets its share. If a client disconnects, its charge is the latest charge, and is given back completely.
//!
//! Rules in shadow mode are charged, too, but delay no body.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use weir_core::{RuleCharge, Time};
use weir_tower::{MonotonicClock, Waiting};

use crate::decide::{
    deferred::{DeferredCost, NotReserved},
    follow_up::HeldPermit,
};

/// The time for which a body reserves capacity ahead. Timers have a resolution of a millisecond, and every turn
/// costs a timer.
const AHEAD: Duration = Duration::from_millis(10);

/// The longest sleep before a body looks at its limits again: no event wakes it when a limit is raised.
const MAX_SLEEP: Duration = Duration::from_secs(1);

/// The body of a request or of a response behind the limits.
#[derive(Debug)]
pub struct LimitedBody<B> {
    kind: Kind<B>,
    /// The permits of the request. A server drops a body when it has ended or cannot be sent.
    _permits: Vec<HeldPermit>,
}

#[derive(Debug)]
enum Kind<B> {
    /// A body whose bytes no limit counts.
    Plain(B),
    /// The body of a response that the service did not send.
    Own(Bytes),
    Counted(Box<Counted<B>>),
}

/// A body whose bytes are counted.
#[derive(Debug)]
struct Counted<B> {
    body: B,
    costs: Vec<DeferredCost>,
    clock: MonotonicClock,
    /// The number of bytes that were charged on arrival and have not passed yet.
    paid: usize,
    /// The bytes of the current frame that have not passed yet.
    rest: Bytes,
    turn: Option<Turn>,
    /// The position of the body in the queues of all costs, until its turn ends.
    position: Option<Waiting>,
}

/// The wait for the next piece.
#[derive(Debug)]
struct Turn {
    /// The time for which the charges reserve capacity.
    at: Time,
    sleep: Pin<Box<Sleep>>,
    /// The number of bytes that pass after the wait; 0 if the wait is only for the next attempt.
    length: usize,
    /// The charges for these bytes, with the index of the cost.
    charges: Vec<(usize, RuleCharge)>,
}

impl Turn {
    fn new(now: Time, at: Time, length: usize, charges: Vec<(usize, RuleCharge)>) -> Self {
        Self { at, sleep: sleep(now, at), length, charges }
    }

    /// Ready at the time of the reservation, or when the limits have room after all charges, of which these are the
    /// last. A raised limit has room earlier.
    fn poll_over(&mut self, costs: &[DeferredCost], clock: MonotonicClock, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.sleep.as_mut().poll(cx));
            let now = clock.now();
            if now >= self.at || costs.iter().filter(|cost| cost.is_enforced()).all(|cost| cost.has_room(now)) {
                return Poll::Ready(());
            }
            self.sleep = sleep(now, self.at);
        }
    }
}

fn sleep(now: Time, until: Time) -> Pin<Box<Sleep>> {
    Box::pin(tokio::time::sleep(until.duration_since(now).min(MAX_SLEEP)))
}

/// A reservation for some bytes.
struct Granted {
    length: usize,
    at: Time,
    charges: Vec<(usize, RuleCharge)>,
}

impl<B> LimitedBody<B> {
    /// Creates a body. If no cost counts bytes, the body passes without counting.
    pub(super) fn new(body: B, costs: Vec<DeferredCost>, permits: Vec<HeldPermit>, clock: MonotonicClock) -> Self {
        let kind = if costs.is_empty() {
            Kind::Plain(body)
        } else {
            let counted = Counted { body, costs, clock, paid: 1, rest: Bytes::new(), turn: None, position: None };
            Kind::Counted(Box::new(counted))
        };
        Self { kind, _permits: permits }
    }

    /// Creates the body of a response that the service did not send. No limit counts it.
    pub(super) fn own(text: Bytes) -> Self {
        Self { kind: Kind::Own(text), _permits: Vec::new() }
    }
}

/// An empty body, for the responses of layers around this one. Many layers need it, such as those of tower-http.
impl<B> Default for LimitedBody<B> {
    fn default() -> Self {
        Self::own(Bytes::new())
    }
}

impl<B: Body<Data = Bytes> + Unpin> Counted<B> {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        loop {
            if let Some(turn) = &mut self.turn {
                ready!(turn.poll_over(&self.costs, self.clock, cx));
                let length = turn.length;
                self.turn = None;
                if length > 0 {
                    self.position = None;
                    return Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))));
                }
            }
            if self.rest.is_empty() {
                let frame = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    Some(Ok(frame)) => frame,
                    ended => return Poll::Ready(ended),
                };
                match frame.into_data() {
                    Ok(data) if !data.is_empty() => self.rest = data,
                    Ok(empty) => return Poll::Ready(Some(Ok(Frame::data(empty)))),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                }
                self.count_in_shadow();
            }
            ready!(self.poll_head(cx));
            if let Some(length) = self.take_turn() {
                return Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))));
            }
        }
    }
}

impl<B> Counted<B> {
    /// Charges the whole frame immediately for rules in shadow mode, which delay no body.
    fn count_in_shadow(&self) {
        let bytes = self.rest.len() - self.paid.min(self.rest.len());
        for cost in self.costs.iter().filter(|cost| !cost.is_enforced()) {
            cost.charge(u64::try_from(bytes).unwrap_or(u64::MAX), self.clock);
        }
    }

    /// Ready when this body is at the head of all queues, or if no other body waits.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut limits = self.costs.iter().filter(|cost| cost.is_enforced());
        if self.position.is_none() && limits.any(|cost| cost.queue_len() > 0) {
            self.position = Some(self.enqueue());
        }
        match &mut self.position {
            Some(position) => position.poll_head(cx),
            None => Poll::Ready(()),
        }
    }

    fn enqueue(&self) -> Waiting {
        let now = self.clock.now();
        let tickets = self.costs.iter().filter(|cost| cost.is_enforced()).filter_map(|cost| cost.enqueue(now));
        Waiting::new(tickets.collect(), None, self.clock)
    }

    /// Reserves capacity, and returns the number of bytes that pass now. Returns `None` if the bytes must wait.
    fn take_turn(&mut self) -> Option<usize> {
        let now = self.clock.now();
        let mut length = self.paid.min(self.rest.len());
        self.paid -= length;
        let (mut at, mut charges) = (now, Vec::new());
        while length < self.rest.len() && at.duration_since(now) < AHEAD {
            match self.reserve(self.rest.len() - length) {
                Ok(granted) => {
                    length += granted.length;
                    at = at.max(granted.at);
                    charges.extend(granted.charges);
                }
                Err(wait) if length == 0 => {
                    at = now.saturating_add(wait.min(MAX_SLEEP));
                    break;
                }
                Err(_) => break,
            }
        }
        if at <= now && length > 0 {
            self.position = None;
            return Some(length);
        }
        let position = self.position.take().unwrap_or_else(|| self.enqueue());
        position.stay_until(at);
        self.position = Some(position);
        self.turn = Some(Turn::new(now, at, length, charges));
        None
    }

    /// Reserves at most this number of bytes in every limit that delays the body. The error is the time for which no
    /// reservation is possible.
    fn reserve(&self, most: usize) -> Result<Granted, Duration> {
        let mut piece = most;
        'smaller: loop {
            let cost = u64::try_from(piece).unwrap_or(u64::MAX);
            let (mut at, mut charges) = (Time::default(), Vec::with_capacity(self.costs.len()));
            for (index, deferred) in self.costs.iter().enumerate().filter(|(_, cost)| cost.is_enforced()) {
                match deferred.reserve(cost, self.clock) {
                    Ok(reserved) => {
                        at = at.max(reserved.at);
                        charges.push((index, reserved.charge));
                    }
                    Err(none) => {
                        self.refund(charges);
                        match none {
                            NotReserved::TooMany(most) => {
                                piece = usize::try_from(most).unwrap_or(usize::MAX).min(piece);
                            }
                            NotReserved::After(wait) => return Err(wait),
                        }
                        continue 'smaller;
                    }
                }
            }
            return Ok(Granted { length: piece, at, charges });
        }
    }

    fn refund(&self, charges: Vec<(usize, RuleCharge)>) {
        for (index, charge) in charges {
            self.costs[index].refund(charge, self.clock);
        }
    }
}

impl<B> Drop for Counted<B> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.refund(turn.charges);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.kind {
            Kind::Plain(body) => Pin::new(body).poll_frame(cx),
            Kind::Own(text) if text.is_empty() => Poll::Ready(None),
            Kind::Own(text) => Poll::Ready(Some(Ok(Frame::data(mem::take(text))))),
            Kind::Counted(counted) => counted.poll_data(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Plain(body) => body.is_end_stream(),
            Kind::Own(text) => text.is_empty(),
            Kind::Counted(counted) => counted.rest.is_empty() && counted.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Plain(body) => body.size_hint(),
            Kind::Own(text) => SizeHint::with_exact(text.len() as u64),
            Kind::Counted(counted) => {
                let held = u64::try_from(counted.rest.len()).unwrap_or(u64::MAX);
                let of_body = counted.body.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(of_body.lower().saturating_add(held));
                if let Some(upper) = of_body.upper() {
                    hint.set_upper(upper.saturating_add(held));
                }
                hint
            }
        }
    }
}

/// The costs that count the bytes of a request's body.
///
/// A server adds an empty value to the extensions of each request with a body. The [`LimitLayer`](super::LimitLayer)
/// puts the costs into it when it admits the request. The service behind the layer takes the extension and
/// [limits](Self::limit) the body.
#[derive(Clone, Debug, Default)]
pub struct BodyCosts(Arc<Mutex<Vec<DeferredCost>>>);

impl BodyCosts {
    pub(super) fn put(&self, costs: Vec<DeferredCost>) {
        *self.costs() = costs;
    }

    /// Charges the bytes of the body while they pass, no faster than the limits allow. Returns the body itself if no
    /// rule counts it.
    ///
    /// # Errors
    ///
    /// The body that no rule counts.
    pub fn limit<B: Body>(self, body: B, clock: MonotonicClock) -> Result<LimitedBody<B>, B> {
        let costs = mem::take(&mut *self.costs());
        if costs.is_empty() { Err(body) } else { Ok(LimitedBody::new(body, costs, Vec::new(), clock)) }
    }

    fn costs(&self) -> MutexGuard<'_, Vec<DeferredCost>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
