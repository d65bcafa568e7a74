//! Costs that are known only once the app has answered.
//!
//! A request was charged 1 on arrival. The rest is charged when the response tells it, through places in the limits' lines:
//! what is not there yet is taken from what is to come, twelve hours ahead at most, so nothing is forgiven because it
//! came late. New requests are admitted again once all of it is paid back but for `debt`.
//!
//! The bytes of a body pass when their places come ([`LimitedBody`](super::LimitedBody)). A cost in a header holds nobody up: the response
//! goes at once, and those who come next wait or are refused.

use std::{sync::Arc, time::Duration};

use http::HeaderMap;
use weir_core::{RuleChargedAhead, Ticket, Time};
use weir_tower::MonotonicClock;

use super::{charge::Ask, cost::Cost, in_force::Rule};

/// Farther ahead than any place can be.
const FAR: Duration = Duration::from_hours(24);

/// Into so many places a cost is split at most that is larger than what a limit lets through at once.
const MOST_PLACES: usize = 1024;

/// A cost that one rule charges once the response tells it.
#[derive(Debug)]
pub struct DeferredCost {
    pub(super) rule: Arc<Rule>,
    pub(super) key: Box<[u8]>,
    /// Whether the response is held up by it: not in shadow mode.
    pub(super) enforced: bool,
}

/// Why there is no place.
#[derive(Debug)]
pub(super) enum NoPlace {
    /// At most this many at once.
    TooMany(u64),
    /// The line is as long as it can be; there may be one after this time.
    After(Duration),
}

impl DeferredCost {
    /// None for a rule whose cost was known on arrival.
    pub(super) fn of(ask: &Ask<'_, '_>, enforced: bool) -> Option<Self> {
        let later = ask.limits.cost.is_known_later();
        later.then(|| Self { rule: Arc::clone(ask.rule), key: ask.key.into(), enforced })
    }

    /// Whether it charges the bytes of the body.
    pub fn is_bytes(&self) -> bool {
        self.rule.limits.as_ref().is_some_and(|limits| limits.cost == Cost::ResponseBytes)
    }

    /// Charges what a header of the response tells, and takes it away.
    pub fn charge_header(&self, headers: &mut HeaderMap, clock: MonotonicClock) {
        let Some(limits) = &self.rule.limits else { return };
        if let Cost::ResponseHeader(told) = &limits.cost {
            let cost = told.take(headers);
            self.charge(cost - 1, clock);
        }
    }

    /// Charges whatever there are places for.
    pub(super) fn charge(&self, cost: u64, clock: MonotonicClock) {
        let (mut rest, mut piece) = (cost, cost);
        for _ in 0..MOST_PLACES {
            if rest.min(piece) == 0 {
                return;
            }
            match self.reserve(piece.min(rest), clock) {
                Ok(_) => rest -= piece.min(rest),
                Err(NoPlace::TooMany(most)) => piece = most,
                // For less there may still be one.
                Err(NoPlace::After(_)) => piece = piece.min(rest) / 2,
            }
        }
    }

    /// How many responses wait for it.
    pub(super) fn queue_len(&self) -> usize {
        self.rule.limits.as_ref().map_or(0, |limits| limits.limiter.queue_len(&self.key))
    }

    /// The last place in its queue, for as long as it takes.
    pub(super) fn enqueue(&self, now: Time) -> Option<Ticket> {
        self.rule.limits.as_ref()?.limiter.enqueue(now, &self.key, 1, None).ok()
    }

    /// Takes a place for so much.
    pub(super) fn reserve(&self, cost: u64, clock: MonotonicClock) -> Result<RuleChargedAhead, NoPlace> {
        let Some(limits) = &self.rule.limits else { return Err(NoPlace::After(FAR)) };
        let latest: Time = clock.now().saturating_add(FAR);
        limits.limiter.charge_ahead(|| clock.now(), &self.key, cost, latest).map_err(|refused| {
            match refused.retry_after() {
                None => NoPlace::TooMany(refused.standing.quota().most()),
                Some(wait) => NoPlace::After(wait),
            }
        })
    }
}
