use serde_json::{Value, json};

use super::*;

fn pod_ports(containers: Value, init: Value) -> PodPorts {
    let read = |value| serde_json::from_value::<Vec<Container>>(value).unwrap();
    PodPorts::of(&read(containers), &read(init))
}

/// Returns the ports of a pod after injection: the agent has taken over the name http of the app's port.
fn injected() -> PodPorts {
    let agent = json!({"name": "weir-agent", "args": ["--listen=[::]:8480", "--upstream=127.0.0.1:8080"],
        "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 8480}, {"name": "weir-control", "containerPort": 8481}]});
    let app = json!({"name": "app", "ports": [{"containerPort": 8080}, {"name": "metrics", "containerPort": 9090}]});
    pod_ports(json!([app]), json!([agent]))
}

fn service(spec: &Value) -> Service {
    Service::of(&serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap())
}

#[test]
fn a_service_that_is_only_a_name_opens_no_bypass() {
    let past = |spec: Value| service(&spec).bypasses("web", &injected()).len();
    let ports = json!([{"port": 80, "targetPort": 8080}]);
    assert_eq!(past(json!({"type": "ClusterIP", "ports": ports})), 1);
    assert_eq!(past(json!({"type": "ExternalName", "externalName": "db.example", "ports": ports})), 0);
}

#[test]
fn the_ports_of_agent_and_app_are_read_from_the_arguments() {
    let names = [("http", 8480), ("weir-control", 8481), ("metrics", 9090)];
    let names: BTreeMap<_, _> = names.map(|(name, port)| (name.to_owned(), port)).into();
    assert_eq!(injected(), PodPorts { guarded: Some(8080), agent: 8480, names, host_port: None });
    for (what, agent, expected) in [
        (
            "a sidecar added by the user",
            json!({"name": "limits", "args": ["--listen", "0.0.0.0:9000", "--upstream", "127.0.0.1:81"]}),
            (Some(81), 9000),
        ),
        (
            "flags in the command",
            json!({"name": "a", "command": ["weir-agent", "--listen=:1", "--upstream=localhost:2"]}),
            (Some(2), 1),
        ),
        (
            "an upstream outside of the pod",
            json!({"name": "a", "args": ["--listen=:1", "--upstream=10.0.0.1:2"]}),
            (None, 0),
        ),
        ("an app with such a flag", json!({"name": "a", "args": ["--listen=:80"]}), (None, 0)),
        ("none", json!({"name": "a"}), (None, 0)),
        ("an agent by its name, with the defaults", json!({"name": "weir-agent"}), (Some(8080), 8480)),
        (
            "an agent by its program",
            json!({"name": "a", "command": ["/usr/local/bin/weir-agent"], "args": ["--listen=:9"]}),
            (Some(8080), 9),
        ),
        (
            "variables",
            json!({"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "WEIR_LISTEN", "value": "0.0.0.0:9"},
                {"name": "WEIR_UPSTREAM", "value": "127.0.0.1:81"}]}),
            (Some(81), 9),
        ),
        (
            "a flag and its variable",
            json!({"name": "a", "args": ["--upstream=[::1]:3"], "env": [{"name": "WEIR_UPSTREAM", "value": "[::1]:4"}]}),
            (Some(3), 8480),
        ),
        (
            "an address in another object",
            json!({"name": "weir-agent", "env": [{"name": "WEIR_UPSTREAM", "valueFrom": {"configMapKeyRef": {}}}]}),
            (None, 0),
        ),
        (
            "references to variables",
            json!({"name": "a", "args": ["--listen=:$(IN)", "--upstream=$(HOST):$(OUT)"], "env": [
                {"name": "IN", "value": "9"}, {"name": "HOST", "value": "127.0.0.1"}, {"name": "OUT", "value": "81"}]}),
            (Some(81), 9),
        ),
        (
            "a reference in a variable",
            json!({"name": "weir-agent", "env": [{"name": "OUT", "value": "81"},
                {"name": "WEIR_UPSTREAM", "value": "[::1]:$(OUT)"}]}),
            (Some(81), 8480),
        ),
        (
            "more references than fit on a stack",
            json!({"name": "weir-agent", "args": [format!("--upstream={}", "$(A)".repeat(500_000))],
                "env": [{"name": "A", "value": "1"}]}),
            (None, 0),
        ),
        (
            "a host that another object contains",
            json!({"name": "a", "args": ["--listen=$(POD_IP):9", "--upstream=127.0.0.1:81"], "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}),
            (Some(81), 9),
        ),
        (
            "a reference without an end",
            json!({"name": "a", "args": ["--listen=$(IP:9", "--upstream=127.0.0.1:81"]}),
            (Some(81), 9),
        ),
        (
            "an app whose host another object contains",
            json!({"name": "a", "args": ["--listen=:9", "--upstream=$(HOST):81"]}),
            (None, 0),
        ),
        ("an unknown reference", json!({"name": "weir-agent", "args": ["--upstream=:$(OUT)"]}), (None, 0)),
        ("the rate limit service", json!({"name": "weir-agent", "args": ["rls", "--listen=:8081"]}), (None, 0)),
    ] {
        let pod_ports = pod_ports(json!([agent]), json!([]));
        assert_eq!((pod_ports.guarded, pod_ports.agent), expected, "{what}");
    }
    let agent = json!({"name": "weir-agent", "args": ["--listen=:8480", "--upstream=127.0.0.1:8080"]});
    assert_eq!(
        pod_ports(json!([]), json!([{"name": "weir-redirect"}, agent])).guarded,
        None,
        "a redirect leaves no direct way to the app"
    );
}

#[test]
fn a_service_leads_through_the_agent_or_past_it() {
    let past = |port| vec![Bypass::Port { service: "web".to_owned(), port, app: 8080, agent: 8480 }];
    let names = || vec![Bypass::Names { service: "web".to_owned(), app: 8080, agent: 8480 }];
    let one = |port: Value| json!({"ports": [port]});
    for (what, spec, expected) in [
        ("the agent's port", one(json!({"port": 80, "targetPort": 8480})), vec![]),
        ("the app's port", one(json!({"port": 80, "targetPort": 8080})), past(80)),
        ("the app's port, unsaid", one(json!({"port": 8080})), past(8080)),
        ("the name that the agent took over", one(json!({"port": 80, "targetPort": "http"})), vec![]),
        ("another port of the app", one(json!({"port": 9090, "targetPort": "metrics"})), vec![]),
        ("a name of no container port", one(json!({"port": 80, "targetPort": "web"})), vec![]),
        (
            "one of two ports",
            json!({"ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 8080}]}),
            past(81),
        ),
        ("not TCP", one(json!({"port": 80, "targetPort": 8080, "protocol": "UDP"})), vec![]),
        ("no ports", json!({}), vec![]),
        ("headless without ports", json!({"clusterIP": "None"}), names()),
        (
            "headless, at the app's port",
            json!({"clusterIP": "None", "ports": [{"port": 8080, "targetPort": "http"}]}),
            names(),
        ),
        ("headless, at the agent's port", json!({"clusterIP": "None", "ports": [{"port": 8480}]}), vec![]),
    ] {
        assert_eq!(service(&spec).bypasses("web", &injected()), expected, "{what}");
    }
    let by_hand = pod_ports(
        json!([{"name": "a", "args": ["--listen=:8480", "--upstream=127.0.0.1:8080"]},
            {"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}]),
        json!([]),
    );
    assert_eq!(service(&one(json!({"port": 80, "targetPort": "http"}))).bypasses("web", &by_hand), past(80));
    assert_eq!(service(&one(json!({"port": 80, "targetPort": 8080}))).bypasses("web", &PodPorts::default()), vec![]);
}

#[test]
fn an_intended_bypass_is_not_reported() {
    for (value, count) in [("allowed", 0), ("true", 1)] {
        let object =
            json!({"metadata": {"annotations": {BYPASS_ANNOTATION: value}}, "spec": {"ports": [{"port": 8080}]}});
        let service = Service::of(&serde_json::from_value(object).unwrap());
        assert_eq!(service.bypasses("web", &injected()).len(), count, "{value}");
    }
}

/// A Service finds the ports of containers first, then those of native sidecars, and none of other init containers.
#[test]
fn a_name_belongs_to_the_container_that_a_service_finds() {
    let ports = |number: u16| json!([{"name": "http", "containerPort": number}]);
    let agent = json!({"name": "a", "args": ["--listen=:8480", "--upstream=127.0.0.1:80"], "ports": ports(8480)});
    let ended = json!({"name": "ended", "ports": ports(80)});
    let sidecar = json!({"name": "sidecar", "restartPolicy": "Always", "ports": ports(80)});
    let name = |containers: Value, init: Value| pod_ports(containers, init).names["http"];
    assert_eq!(name(json!([agent]), json!([ended, sidecar])), 8480);
    let unnamed = json!({"name": "a", "args": ["--listen=:8480", "--upstream=127.0.0.1:80"]});
    assert_eq!(name(json!([unnamed]), json!([sidecar])), 80, "the Service leads past the agent");
}

#[test]
fn a_port_of_the_node_leads_to_the_app() {
    let agent = json!({"name": "weir-agent", "args": ["--listen=:8480", "--upstream=127.0.0.1:8080"]});
    let of = |port: &Value, init: Value| pod_ports(json!([agent, {"name": "app", "ports": [port]}]), init).bypass();
    let past = Some(Bypass::HostPort { port: 80, app: 8080 });
    for (what, port, expected) in [
        ("the app's port", json!({"containerPort": 8080, "hostPort": 80}), past),
        ("no hostPort", json!({"containerPort": 8080}), None),
        ("another port", json!({"containerPort": 9090, "hostPort": 80}), None),
        ("not TCP", json!({"containerPort": 8080, "hostPort": 80, "protocol": "UDP"}), None),
    ] {
        assert_eq!(of(&port, json!([])), expected, "{what}");
    }
    let open = json!({"containerPort": 8080, "hostPort": 80});
    assert_eq!(of(&open, json!([{"name": "weir-redirect"}])), None, "a redirect");
}
