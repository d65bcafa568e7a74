//! Six pods share one limit in Redis. Together they admit no more than the limit. A key that one pod bans is banned in
//! all pods, until the ban ends. While Redis is down, the status reports the pods that cannot reach it. When Redis runs
//! again, the status is correct again.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use http_body_util::Full;
use serde_json::Value;

use crate::{
    conditions::{Seen, wait_for},
    direct::{self, Connection},
    load::Load,
    namespace::TestNamespace,
    policy, report, workload,
};

const PODS: i32 = 6;
const LIMIT: u64 = 100;
const SOON: Duration = Duration::from_secs(90);

const REDIS: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: redis}
spec:
  selector: {matchLabels: {app: redis}}
  template:
    metadata: {labels: {app: redis}}
    spec:
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: 1
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: redis
        image: weir.test/redis:e2e
        imagePullPolicy: IfNotPresent
        args: [--save, '', --appendonly, 'no', --protected-mode, 'no']
        ports: [{name: redis, containerPort: 6379}]
        readinessProbe: {tcpSocket: {port: redis}, periodSeconds: 1}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
---
apiVersion: v1
kind: Service
metadata: {name: redis}
spec: {selector: {app: redis}, ports: [{port: 6379, targetPort: redis}]}
---
apiVersion: weir.dev/v1alpha1
kind: RateLimitStore
metadata: {name: limits}
spec: {redis: {endpoints: ['redis:6379']}}
";

/// If the store answers too late on a busy machine, the request is refused.
const SCOPE: &str = "scope: Shared, shared: {storeRef: {name: limits}, onStoreLoss: FailClosed}";

fn limit(requests: u64) -> String {
    policy::together(SCOPE, requests)
}

/// A limit for each key. Three refusals ban the key.
fn limit_with_ban(requests: u64) -> String {
    policy::together(&format!("{SCOPE}, key: [{{header: x-api-key}}], ban: {{after: 3, for: 20s}}"), requests)
}

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    space.apply(REDIS).await?;
    space.kubectl(&["rollout", "status", "deployment/redis", "--timeout=90s"]).await?;
    workload::create(space, PODS).await?;
    let pods = workload::ready(space, 6).await?;
    space.apply(&limit(LIMIT)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;

    let (rate, duration) = (100, Duration::from_secs(6));
    Load { name: "load", url: workload::PODS_URL, addresses: 6, rate, duration }.admits(space, LIMIT).await?;
    reachable(space, "True", "").await?;

    banned(space, &pods).await?;

    // With a higher limit, every request asks the store.
    space.apply(&limit(8000)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    let (rate, duration) = (60, Duration::from_secs(120));
    let steady = Load { name: "steady", url: workload::PODS_URL, addresses: 6, rate, duration }.start(space).await?;
    space.kubectl(&["scale", "deployment/redis", "--replicas=0"]).await?;
    let message = reachable(space, "False", "has not reached limits since").await?;
    report::note(message);
    space.kubectl(&["scale", "deployment/redis", "--replicas=1"]).await?;
    reachable(space, "True", "").await?;
    steady.stop().await
}

/// Tests that a ban that one pod starts is in force in all pods, and ends in all pods.
async fn banned(space: &TestNamespace, pods: &[String]) -> Result<()> {
    let mut clients = Vec::new();
    for pod in pods {
        clients.push(Connection::open(space, pod, direct::PROXY).await?);
    }
    space.apply(&limit_with_ban(2)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    let (first, others) = clients.split_first_mut().context("no pod")?;
    let (mut answers, mut before) = (Vec::new(), 0);
    while answers.last().is_none_or(|last| last != "banned") {
        ensure!(answers.len() < 20, "no ban after {answers:?}");
        before = answers_of_store(space, &pods[0]).await?;
        answers.push(error(first, "ann").await?);
    }
    wait_for("Redis to know the ban", SOON, || async {
        let now = answers_of_store(space, &pods[0]).await?;
        Ok(Seen::when(now > before, format!("{now} answers of Redis")))
    })
    .await?;
    let admitted = answers.iter().filter(|answer| answer.is_empty()).count();
    ensure!(admitted == 2, "{admitted} admitted before the ban, not 2: {answers:?}");
    for (client, pod) in others.iter_mut().zip(&pods[1..]) {
        let answer = error(client, "ann").await?;
        ensure!(answer == "banned", "{pod} does not know the ban: {answer:?}");
    }
    ensure!(error(first, "bob").await?.is_empty(), "another key is banned");

    // The higher limit admits the key as soon as the ban has ended.
    space.apply(&limit_with_ban(100)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    for pod in pods {
        let answer = wait_for(&format!("the ban to end in {pod}"), SOON, || async {
            let answer = error(&mut Connection::open(space, pod, direct::PROXY).await?, "ann").await?;
            Ok(if answer == "banned" { Seen::NotYet(answer) } else { Seen::Done(answer) })
        })
        .await?;
        ensure!(answer.is_empty(), "{pod} refuses the key after the ban: {answer}");
    }
    report::note("a key that one pod banned was banned in all 6 pods, and admitted by all after the ban");
    Ok(())
}

/// The number of answers of Redis to the agent of this pod.
async fn answers_of_store(space: &TestNamespace, pod: &str) -> Result<u64> {
    let metrics = direct::get(space, pod, direct::TELEMETRY, "/metrics").await?;
    let count = metrics.body().lines().find_map(|line| {
        let (_, count) = line.strip_prefix("weir_store_latency_seconds_count{")?.rsplit_once(' ')?;
        count.parse().ok()
    });
    count.with_context(|| format!("no latency of a store in {}", metrics.body()))
}

/// Sends a request with this key. Returns the error of a refusal, or an empty string.
async fn error(client: &mut Connection, key: &str) -> Result<String> {
    let request = Request::get("/").header("host", "web").header("x-api-key", key).body(Full::default())?;
    let answer = client.send(request).await?;
    if answer.status().is_success() {
        return Ok(String::new());
    }
    let body: Value = serde_json::from_str(answer.body()).with_context(|| format!("{answer:?}"))?;
    Ok(body["error"].as_str().unwrap_or("a refusal without an error").to_owned())
}

/// Waits until the condition `StoreReachable` has this status, and a message that contains `says`. Returns the message.
async fn reachable(space: &TestNamespace, status: &str, says: &str) -> Result<String> {
    let query = "--output=jsonpath={.status.conditions[?(@.type==\"StoreReachable\")]['status','message']}";
    wait_for(&format!("StoreReachable to be {status}"), SOON, || async {
        let condition = space.kubectl(&["get", "rlp", policy::NAME, query]).await?;
        Ok(Seen::when(condition.starts_with(status) && condition.contains(says), condition))
    })
    .await?;
    space.kubectl(&["get", "rlp", policy::NAME, query]).await
}
