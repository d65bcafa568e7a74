//! A namespace for each scenario. It enforces the restricted Pod Security Standard, and is deleted whatever the
//! outcome.

use std::{fmt, panic::AssertUnwindSafe, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{
    cluster::Cluster,
    conditions::{Seen, wait_for},
    diagnostics,
};

const LABEL: &str = "weir.dev/e2e";

/// The user pressed Ctrl-C: clean up and start nothing more.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The namespace of a scenario.
pub(crate) struct Space {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
}

impl Space {
    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// Applies a manifest with kubectl.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        self.cluster.kubectl.apply(&self.namespace, yaml).await
    }

    /// Runs kubectl.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl.run(&self.namespace, args, "").await
    }
}

/// Runs `scenario` in a new namespace, and deletes it afterwards, unless the scenario failed and `keep` is set.
///
/// # Errors
/// Errors and panics of the scenario, and an interrupt from the keyboard.
pub(crate) async fn with_temp_ns(
    cluster: &Cluster,
    name: &str,
    keep: bool,
    scenario: impl AsyncFnOnce(&Space) -> Result<()>,
) -> Result<()> {
    let space = create(cluster, name).await?;
    let result = tokio::select! {
        result = AssertUnwindSafe(scenario(&space)).catch_unwind() => result.unwrap_or_else(|panic| Err(describe(&*panic))),
        _ = tokio::signal::ctrl_c() => Err(Interrupted.into()),
    };
    if result.is_err() {
        diagnostics::print(&space).await;
        if keep {
            println!("     kept: namespace {}", space.namespace);
            return result;
        }
    }
    let namespaces: Api<Namespace> = Api::all(space.client());
    namespaces.delete(&space.namespace, &DeleteParams::background()).await.context("delete the namespace")?;
    result
}

/// Waits until all our deleted namespaces are gone. Namespaces that an earlier run kept may stay.
///
/// # Errors
/// If one of them stays.
pub(crate) async fn all_gone(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    wait_for("the scenarios' namespaces to be gone", Duration::from_secs(120), || async {
        let left = namespaces.list_metadata(&ListParams::default().labels(LABEL)).await?;
        let deleted = left.items.into_iter().filter(|left| left.metadata.deletion_timestamp.is_some());
        let names: Vec<_> = deleted.filter_map(|left| left.metadata.name).collect();
        Ok(Seen::when(names.is_empty(), names.join(", ")))
    })
    .await
}

/// Creates a namespace that accepts restricted pods only, unless it exists.
pub(crate) async fn create_restricted(client: &Client, metadata: serde_json::Value) -> Result<String> {
    let mut namespace: Namespace = serde_json::from_value(json!({ "metadata": metadata }))?;
    namespace
        .metadata
        .labels
        .get_or_insert_default()
        .insert("pod-security.kubernetes.io/enforce".into(), "restricted".into());
    let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    created.metadata.name.context("a created namespace has a name")
}

async fn create(cluster: &Cluster, name: &str) -> Result<Space> {
    let metadata = json!({ "generateName": format!("weir-{name}-"), "labels": { LABEL: name } });
    let namespace = create_restricted(&cluster.client, metadata).await.context("create a namespace")?;
    // Before this account exists, pods that are created directly are refused.
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), &namespace);
    wait_for("the namespace's service account", Duration::from_secs(30), || async {
        Ok(Seen::when(accounts.get_opt("default").await?.is_some(), "none"))
    })
    .await?;
    Ok(Space { cluster: cluster.clone(), namespace })
}

fn describe(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", words.unwrap_or("without words"))
}
