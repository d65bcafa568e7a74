use tokio::time::Instant;
use weir_wire::{PolicyStatus, RuleStatus, Status};

use super::*;

fn pod() -> ObjectKey {
    ObjectKey::new("shop", "a")
}

/// Returns a pod's status: instance, seconds since its start, and the allowed and limited requests per (policy, rule).
fn says(instance: &str, uptime: u64, rules: &[(&str, &str, u64, u64)]) -> Status {
    let policy = |&(uid, rule, allowed, limited): &(&str, &str, u64, u64)| {
        let rules = vec![RuleStatus { name: rule.to_owned(), allowed, limited, ..RuleStatus::default() }];
        PolicyStatus { uid: uid.to_owned(), rules, ..PolicyStatus::default() }
    };
    let policies = rules.iter().map(policy).collect();
    Status { instance: instance.to_owned(), uptime_millis: uptime * 1000, policies, ..Status::default() }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[track_caller]
fn assert_sum(traffic: &Traffic, now: Instant, uid: &str, allowed: u64, limited: u64) {
    let sum = traffic.policy(now, uid);
    assert_eq!((sum.allowed, sum.limited), (allowed, limited));
}

#[tokio::test(start_paused = true)]
async fn differences_count_for_a_minute() {
    let (start, mut traffic) = (Instant::now(), Traffic::default());
    traffic.observe(start, &pod(), &says("i", 1000, &[("p", "r", 500, 50)]));
    assert_sum(&traffic, start, "p", 0, 0);
    traffic.observe(start + seconds(1), &pod(), &says("i", 1001, &[("p", "r", 600, 60)]));
    traffic.observe(start + seconds(30), &pod(), &says("i", 1030, &[("p", "r", 605, 61)]));
    assert_sum(&traffic, start + seconds(30), "p", 105, 11);
    assert_eq!(traffic.rule(start + seconds(30), "p", "r").allowed, 105);
    assert_eq!(traffic.rule(start + seconds(30), "p", "other"), Counts::default());
    assert_sum(&traffic, start + seconds(61), "p", 5, 1);
    assert_sum(&traffic, start + seconds(90), "p", 0, 0);
    traffic.expire(start + seconds(90));
    assert!(traffic.windows.is_empty());
}

#[tokio::test(start_paused = true)]
async fn requests_that_waited_are_counted_like_all_others() {
    let start = Instant::now();
    let waiting = |uptime, waited| {
        let mut status = says("i", uptime, &[("p", "r", 100, 0)]);
        status.policies[0].rules[0].waited = waited;
        status
    };
    let mut traffic = Traffic::default();
    for (second, waited) in [(0, 40), (1, 47), (2, 50)] {
        traffic.observe(start + seconds(second), &pod(), &waiting(1000 + second, waited));
    }
    assert_eq!(traffic.rule(start + seconds(2), "p", "r"), Counts { waited: 10, ..Counts::default() });
    assert_eq!(traffic.policy(start + seconds(61), "p").waited, 3);
}

#[tokio::test(start_paused = true)]
async fn the_first_totals_of_a_pod_count_only_if_recent() {
    let start = Instant::now();
    let first = says("i", 1000, &[("p", "r", 500, 50)]);
    for (what, known, next, expected) in [
        ("an agent that is older than the window: the operator restarted", None, first.clone(), (0, 0)),
        ("an agent that started within the window", None, says("i", 59, &[("p", "r", 7, 3)]), (7, 3)),
        ("a new policy on a known agent", Some(&first), says("i", 1001, &[("q", "r", 7, 3)]), (7, 3)),
        ("a known agent that restarted", Some(&first), says("j", 1, &[("p", "r", 7, 3)]), (7, 3)),
        (
            "an agent that restarted and then counted more",
            Some(&first),
            says("j", 9, &[("p", "r", 600, 50)]),
            (600, 50),
        ),
        ("a policy that was removed and came back", Some(&first), says("i", 1001, &[("p", "r", 7, 3)]), (7, 3)),
    ] {
        let mut traffic = Traffic::default();
        if let Some(known) = known {
            traffic.observe(start, &pod(), known);
        }
        traffic.observe(start + seconds(1), &pod(), &next);
        let sum = traffic.policy(start + seconds(1), &next.policies[0].uid);
        assert_eq!((sum.allowed, sum.limited), expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_absent_for_one_poll_starts_again() {
    let (start, mut traffic) = (Instant::now(), Traffic::default());
    traffic.observe(start, &pod(), &says("i", 1000, &[("p", "r", 500, 0)]));
    traffic.observe(start + seconds(1), &pod(), &says("i", 1001, &[]));
    traffic.observe(start + seconds(2), &pod(), &says("i", 1002, &[("p", "r", 600, 0)]));
    assert_sum(&traffic, start + seconds(2), "p", 600, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pods_traffic_outlives_it() {
    let (start, mut traffic) = (Instant::now(), Traffic::default());
    traffic.observe(start, &pod(), &says("i", 5, &[("p", "r", 10, 1)]));
    traffic.forget(&pod());
    assert_sum(&traffic, start + seconds(1), "p", 10, 1);
    // The traffic of another pod is added.
    traffic.observe(start + seconds(2), &ObjectKey::new("shop", "b"), &says("k", 5, &[("p", "r", 1, 1)]));
    assert_sum(&traffic, start + seconds(2), "p", 11, 2);
}

/// An agent is removed from the list and listed again. Later, its totals are forgotten.
#[tokio::test(start_paused = true)]
async fn the_traffic_of_a_pod_that_comes_back_counts_once() {
    let (start, mut traffic) = (Instant::now(), Traffic::default());
    traffic.observe(start, &pod(), &says("i", 5, &[("p", "r", 10, 1)]));
    for second in 1..4 {
        traffic.forget(&pod());
        traffic.expire(start + seconds(second));
        traffic.observe(start + seconds(second), &pod(), &says("i", 5 + second, &[("p", "r", 10 + second, 1)]));
        assert_sum(&traffic, start + seconds(second), "p", 10 + second, 1);
    }
    traffic.forget(&pod());
    traffic.expire(start + seconds(64));
    assert!(traffic.pods.is_empty());
}

/// An address is removed from the list, and listed again for another agent.
#[tokio::test(start_paused = true)]
async fn an_old_agent_in_place_of_a_gone_pod_begins_at_its_totals() {
    let start = Instant::now();
    for (uptime, expected) in [(9000, 10), (5, 510)] {
        let mut traffic = Traffic::default();
        traffic.observe(start, &pod(), &says("i", 5, &[("p", "r", 10, 0)]));
        traffic.forget(&pod());
        traffic.observe(start + seconds(1), &pod(), &says("k", uptime, &[("p", "r", 500, 0)]));
        assert_sum(&traffic, start + seconds(1), "p", expected, 0);
    }
}

/// The order changes when an older policy is added. With a search of the list for each rule, this test takes minutes.
#[tokio::test(start_paused = true)]
async fn rules_in_another_order_keep_their_totals() {
    let start = Instant::now();
    let rules: Vec<String> = (0..100_000).map(|number| number.to_string()).collect();
    let mut before = says("i", 1000, &[("p", "", 0, 0)]);
    let rule = |name: &String| RuleStatus { name: name.clone(), allowed: 500, ..RuleStatus::default() };
    before.policies[0].rules = rules.iter().map(rule).collect();
    let mut now = before.clone();
    now.policies[0].rules.reverse();
    now.policies[0].rules[7].allowed += 3;
    let mut traffic = Traffic::default();
    for status in [before, now] {
        traffic.observe(start, &pod(), &status);
    }
    assert_sum(&traffic, start, "p", 3, 0);
    assert_eq!(traffic.rule(start, "p", "99992").allowed, 3);
}
