//! A policy as any client of the apiserver uses it: applied as YAML, read as JSON.
//!
//! The status is read by the names of its fields, not with the operator's types. So the scenarios fail if a field is
//! renamed, as every other client would.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result};
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
};
use serde::Deserialize;

use crate::{
    agents::Counts,
    conditions::{Seen, wait_for},
    namespace::TestNamespace,
    workload,
};

/// The name of the policy that most scenarios apply.
pub(crate) const NAME: &str = "web";
/// The name of the rule in that policy.
pub(crate) const RULE: &str = "all";

const SOON: Duration = Duration::from_secs(90);

/// A policy with one token bucket for the Deployment `web`: `requests` per second for each pod, and this burst.
pub(crate) fn bucket(requests: u64, burst: u64) -> String {
    format!(
        "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {NAME}}}
spec:
  targetRefs: [{{group: apps, kind: Deployment, name: web}}]
  rules:
  - name: {RULE}
    limits: [{{name: per-pod, requests: {requests}, per: 1s, burst: {burst}}}]
"
    )
}

/// A policy with one limit for all pods together, in this scope. A sliding window log counts exactly, and no new window
/// can begin during a load.
pub(crate) fn together(scope: &str, requests: u64) -> String {
    format!(
        "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {NAME}}}
spec:
  targetRefs: [{{group: apps, kind: Deployment, name: web}}]
  rules:
  - {{name: {RULE}, {scope},
     limits: [{{name: together, requests: {requests}, per: 10m, strategy: SlidingWindowLog}}]}}
"
    )
}

/// A policy of 5 requests per second for each pod. It selects pods by their labels, so it can exist before its pods.
const BY_LABELS: &str = "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - name: all
    limits: [{name: per-pod, requests: 5, per: 1s, burst: 5}]
";

/// Applies a policy of 5 requests per second, and then creates two pods that only have a label for injection. Returns
/// the names of the pods when both enforce the policy.
pub(crate) async fn before_its_pods(space: &TestNamespace) -> Result<Vec<String>> {
    space.apply(BY_LABELS).await?;
    wait(space, NAME, "read by the operator", SOON, |seen| seen.condition("Accepted").is_some()).await?;
    workload::create_plain(space).await?;
    let pods = workload::ready(space, 2).await?;
    wait_enforced(space, NAME, 2, SOON).await?;
    Ok(pods)
}

/// Creates this number of pods, and limits each of them by a bucket. Returns their names when all enforce the policy.
pub(crate) async fn limited_pods(space: &TestNamespace, pods: u32, requests: u64, burst: u64) -> Result<Vec<String>> {
    workload::create(space, pods.try_into()?).await?;
    let names = workload::ready(space, pods as usize).await?;
    space.apply(&bucket(requests, burst)).await?;
    wait_enforced(space, NAME, pods.into(), SOON).await?;
    Ok(names)
}

/// A policy's metadata and status.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) generation: i64,
    pub(crate) status: Status,
}

/// The fields of `status` that scenarios read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Status {
    #[serde(default)]
    pub(crate) observed_generation: i64,
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    #[serde(default)]
    pub(crate) revision: String,
    #[serde(default)]
    pub(crate) enforcement: Enforcement,
    #[serde(default)]
    pub(crate) traffic: Traffic,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) type_: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) observed_generation: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Enforcement {
    pub(crate) pods_targeted: u64,
    pub(crate) pods_enforcing: u64,
    pub(crate) drifted: Vec<Drifted>,
}

/// A pod that does not enforce the policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Drifted {
    pub(crate) pod: String,
    pub(crate) message: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Traffic {
    pub(crate) allowed: u64,
    pub(crate) limited: u64,
}

impl Traffic {
    pub(crate) fn counts(&self) -> Counts {
        Counts { allowed: self.allowed, limited: self.limited }
    }
}

impl Observed {
    /// The condition of this type, if it is about the current generation.
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        let mut current = self.status.conditions.iter().filter(|known| known.observed_generation == self.generation);
        current.find(|known| known.type_ == type_)
    }

    /// Returns true if the status reports that exactly `pods` pods are targeted, and that all of them enforce the
    /// current spec.
    pub(crate) fn enforced_by(&self, pods: u64) -> bool {
        let Enforcement { pods_targeted, pods_enforcing, .. } = &self.status.enforcement;
        self.status.observed_generation == self.generation
            && (*pods_targeted, *pods_enforcing) == (pods, pods)
            && ["Accepted", "Enforced"].iter().all(|type_| self.condition(type_).is_some_and(|it| it.status == "True"))
    }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Enforcement { pods_targeted, pods_enforcing, .. } = &self.status.enforcement;
        write!(f, "generation {} observed {} ", self.generation, self.status.observed_generation)?;
        write!(f, "enforcing {pods_enforcing}/{pods_targeted}")?;
        for Condition { type_, status, reason, message, .. } in &self.status.conditions {
            write!(f, "; {type_}={status} ({reason}: {message})")?;
        }
        Ok(())
    }
}

/// Reads a policy.
pub(crate) async fn get(space: &TestNamespace, name: &str) -> Result<Observed> {
    let resource = ApiResource {
        group: "weir.dev".into(),
        version: "v1alpha1".into(),
        api_version: "weir.dev/v1alpha1".into(),
        kind: "RateLimitPolicy".into(),
        plural: "ratelimitpolicies".into(),
    };
    let policies: Api<DynamicObject> = Api::namespaced_with(space.client(), &space.namespace, &resource);
    let policy = policies.get(name).await?;
    let generation = policy.metadata.generation.context("the policy has no generation")?;
    let status = match policy.data.get("status") {
        Some(status) => {
            serde_json::from_value(status.clone()).with_context(|| format!("status of {name}: {status}"))?
        }
        None => Status::default(),
    };
    Ok(Observed { generation, status })
}

/// Waits until the policy's status satisfies `condition`.
pub(crate) async fn wait(
    space: &TestNamespace,
    name: &str,
    what: &str,
    within: Duration,
    condition: impl Fn(&Observed) -> bool,
) -> Result<Observed> {
    let condition = &condition;
    wait_for(&format!("policy {name} to be {what}"), within, || async move {
        let observed = get(space, name).await?;
        Ok(if condition(&observed) { Seen::Done(observed) } else { Seen::NotYet(observed.to_string()) })
    })
    .await
}

/// Waits until `pods` pods enforce the policy's current spec.
pub(crate) async fn wait_enforced(space: &TestNamespace, name: &str, pods: u64, within: Duration) -> Result<Observed> {
    wait(space, name, &format!("enforced by {pods} of {pods}"), within, |observed| observed.enforced_by(pods)).await
}
