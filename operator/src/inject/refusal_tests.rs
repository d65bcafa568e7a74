use serde_json::{Value, json};

use super::*;
use crate::tables::{rows, yaml};

fn pod(app: &Value, agent: &Value) -> [PodSpec; 2] {
    let app = json!({"name": "app", "resources": app});
    let agent = json!({"name": "weir-agent", "restartPolicy": "Always", "resources": agent});
    [json!({"containers": [app]}), json!({"containers": [app], "initContainers": [agent]})]
        .map(|spec| serde_json::from_value(spec).unwrap())
}

/// Returns a pod whose app and agent have requests and limits of 100m and 64Mi each.
fn usual() -> [PodSpec; 2] {
    let both = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}});
    pod(&both, &both)
}

fn range(item: &Value) -> NamespaceBounds {
    let range = json!({"metadata": {"name": "bounds"}, "spec": {"limits": [item]}});
    NamespaceBounds { ranges: vec![serde_json::from_value(range).unwrap()], quotas: Vec::new() }
}

fn quota(spec: &Value, used: &Value) -> NamespaceBounds {
    let status = json!({"hard": spec["hard"], "used": used});
    let quota = json!({"metadata": {"name": "team"}, "spec": spec, "status": status});
    NamespaceBounds { ranges: Vec::new(), quotas: vec![serde_json::from_value(quota).unwrap()] }
}

fn hard(hard: &Value) -> NamespaceBounds {
    quota(&json!({"hard": hard}), &json!({}))
}

#[track_caller]
fn check(bounds: &NamespaceBounds, [before, after]: &[PodSpec; 2], expected: Option<&str>) {
    let why = by_agent(bounds, before, after);
    match (&why, expected) {
        (None, None) => {}
        (Some(why), Some(expected)) if why.starts_with(expected) => {
            // The text must fit into the message of a drifted pod, after a few words.
            assert!(why.len() <= 220, "{} bytes: {why}", why.len());
        }
        _ => panic!("{why:?}, expected {expected:?}"),
    }
}

#[test]
fn a_limit_range_is_checked_for_each_container_and_for_the_pod() {
    // The text, or `-` for none.
    for [item, expected] in rows(
        "
        {type: Container, min: {cpu: 100m}} | -
        {type: Container, max: {cpu: 100m, memory: 64Mi}} | -
        {type: Container, maxLimitRequestRatio: {cpu: '1'}} | -
        {type: Pod, min: {cpu: 200m, memory: 100Mi}} | -
        {type: Pod, max: {cpu: 200m}} | -
        {type: Pod, max: {cpu: 199m}} | LimitRange bounds allows 199m of cpu, and the limit of the pod with the agent is 200m
        ",
    ) {
        check(&range(&yaml(item)), &usual(), Some(expected).filter(|text| *text != "-"));
    }
    let small =
        pod(&json!({"requests": {"cpu": "50m"}}), &json!({"requests": {"cpu": "33m"}, "limits": {"cpu": "50m"}}));
    for [item, expected] in rows(
        "
        {type: Container, maxLimitRequestRatio: {cpu: '1.5'}} | LimitRange bounds allows a limit of cpu of at most 1.5 times the request, and container weir-agent with the agent
        {type: Container, min: {cpu: 40m}} | LimitRange bounds wants 40m of cpu at least, and the request of container weir-agent with the agent is 33m
        # The app itself breaks the minimum of the pod, which has no limit without the agent: its request is too small.
        {type: Pod, min: {cpu: 60m}} | -
        ",
    ) {
        check(&range(&yaml(item)), &small, Some(expected).filter(|text| *text != "-"));
    }
    let only_limit = pod(&json!({"requests": {"memory": "256Mi"}}), &json!({"limits": {"memory": "128Mi"}}));
    let expected = "LimitRange bounds wants 200Mi of memory at least, and the limit of the pod with the agent is 128Mi";
    check(&range(&json!({"type": "Pod", "min": {"memory": "200Mi"}})), &only_limit, Some(expected));
    let default = json!({"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "1"}});
    check(&range(&default), &pod(&json!({}), &json!({})), None);
    let unset = json!({"type": "Container", "max": {"cpu": "1"}});
    let [before, after] = pod(&json!({"limits": {"cpu": "1"}}), &json!({}));
    let expected =
        "LimitRange bounds allows 1000m of cpu, and the limit of container weir-agent with the agent is not set";
    check(&range(&unset), &[before, after], Some(expected));
}

#[test]
fn a_quota_counts_all_containers_and_the_overhead() {
    check(&hard(&json!({"requests.cpu": "200m", "limits.memory": "128Mi", "pods": "1"})), &usual(), None);
    let expected = "ResourceQuota team leaves 199m of requests.cpu, and the pod with the agent needs 200m: raise that";
    check(&hard(&json!({"requests.cpu": "199m"})), &usual(), Some(expected));
    let mut kata = usual();
    for spec in &mut kata {
        spec.overhead = serde_json::from_value(json!({"cpu": "250m", "memory": "120Mi"})).unwrap();
    }
    let expected = "ResourceQuota team leaves 400m of cpu, and the pod with the agent needs 450m";
    check(&hard(&json!({"cpu": "300m"})), &kata, None);
    check(&hard(&json!({"cpu": "400m"})), &kata, Some(expected));
    // An init container that is not a sidecar runs before the app.
    let [before, mut after] = usual();
    let mut init = after.init_containers.clone().unwrap().remove(0);
    init.restart_policy = None;
    after.init_containers.as_mut().unwrap().insert(0, init);
    check(&hard(&json!({"requests.cpu": "200m"})), &[before, after], None);
    // A pod with resources of its own does not need them in each container.
    let mut whole = pod(&json!({}), &json!({"requests": {"cpu": "20m"}}));
    for (spec, cpu) in whole.iter_mut().zip(["100m", "120m"]) {
        spec.resources = serde_json::from_value(json!({"requests": {"cpu": cpu}})).unwrap();
    }
    check(&hard(&json!({"requests.cpu": "120m"})), &whole, None);
    check(&hard(&json!({"requests.cpu": "110m"})), &whole, Some("ResourceQuota team leaves 110m of requests.cpu"));
}

/// With an agent, a pod without resources of its own is counted by other quotas.
#[test]
fn an_agent_brings_a_pod_into_the_scope_of_a_quota() {
    let best_effort = pod(&json!({}), &json!({"requests": {"cpu": "20m", "memory": "32Mi"}}));
    let scoped = |hard: &Value| quota(&json!({"hard": hard, "scopes": ["NotBestEffort"]}), &json!({"pods": "0"}));
    let named = "ResourceQuota team wants requests.cpu of each container as soon as one has resources, as the agent does, \
                 and container app has none";
    check(&scoped(&json!({"requests.memory": "1Gi", "requests.cpu": "1"})), &best_effort, Some(named));
    let counted = "ResourceQuota team leaves 0 of pods, and the pod with the agent needs 1";
    check(&scoped(&json!({"pods": "0"})), &best_effort, Some(counted));
    check(&scoped(&json!({"count/pods": "5"})), &best_effort, None);
    check(&scoped(&json!({"pods": "0"})), &usual(), None);
    check(&scoped(&json!({"pods": "0"})), &pod(&json!({}), &json!({})), None);
}
