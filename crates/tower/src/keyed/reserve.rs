//! A keyed rule that gives each request a turn in the queue of its key.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use weir_core::{RuleLimiter, RuleRefused, Tightest};

use super::{KeyExtractor, KeyedAdmit, of_key::OfKey};
use crate::{
    CostExtractor, MonotonicClock, QueueTicket, Reserve, Turn, Waiting,
    waiting::{Entry, enter},
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
