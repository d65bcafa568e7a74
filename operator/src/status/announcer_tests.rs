use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::json;

use super::*;
use crate::{compile::compile, world::ObjectKey};

fn rules(requests: u32) -> Arc<CompiledPolicy> {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "rules": [{"name": "all", "limits": [{"name": "a", "requests": requests, "per": "1s"}]}]});
    let spec = serde_json::from_value(spec).unwrap();
    Arc::new(compile(&ObjectKey::new("shop", "p"), "p", &spec).unwrap().0)
}

fn begun() -> (Instant, Announcer) {
    let start = Instant::now();
    (start, Announcer::begin(start, Some(rules(50)), None))
}

/// A status with one condition, which is true.
fn status(type_: &str, reason: &str, message: &str) -> RateLimitPolicyStatus {
    let condition = Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: Some(1),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    };
    RateLimitPolicyStatus { conditions: vec![condition], ..RateLimitPolicyStatus::default() }
}

fn pods(count: usize) -> Tally {
    Tally { targeted: count, enforcing: count, ..Tally::default() }
}

fn told(telling: Option<Notice>) -> Option<(&'static str, String)> {
    telling.map(|telling| (telling.reason, telling.note))
}

#[tokio::test(start_paused = true)]
async fn a_change_is_announced_with_its_differences_and_duration() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let mut announcer = Announcer::begin(start, Some(rules(50)), None);
    assert_eq!(announcer.announce(at(1), Reason::Pending, "", pods(0)), None);
    let first = announcer.announce(at(80), Reason::Enforced, "3 of 3", pods(3)).unwrap();
    assert_eq!((first.reason, first.note.as_str()), ("Enforced", "3 of 3 within 80 ms"));
    assert_eq!(first.took, Some(Duration::from_millis(80)));
    assert_eq!(announcer.announce(at(90), Reason::Enforced, "3 of 3", pods(3)), None);

    announcer.want(at(1000), Some(&rules(100)));
    assert_eq!(announcer.since(), at(1000));
    let second = announcer.announce(at(1040), Reason::Enforced, "3 of 3", pods(3)).unwrap();
    assert_eq!(second.reason, "LimitsChanged");
    let revision = &rules(100).revision;
    assert_eq!(
        second.note,
        format!("all/a 50 per 1s to 100 per 1s: acknowledged by 3 of 3 pods within 40 ms, revision {revision}")
    );
}

#[tokio::test(start_paused = true)]
async fn an_overtaken_change_is_described_from_the_rules_in_force() {
    let (start, mut announcer) = begun();
    announcer.announce(start, Reason::Enforced, "", pods(1));
    announcer.want(start, Some(&rules(70)));
    announcer.want(start, Some(&rules(90)));
    let (_, note) = told(announcer.announce(start, Reason::Enforced, "", pods(1))).unwrap();
    assert!(note.starts_with("all/a 50 per 1s to 90 per 1s"), "{note}");
}

#[tokio::test(start_paused = true)]
async fn later_pods_do_not_count_for_the_propagation_time() {
    let (start, mut announcer) = begun();
    assert_eq!(announcer.announce(start, Reason::NoPods, "", pods(0)), None);
    let telling = announcer.announce(start + Duration::from_secs(600), Reason::Enforced, "1 of 1", pods(1)).unwrap();
    assert_eq!((telling.note.as_str(), telling.took), ("1 of 1", None));
}

/// Only the number of pods that share a limit changes, so there is no difference to tell, and nothing to measure.
#[tokio::test(start_paused = true)]
async fn another_number_of_sharers_is_no_change_of_limits() {
    let start = Instant::now();
    let minutes = |count: u64| start + Duration::from_secs(count * 60);
    let shared = |pods| {
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [{"name": "all", "scope": "Fleet",
            "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
        let spec = serde_json::from_value(spec).unwrap();
        Arc::new(compile(&ObjectKey::new("shop", "p"), "p", &spec).unwrap().0).with_pods(pods)
    };
    for reason in [Reason::NoPods, Reason::Drifted] {
        let mut announcer = Announcer::begin(start, Some(shared(4)), None);
        announcer.announce(start, Reason::Enforced, "4 of 4", pods(4));
        announcer.announce(minutes(10), reason, "", pods(0));
        announcer.want(minutes(20), Some(&shared(1)));
        let telling = announcer.announce(minutes(30), Reason::Enforced, "3 of 3", pods(3)).unwrap();
        assert_eq!((telling.reason, telling.note.as_str(), telling.took), ("Enforced", "3 of 3", None), "{reason:?}");
        announcer.want(minutes(40), Some(&shared(8)));
        assert_eq!(announcer.announce(minutes(40), Reason::Enforced, "6 of 6", pods(6)), None);
    }
}

#[tokio::test(start_paused = true)]
async fn drift_and_its_end_are_announced_once() {
    let start = Instant::now();
    let minutes = |count: u64| start + Duration::from_secs(count * 60);
    let mut announcer = Announcer::begin(start, Some(rules(50)), None);
    announcer.announce(start, Reason::Enforced, "3 of 3", pods(3));
    let drifted = |announcer: &mut Announcer, at| told(announcer.announce(at, Reason::Drifted, "2 of 3", pods(2)));
    let enforced = |announcer: &mut Announcer, at| told(announcer.announce(at, Reason::Enforced, "3 of 3", pods(3)));
    assert_eq!(drifted(&mut announcer, minutes(1)), Some(("Drifted", "2 of 3".to_owned())));
    assert_eq!(drifted(&mut announcer, minutes(1)), None);
    assert_eq!(enforced(&mut announcer, minutes(2)), Some(("Enforced", "3 of 3".to_owned())));
    assert_eq!(drifted(&mut announcer, minutes(3)), None, "the same text within five minutes");
    assert_eq!(enforced(&mut announcer, minutes(3)), None);
    assert!(drifted(&mut announcer, minutes(20)).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_warning_that_was_announced_before_is_held_back_for_a_time() {
    let start = Instant::now();
    let mut announcer = Announcer::begin(start, Some(rules(50)), None);
    for (at, reason, is_announced, holds_back) in [
        (0, Reason::Enforced, true, false),
        (10, Reason::Invalid, true, false),
        (20, Reason::Enforced, true, false),
        (30, Reason::Invalid, false, true),
        (40, Reason::Invalid, false, true),
        (311, Reason::Invalid, true, false),
        (320, Reason::Invalid, false, false),
    ] {
        let notice = announcer.announce(start + Duration::from_secs(at), reason, reason.as_str(), pods(1));
        assert_eq!((notice.is_some(), announcer.holds_back()), (is_announced, holds_back), "{at} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_gets_pods_again_is_announced() {
    let start = Instant::now();
    let mut announcer = Announcer::begin(start, Some(rules(50)), None);
    announcer.announce(start, Reason::Enforced, "1 of 1", pods(1));
    for at in [10, 20, 30].map(|count| start + Duration::from_secs(count)) {
        assert_eq!(announcer.announce(at, Reason::NoPods, "no running pod", pods(0)), None);
        let again = told(announcer.announce(at, Reason::Enforced, "1 of 1", pods(1)));
        assert_eq!(again, Some(("Enforced", "1 of 1".to_owned())));
    }
}

#[tokio::test(start_paused = true)]
async fn each_announced_outage_has_an_announced_end() {
    let start = Instant::now();
    let seconds = |count| start + Duration::from_secs(count);
    let mut announcer = Announcer::begin(start, Some(rules(50)), None);
    announcer.announce(start, Reason::Enforced, "2 of 2", pods(2));
    let mut next = |at, reason, note| told(announcer.announce(seconds(at), reason, note, pods(2)));
    assert_eq!(next(10, Reason::Drifted, "a is Unreachable"), Some(("Drifted", "a is Unreachable".to_owned())));
    assert_eq!(next(20, Reason::Enforced, "2 of 2"), Some(("Enforced", "2 of 2".to_owned())));
    assert_eq!(next(30, Reason::Drifted, "b is Unreachable"), Some(("Drifted", "b is Unreachable".to_owned())));
    assert_eq!(next(40, Reason::Enforced, "2 of 2"), Some(("Enforced", "2 of 2".to_owned())));
    // An outage that is not announced because of its frequency has no announced end, but if it lasts, it is announced.
    assert_eq!(next(50, Reason::Drifted, "b is Unreachable"), None);
    assert_eq!(next(60, Reason::Enforced, "2 of 2"), None);
    assert_eq!(next(70, Reason::Drifted, "b is Unreachable"), None);
    assert_eq!(next(331, Reason::Drifted, "b is Unreachable"), Some(("Drifted", "b is Unreachable".to_owned())));
    assert_eq!(next(340, Reason::Enforced, "2 of 2"), Some(("Enforced", "2 of 2".to_owned())));
}

#[test]
fn a_bypass_is_announced_once_and_not_again_after_a_restart() {
    let now = crate::clock::now();
    let way = || Some("port 80 of Service web".to_owned());
    let mut announcer = Announcer::begin(now, Some(rules(50)), None);
    let said = announcer.bypass(way()).unwrap();
    assert_eq!((said.warning, said.reason, said.note), (true, "Bypassable", way().unwrap()));
    assert_eq!(announcer.bypass(way()), None);
    assert_eq!(announcer.bypass(None), None);
    assert!(announcer.bypass(way()).is_some(), "the bypass exists again");

    let status = status(BYPASSABLE, "ServicePort", &way().unwrap());
    assert_eq!(Announcer::begin(now, Some(rules(50)), Some(&status)).bypass(way()), None);
}

#[tokio::test(start_paused = true)]
async fn facts_from_before_the_start_are_not_announced() {
    let start = Instant::now();
    let status = |revision: &str| {
        let revision = Some(revision.to_owned());
        RateLimitPolicyStatus { revision, ..status(ENFORCED, "Enforced", "") }
    };
    let mut same = Announcer::begin(start, Some(rules(50)), Some(&status(&rules(50).revision)));
    assert_eq!(same.announce(start, Reason::Enforced, "", pods(1)), None);
    let mut other = Announcer::begin(start, Some(rules(50)), Some(&status("other")));
    assert!(other.announce(start, Reason::Enforced, "", pods(1)).is_some());
}
