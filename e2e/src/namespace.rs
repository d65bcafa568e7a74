//! A namespace for each scenario. The namespace enforces the restricted Pod Security Standard. It is deleted also if
//! the scenario fails.

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

/// The error of a run that the user has interrupted with Ctrl-C. The run then only cleans up.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// The namespace of a scenario.
pub(crate) struct TestNamespace {
    pub(crate) cluster: Cluster,
    pub(crate) namespace: String,
}

impl TestNamespace {
    pub(crate) fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// Applies a manifest with `kubectl`.
    pub(crate) async fn apply(&self, yaml: &str) -> Result<()> {
        self.cluster.kubectl.apply(&self.namespace, yaml).await
    }

    /// Runs `kubectl` in this namespace.
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
    scenario: impl AsyncFnOnce(&TestNamespace) -> Result<()>,
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

/// Waits until the namespaces of all scenarios are deleted. Namespaces that an earlier run kept are ignored.
///
/// # Errors
/// A namespace still exists after two minutes.
pub(crate) async fn all_gone(client: &Client) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    wait_for("the scenarios' namespaces to be deleted", Duration::from_secs(120), || async {
        let left = namespaces.list_metadata(&ListParams::default().labels(LABEL)).await?;
        let deleted = left.items.into_iter().filter(|left| left.metadata.deletion_timestamp.is_some());
        let names: Vec<_> = deleted.filter_map(|left| left.metadata.name).collect();
        Ok(Seen::when(names.is_empty(), names.join(", ")))
    })
    .await
}

/// Creates a namespace that accepts restricted pods only. An existing namespace is not an error.
pub(crate) async fn create_restricted(client: &Client, metadata: serde_json::Value) -> Result<String> {
    let mut namespace: Namespace = serde_json::from_value(json!({ "metadata": metadata }))?;
    namespace
        .metadata
        .labels
        .get_or_insert_default()
        .insert("pod-security.kubernetes.io/enforce".into(), "restricted".into());
    let created = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
    created.metadata.name.context("the created namespace has no name")
}

async fn create(cluster: &Cluster, name: &str) -> Result<TestNamespace> {
    let metadata = json!({ "generateName": format!("weir-{name}-"), "labels": { LABEL: name } });
    let namespace = create_restricted(&cluster.client, metadata).await.context("create a namespace")?;
    // The apiserver refuses pods until this account exists.
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client.clone(), &namespace);
    wait_for("the namespace's service account", Duration::from_secs(30), || async {
        Ok(Seen::when(accounts.get_opt("default").await?.is_some(), "none"))
    })
    .await?;
    Ok(TestNamespace { cluster: cluster.clone(), namespace })
}

fn describe(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let words = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow!("panicked: {}", words.unwrap_or("without a message"))
}
