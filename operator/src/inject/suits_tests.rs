use serde_json::{Value, json};

use super::super::{
    agent_start::{AgentStart, Authority},
    annotations::Resources,
    pod::{ClusterSettings, PodDecision, inject},
    settings::Settings,
    sidecar::Images,
};
use crate::compile::StoreSecrets;

fn pod() -> Value {
    let ports = json!([{"name": "http", "containerPort": 8080}]);
    json!({"metadata": {}, "spec": {"containers": [{"name": "app", "image": "app", "ports": ports}]}})
}

fn with(field: &str, value: Value) -> Value {
    let mut pod = pod();
    pod["spec"][field] = value;
    pod
}

fn outcome(pod: &Value) -> PodDecision {
    let images =
        Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect: Some("iptables:1".to_owned()) };
    let (resources, settings) = (Resources::default(), Settings::default());
    let cluster = ClusterSettings { images, resources, settings, native: true };
    let authority = Authority {
        url: "https://identity.weir-system.svc".to_owned(),
        audience: "weir.dev".to_owned(),
        bundle: "PEM".to_owned(),
    };
    let store =
        StoreSecrets { directory: "shop.a".to_owned(), credentials: Some("redis".to_owned()), authorities: None };
    let start = AgentStart { authority: Some(authority), secrets: vec![store], ..AgentStart::default() };
    inject(pod, &cluster, &start).unwrap()
}

#[track_caller]
fn unfit(pod: &Value) -> String {
    match outcome(pod) {
        PodDecision::Unfit { why } => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn warnings(pod: &Value) -> Vec<String> {
    match outcome(pod) {
        PodDecision::Injected { warnings, .. } => warnings,
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_that_the_agent_needs_are_reported() {
    for name in ["weir-cache", "weir-identity", "weir-stores"] {
        let why = unfit(&with("volumes", json!([{"name": name, "emptyDir": {}}])));
        assert_eq!(why, format!("its volume {name} has a name that the agent needs: rename it"));
    }
    for name in ["weir-control", "weir-telemetry"] {
        let mut pod = pod();
        pod["spec"]["containers"][0]["ports"][0]["name"] = name.into();
        assert_eq!(unfit(&pod), format!("its port {name} has a name that the agent needs: rename it"));
    }
    let mut redirected = with("initContainers", json!([{"name": "weir-redirect", "image": "i"}]));
    redirected["metadata"]["annotations"] = json!({"weir.dev/redirect": "enabled"});
    assert!(unfit(&redirected).starts_with("its container weir-redirect has a name"));
    assert!(unfit(&with("initContainers", json!([{"name": "weir-agent", "image": "i"}]))).contains("rename it, or"));
}

#[test]
fn static_pods_and_other_systems_are_left_alone() {
    let mut mirror = pod();
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "1234"});
    assert!(unfit(&mirror).starts_with("it is a static pod"));
    assert!(unfit(&with("nodeSelector", json!({"kubernetes.io/os": "windows"}))).contains("does not run on Linux"));
    assert_eq!(warnings(&with("nodeSelector", json!({"kubernetes.io/os": "linux"}))), [""; 0]);
}

#[test]
fn a_pod_that_no_node_with_linux_may_run_is_left_alone() {
    let os = |operator: &str, values: &[&str]| {
        json!({"matchExpressions": [
            {"key": "pool", "operator": "Exists"},
            {"key": "kubernetes.io/os", "operator": operator, "values": values},
        ]})
    };
    let requires = |terms: Value| {
        let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
        with("affinity", json!({"nodeAffinity": required}))
    };
    let windows = os("In", &["windows"]);
    for terms in [json!([windows]), json!([os("NotIn", &["linux"])]), json!([windows, os("NotIn", &["linux", "x"])])] {
        assert!(unfit(&requires(terms.clone())).contains("does not run on Linux"), "{terms}");
    }
    for terms in [
        json!([os("In", &["linux"])]),
        json!([os("In", &["windows", "linux"])]),
        json!([os("NotIn", &["windows"])]),
        json!([windows, {"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]),
    ] {
        assert_eq!(warnings(&requires(terms.clone())), [""; 0], "{terms}");
    }
}

#[test]
fn a_pod_that_may_not_resolve_services_gets_a_warning() {
    for policy in ["Default", "None"] {
        let warnings = warnings(&with("dnsPolicy", policy.into()));
        assert!(warnings.iter().any(|it| it.starts_with(&format!("its dnsPolicy is {policy}: "))), "{warnings:?}");
    }
    assert_eq!(warnings(&with("dnsPolicy", "ClusterFirst".into())), [""; 0]);
    let mut plaintext = with("dnsPolicy", "Default".into());
    plaintext["metadata"]["annotations"] = json!({"weir.dev/control": "plaintext"});
    assert_eq!(warnings(&plaintext), [""; 0], "such an agent does not use the identity service");
}

#[test]
fn a_port_that_is_plainly_not_http_is_left_alone() {
    for (name, number) in [
        ("dns-tcp", 53),
        ("webhook-server", 9443),
        ("ssl", 8000),
        ("wss", 8000),
        ("websecure", 8000),
        ("web", 8443),
        ("smtps", 465),
        ("mqtts", 8883),
        ("client", 2379),
    ] {
        let mut pod = pod();
        pod["spec"]["containers"][0]["ports"] = json!([{"name": name, "containerPort": number}]);
        assert!(unfit(&pod).contains("is not plain HTTP"), "{name} {number}");
        pod["metadata"]["annotations"] = json!({"weir.dev/port": name});
        assert_eq!(warnings(&pod), [""; 0], "{name}");
    }
    let get = |scheme: &str, port: Value| json!({"httpGet": {"path": "/", "scheme": scheme, "port": port}});
    let mut hook = pod();
    hook["spec"]["containers"][0]["lifecycle"]["preStop"] = get("HTTPS", "http".into());
    assert!(unfit(&hook).contains("a probe or hook uses HTTPS there"));
    let mut other = pod();
    let probed = json!({"name": "other", "image": "x", "livenessProbe": get("HTTPS", 8080.into())});
    other["spec"]["containers"].as_array_mut().unwrap().push(probed);
    assert!(unfit(&other).contains("a probe or hook uses HTTPS there"));
    // The name of a port is the container's own.
    other["spec"]["containers"][1]["livenessProbe"] = get("HTTPS", "http".into());
    assert_eq!(warnings(&other), [""; 0]);
}

/// A native sidecar can be the app.
#[test]
fn the_port_of_a_native_sidecar_can_be_guarded() {
    let ports = json!([{"name": "web", "containerPort": 9000}]);
    let probe = json!({"httpGet": {"path": "/", "port": "web"}});
    let sidecar =
        json!({"name": "proxy", "image": "p", "restartPolicy": "Always", "ports": ports, "readinessProbe": probe});
    for port in ["9000", "web"] {
        let mut pod = with("initContainers", json!([{"name": "first", "image": "f"}, sidecar]));
        pod["metadata"]["annotations"] = json!({"weir.dev/port": port});
        let PodDecision::Injected { pod, warnings } = outcome(&pod) else { panic!("{port}: not injected") };
        assert_eq!(warnings, [""; 0], "{port}");
        let init = &pod["spec"]["initContainers"];
        assert_eq!(init[1]["ports"], json!([{"containerPort": 9000}]), "{port}");
        assert_eq!(init[1]["readinessProbe"]["httpGet"]["port"], 9000, "{port}");
        assert_eq!(init[2]["ports"][0], json!({"name": "web", "containerPort": 8480, "protocol": "TCP"}), "{port}");
    }
}
