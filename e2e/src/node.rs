//! The machines of the cluster. Scenarios use them to cause faults that the apiserver cannot cause: killed processes
//! and paused machines. Only kind is supported: its machines are containers of the local Docker.

use std::{
    net::IpAddr,
    process::{Command as Blocking, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Node as Object, Pod};
use kube::{Api, Client, api::ListParams};
use tokio::{process::Command, time::timeout};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// The prefix of a kind node's provider ID. The names of the cluster and the node follow it.
const KIND: &str = "kind://docker/";
/// A script that kills every process of these containers. The name of a control group contains the ID of its container.
const KILL: &str = r#"for id; do for group in /proc/[0-9]*/cgroup; do
  if grep -q "$id" "$group" 2>/dev/null; then pid=${group#/proc/}; kill -9 "${pid%/cgroup}" && killed=yes; fi
done; done; [ "$killed" = yes ]"#;
/// The timeout of a Docker command, which is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A machine.
pub(crate) struct Node {
    pub(crate) name: String,
    container: String,
}

/// A paused machine. The machine resumes when this value is dropped.
pub(crate) struct Paused {
    container: String,
}

impl Node {
    /// Finds the machine of the apiserver.
    pub(crate) async fn control_plane(client: &Client) -> Result<Self> {
        Self::labelled(client, CONTROL_PLANE).await
    }

    /// Finds a machine without the apiserver, on which the pods run.
    pub(crate) async fn worker(client: &Client) -> Result<Self> {
        Self::labelled(client, &format!("!{CONTROL_PLANE}")).await
    }

    async fn labelled(client: &Client, selector: &str) -> Result<Self> {
        let nodes: Api<Object> = Api::all(client.clone());
        let found = nodes.list(&ListParams::default().labels(selector)).await?.items;
        let node = found.into_iter().next().with_context(|| format!("no node with {selector}"))?;
        Self::of(node)
    }

    /// Finds the machine on which a pod runs.
    pub(crate) async fn below(client: &Client, pod: &Pod) -> Result<Self> {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).context("the pod has no node")?;
        Self::of(Api::<Object>::all(client.clone()).get(name).await?)
    }

    fn of(node: Object) -> Result<Self> {
        let name = node.metadata.name.context("the node has no name")?;
        let provider = node.spec.and_then(|spec| spec.provider_id).unwrap_or_default();
        let container =
            provider.strip_prefix(KIND).and_then(|rest| rest.split_once('/')).map(|(_, node)| node.to_owned());
        let container = container
            .with_context(|| format!("{name} is not a container of this Docker: its provider ID is {provider:?}"))?;
        Ok(Self { name, container })
    }

    /// Kills the containers of a pod with SIGKILL.
    pub(crate) async fn kill(&self, pod: &Pod) -> Result<()> {
        let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        self.kill_all(statuses).await
    }

    /// Kills one container of a pod, which can be a sidecar.
    pub(crate) async fn kill_container(&self, pod: &Pod, name: &str) -> Result<()> {
        let lists = pod.status.iter().flat_map(|status| [&status.init_container_statuses, &status.container_statuses]);
        self.kill_all(lists.flatten().flatten().filter(|status| status.name == name)).await
    }

    async fn kill_all(&self, statuses: impl Iterator<Item = &ContainerStatus>) -> Result<()> {
        let ids: Vec<_> = statuses.filter_map(|it| it.container_id.as_deref()?.strip_prefix("containerd://")).collect();
        ensure!(!ids.is_empty(), "the pod does not run the container");
        docker(&[&["exec", &self.container, "sh", "-c", KILL, "sh"], &ids[..]].concat()).await.map(drop)
    }

    /// The address at which the machine reaches the host, on which this process runs.
    pub(crate) async fn gateway(&self) -> Result<IpAddr> {
        let format = "{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}";
        let gateway = docker(&["inspect", "--format", format, &self.container]).await?;
        gateway.trim().parse().with_context(|| format!("the gateway of {} is {gateway:?}", self.container))
    }

    /// Pauses all processes of the machine, until the returned value is dropped.
    pub(crate) async fn pause(&self) -> Result<Paused> {
        let paused = Paused { container: self.container.clone() };
        docker(&["pause", &self.container]).await?;
        Ok(paused)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // The machine must resume in any case, because the next scenarios need it. If it was never paused, this command
        // fails, which has no consequence.
        let unpause = Blocking::new("docker").args(["unpause", &self.container]).stdout(Stdio::null()).status();
        if !unpause.is_ok_and(|status| status.success()) {
            println!("     {} is possibly still paused", self.container);
        }
    }
}

async fn docker(args: &[&str]) -> Result<String> {
    let output = Command::new("docker").args(args).kill_on_drop(true).output();
    let output = timeout(PATIENCE, output).await.context("docker does not return in time")?.context("start docker")?;
    if !output.status.success() {
        bail!("docker {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
