//! Tests how long the agent keeps removed rules. The clock is paused.

use std::time::Duration;

use serde_json::{Value, json};
use weir_enforce::{AmbiguousPaths, GateOptions};

use super::*;

/// A policy with one limit for each value of `x-key`.
fn policy(uid: &str) -> Value {
    let limit = json!({"name": "l", "strategy": "TokenBucket", "requests": 3, "periodMillis": 86_400_000});
    let rule = json!({"name": "r", "action": "Limit", "key": [{"header": "x-key"}], "limits": [limit]});
    json!({"uid": uid, "namespace": "shop", "name": "p", "revision": "p", "mode": "Enforce", "rules": [rule]})
}

#[tokio::test(start_paused = true)]
async fn removed_limiters_are_deleted_without_traffic_or_another_snapshot() {
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let snapshots = Arc::new(Snapshots::new(rules.clone(), clock, None));
    let put = |sequence: u64, policies: &[Value]| {
        let revision = format!("revision-{sequence}");
        let body = json!({"wireVersion": 1, "sequence": sequence, "revision": revision, "policies": policies});
        snapshots.apply_pushed(Some(body.to_string().as_bytes())).expect("the agent accepts the snapshot");
    };
    put(1, &[policy("one")]);
    let table = Arc::downgrade(&rules.load().policies()[0].rules[0]);
    let forgetting = tokio::spawn(Arc::clone(&snapshots).forget_removed());
    put(2, &[]);
    tokio::time::sleep(Duration::from_millis(59_990)).await;
    assert!(table.upgrade().is_some());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(table.upgrade().is_none(), "the table is freed");
    assert_eq!(rules.load().removed(), (0, None));
    // The limiters of a second removal are deleted, too.
    put(3, &[policy("two")]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    put(4, &[]);
    assert_eq!(rules.load().removed().0, 1);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(rules.load().removed(), (0, None));
    assert!(!forgetting.is_finished());
}
