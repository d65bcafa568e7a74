//! Responses whose bytes are counted: what a limit of bytes lets through, and when.
//!
//! A frame passes once there is a place for it in the line of every limit, so until any moment a limit has let through at
//! most its burst, its debt, and what flowed in since. Frames that are larger than what a limit lets through at once go in
//! pieces, and the app is not read ahead of the client. The responses that a key is counted for stand in its queue, and only the
//! one at the head is charged, for some milliseconds ahead: so each gets its share, and what a client is charged that leaves is
//! the last of all charges and given back whole.
//!
//! Policies in shadow mode are charged the same and hold nothing up.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Sleep;
use weir_core::{Quota, RuleCharge, Time};
use weir_tower::{AtHead, MonotonicClock, Waiting};

use super::later::{NoPlace, Owed};
use crate::proxy::ResponseBody;

/// Places are taken until they are this far ahead: timers are no finer than a millisecond, and every turn costs one.
const AHEAD: Duration = Duration::from_millis(10);

/// How long to wait before asking again where there is no place at all.
const AGAIN: Duration = Duration::from_secs(60);

/// A response's body behind the limits.
#[derive(Debug)]
pub(crate) enum LimitedBody {
    /// Nobody counts its bytes.
    Plain(ResponseBody),
    Counted(Box<Counted>),
}

/// A body whose bytes are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    body: ResponseBody,
    owed: Vec<Owed>,
    clock: MonotonicClock,
    /// Bytes that were paid for on arrival.
    paid: usize,
    /// Of the frame that is on its way.
    rest: Bytes,
    turn: Option<Turn>,
    /// Its place in the queues of all that are owed, until its turn is over.
    place: Option<Waiting>,
}

/// The wait for the next piece.
#[derive(Debug)]
struct Turn {
    at: Pin<Box<Sleep>>,
    /// 0 if it is only to ask again.
    length: usize,
    /// What was charged for it, and by which of those who are owed.
    charges: Vec<(usize, RuleCharge)>,
}

/// Places for some bytes.
struct Granted {
    length: usize,
    at: Time,
    charges: Vec<(usize, RuleCharge)>,
}

impl LimitedBody {
    /// `owed` are bytes; with none of them the body passes as it is.
    pub(super) fn new(body: ResponseBody, owed: Vec<Owed>, clock: MonotonicClock) -> Self {
        if owed.is_empty() {
            return Self::Plain(body);
        }
        Self::Counted(Box::new(Counted { body, owed, clock, paid: 1, rest: Bytes::new(), turn: None, place: None }))
    }
}

impl Counted {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        loop {
            if let Some(turn) = &mut self.turn {
                ready!(turn.at.as_mut().poll(cx));
                let length = turn.length;
                self.turn = None;
                self.place = None;
                if length > 0 {
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

    /// The whole frame at once, for policies that hold nothing up.
    fn count_in_shadow(&self) {
        let cost = self.rest.len() - self.paid.min(self.rest.len());
        for owed in self.owed.iter().filter(|owed| !owed.enforced) {
            owed.charge(u64::try_from(cost).unwrap_or(u64::MAX), self.clock);
        }
    }

    /// Ready at the head of all queues; at once where no other response waits.
    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut limits = self.owed.iter().filter(|owed| owed.enforced);
        if self.place.is_none() && limits.any(|owed| owed.queue_len() > 0) {
            self.place = Some(self.enqueue());
        }
        match &mut self.place {
            Some(place) => place.poll(&Unasked, cx).map(drop),
            None => Poll::Ready(()),
        }
    }

    fn enqueue(&self) -> Waiting {
        let now = self.clock.now();
        let tickets = self.owed.iter().filter(|owed| owed.enforced).filter_map(|owed| owed.enqueue(now));
        Waiting::new(tickets.collect(), None, self.clock)
    }

    /// How many bytes may go now; none if a turn has to be waited for.
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
                    at = now.saturating_add(wait.min(AGAIN));
                    break;
                }
                Err(_) => break,
            }
        }
        if at <= now && length > 0 {
            self.place = None;
            return Some(length);
        }
        let place = self.place.take().unwrap_or_else(|| self.enqueue());
        place.stay_until(at);
        self.place = Some(place);
        let at = Box::pin(tokio::time::sleep(at.duration_since(now)));
        self.turn = Some(Turn { at, length, charges });
        None
    }

    /// Places for so many bytes or fewer in every line that holds the body up: an error is how
    /// long there is none.
    fn reserve(&self, most: usize) -> Result<Granted, Duration> {
        let mut piece = most;
        'smaller: loop {
            let cost = u64::try_from(piece).unwrap_or(u64::MAX);
            let (mut at, mut charges) = (Time::default(), Vec::with_capacity(self.owed.len()));
            for (index, owed) in self.owed.iter().enumerate().filter(|(_, owed)| owed.enforced) {
                match owed.reserve(cost, self.clock) {
                    Ok(reserved) => {
                        at = at.max(reserved.at);
                        charges.push((index, reserved.charge));
                    }
                    Err(none) => {
                        self.give_back(charges);
                        match none {
                            NoPlace::TooMany(most) => piece = usize::try_from(most).unwrap_or(usize::MAX).min(piece),
                            NoPlace::After(wait) => return Err(wait),
                        }
                        continue 'smaller;
                    }
                }
            }
            return Ok(Granted { length: piece, at, charges });
        }
    }

    fn give_back(&self, charges: Vec<(usize, RuleCharge)>) {
        for (index, charge) in charges {
            let owed = &self.owed[index];
            if let Some(limits) = &owed.rule.limits {
                limits.limiter.refund(&owed.key, charge, || self.clock.now());
            }
        }
    }
}

/// At the head of the queues, the limits are charged by [`Counted::take_turn`].
struct Unasked;

impl AtHead for Unasked {
    type Pass = ();
    type Refusal = Infallible;

    fn charge(&self, _: Time) -> Result<(), Infallible> {
        Ok(())
    }

    fn late(&self, _: Time) -> Infallible {
        unreachable!("a body waits as long as it takes")
    }

    fn retry_after(never: &Infallible) -> Option<Duration> {
        match *never {}
    }

    fn quota(never: &Infallible) -> Quota {
        match *never {}
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.give_back(turn.charges);
        }
    }
}

impl Body for LimitedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Plain(body) => Pin::new(body).poll_frame(cx),
            Self::Counted(counted) => counted.poll_data(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Plain(body) => body.is_end_stream(),
            Self::Counted(counted) => counted.rest.is_empty() && counted.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Plain(body) => body.size_hint(),
            Self::Counted(counted) => {
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
