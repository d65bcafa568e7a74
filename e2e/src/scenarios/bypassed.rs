//! A Service that bypasses the agents is reported. Both fixes close the gap: another target port of the Service, and
//! the redirect inside the pods.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    conditions::{Seen, wait_for},
    load::{Load, Report},
    namespace::TestNamespace,
    operator::Release,
    policy, report, workload,
};

const SOON: Duration = Duration::from_secs(90);
const PODS: u32 = 2;
/// The requests that each pod admits per hour.
const HOURLY: u64 = 5;
const REQUESTS: u64 = 50;

/// The policy, which is created before its pods. It exempts the kubelet's probes, because they also go through the
/// redirect.
const POLICY: &str = "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - name: probes
    action: Bypass
    match: [{paths: [/healthz]}]
  - name: all
    limits: [{name: per-pod, requests: 5, per: 1h}]
";

pub(crate) async fn run(space: &TestNamespace, release: &Release) -> Result<()> {
    space.apply(POLICY).await?;
    workload::create_plain(space).await?;
    workload::ready(space, PODS as usize).await?;
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;

    // The number of the app's own port bypasses the agent, because the agent took over only the name of the port.
    target(space, "8080").await?;
    let observed = policy::wait(space, policy::NAME, "Bypassable", SOON, |seen| {
        let is = |type_, status, reason| {
            seen.condition(type_).is_some_and(|found| found.status == status && found.reason == reason)
        };
        is("Bypassable", "True", "ServicePort") && is("Enforced", "False", "Bypassed")
    })
    .await?;
    let message = observed.condition("Bypassable").map(|found| found.message.clone()).unwrap_or_default();
    ensure!(
        message.contains("web") && message.contains("8480"),
        "the message does not contain the Service and the fix: {message}"
    );
    let column = space.kubectl(&["get", "rlp", policy::NAME]).await?;
    ensure!(column.contains("BYPASS") && column.contains("ServicePort"), "{column}");
    wait_for("an event", SOON, || async {
        let events = space.kubectl(&["get", "events", "--field-selector=reason=Bypassable"]).await?;
        Ok(Seen::when(events.contains("ratelimitpolicy/web"), events))
    })
    .await?;
    let counted = requests(space, "past-the-agents").await?;
    ensure!(counted.allowed == REQUESTS, "requests still go through the agents: {counted:?}");
    let failed = release.test().await.expect_err("requests can bypass the agents").to_string();
    ensure!(failed.contains(&format!("{}/web", space.namespace)), "helm test does not name the policy: {failed}");
    report::note(format!("Service that bypasses the agents: {} of {REQUESTS} allowed; {message}", counted.allowed));

    // Requests that arrived before kube-proxy applied the first change used the limit. Another limit begins full.
    space.apply(&POLICY.replace("per-pod", "by-name")).await?;
    target(space, "http").await?;
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
    let counted = requests(space, "by-name").await?;
    ensure!((HOURLY..=u64::from(PODS) * HOURLY).contains(&counted.allowed), "{counted:?}");
    report::note(format!("Service by name: {} of {REQUESTS} allowed", counted.allowed));

    // The redirect requires NET_ADMIN, which the Pod Security Standard of the namespace forbids.
    let standard =
        ["label", "namespace", &space.namespace, "--overwrite", "pod-security.kubernetes.io/enforce=privileged"];
    space.kubectl(&standard).await?;
    target(space, "8080").await?;
    let template = r#"{"spec": {"template": {"metadata": {"annotations": {"weir.dev/redirect": "enabled"}}}}}"#;
    space.kubectl(&["patch", "deployment", workload::NAME, "--patch", template]).await?;
    space.kubectl(&["rollout", "status", "deployment", workload::NAME, "--timeout=90s"]).await?;
    workload::ready(space, PODS as usize).await?;
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
    let counted = requests(space, "redirected").await?;
    ensure!((HOURLY..=u64::from(PODS) * HOURLY).contains(&counted.allowed), "{counted:?}");
    report::note(format!("Service by number with the redirect: {} of {REQUESTS} allowed", counted.allowed));
    Ok(())
}

/// Changes the target port of the Service, and waits until kube-proxy applies it. Before, requests go to the old port.
async fn target(space: &TestNamespace, port: &str) -> Result<()> {
    let value = if port.parse::<u16>().is_ok() { port.to_owned() } else { format!("\"{port}\"") };
    let patch = format!(r#"[{{"op": "replace", "path": "/spec/ports/0/targetPort", "value": {value}}}]"#);
    space.kubectl(&["patch", "service", workload::NAME, "--type=json", "--patch", &patch]).await.map(drop)
}

async fn requests(space: &TestNamespace, name: &str) -> Result<Report> {
    let load =
        Load { name, url: workload::SERVICE_URL, addresses: 1, rate: 10, duration: Duration::from_secs(REQUESTS / 10) };
    load.run(space).await
}
