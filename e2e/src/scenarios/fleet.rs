//! Six pods have one limit that the operator counts. Together they admit exactly the limit, even after the leader was
//! killed: the next leader learns from the agents what was counted. While no operator runs, the agents refuse what was
//! used up.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    operator, policy, workload,
};

const PODS: i32 = 6;
const SOON: Duration = Duration::from_secs(90);
const LOAD: Duration = Duration::from_secs(6);

fn limit(requests: u64) -> String {
    policy::together("scope: Fleet", requests)
}

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    // Only injected agents have certificates, which the channel to the operator needs.
    policy::before_its_pods(space).await?;
    space.apply(include_str!("../manifests/headless.yaml")).await?;
    workload::scale(space, PODS).await?;
    workload::ready(space, 6).await?;
    space.apply(&limit(100)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    counted(space).await?;
    admits(space, "first", 100).await?;

    let pods = operator::pods(&space.cluster.client).await?;
    ensure!(!pods.is_empty(), "no operator runs");
    operator::kill(&space.cluster.client).await?;
    let away = admits(space, "away", 0).await;
    // The operator is started again even after a failure, because the next scenarios need it.
    operator::bring_back(&space.cluster.client).await?;
    away?;
    counted(space).await?;
    admits(space, "later", 0).await?;

    // A higher limit has effect for all pods together.
    space.apply(&limit(160)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    admits(space, "raised", 60).await
}

/// Sends 600 requests to the six pods, and checks the number of admitted ones.
async fn admits(space: &TestNamespace, name: &'static str, wanted: u64) -> Result<()> {
    let load = Load { name, url: workload::PODS_URL, addresses: 6, rate: 100, duration: LOAD };
    load.admits(space, wanted).await
}

/// Waits until the operator counts for all pods, with the limit of 100.
async fn counted(space: &TestNamespace) -> Result<()> {
    let query = "--output=jsonpath={.status.conditions[?(@.type==\"FleetDegraded\")]['status','reason']} \
                 {.status.fleet.podsWithShare} {.status.fleet.byRule[*].limits[*].limit}";
    wait_for("all pods to reach the operator", SOON, || async {
        let condition = space.kubectl(&["get", "rlp", policy::NAME, query]).await?;
        Ok(Seen::when(condition == "False Counted 0 100", condition))
    })
    .await?;
    Ok(())
}
