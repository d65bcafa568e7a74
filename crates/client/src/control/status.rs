//! The status: the revision in force, since when, and the counts of every rule. It is sent once, or at an interval.

use std::{
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Query, State, rejection::QueryRejection},
    http::{
        HeaderMap, StatusCode,
        header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH},
    },
    response::{IntoResponse, Response},
};
use futures::{Stream, stream};
use serde::Deserialize;
use tokio::time::sleep;
use weir_enforce::{Policy, Rule};
use weir_wire::{KeyTable, PolicyStatus, RuleStatus, STATUS_LINES, Status, WIRE_VERSION};

use super::{Control, failure};
use crate::{apply::in_force, clock};

/// The shortest and the longest interval between two statuses. A client that needs a status less often than once an
/// hour can poll.
pub(super) const EVERY_MILLIS: (u64, u64) = (100, 3_600_000);
/// With this interval or a longer one, lines are sent at the start of a tenth of a second. So a client of thousands of
/// agents wakes once for the lines of many agents.
const TOGETHER_FROM: Duration = Duration::from_secs(1);
const TENTH: u32 = 100_000_000;

/// The parameters of a request for the status.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StatusQuery {
    pub(super) every_millis: Option<u64>,
}

pub(super) async fn status(
    State(control): State<Arc<Control>>,
    query: Result<Query<StatusQuery>, QueryRejection>,
    head: HeaderMap,
) -> Response {
    let (least, most) = EVERY_MILLIS;
    let every = match query {
        Ok(Query(StatusQuery { every_millis: None })) => return once(&control, &head),
        Ok(Query(StatusQuery { every_millis: Some(every) })) if (least..=most).contains(&every) => every,
        Ok(_) | Err(_) => {
            let message = format!("everyMillis: milliseconds between two lines, from {least} to {most}");
            return failure(StatusCode::BAD_REQUEST, "invalid", &message);
        }
    };
    ([(CONTENT_TYPE, STATUS_LINES)], Body::from_stream(lines(control, Duration::from_millis(every)))).into_response()
}

fn once(control: &Control, head: &HeaderMap) -> Response {
    let status = control.status();
    let tag = entity_tag(&status);
    // A client that sends several tags gets the whole status.
    if head.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(ETAG, tag)]).into_response();
    }
    ([(ETAG, tag)], Json(status)).into_response()
}

/// Sends the first line immediately, and then one line per interval: the status, or an empty line if nothing has
/// changed.
fn lines(control: Arc<Control>, every: Duration) -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::unfold((control, Duration::ZERO, String::new()), move |(control, pause, last_tag)| async move {
        sleep(pause).await;
        let status = control.status();
        let tag = entity_tag(&status);
        let line = if tag == last_tag { Bytes::from_static(b"\n") } else { line(&status) };
        Some((Ok(line), (control, until_next(every, clock::wall()), tag)))
    })
}

/// The wait until the next line. The wait is computed for each line, because the monotonic clock and the wall clock
/// drift apart. After a delayed line, the wait is still a whole interval, because the reader would count an earlier
/// line as an extra one.
pub(super) fn until_next(every: Duration, now: SystemTime) -> Duration {
    if every < TOGETHER_FROM {
        return every;
    }
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    every - Duration::from_nanos(u64::from(since_1970.subsec_nanos() % TENTH))
}

fn line(status: &Status) -> Bytes {
    let mut line = serde_json::to_vec(status).expect("a status is plain data");
    line.push(b'\n');
    line.into()
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

/// Identifies the content of a status. The tag is weak, because the elapsed time is not part of it. Only this process can
/// compute it.
pub(super) fn entity_tag(status: &Status) -> String {
    let mut hasher = DefaultHasher::new();
    (&status.instance, &status.in_force, &status.policies, &status.stores).hash(&mut hasher);
    format!("W/\"{:016x}\"", hasher.finish())
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
    fn lines_come_when_a_tenth_of_a_second_begins() {
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
