//! The cluster of a run: a client and a `kubectl`, both with the kubeconfig of the run.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::kubectl::Kubectl;

/// Handles for one cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) kubectl: Kubectl,
}

impl Cluster {
    pub(crate) async fn connect(kubeconfig: &Path, kubectl: PathBuf) -> Result<Self> {
        let parsed = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        client.apiserver_version().await.context("the apiserver does not answer")?;
        Ok(Self { client, kubectl: Kubectl::new(kubectl, kubeconfig.to_owned()) })
    }
}
