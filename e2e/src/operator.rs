//! Installs the operator with its chart, and upgrades, kills, restarts and removes it.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::{
        apps::v1::{DaemonSet, Deployment},
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

/// The namespace of the release.
pub(crate) const NAMESPACE: &str = "weir-system";
/// The name of the operator's chart, and of its release.
const NAME: &str = "weir";
/// The name of the chart with the CRDs, and of its release.
const CRDS: &str = "weir-crds";
const DEPLOYMENT: &str = "weir-operator";
/// The number of replicas: the default of the chart.
const REPLICAS: i32 = 2;
const CRD: &str = "ratelimitpolicies.weir.dev";
const PODS: &str = "app.kubernetes.io/component=operator";
const START: Duration = Duration::from_secs(120);

/// The charts, and the `helm` that installs them.
pub(crate) struct Release {
    pub(crate) helm: Helm,
    /// The folder that contains the charts `weir-crds` and `weir`.
    pub(crate) charts: PathBuf,
}

impl Release {
    /// Installs both charts, after removing earlier releases and the CRD.
    pub(crate) async fn install(&self, client: &Client) -> Result<()> {
        self.remove(client).await?;
        namespace::create_restricted(client, json!({ "name": NAMESPACE })).await.context("create weir-system")?;
        self.helm(&["install", CRDS, &self.chart(CRDS)?, "--wait", "--timeout=60s"]).await?;
        self.install_operator(client).await
    }

    /// Installs the operator's chart. Returns when its pods are ready.
    pub(crate) async fn install_operator(&self, client: &Client) -> Result<()> {
        // The image of kube-proxy is the only one on every node that contains sh and iptables.
        let proxies: Api<DaemonSet> = Api::namespaced(client.clone(), "kube-system");
        let proxy = proxies.get("kube-proxy").await?.spec.and_then(|spec| spec.template.spec);
        let image = proxy.and_then(|spec| spec.containers.into_iter().find_map(|container| container.image));
        let redirect = format!("injection.redirect.image={}", image.context("kube-proxy has no image")?);
        // helm splits values at commas, so the comma in the last value is escaped.
        let settings = [
            "images.registry=weir.test", "images.tag=e2e",
            // A short lifetime, so that scenarios last several lifetimes.
            "identity.lifetime=1m", "identity.authorityLifetime=24h", &redirect, r"logLevel=info\,weir_operator=debug",
        ];
        let chart = self.chart(NAME)?;
        let mut args = vec!["install", NAME, &chart, "--wait", "--timeout=120s"];
        args.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        self.helm(&args).await.map(drop)
    }

    /// Upgrades the operator's release with another value. Returns when all old pods are replaced.
    pub(crate) async fn upgrade(&self, setting: &str) -> Result<()> {
        let args = ["upgrade", NAME, &self.chart(NAME)?, "--reset-then-reuse-values", "--set", setting];
        self.helm(&[&args[..], &["--wait", "--timeout=120s"]].concat()).await.map(drop)
    }

    /// Rolls the operator's release back to the previous revision.
    pub(crate) async fn roll_back(&self) -> Result<()> {
        self.helm(&["rollback", NAME, "--wait", "--timeout=120s"]).await.map(drop)
    }

    /// Runs `helm test`. Returns its output.
    pub(crate) async fn test(&self) -> Result<String> {
        self.helm(&["test", NAME, "--timeout=120s"]).await
    }

    /// Uninstalls the operator's release, as a user would.
    pub(crate) async fn uninstall(&self) -> Result<()> {
        self.helm(&["uninstall", NAME, "--ignore-not-found", "--wait"]).await.map(drop)
    }

    /// Removes both releases and the CRD, which `helm uninstall` keeps.
    pub(crate) async fn remove(&self, client: &Client) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        if namespaces.get_opt(NAMESPACE).await?.is_some() {
            self.uninstall().await?;
            self.helm(&["uninstall", CRDS, "--ignore-not-found", "--wait"]).await?;
            namespaces.delete(NAMESPACE, &DeleteParams::background()).await?;
        }
        if crds.get_opt(CRD).await?.is_some() {
            crds.delete(CRD, &DeleteParams::background()).await?;
        }
        wait_for("the earlier release to be removed", START, || async {
            let namespace = namespaces.get_opt(NAMESPACE).await?.is_some();
            let crd = crds.get_opt(CRD).await?.is_some();
            Ok(Seen::when(!namespace && !crd, format!("namespace exists: {namespace}, CRD exists: {crd}")))
        })
        .await
    }

    fn chart(&self, name: &str) -> Result<String> {
        Ok(self.charts.join(name).to_str().context("the path of the charts is not UTF-8")?.to_owned())
    }

    async fn helm(&self, args: &[&str]) -> Result<String> {
        self.helm.run(NAMESPACE, args).await
    }
}

/// Kills the operator with SIGKILL, and scales it to zero.
pub(crate) async fn kill(client: &Client) -> Result<()> {
    set_replicas(client, 0).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    api.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default().labels(PODS)).await?;
    wait_for("the operator's pods to be deleted", START, || async {
        let left = pods(client).await?;
        Ok(Seen::when(left.is_empty(), left.iter().map(workload::describe).collect::<Vec<_>>().join(", ")))
    })
    .await
}

/// Starts the operator again. Returns when it is ready.
pub(crate) async fn bring_back(client: &Client) -> Result<()> {
    set_replicas(client, REPLICAS).await?;
    wait_for("the operator to be ready", START, || async {
        let pods = pods(client).await?;
        let ready = pods.len() == REPLICAS as usize && pods.iter().all(workload::is_ready);
        Ok(Seen::when(ready, pods.iter().map(workload::describe).collect::<Vec<_>>().join(", ")))
    })
    .await
}

/// The counters of all operators since their starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    /// Certificates that were issued to agents.
    pub(crate) issued: u64,
    /// Pushes that failed.
    pub(crate) failed: u64,
}

/// Reads the counters of all operators, and adds them up.
pub(crate) async fn counted(client: &Client) -> Result<Counted> {
    let mut counted = Counted::default();
    for pod in pods(client).await? {
        let name = pod.metadata.name.context("the pod has no name")?;
        let uri = format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}:8490/proxy/metrics");
        let metrics = client.request_text(http::Request::get(uri).body(Vec::new())?).await?;
        for (series, value) in metrics.lines().filter_map(|line| line.rsplit_once(' ')) {
            if series == "weir_operator_identities_total{result=\"issued\"}" {
                counted.issued += value.parse::<u64>()?;
            } else if series.starts_with("weir_operator_pushes_total{") && !series.contains("\"applied\"") {
                counted.failed += value.parse::<u64>()?;
            }
        }
    }
    Ok(counted)
}

/// Lists the pods of the operator.
pub(crate) async fn pods(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    Ok(pods.list(&ListParams::default().labels(PODS)).await?.items)
}

async fn set_replicas(client: &Client, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch_scale(DEPLOYMENT, &PatchParams::default(), &patch).await.context("scale the operator").map(drop)
}
