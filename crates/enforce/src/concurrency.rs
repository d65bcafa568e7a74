//! Rules that limit how many requests are in flight.
//!
//! A request takes a permit of each such rule before any rate is charged: if another rule refuses the request, its
//! permits are simply dropped. Until then, another request can be refused because these permits are taken. The permits
//! belong to the [`FollowUp`](super::FollowUp) of the request, then to the body of its response or to the tunnel that
//! it opens. They are dropped when the response has ended, when the client has disconnected, or when the tunnel is
//! closed.

use std::sync::Arc;

use weir_core::{Full, InFlightByKey, KeyPermit};

use super::{
    cost::Cost,
    key::KeySpec,
    lower::{ConcurrentLimits, LoweredConcurrency},
    quota_headers::{QuotaHeaders, QuotaState},
};

/// The value of `Retry-After`. The agent does not know when a request in flight ends.
const RETRY_AFTER_SECONDS: u64 = 1;

/// The concurrent limit of a rule in force.
#[derive(Debug)]
pub(super) struct Concurrency {
    /// Shared with the rule's successors, so requests that are in flight during a change stay counted.
    in_flight: InFlightByKey,
    pub(super) key: KeySpec,
    pub(super) cost: Cost,
    pub(super) name: Box<str>,
    pub(super) quota_headers: Arc<QuotaHeaders>,
    pub(super) limits: ConcurrentLimits,
}

/// A limit that has no capacity for a request.
#[derive(Debug)]
pub(super) struct NoPermit {
    pub(super) state: QuotaState,
    pub(super) override_index: Option<usize>,
    /// Whether the request asks for more than the limit.
    pub(super) never: bool,
}

impl Concurrency {
    /// `before` is the same rule before a change.
    pub(super) fn from_lowered(before: Option<&Self>, lowered: LoweredConcurrency) -> Self {
        let LoweredConcurrency { key, cost, name, quota_headers, limits } = lowered;
        let in_flight = before.filter(|before| before.key == key).map(|before| before.in_flight.clone());
        Self {
            in_flight: in_flight.unwrap_or_default(),
            key,
            cost,
            name,
            quota_headers: Arc::new(quota_headers),
            limits,
        }
    }

    /// Takes a permit. Returns it with the state of the limit, and with the key's override.
    pub(super) fn acquire(&self, key: &[u8], cost: u64) -> Result<(KeyPermit, QuotaState, Option<usize>), NoPermit> {
        let (limit, override_index) = self.limits.of(key);
        match self.in_flight.acquire(key, cost, limit) {
            Ok(permit) => {
                let state = QuotaState {
                    limit: 0,
                    requests: limit.get(),
                    remaining: limit.get().saturating_sub(permit.in_use()),
                    seconds: 0,
                };
                Ok((permit, state, override_index))
            }
            Err(Full { limit, cost, in_use, .. }) => Err(NoPermit::new(limit, cost, in_use, override_index)),
        }
    }

    /// What [`acquire`](Self::acquire) would answer.
    pub(super) fn peek(&self, key: &[u8], cost: u64) -> Result<QuotaState, NoPermit> {
        let (limit, override_index) = self.limits.of(key);
        let in_use = self.in_flight.in_use(key);
        let remaining = limit.get().saturating_sub(in_use);
        if cost > remaining {
            return Err(NoPermit::new(limit.get(), cost, in_use, override_index));
        }
        Ok(QuotaState { limit: 0, requests: limit.get(), remaining, seconds: 0 })
    }

    /// How many requests of all keys are in flight.
    pub(super) fn total(&self) -> u64 {
        self.in_flight.total()
    }
}

impl NoPermit {
    fn new(limit: u64, cost: u64, in_use: u64, override_index: Option<usize>) -> Self {
        let (never, remaining) = (cost > limit, limit.saturating_sub(in_use));
        let seconds = if never { 0 } else { RETRY_AFTER_SECONDS };
        Self { state: QuotaState { limit: 0, requests: limit, remaining, seconds }, override_index, never }
    }
}
