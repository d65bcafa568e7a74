use std::sync::Arc;

use serde_json::json;
use weir_wire::{OPERATOR_STORE, PolicyStatus, RuleStatus, SnapshotInForce, Store, StoreBackend, StoreStatus};

use super::*;
use crate::{
    compile::{CompiledPolicy, compile},
    traffic::Traffic,
    world::ObjectKey,
};

/// Returns a content with the policy `p` of the namespace `shop`.
pub(in crate::link) fn content(revision: &str, rules: &[&str], stores: &[&str]) -> Arc<Content> {
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    let rules: Vec<_> = rules.iter().map(|name| json!({"name": name, "limits": [limit]})).collect();
    let spec = serde_json::from_value(json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})).unwrap();
    let (policy, _) = compile(&ObjectKey::new("shop", "p"), "p", &spec).unwrap();
    let store = |name: &&str| Store { name: (*name).to_owned(), backend: StoreBackend::Operator, secrets: None };
    Content::of_policy(revision, CompiledPolicy { stores: stores.iter().map(store).collect(), ..policy })
}

fn policy(uid: &str, rules: &[&str]) -> PolicyStatus {
    let rule = |name: &&str| RuleStatus { name: (*name).to_owned(), allowed: 1, ..RuleStatus::default() };
    PolicyStatus { uid: uid.to_owned(), rules: rules.iter().map(rule).collect(), ..PolicyStatus::default() }
}

fn store(name: &str) -> StoreStatus {
    StoreStatus { name: name.to_owned(), reached: false, since_unix_millis: 1, error: None }
}

fn status(policies: Vec<PolicyStatus>, stores: &[&str]) -> Status {
    let in_force = Some(SnapshotInForce { sequence: 1, revision: "s".to_owned(), since_unix_millis: 1 });
    let stores = stores.iter().map(|name| store(name)).collect();
    Status { in_force, policies, stores, ..Status::default() }
}

fn bounded(mut status: Status, contents: &[&Arc<Content>]) -> Status {
    bound(&mut status, contents.iter().map(|content| &***content));
    status
}

#[test]
fn an_honest_status_stays_as_it_is() {
    let old = content("old", &["a", "removed"], &["shop/limits"]);
    let new = content("new", &["a", "added"], &["shop/limits@replaced", OPERATOR_STORE]);
    for (what, honest) in [
        ("before the first snapshot", status(Vec::new(), &[])),
        ("the old content", status(vec![policy("p", &["a", "removed"])], &["shop/limits"])),
        ("the new content", status(vec![policy("p", &["a", "added"])], &["shop/limits@replaced", OPERATOR_STORE])),
    ] {
        assert_eq!(bounded(honest.clone(), &[&new, &old]), honest, "{what}");
    }
}

/// The pod is in the namespace `shop`, and its policy uses the store `shop/limits`.
#[test]
fn names_that_no_content_has_are_removed_and_each_name_counts_once() {
    let content = content("s", &["a", "b"], &["shop/limits"]);
    let invented = (0..10_000).map(|number| policy(&format!("invented {number}"), &["a"]));
    let twice = [policy("p", &["b", "b", "invented", "a"]), policy("p", &["a"])];
    let stores = ["bank/limits", "shop/limits", "shop/limits", OPERATOR_STORE];
    let hostile = status(invented.chain(twice).collect(), &stores);
    let bounded = bounded(hostile, &[&content]);
    assert_eq!(bounded.policies.len(), 1);
    assert_eq!(bounded, status(vec![policy("p", &["b", "a"])], &["shop/limits"]));
    assert_eq!((bounded.policies.capacity(), bounded.stores.capacity()), (1, 1), "the rest must not keep its memory");

    let (mut traffic, now) = (Traffic::default(), crate::clock::now());
    traffic.observe(now, &ObjectKey::new("shop", "web"), &bounded);
    assert!(!traffic.has("invented 0") && traffic.policy(now, "p").allowed == 2, "{traffic:?}");
}

#[test]
fn texts_are_shortened() {
    let content = content("s", &["a"], &["shop/limits"]);
    let long = || "x".repeat(1_000_000);
    let mut hostile = status(vec![policy("p", &["a"])], &["shop/limits"]);
    (hostile.instance, hostile.agent_version) = (long(), long());
    hostile.in_force = Some(SnapshotInForce { sequence: 1, revision: long(), since_unix_millis: 1 });
    hostile.policies[0] = PolicyStatus { namespace: long(), name: long(), revision: long(), ..policy("p", &["a"]) };
    hostile.stores[0].error = Some(long());
    let bounded = bounded(hostile, &[&content]);
    assert!(serde_json::to_string(&bounded).unwrap().len() < 3000, "{bounded:?}");
    assert!(bounded.instance.capacity() <= LONGEST_TEXT, "the rest must not keep its memory");
}
