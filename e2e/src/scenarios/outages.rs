//! The leader is killed, and then the machine of the apiserver is paused for 20 s, both under load. The agents enforce
//! their limits all the time, a change after each outage is acknowledged, and the status is correct afterwards.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{Api, api::DeleteParams};

use crate::{
    agents::{self, Counts},
    clock,
    load::Load,
    namespace::TestNamespace,
    node::Node,
    operator, policy,
    report::{self, millis},
    workload,
};

const PODS: u32 = 3;
const BURST: u32 = 50;
/// The limit in requests per second: at the start, after the leader was killed, and after the apiserver was down.
const REQUESTS: [u32; 3] = [50, 45, 40];
/// The duration of the load, which is long enough for both outages on a busy machine.
const LOADED: Duration = Duration::from_secs(60);
const AWAY: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_secs(90);

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let pods = policy::limited_pods(space, PODS, REQUESTS[0].into(), BURST.into()).await?;

    let rate = 2 * REQUESTS[0] * PODS;
    let load = Load { name: "load", url: workload::PODS_URL, addresses: PODS, rate, duration: LOADED };
    let load = load.start(space).await?;
    leader_killed(space).await?;
    apiserver_away(space, &pods).await?;
    let loaded = load.finish().await?;

    let most = f64::from(PODS) * (f64::from(BURST) + f64::from(REQUESTS[0]) * loaded.seconds);
    let least = 0.97 * f64::from(PODS * REQUESTS[2]) * loaded.seconds;
    report::note(format!("allowed {} of {most:.0} at most, limited {}", loaded.allowed, loaded.limited));
    ensure!(loaded.allowed as f64 <= most, "{} allowed, but {most:.0} is the maximum", loaded.allowed);
    ensure!(loaded.allowed as f64 >= least, "{} allowed, but {least:.0} is the minimum", loaded.allowed);
    for (pod, counts) in pods.iter().zip(counts(space, &pods).await?) {
        let most = f64::from(BURST) + f64::from(REQUESTS[0]) * loaded.seconds;
        ensure!(counts.allowed as f64 <= most, "{pod} admitted too many requests: {counts}, {most:.0} at most");
        ensure!(counts.limited > 0, "{pod} refused no request: {counts}");
    }
    Ok(())
}

/// Kills the leading operator together with its pod, so that the Lease is not released.
async fn leader_killed(space: &TestNamespace) -> Result<()> {
    let client = space.client();
    let before = holder(space).await?;
    let name = before.split_once('_').context("the Lease does not name a pod")?.0.to_owned();
    let operators: Api<Pod> = Api::namespaced(client.clone(), operator::NAMESPACE);
    let leader = operators.get(&name).await?;
    Node::below(&client, &leader).await?.kill(&leader).await?;
    let killed = clock::now();
    operators.delete(&name, &DeleteParams::default().grace_period(0)).await?;
    change(space, REQUESTS[1]).await?;
    let took = clock::since(killed);
    let after = holder(space).await?;
    ensure!(after != before, "{before} still leads");
    report::note(format!("leader killed: a change is acknowledged by every pod {} later", millis(took)));
    Ok(())
}

/// Pauses all processes on the machine of the apiserver.
async fn apiserver_away(space: &TestNamespace, pods: &[String]) -> Result<()> {
    let node = Node::control_plane(&space.client()).await?;
    let (before, since) = (counts(space, pods).await?, in_force_since(space, pods).await?);
    let paused = node.pause().await?;
    // A fixed sleep: it is the duration of the outage.
    tokio::time::sleep(AWAY).await;
    drop(paused);
    let back = clock::now();
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
    let since_now = in_force_since(space, pods).await?;
    ensure!(since == since_now, "unchanged rules were put in force again: since {since:?}, then {since_now:?}");
    change(space, REQUESTS[2]).await?;
    let counted = counts(space, pods).await?.into_iter().zip(before).map(|(now, then)| now.since(then));
    let counted = counted.collect::<Result<Vec<_>>>()?;
    ensure!(counted.iter().all(|counts| counts.limited > 0), "not all pods refused meanwhile: {counted:?}");
    report::note(format!("apiserver back: a change is acknowledged by every pod {} later", millis(clock::since(back))));
    Ok(())
}

/// Changes the limit. Returns when every pod has acknowledged it and enforces it.
async fn change(space: &TestNamespace, requests: u32) -> Result<()> {
    let path = "/spec/rules/0/limits/0/requests";
    let change = serde_json::json!([{ "op": "replace", "path": path, "value": requests }]).to_string();
    let patch = ["patch", "ratelimitpolicy", policy::NAME, "--type=json", "--patch", &change];
    // On a busy machine, kubectl can fail although the apiserver runs. So the patch is repeated.
    crate::conditions::wait_for("kubectl patch", SOON, || async {
        space.kubectl(&patch).await?;
        Ok(crate::conditions::Seen::Done(()))
    })
    .await?;
    let observed = policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
    for pod in workload::pods(space).await?.iter().filter_map(|pod| pod.metadata.name.as_deref()) {
        let rules = agents::rules(space, pod, policy::NAME).await?.with_context(|| format!("{pod} has no rules"))?;
        ensure!(
            rules.revision == observed.status.revision,
            "{pod} enforces {}, which is not the revision in the status",
            rules.revision
        );
        ensure!(rules.rules[0].limits[0].requests == u64::from(requests), "{pod} has {:?}", rules.rules[0].limits);
    }
    Ok(())
}

async fn holder(space: &TestNamespace) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(space.client(), operator::NAMESPACE);
    let lease = leases.get("weir-operator").await?;
    lease.spec.and_then(|spec| spec.holder_identity).context("no operator leads")
}

async fn in_force_since(space: &TestNamespace, pods: &[String]) -> Result<Vec<Option<u64>>> {
    let statuses = agents::statuses(space, pods).await?;
    Ok(statuses.into_iter().map(|status| status.in_force.map(|in_force| in_force.since_unix_millis)).collect())
}

async fn counts(space: &TestNamespace, pods: &[String]) -> Result<Vec<Counts>> {
    let statuses = agents::statuses(space, pods).await?;
    Ok(statuses.iter().map(|status| agents::counts(status, policy::NAME, policy::RULE)).collect())
}
