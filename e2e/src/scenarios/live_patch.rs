//! Patches the limit under load. Each patch is in force on all pods within two seconds, no container restarts, and no
//! change gives a fresh burst.
//!
//! Two dozen patches are applied under constant overload. Each agent reports the time from which each patch is in
//! force. From these times, the scenario computes the integral of the limit. The agent must admit at most the integral
//! plus one burst.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;

use crate::{
    agents::{self, Counts},
    budget::{Step, integral},
    clock::{self, unix_millis},
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    policy,
    report::{self, millis},
    workload,
};

const PODS: u32 = 3;
const PATCHES: usize = 24;
/// The values of the patches, which repeat: requests per second, and burst. The bursts are so large that a fresh burst
/// would be a large part of all admitted requests.
const NUMBERS: [(u64, u64); 4] = [(80, 200), (20, 200), (40, 50), (40, 200)];
const MAX_BURST: u64 = 200;
const FIRST: (u64, u64) = (50, 200);
/// The guaranteed time from the end of `kubectl patch` until the limit is in force on the last pod.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(2);

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let pods = policy::limited_pods(space, PODS, FIRST.0, FIRST.1).await?;
    let before = identities(space).await?;

    // The load is far above the highest limit. It lasts longer than the patches, and is stopped after them.
    let duration = Duration::from_secs(180);
    let load =
        Load { name: "load", url: workload::PODS_URL, addresses: PODS, rate: 600, duration }.start(space).await?;
    let mut steps = overload(space, &pods).await?;
    let from = unix_millis();
    let counted_before = counts(space, &pods).await?;

    let mut times = Vec::new();
    for (requests, burst) in NUMBERS.into_iter().cycle().take(PATCHES) {
        times.push(patch(space, &pods, requests, burst).await?);
        for (steps, since_millis) in steps.iter_mut().zip(in_force_since(space, &pods).await?) {
            steps.push(Step { since_millis, requests, period_millis: 1000 });
        }
    }
    let counted = counts(space, &pods).await?;
    let to = unix_millis();
    ensure!(load.is_running().await?, "the load ended before the last patch");
    load.stop().await?;

    times.sort_unstable();
    let median = times[times.len() / 2];
    let last = *times.last().context("no patch was applied")?;
    report::note(format!(
        "{PATCHES} patches in {:.1} s: after kubectl patch in force on all {PODS} pods in {} (median), {} (worst)",
        (to - from) as f64 / 1e3,
        millis(median),
        millis(last),
    ));
    // The median counts, because a busy machine can delay single patches by seconds.
    ensure!(median < IN_FORCE_WITHIN, "patches were in force on all pods only after {times:?}");
    for ((pod, steps), (now, then)) in pods.iter().zip(&steps).zip(counted.iter().zip(&counted_before)) {
        no_fresh_burst(pod, integral(steps, from, to), now.since(*then)?)?;
    }

    let status_took = clock::now();
    policy::wait_enforced(space, policy::NAME, PODS.into(), Duration::from_secs(60)).await?;
    report::note(format!("the status reports the last patch {} later", millis(clock::since(status_took))));
    let after = identities(space).await?;
    ensure!(after == before, "pods were {before:?} before the patches and are {after:?} now");
    Ok(())
}

/// Waits until every pod refuses, so that no saved burst is left. Returns the time from which the limit is in force in
/// each pod.
async fn overload(space: &TestNamespace, pods: &[String]) -> Result<Vec<Vec<Step>>> {
    let start = counts(space, pods).await?;
    let start = &start;
    wait_for("every pod to refuse", Duration::from_secs(60), || async move {
        let now = counts(space, pods).await?;
        let refusing = now.iter().zip(start).all(|(now, start)| now.limited >= start.limited + 100);
        Ok(Seen::when(refusing, format!("{now:?}")))
    })
    .await?;
    let first = |since_millis| vec![Step { since_millis, requests: FIRST.0, period_millis: 1000 }];
    Ok(in_force_since(space, pods).await?.into_iter().map(first).collect())
}

/// Patches the limit. Returns the time from the end of kubectl until the limit was in force in the last agent.
async fn patch(space: &TestNamespace, pods: &[String], requests: u64, burst: u64) -> Result<Duration> {
    let change = serde_json::json!([
        { "op": "replace", "path": "/spec/rules/0/limits/0/requests", "value": requests },
        { "op": "replace", "path": "/spec/rules/0/limits/0/burst", "value": burst },
    ]);
    let patch = ["patch", "ratelimitpolicy", policy::NAME, "--type=json", "--patch", &change.to_string()];
    space.kubectl(&patch).await?;
    let patched = clock::now();
    wait_for("all agents to have the patched limit in force", Duration::from_secs(60), || async {
        let rules = try_join_all(pods.iter().map(|pod| agents::rules(space, pod, policy::NAME))).await?;
        let limits = rules.iter().flatten().flat_map(|policy| &policy.rules).flat_map(|rule| &rule.limits);
        let numbers: Vec<_> = limits.map(|limit| (limit.requests, limit.burst)).collect();
        Ok(Seen::when(numbers == vec![(requests, Some(burst)); pods.len()], format!("{numbers:?}")))
    })
    .await?;
    Ok(clock::since(patched))
}

fn no_fresh_burst(pod: &str, integral: f64, counted: Counts) -> Result<()> {
    let Counts { allowed, limited } = counted;
    report::note(format!("{pod}: allowed {allowed}, integral of the limit {integral:.0}, refused {limited}"));
    let most = integral + MAX_BURST as f64;
    ensure!(allowed as f64 <= most, "{pod} has admitted {allowed}, but the integral and one burst are {most:.0}");
    // A change must not lose tokens. If it did, the pod would admit fewer requests under constant overload.
    ensure!(allowed as f64 >= 0.9 * integral, "{pod} has admitted {allowed}, less than 90 % of {integral:.0}");
    ensure!(limited > 0, "{pod} was not overloaded");
    Ok(())
}

async fn counts(space: &TestNamespace, pods: &[String]) -> Result<Vec<Counts>> {
    let statuses = agents::statuses(space, pods).await?;
    Ok(statuses.iter().map(|status| agents::counts(status, policy::NAME, policy::RULE)).collect())
}

async fn in_force_since(space: &TestNamespace, pods: &[String]) -> Result<Vec<u64>> {
    let statuses = agents::statuses(space, pods).await?;
    statuses.into_iter().map(|it| Ok(it.in_force.context("no snapshot is in force")?.since_unix_millis)).collect()
}

async fn identities(space: &TestNamespace) -> Result<BTreeSet<(String, Vec<i32>)>> {
    Ok(workload::pods(space).await?.iter().map(workload::identity).collect())
}
