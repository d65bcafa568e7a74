//! A keyed rule that gives each request a turn in the queue of its key.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use weir_core::{Quota, RuleLimiter, RuleRefused, Ticket, Tightest, Time};

use super::{KeyExtractor, KeyedAdmit};
use crate::{
    AtHead, CostExtractor, MonotonicClock, QueueTicket, Reserve, Turn, Waiting,
    waiting::{Enqueue, Entry, enter},
};

impl<Request, K: KeyExtractor<Request>, C: CostExtractor<Request>> Reserve<Request> for KeyedAdmit<K, C> {
    type Ticket = KeyedTicket;
    type Pass = Option<Tightest>;
    type Refusal = RuleRefused;

    fn reserve(
        &self,
        request: &Request,
        max_wait: Duration,
    ) -> Result<Turn<Option<Tightest>, KeyedTicket>, RuleRefused> {
        let turn = self.with_key(request, |key| {
            let now = self.clock.now();
            let cost = self.cost.cost(request);
            let limit = OfKey { rule: &self.rule, clock: self.clock, key, cost };
            Ok(match enter(&limit, now, Some(now.saturating_add(max_wait)), self.clock)? {
                Entry::Goes(tightest) => Turn::Now(Some(tightest)),
                Entry::Waits(waiting) => {
                    let (rule, key) = (self.rule.clone(), key.into());
                    Turn::Later(KeyedTicket { rule, clock: self.clock, key, cost, waiting })
                }
            })
        });
        turn.unwrap_or(Ok(Turn::Now(None)))
    }
}

/// A rule for a request with one key and one cost.
pub(super) struct OfKey<'a> {
    pub(super) rule: &'a RuleLimiter,
    pub(super) clock: MonotonicClock,
    pub(super) key: &'a [u8],
    pub(super) cost: u64,
}

impl AtHead for OfKey<'_> {
    type Pass = Tightest;
    type Refusal = RuleRefused;

    fn charge(&self, _: Time) -> Result<Tightest, RuleRefused> {
        Ok(self.rule.charge(|| self.clock.now(), self.key, self.cost)?.tightest)
    }

    fn late(&self, now: Time) -> RuleRefused {
        self.enqueue(now, Some(Time::default())).expect_err("no turn comes before now")
    }

    fn retry_after(refused: &RuleRefused) -> Option<Duration> {
        refused.retry_after()
    }

    fn quota(refused: &RuleRefused) -> Quota {
        refused.standing.quota()
    }
}

impl Enqueue for OfKey<'_> {
    fn queue_len(&self) -> usize {
        if self.cost == 0 { 0 } else { self.rule.queue_len(self.key) }
    }

    fn enqueue(&self, now: Time, latest: Option<Time>) -> Result<Ticket, RuleRefused> {
        self.rule.enqueue(now, self.key, self.cost, latest)
    }
}

/// A position in the queue of a key; [`Turn`] has an example.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms};
/// use weir_tower::{KeyedAdmit, MonotonicClock, NoKey, Reserve, Turn, WithoutKey};
///
/// let clock = MonotonicClock::start();
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
/// let rule = RuleLimiter::keyed(clock.now(), Terms::new([("each", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
/// let by_name = |name: &&str, key: &mut Vec<u8>| -> Result<(), NoKey> {
///     key.extend_from_slice(name.as_bytes());
///     Ok(())
/// };
/// let limit = KeyedAdmit::new(rule, clock, by_name, WithoutKey::Share);
/// assert!(matches!(limit.reserve(&"ann", Duration::from_secs(90))?, Turn::Now(_)));
/// let Turn::Later(ticket) = limit.reserve(&"ann", Duration::from_secs(90))? else { panic!("not now") };
/// assert!(limit.reserve(&"ann", Duration::from_secs(90)).is_err()); // it would wait two minutes
/// drop(ticket); // the second request leaves the queue
/// assert!(limit.reserve(&"ann", Duration::from_secs(90)).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped leaves the queue"]
pub struct KeyedTicket {
    rule: RuleLimiter,
    clock: MonotonicClock,
    key: Box<[u8]>,
    cost: u64,
    waiting: Box<Waiting>,
}

impl<Request> QueueTicket<Request> for KeyedTicket {
    type Pass = Option<Tightest>;
    type Refusal = RuleRefused;

    fn poll_turn(&mut self, _: &Request, context: &mut Context<'_>) -> Poll<Result<Option<Tightest>, RuleRefused>> {
        let limit = OfKey { rule: &self.rule, clock: self.clock, key: &self.key, cost: self.cost };
        self.waiting.poll(&limit, context).map_ok(Some)
    }
}
