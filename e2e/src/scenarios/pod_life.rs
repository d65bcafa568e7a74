//! An agent that restarts inside its pod keeps its limits, with and without operators. No request fails during a
//! rolling update.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::{
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    node::Node,
    operator, policy, report, workload,
};

const SOON: Duration = Duration::from_secs(90);
/// The requests per hour of a policy that is created after its pods. The agents' initial snapshot would admit much
/// more.
const HOURLY: u64 = 3;
const AGENT: &str = "weir-agent";

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    policy::before_its_pods(space).await?;
    // The first pods end at once. The nodes have forgotten them when the load of the rolling update begins.
    workload::roll_out_graceful(space, "first").await?;
    let pods = workload::ready(space, 2).await?;
    space.apply(&hourly()).await?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await?;

    restarted(space, &pods[0], "with operators").await?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
    rolled(space).await?;
    let last = workload::ready(space, 2).await?.pop().context("no pod is ready")?;

    // This step is the last one, because pods can be created without an agent shortly after operators have started.
    space.apply(&hourly()).await?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
    operator::kill(&space.client()).await?;
    let alone = restarted(space, &last, "without operators").await;
    // The operator is started again even after a failure, because the next scenarios need it.
    operator::bring_back(&space.client()).await?;
    alone?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await.map(drop)
}

fn hourly() -> String {
    policy::bucket(HOURLY, HOURLY).replace("per: 1s", "per: 1h")
}

/// Kills the agent of a pod. After its restart, the agent enforces the current limit, not the limit at the pod's
/// creation.
async fn restarted(space: &TestNamespace, name: &str, when: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    let pod = pods.get(name).await?;
    Node::below(&space.client(), &pod).await?.kill_container(&pod, AGENT).await?;
    wait_for("the agent to be back", SOON, || async {
        let pod = pods.get(name).await?;
        let (_, restarts) = workload::identity(&pod);
        Ok(Seen::when(workload::is_ready(&pod) && restarts.iter().sum::<i32>() == 1, workload::describe(&pod)))
    })
    .await?;
    let url = format!("http://{}:8480/", workload::address(space, name).await?);
    let load = when.replace(' ', "-");
    let load = Load { name: &load, url: &url, addresses: 1, rate: 50, duration: Duration::from_secs(3) };
    let counted = load.run(space).await?;
    report::note(format!("restarted {when}: {} allowed, {} limited", counted.allowed, counted.limited));
    ensure!(counted.allowed <= HOURLY && counted.limited > 0, "{name} has lost its limit {when}: {counted:?}");
    Ok(())
}

/// Replaces all pods under a load of clients that keep their connections open and always have requests in flight.
async fn rolled(space: &TestNamespace) -> Result<()> {
    space.apply(&policy::bucket(100_000, 100_000)).await?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await?;

    let url = format!("{}slow?ms=1000", workload::SERVICE_URL);
    let load = |name, rate| Load { name, url: &url, addresses: 1, rate, duration: Duration::from_secs(25) };
    // POST over HTTP/1.1 is not tested: a request on a connection that its server is closing is lost, with or without
    // an agent.
    let loads = [
        load("rolling", 80).start(space).await?,
        load("rolling-http2", 40).start_with(space, &["--http2=8"]).await?,
        load("rolling-http2-post", 40).start_with(space, &["--http2=8", "--method=POST"]).await?,
    ];
    workload::roll_out_graceful(space, "second").await?;
    for load in &loads {
        ensure!(load.is_running().await?, "the load ended before the update");
    }
    // Every request was answered by the app.
    for (load, what) in loads.into_iter().zip(["GET", "GET over HTTP/2", "POST over HTTP/2"]) {
        let counted = load.finish().await.context(what)?;
        report::note(format!("rolling update: {} of {} {what} answered by the app", counted.allowed, counted.offered));
        ensure!(counted.limited == 0 && counted.allowed == counted.offered, "{what}: {counted:?}");
    }
    Ok(())
}
