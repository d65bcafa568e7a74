//! Policies that are deleted and created again: used capacity stays used for a minute. The clock is paused.

use std::time::Duration;

use super::*;

/// A policy with one limit of three requests per day for each value of `x-key`.
fn keyed(uid: &str, namespace: &str, name: &str, rule_name: &str) -> Value {
    let key = json!({"key": [{"header": "x-key"}]});
    let rules = [rule(rule_name, &[limit("TokenBucket", 3, 86_400_000, json!({}))], key)];
    with(policy(name, &rules), json!({"uid": uid, "namespace": namespace}))
}

/// A policy with one limit for all requests together.
fn shared(uid: &str, requests: u64) -> Value {
    let rules = [rule("r", &[limit("FixedWindow", requests, 86_400_000, json!({}))], json!({}))];
    with(policy("p", &rules), json!({"uid": uid}))
}

async fn admitted(limits: &Limits, key: &str) -> usize {
    let mut admitted = 0;
    for _ in 0..5 {
        let request = Request::builder().uri("/").header("x-key", key).body(()).expect("a request");
        admitted += usize::from(limits.send(request, ok).await.status() == 200);
    }
    admitted
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_is_made_again_within_a_minute_goes_on() {
    for seconds in [0, 1, 59] {
        let limits = Limits::new(&[keyed("one", "shop", "p", "r")]);
        assert_eq!(admitted(&limits, "ann").await, 3);
        limits.apply(&[]);
        assert_eq!(admitted(&limits, "ann").await, 5, "no limit is in force");
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        limits.apply(&[keyed("two", "shop", "p", "r")]);
        assert_eq!(limits.counts(0, 0), [0; 4], "statistics belong to the deleted policy");
        assert_eq!(admitted(&limits, "ann").await, 0, "after {seconds} s");
        assert_eq!(admitted(&limits, "bob").await, 3, "after {seconds} s");
        assert_eq!(limits.counts(0, 0), [3, 7, 0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_minute_it_starts_full() {
    let limits = Limits::new(&[keyed("one", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 3);
    limits.apply(&[]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Other changes during this time make it neither longer nor shorter.
    limits.apply(&[keyed("other", "shop", "other", "r")]);
    tokio::time::sleep(Duration::from_secs(30)).await;
    limits.apply(&[keyed("two", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 3);
}

/// One snapshot replaces a policy by a policy with the same name and another limit, as after `kubectl replace --force`.
#[tokio::test(start_paused = true)]
async fn one_that_takes_the_place_of_another_is_retuned() {
    let limits = Limits::new(&[shared("one", 4)]);
    assert_eq!(admitted(&limits, "").await, 4);
    limits.apply(&[shared("two", 2)]);
    assert_eq!(admitted(&limits, "").await, 0);
    limits.apply(&[]);
    limits.apply(&[shared("three", 4)]);
    assert_eq!(admitted(&limits, "").await, 0);
    limits.apply(&[keyed("four", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "").await, 3, "the key changed, so the limiter is new");
}

#[tokio::test(start_paused = true)]
async fn rules_go_by_namespace_policy_and_name() {
    let limits = Limits::new(&[keyed("one", "shop", "p", "r"), keyed("two", "bank", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 3);
    limits.apply(&[]);
    for (number, made) in
        [keyed("a", "shop", "p", "renamed"), keyed("b", "shop", "renamed", "r"), keyed("c", "attic", "p", "r")]
            .iter()
            .enumerate()
    {
        limits.apply(std::slice::from_ref(made));
        assert_eq!(admitted(&limits, "ann").await, 3, "policy {number}");
    }
    limits.apply(&[keyed("d", "bank", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 0);
    limits.apply(&[keyed("e", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_rule_that_is_taken_out_and_put_in_again_goes_on() {
    let limits = Limits::new(&[shared("one", 4)]);
    assert_eq!(admitted(&limits, "").await, 4);
    limits.apply(&[with(policy("p", &[]), json!({"uid": "one"}))]);
    limits.apply(&[shared("one", 4)]);
    assert_eq!(admitted(&limits, "").await, 0);
}

/// Counts belong to the UID while its policy exists, even if another policy has the earlier name of that policy.
#[tokio::test(start_paused = true)]
async fn nothing_is_taken_from_a_policy_that_is_in_force() {
    let limits = Limits::new(&[keyed("one", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 3);
    let renamed = with(keyed("one", "shop", "p", "r"), json!({"name": "q"}));
    limits.apply(&[renamed.clone(), keyed("two", "shop", "p", "r")]);
    let left = |limits: &Limits, policy: usize| {
        let rules = limits.rules.load();
        let limiter = rules.policies()[policy].rules[0].rates().expect("limits").pod_limiter();
        limiter.keys().expect("a keyed limiter").tracked
    };
    assert_eq!((left(&limits, 0), left(&limits, 1)), (1, 0), "each policy has its own table");
    limits.apply(&[keyed("two", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 3);
    // A limiter that one policy took over is not available to a third policy.
    limits.apply(&[renamed, keyed("two", "shop", "p", "r")]);
    assert_eq!(admitted(&limits, "ann").await, 0);
    assert_eq!((left(&limits, 0), left(&limits, 1)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_latest_256_are_kept() {
    let many = |uid: &str| -> Vec<Value> {
        let limits = [limit("FixedWindow", 1, 86_400_000, json!({}))];
        let made = |number| {
            with(
                policy(&format!("p{number}"), &[rule("r", &limits, json!({}))]),
                json!({"uid": format!("{uid}{number}")}),
            )
        };
        (0..300).map(made).collect()
    };
    let limits = Limits::new(&many("a"));
    assert_eq!(limits.status("/").await, 200);
    limits.apply(&many("b"));
    assert_eq!(limits.rules.load().removed(), (0, None), "new rules took over all limiters, more than can be kept");
    let left = |limits: &Limits| {
        let rules = limits.rules.load();
        let limiters = rules.policies().iter().map(|policy| policy.rules[0].rates().expect("limits").pod_limiter());
        limiters.filter(|limiter| limiter.peek(limits.clock.now(), &[], 1).is_ok()).count()
    };
    assert_eq!(left(&limits), 0);
    let until = limits.clock.now().saturating_add(Duration::from_secs(60));
    limits.apply(&[]);
    assert_eq!(limits.rules.load().removed(), (256, Some(until)));
    limits.apply(&many("c"));
    assert_eq!((left(&limits), limits.rules.load().removed()), (300 - 256, (0, None)));
}

#[tokio::test(start_paused = true)]
async fn tables_are_kept_for_a_million_keys_together() {
    let keyed = |keys| json!({"key": [{"header": "x-key"}], "maxKeys": keys});
    let rules = |keys: &[u32]| -> Vec<Value> {
        let limits = [limit("FixedWindow", 1, 86_400_000, json!({}))];
        let made = |(number, keys)| rule(&format!("r{number}"), &limits, keyed(keys));
        keys.iter().copied().enumerate().map(made).collect()
    };
    for (keys, kept) in
        [(vec![1_000_000], 1), (vec![1_000_000, 48_576], 2), (vec![1_000_000, 48_577], 1), (vec![1; 100], 100)]
    {
        let limits = Limits::new(&[policy("p", &rules(&keys))]);
        limits.apply(&[]);
        assert_eq!(limits.rules.load().removed().0, kept, "{} rules", keys.len());
    }
}
