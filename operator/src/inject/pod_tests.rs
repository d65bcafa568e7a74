use super::*;
use crate::{
    inject::{agent_start::Authority, flags::parse_resources, namespace_bounds::NamespaceBounds},
    tables::{rows, yaml},
};

fn cluster() -> ClusterSettings {
    let images = Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect: None };
    ClusterSettings { images, resources: Resources::default(), settings: Settings::default(), native: true }
}

fn pod(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "web-", "labels": {"app": "web"}}, "spec": spec})
}

/// Returns a pod with one container `app` that has these ports.
fn app(ports: &Value) -> Value {
    pod(&json!({"containers": [{"name": "app", "image": "app", "ports": ports}]}))
}

fn http() -> Value {
    app(&json!([{"name": "http", "containerPort": 8080, "protocol": "TCP"}]))
}

fn annotated(mut pod: Value, annotations: &[(&str, &str)]) -> Value {
    for (name, value) in annotations {
        pod["metadata"]["annotations"][name] = (*value).into();
    }
    pod
}

fn spec_with(mut pod: Value, field: &str, value: Value) -> Value {
    pod["spec"][field] = value;
    pod
}

/// Returns the volume in which an agent finds its last snapshot after a restart.
fn cache() -> Value {
    json!({"name": "weir-cache", "emptyDir": {"medium": "Memory", "sizeLimit": "4Mi"}})
}

/// The decision on a pod for whose agent nothing is known.
fn decision(pod: &Value, cluster: &ClusterSettings) -> PodDecision {
    inject(pod, cluster, &AgentStart::default()).unwrap()
}

#[track_caller]
fn injected(pod: &Value, cluster: &ClusterSettings) -> (Value, Vec<String>) {
    injected_with(pod, cluster, &AgentStart { bootstrap: Some("{}"), ..AgentStart::default() })
}

#[track_caller]
fn injected_with(pod: &Value, cluster: &ClusterSettings, start: &AgentStart<'_>) -> (Value, Vec<String>) {
    match inject(pod, cluster, start).unwrap() {
        PodDecision::Injected { pod, warnings } => (pod, warnings),
        other => panic!("{other:?}"),
    }
}

fn agent(pod: &Value) -> &Value {
    let lists = [&pod["spec"]["initContainers"], &pod["spec"]["containers"]];
    let mut all = lists.into_iter().filter_map(Value::as_array).flatten();
    all.find(|container| container["name"] == AGENT).expect("the pod must have an agent")
}

fn has_arg(agent: &Value, arg: &str) -> bool {
    agent["args"].as_array().unwrap().contains(&arg.into())
}

/// The complete injected pod. A change of this output changes every pod.
#[test]
fn the_complete_injected_pod() {
    let (pod, warnings) = injected(&http(), &cluster());
    assert_eq!(warnings, [""; 0]);
    let expected = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "web-", "labels": {"app": "web", "weir.dev/agent": "enabled"}},
        "spec": {
            "containers": [{"name": "app", "image": "app", "ports": [{"containerPort": 8080, "protocol": "TCP"}]}],
            "initContainers": [{
                "name": "weir-agent",
                "image": "weir/agent:1",
                "restartPolicy": "Always",
                "args": [
                    "--listen=[::]:8480",
                    "--upstream=127.0.0.1:8080",
                    "--control=[::]:8481",
                    "--telemetry=[::]:8482",
                    "--drain=28s",
                    "--snapshot-cache=/var/lib/weir/snapshot.json",
                    "--control-plaintext",
                ],
                "env": [{"name": "WEIR_BOOTSTRAP", "value": "{}"}],
                "ports": [
                    {"name": "http", "containerPort": 8480, "protocol": "TCP"},
                    {"name": "weir-control", "containerPort": 8481, "protocol": "TCP"},
                    {"name": "weir-telemetry", "containerPort": 8482, "protocol": "TCP"},
                ],
                "startupProbe": {
                    "exec": {"command": [
                        "/usr/local/bin/weir-agent", "probe", "--telemetry=127.0.0.1:8482", "--path=/healthz",
                    ]},
                    "periodSeconds": 1,
                    "failureThreshold": 60,
                    "timeoutSeconds": 5,
                },
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": 8482}, "periodSeconds": 2},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8482}, "periodSeconds": 10, "timeoutSeconds": 2},
                "volumeMounts": [{"name": "weir-cache", "mountPath": "/var/lib/weir"}],
                "lifecycle": {"preStop": {"exec": {
                    "command": ["/usr/local/bin/weir-agent", "leave", "--control=127.0.0.1:8481"],
                }}},
                "resources": {},
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": 65532,
                    "runAsGroup": 65532,
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
            "volumes": [cache()],
        },
    });
    assert_eq!(pod, expected);
}

/// Only the agent gets the Secrets of stores, and an annotation lists them.
#[test]
fn an_agent_gets_the_secrets_of_its_stores() {
    let name = |name: &str| Some(name.to_owned());
    let secrets = vec![
        StoreSecrets { directory: "shop.a".to_owned(), credentials: name("redis"), authorities: name("ca") },
        StoreSecrets { directory: "shop.b".to_owned(), credentials: None, authorities: name("ca") },
    ];
    let start = AgentStart { bootstrap: Some("{}"), secrets: secrets.clone(), ..AgentStart::default() };
    let (pod, _) = injected_with(&http(), &cluster(), &start);
    let item = |key: &str, directory: &str| json!({"key": key, "path": format!("{directory}/{key}")});
    let logins = ["username", "password", "sentinel-username", "sentinel-password", "tls.crt", "tls.key"];
    let logins = logins.map(|key| item(key, "shop.a"));
    let sources = json!([
        {"secret": {"name": "redis", "optional": true, "items": logins}},
        {"secret": {"name": "ca", "optional": true, "items": [item("ca.crt", "shop.a")]}},
        {"secret": {"name": "ca", "optional": true, "items": [item("ca.crt", "shop.b")]}},
    ]);
    assert_eq!(pod["spec"]["volumes"][1], json!({"name": "weir-stores", "projected": {"sources": sources}}));
    let (agent, folder) = (agent(&pod), "/var/run/secrets/weir.dev/stores");
    assert!(has_arg(agent, &format!("--store-secrets={folder}")), "{agent:#}");
    let mount = json!({"name": "weir-stores", "mountPath": folder, "readOnly": true});
    assert_eq!(agent["volumeMounts"][1], mount);
    assert!(pod["spec"]["containers"][0].get("volumeMounts").is_none(), "the app must not get the volume");
    let annotation = pod["metadata"]["annotations"]["weir.dev/store-secrets"].as_str();
    assert_eq!(annotation, Some("shop.a=redis+ca,shop.b=+ca"));
    assert!(secrets.iter().all(|secrets| secrets.are_in(annotation)));
    let renamed = StoreSecrets { credentials: name("other"), ..secrets[0].clone() };
    assert!(!renamed.are_in(annotation) && !secrets[0].are_in(None));
    assert_eq!(inject(&pod, &cluster(), &start).unwrap(), PodDecision::Untouched);
    // Without stores, the pod gets no volume and no annotation for Secrets.
    let (pod, _) = injected(&http(), &cluster());
    assert!(!pod.to_string().contains("store"), "{pod}");
}

/// The agent gets a token that only the operator accepts. The app gets none.
#[test]
fn an_agent_is_told_how_to_prove_which_pod_it_is() {
    let authority = Authority {
        url: "https://weir-operator-identity.weir-system.svc".to_owned(),
        audience: "weir.dev".to_owned(),
        bundle: "PEM".to_owned(),
    };
    let start = AgentStart { bootstrap: Some("{}"), authority: Some(authority), ..AgentStart::default() };
    for volumes in [json!(null), json!([]), json!([{"name": "v", "emptyDir": {}}])] {
        let mut plain = http();
        if !volumes.is_null() {
            plain["spec"]["volumes"] = volumes.clone();
        }
        let (pod, _) = injected_with(&plain, &cluster(), &start);
        let mut expected = volumes.as_array().cloned().unwrap_or_default();
        expected.push(cache());
        expected.push(json!({"name": "weir-identity", "projected": {"sources": [{"serviceAccountToken": {
            "audience": "weir.dev", "expirationSeconds": 3600, "path": "token",
        }}]}}));
        assert_eq!(pod["spec"]["volumes"], json!(expected));
        let agent = agent(&pod);
        let mount =
            json!({"name": "weir-identity", "mountPath": "/var/run/secrets/weir.dev/identity", "readOnly": true});
        assert_eq!(agent["volumeMounts"][1], mount);
        assert!(has_arg(agent, "--identity-url=https://weir-operator-identity.weir-system.svc"), "{agent:#}");
        assert!(has_arg(agent, "--identity-token-file=/var/run/secrets/weir.dev/identity/token"), "{agent:#}");
        assert!(!has_arg(agent, "--control-plaintext"), "{agent:#}");
        assert_eq!(agent["env"][1], json!({"name": "WEIR_IDENTITY_CA", "value": "PEM"}));
        assert!(pod["spec"]["containers"][0].get("volumeMounts").is_none(), "the app must not get the volume");
        assert_eq!(inject(&pod, &cluster(), &start).unwrap(), PodDecision::Untouched);
    }
    // A pod can opt out. Then the operator requires no proof of identity either.
    let plain = annotated(http(), &[("weir.dev/control", "plaintext")]);
    let (pod, _) = injected_with(&plain, &cluster(), &start);
    assert!(has_arg(agent(&pod), "--control-plaintext") && pod["spec"]["volumes"] == json!([cache()]), "{pod:#}");
}

#[test]
fn injection_is_idempotent() {
    for native in [true, false] {
        let cluster = ClusterSettings { native, ..cluster() };
        let (mut once, _) = injected(&http(), &cluster);
        assert_eq!(decision(&once, &cluster), PodDecision::Untouched);
        // If another webhook removes the label, the pod does not get a second agent.
        once["metadata"]["labels"] = json!({});
        assert_eq!(decision(&once, &cluster), PodDecision::Untouched);
    }
    let mut by_hand = http();
    by_hand["metadata"]["labels"][AGENT_LABEL] = "enabled".into();
    assert_eq!(decision(&by_hand, &cluster()), PodDecision::Untouched);
    let why = left_alone(&http(), "why");
    assert_eq!(left_alone(&why, "why"), why);
    // The webhook is called again after the pod became suitable, and removes the earlier annotation.
    assert_eq!(injected(&why, &cluster()).0["metadata"]["annotations"], json!({}));
}

#[test]
fn other_containers_and_unknown_fields_stay_as_they_are() {
    let spec = json!({
        "somethingOf": {"kubernetes": 2.0},
        "initContainers": [
            {"name": "migrate", "image": "m"},
            {"name": "istio-proxy", "image": "i", "restartPolicy": "Always", "ports": [{"containerPort": 15090, "name": "http-envoy-prom"}]},
        ],
        "containers": [
            {"name": "app", "image": "a", "ports": [{"containerPort": 8080, "name": "http"}, {"containerPort": 9090, "name": "metrics"}]},
            {"name": "logs", "image": "l", "ports": [{"containerPort": 2020, "name": "http-logs"}], "new": true},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
    });
    let (with, _) = injected(&pod(&spec), &cluster());
    let mut expected = spec;
    expected["containers"][0]["ports"][0].as_object_mut().unwrap().remove("name");
    let init = with["spec"]["initContainers"].as_array().unwrap();
    assert_eq!(init.len(), 3);
    expected["initContainers"].as_array_mut().unwrap().push(agent(&with).clone());
    expected["volumes"].as_array_mut().unwrap().push(cache());
    assert_eq!(with["spec"], expected);
    assert_eq!(init[2]["name"], AGENT, "the agent is the last init container");
}

/// A mesh redirects the kubelet's requests to its proxy, which starts after the agent, or refuses them.
#[test]
fn no_probe_of_an_agent_in_a_mesh_passes_the_meshs_proxy() {
    let init = json!({"name": "istio-init", "image": "i"});
    for name in ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"] {
        let ports = json!([{"name": "proxy", "containerPort": 4143}, {"name": "http-admin", "containerPort": 4191}]);
        let proxy = json!({"name": name, "image": "p", "ports": ports});
        let app = &http()["spec"]["containers"][0];
        let native = json!({"name": name, "image": "p", "ports": proxy["ports"], "restartPolicy": "Always"});
        for (what, inits, containers) in [
            ("after the app", json!([init]), json!([app, proxy])),
            // Linkerd puts its proxy there.
            ("in front of the app", json!([init]), json!([proxy, app])),
            ("a native sidecar", json!([init, native]), json!([app])),
        ] {
            let (with, _) = injected(&pod(&json!({"initContainers": inits, "containers": containers})), &cluster());
            let agent = agent(&with);
            assert!(has_arg(agent, "--upstream=127.0.0.1:8080"), "{name} {what}: {agent:#}");
            for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
                let command = &agent[probe]["exec"]["command"];
                assert_eq!(command[1], "probe", "{name} {what}: {probe} of {agent:#}");
                let path = if probe == "readinessProbe" { "--path=/readyz" } else { "--path=/healthz" };
                assert_eq!(command[3], path, "{name} {what}: {probe} of {agent:#}");
            }
        }
    }
}

#[test]
fn the_patch_turns_the_pod_into_the_injected_one() {
    let before = annotated(http(), &[("a/b", "c")]);
    let (after, _) = injected(&before, &cluster());
    let mut patched = before.clone();
    json_patch::patch(&mut patched, &json_patch::diff(&before, &after)).unwrap();
    assert_eq!(patched, after);
}

#[test]
fn before_1_32_or_by_annotation_it_is_an_ordinary_container() {
    let chosen = || annotated(http(), &[("weir.dev/native-sidecar", "disabled")]);
    let before_1_32 = ClusterSettings { native: false, ..cluster() };
    is_ordinary(http(), &before_1_32, "upgrade apiserver and controller manager to Kubernetes 1.32");
    is_ordinary(chosen(), &before_1_32, "upgrade apiserver and controller manager to Kubernetes 1.32");
    is_ordinary(chosen(), &cluster(), "remove the annotation weir.dev/native-sidecar");
    // A container can have its own policy.
    let mut completes = chosen();
    completes["spec"]["containers"][0]["restartPolicy"] = "OnFailure".into();
    let decision = decision(&completes, &cluster());
    assert!(matches!(decision, PodDecision::Unfit { .. }), "{decision:?}");
    let mut never_completes = spec_with(completes, "restartPolicy", json!("Never"));
    never_completes["spec"]["containers"][0]["restartPolicy"] = "Always".into();
    injected(&never_completes, &cluster());

    let job = spec_with(http(), "restartPolicy", json!("Never"));
    injected(&job, &cluster());
}

#[track_caller]
fn is_ordinary(mut pod: Value, cluster: &ClusterSettings, fix: &str) {
    let job = spec_with(pod.clone(), "restartPolicy", json!("Never"));
    pod["spec"]["terminationGracePeriodSeconds"] = 60.into();
    pod["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 15}}});
    let (with, _) = injected(&pod, cluster);
    assert!(with["spec"].get("initContainers").is_none());
    let containers = with["spec"]["containers"].as_array().unwrap();
    assert_eq!((containers.len(), &containers[0]["name"]), (2, &json!("app")), "the app must stay the first container");
    let agent = agent(&with);
    assert!(agent.get("restartPolicy").is_none());
    // The agent runs as long as the app. It then has four seconds of the minute to finish.
    assert_eq!(agent["lifecycle"]["preStop"]["exec"]["command"][3], "--wait=56s");
    assert!(has_arg(agent, "--drain=58s"), "{agent}");

    let PodDecision::Unfit { why } = decision(&job, cluster) else { panic!("a job with an agent would never end") };
    assert!(why.contains(fix), "{why}");
}

#[test]
fn the_drain_fits_the_grace_period() {
    for (grace, drain) in [
        (json!(null), "28s"),
        (json!(300), "298s"),
        (json!(2), "1s"),
        (json!(0), "1s"),
        // The apiserver accepts any number.
        (json!(10_000_000_000_i64), "999999999s"),
        (json!(i64::MIN), "1s"),
    ] {
        let mut pod = http();
        pod["spec"]["terminationGracePeriodSeconds"] = grace;
        pod["spec"]["containers"][0]["lifecycle"] = json!({"preStop": {"sleep": {"seconds": 15}}});
        let (with, _) = injected(&pod, &cluster());
        assert!(has_arg(agent(&with), &format!("--drain={drain}")), "{with}");
        let hook = agent(&with)["lifecycle"]["preStop"]["exec"]["command"].as_array().unwrap();
        assert_eq!(hook.len(), 3, "the hook of a native sidecar must not wait: {hook:?}");
    }
}

#[test]
fn probes_follow_the_app() {
    let mut pod = http();
    let app = &mut pod["spec"]["containers"][0];
    app["livenessProbe"] = json!({"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 3});
    app["readinessProbe"] = json!({"tcpSocket": {"port": "http"}});
    app["startupProbe"] = json!({"httpGet": {"path": "/", "port": 8080}});
    app["lifecycle"] =
        json!({"preStop": {"httpGet": {"path": "/bye", "port": "http"}}, "postStart": {"exec": {"command": ["x"]}}});
    app["ports"] = json!([{"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 9000}]);
    let (with, warnings) = injected(&pod, &cluster());
    let mut expected = pod["spec"]["containers"][0].clone();
    expected["livenessProbe"]["httpGet"]["port"] = 8080.into();
    expected["readinessProbe"]["tcpSocket"]["port"] = 8080.into();
    expected["lifecycle"]["preStop"]["httpGet"]["port"] = 8080.into();
    expected["ports"][0] = json!({"containerPort": 8080});
    assert_eq!(with["spec"]["containers"][0], expected);
    assert_eq!(warnings, [""; 0]);

    // References to other named ports stay names.
    let mut pod = http();
    pod["spec"]["containers"][0]["ports"] =
        json!([{"name": "http", "containerPort": 8080}, {"name": "admin", "containerPort": 9000}]);
    pod["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"port": "admin"}});
    assert_eq!(injected(&pod, &cluster()).0["spec"]["containers"][0]["livenessProbe"]["httpGet"]["port"], "admin");
}

#[test]
fn which_port_is_guarded() {
    // The columns: the annotation, the guarded port, the name of the agent's port, and the ports of the app.
    for [what, port, upstream, name, ports] in rows(
        "
        the port named http | | 80 | http | [{name: grpc, containerPort: 50051}, {name: http, containerPort: 80}, {containerPort: 81}]
        the only TCP port | | 80 | web | [{name: dns, containerPort: 53, protocol: UDP}, {name: web, containerPort: 80}]
        the only port with a name, of those that can be HTTP | | 80 | web | [{containerPort: 8443}, {name: web, containerPort: 80}]
        the only name, and it says HTTP | | 80 | http-api | [{containerPort: 8080}, {name: http-api, containerPort: 80}]
        by name | admin | 9000 | admin | [{name: web, containerPort: 80}, {name: admin, containerPort: 9000}]
        by the number of a port with a name | 9000 | 9000 | admin | [{name: web, containerPort: 80}, {name: admin, containerPort: 9000}]
        by the number of a port without a name | 81 | 81 | weir-proxy | [{name: grpc, containerPort: 50051}, {name: http, containerPort: 80}, {containerPort: 81}]
        the only one that speaks HTTP | | 80 | web | [{name: redis, containerPort: 6379}, {name: web, containerPort: 80}]
        a name that says HTTP | | 443 | http-api | [{name: http-api, containerPort: 443}]
        a name that the policy names, and that says TCP | tcp-api | 80 | tcp-api | [{name: tcp-api, containerPort: 80}]
        by number, not declared | 8080 | 8080 | weir-proxy | null
        by number, in a pod without port names | 8080 | 8080 | weir-proxy | [{containerPort: 8080}]
        ",
    ) {
        let annotations: &[_] = if port.is_empty() { &[] } else { &[("weir.dev/port", port)] };
        let (with, warnings) = injected(&annotated(app(&yaml(ports)), annotations), &cluster());
        let agent = agent(&with);
        assert!(has_arg(agent, &format!("--upstream=127.0.0.1:{upstream}")), "{what}: {agent}");
        assert_eq!(agent["ports"][0], json!({"name": name, "containerPort": 8480, "protocol": "TCP"}), "{what}");
        let bypasses = warnings.iter().any(|warning| warning.contains("bypasses the agent"));
        assert_eq!(bypasses, name == "weir-proxy", "{what}: {warnings:?}");
    }
    // Another injector can put its container in front of the app's.
    let spec = json!({"containers": [
        {"name": "mesh", "image": "m", "ports": [{"name": "http", "containerPort": 15090}]},
        {"name": "app", "image": "a", "ports": [{"name": "web", "containerPort": 80}]},
    ]});
    let (with, _) = injected(&annotated(pod(&spec), &[("kubectl.kubernetes.io/default-container", "app")]), &cluster());
    assert!(has_arg(agent(&with), "--upstream=127.0.0.1:80"));
    assert_eq!(with["spec"]["containers"][0]["ports"][0]["name"], "http");
}

#[test]
fn the_pods_own_resources_grow_by_those_of_the_agent() {
    let chosen = [("weir.dev/agent-cpu-request", "20m"), ("weir.dev/agent-memory-limit", "128Mi")];
    let mut with = annotated(http(), &chosen);
    with["spec"]["resources"] = json!({"requests": {"cpu": "1"}, "limits": {"memory": "64Mi"}});
    let (with, _) = injected(&with, &cluster());
    let agent = &agent(&with)["resources"];
    assert_eq!((&agent["requests"]["cpu"], &agent["limits"]["memory"]), (&json!("20m"), &json!("128Mi")));
    assert_eq!(with["spec"]["resources"], json!({"requests": {"cpu": "1020m"}, "limits": {"memory": "192Mi"}}));
}

#[test]
fn pods_that_get_no_agent_and_why() {
    let with = |field: &str, value: Value| spec_with(http(), field, value);
    let own = |port: u16| app(&json!([{"name": "http", "containerPort": 8080}, {"containerPort": port}]));
    let probed = |scheme: &str| {
        let probe = json!({"httpGet": {"port": "web", "path": "/", "scheme": scheme}});
        let ports = json!([{"name": "web", "containerPort": 8443}]);
        pod(&json!({"containers": [{"name": "app", "image": "a", "ports": ports, "readinessProbe": probe}]}))
    };
    injected(&probed("HTTP"), &cluster());
    let clash = pod(&json!({"containers": [
        {"name": "a", "image": "a", "ports": [{"name": "http", "containerPort": 80}]},
        {"name": "b", "image": "b", "ports": [{"name": "http", "containerPort": 81}]},
    ]}));
    let next_to_a_sidecar = |restart_policy: Value| {
        let ports = json!([{"name": "http", "containerPort": 81}]);
        let sidecar = json!({"name": "mesh", "image": "b", "ports": ports, "restartPolicy": restart_policy});
        with("initContainers", json!([sidecar]))
    };
    // An ordinary init container ends before the app starts.
    injected(&next_to_a_sidecar(Value::Null), &cluster());
    let https =
        "(a probe or hook uses HTTPS there), and the agent reads only plain HTTP: set weir.dev/inject: disabled";
    let unfit = |what: &str, pod: &Value, expected: &str| match decision(pod, &cluster()) {
        PodDecision::Unfit { why } => assert!(why.contains(expected), "{what}: {why}"),
        other => panic!("{what}: {other:?}"),
    };
    for (what, pod, expected) in [
        ("hostNetwork", with("hostNetwork", json!(true)), "(hostNetwork)"),
        ("Windows", with("os", json!({"name": "windows"})), "does not run on Linux"),
        ("8480", own(8480), "container app has a port that the agent needs (8480, 8481, 8482)"),
        ("8482", own(8482), "container app has a port that the agent needs"),
        ("one name twice", clash, "port name http is in containers a and b"),
        ("a sidecar", next_to_a_sidecar(json!("Always")), "port name http is in containers app and mesh"),
        ("HTTPS", probed("HTTPS"), https),
    ] {
        unfit(what, &pod, expected);
    }
    for [ports, expected] in rows(
        "
        null | no container port to guard
        [{name: dns, containerPort: 53, protocol: UDP}] | no container port
        [{containerPort: 80}] | its ports have no names
        [{name: a, containerPort: 1}, {name: b, containerPort: 2}] | (a, b): name one
        [{name: metrics, containerPort: 9090}, {containerPort: 8080}] | several ports are possible (metrics, 8080): name one
        [{name: http, containerPort: 8481}] | port 8481 is used by the agent
        [{name: redis, containerPort: 7000}] | port redis is not plain HTTP (its name
        [{name: tcp-sql, containerPort: 1}] | begins with tcp)
        [{name: db, containerPort: 5432}] | (5432 is the port of PostgreSQL)
        [{containerPort: 443}] | port 443 is not plain HTTP (443 is the port of TLS)
        ",
    ) {
        unfit(ports, &app(&yaml(ports)), expected);
    }
    // Ports of other protocols and of containers that end are free.
    let mut free = own(9000);
    free["spec"]["containers"][0]["ports"][1] = json!({"containerPort": 8481, "protocol": "UDP"});
    free["spec"]["initContainers"] =
        json!([{"name": "i", "image": "i", "restartPolicy": "Never", "ports": [{"containerPort": 8480}]}]);
    injected(&free, &cluster());
    // The control port can be moved.
    let moved = annotated(own(8481), &[("weir.dev/control-port", "9481")]);
    let (moved, _) = injected(&moved, &cluster());
    assert!(has_arg(agent(&moved), "--control=[::]:9481"));
    assert_eq!(agent(&moved)["lifecycle"]["preStop"]["exec"]["command"][2], "--control=127.0.0.1:9481");
    assert!(inject(&json!({"spec": {"containers": "none"}}), &cluster(), &AgentStart::default()).is_err());
}

#[track_caller]
fn wrong(pod: &Value) -> String {
    match decision(pod, &cluster()) {
        PodDecision::Wrong { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_annotations_are_reported_with_the_fix() {
    for (name, value, fix) in [
        ("weir.dev/inject", "yes", "it must be enabled or disabled"),
        ("weir.dev/port", "htpp", "no container has a TCP port of that name (http)"),
        ("weir.dev/agent-memory-limit", "64MB", "it must be a quantity of memory such as 64Mi"),
        ("weir.dev/redirect", "enabled", "set injection.redirect.image of its chart"),
        ("weir.dev/control-port", "8080", "it must not be the port of the app"),
    ] {
        let why = wrong(&annotated(http(), &[(name, value)]));
        assert!(why.contains(name) && why.contains(fix), "{why}");
    }
    let both = annotated(http(), &[("weir.dev/port", "htpp"), ("weir.dev/redirect", "on")]);
    let why = wrong(&both);
    assert!(why.contains("annotation weir.dev/port is") && why.contains("; annotation weir.dev/redirect"), "{why}");
    let mut labelled = http();
    labelled["metadata"]["labels"][INJECT] = "true".into();
    assert!(wrong(&labelled).starts_with("label weir.dev/inject"));
}

#[test]
fn an_unknown_variable_of_the_agent_is_a_warning() {
    let env =
        r#"[{"name": "WEIR_IDEL_TIMEOUT", "value": "9s"}, {"name": "WEIR_WORKERS", "value": "1"}, {"name": "A"}]"#;
    let (_, warnings) = injected(&annotated(http(), &[("weir.dev/agent-env", env)]), &cluster());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("variable WEIR_IDEL_TIMEOUT in annotation weir.dev/agent-env"), "{warnings:?}");
}

#[test]
fn disabled_wins_on_a_label_or_an_annotation() {
    for (label, annotation) in [("disabled", "enabled"), ("enabled", "disabled")] {
        let mut pod = annotated(http(), &[(INJECT, annotation)]);
        pod["metadata"]["labels"][INJECT] = label.into();
        assert_eq!(decision(&pod, &cluster()), PodDecision::Declined);
    }
}

#[test]
fn annotations_choose_image_and_resources() {
    let defaults = r#"{"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}"#;
    let resources = parse_resources(defaults).unwrap();
    let images = Images { pull_policy: Some("Never".to_owned()), ..cluster().images };
    let cluster = ClusterSettings { resources, images, ..cluster() };
    let pod = annotated(http(), &[("weir.dev/agent-image", "mine:2"), ("weir.dev/agent-cpu-limit", "1")]);
    let (with, _) = injected(&pod, &cluster);
    let agent = agent(&with);
    assert_eq!((&agent["image"], &agent["imagePullPolicy"]), (&json!("mine:2"), &json!("Never")));
    let expected = json!({"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    assert_eq!(agent["resources"], expected);
    let (_, warnings) = injected(&annotated(http(), &[("weir.dev/limits", "x")]), &cluster);
    assert!(warnings.iter().any(|it| it.contains("annotation weir.dev/limits is unknown to Weir")), "{warnings:?}");
}

#[test]
fn a_redirect_needs_an_image_and_warns_about_probes() {
    let cluster =
        ClusterSettings { images: Images { redirect: Some("iptables:1".to_owned()), ..cluster().images }, ..cluster() };
    let mut pod = annotated(
        app(&json!([{"containerPort": 8080}])),
        &[("weir.dev/port", "8080"), ("weir.dev/redirect", "enabled")],
    );
    let (with, warnings) = injected(&pod, &cluster);
    assert_eq!(warnings, [""; 0], "nothing bypasses the agent");
    let init = with["spec"]["initContainers"].as_array().unwrap();
    assert_eq!((init.len(), &init[0]["image"], &init[1]["name"]), (2, &json!("iptables:1"), &json!(AGENT)));
    let script = init[0]["command"][2].as_str().unwrap();
    let rule = "iptables -w -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 8480 &&";
    assert!(script.contains(rule), "{script}");
    let lock = json!([{"name": "XTABLES_LOCKFILE", "value": "/dev/shm/xtables.lock"}]);
    assert_eq!(init[0]["env"], lock, "iptables-legacy cannot lock its default file on a read-only file system");
    assert!(script.contains("{ [ ! -e /proc/net/if_inet6 ] || ip6tables -w -t nat"), "{script}");
    let security = &init[0]["securityContext"];
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]}));
    assert_eq!((&security["privileged"], &security["readOnlyRootFilesystem"]), (&json!(null), &json!(true)));

    pod["spec"]["containers"][0]["livenessProbe"] = json!({"httpGet": {"path": "/live", "port": 8080}});
    let (_, warnings) = injected(&pod, &cluster);
    assert!(warnings.iter().any(|warning| warning.contains("probes of port 8080 reach the agent")), "{warnings:?}");
}

#[test]
fn the_bootstrap_snapshot_is_passed_to_the_agent() {
    let start = |bootstrap: Option<&str>| {
        let (pod, _) = injected_with(&http(), &cluster(), &AgentStart { bootstrap, ..AgentStart::default() });
        agent(&pod)["env"].clone()
    };
    let closed = json!([{"name": "WEIR_WAIT_FOR_CONFIG", "value": "true"}]);
    assert_eq!(start(None), closed, "without a snapshot, the port must stay closed");
    let long = format!("{{{}}}", " ".repeat(96 * 1024));
    assert_eq!(start(Some(&long)), closed, "Linux does not start a process with so long a variable");
    // Each dollar sign becomes six bytes.
    let dollars = json!(["$".repeat(20_000)]).to_string();
    assert_eq!(start(Some(&dollars)), closed, "the escaped snapshot is too long");
    // The kubelet would expand $(HOME), and would replace two dollar signs with one.
    let regex = json!({"pathRegexes": ["^/a$$", "$(HOME)"]});
    let given = start(Some(&regex.to_string()));
    let text = given[0]["value"].as_str().unwrap();
    assert!(given[0]["name"] == "WEIR_BOOTSTRAP" && !text.contains('$'), "{text}");
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), regex);
}

#[test]
fn policies_select_by_the_labels_that_the_pod_will_have() {
    let expected =
        || [("app", "web"), ("weir.dev/agent", "enabled")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(membership("shop", &http()), Membership::of_labels(expected().into()));
    let [_, agent] = expected();
    assert_eq!(membership("shop", &json!({"metadata": {}})), Membership::of_labels([agent].into()));
}

/// All of the cluster owner's settings, with the pod's overrides, reach the agent.
#[test]
fn the_agents_settings_are_the_clusters_unless_the_pod_says_otherwise() {
    let settings = r#"{
        "logFormat": "json", "logLevel": "warn", "maxConnections": 100, "drain": "20s", "cache": false,
        "jwks": {"configMap": "keys"},
        "env": [{"name": "WEIR_IDLE_TIMEOUT", "value": "90s"}, {"name": "RUST_BACKTRACE", "value": "1"}],
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000}
    }"#;
    let cluster = ClusterSettings { settings: Settings::parse(settings).unwrap(), ..cluster() };
    let (pod, _) = injected(&http(), &cluster);
    let args =
        "--log-format=json --log-level=warn --max-connections=100 --drain=20s --jwks=/var/run/weir.dev/jwks/jwks.json";
    for arg in args.split(' ') {
        assert!(has_arg(agent(&pod), arg), "{arg}: {pod:#}");
    }
    assert!(!agent(&pod)["args"].to_string().contains("snapshot-cache"), "{pod:#}");
    let volume = json!({"name": "weir-jwks", "configMap": {"name": "keys", "items": [{"key": "jwks.json", "path": "jwks.json"}]}});
    assert_eq!(pod["spec"]["volumes"], json!([volume]));
    let mount = json!([{"name": "weir-jwks", "mountPath": "/var/run/weir.dev/jwks", "readOnly": true}]);
    assert_eq!(agent(&pod)["volumeMounts"], mount);
    assert_eq!(agent(&pod)["env"][1], json!({"name": "WEIR_IDLE_TIMEOUT", "value": "90s"}));
    assert_eq!(agent(&pod)["securityContext"], json!({"runAsNonRoot": true, "runAsUser": 1000}));

    // The columns: an annotation, its value, and the argument of the agent, if any.
    let own: Vec<_> = rows::<3>(
        r#"
        agent-log-format | text | --log-format=text
        agent-log-level | info,weir_client::control=debug | --log-level=info,weir_client::control=debug
        agent-max-connections | 7 | --max-connections=7
        agent-drain | 9s | --drain=9s
        agent-cache | enabled | --snapshot-cache=/var/lib/weir/snapshot.json
        agent-jwks-url | https://issuer.example/keys | --jwks-url=https://issuer.example/keys
        agent-jwks-refresh | 1m30s | --jwks-refresh=90s
        agent-jwks-ca-configmap | issuer/root.pem | --jwks-ca=/var/run/weir.dev/jwks-ca/ca.crt
        agent-env | [{"name": "WEIR_IDLE_TIMEOUT", "value": "5s"}] |
        agent-security-context | {"runAsUser": null, "runAsGroup": 5} |
        "#,
    )
    .collect();
    let named = |pod, [name, value, _]: &[&str; 3]| annotated(pod, &[(&format!("weir.dev/{name}"), value)]);
    let (pod, warnings) = injected(&own.iter().fold(http(), named), &cluster);
    assert_eq!(warnings, [""; 0]);
    for [.., arg] in own.iter().filter(|[.., arg]| !arg.is_empty()) {
        assert!(has_arg(agent(&pod), arg), "{arg}: {pod:#}");
    }
    assert!(!agent(&pod)["args"].to_string().contains("--jwks="), "{pod:#}");
    let authorities = json!({"name": "weir-jwks-ca", "configMap": {"name": "issuer", "items": [{"key": "root.pem", "path": "ca.crt"}]}});
    assert_eq!(pod["spec"]["volumes"], json!([cache(), authorities]));
    let env = json!([{"name": "RUST_BACKTRACE", "value": "1"}, {"name": "WEIR_IDLE_TIMEOUT", "value": "5s"}]);
    assert_eq!(json!(agent(&pod)["env"].as_array().unwrap()[1..]), env);
    assert_eq!(agent(&pod)["securityContext"], json!({"runAsNonRoot": true, "runAsGroup": 5}));
}

#[test]
fn a_drain_longer_than_the_grace_period_is_refused_and_a_default_is_shortened() {
    let long = annotated(http(), &[("weir.dev/agent-drain", "29s")]);
    let why = "annotation weir.dev/agent-drain is 29 s: its terminationGracePeriodSeconds leaves 28 s; raise it, or \
               lower the drain";
    assert_eq!(wrong(&long), why);
    let cluster = ClusterSettings { settings: Settings::parse(r#"{"drain": "1m"}"#).unwrap(), ..cluster() };
    assert!(has_arg(agent(&injected(&http(), &cluster).0), "--drain=28s"));
}

/// The apiserver would refuse such a pod only because of the agent.
#[test]
fn a_pod_that_a_quota_would_refuse_with_the_agent_starts_without() {
    let quota = json!({"metadata": {"name": "team"}, "spec": {"hard": {"pods": "0"}, "scopes": ["NotBestEffort"]}});
    let quotas = vec![serde_json::from_value(quota).unwrap()];
    let start = AgentStart { bounds: NamespaceBounds { quotas, ..Default::default() }, ..AgentStart::default() };
    let resources = parse_resources(r#"{"requests": {"cpu": "20m"}}"#).unwrap();
    let cluster = ClusterSettings { resources, ..cluster() };
    let PodDecision::Unfit { why } = inject(&http(), &cluster, &start).unwrap() else { panic!("not unfit") };
    assert!(why.starts_with("ResourceQuota team leaves 0 of pods"), "{why}");
}
