//! A rule that is checked with the key of each request.

use std::{future::poll_fn, time::Duration};

use weir_core::{RuleLimiter, RuleRefused, Tightest};

use super::{KeyExtractor, buffer::with_buffer, of_key::OfKey};
use crate::{
    Admit, CostExtractor, MonotonicClock, QueueTicket, Reserve, Turn, UnitCost,
    waiting::{Enqueue, join_behind},
};

/// The treatment of requests without a key.
///
/// ```
/// # use std::num::NonZeroUsize;
/// # use std::time::Duration;
/// # use weir_core::{Quota, RuleLimiter, Strategy, Terms};
/// use weir_tower::{Admit, KeyedAdmit, MonotonicClock, NoKey, WithoutKey};
///
/// # let clock = MonotonicClock::start();
/// # let quota = Quota::new(Strategy::Gcra, 1, Duration::from_secs(3600), None)?;
/// # let rule = RuleLimiter::keyed(clock.now(), Terms::new([("hourly", quota)])?, NonZeroUsize::MIN);
/// let nobody_has_one = |_: &&str, _: &mut Vec<u8>| Err(NoKey);
/// let free = KeyedAdmit::new(rule.clone(), clock, nobody_has_one, WithoutKey::Admit);
/// assert!(free.admit(&"a request").is_ok());
/// assert!(free.admit(&"another").is_ok());
///
/// let together = KeyedAdmit::new(rule, clock, nobody_has_one, WithoutKey::Share);
/// assert!(together.admit(&"a request").is_ok());
/// assert!(together.admit(&"another").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WithoutKey {
    /// Requests without a key share one count, with the limits of one key.
    Share,
    /// Requests without a key are admitted without a check.
    Admit,
}

/// Charges a [`RuleLimiter`] for each request, under the key that a [`KeyExtractor`] finds: a cost of one, or the cost
/// that [`with_cost`](Self::with_cost) finds. Clones share the limits. No request takes the capacity of a request that
/// waits for the same key.
///
/// Keep a clone of the rule to retune it at run time. The new terms are reached in one step, after any number of
/// retunes. The pass of an admitted request is the tightest limit of its key, or none if the request has no key and was
/// not checked.
///
/// ```
/// use std::num::NonZeroUsize;
/// use std::time::Duration;
///
/// use http::{HeaderName, Request};
/// use weir_core::{Quota, RuleLimiter, Strategy, Terms};
/// use weir_tower::{Admit, HeaderKey, KeyedAdmit, MonotonicClock, WithoutKey};
///
/// let clock = MonotonicClock::start();
/// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(3600), None)?;
/// let terms = Terms::new([("hourly", quota)])?;
/// let rule = RuleLimiter::keyed(clock.now(), terms, NonZeroUsize::new(100_000).expect("not zero"));
/// let by_api_key = HeaderKey::new(HeaderName::from_static("x-api-key"));
/// let admit = KeyedAdmit::new(rule, clock, by_api_key, WithoutKey::Share);
///
/// let from = |api_key: &str| Request::builder().header("x-api-key", api_key).body(());
/// assert!(admit.admit(&from("ann")?).is_ok());
/// assert!(admit.admit(&from("ann")?).is_err());
/// assert!(admit.admit(&from("bob")?).is_ok());
/// assert!(admit.admit(&Request::new(())).is_ok()); // requests without a key share one count
/// assert!(admit.admit(&Request::new(())).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyedAdmit<K, C = UnitCost> {
    pub(super) rule: RuleLimiter,
    pub(super) clock: MonotonicClock,
    pub(super) cost: C,
    key: K,
    without_key: WithoutKey,
}

impl<K> KeyedAdmit<K> {
    /// Charges `rule` under the keys that `key` finds, with the time of `clock`.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// use weir_core::{Quota, RuleLimiter, Strategy, Terms};
    /// use weir_tower::{Admit, KeyedAdmit, MonotonicClock, NoKey, WithoutKey};
    ///
    /// let clock = MonotonicClock::start();
    /// let quota = Quota::new(Strategy::TokenBucket, 1, Duration::from_secs(60), None)?;
    /// let rule = RuleLimiter::keyed(clock.now(), Terms::new([("each", quota)])?, NonZeroUsize::new(1000).expect("not zero"));
    /// let by_name = |name: &&str, key: &mut Vec<u8>| -> Result<(), NoKey> {
    ///     key.extend_from_slice(name.as_bytes());
    ///     Ok(())
    /// };
    /// let admit = KeyedAdmit::new(rule, clock, by_name, WithoutKey::Share);
    /// assert!(admit.admit(&"ann").is_ok() && admit.admit(&"bob").is_ok());
    /// assert!(admit.admit(&"ann").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn new(rule: RuleLimiter, clock: MonotonicClock, key: K, without_key: WithoutKey) -> Self {
        Self { rule, clock, cost: UnitCost, key, without_key }
    }
}

impl<K, C> KeyedAdmit<K, C> {
    /// Charges each request the cost that `cost` finds, a [`CostExtractor`].
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms};
    /// use http::{HeaderName, Request};
    /// use weir_tower::{Admit, HeaderKey, KeyedAdmit, MonotonicClock, WithoutKey};
    ///
    /// # let clock = MonotonicClock::start();
    /// # let quota = Quota::new(Strategy::TokenBucket, 1_000, Duration::from_secs(3600), None)?;
    /// # let rule = RuleLimiter::keyed(clock.now(), Terms::new([("hourly", quota)])?, NonZeroUsize::MIN);
    /// let by_api_key = HeaderKey::new(HeaderName::from_static("x-api-key"));
    /// let bytes = KeyedAdmit::new(rule, clock, by_api_key, WithoutKey::Share)
    ///     .with_cost(|request: &Request<String>| request.body().len() as u64);
    /// let of_length = |length| Request::builder().header("x-api-key", "ann").body("x".repeat(length));
    /// assert!(bytes.admit(&of_length(900)?).is_ok());
    /// assert!(bytes.admit(&of_length(900)?).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_cost<Request, F: Fn(&Request) -> u64>(self, cost: F) -> KeyedAdmit<K, F> {
        let Self { rule, clock, cost: _, key, without_key } = self;
        KeyedAdmit { rule, clock, cost, key, without_key }
    }

    /// Waits for the turn of one request with its key, at most `max_wait`, for a caller without a service. If the
    /// future is dropped, the request leaves the queue. Returns none if the request has no key and was not checked.
    ///
    /// ```
    /// # use std::num::NonZeroUsize;
    /// # use std::time::Duration;
    /// # use weir_core::{Quota, RuleLimiter, Strategy, Terms};
    /// use weir_tower::{KeyedAdmit, MonotonicClock, NoKey, WithoutKey};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let clock = MonotonicClock::of_tokio();
    /// # let quota = Quota::new(Strategy::Gcra, 10, Duration::from_secs(1), None)?;
    /// # let rule = RuleLimiter::keyed(clock.now(), Terms::new([("each", quota)])?, NonZeroUsize::MIN);
    /// let by_tenant = |tenant: &&str, key: &mut Vec<u8>| -> Result<(), NoKey> {
    ///     key.extend_from_slice(tenant.as_bytes());
    ///     Ok(())
    /// };
    /// let limit = KeyedAdmit::new(rule, clock, by_tenant, WithoutKey::Share);
    /// let start = tokio::time::Instant::now();
    /// for tenant in ["ann", "bob", "ann"] {
    ///     limit.admitted(&tenant, Duration::from_secs(1)).await?;
    ///     // Here, call the API that allows each tenant ten calls a second.
    /// }
    /// assert_eq!(start.elapsed().as_millis(), 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RuleRefused`] immediately, if the turn would not come within `max_wait`. A request in the queue is refused if
    /// its turn becomes too late: the limits were changed, or the task was late and
    /// [others have overtaken it](crate#waits).
    pub async fn admitted<Request>(
        &self,
        request: &Request,
        max_wait: Duration,
    ) -> Result<Option<Tightest>, RuleRefused>
    where
        K: KeyExtractor<Request>,
        C: CostExtractor<Request>,
    {
        match self.reserve(request, max_wait)? {
            Turn::Now(tightest) => Ok(tightest),
            Turn::Later(mut ticket) => poll_fn(|context| ticket.poll_turn(request, context)).await,
        }
    }

    /// Calls `ask` with the request's key. Requests without a key that share one count use the empty key, which no
    /// other request has. Returns none if the request has no key and is admitted without a check.
    pub(super) fn with_key<Request, T>(&self, request: &Request, ask: impl FnOnce(&[u8]) -> T) -> Option<T>
    where
        K: KeyExtractor<Request>,
    {
        with_buffer(|key| {
            let found = self.key.extract(request, key).is_ok() && !key.is_empty();
            match self.without_key {
                _ if found => Some(ask(key)),
                WithoutKey::Share => Some(ask(&[])),
                WithoutKey::Admit => None,
            }
        })
    }
}

impl<Request, K: KeyExtractor<Request>, C: CostExtractor<Request>> Admit<Request> for KeyedAdmit<K, C> {
    type Pass = Option<Tightest>;
    type Refusal = RuleRefused;

    fn admit(&self, request: &Request) -> Result<Option<Tightest>, RuleRefused> {
        let admit = |key: &[u8]| {
            let limit = OfKey { rule: &self.rule, clock: self.clock, key, cost: self.cost.cost(request) };
            let waits = limit.queue_len() > 0;
            let _position = if waits { Some(join_behind(&limit, self.clock.now())?) } else { None };
            Ok(self.rule.charge(|| self.clock.now(), key, limit.cost)?.tightest)
        };
        self.with_key(request, admit).transpose()
    }
}
