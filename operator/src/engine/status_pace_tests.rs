use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use weir_api::{Drift, Enforcement, Fleet, FleetRule, condition_types::ENFORCED};

use super::*;

const INTERVAL: Duration = Duration::from_secs(5);

fn status(reason: &str, enforcing: i32, allowed: i64) -> RateLimitPolicyStatus {
    let condition = Condition {
        type_: ENFORCED.to_owned(),
        status: if reason == "Enforced" { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: String::new(),
        observed_generation: Some(1),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    };
    RateLimitPolicyStatus {
        observed_generation: Some(1),
        conditions: vec![condition],
        enforcement: Some(Enforcement { pods_targeted: 3, pods_enforcing: enforcing, drifted: Vec::new() }),
        traffic: Some(Traffic { window: "60s".to_owned(), allowed, ..Traffic::default() }),
        ..RateLimitPolicyStatus::default()
    }
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns the time now, and the pace of a policy whose status is this one.
fn begun(written: Option<RateLimitPolicyStatus>) -> (Instant, Pace) {
    (Instant::now(), Pace::new(INTERVAL, written))
}

#[tokio::test(start_paused = true)]
async fn changes_of_enforcement_are_written_at_once() {
    let (now, mut pace) = begun(None);
    assert!(pace.claim_write(now, &status("NoPods", 0, 0), false));
    assert!(!pace.claim_write(now, &status("NoPods", 0, 0), false));
    assert!(pace.claim_write(now + millis(1), &status("Drifted", 2, 0), false));
    assert!(pace.claim_write(now + millis(2), &status("Enforced", 3, 0), false));
}

#[tokio::test(start_paused = true)]
async fn pending_is_written_only_if_it_lasts() {
    let (now, mut pace) = begun(Some(status("Enforced", 3, 0)));
    assert!(!pace.claim_write(now, &status("Pending", 0, 0), true));
    assert!(!pace.claim_write(now + millis(100), &status("Pending", 2, 0), true));
    assert!(
        !pace.claim_write(now + millis(200), &status("Enforced", 3, 0), false),
        "the written status is still right"
    );
    assert!(!pace.claim_write(now + millis(300), &status("Pending", 2, 0), true), "the status waits for pods again");
    assert!(pace.claim_write(now + millis(300) + PODS_DELAY, &status("Pending", 2, 0), true));
}

#[tokio::test(start_paused = true)]
async fn traffic_is_written_from_time_to_time_without_noise() {
    let (now, mut pace) = begun(None);
    assert!(pace.claim_write(now, &status("Enforced", 3, 1000), false));
    assert!(!pace.claim_write(now + millis(1000), &status("Enforced", 3, 2000), false), "too soon");
    assert!(pace.claim_write(now + INTERVAL, &status("Enforced", 3, 2000), false));
    let mut at = now + INTERVAL;
    for allowed in [2010, 1990, 2040, 1960, 2001, 2000, 2039] {
        at += millis(2000);
        assert!(!pace.claim_write(at, &status("Enforced", 3, allowed), false), "{allowed} is noise");
    }
    assert!(pace.claim_write(at + millis(1000), &status("Enforced", 3, 2041), false));
}

/// The traffic is never steady, so this alone is no reason to write.
#[tokio::test(start_paused = true)]
async fn new_words_and_keys_are_written_while_traffic_flows() {
    let with_message = |message: &str, allowed| {
        let mut status = status("Enforced", 3, allowed);
        message.clone_into(&mut status.conditions[0].message);
        status
    };
    let with_keys = |keys, allowed| {
        let by_rule = vec![FleetRule { name: "all".to_owned(), keys, ..FleetRule::default() }];
        let fleet = Some(Fleet { by_rule, ..Fleet::default() });
        RateLimitPolicyStatus { fleet, ..status("Enforced", 3, allowed) }
    };
    let with_drift = |message: &str, allowed| {
        let mut status = status("Drifted", 2, allowed);
        let drift = Drift { pod: "a".to_owned(), reason: DriftReason::Refused, message: Some(message.to_owned()) };
        status.enforcement.as_mut().unwrap().drifted = vec![drift];
        status
    };
    type Case<'a> = (&'a str, RateLimitPolicyStatus, &'a dyn Fn(i64) -> RateLimitPolicyStatus, usize);
    let cases: [Case<'_>; 5] = [
        ("the same", with_message("a", 2000), &|allowed| with_message("a", allowed), 0),
        ("a message", with_message("a", 2000), &|allowed| with_message("a, b", allowed), 1),
        ("a pod's message", with_drift("a", 2000), &|allowed| with_drift("b", allowed), 1),
        ("keys", with_keys(100, 2000), &|allowed| with_keys(300, allowed), 1),
        ("hardly more keys", with_keys(100, 2000), &|allowed| with_keys(102, allowed), 0),
    ];
    for (what, first, next, expected) in cases {
        let (now, mut pace) = begun(None);
        assert!(pace.claim_write(now, &first, false));
        let writes = (1..=1200_u32).filter(|tick| {
            let allowed = if tick % 2 == 0 { 1999 } else { 2001 };
            pace.claim_write(now + *tick * millis(500), &next(allowed), false)
        });
        assert_eq!(writes.count(), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_final_numbers_are_written_exactly() {
    let (now, mut pace) = begun(None);
    assert!(pace.claim_write(now, &status("Enforced", 3, 1000), false));
    let last = status("Enforced", 3, 1001);
    let mut at = now;
    let mut written = 0;
    for _ in 0..100 {
        at += millis(500);
        written += u32::from(pace.claim_write(at, &last, false));
    }
    assert_eq!(written, 1);
    assert_eq!(pace.written(), Some(&last));
}

#[tokio::test(start_paused = true)]
async fn a_held_back_status_is_not_repeated() {
    let (now, mut pace) = begun(Some(status("Enforced", 3, 0)));
    assert!(pace.claim_rewrite(now, &status("Enforced", 3, 0)));
    assert!(!pace.claim_write(now, &status("Pending", 2, 0), true));
    assert!(!pace.claim_rewrite(now, &status("Pending", 2, 0)));
    assert!(pace.claim_write(now + PODS_DELAY, &status("Pending", 2, 0), true));
    assert!(pace.claim_rewrite(now + PODS_DELAY, &status("Pending", 2, 0)), "the status is no longer held back");
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_written_once_a_second_and_always_at_its_end() {
    let (now, mut pace) = begun(Some(status("Drifted", 0, 0)));
    let (mut at, mut written) = (now, 0);
    for enforcing in 1..=1000 {
        at += millis(10);
        written += u32::from(pace.claim_write(at, &status("Drifted", enforcing, 0), false));
    }
    assert_eq!(written, 10);
    at += millis(10);
    assert!(pace.claim_write(at, &status("Enforced", 1000, 0), false), "a new reason is written immediately");
    assert!(!pace.claim_write(at + millis(10), &status("Enforced", 1001, 0), false));
    assert!(pace.claim_write(at + COUNTS, &status("Enforced", 1001, 0), false), "the last count must be written");
}

#[tokio::test(start_paused = true)]
async fn pods_with_a_share_are_written_like_other_counts_of_pods() {
    let now = Instant::now();
    let shares = |pods_with_share, allowed| RateLimitPolicyStatus {
        fleet: Some(Fleet { pods_with_share, ..Fleet::default() }),
        ..status("Enforced", 3, allowed)
    };
    let mut pace = Pace::new(INTERVAL, None);
    assert!(pace.claim_write(now, &shares(0, 0), false));
    assert!(!pace.claim_write(now + millis(10), &shares(1, 0), false), "too soon");
    assert!(pace.claim_write(now + COUNTS, &shares(1, 0), false));
    assert!(!pace.claim_write(now + COUNTS + millis(10), &shares(1, 500), false), "traffic alone is written later");
}

/// A policy with three pods changes, and one pod does not answer.
#[tokio::test(start_paused = true)]
async fn a_silent_pod_hides_no_acknowledgement_of_the_others() {
    let now = Instant::now();
    let changed = |enforcing| RateLimitPolicyStatus { observed_generation: Some(2), ..status("Drifted", enforcing, 0) };
    let mut pace = Pace::new(INTERVAL, Some(status("Drifted", 2, 0)));
    assert!(!pace.claim_write(now, &changed(0), true), "no pod enforces the change, and two will soon");
    assert!(!pace.claim_write(now + millis(5), &changed(1), true));
    assert!(pace.claim_write(now + millis(10), &changed(2), false), "all pods that answer have answered");

    // Slower pods are waited for, and reported as soon as they answer.
    let at = now + millis(10_000);
    let changed = |enforcing| RateLimitPolicyStatus { observed_generation: Some(3), ..status("Drifted", enforcing, 0) };
    assert!(!pace.claim_write(at, &changed(1), true));
    assert!(pace.claim_write(at + PODS_DELAY, &changed(1), true));
    assert!(pace.claim_write(at + PODS_DELAY + millis(10), &changed(2), false));
}
