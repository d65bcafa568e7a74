//! Converts Kubernetes objects to the types of the world.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment, StatefulSet},
        core::v1::Service,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference},
};
use kube::{api::DynamicObject, core::Selector};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use weir_api::{
    RateLimitPolicy, RateLimitPolicyStatus, RateLimitStore,
    check::{self, FaultKind},
};

use super::pod::Pod;
use crate::{
    labels::{AGENT_LABEL, CONTROL_ANNOTATION, CONTROL_PORT_ANNOTATION, INJECT, NOT_INJECTED, STORE_SECRETS},
    log_once::LogOnce,
    pod_ports::{PodPorts, Service as Ports, agent_container, is_only_a_name},
    wording::shorten,
    world::{AgentAddress, Change, Fault, Membership, ObjectKey, Policy, Store, StoredStatus, Workload, WorkloadKind},
};

/// The control port of a pod without the annotation.
const DEFAULT_CONTROL_PORT: u16 = 8481;
/// The value of the annotation that disables the proof of identity. A misspelled one does not.
const PLAINTEXT: &str = "plaintext";
/// The maximum size of an annotation's value in a log line.
const LONGEST_VALUE: usize = 64;

/// Converts a policy. If this program cannot read its spec, it is still a policy, and its last good rules stay in
/// force.
pub(super) fn policy(key: ObjectKey, mut object: DynamicObject) -> Change {
    let spec = check::parse_stored(&key.document::<RateLimitPolicy>(&object.data["spec"]));
    let status = take_policy_status(&mut object);
    let policy = Policy {
        uid: object.metadata.uid.unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        created: object.metadata.creation_timestamp.map(|time| time.0),
        changed: None,
        spec: spec.map(|policy| Arc::new(policy.spec)).map_err(explain),
        file: None,
    };
    Change::Policy(key, Some((policy, StoredStatus { status, version: object.metadata.resource_version })))
}

/// Converts a store. If this program cannot read its spec, it is still a store.
pub(super) fn store(key: ObjectKey, mut object: DynamicObject) -> Change {
    let spec = check::parse_stored_store(&key.document::<RateLimitStore>(&object.data["spec"]));
    let status = take_status(&mut object);
    let store = Store {
        uid: object.metadata.uid.unwrap_or_default(),
        generation: object.metadata.generation.unwrap_or_default(),
        spec: spec.map(|store| Arc::new(store.spec)).map_err(explain),
    };
    Change::Store(key, Some((store, status)))
}

/// Explains faults of a spec that the apiserver has stored. The definition in the cluster may be newer than this
/// program. Then a rule without the fields that this program does not know could match or refuse every request. Or the
/// spec was stored under an older definition, and agents would refuse it together with the other policies of their
/// pods.
fn explain(faults: Vec<check::Fault>) -> Vec<Fault> {
    let explain = |check::Fault { path, message, kind }| {
        let message = match kind {
            FaultKind::UnknownField => {
                "unknown field: this operator is older than the cluster's definition (CRD): upgrade the operator, or \
                 remove the field"
                    .to_owned()
            }
            FaultKind::UnknownValue | FaultKind::Invalid => message,
        };
        Fault { path, message }
    };
    faults.into_iter().map(explain).collect()
}

/// Returns the status of an object. A status of another version may be unreadable, and counts as absent.
fn take_status<T: DeserializeOwned>(object: &mut DynamicObject) -> Option<Box<T>> {
    let status = object.data.get_mut("status").map(Value::take)?;
    serde_json::from_value(status).ok().map(Box::new)
}

/// Returns the status of a policy. If it is unreadable, its last good generation is still returned, because limits can
/// depend on it.
pub(crate) fn take_policy_status(object: &mut DynamicObject) -> Option<Box<RateLimitPolicyStatus>> {
    let mut status = object.data.get_mut("status").map(Value::take)?;
    let status = RateLimitPolicyStatus::deserialize(&status).or_else(|_| {
        let good = status.get_mut("lastKnownGood").map(Value::take).unwrap_or_default();
        let last_known_good = Some(serde_json::from_value(good)?);
        Ok::<_, serde_json::Error>(RateLimitPolicyStatus { last_known_good, ..RateLimitPolicyStatus::default() })
    });
    status.ok().map(Box::new)
}

/// The setting that decides whether agents prove their pod's identity. A pod can opt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityProof {
    /// No agent proves its identity: the operator has no authority.
    NotRequired,
    /// Every agent proves its identity, with the certificate that the operator issued for its pod.
    Required,
}

/// Converts a pod, unless it has ended.
pub(super) fn pod(key: ObjectKey, pod: Pod, proof: IdentityProof) -> Change {
    let status = pod.status.unwrap_or_default();
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return Change::Pod(key, None);
    }
    let labels = pod.metadata.labels.unwrap_or_default();
    let annotations = pod.metadata.annotations.unwrap_or_default();
    let spec = pod.spec.unwrap_or_default();
    let (agent, has_run, ports) = if labels.get(AGENT_LABEL).is_none_or(|value| value != "enabled") {
        (AgentAddress::None(why_absent(&labels, &annotations)), false, PodPorts::default())
    } else {
        let port = control_port(&annotations).unwrap_or(DEFAULT_CONTROL_PORT);
        let is_plaintext = annotations.get(CONTROL_ANNOTATION).is_some_and(|value| value == PLAINTEXT);
        let scheme = if proof == IdentityProof::NotRequired || is_plaintext { "http" } else { "https" };
        let agent = match status.pod_ip.as_deref() {
            None | Some("") => AgentAddress::Pending,
            Some(ip) if ip.contains(':') => AgentAddress::At(format!("{scheme}://[{ip}]:{port}").into()),
            Some(ip) => AgentAddress::At(format!("{scheme}://{ip}:{port}").into()),
        };
        let container = agent_container(&spec.containers, &spec.init_containers, port);
        let has_run = container.is_none_or(|container| status.has_run(container));
        (agent, has_run, PodPorts::of(&spec.containers, &spec.init_containers))
    };
    let controller = controller(&key.namespace, &labels, pod.metadata.owner_references.as_deref().unwrap_or_default());
    let store_secrets = annotations.get(STORE_SECRETS).map(|list| Arc::from(list.as_str()));
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    let pod = crate::world::Pod {
        uid: pod.metadata.uid.unwrap_or_default().into(),
        membership: Membership::Pod { labels, ports, controller }.into(),
        agent,
        has_run,
        store_secrets,
    };
    if is_leaving { Change::Leaving(key, pod) } else { Change::Pod(key, Some(pod)) }
}

/// Returns the workload that created a pod of this namespace.
pub(crate) fn controller(
    namespace: &str,
    labels: &BTreeMap<String, String>,
    owners: &[OwnerReference],
) -> Option<Workload> {
    // Other groups have the same names of kinds.
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.api_version.starts_with("apps/"))?;
    let (kind, name) = match &*owner.kind {
        "StatefulSet" => (WorkloadKind::StatefulSet, &*owner.name),
        "DaemonSet" => (WorkloadKind::DaemonSet, &*owner.name),
        // A Deployment names its ReplicaSets after itself and the hash of the pod template.
        "ReplicaSet" => {
            let hash = labels.get("pod-template-hash")?;
            (WorkloadKind::Deployment, owner.name.strip_suffix(&**hash)?.strip_suffix('-')?)
        }
        _ => return None,
    };
    Some(Workload { kind, key: ObjectKey::new(namespace, name) })
}

/// Returns the reason why a pod has no agent, as far as its metadata shows it. The namespace's label is not available
/// here.
fn why_absent(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Cow<'static, str> {
    if let Some(why) = annotations.get(NOT_INJECTED) {
        return format!("it was created without an agent: {why}").into();
    }
    let says = |place: &BTreeMap<String, String>, value: &str| place.get(INJECT).is_some_and(|it| it == value);
    if says(labels, "disabled") || says(annotations, "disabled") {
        "it has weir.dev/inject: disabled: remove that, or target other pods"
    } else if says(labels, "enabled") {
        "it requests the agent (weir.dev/inject: enabled), but the webhook did not answer when it was created, or its \
         namespace is excluded: delete it, or kubectl rollout restart its workload"
    } else if says(annotations, "enabled") {
        "weir.dev/inject is one of its annotations: use a label, of the pod template or of the namespace"
    } else {
        "it has no agent: if weir.dev/inject: enabled was on its template or namespace, no operator answered when it was \
         created, so run kubectl rollout restart; otherwise add this label and restart, or add an agent yourself (label \
         weir.dev/agent: enabled)"
    }
    .into()
}

/// Returns the control port of a pod. The error is the text of a faulty annotation.
fn control_port(annotations: &BTreeMap<String, String>) -> Result<u16, &str> {
    let Some(text) = annotations.get(CONTROL_PORT_ANNOTATION) else { return Ok(DEFAULT_CONTROL_PORT) };
    text.parse().map_err(|_| text.as_str())
}

/// The faulty annotations of pods. Each is logged once, because the status of a pod changes often.
#[derive(Debug, Default)]
pub(super) struct AnnotationFaults(Mutex<HashMap<ObjectKey, LogOnce>>);

impl AnnotationFaults {
    /// Logs the faults of a pod's annotations if they differ from the last ones.
    pub(super) fn log(&self, key: &ObjectKey, pod: &Pod, proof: IdentityProof) {
        let faults = annotation_faults(pod, proof);
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.is_empty() {
            logged.remove(key);
        } else if let Some(faults) = logged.entry(key.clone()).or_default().changed(Err(faults)) {
            tracing::warn!(pod = %key, faults, "ignoring invalid annotations");
        }
    }

    /// Forgets a deleted pod.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

fn annotation_faults(pod: &Pod, proof: IdentityProof) -> String {
    let has_agent =
        pod.metadata.labels.as_ref().and_then(|labels| labels.get(AGENT_LABEL)).is_some_and(|it| it == "enabled");
    let Some(annotations) = pod.metadata.annotations.as_ref().filter(|_| has_agent) else { return String::new() };
    let mut faults = Vec::new();
    let shown = |text: &str| shorten(text.to_owned(), LONGEST_VALUE);
    if let Err(text) = control_port(annotations) {
        let text = shown(text);
        faults.push(format!("{CONTROL_PORT_ANNOTATION} {text:?} is not a port: using {DEFAULT_CONTROL_PORT}"));
    }
    let control = annotations.get(CONTROL_ANNOTATION).filter(|_| proof == IdentityProof::Required);
    if let Some(text) = control.filter(|value| *value != PLAINTEXT) {
        let text = shown(text);
        faults.push(format!("{CONTROL_ANNOTATION} {text:?} is not {PLAINTEXT}: the agent must prove its identity"));
    }
    faults.join("; ")
}

pub(super) fn deployment(key: ObjectKey, object: Deployment) -> Change {
    workload(WorkloadKind::Deployment, key, object.spec.map(|spec| spec.selector))
}

pub(super) fn stateful_set(key: ObjectKey, object: StatefulSet) -> Change {
    workload(WorkloadKind::StatefulSet, key, object.spec.map(|spec| spec.selector))
}

pub(super) fn daemon_set(key: ObjectKey, object: DaemonSet) -> Change {
    workload(WorkloadKind::DaemonSet, key, object.spec.map(|spec| spec.selector))
}

/// Converts a Service. A Service without a selector selects no pods. Its endpoints are managed elsewhere.
pub(super) fn service(key: ObjectKey, object: Service) -> Change {
    let ports = Ports::of(&object);
    let spec = object.spec.filter(|spec| !is_only_a_name(spec));
    let labels = spec.and_then(|spec| spec.selector).filter(|labels| !labels.is_empty());
    let selector = labels.map(|labels| labels.into_iter().collect::<Selector>());
    Change::Service(key, Some((selector, ports)))
}

fn workload(kind: WorkloadKind, key: ObjectKey, selector: Option<LabelSelector>) -> Change {
    let selector = selector.and_then(|selector| Selector::try_from(selector).ok());
    // An empty selector would select the whole namespace. The apiserver refuses it for these kinds.
    let selector = selector.filter(|selector| !selector.selects_all());
    Change::Workload(Workload { kind, key }, Some(selector))
}

pub(super) fn workload_gone(kind: WorkloadKind, key: ObjectKey) -> Change {
    Change::Workload(Workload { kind, key }, None)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        compile::{Compiled, Compiler},
        tables::{rows, yaml},
        world::{DirtySet, World},
    };

    /// The kubelet changes the status of a pod again and again.
    #[test]
    fn a_faulty_annotation_is_logged_once() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt().with_writer(Arc::new(log.reopen().unwrap())).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let (faults, key) = (AnnotationFaults::default(), ObjectKey::new("shop", "p"));
        let pod = |annotations: Value, ip: &str| -> Pod {
            let metadata = json!({"labels": {"weir.dev/agent": "enabled"}, "annotations": annotations});
            serde_json::from_value(json!({"metadata": metadata, "status": {"podIP": ip}})).unwrap()
        };
        let long = "x".repeat(100_000);
        for (annotations, lines) in [
            (json!({"weir.dev/control-port": "8481", "weir.dev/control": "plaintext"}), 0),
            (json!({"weir.dev/control-port": "no"}), 1),
            (json!({"weir.dev/control-port": "no", "weir.dev/control": "plain"}), 2),
            (json!({}), 2),
            (json!({"weir.dev/control": long}), 3),
        ] {
            for ip in ["", "10.0.0.1", "10.0.0.2"] {
                faults.log(&key, &pod(annotations.clone(), ip), IdentityProof::Required);
            }
            let text = std::fs::read_to_string(log.path()).unwrap();
            assert_eq!(text.lines().count(), lines, "{annotations}: {text}");
            assert!(text.len() < 2000, "{text}");
        }
        faults.forget(&key);
        assert!(faults.0.lock().unwrap().is_empty());
        faults.log(&key, &pod(json!({"weir.dev/control": "plain"}), ""), IdentityProof::NotRequired);
        assert!(faults.0.lock().unwrap().is_empty(), "without identities, the annotation has no effect");
    }

    /// Returns a policy with this spec and status, as the apiserver sends it.
    fn policy_object(generation: i64, spec: &Value, status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "RateLimitPolicy",
            "metadata": {"name": "p", "namespace": "shop", "uid": "uid", "generation": generation, "managedFields": []},
            "spec": spec,
            "status": status,
        }))
        .unwrap()
    }

    /// Returns the result of compiling these objects in order.
    fn compiled(objects: Vec<DynamicObject>) -> Compiled {
        let (key, mut compiler) = (ObjectKey::new("shop", "p"), Compiler::default());
        for object in objects {
            let Change::Policy(_, Some((policy, stored))) = policy(key.clone(), object) else {
                panic!("a policy gives a change of a policy");
            };
            let world = World::of_policies(BTreeMap::from([(key.clone(), policy)]));
            let mut dirty = DirtySet { policies: [key.clone()].into(), ..DirtySet::default() };
            compiler.update(&world, &mut dirty, |_| stored.status.as_ref()?.last_known_good.as_ref());
        }
        compiler.compiled()[&key].clone()
    }

    fn spec(rules: &Value) -> Value {
        json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})
    }

    fn good() -> Value {
        spec(&json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]))
    }

    /// The cluster's definition can be newer or weaker than the one of this program.
    #[test]
    fn a_spec_that_only_another_definition_accepts_is_not_enforced() {
        for [path, message, rules] in rows(
            "
            match[0].countries | unknown field: this operator is older than the cluster's definition (CRD) | [{name: r, action: Deny, match: [{countries: [XX]}]}]
            limits[0].requests | Invalid value: 5000000000 | [{name: r, limits: [{name: a, requests: 5000000000, per: 1s}]}]
            limits[1] | Duplicate value | [{name: r, limits: [{name: a, requests: 5, per: 1s}, {name: a, requests: 5, per: 1s}]}]
            name | Required value | [{limits: [{name: a, requests: 5, per: 1s}]}]
            ",
        ) {
            let (path, rules) = (format!("spec.rules[0].{path}"), yaml(rules));
            let objects = vec![policy_object(1, &good(), &Value::Null), policy_object(2, &spec(&rules), &Value::Null)];
            let compiled = compiled(objects);
            let told = compiled.faults.iter().any(|it| it.path == path && it.message.starts_with(message));
            assert!(told, "{path}: {message} is not in {:?}", compiled.faults);
            assert_eq!((compiled.generation, compiled.good.map(|good| good.generation())), (2, Some(1)), "{path}");
            assert_eq!(compiled.policy.unwrap().rules[0].limits[0].requests, 50, "{path}");
        }
    }

    #[test]
    fn a_pod_knows_the_workload_that_created_it() {
        let created_by = |version: &str, kind: &str, owner: &str, hash: &Value| {
            let object = json!({
                "metadata": {
                    "labels": {"app": "web", "pod-template-hash": hash},
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"},
                        {"apiVersion": version, "kind": kind, "name": owner, "uid": "2", "controller": true},
                    ],
                },
            });
            let pod = seen(object).expect("it runs");
            let Membership::Pod { controller, .. } = &*pod.membership else { panic!("a pod of a cluster") };
            controller.as_ref().map(|workload| format!("{workload} in {}", workload.key.namespace))
        };
        for (kind, owner, hash, expected) in [
            ("ReplicaSet", "web-v2-7d4b9", json!("7d4b9"), Some("Deployment web-v2 in shop")),
            ("ReplicaSet", "web-7d4b9", json!("8e5ca"), None),
            ("ReplicaSet", "by-hand", json!(""), None),
            ("StatefulSet", "db", json!("7d4b9"), Some("StatefulSet db in shop")),
            ("DaemonSet", "log", json!(""), Some("DaemonSet log in shop")),
            ("Job", "once", json!(""), None),
        ] {
            assert_eq!(created_by("apps/v1", kind, owner, &hash).as_deref(), expected, "{kind} {owner}");
            assert_eq!(created_by("apps.kruise.io/v1beta1", kind, owner, &hash), None, "{kind} {owner}");
        }
    }

    #[test]
    fn a_store_with_an_unknown_field_is_invalid() {
        let object = json!({"metadata": {}, "spec": {"memcached": {"servers": ["m:11211"]}, "region": "eu"}});
        let change = store(ObjectKey::new("shop", "s"), serde_json::from_value(object).unwrap());
        let Change::Store(_, Some((store, _))) = change else { panic!("a store gives a change of a store") };
        let faults = store.spec.unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].to_string().starts_with("spec.region: unknown field: this operator is older"), "{faults:?}");
    }

    #[test]
    fn the_last_good_generation_survives_a_status_of_another_version() {
        let status = json!({
            "observedGeneration": 2,
            "lastKnownGood": {"generation": 1, "spec": good().to_string()},
            "enforcement": {"podsTargeted": 1, "podsEnforcing": 0, "drifted": [{"pod": "a", "reason": "Newer"}]},
        });
        let compiled = compiled(vec![policy_object(2, &spec(&json!([{"name": "r", "strategy": "Newer"}])), &status)]);
        assert_eq!(compiled.good.map(|good| good.generation()), Some(1), "{:?}", compiled.faults);
    }

    fn seen(value: Value) -> Option<crate::world::Pod> {
        seen_with(value, IdentityProof::NotRequired)
    }

    fn seen_with(value: Value, proof: IdentityProof) -> Option<crate::world::Pod> {
        match pod(ObjectKey::new("shop", "a"), serde_json::from_value(value).unwrap(), proof) {
            Change::Pod(_, pod) => pod,
            other => panic!("a pod gives a change of a pod, not {other:?}"),
        }
    }

    #[test]
    fn where_the_agent_of_a_pod_listens() {
        for [expected, ip, annotations] in rows(
            "
            - | null | {}
            http://10.0.0.1:8481 | 10.0.0.1 | {}
            http://10.0.0.1:9000 | 10.0.0.1 | {weir.dev/control-port: '9000'}
            http://[fd00::1]:8481 | 'fd00::1' | {}
            ",
        ) {
            let metadata = json!({"labels": {"weir.dev/agent": "enabled"}, "annotations": yaml(annotations)});
            let pod = seen(json!({"metadata": metadata, "status": {"podIP": yaml(ip)}})).expect(expected);
            let expected = if expected == "-" { AgentAddress::Pending } else { AgentAddress::At(expected.into()) };
            assert_eq!(pod.agent, expected);
        }
    }

    #[test]
    fn an_agent_has_run_unless_the_kubelet_says_that_its_container_never_did() {
        // The columns: whether it has run, the containers, the init containers, and the status of one of them.
        for [what, has_run, containers, init, status] in rows(
            "
            no status | true | [{name: weir-agent}] | [] | {name: app}
            no upstream on loopback | true | [{name: other, args: ['--upstream=db:80']}] | [] | {name: other, state: {waiting: {}}}
            never | false | [{name: weir-agent}] | [] | {name: weir-agent, state: {waiting: {reason: ImagePullBackOff}}, restartCount: 0, lastState: {}}
            never, a native sidecar | false | [] | [{name: weir-agent}] | {name: weir-agent, state: {waiting: {}}, restartCount: 0, lastState: {}}
            runs | true | [] | [{name: weir-agent}] | {name: weir-agent, state: {running: {}}}
            ended | true | [{name: weir-agent}] | [] | {name: weir-agent, state: {terminated: {exitCode: 0}}}
            crashes | true | [{name: weir-agent}] | [] | {name: weir-agent, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}}
            restarts | true | [{name: weir-agent}] | [] | {name: weir-agent, state: {waiting: {}}, restartCount: 1, lastState: {}}
            the control port | false | [{name: own, ports: [{containerPort: 8481}]}] | [] | {name: own, state: {waiting: {}}}
            an upstream | false | [{name: guard, args: ['--upstream=127.0.0.1:80']}] | [] | {name: guard, state: {waiting: {}}}
            no known container | true | [{name: other}] | [] | {name: other, state: {waiting: {}}}
            ",
        ) {
            let of_app = json!({"name": "app", "state": {"running": {}}});
            let list = if init == "[]" { "containerStatuses" } else { "initContainerStatuses" };
            let mut spec = json!({"containers": yaml(containers), "initContainers": yaml(init)});
            spec["containers"].as_array_mut().unwrap().insert(0, json!({"name": "app"}));
            let (metadata, status) = (json!({"labels": {"weir.dev/agent": "enabled"}}), [of_app, yaml(status)]);
            let pod = seen(json!({"metadata": metadata, "spec": spec, "status": {list: status}}));
            assert_eq!(pod.expect(what).has_run, has_run == "true", "{what}");
        }
    }

    #[test]
    fn an_agent_proves_who_it_is_unless_its_pod_says_otherwise() {
        for (control, proof, scheme) in [
            (None, IdentityProof::NotRequired, "http"),
            (None, IdentityProof::Required, "https"),
            (Some("plaintext"), IdentityProof::Required, "http"),
            (Some("Plaintext"), IdentityProof::Required, "https"),
            (Some(""), IdentityProof::Required, "https"),
            (Some("tls"), IdentityProof::NotRequired, "http"),
        ] {
            let annotations = control.map(|value| json!({"weir.dev/control": value}));
            let object = json!({
                "metadata": {"labels": {"weir.dev/agent": "enabled"}, "annotations": annotations},
                "status": {"podIP": "10.0.0.1"},
            });
            let agent = seen_with(object, proof).expect("it runs").agent;
            let expected = AgentAddress::At(format!("{scheme}://10.0.0.1:8481").into());
            assert_eq!(agent, expected, "{control:?} {proof:?}");
        }
    }

    #[test]
    fn why_a_pod_has_no_agent_and_how_to_fix_it() {
        for [metadata, expected] in rows(
            "
            {} | it has no agent: if weir.dev/inject: enabled was on its template or namespace, no operator answered
            {labels: {weir.dev/agent: disabled}} | it has no agent
            {labels: {weir.dev/inject: enabled}} | it requests the agent (weir.dev/inject: enabled), but
            {annotations: {weir.dev/inject: enabled}} | weir.dev/inject is one of its annotations
            {labels: {weir.dev/inject: disabled}} | it has weir.dev/inject: disabled
            {labels: {weir.dev/inject: enabled}, annotations: {weir.dev/not-injected: no ports}} | it was created without an agent: no ports
            ",
        ) {
            let metadata = yaml(metadata);
            let pod = seen(json!({"metadata": metadata, "status": {"podIP": "10.0.0.1"}})).unwrap();
            let AgentAddress::None(why) = pod.agent else { panic!("{metadata} has an agent") };
            // The text must fit into the message of a drifted pod.
            assert!(why.starts_with(expected) && why.len() <= 256, "{metadata}: {why}");
        }
    }

    #[test]
    fn pods_that_ended_are_gone_and_pods_that_are_being_deleted_are_leaving() {
        let seen = |deleted: Value, phase: &str| {
            let object = json!({"metadata": {"uid": "u", "deletionTimestamp": deleted}, "status": {"phase": phase}});
            let object = serde_json::from_value(object).unwrap();
            match pod(ObjectKey::new("shop", "a"), object, IdentityProof::NotRequired) {
                Change::Pod(_, None) => "gone",
                Change::Pod(_, Some(_)) => "runs",
                Change::Leaving(_, pod) if &*pod.uid == "u" => "leaving",
                other => panic!("{other:?}"),
            }
        };
        for (phase, not_deleted, deleted) in [
            ("Pending", "runs", "leaving"),
            ("Running", "runs", "leaving"),
            ("Unknown", "runs", "leaving"),
            ("Succeeded", "gone", "gone"),
            ("Failed", "gone", "gone"),
        ] {
            assert_eq!(seen(Value::Null, phase), not_deleted, "{phase}");
            assert_eq!(seen(json!("2026-01-01T00:00:00Z"), phase), deleted, "{phase}, deleted");
        }
    }

    #[test]
    fn a_service_without_selector_selects_nothing() {
        let name = json!({"type": "ExternalName", "externalName": "db.example", "selector": {"app": "web"}});
        for spec in [json!({}), json!({"selector": {}}), name] {
            let object = serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap();
            let Change::Service(_, Some((selector, _))) = service(ObjectKey::new("shop", "a"), object) else {
                panic!("a service gives a change of a workload");
            };
            assert!(selector.is_none());
        }
    }
}
