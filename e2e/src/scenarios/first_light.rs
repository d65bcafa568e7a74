//! Three pods behind a Service, with a limit of 50 requests per second each. The load from inside the cluster is four
//! times the sum of the limits.
//!
//! The load, the agents, the apps and the policy's status count the same requests. After the load, all four counts
//! must be equal.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use http::StatusCode;

use crate::{
    agents::{self, Counts},
    conditions::{Seen, wait_for},
    direct,
    load::{Load, Report},
    namespace::TestNamespace,
    policy, report, workload,
};

const PODS: u32 = 3;
const REQUESTS: u32 = 50;
const BURST: u32 = 50;
const SECONDS: u64 = 20;

/// A policy of one request per two seconds, so that refusals have a Retry-After above the minimum.
const POLICY: &str = "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: web}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 50, per: 1s, burst: 50}]
  - name: patient
    match: [{paths: [/patient]}]
    limits: [{name: one-at-a-time, requests: 1, per: 2s, strategy: GCRA}]
";

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    workload::create(space, PODS.try_into()?).await?;
    let pods = workload::ready(space, PODS as usize).await?;
    the_service_leads_to(space, &pods).await?;
    space.apply(POLICY).await?;
    let observed = policy::wait_enforced(space, policy::NAME, PODS.into(), Duration::from_secs(60)).await?;
    agents_have_what_the_status_says(space, &pods, &observed.status.revision).await?;
    let served_before = workload::served(space, &pods).await?;

    let rate = 4 * REQUESTS * PODS;
    let load =
        Load { name: "load", url: workload::SERVICE_URL, addresses: 1, rate, duration: Duration::from_secs(SECONDS) };
    let report = load.run(space).await?;
    share_is_right(&report)?;
    every_refusal_says_when_to_come_back(&report)?;
    everybody_counted_the_same(space, &pods, &report, served_before).await?;
    who_obeys_retry_after_is_admitted(space, &pods[0]).await
}

/// Waits until the Service leads to every pod. A node updates its rules for a Service slightly after the pods are
/// ready. Connections stay with their pod, so a load that starts too early would stay uneven.
async fn the_service_leads_to(space: &TestNamespace, pods: &[String]) -> Result<()> {
    let tries = AtomicU32::new(0);
    wait_for("the Service to lead to every pod", Duration::from_secs(60), || async {
        let name = format!("warm-up-{}", tries.fetch_add(1, Ordering::Relaxed));
        let (rate, duration) = (60, Duration::from_secs(1));
        Load { name: &name, url: workload::SERVICE_URL, addresses: 1, rate, duration }.run(space).await?;
        let served = try_join_all(pods.iter().map(|pod| workload::served(space, std::slice::from_ref(pod)))).await?;
        Ok(Seen::when(served.iter().all(|count| *count > 0), format!("requests served: {served:?}")))
    })
    .await
}

async fn agents_have_what_the_status_says(space: &TestNamespace, pods: &[String], revision: &str) -> Result<()> {
    for pod in pods {
        let rules = agents::rules(space, pod, policy::NAME).await?.with_context(|| format!("{pod} has no rules"))?;
        ensure!(rules.revision == revision, "{pod} enforces {}, but the status has {revision}", rules.revision);
    }
    Ok(())
}

fn share_is_right(report: &Report) -> Result<()> {
    let most = f64::from(PODS) * (f64::from(BURST) + f64::from(REQUESTS) * report.seconds);
    let allowed = report.allowed as f64;
    let offered = report.offered as f64;
    report::note(format!(
        "offered {} in {:.1} s, allowed {} of {most:.0} at most, limited {:.1} %",
        report.offered,
        report.seconds,
        report.allowed,
        100.0 * report.limited as f64 / offered
    ));
    ensure!(allowed <= most, "{allowed} allowed, but {most:.0} is the maximum");
    ensure!(allowed >= 0.97 * most, "{allowed} allowed, which is less than 97 % of {most:.0}");
    Ok(())
}

fn every_refusal_says_when_to_come_back(report: &Report) -> Result<()> {
    ensure!(report.limited_without_retry_after == 0, "refusals without Retry-After: {report:?}");
    // The next token arrives within 20 ms. Retry-After is rounded up to whole seconds.
    ensure!((report.retry_after_min, report.retry_after_max) == (Some(1), Some(1)), "Retry-After is not 1: {report:?}");
    Ok(())
}

async fn everybody_counted_the_same(
    space: &TestNamespace,
    pods: &[String],
    load: &Report,
    served_before: u64,
) -> Result<()> {
    let by_load = Counts { allowed: load.allowed, limited: load.limited };
    let statuses = agents::statuses(space, pods).await?;
    let by_pod: Vec<_> = statuses.iter().map(|status| agents::counts(status, policy::NAME, policy::RULE)).collect();
    report::note(format!("by pod: {}", by_pod.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")));
    ensure!(by_pod.iter().all(|counts| counts.limited > 0), "a pod has refused no request: {by_pod:?}");
    let by_agents: Counts = by_pod.into_iter().sum();
    ensure!(by_agents == by_load, "agents count {by_agents}, the load {by_load}");

    let by_apps = workload::served(space, pods).await? - served_before;
    ensure!(by_apps == load.allowed, "{by_apps} requests reached the apps, {} were allowed", load.allowed);

    let columns = space.kubectl(&["get", "rlp", policy::NAME]).await?;
    ensure!(columns.contains(&format!(" {PODS}/{PODS} ")), "kubectl get does not show {PODS}/{PODS}: {columns}");

    // The status counts the requests of the last minute, and the policy is younger than that.
    wait_for("the policy's status to count the same as the load", Duration::from_secs(60), || async {
        let counts = policy::get(space, policy::NAME).await?.status.traffic.counts();
        Ok(Seen::when(counts == by_load, format!("status {counts}, load {by_load}")))
    })
    .await
}

async fn who_obeys_retry_after_is_admitted(space: &TestNamespace, pod: &str) -> Result<()> {
    let ask = || direct::get(space, pod, direct::PROXY, "/patient");
    let first = ask().await?;
    ensure!(first.status() == StatusCode::OK, "the first request: {first:?}");
    let second = ask().await?;
    ensure!(second.status() == StatusCode::TOO_MANY_REQUESTS, "the second request: {second:?}");
    let field = |name: &str| second.headers().get(name).and_then(|value| value.to_str().ok());
    let seconds: u64 = field("retry-after").context("a refusal has Retry-After")?.parse()?;
    ensure!((1..=2).contains(&seconds), "Retry-After {seconds} for one request in 2 s");
    ensure!(field("ratelimit-policy") == Some("\"one-at-a-time\";q=1;w=2"), "RateLimit-Policy: {second:?}");
    ensure!(field("ratelimit").is_some_and(|it| it.starts_with("\"one-at-a-time\";r=0;t=")), "RateLimit: {second:?}");
    let body: serde_json::Value = serde_json::from_str(second.body())?;
    ensure!(body["retryAfterSeconds"] == seconds && body["rule"] == "patient", "body of a refusal: {body}");

    // A fixed sleep, because this client waits exactly as long as Retry-After demands.
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let third = ask().await?;
    ensure!(third.status() == StatusCode::OK, "a retry after {seconds} s, the value of Retry-After: {third:?}");
    report::note(format!("a client that waited for Retry-After: {seconds} was admitted"));
    Ok(())
}
