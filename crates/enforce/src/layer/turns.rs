//! Gives turns to requests by the rules in force.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use weir_tower::{QueueTicket, Reserve, Timed, Turn};

use super::{
    body::BodyCosts,
    respond::{ambiguous, refused},
};
use crate::{
    decide::{
        follow_up::{Deadline, FollowUp},
        verdict::{Pass, Verdict},
        wait::Wait,
    },
    format::Format,
    gate::Gate,
    matching::{AmbiguousPaths, Headers, is_ambiguous},
};

/// Decides with a gate when the turn of each request comes, as `weir_tower` requires.
#[derive(Clone, Debug)]
pub struct Turns<G> {
    pub(super) gate: G,
    /// The name of this program in responses to ambiguous paths.
    pub(super) server: &'static str,
}

/// A request that waits for its turn.
#[derive(Debug)]
pub struct WaitTicket<G> {
    wait: Box<Wait>,
    gate: G,
}

/// Shows a server whether a request waits in the queue of a rule.
///
/// A server adds a clone of this value to the extensions of a request. The [`LimitLayer`](super::LimitLayer) sets the
/// value while the request is in a queue. So the server can end a request whose client seems to have left, before the
/// request takes capacity. If a request is dropped in the queue, the value stays set until the server clears it.
#[derive(Clone, Debug, Default)]
pub struct InQueue(Arc<AtomicBool>);

impl InQueue {
    /// Whether the request waits in a queue.
    pub fn get(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Clears the value, before the next request of a connection.
    pub fn clear(&self) {
        self.set(false);
    }

    fn set(&self, is_queued: bool) {
        self.0.store(is_queued, Relaxed);
    }
}

impl<A, G: Gate + Clone> Reserve<Request<A>> for Turns<G> {
    type Ticket = WaitTicket<G>;
    type Pass = Pass;
    type Refusal = Box<Response<Bytes>>;

    fn reserve(&self, request: &Request<A>, _: Duration) -> Result<Turn<Pass, WaitTicket<G>>, Self::Refusal> {
        let gate = &self.gate;
        if gate.options().paths == AmbiguousPaths::Refuse && is_ambiguous(gate.target(request).path()) {
            return Err(Box::new(ambiguous(self.server)));
        }
        gate.decide(request, |verdict| match verdict {
            Verdict::Pass(mut pass) => {
                if let Some(follow_up) = &mut pass.follow_up {
                    pass_on(follow_up, request);
                }
                Ok(Turn::Now(pass))
            }
            Verdict::Wait(wait) => Ok(Turn::Later(WaitTicket { wait, gate: gate.clone() })),
            Verdict::Refuse(refusal) => Err(Box::new(refused(&refusal, Format::of(Headers::Map(request.headers()))))),
        })
    }
}

impl<A, G: Gate> QueueTicket<Request<A>> for WaitTicket<G> {
    type Pass = Pass;
    type Refusal = Box<Response<Bytes>>;

    fn poll_turn(&mut self, request: &Request<A>, context: &mut Context<'_>) -> Poll<Result<Pass, Self::Refusal>> {
        let turn = self.wait.poll_turn(context);
        if let Some(in_queue) = request.extensions().get::<InQueue>() {
            in_queue.set(turn.is_pending() && self.wait.is_queued());
        }
        Poll::Ready(match ready!(turn) {
            Ok(fields) => {
                pass_on(&mut self.wait.follow_up, request);
                Ok(Pass { fields, follow_up: mem::take(&mut self.wait.follow_up).boxed() })
            }
            Err(late) => {
                let format = Format::of(Headers::Map(request.headers()));
                Err(self.gate.refuse_late(late, request, |refusal| Box::new(refused(refusal, format))))
            }
        })
    }
}

/// Passes the costs that count the body of an admitted request to the server, which forwards the body. A request without
/// the extension has no body.
fn pass_on<A>(follow_up: &mut FollowUp, request: &Request<A>) {
    let costs = follow_up.take_request_bytes();
    if let Some(of_body) = request.extensions().get::<BodyCosts>() {
        of_body.put(costs);
    }
}

impl<G> Timed for WaitTicket<G> {
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
