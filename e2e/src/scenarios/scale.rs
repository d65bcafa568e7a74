//! Scales a workload from three pods to six, and then to two. A pod counts as enforcing only when its agent has the
//! rules, and the status follows both changes.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::join_all;

use crate::{
    agents, clock,
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    policy,
    report::{self, millis},
    workload,
};

const REQUESTS: u32 = 20;
const BURST: u32 = 20;

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    policy::limited_pods(space, 3, REQUESTS.into(), BURST.into()).await?;

    workload::scale(space, 6).await?;
    none_counts_before_it_is_limited(space, 6).await?;
    let pods = workload::ready(space, 6).await?;
    policy::wait_enforced(space, policy::NAME, 6, Duration::from_secs(60)).await?;
    every_pod_refuses(space, &pods).await?;

    workload::scale(space, 2).await?;
    let scaled = clock::now();
    policy::wait_enforced(space, policy::NAME, 2, Duration::from_secs(60)).await?;
    report::note(format!("the status is 2/2 {} after the scale to 2", millis(clock::since(scaled))));
    workload::ready(space, 2).await?;
    Ok(())
}

/// Reads the status until it counts `target` pods. Each time, it checks that at least as many agents have the rules.
async fn none_counts_before_it_is_limited(space: &TestNamespace, target: u64) -> Result<()> {
    let (enforcing, limited) = wait_for("the status to count every new pod", Duration::from_secs(90), || async {
        let enforcing = policy::get(space, policy::NAME).await?.status.enforcement.pods_enforcing;
        // The agents are read after the status. They keep their rules, so their number can only be higher.
        let pods = workload::pods(space).await?;
        let names = pods.iter().filter_map(|pod| pod.metadata.name.as_deref());
        let rules = join_all(names.map(|pod| agents::rules(space, pod, policy::NAME))).await;
        let limited = rules.iter().filter(|rules| matches!(rules, Ok(Some(_)))).count() as u64;
        let done = enforcing > limited || enforcing == target;
        Ok(if done { Seen::Done((enforcing, limited)) } else { Seen::NotYet(format!("{enforcing} of {target}")) })
    })
    .await?;
    ensure!(enforcing <= limited, "the status counts {enforcing} pods, but only {limited} agents have the rules");
    Ok(())
}

async fn every_pod_refuses(space: &TestNamespace, pods: &[String]) -> Result<()> {
    let duration = Duration::from_secs(5);
    let rate = 4 * REQUESTS * u32::try_from(pods.len())?;
    let addresses = u32::try_from(pods.len())?;
    let load = Load { name: "load", url: workload::PODS_URL, addresses, rate, duration }.run(space).await?;
    let most = f64::from(BURST) + f64::from(REQUESTS) * load.seconds;
    for (pod, status) in pods.iter().zip(agents::statuses(space, pods).await?) {
        let counts = agents::counts(&status, policy::NAME, policy::RULE);
        ensure!(counts.limited > 0, "{pod} has refused no request: {counts}");
        ensure!(counts.allowed as f64 <= most, "{pod} counts {counts}, but {most:.0} is the maximum");
    }
    report::note(format!(
        "{} pods: allowed {}, limited {} in {:.1} s",
        pods.len(),
        load.allowed,
        load.limited,
        load.seconds
    ));
    Ok(())
}
