//! The status: the revision in force, since when, and the counts of every rule. Over HTTP it is sent once, and over the
//! channel at an interval.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{Json, extract::State};
use weir_enforce::{Policy, Rule};
use weir_wire::{KeyTable, PolicyStatus, RuleStatus, Status, WIRE_VERSION};

use super::Control;
use crate::snapshots::in_force;

/// The shortest and the longest interval between two statuses on the channel.
pub(super) const EVERY_MILLIS: (u64, u64) = (100, 3_600_000);
/// With this interval or a longer one, statuses are sent at the start of a tenth of a second. So an operator with
/// thousands of agents wakes once for the statuses of many agents.
const TOGETHER_FROM: Duration = Duration::from_secs(1);
const TENTH: u32 = 100_000_000;

pub(super) async fn status(State(control): State<Arc<Control>>) -> Json<Status> {
    Json(control.status())
}

/// The wait until the next status. The wait is computed for each status, because the monotonic clock and the wall clock
/// drift apart. After a delayed status, the wait is still a whole interval, because the operator would count an earlier
/// status as an extra one.
pub(super) fn until_next(every: Duration, now: SystemTime) -> Duration {
    if every < TOGETHER_FROM {
        return every;
    }
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    every - Duration::from_nanos(u64::from(since_1970.subsec_nanos() % TENTH))
}

impl Control {
    pub(super) fn status(&self) -> Status {
        let rules = self.rules.load();
        let uptime = self.clock.now().duration_since(self.started);
        Status {
            wire_version: WIRE_VERSION,
            instance: self.instance.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_millis: u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX),
            in_force: in_force(&rules),
            policies: rules.policies().iter().map(|policy| policy_status(policy)).collect(),
            stores: self.snapshots.stores().statuses(),
        }
    }
}

/// Identifies the content of a status, except for the elapsed time. Only this process can compute it.
pub(super) fn tag(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&status.instance, &status.in_force, &status.policies, &status.stores).hash(&mut hasher);
    hasher.finish()
}

fn policy_status(policy: &Policy) -> PolicyStatus {
    PolicyStatus {
        uid: policy.uid.clone(),
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
        revision: policy.revision.clone(),
        rules: policy.rules.iter().map(|rule| rule_status(rule)).collect(),
    }
}

fn rule_status(rule: &Rule) -> RuleStatus {
    let statistics = rule.statistics();
    RuleStatus {
        name: rule.name.clone(),
        allowed: statistics.allowed + statistics.bypassed,
        limited: statistics.limited,
        shadow_limited: statistics.shadow_limited,
        waited: statistics.waited,
        keys: rule.keys().map(|keys| KeyTable {
            tracked: keys.tracked,
            capacity: keys.capacity,
            evicted: keys.evicted,
            overflowed: keys.overflowed,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(every: u64, at: u64) -> u64 {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(at);
        at + u64::try_from(until_next(Duration::from_millis(every), now).as_millis()).unwrap()
    }

    #[test]
    fn statuses_come_when_a_tenth_of_a_second_begins() {
        const TODAY: u64 = 1_795_000_000_000;
        for (every, at, expected) in [
            (10_000, 0, 10_000),
            (10_000, 1, 10_000),
            (10_000, 99, 10_000),
            (10_000, 100, 10_100),
            (10_000, 2_345, 12_300),
            (1_000, 1_099, 2_000),
            (3_600_000, 999, 3_600_900),
            // An interval that is not a multiple of a tenth of a second becomes a little shorter.
            (1_234, 1_000, 2_234),
            (1_234, 2_234, 3_434),
            // Intervals under a second are not aligned: that would shorten them too much.
            (999, 99, 1_098),
            (100, 99, 199),
        ] {
            assert_eq!(next(every, TODAY + at), TODAY + expected, "each {every} ms, at {at} ms");
        }
    }

    /// Timers are late by up to a millisecond, and rarely by much more.
    #[test]
    fn who_is_late_comes_back_into_step() {
        let mut at = 1_795_000_000_040;
        for late in [1, 0, 1, 57, 1, 1, 160, 0] {
            at = next(10_000, at);
            assert_eq!(at % 100, 0);
            at += late;
        }
        assert_eq!(next(10_000, at), 1_795_000_000_000 + 90_000 + 100);
    }
}
