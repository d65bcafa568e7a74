use serde_json::{Value, json};

use super::*;
use crate::tables::{rows, yaml};

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
    // The columns: the guarded port, and the agent's.
    let table = r#"
        a sidecar added by the user | 81 9000 | {name: limits, args: [--listen, "0.0.0.0:9000", --upstream, "127.0.0.1:81"]}
        flags in the command | 2 1 | {name: a, command: [weir-agent, "--listen=:1", "--upstream=localhost:2"]}
        an upstream outside of the pod | - 0 | {name: a, args: ["--listen=:1", "--upstream=10.0.0.1:2"]}
        an app with such a flag | - 0 | {name: a, args: ["--listen=:80"]}
        none | - 0 | {name: a}
        an agent by its name, with the defaults | 8080 8480 | {name: weir-agent}
        an agent by its program | 8080 9 | {name: a, command: [/usr/local/bin/weir-agent], args: ["--listen=:9"]}
        variables | 81 9 | {name: a, env: [{name: X, value: "1"}, {name: WEIR_LISTEN, value: "0.0.0.0:9"}, {name: WEIR_UPSTREAM, value: "127.0.0.1:81"}]}
        a flag and its variable | 3 8480 | {name: a, args: ["--upstream=[::1]:3"], env: [{name: WEIR_UPSTREAM, value: "[::1]:4"}]}
        an address in another object | - 0 | {name: weir-agent, env: [{name: WEIR_UPSTREAM, valueFrom: {configMapKeyRef: {}}}]}
        references to variables | 81 9 | {name: a, args: ["--listen=:$(IN)", "--upstream=$(HOST):$(OUT)"], env: [{name: IN, value: "9"}, {name: HOST, value: 127.0.0.1}, {name: OUT, value: "81"}]}
        a reference in a variable | 81 8480 | {name: weir-agent, env: [{name: OUT, value: "81"}, {name: WEIR_UPSTREAM, value: "[::1]:$(OUT)"}]}
        a host that another object contains | 81 9 | {name: a, args: ["--listen=$(POD_IP):9", "--upstream=127.0.0.1:81"], env: [{name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}
        a reference without an end | 81 9 | {name: a, args: ["--listen=$(IP:9", "--upstream=127.0.0.1:81"]}
        an app whose host another object contains | - 0 | {name: a, args: ["--listen=:9", "--upstream=$(HOST):81"]}
        an unknown reference | - 0 | {name: weir-agent, args: ["--upstream=:$(OUT)"]}
        the rate limit service | - 0 | {name: weir-agent, args: [rls, "--listen=:8081"]}
        "#;
    let found = |agent: Value| {
        let PodPorts { guarded, agent, .. } = pod_ports(json!([agent]), json!([]));
        format!("{} {agent}", guarded.map_or("-".to_owned(), |port| port.to_string()))
    };
    for [what, expected, agent] in rows(table) {
        assert_eq!(found(yaml(agent)), expected, "{what}");
    }
    let long = format!("--upstream={}", "$(A)".repeat(500_000));
    let agent = json!({"name": "weir-agent", "args": [long], "env": [{"name": "A", "value": "1"}]});
    assert_eq!(found(agent), "- 0", "more references than fit on a stack");
    let agent = json!({"name": "weir-agent", "args": ["--listen=:8480", "--upstream=127.0.0.1:8080"]});
    let redirected = pod_ports(json!([]), json!([{"name": "weir-redirect"}, agent]));
    assert_eq!(redirected.guarded, None, "a redirect leaves no direct way to the app");
}

#[test]
fn a_service_leads_through_the_agent_or_past_it() {
    let past = |port| vec![Bypass::Port { service: "web".to_owned(), port, app: 8080, agent: 8480 }];
    for [what, expected, spec] in rows(
        r#"
        the agent's port | none | {ports: [{port: 80, targetPort: 8480}]}
        the app's port | 80 | {ports: [{port: 80, targetPort: 8080}]}
        the app's port, unsaid | 8080 | {ports: [{port: 8080}]}
        the name that the agent took over | none | {ports: [{port: 80, targetPort: http}]}
        another port of the app | none | {ports: [{port: 9090, targetPort: metrics}]}
        a name of no container port | none | {ports: [{port: 80, targetPort: web}]}
        one of two ports | 81 | {ports: [{port: 80, targetPort: http}, {port: 81, targetPort: 8080}]}
        not TCP | none | {ports: [{port: 80, targetPort: 8080, protocol: UDP}]}
        no ports | none | {}
        headless without ports | names | {clusterIP: None}
        headless, at the app's port | names | {clusterIP: None, ports: [{port: 8080, targetPort: http}]}
        headless, at the agent's port | none | {clusterIP: None, ports: [{port: 8480}]}
        "#,
    ) {
        let expected = match expected {
            "none" => vec![],
            "names" => vec![Bypass::Names { service: "web".to_owned(), app: 8080, agent: 8480 }],
            port => past(port.parse().unwrap()),
        };
        assert_eq!(service(&yaml(spec)).bypasses("web", &injected()), expected, "{what}");
    }
    let one = |port: Value| json!({"ports": [port]});
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
