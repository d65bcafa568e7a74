//! Tests how long the agent keeps removed rules, and that no change of the rules stops the runtime. The clock is paused.

use std::{
    fs::{self, OpenOptions},
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use weir_enforce::{AmbiguousPaths, GateOptions};

use super::*;

/// A policy with one limit for each value of `x-key`.
fn policy(uid: &str) -> Value {
    let limit = json!({"name": "l", "strategy": "TokenBucket", "requests": 3, "periodMillis": 86_400_000});
    let rule = json!({"name": "r", "action": "Limit", "key": [{"header": "x-key"}], "limits": [limit]});
    json!({"uid": uid, "namespace": "shop", "name": "p", "revision": "p", "mode": "Enforce", "rules": [rule]})
}

fn put(snapshots: &Snapshots, sequence: u64, policies: &[Value]) {
    let revision = format!("revision-{sequence}");
    let body = json!({"wireVersion": 1, "sequence": sequence, "revision": revision, "policies": policies});
    snapshots.apply_pushed(Some(body.to_string().as_bytes())).expect("the agent accepts the snapshot");
}

#[tokio::test(start_paused = true)]
async fn removed_limiters_are_deleted_without_traffic_or_another_snapshot() {
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let snapshots = Arc::new(Snapshots::new(rules.clone(), clock, None));
    let put = |sequence, policies: &[Value]| put(&snapshots, sequence, policies);
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

#[tokio::test(start_paused = true)]
async fn the_runtime_goes_on_while_changes_wait_for_another_one() {
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let snapshots = Arc::new(Snapshots::new(rules.clone(), clock, None));
    put(&snapshots, 1, &[policy("one")]);
    put(&snapshots, 2, &[]);
    let (began, has_begun) = mpsc::channel();
    let (end, ends) = mpsc::channel();
    let other = thread::spawn({
        let rules = rules.clone();
        move || {
            let _guard = rules.write();
            began.send(()).expect("the test waits");
            ends.recv_timeout(Duration::from_secs(30)).is_ok()
        }
    });
    has_begun.recv().expect("the other change begins");
    tokio::spawn(Arc::clone(&snapshots).forget_removed());
    let verifying = tokio::spawn(async move { snapshots.verify_with(Arc::default()).await });
    tokio::task::yield_now().await;
    // The clock does not advance by itself while a blocking thread works.
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(rules.load().removed().0, 1);
    let _ = end.send(());
    assert!(other.join().expect("no panic"), "the changes stopped the runtime");
    verifying.await.expect("no panic");
    while rules.load().removed().0 > 0 {
        tokio::task::yield_now().await;
    }
}

/// The disk blocks the first save. The file of the cache is a pipe without a reader until the test opens it.
#[tokio::test]
async fn a_snapshot_is_acknowledged_before_it_is_saved() {
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    assert!(Command::new("mkfifo").arg(at("pipe")).status().is_ok_and(|status| status.success()));
    fs::hard_link(at("pipe"), at("cache.partial")).expect("linked");
    let cache = Cache::new(at("cache"));
    let snapshots = Arc::new(Snapshots::new(rules, clock, Some(cache.clone())));
    for sequence in 1..=3 {
        let (acknowledged, acknowledgement) = mpsc::channel();
        let push = thread::spawn({
            let (snapshots, runtime) = (Arc::clone(&snapshots), tokio::runtime::Handle::current());
            move || {
                let _inside = runtime.enter();
                put(&snapshots, sequence, &[policy("one")]);
                acknowledged.send(()).expect("the test waits");
            }
        });
        let next = acknowledgement.recv_timeout(Duration::from_secs(30));
        assert_eq!(next, Ok(()), "the acknowledgement of {sequence} waits for the disk");
        push.join().expect("no panic");
        if sequence == 1 {
            // Otherwise the first save could be that of the third snapshot.
            cache.begun().await;
        }
    }
    // The second save gets a usual file. The first one ends now, with an error.
    fs::remove_file(at("cache.partial")).expect("removed");
    let _reader = OpenOptions::new().read(true).write(true).open(at("pipe")).expect("open");
    snapshots.saved().await;
    let saved: Value = serde_json::from_slice(&fs::read(at("cache")).expect("saved")).expect("JSON");
    assert_eq!(saved["sequence"], 3, "the newest snapshot");
}

/// The operator continues above the sequence of an agent, so it must be able to.
#[test]
fn a_sequence_years_ahead_is_refused() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(56 * 365 * 24);
    let latest = 57 * 365 * 24 * 3_600_000_000;
    for (sequence, is_accepted) in [(1, true), (latest, true), (latest + 1, false), (MAX_SEQUENCE, false)] {
        assert_eq!(check_sequence(sequence, now).is_ok(), is_accepted, "{sequence}");
    }
    // Long after the year 2255.
    let later = SystemTime::UNIX_EPOCH + Duration::from_hours(400 * 365 * 24);
    assert!(check_sequence(MAX_SEQUENCE, later).is_ok() && check_sequence(MAX_SEQUENCE + 1, later).is_err());
    let clock = MonotonicClock::of_tokio();
    let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
    let body = json!({"wireVersion": 1, "sequence": MAX_SEQUENCE, "revision": "r", "policies": []}).to_string();
    let refused = Snapshots::new(rules, clock, None).apply_pushed(Some(body.as_bytes())).expect_err("years ahead");
    assert_eq!(refused.faults[0].path, "sequence");
}
