//! The operator as the chart installs it: put there, taken away, brought back.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{Namespace, Pod},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    conditions::{Seen, wait_for},
    kubectl::Helm,
    namespace, workload,
};

/// Where it is installed.
pub(crate) const NAMESPACE: &str = "weir-system";
const RELEASE: &str = "weir";
const DEPLOYMENT: &str = "weir-operator";
/// As many as the chart starts.
const REPLICAS: i32 = 2;
const CRD: &str = "ratelimitpolicies.weir.dev";
const PODS: &str = "app.kubernetes.io/component=operator";
const START: Duration = Duration::from_secs(120);

/// Installs the chart in `charts`/weir, from scratch: an earlier release and its CRD are taken away before.
pub(crate) async fn install(client: &Client, helm: &Helm, charts: &Path) -> Result<()> {
    uninstall(client, helm).await?;
    namespace::create_restricted(client, json!({ "name": NAMESPACE })).await.context("create weir-system")?;
    let mut chart = PathBuf::from(charts);
    chart.push("weir");
    let chart = chart.to_str().context("the charts folder's path is UTF-8")?;
    // helm splits values at commas: this one is a single value.
    let settings = [
        "image.repository=weir.test/operator",
        "image.tag=e2e",
        "injection.agent.image.repository=weir.test/agent",
        "injection.agent.image.tag=e2e",
        r"logLevel=info\,weir_operator=debug",
    ];
    let mut args = vec!["install", RELEASE, chart, "--wait", "--timeout=120s"];
    args.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    helm.run(NAMESPACE, &args).await?;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.get(CRD).await.context("the chart brings the CRD").map(drop)
}

/// Takes everything away again, the CRD as well, which helm leaves.
pub(crate) async fn uninstall(client: &Client, helm: &Helm) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    if namespaces.get_opt(NAMESPACE).await?.is_some() {
        helm.run(NAMESPACE, &["uninstall", RELEASE, "--ignore-not-found", "--wait"]).await?;
        namespaces.delete(NAMESPACE, &DeleteParams::background()).await?;
    }
    if crds.get_opt(CRD).await?.is_some() {
        crds.delete(CRD, &DeleteParams::background()).await?;
    }
    wait_for("the earlier release to be gone", START, || async {
        let namespace = namespaces.get_opt(NAMESPACE).await?.is_some();
        let crd = crds.get_opt(CRD).await?.is_some();
        Ok(Seen::when(!namespace && !crd, format!("namespace there: {namespace}, CRD there: {crd}")))
    })
    .await
}

/// Kills it, with no time to say goodbye, and keeps it away.
pub(crate) async fn kill(client: &Client) -> Result<()> {
    set_replicas(client, 0).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    api.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default().labels(PODS)).await?;
    wait_for("the operator to be gone", START, || async {
        let left = pods(client).await?;
        Ok(Seen::when(left.is_empty(), left.iter().map(workload::describe).collect::<Vec<_>>().join(", ")))
    })
    .await
}

/// Brings it back; returns once it says that it is ready.
pub(crate) async fn bring_back(client: &Client) -> Result<()> {
    set_replicas(client, REPLICAS).await?;
    wait_for("the operator to be ready", START, || async {
        let pods = pods(client).await?;
        let ready = pods.len() == REPLICAS as usize && pods.iter().all(workload::is_ready);
        Ok(Seen::when(ready, pods.iter().map(workload::describe).collect::<Vec<_>>().join(", ")))
    })
    .await
}

/// The pods it runs in.
pub(crate) async fn pods(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(pods.list(&ListParams::default().labels(PODS)).await?.items)
}

async fn set_replicas(client: &Client, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch_scale(DEPLOYMENT, &PatchParams::default(), &patch).await.context("scale the operator").map(drop)
}
