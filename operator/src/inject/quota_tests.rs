use serde_json::{Value, json};

use super::{super::flags::parse_resources, *};
use crate::tables::{rows, yaml};

/// Returns an app with requests of 100m and 64Mi, and limits of 200m and 128Mi.
fn app() -> PodSpec {
    let resources =
        json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "200m", "memory": "128Mi"}});
    serde_json::from_value(json!({"containers": [{"name": "app", "resources": resources}]})).unwrap()
}

fn usual() -> Resources {
    parse_resources(r#"{"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}"#).unwrap()
}

fn range(items: &Value) -> NamespaceBounds {
    let range = serde_json::from_value(json!({"metadata": {"name": "bounds"}, "spec": {"limits": items}})).unwrap();
    NamespaceBounds { ranges: vec![range], ..NamespaceBounds::default() }
}

fn quota(hard: &Value, used: &Value) -> NamespaceBounds {
    let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": hard}, "status": {"hard": hard, "used": used}});
    NamespaceBounds { ranges: Vec::new(), quotas: vec![serde_json::from_value(quota).unwrap()] }
}

/// Returns request and limit of CPU, then of memory, then of storage; empty if unset.
#[track_caller]
fn fitted(bounds: &NamespaceBounds) -> Vec<String> {
    let Resources { cpu, memory, storage } = bounds.fit(&app(), &usual()).unwrap();
    let all = [cpu.request, cpu.limit, memory.request, memory.limit, storage.request, storage.limit];
    all.iter().map(|quantity| quantity.as_ref().map_or("", Quantity::text).to_owned()).collect()
}

#[test]
fn without_bounds_nothing_is_changed() {
    assert_eq!(fitted(&NamespaceBounds::default()), ["20m", "", "32Mi", "128Mi", "", ""]);
    let others = quota(&json!({"pods": "10", "requests.storage": "1Gi"}), &json!({"pods": "10"}));
    assert_eq!(fitted(&others), ["20m", "", "32Mi", "128Mi", "", ""]);
}

#[test]
fn what_a_quota_counts_is_named() {
    let hard = json!({"limits.cpu": "4", "limits.memory": "4Gi", "requests.cpu": "2", "requests.memory": "2Gi"});
    assert_eq!(fitted(&quota(&hard, &json!({}))), ["20m", "1000m", "32Mi", "128Mi", "", ""]);
    let storage = quota(&json!({"limits.ephemeral-storage": "1Gi"}), &json!({}));
    assert_eq!(fitted(&storage), ["20m", "", "32Mi", "128Mi", "16Mi", "64Mi"]);
}

#[test]
fn an_agent_is_reduced_to_what_a_quota_leaves() {
    // The quota leaves limits of 300m and 192Mi, of which the app takes 200m and 128Mi. It leaves requests of 110m, of
    // which the app takes 100m.
    let hard = json!({"limits.cpu": "1", "limits.memory": "1Gi", "cpu": "1"});
    let used = json!({"limits.cpu": "700m", "limits.memory": "832Mi", "cpu": "890m"});
    assert_eq!(fitted(&quota(&hard, &used)), ["10m", "100m", "32Mi", "64Mi", "", ""]);
}

#[test]
fn too_little_for_an_agent_is_an_error_with_the_fix() {
    // The columns: the hard limits of a quota and what is used of them, the items of a LimitRange, and the text.
    for [hard, used, items, expected] in rows(
        "
        {limits.memory: 1Gi} | {limits.memory: 880Mi} | [] | ResourceQuota team leaves 16Mi of limits.memory, and the agent's limit of memory is 32Mi at least
        {limits.memory: 818Mi} | {limits.memory: 680Mi} | [] | ResourceQuota team leaves 10Mi of limits.memory, and the agent's limit of memory is 32Mi at least
        {requests.cpu: '1'} | {requests.cpu: 899m} | [] | ResourceQuota team leaves 1m of requests.cpu, and the agent's request of cpu is 5m at least
        {} | {} | [{type: Container, max: {memory: 8Mi}}] | LimitRange bounds lets a container have 8Mi, and the agent's limit of memory is 32Mi at least
        {} | {} | [{type: Pod, max: {memory: 140Mi}}] | LimitRange bounds lets a pod have 140Mi, and the agent's
        {requests.cpu: 105m} | {} | [{type: Container, min: {cpu: 10m}}] | ResourceQuota team leaves 5m of requests.cpu, and the agent's request of cpu is 10m at least
        ",
    ) {
        let bounds = NamespaceBounds { ranges: range(&yaml(items)).ranges, ..quota(&yaml(hard), &yaml(used)) };
        let why = bounds.fit(&app(), &usual()).unwrap_err();
        assert!(why.starts_with(expected), "{why}");
        // The text must fit into the message of a drifted pod, after a few words.
        assert!(why.len() <= 220, "{} bytes: {why}", why.len());
    }
}

/// Such a pod is refused with or without an agent, and its owner must fix it.
#[test]
fn a_pod_that_is_too_large_without_the_agent_is_not_judged() {
    let full = quota(&json!({"limits.memory": "1Gi"}), &json!({"limits.memory": "1000Mi"}));
    assert_eq!(fitted(&full), ["20m", "", "32Mi", "128Mi", "", ""]);
}

#[test]
fn an_agent_respects_a_limit_range() {
    for (item, expected) in [
        (json!({"min": {"cpu": "50m", "memory": "64Mi"}}), ["50m", "", "64Mi", "128Mi"]),
        (json!({"max": {"cpu": "500m", "memory": "64Mi"}}), ["20m", "500m", "32Mi", "64Mi"]),
        (json!({"maxLimitRequestRatio": {"memory": "2"}}), ["20m", "", "32Mi", "64Mi"]),
        // The LimitRange's default may be less than the request.
        (json!({"default": {"cpu": "10m"}}), ["20m", "50m", "32Mi", "128Mi"]),
        (json!({"maxLimitRequestRatio": {"cpu": "2"}}), ["25m", "50m", "32Mi", "128Mi"]),
        (json!({"default": {"cpu": "300m"}, "defaultRequest": {"memory": "1Gi"}}), ["20m", "300m", "32Mi", "128Mi"]),
    ] {
        let mut item = item;
        item["type"] = "Container".into();
        assert_eq!(fitted(&range(&json!([item])))[..4], expected, "{item}");
    }
    let ratio = range(&json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "1.5"}}]));
    assert_eq!(fitted(&ratio)[..2], ["34m", "50m"], "a request of 33m would have the ratio 1.52");
    let pod = json!([{"type": "Pod", "max": {"cpu": "260m", "memory": "256Mi"}}]);
    assert_eq!(fitted(&range(&pod))[..4], ["20m", "60m", "32Mi", "128Mi"]);
}

/// The limit of the agent may be the only one in the pod.
#[test]
fn an_agent_respects_the_minimum_of_a_pod() {
    let bounds = range(&json!([{"type": "Pod", "min": {"memory": "200Mi"}}]));
    let mut app = app();
    assert_eq!(bounds.fit(&app, &usual()).unwrap().memory, usual().memory);
    app.containers[0].resources = serde_json::from_value(json!({"requests": {"memory": "256Mi"}})).unwrap();
    let limit = bounds.fit(&app, &usual()).unwrap().memory.limit.unwrap();
    assert_eq!(limit.text(), "200Mi");
}

#[test]
fn a_quota_also_counts_the_overhead_of_a_pod() {
    let bounds = quota(&json!({"limits.memory": "300Mi"}), &json!({}));
    let mut app = app();
    app.overhead = serde_json::from_value(json!({"cpu": "250m", "memory": "120Mi"})).unwrap();
    let limit = bounds.fit(&app, &usual()).unwrap().memory.limit.unwrap();
    assert_eq!(limit.text(), "52Mi", "the quota leaves 300Mi without the 128Mi of the app and the overhead");
}

#[test]
fn quotas_that_do_not_count_this_pod_are_ignored() {
    for [counted, spec] in rows(
        "
        true | {scopes: [NotTerminating]}
        false | {scopes: [Terminating]}
        false | {scopes: [BestEffort]}
        true | {scopes: [NotBestEffort]}
        false | {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [high]}]}}
        true | {scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: NotIn, values: [high]}]}}
        ",
    ) {
        let mut bounds = quota(&json!({"limits.cpu": "10"}), &json!({}));
        let mut whole = serde_json::to_value(&bounds.quotas[0]).unwrap();
        json_patch::merge(&mut whole["spec"], &yaml(spec));
        bounds.quotas = vec![serde_json::from_value(whole).unwrap()];
        assert_eq!(fitted(&bounds)[1] == "1000m", counted == "true", "{spec}");
    }
}
