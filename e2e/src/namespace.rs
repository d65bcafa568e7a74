//! A namespace for each scenario. The namespace enforces the restricted Pod Security Standard.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::json;

use crate::{
    cluster::Cluster,
    conditions::{Seen, wait_for},
};

const LABEL: &str = "weir.dev/e2e";

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

/// Creates the namespace of a scenario.
pub(crate) async fn create(cluster: &Cluster, name: &str) -> Result<TestNamespace> {
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
