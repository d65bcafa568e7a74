//! Places in line: what a request holds that goes later.
//!
//! Every rule that let the request through has charged it; the request is counted only when its turn comes. Whoever leaves
//! before gives all of it back, and those behind keep their moments.

use std::{sync::Arc, time::Duration};

use weir_core::{RuleCharge, Time};
use weir_tower::MonotonicClock;

use super::{
    charge::{Ask, Charged},
    in_force::Rule,
};

/// The places of one request. Dropping them before [`Wait::over`] gives them back.
#[derive(Debug)]
pub(super) struct Wait {
    held: Vec<Held>,
    /// When the last of them comes.
    until: Time,
    clock: MonotonicClock,
}

#[derive(Debug)]
struct Held {
    rule: Arc<Rule>,
    key: Box<[u8]>,
    charge: RuleCharge,
    /// None if this rule had the request go at once.
    wait: Option<Duration>,
}

impl Wait {
    pub(super) fn new(asks: &[Ask<'_, '_>], charged: Vec<Charged>, clock: MonotonicClock) -> Self {
        let now = clock.now();
        let until = charged.iter().filter_map(|one| one.at).max().unwrap_or(now);
        let held = asks.iter().zip(charged).map(|(ask, Charged { at, charge, .. })| Held {
            rule: Arc::clone(ask.rule),
            key: ask.key.into(),
            charge,
            wait: at.map(|at| at.duration_since(now)),
        });
        Self { held: held.collect(), until, clock }
    }

    /// How long it is from now until the request may go.
    pub(super) fn left(&self) -> Duration {
        self.until.duration_since(self.clock.now())
    }

    /// The turn has come: the request goes, and is counted.
    pub(super) fn over(mut self) {
        for Held { rule, wait, .. } in self.held.drain(..) {
            rule.counters.count_allowed();
            if let Some(wait) = wait {
                rule.counters.count_wait(wait);
            }
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        for Held { rule, key, charge, .. } in self.held.drain(..) {
            if let Some(limits) = &rule.limits {
                limits.limiter.refund(&key, charge, || self.clock.now());
            }
        }
    }
}
