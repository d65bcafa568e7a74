//! Pods start in a namespace with a LimitRange and a ResourceQuota. Either an agent fits the quota, or the pod starts
//! without an agent and the status contains the reason.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use crate::{
    conditions::{Seen, wait_for},
    namespace::TestNamespace,
    policy, report, workload,
};

const SOON: Duration = Duration::from_secs(90);

/// A quota in which two apps with 128Mi each leave 192Mi: 128Mi for one agent, and 64Mi for the other.
const BOUNDS: &str = "
apiVersion: v1
kind: LimitRange
metadata: {name: bounds}
spec:
  limits:
  - type: Container
    default: {cpu: 200m, memory: 128Mi}
    min: {cpu: 5m, memory: 16Mi}
    max: {cpu: 300m, memory: 128Mi}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: team}
spec:
  hard: {requests.cpu: '1', requests.memory: 1Gi, limits.cpu: '2', limits.memory: 448Mi}
";
/// A quota with room for a third app and 16Mi more. An agent needs at least 32Mi.
const ROOM_FOR_AN_APP: &str = r#"{"spec": {"hard": {"limits.memory": "592Mi"}}}"#;
const ROOM_FOR_ALL: &str = r#"{"spec": {"hard": {"limits.memory": "1Gi"}}}"#;

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    space.apply(BOUNDS).await?;
    wait_for("the quota controller to count the pods", SOON, || async {
        let hard = space.kubectl(&["get", "resourcequota", "team", "--output=jsonpath={.status.hard}"]).await?;
        Ok(Seen::when(hard.contains("448Mi"), hard))
    })
    .await?;
    policy::before_its_pods(space).await?;
    let mut limits = agents(space).await?;
    limits.sort();
    ensure!(limits == ["200m 128Mi", "200m 64Mi"] || limits == ["300m 128Mi", "300m 64Mi"], "{limits:?}");
    report::note(format!("limits of two agents in a quota with 192Mi for them: {}", limits.join(", ")));

    // A third app fits, and its agent does not.
    quota(space, ROOM_FOR_AN_APP).await?;
    workload::scale(space, 3).await?;
    workload::ready(space, 3).await?;
    let observed = policy::wait(space, policy::NAME, "without one agent", SOON, |seen| {
        seen.status.enforcement.pods_enforcing == 2 && seen.status.enforcement.drifted.len() == 1
    })
    .await?;
    let drifted = &observed.status.enforcement.drifted[0];
    ensure!(drifted.message.contains("ResourceQuota team leaves 16Mi of limits.memory"), "{}", drifted.message);
    report::note(format!("{}: {}", drifted.pod, drifted.message));

    // Applies the fix that the message proposes.
    quota(space, ROOM_FOR_ALL).await?;
    space.kubectl(&["delete", "pod", &drifted.pod]).await?;
    workload::ready(space, 3).await?;
    policy::wait_enforced(space, policy::NAME, 3, SOON).await.map(drop)
}

async fn quota(space: &TestNamespace, patch: &str) -> Result<()> {
    space.kubectl(&["patch", "resourcequota", "team", "--patch", patch]).await.map(drop)
}

/// Reads the CPU and memory limits of all agents.
async fn agents(space: &TestNamespace) -> Result<Vec<String>> {
    workload::pods(space).await?.iter().map(limits).collect()
}

fn limits(pod: &Pod) -> Result<String> {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let agent = containers.into_iter().find(|container| container.name == "weir-agent").context("no agent")?;
    let limits = agent.resources.as_ref().and_then(|resources| resources.limits.as_ref()).context("no limits")?;
    Ok(format!("{} {}", limits["cpu"].0, limits["memory"].0))
}
