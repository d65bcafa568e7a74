//! A HorizontalPodAutoscaler scales a workload up and down under a load that is above the limit of scope Fleet. All pods
//! together never admit more than the limit, and use nearly all of it.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    conditions::{Seen, wait_for},
    external_metrics::{ExternalMetrics, METRIC},
    load::{Load, Running, Second},
    namespace::TestNamespace,
    policy, report, workload,
};

/// The numbers of pods that the HorizontalPodAutoscaler wants one after the other.
const STEPS: [u32; 3] = [2, 8, 3];
const REQUESTS: u32 = 40;
const RATE: u32 = 100;
const LOAD: Duration = Duration::from_secs(600);
const SOON: Duration = Duration::from_secs(180);
/// The least part of the limit that is used, in percent.
const LEAST_USED: u32 = 90;

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let result = scaled(space).await;
    let removed = ExternalMetrics::remove(space).await;
    result.and(removed)
}

async fn scaled(space: &TestNamespace) -> Result<()> {
    policy::before_its_pods(space).await?;
    workload::roll_out_graceful(space, "graceful").await?;
    space.apply(&limit()).await?;
    policy::wait_enforced(space, policy::NAME, STEPS[0].into(), SOON).await?;
    let wanted = ExternalMetrics::start(space, STEPS[0]).await?;
    space.apply(&autoscaler()).await?;

    let load = Load { name: "load", url: workload::SERVICE_URL, addresses: 1, rate: RATE, duration: LOAD };
    // Each request opens a connection, so new pods get their part immediately.
    let load = load.start_with(space, &["--no-keepalive"]).await?;
    for pods in &STEPS[1..] {
        wanted.set(*pods);
        wait_for(&format!("{pods} pods"), SOON, || async {
            let query = "--output=jsonpath={.status.readyReplicas} {.status.replicas}";
            let seen = space.kubectl(&["get", "deployment", workload::NAME, query]).await?;
            Ok(Seen::when(seen == format!("{pods} {pods}"), seen))
        })
        .await?;
        policy::wait_enforced(space, policy::NAME, (*pods).into(), SOON).await?;
    }
    within_the_limit(&load).await?;
    load.stop().await
}

fn limit() -> String {
    format!(
        "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {}}}
spec:
  targetRefs: [{{group: apps, kind: Deployment, name: {}}}]
  rules:
  - {{name: {}, scope: Fleet, limits: [{{name: together, requests: {REQUESTS}, per: 1s, burst: {REQUESTS}}}]}}
",
        policy::NAME,
        workload::NAME,
        policy::RULE
    )
}

fn autoscaler() -> String {
    let [least, most, _] = STEPS;
    // The defaults wait five minutes before they remove pods.
    let at_once = "stabilizationWindowSeconds: 0, policies: [{type: Pods, value: 10, periodSeconds: 1}]";
    format!(
        "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {{name: {name}}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: {name}}}
  minReplicas: {least}
  maxReplicas: {most}
  behavior: {{scaleUp: {{{at_once}}}, scaleDown: {{{at_once}}}}}
  metrics:
  - type: External
    external: {{metric: {{name: {METRIC}}}, target: {{type: AverageValue, averageValue: '1'}}}}
",
        name = workload::NAME
    )
}

/// Compares the admissions until each second with the limit: a bucket that was full at the start. A request is admitted
/// before its answer arrives, so the time of the answer is late enough.
async fn within_the_limit(load: &Running) -> Result<()> {
    let seconds = load.seconds().await?;
    let (mut offered, mut allowed, mut limited) = (0, 0, 0);
    for Second { t, offered: sent, allowed: more, limited: fewer, errors } in &seconds {
        (offered, allowed, limited) = (offered + sent, allowed + more, limited + fewer);
        ensure!(*errors == 0, "requests failed until {t} s after the start");
        let most = f64::from(REQUESTS) * (1.0 + t);
        ensure!(f64::from(allowed) <= most, "{allowed} admitted until {t} s after the start, at most {most} are right");
    }
    let last = seconds.last().map_or(0.0, |second| second.t);
    let least = f64::from(REQUESTS) * last * f64::from(LEAST_USED) / 100.0;
    ensure!(last > 0.0 && f64::from(allowed) >= least, "only {allowed} of {least} admitted in {last} s");
    report::note(format!(
        "{} pods: {allowed} of {offered} admitted in {last:.0} s, {limited} refused",
        STEPS.map(|pods| pods.to_string()).join(", ")
    ));
    Ok(())
}
