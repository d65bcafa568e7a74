//! Six pods share one limit in Redis. Together they admit no more than the limit. While Redis is down, the status
//! reports the pods that cannot reach it. When Redis runs again, the status is correct again.

use std::time::Duration;

use anyhow::Result;

use crate::{
    conditions::{Seen, wait_for},
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
fn limit(requests: u64) -> String {
    policy::together("scope: Shared, shared: {storeRef: {name: limits}, onStoreLoss: FailClosed}", requests)
}

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    space.apply(REDIS).await?;
    space.kubectl(&["rollout", "status", "deployment/redis", "--timeout=90s"]).await?;
    workload::create(space, PODS).await?;
    workload::ready(space, 6).await?;
    space.apply(&limit(LIMIT)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;

    let (rate, duration) = (100, Duration::from_secs(6));
    Load { name: "load", url: workload::PODS_URL, addresses: 6, rate, duration }.admits(space, LIMIT).await?;
    reachable(space, "True", "").await?;

    // With a higher limit, every request asks the store.
    space.apply(&limit(8000)).await?;
    policy::wait_enforced(space, policy::NAME, 6, SOON).await?;
    let (rate, duration) = (60, Duration::from_secs(120));
    let steady = Load { name: "steady", url: workload::PODS_URL, addresses: 6, rate, duration }.start(space).await?;
    space.kubectl(&["scale", "deployment/redis", "--replicas=0"]).await?;
    let told = reachable(space, "False", "has not reached limits since").await?;
    report::note(told);
    space.kubectl(&["scale", "deployment/redis", "--replicas=1"]).await?;
    reachable(space, "True", "").await?;
    steady.stop().await
}

/// Waits until the condition `StoreReachable` has this status, and a message that contains `says`. Returns the message.
async fn reachable(space: &TestNamespace, status: &str, says: &str) -> Result<String> {
    let query = "--output=jsonpath={.status.conditions[?(@.type==\"StoreReachable\")]['status','message']}";
    wait_for(&format!("StoreReachable to be {status}"), SOON, || async {
        let told = space.kubectl(&["get", "rlp", policy::NAME, query]).await?;
        Ok(Seen::when(told.starts_with(status) && told.contains(says), told))
    })
    .await?;
    space.kubectl(&["get", "rlp", policy::NAME, query]).await
}
