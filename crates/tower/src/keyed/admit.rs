//! A rule that is checked with the key of each request.

use weir_core::{RuleLimiter, RuleRefused, Tightest};

use super::{KeyExtractor, buffer::with_buffer, reserve::OfKey};
use crate::{Admit, MonotonicClock, waiting::behind};

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

/// Charges a [`RuleLimiter`] a cost of one for each request, under the key that a [`KeyExtractor`] finds. Clones share
/// the limits. No request takes the capacity of a request that waits for the same key.
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
pub struct KeyedAdmit<K> {
    pub(super) rule: RuleLimiter,
    pub(super) clock: MonotonicClock,
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
        Self { rule, clock, key, without_key }
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

impl<Request, K: KeyExtractor<Request>> Admit<Request> for KeyedAdmit<K> {
    type Pass = Option<Tightest>;
    type Refusal = RuleRefused;

    fn admit(&self, request: &Request) -> Result<Option<Tightest>, RuleRefused> {
        let admit = |key: &[u8]| {
            let limit = OfKey { rule: &self.rule, clock: self.clock, key };
            let _position = behind(&limit, self.clock)?;
            Ok(self.rule.charge(|| self.clock.now(), key, 1)?.tightest)
        };
        self.with_key(request, admit).transpose()
    }
}
