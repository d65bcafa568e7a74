//! Requests that wait for a store's answer.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use weir_core::Time;
use weir_store::{Claim, Grant, PendingGrant, Refused};
use weir_tower::MonotonicClock;

use super::{Entered, LateRefusal, OwnedDemand, OwnedDemands, Reason, Turn, Wait, enter};
use crate::{
    decide::{
        charge::{Demand, opens_after},
        follow_up::FollowUp,
        outcome::admit,
        shared::SharedDemand,
    },
    quota_headers::Fields,
};

/// The questions of a request to stores.
#[derive(Debug)]
pub(super) struct StoreQuestions {
    shared: Vec<(SharedDemand, SeatsOrWait)>,
    then: Then,
}

/// What a request does when all stores have answered.
#[derive(Debug)]
enum Then {
    /// It is charged to the rules of scope Pod, or waits in their queues. It waits for the stores since this time.
    Enter(OwnedDemands, Time),
    /// It goes.
    Go(Turn),
}

#[derive(Debug)]
enum SeatsOrWait {
    Has(Grant),
    Waits(PendingGrant),
}

impl Then {
    fn clock(&self) -> MonotonicClock {
        let (Self::Enter(others, _) | Self::Go(Turn { demands: others, .. })) = self;
        others.clock
    }

    /// Refunds the charges of the rules of scope Pod, if there are any.
    fn refused(self) -> OwnedDemands {
        match self {
            Self::Enter(others, _) => others,
            Self::Go(turn) => turn.into_refunded(),
        }
    }
}

impl StoreQuestions {
    /// Ready when the request has seats of all shared rules, in windows that have not ended.
    ///
    /// # Errors
    ///
    /// The first refusal, and the number of its rule.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), (usize, Refused)>> {
        loop {
            let mut is_pending = false;
            for (index, (_, answer)) in self.shared.iter_mut().enumerate() {
                let SeatsOrWait::Waits(waits) = answer else { continue };
                match Pin::new(waits).poll(context) {
                    Poll::Pending => is_pending = true,
                    Poll::Ready(Ok(grant)) => *answer = SeatsOrWait::Has(grant),
                    Poll::Ready(Err(refused)) => return Poll::Ready(Err((index, refused))),
                }
            }
            if is_pending {
                return Poll::Pending;
            }
            let mut is_complete = true;
            for (index, (demand, answer)) in self.shared.iter_mut().enumerate() {
                if !matches!(answer, SeatsOrWait::Has(grant) if grant.has_ended()) {
                    continue;
                }
                // The request has waited long enough: it does not wait for another window.
                demand.refuse_waits();
                *answer = match demand.claim() {
                    Claim::Granted(grant) => SeatsOrWait::Has(grant),
                    Claim::AskStore => SeatsOrWait::Waits(demand.ask()),
                    Claim::Refused(refused) => return Poll::Ready(Err((index, refused))),
                };
                is_complete = false;
            }
            if is_complete {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl Wait {
    /// Creates a request that asks the stores for the seats that it does not have. `others` are charged after all
    /// stores have answered.
    pub(crate) fn for_stores(
        shared: Vec<(SharedDemand, Option<Grant>)>,
        others: &[Demand<'_, '_>],
        clock: MonotonicClock,
    ) -> Self {
        let answer = |(demand, grant): (SharedDemand, Option<Grant>)| {
            let answer = grant.map_or_else(|| SeatsOrWait::Waits(demand.ask()), SeatsOrWait::Has);
            (demand, answer)
        };
        let all = others.iter().map(|demand| OwnedDemand::of(demand, false)).collect();
        let then = Then::Enter(OwnedDemands { all, clock }, clock.now());
        let questions = StoreQuestions { shared: shared.into_iter().map(answer).collect(), then };
        Self {
            follow_up: FollowUp::default(),
            questions: Some(questions),
            queued: None,
            seats: Vec::new(),
            headers: None,
        }
    }

    /// Holds these seats while the request waits for the rules of scope Pod.
    pub(crate) fn keep_seats(&mut self, seats: Vec<(SharedDemand, Grant)>) {
        self.seats = seats;
    }

    /// Takes other seats for those whose window ended while the request waited.
    pub(super) fn renew_seats(&mut self, turn: Turn) {
        let shared = self.seats.drain(..).map(|(demand, grant)| (demand, SeatsOrWait::Has(grant)));
        self.questions = Some(StoreQuestions { shared: shared.collect(), then: Then::Go(turn) });
    }

    /// Ready when all stores have answered. Then the other rules are charged. Returns `None` if the request must wait
    /// for these other rules.
    pub(super) fn poll_stores(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Fields>, LateRefusal>> {
        let Some(questions) = &mut self.questions else { return Poll::Ready(Ok(None)) };
        let (clock, answers) = (questions.then.clock(), ready!(questions.poll(context)));
        let Some(StoreQuestions { mut shared, then }) = self.questions.take() else { return Poll::Ready(Ok(None)) };
        if let Err((index, refused)) = answers {
            // The time until all rules admit the request, including those of scope Pod.
            let others = opens_after(&then.refused().demands(), clock.now());
            let retry_after = refused.retry_after.zip(others).map(|(wait, others)| wait.max(others));
            let (demand, _) = shared.swap_remove(index);
            return Poll::Ready(Err(late_refusal(demand, Refused { retry_after, ..refused }, clock)));
        }
        self.seats = shared
            .into_iter()
            .filter_map(
                |(demand, answer)| if let SeatsOrWait::Has(grant) = answer { Some((demand, grant)) } else { None },
            )
            .collect();
        let (others, since) = match then {
            Then::Enter(others, since) => (others, since),
            Then::Go(turn) => return Poll::Ready(Ok(Some(turn.go(&mut self.seats, &self.follow_up.costs)))),
        };
        let demands = others.demands_that_wait();
        match enter(&demands, clock) {
            Err(at) => {
                drop(demands);
                self.seats.clear();
                Poll::Ready(Err(LateRefusal::new(Reason::Own { demands: others, at })))
            }
            Ok(Entered::Waits(wait)) => {
                self.queued = wait.queued;
                Poll::Ready(Ok(None))
            }
            Ok(Entered::Goes(charged)) => {
                for (demand, _) in self.seats.iter().filter(|(demand, _)| demand.limits().is_patient()) {
                    demand.rule.statistics.count_wait(clock.now().duration_since(since));
                }
                let fields = admit(&demands, charged, &mut self.seats, (&self.follow_up.costs, clock));
                Poll::Ready(Ok(Some(fields)))
            }
        }
    }
}

impl OwnedDemands {
    fn demands_that_wait(&self) -> Vec<Demand<'_, '_>> {
        let latest = self.all.iter().map(|held| held.latest);
        self.demands().into_iter().zip(latest).map(|(demand, latest)| Demand { latest, ..demand }).collect()
    }
}

fn late_refusal(demand: SharedDemand, refused: Refused, clock: MonotonicClock) -> LateRefusal {
    LateRefusal::new(Reason::Shared { demand, refused, clock })
}
