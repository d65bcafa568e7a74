//! The operator is killed, and stays down for 30 s of load. The agents enforce their limits all the time. When the
//! operator runs again, a pod that started meanwhile is limited, the status is correct within ten seconds, and the
//! other pods have lost no count.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::Instant;

use crate::{
    agents::{self, Counts},
    clock,
    load::Load,
    namespace::TestNamespace,
    operator, policy,
    report::{self, millis},
    workload,
};

const PODS: u32 = 3;
const REQUESTS: u32 = 50;
const BURST: u32 = 50;
const AWAY: Duration = Duration::from_secs(30);
const RIGHT_AGAIN_WITHIN: Duration = Duration::from_secs(30);

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let pods = policy::limited_pods(space, PODS, REQUESTS.into(), BURST.into()).await?;

    let result = without_operator(space, &pods).await;
    // The operator is started again also after a failure, because the next scenarios need it.
    operator::bring_back(&space.cluster.client).await?;
    let (newcomer, since) = result?;
    right_again(space, &pods, &newcomer, &since, clock::now()).await
}

/// Kills the operator, runs the load for 30 s, and starts a pod meanwhile. Returns the name of the new pod, and the
/// times from which the rules of the other pods are in force.
async fn without_operator(space: &TestNamespace, pods: &[String]) -> Result<(String, Vec<Option<u64>>)> {
    // The load resolves its targets once. So the new pod, which has no limit yet, gets no load.
    let load =
        Load { name: "load", url: workload::PODS_URL, addresses: PODS, rate: 4 * REQUESTS * PODS, duration: AWAY };
    let load = load.start(space).await?;
    operator::kill(&space.cluster.client).await?;
    let before = counts(space, pods).await?;
    let killed = clock::now();

    workload::scale(space, i32::try_from(PODS)? + 1).await?;
    let all = workload::ready(space, PODS as usize + 1).await?;
    let newcomer = all.into_iter().find(|pod| !pods.contains(pod)).context("no pod is new")?;

    let loaded = load.finish().await?;
    let away = clock::since(killed);
    ensure!(operator::pods(&space.cluster.client).await?.is_empty(), "the operator runs again too early");
    let most = f64::from(PODS) * (f64::from(BURST) + f64::from(REQUESTS) * loaded.seconds);
    let during = counts(space, pods).await?.since(before)?;
    report::note(format!(
        "no operator for {:.1} s of load: allowed {} of {most:.0} at most, limited {}; since it was killed {during}",
        away.as_secs_f64(),
        loaded.allowed,
        loaded.limited
    ));
    ensure!(loaded.allowed as f64 <= most, "{} allowed, but {most:.0} is the maximum", loaded.allowed);
    ensure!(loaded.allowed as f64 >= 0.97 * most, "{} allowed, less than 97 % of {most:.0}", loaded.allowed);
    ensure!(during.limited > 0, "no request was limited while the operator was down");
    Ok((newcomer, in_force_since(space, pods).await?))
}

async fn right_again(
    space: &TestNamespace,
    pods: &[String],
    newcomer: &str,
    since: &[Option<u64>],
    back: Instant,
) -> Result<()> {
    policy::wait_enforced(space, policy::NAME, u64::from(PODS) + 1, RIGHT_AGAIN_WITHIN).await?;
    report::note(format!("the status was correct {} after the operator was ready", millis(clock::since(back))));
    let since_now = in_force_since(space, pods).await?;
    ensure!(since == since_now, "unchanged rules were put in force again: since {since:?}, then {since_now:?}");

    let seconds = Duration::from_secs(5);
    let url = format!("http://{}:8480/", workload::address(space, newcomer).await?);
    let loaded =
        Load { name: "newcomer", url: &url, addresses: 1, rate: 4 * REQUESTS, duration: seconds }.run(space).await?;
    let most = f64::from(BURST) + f64::from(REQUESTS) * loaded.seconds;
    report::note(format!("the pod that started meanwhile: allowed {} of {most:.0} at most", loaded.allowed));
    ensure!(
        loaded.allowed as f64 <= most,
        "the new pod admitted too many requests: {} allowed, {most:.0} at most",
        loaded.allowed
    );
    Ok(())
}

async fn counts(space: &TestNamespace, pods: &[String]) -> Result<Counts> {
    let statuses = agents::statuses(space, pods).await?;
    Ok(statuses.iter().map(|status| agents::counts(status, policy::NAME, policy::RULE)).sum())
}

async fn in_force_since(space: &TestNamespace, pods: &[String]) -> Result<Vec<Option<u64>>> {
    let statuses = agents::statuses(space, pods).await?;
    Ok(statuses.into_iter().map(|status| status.in_force.map(|in_force| in_force.since_unix_millis)).collect())
}
