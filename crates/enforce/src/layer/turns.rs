//! Gives turns to requests by the rules in force.

use std::{
    mem,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use weir_tower::{QueueTicket, Reserve, Timed, Turn};

use super::respond::refused;
use crate::{
    follow_up::Deadline,
    format::Format,
    gate::Gate,
    matching::Headers,
    verdict::{Pass, Verdict},
    wait::Wait,
};

/// Gives turns to requests by the decisions of a gate.
#[derive(Clone, Debug)]
pub struct Turns<G>(pub(super) G);

/// A request that waits for its turn.
#[derive(Debug)]
pub struct Position<G> {
    wait: Box<Wait>,
    gate: G,
}

impl<A, G: Gate + Clone> Reserve<Request<A>> for Turns<G> {
    type Ticket = Position<G>;
    type Pass = Pass;
    type Refusal = Box<Response<Bytes>>;

    fn reserve(&self, request: &Request<A>, _: Duration) -> Result<Turn<Pass, Position<G>>, Self::Refusal> {
        self.0.decide(request, |verdict| match verdict {
            Verdict::Pass(pass) => Ok(Turn::Now(pass)),
            Verdict::Wait(wait) => Ok(Turn::Later(Position { wait, gate: self.0.clone() })),
            Verdict::Refuse(refusal) => Err(Box::new(refused(&refusal, Format::of(Headers::Map(request.headers()))))),
        })
    }
}

impl<A, G: Gate> QueueTicket<Request<A>> for Position<G> {
    type Pass = Pass;
    type Refusal = Box<Response<Bytes>>;

    fn poll_turn(&mut self, request: &Request<A>, context: &mut Context<'_>) -> Poll<Result<Pass, Self::Refusal>> {
        Poll::Ready(match ready!(self.wait.poll_turn(context)) {
            Ok(fields) => Ok(Pass { fields, follow_up: mem::take(&mut self.wait.follow_up).boxed() }),
            Err(late) => {
                let format = Format::of(Headers::Map(request.headers()));
                Err(self.gate.refuse_late(late, request, |refusal| Box::new(refused(refusal, format))))
            }
        })
    }
}

impl<G> Timed for Position<G> {
    type Exceeded = Deadline;

    fn take_deadline(&mut self) -> Option<(Duration, Deadline)> {
        self.wait.follow_up.take_deadline()
    }
}

impl Timed for Pass {
    type Exceeded = Deadline;

    fn take_deadline(&mut self) -> Option<(Duration, Deadline)> {
        self.follow_up.as_mut()?.take_deadline()
    }
}
