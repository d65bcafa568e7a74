//! Requests that wait for a store's answer.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use weir_core::Time;
use weir_store::{Denied, Grant, Waits};
use weir_tower::MonotonicClock;

use super::{Entry, LateRefusal, OwnedAsk, OwnedAsks, Reason, Wait, enter};
use crate::{
    charge::Ask,
    fields::{Fields, QuotaState},
    follow_up::FollowUp,
    outcome::fields_with_shared,
    shared::SharedAsk,
};

/// The questions of a request to stores.
#[derive(Debug)]
pub(super) struct Asking {
    shared: Vec<(SharedAsk, Answer)>,
    others: OwnedAsks,
    since: Time,
}

#[derive(Debug)]
enum Answer {
    Has(Grant),
    Waits(Waits),
}

impl Wait {
    /// Creates a request that asks the stores for the seats that it does not have. `others` are charged after all
    /// stores have answered.
    pub(crate) fn for_stores(
        shared: Vec<(SharedAsk, Option<Grant>)>,
        others: &[Ask<'_, '_>],
        clock: MonotonicClock,
    ) -> Self {
        let answer = |(ask, grant): (SharedAsk, Option<Grant>)| {
            let answer = grant.map_or_else(|| Answer::Waits(ask.ask()), Answer::Has);
            (ask, answer)
        };
        let own = |ask: &Ask<'_, '_>| OwnedAsk {
            rule: Arc::clone(ask.rule),
            key: ask.key.into(),
            cost: ask.cost,
            latest: ask.latest,
            waits: false,
        };
        let others = OwnedAsks { all: others.iter().map(own).collect(), clock };
        let asking = Asking { shared: shared.into_iter().map(answer).collect(), others, since: clock.now() };
        Self { follow_up: FollowUp::default(), asking: Some(asking), queued: None, seats: Vec::new() }
    }

    /// Holds these seats while the request waits for the rules of scope Pod.
    pub(crate) fn hold(&mut self, seats: Vec<(SharedAsk, Grant)>) {
        self.seats = seats;
    }

    /// Ready when all stores have answered. Then the other rules are charged. Returns `None` if the request must wait
    /// for these other rules.
    pub(super) fn poll_stores(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Fields>, LateRefusal>> {
        let Some(asking) = &mut self.asking else { return Poll::Ready(Ok(None)) };
        let clock = asking.others.clock;
        let mut is_pending = false;
        for (ask, answer) in &mut asking.shared {
            let Answer::Waits(waits) = answer else { continue };
            match Pin::new(waits).poll(context) {
                Poll::Pending => is_pending = true,
                Poll::Ready(Ok(grant)) => *answer = Answer::Has(grant),
                Poll::Ready(Err(denied)) => {
                    let late = refused(ask, denied, clock);
                    // Gives back the seats of the other shared rules.
                    self.asking = None;
                    return Poll::Ready(Err(late));
                }
            }
        }
        if is_pending {
            return Poll::Pending;
        }
        let Some(Asking { shared, others, since }) = self.asking.take() else { return Poll::Ready(Ok(None)) };
        self.seats = shared
            .into_iter()
            .filter_map(|(ask, answer)| if let Answer::Has(grant) = answer { Some((ask, grant)) } else { None })
            .collect();
        let asks = others.asks_that_wait();
        match enter(&asks, clock) {
            Err(at) => {
                drop(asks);
                self.seats.clear();
                Poll::Ready(Err(LateRefusal(Reason::Own { asked: others, at })))
            }
            Ok(Entry::Waits(wait)) => {
                self.queued = wait.queued;
                Poll::Ready(Ok(None))
            }
            Ok(Entry::Goes(charged)) => {
                asks.iter().for_each(|ask| ask.rule.counters.count_allowed());
                for (ask, _) in self.seats.iter().filter(|(ask, _)| ask.limits().is_patient()) {
                    ask.rule.counters.count_wait(clock.now().duration_since(since));
                }
                let states = settle(&mut self.seats);
                let states: Vec<_> = states.iter().map(|(ask, state)| (ask, *state)).collect();
                Poll::Ready(Ok(Some(fields_with_shared(&asks, &charged, &states))))
            }
        }
    }
}

impl OwnedAsks {
    fn asks_that_wait(&self) -> Vec<Ask<'_, '_>> {
        let latest = self.all.iter().map(|held| held.latest);
        self.asks().into_iter().zip(latest).map(|(ask, latest)| Ask { latest, ..ask }).collect()
    }
}

fn refused(ask: &SharedAsk, denied: Denied, clock: MonotonicClock) -> LateRefusal {
    LateRefusal(Reason::Shared { ask: ask.clone(), denied, clock })
}

/// Uses and counts the seats of an admitted request. Returns the remaining quota of their rules.
pub(crate) fn settle(seats: &mut Vec<(SharedAsk, Grant)>) -> Vec<(SharedAsk, QuotaState)> {
    let settled = seats.drain(..).map(|(ask, grant)| {
        let state = ask.state(grant.left());
        grant.settle();
        ask.rule.counters.count_allowed();
        (ask, state)
    });
    settled.collect()
}
