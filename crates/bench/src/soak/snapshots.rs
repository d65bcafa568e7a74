//! Sends snapshots constantly: valid ones, which change the rules in force, and invalid ones, which must change
//! nothing.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::clients::{FIXED, http1};
use crate::proxy::snapshot_of;

const EVERY: Duration = Duration::from_millis(500);
/// One of this number of snapshots is invalid.
const BAD: u64 = 5;
const REASONS: usize = 3;

/// The results of all snapshots.
#[derive(Default)]
pub(super) struct Pushed {
    pub(super) taken: u64,
    pub(super) refused: u64,
    /// Valid snapshots that were refused, invalid snapshots that were accepted, and snapshots without an answer.
    pub(super) wrong: u64,
    pub(super) reasons: Vec<String>,
}

pub(super) struct Pusher {
    control: SocketAddr,
    sequence: u64,
    pushed: Pushed,
}

impl Pusher {
    pub(super) fn new(control: SocketAddr) -> Self {
        Self { control, sequence: 0, pushed: Pushed::default() }
    }

    /// Sends the first snapshot, which must be accepted.
    pub(super) async fn first(&mut self) -> anyhow::Result<()> {
        self.next().await.context("send the first snapshot")
    }

    pub(super) async fn run(mut self, stop: CancellationToken) -> Pushed {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.next().await {
                self.pushed.wrong += 1;
                if self.pushed.reasons.len() < REASONS {
                    eprintln!("soak: snapshot {}: {error:#}", self.sequence);
                    self.pushed.reasons.push(format!("{error:#}"));
                }
            }
        }
        self.pushed
    }

    async fn next(&mut self) -> anyhow::Result<()> {
        self.sequence += 1;
        let bad = self.sequence.is_multiple_of(BAD);
        let body = if bad { bad_snapshot(self.sequence) } else { snapshot(self.sequence).to_string() };
        let mut connection = http1::Connection::open(self.control).await?;
        let (status, said) = connection.put("/v1/config", body).await?;
        let said = String::from_utf8_lossy(&said);
        if bad {
            ensure!((400..500).contains(&status), "an invalid snapshot got the status {status}: {said}");
            self.pushed.refused += 1;
        } else {
            ensure!(status == 200, "a valid snapshot got the status {status}: {said}");
            self.pushed.taken += 1;
        }
        Ok(())
    }
}

/// Creates a snapshot with the rules on which clients rely, and with other rules that change each time.
fn snapshot(sequence: u64) -> Value {
    let mut rules = FIXED.map(|rule| rule()).to_vec();
    rules.push(retuned(sequence));
    rules.extend((0..40).filter(|place| (sequence / 2 + place).is_multiple_of(3)).map(|place| spare(place, sequence)));
    snapshot_of("soak", sequence, rules)
}

/// A rule for the client `churn`, with another strategy, limit and style of headers each time.
fn retuned(sequence: u64) -> Value {
    let strategies = ["TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog", "GCRA", "LeakyBucket"];
    let turn = usize::try_from(sequence).unwrap_or_default();
    let styles = ["IETF", "Legacy", "Both", "None"];
    json!({
        "name": "retuned",
        "action": "Limit",
        "match": [{ "paths": ["/churn"] }],
        "limits": [{
            "name": "limit",
            "strategy": strategies[turn / 3 % strategies.len()],
            "requests": 10 + sequence % 40,
            "periodMillis": 500 + 100 * (sequence % 7),
        }],
        "onLimit": { "status": 429, "headers": styles[turn % styles.len()] },
    })
}

/// A rule that only some snapshots contain. It has an override for a key.
fn spare(place: u64, sequence: u64) -> Value {
    let limit = |requests: u64| json!({ "name": "limit", "strategy": "TokenBucket", "requests": requests, "periodMillis": 1000 });
    json!({
        "name": format!("spare-{place}"),
        "action": "Limit",
        "match": [
            { "paths": [format!("/spare/{place}/**")], "methods": ["GET"] },
            { "pathRegexes": [format!("^/s{place}/[a-z]+$")], "predicate": "request.headers['x-a'] == 'b'" },
        ],
        "key": [{ "header": "x-key" }, { "clientIP": { "trustedHops": 1, "ipv6Prefix": 64 } }],
        "limits": [limit(100 + sequence % 10)],
        "overrides": [{ "keys": [["gold", "10.0.0.1"]], "limits": [limit(1000)] }],
        "maxKeys": 100 + sequence % 900,
    })
}

/// Creates an invalid snapshot. Consecutive ones are invalid in different ways.
fn bad_snapshot(sequence: u64) -> String {
    let mut snapshot = snapshot(sequence);
    let rule = &mut snapshot["policies"][0]["rules"][0];
    match sequence / BAD % 7 {
        0 => rule["limits"][0]["requests"] = json!(0),
        1 => rule["limits"][0]["strategy"] = json!("Guess"),
        2 => rule["unheardOf"] = json!(true),
        3 => rule["match"] = json!([{ "predicate": "request.path ==" }]),
        4 => rule["match"] = json!([{ "pathRegexes": ["("] }]),
        5 => snapshot["sequence"] = json!(1),
        _ => {
            let text = snapshot.to_string();
            return text[..text.len() / 2].to_owned();
        }
    }
    snapshot.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_differ_and_keep_what_clients_count_on() {
        let (one, next) = (snapshot(11), snapshot(13));
        let rules = |snapshot: &Value| snapshot["policies"][0]["rules"].as_array().expect("a list").clone();
        assert_eq!(rules(&one)[..FIXED.len()], rules(&next)[..FIXED.len()]);
        assert_ne!(rules(&one)[FIXED.len()..], rules(&next)[FIXED.len()..]);
    }

    #[test]
    fn every_bad_one_is_another() {
        let bad: std::collections::HashSet<_> = (1..=7).map(|turn| bad_snapshot(turn * BAD)).collect();
        assert_eq!(bad.len(), 7);
    }
}
