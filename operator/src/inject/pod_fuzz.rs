//! Fuzzes the pods of admission reviews. A pod is left unchanged with a reason, or is given an agent. Injection changes
//! nothing else, and a second injection changes nothing.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    api::DynamicObject,
    core::admission::{AdmissionRequest, AdmissionReview},
};
use serde_json::{Value, json};
use weir_fuzz::{Choices, Target, json::change, mutated};

use super::{AgentStart, ClusterSettings, Images, PodDecision, Resources, Settings, inject, left_alone, membership};

const WORDS: &[&str] = &[
    "", "enabled", "disabled", "weir.dev/inject", "weir.dev/port", "weir.dev/redirect", "weir.dev/agent-image",
    "weir.dev/control-port", "weir.dev/agent-cpu-request", "weir.dev/agent-memory-limit", "weir.dev/jwks",
    "weir.dev/native-sidecar", "istio-proxy", "weir.dev/drain", "weir.dev/log-format", "weir.dev/control", "plaintext",
    "weir.dev/agent", "weir-agent", "app", "http", "8080", "8481", "100m", "64Mi", "1e3", "Always", "Never", "TCP",
    "UDP", "hostNetwork", "initContainers", "ports", "containerPort", "annotations", "labels", "spec", "metadata",
    "volumes", "livenessProbe", "httpGet", "30s", "linux", "windows", "\u{e4}",
];

fn pods() -> [Value; 2] {
    let port = json!({"name": "http", "containerPort": 8080, "protocol": "TCP"});
    let probe = json!({"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 5});
    let app = json!({"name": "app", "image": "app", "ports": [port], "livenessProbe": probe,
        "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}});
    let metadata = json!({"name": "web", "labels": {"app": "web"}, "annotations": {"weir.dev/port": "http"}});
    let full = json!({"containers": [app, {"name": "other", "image": "x"}], "initContainers": [{"name": "init", "image": "i"}],
        "volumes": [{"name": "v", "emptyDir": {}}], "restartPolicy": "Always", "terminationGracePeriodSeconds": 30});
    let all = json!({"weir.dev/redirect": "enabled", "weir.dev/agent-cpu-request": "10m", "weir.dev/agent-memory-limit": "1Gi"});
    let bare = json!({"containers": [{"name": "app", "image": "app", "ports": [{"containerPort": 80}]}]});
    [
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": full}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": all}, "spec": bare}),
    ]
}

#[test]
fn any_pod_is_left_alone_or_given_one_agent() {
    Target::new("admissions").run(150, |bytes| {
        let mut choices = Choices(bytes);
        let mut pod = choices.one(&pods()).clone();
        while !choices.is_over() {
            for _ in 0..1 + choices.below(3) {
                change(&mut pod, WORDS, &mut choices);
            }
            let redirect = choices.rarely(2).then(|| "weir/redirect:1".to_owned());
            let images = Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect };
            let native = !choices.rarely(3);
            let terms =
                ClusterSettings { images, resources: Resources::default(), settings: Settings::default(), native };
            check(&pod, &terms).map_err(|wrong| format!("{wrong}: {pod}"))?;
            review(&pod, &mut choices)?;
            if serde_json::from_value::<Pod>(pod.clone()).is_err() {
                pod = choices.one(&pods()).clone();
            }
        }
        Ok(())
    });
}

fn check(pod: &Value, terms: &ClusterSettings) -> Result<(), String> {
    let told = AgentStart { bootstrap: Some("{}"), ..AgentStart::default() };
    membership("shop", pod);
    let Ok(outcome) = inject(pod, terms, &told) else {
        let is_pod = serde_json::from_value::<Pod>(pod.clone()).is_ok();
        return if is_pod { Err("a valid pod was refused".to_owned()) } else { Ok(()) };
    };
    let patched = match outcome {
        PodDecision::Untouched | PodDecision::Declined => return Ok(()),
        PodDecision::Unfit { why } | PodDecision::Wrong { why } => {
            if why.is_empty() || why.contains('\n') {
                return Err(format!("left unchanged by {why:?}"));
            }
            left_alone(pod, &why)
        }
        PodDecision::Injected { pod, .. } => {
            let again = inject(&pod, terms, &told).map_err(|error| format!("the result is not a pod: {error}"))?;
            if again != PodDecision::Untouched {
                return Err(format!("the second injection changed the pod to {again:?}"));
            }
            let agents = [&pod["spec"]["containers"], &pod["spec"]["initContainers"]];
            let agents = agents.into_iter().filter_map(Value::as_array).flatten();
            let count = agents.filter(|container| container["name"] == "weir-agent").count();
            if count != 1 {
                return Err(format!("the pod has {count} agents"));
            }
            pod
        }
    };
    serde_json::from_value::<Pod>(patched.clone()).map_err(|error| format!("the result is not a pod: {error}"))?;
    // The apiserver applies the patch, and must get the same pod.
    let mut applied = pod.clone();
    let patch = json_patch::diff(pod, &patched);
    json_patch::patch(&mut applied, &patch).map_err(|error| format!("the patch does not apply: {error}"))?;
    if applied == patched { Ok(()) } else { Err("the patch creates another pod".to_owned()) }
}

/// Checks the envelope, which the library parses.
fn review(pod: &Value, choices: &mut Choices<'_>) -> Result<(), String> {
    let resource = json!({"group": "", "version": "v1", "resource": "pods"});
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let request = json!({"uid": "u", "kind": kind, "resource": resource, "operation": "CREATE", "namespace": "n", "object": pod,
        "userInfo": {}, "requestKind": kind, "requestResource": resource});
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string();
    let text = mutated(review.as_bytes(), b"null{}[]", &mut choices.random());
    if let Ok(review) = serde_json::from_slice::<AdmissionReview<DynamicObject>>(&text) {
        let request: Result<AdmissionRequest<DynamicObject>, _> = review.try_into();
        if let Ok(request) = request
            && let Some(object) = request.object
        {
            serde_json::to_value(object).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}
