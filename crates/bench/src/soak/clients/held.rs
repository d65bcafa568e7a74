//! Clients of two limits under constant overload. The admissions of these limits are counted exactly.

use std::{cell::Cell, rc::Rc, time::Instant};

use anyhow::ensure;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Client, Target, http1};
use crate::{clock, proxy::bucket};

const PACED: &str = "/paced";
/// The limit `paced`: its requests per second, and its burst.
const RATE: u64 = 5;
const BURST: u64 = 10;

const ONCE: &str = "/once";
/// The limit `once`: its requests per day. No run lasts a day.
const DAILY: u64 = 500;

pub(super) fn paced_rule() -> Value {
    json!({
        "name": "paced",
        "action": "Limit",
        "match": [{ "paths": [PACED] }],
        "limits": [bucket(RATE, 1_000, BURST)],
    })
}

pub(super) fn once_rule() -> Value {
    json!({
        "name": "once",
        "action": "Limit",
        "match": [{ "paths": [ONCE] }],
        "limits": [{
            "name": "limit",
            "strategy": "SlidingWindowLog",
            "requests": DAILY,
            "periodMillis": 24 * 3600 * 1000,
        }],
    })
}

/// The results of one limit.
#[derive(Clone, Debug, Serialize)]
pub(in crate::soak) struct Held {
    pub(in crate::soak) name: &'static str,
    pub(in crate::soak) asked: u64,
    pub(in crate::soak) admitted: u64,
    /// The requests that were allowed until the last answer.
    pub(in crate::soak) allowed: u64,
    /// The highest excess of admitted over allowed requests at any answer.
    pub(in crate::soak) most_beyond: u64,
}

/// Counts admissions since the limit came into force. Counting starts slightly earlier, never later.
#[derive(Debug)]
pub(super) struct Counter {
    name: &'static str,
    path: &'static str,
    started: Instant,
    asked: Cell<u64>,
    admitted: Cell<u64>,
    most_beyond: Cell<u64>,
}

pub(super) fn counters(started: Instant) -> [Counter; 2] {
    let counter = |name, path| Counter {
        name,
        path,
        started,
        asked: Cell::default(),
        admitted: Cell::default(),
        most_beyond: Cell::default(),
    };
    [counter("paced", PACED), counter("once", ONCE)]
}

impl Counter {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The number of requests that the limit is allowed to admit until now.
    fn allowed(&self) -> u64 {
        if self.path == ONCE {
            return DAILY;
        }
        // The number is rounded up, because the clocks of two programs can differ.
        let earned = clock::since(self.started).as_millis().saturating_mul(u128::from(RATE)).div_ceil(1000);
        BURST.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX))
    }

    fn count(&self, admitted: bool) {
        self.asked.set(self.asked.get() + 1);
        self.admitted.set(self.admitted.get() + u64::from(admitted));
        let beyond = self.admitted.get().saturating_sub(self.allowed());
        self.most_beyond.set(self.most_beyond.get().max(beyond));
    }

    pub(super) fn summary(&self) -> Held {
        Held {
            name: self.name,
            asked: self.asked.get(),
            admitted: self.admitted.get(),
            allowed: self.allowed(),
            most_beyond: self.most_beyond.get(),
        }
    }
}

/// A client that sends requests independent of the answers.
pub(super) struct Asking {
    counter: Rc<Counter>,
    connection: Option<http1::Connection>,
}

impl Asking {
    pub(super) fn new(counter: Rc<Counter>) -> Self {
        Self { counter, connection: None }
    }
}

impl Client for Asking {
    async fn round(&mut self, target: &Target) -> anyhow::Result<()> {
        let connection = http1::Connection::kept(&mut self.connection, target.proxy).await?;
        let (status, _) = connection.get(self.counter.path, &[]).await?;
        // A request that failed because the app was down counts as admitted.
        self.counter.count(status != 429);
        ensure!(matches!(status, 200 | 429), "got {status}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_too_many_is_seen_at_once_and_for_good() {
        let [paced, once] = counters(clock::now());
        for _ in 0..DAILY {
            once.count(true);
        }
        once.count(false);
        assert_eq!(once.summary().most_beyond, 0);
        once.count(true);
        assert_eq!(once.summary().most_beyond, 1);
        // On a slow machine, the limit can refill by a few more requests, but never by a thousand.
        for _ in 0..1_000 {
            paced.count(true);
        }
        assert!(paced.summary().most_beyond > 500, "{:?}", paced.summary());
    }

    #[test]
    fn what_is_allowed_grows_with_time() {
        let Some(started) = clock::now().checked_sub(Duration::from_secs(10)) else { return };
        let [paced, once] = counters(started);
        assert!((60..100).contains(&paced.allowed()), "{}", paced.allowed());
        assert_eq!(once.allowed(), DAILY);
    }
}
