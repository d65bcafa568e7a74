//! The workload of the scenarios: a Deployment `web` with an app and the agent in front of it in each pod.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::Deployment,
        core::v1::{Pod, Service},
    },
};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    conditions::{Seen, wait_for},
    direct,
    namespace::TestNamespace,
};

/// The name of the Deployment, and of its Service.
pub(crate) const NAME: &str = "web";
/// The URL of the Service for clients in the namespace.
pub(crate) const SERVICE_URL: &str = "http://web/";
/// A URL whose host has the addresses of all pods, for a load that distributes its requests itself.
pub(crate) const PODS_URL: &str = "http://web-pods:8480/";

const START: Duration = Duration::from_secs(90);

/// Creates the Deployment and its Services.
pub(crate) async fn create(space: &TestNamespace, replicas: i32) -> Result<()> {
    let mut deployment: Deployment = parse(include_str!("manifests/deployment.yaml"))?;
    deployment.spec.as_mut().context("the manifest has no spec")?.replicas = Some(replicas);
    post(space, &deployment).await?;
    post::<Service>(space, &parse(include_str!("manifests/service.yaml"))?).await?;
    post::<Service>(space, &parse(include_str!("manifests/headless.yaml"))?).await
}

/// Creates the Deployment without agents, with two pods, and its Service.
pub(crate) async fn create_plain(space: &TestNamespace) -> Result<()> {
    wait_injection(space, true).await?;
    post::<Deployment>(space, &parse(include_str!("manifests/plain.yaml"))?).await?;
    post::<Service>(space, &parse(include_str!("manifests/service.yaml"))?).await
}

/// Waits until the webhook adds an agent to a new pod, or until it does not if `wanted` is false. After operators
/// start or end, the webhook's new addresses reach the nodes with a delay.
pub(crate) async fn wait_injection(space: &TestNamespace, wanted: bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    let pod = json!({
        "metadata": {"name": "would-be", "labels": {"app": "web", "weir.dev/inject": "enabled"}},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "app", "image": "weir.test/testapp:e2e", "ports": [{"name": "http", "containerPort": 8080}],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let pod = serde_json::from_value(pod)?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait_for(&format!("injection by the webhook to be {wanted}"), START, || async {
        let would_be = pods.create(&dry_run, &pod).await?;
        let agents = would_be.spec.and_then(|spec| spec.init_containers).unwrap_or_default().len();
        Ok(Seen::when((agents > 0) == wanted, format!("a new pod would get {agents} agents")))
    })
    .await
}

/// Replaces the two pods by pods whose app still runs 3 s after their deletion. Shortly after the deletion, some nodes
/// still send new connections to a pod, so without this, requests fail with or without Weir.
pub(crate) async fn roll_out_graceful(space: &TestNamespace, round: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(space.client(), &space.namespace);
    let app = json!({"name": "app", "lifecycle": {"preStop": {"sleep": {"seconds": 3}}}});
    let patch = json!({"spec": {
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {
            "metadata": {"annotations": {"round": round}},
            "spec": {"terminationGracePeriodSeconds": 15, "containers": [app]},
        },
    }});
    let patched = deployments.patch(NAME, &PatchParams::default(), &Patch::Strategic(patch)).await?;
    let generation = patched.metadata.generation;
    wait_for("the rolling update", START, || async {
        let status = deployments.get(NAME).await?.status.context("the Deployment has no status")?;
        let counts = [status.replicas, status.updated_replicas, status.available_replicas];
        let done = status.observed_generation == generation && counts == [Some(2); 3];
        Ok(Seen::when(done, format!("{counts:?}")))
    })
    .await?;
    ready(space, 2).await.map(drop)
}

/// Changes the number of pods.
pub(crate) async fn scale(space: &TestNamespace, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(space.client(), &space.namespace);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch_scale(NAME, &PatchParams::default(), &patch).await.context("scale the workload").map(drop)
}

/// Waits until exactly `count` pods exist that are ready and not being deleted. Returns their sorted names.
pub(crate) async fn ready(space: &TestNamespace, count: usize) -> Result<Vec<String>> {
    let names = wait_for(&format!("{count} ready pods"), START, || async {
        let pods = pods(space).await?;
        let states: Vec<_> = pods.iter().map(describe).collect();
        if pods.len() == count && pods.iter().all(is_ready) {
            return Ok(Seen::Done(pods.into_iter().filter_map(|pod| pod.metadata.name).collect::<BTreeSet<_>>()));
        }
        Ok(Seen::NotYet(format!("[{}]", states.join(", "))))
    })
    .await?;
    let names: Vec<_> = names.into_iter().collect();
    // The app has no readiness probe, because the agent would limit and count the requests of a probe. So this waits
    // until the app answers through a port-forward.
    try_join_all(names.iter().map(|pod| app_answers(space, pod))).await?;
    Ok(names)
}

/// Lists all pods of the workload, including those that are being deleted.
pub(crate) async fn pods(space: &TestNamespace) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    Ok(pods.list(&ListParams::default().labels("app=web")).await?.items)
}

/// The IP address of a pod.
pub(crate) async fn address(space: &TestNamespace, pod: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    pods.get(pod).await?.status.and_then(|status| status.pod_ip).with_context(|| format!("{pod} has no address"))
}

/// The identity of a pod and its containers: the UID, and the number of restarts of each container.
pub(crate) fn identity(pod: &Pod) -> (String, Vec<i32>) {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let sidecars = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    (pod.metadata.uid.clone().unwrap_or_default(), containers.chain(sidecars).map(|one| one.restart_count).collect())
}

/// Reads the number of requests that have reached the apps of `pods`. The apps count them.
pub(crate) async fn served(space: &TestNamespace, pods: &[String]) -> Result<u64> {
    let counts = pods.iter().map(|pod| async move {
        let answer = direct::get(space, pod, direct::APP, "/_count").await?;
        let count: serde_json::Value = serde_json::from_str(answer.body())?;
        count["requests"].as_u64().with_context(|| format!("no count in {count}"))
    });
    Ok(try_join_all(counts).await?.into_iter().sum())
}

/// Parses a manifest of the scenarios.
pub(crate) fn parse<T: DeserializeOwned>(manifest: &str) -> Result<T> {
    serde_yaml::from_str(manifest).context("parse a manifest of the e2e tests")
}

async fn app_answers(space: &TestNamespace, pod: &str) -> Result<()> {
    wait_for("the app to answer", START, || async {
        let status = direct::get(space, pod, direct::APP, "/healthz").await?.status();
        Ok(Seen::when(status.is_success(), status))
    })
    .await
}

async fn post<K>(space: &TestNamespace, object: &K) -> Result<()>
where
    K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(space.client(), &space.namespace);
    api.create(&PostParams::default(), object).await.with_context(|| format!("create a {}", K::kind(&()))).map(drop)
}

/// Returns true if the pod is ready and not being deleted.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    pod.metadata.deletion_timestamp.is_none() && ready.any(|condition| condition.status == "True")
}

/// A short description of a pod, for messages.
pub(crate) fn describe(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or("?");
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("?");
    let state = match (pod.metadata.deletion_timestamp.is_some(), is_ready(pod)) {
        (true, _) => "going",
        (false, true) => "ready",
        (false, false) => "not ready",
    };
    format!("{name} {phase} {state}")
}
