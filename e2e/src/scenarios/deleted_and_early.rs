//! Agents remove the limits of a deleted policy. The status of a policy that is created before its pods contains the
//! reason why it is not enforced.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;

use crate::{
    agents,
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    policy::{self, Observed},
    report, workload,
};

const SOON: Duration = Duration::from_secs(60);

/// A policy that selects pods by labels, not by name. It is valid before its pods exist.
const BY_SELECTOR: &str = "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: by-selector}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - name: all
    limits: [{name: per-pod, requests: 5, per: 1s, burst: 5}]
";

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    early(space).await?;
    let pods = workload::ready(space, 2).await?;
    let limited = flood(space, "before").await?;
    ensure!(limited > 0, "no request was limited under two policies");

    space.kubectl(&["delete", "ratelimitpolicy", policy::NAME, "by-selector", "--wait=false"]).await?;
    wait_for("the agents to have no policies", SOON, || async {
        let statuses = agents::statuses(space, &pods).await?;
        let left: Vec<_> = statuses.iter().map(|status| status.policies.len()).collect();
        Ok(Seen::when(left.iter().all(|left| *left == 0), format!("policies by agent: {left:?}")))
    })
    .await?;
    let limited = flood(space, "after").await?;
    ensure!(limited == 0, "{limited} requests were limited after the policies were deleted");
    report::note("no request is limited after the policies are deleted");
    // A policy that cannot be deleted would also block the deletion of its namespace.
    wait_for("the policies to be deleted", SOON, || async {
        let left = space.kubectl(&["get", "ratelimitpolicies", "--output=name"]).await?;
        Ok(Seen::when(left.is_empty(), left))
    })
    .await
}

/// Creates both policies before their pods.
async fn early(space: &TestNamespace) -> Result<()> {
    space.apply(&policy::bucket(5, 5)).await?;
    space.apply(BY_SELECTOR).await?;
    let waiting = |reason: &'static str| {
        move |seen: &Observed| seen.condition("Enforced").is_some_and(|it| it.status == "False" && it.reason == reason)
    };
    for (name, reason) in [(policy::NAME, "TargetNotFound"), ("by-selector", "NoPods")] {
        let what = format!("not enforced, {reason}");
        let observed = policy::wait(space, name, &what, SOON, waiting(reason)).await?;
        report::note(format!("{name}, early: {observed}"));
    }
    workload::create(space, 2).await?;
    try_join_all(
        [policy::NAME, "by-selector"].map(|name| policy::wait_enforced(space, name, 2, Duration::from_secs(90))),
    )
    .await?;
    Ok(())
}

/// Sends more requests than the limits allow. Returns the number of refused requests.
async fn flood(space: &TestNamespace, name: &str) -> Result<u64> {
    let duration = Duration::from_secs(3);
    Ok(Load { name, url: workload::PODS_URL, addresses: 2, rate: 100, duration }.run(space).await?.limited)
}
