//! Reads the agents' own reports: their control API, through the apiserver's pod proxy.
//!
//! Scenarios compare these reports with the policy's status. So this module must not read a policy.

use std::fmt;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::Client;
use serde::de::DeserializeOwned;
use weir_wire::{PolicyRules, RuleStatus, Snapshot, Status};

use crate::namespace::TestNamespace;

const CONTROL_PORT: u16 = 8481;

/// The sums of an agent's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) limited: u64,
}

impl Counts {
    /// The requests that were counted since `before`.
    ///
    /// # Errors
    /// The counters have decreased: the agent was restarted, or the policy was replaced.
    pub(crate) fn since(self, before: Self) -> Result<Self> {
        let since = self.allowed.checked_sub(before.allowed).zip(self.limited.checked_sub(before.limited));
        let (allowed, limited) = since.with_context(|| format!("counters decreased from {before} to {self}"))?;
        Ok(Self { allowed, limited })
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} allowed and {} limited", self.allowed, self.limited)
    }
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            allowed: sum.allowed + one.allowed,
            limited: sum.limited + one.limited,
        })
    }
}

/// Reads `/v1/status` of a pod's agent.
pub(crate) async fn status(space: &TestNamespace, pod: &str) -> Result<Status> {
    get(space.client(), &space.namespace, pod, "v1/status").await
}

/// Reads `/v1/config` of a pod's agent.
pub(crate) async fn snapshot(space: &TestNamespace, pod: &str) -> Result<Snapshot> {
    get(space.client(), &space.namespace, pod, "v1/config").await
}

/// Reads the rules of a policy from a pod's agent. None if the agent does not have the policy, or has no snapshot yet.
pub(crate) async fn rules(space: &TestNamespace, pod: &str, policy: &str) -> Result<Option<PolicyRules>> {
    if status(space, pod).await?.in_force.is_none() {
        return Ok(None);
    }
    Ok(snapshot(space, pod).await?.policies.into_iter().find(|rules| rules.name == policy))
}

/// Reads the [`status`] of each of `pods`, in order.
pub(crate) async fn statuses(space: &TestNamespace, pods: &[String]) -> Result<Vec<Status>> {
    try_join_all(pods.iter().map(|pod| status(space, pod))).await
}

/// The counters of one rule.
pub(crate) fn counts(status: &Status, policy: &str, rule: &str) -> Counts {
    let rules = status.policies.iter().filter(|known| known.name == policy).flat_map(|known| &known.rules);
    rules.filter(|known| known.name == rule).map(of).sum()
}

fn of(rule: &RuleStatus) -> Counts {
    Counts { allowed: rule.allowed, limited: rule.limited }
}

async fn get<T: DeserializeOwned>(client: Client, namespace: &str, pod: &str, path: &str) -> Result<T> {
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{CONTROL_PORT}/proxy/{path}");
    let request = http::Request::get(uri).body(Vec::new())?;
    client.request(request).await.with_context(|| format!("{path} of {pod}"))
}
