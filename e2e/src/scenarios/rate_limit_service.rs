//! The chart's rate limit service: two pods that answer the questions of proxies, with one limit that the operator
//! counts. Pods that replace them know what was counted. The service enforces only policies with a domain.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::Request;
use hyper::body::Bytes;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};

use crate::{
    conditions::{Seen, wait_for},
    diagnostics,
    direct::Connection,
    namespace::TestNamespace,
    operator::{self, Release},
    policy, report, workload,
};

const PODS: u64 = 2;
const PORT: u16 = 8081;
const LABELS: &str = "app.kubernetes.io/component=rate-limit-service";
const SERVICE: &str = "weir-operator-rate-limit";
const LIMIT: u64 = 100;
const SOON: Duration = Duration::from_secs(90);

/// Two policies that select the same pods. Only the first one has a domain.
const POLICIES: &str = "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shop}
spec:
  domain: shop
  targetRefs: [{group: apps, kind: Deployment, name: weir-operator-rate-limit}]
  rules:
  - name: per-key
    scope: Fleet
    match: [{descriptor: [{key: api_key}]}]
    key: [{descriptor: api_key}]
    limits: [{name: together, requests: 100, per: 10m, strategy: SlidingWindowLog}]
---
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: of-requests}
spec:
  targetRefs: [{group: apps, kind: Deployment, name: weir-operator-rate-limit}]
  rules:
  - name: all
    limits: [{name: per-pod, requests: 1, per: 10m}]
";

pub(crate) async fn run(space: &TestNamespace, release: &Release) -> Result<()> {
    // The service runs in the namespace of the release.
    let there = TestNamespace { cluster: space.cluster.clone(), namespace: operator::NAMESPACE.to_owned() };
    let result = served(&there, release).await;
    if result.is_err() {
        diagnostics::print(&there).await;
    }
    // The service is removed even after a failure, because the next scenarios do not expect it.
    let deleted = there.kubectl(&["delete", "rlp", "shop", "of-requests", "--ignore-not-found"]).await;
    release.roll_back().await?;
    deleted?;
    result
}

async fn served(there: &TestNamespace, release: &Release) -> Result<()> {
    // No policy selects the pods yet. `helm upgrade` waits until they are ready nevertheless.
    release.upgrade("rateLimitService.enabled=true").await?;
    there.apply(POLICIES).await?;
    policy::wait_enforced(there, "shop", PODS, SOON).await?;
    let untargeted = policy::wait(there, "of-requests", "without pods", SOON, |seen| {
        seen.condition("Accepted").is_some_and(|it| it.status == "True") && seen.status.enforcement.pods_targeted == 0
    })
    .await?;
    report::note(format!("a policy without a domain: {untargeted}"));

    let pods = pods(there).await?;
    let admitted = ask(there, &pods, 300).await?;
    // An answer that is late on a busy machine can lose some of the limit, but no unit is admitted twice.
    ensure!((LIMIT * 9 / 10..=LIMIT).contains(&admitted), "two pods with one limit of {LIMIT} admitted {admitted}");
    report::note(format!("{admitted} of 300 questions to two pods admitted"));
    through_service(there).await?;

    there.kubectl(&["rollout", "restart", &format!("deployment/{SERVICE}")]).await?;
    there.kubectl(&["rollout", "status", &format!("deployment/{SERVICE}"), "--timeout=120s"]).await?;
    let replaced = self::pods(there).await?;
    ensure!(replaced.iter().all(|pod| !pods.contains(pod)), "{replaced:?} are the pods from before");
    policy::wait_enforced(there, "shop", PODS, SOON).await?;
    let later = ask(there, &replaced, 50).await?;
    ensure!(admitted + later <= LIMIT, "the new pods admitted {later} more than the {admitted} of the old ones");
    report::note(format!("restarted: {later} of 50 questions to the new pods admitted"));
    Ok(())
}

/// Sends this many questions with one key to the pods, in turns. Returns how many of them are admitted.
async fn ask(there: &TestNamespace, pods: &[String], questions: usize) -> Result<u64> {
    let mut connections = Vec::new();
    for pod in pods {
        connections.push(Connection::open(there, pod, PORT).await?);
    }
    let mut admitted = 0;
    for number in 0..questions {
        let request = Request::post("/json").header("host", SERVICE).body(Bytes::from(question("ann")).into())?;
        let place = number % pods.len();
        let answer = connections[place].send(request).await.with_context(|| format!("ask {}", pods[place]))?;
        match (answer.status().as_u16(), answer.body().contains("\"OVER_LIMIT\"")) {
            (200, false) => admitted += 1,
            (429, true) => {}
            _ => anyhow::bail!("{} answers {}: {}", pods[place], answer.status(), answer.body()),
        }
    }
    Ok(admitted)
}

/// Asks through the Service, about another key. The apiserver's proxy sends the question to a pod of the Service. Its
/// client would repeat a question that is answered with 429.
async fn through_service(there: &TestNamespace) -> Result<()> {
    let uri = format!("/api/v1/namespaces/{}/services/{SERVICE}:grpc/proxy/json", there.namespace);
    let answer = there.client().request_text(Request::post(uri).body(question("bob").into_bytes())?).await?;
    let has_limit = answer.contains("\"overallCode\":\"OK\"") && answer.contains("\"currentLimit\"");
    ensure!(has_limit, "{SERVICE} answers {answer}");
    Ok(())
}

fn question(key: &str) -> String {
    format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"api_key","value":"{key}"}}]}}]}}"#)
}

/// Waits until exactly two pods of the service exist, which are ready. Returns their names.
async fn pods(there: &TestNamespace) -> Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(there.client(), &there.namespace);
    wait_for("two pods of the service", SOON, || async {
        let pods = api.list(&ListParams::default().labels(LABELS)).await?.items;
        if pods.len() as u64 == PODS && pods.iter().all(workload::is_ready) {
            return Ok(Seen::Done(pods.into_iter().filter_map(|pod| pod.metadata.name).collect()));
        }
        Ok(Seen::NotYet(pods.iter().map(workload::describe).collect::<Vec<_>>().join(", ")))
    })
    .await
}
