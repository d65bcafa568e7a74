//! Injected agents prove the identity of their pods, with certificates that are valid for one minute. While the limit
//! changes constantly under load, no push fails and no pod drifts. A pod that presents another pod's certificate does
//! not count as enforcing.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Pod, Secret, ServiceAccount},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use weir_api::RateLimitPolicy;

use crate::{
    clock,
    load::Load,
    namespace::TestNamespace,
    operator,
    policy::{self, Observed},
    report, workload,
};

const SOON: Duration = Duration::from_secs(60);
/// The duration of the load, which is longer than two renewals of certificates that are valid for one minute.
const UNDER_LOAD: Duration = Duration::from_secs(90);

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let pods = policy::before_its_pods(space).await?;

    let before = operator::counted(&space.client()).await?;
    let load = Load { name: "meanwhile", url: workload::SERVICE_URL, addresses: 1, rate: 50, duration: UNDER_LOAD };
    let (counted, changes) = tokio::try_join!(load.run(space), change_all_the_time(space))?;
    policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
    let after = operator::counted(&space.client()).await?;
    ensure!(counted.errors == 0, "requests failed: {counted:?}");
    ensure!(after.failed == before.failed, "pushes failed: {before:?}, then {after:?}");
    let issued = after.issued - before.issued;
    ensure!(issued >= 2, "fewer than one renewal for each of two pods: {before:?}, then {after:?}");
    report::note(format!("rotated: {issued} certificates, {changes} changes of the limit, no push failed"));

    impersonate(space, &pods[0]).await
}

/// Changes the limit constantly. Returns the number of changes.
async fn change_all_the_time(space: &TestNamespace) -> Result<u32> {
    let policies: Api<RateLimitPolicy> = Api::namespaced(space.client(), &space.namespace);
    let start = clock::now();
    let mut changes = 0;
    while clock::since(start) < UNDER_LOAD {
        changes += 1;
        let limit = json!({"name": "per-pod", "requests": 5 + changes % 2, "per": "1s", "burst": 5});
        let patch = json!({"spec": {"rules": [{"name": "all", "limits": [limit]}]}});
        policies.patch(policy::NAME, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        policy::wait_enforced(space, policy::NAME, 2, SOON).await?;
    }
    Ok(changes)
}

/// Starts an agent with the token of `victim`. The agent gets the victim's certificate, but the operator does not
/// accept the agent.
async fn impersonate(space: &TestNamespace, victim: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    let mut victim = pods.get(victim).await?;
    let spec = victim.spec.take().context("the pod has no spec")?;
    let agent = spec
        .init_containers
        .into_iter()
        .flatten()
        .find(|it| it.name == "weir-agent")
        .context("the pod has no agent")?;
    let reference = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: victim.metadata.name.clone(),
        uid: victim.metadata.uid.clone(),
    };
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: vec!["weir.dev".to_owned()],
            bound_object_ref: Some(reference),
            expiration_seconds: Some(3600),
        },
        ..TokenRequest::default()
    };
    let accounts: Api<ServiceAccount> = Api::namespaced(space.client(), &space.namespace);
    let account = spec.service_account_name.context("the pod has no service account")?;
    let answer = accounts.create_token_request(&account, &PostParams::default(), &request).await?;
    let token = answer.status.context("a token")?.token;
    let secret = json!({"metadata": {"name": "stolen"}, "stringData": {"token": token}});
    let secrets: Api<Secret> = Api::namespaced(space.client(), &space.namespace);
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;

    // A copy of the victim's injected agent, whose token comes from a Secret.
    let mut agent = serde_json::to_value(agent)?;
    for field in ["restartPolicy", "startupProbe", "volumeMounts"] {
        agent.as_object_mut().context("a container")?.remove(field);
    }
    agent["volumeMounts"] = json!([
        {"name": "stolen", "mountPath": "/var/run/secrets/weir.dev/identity"},
        {"name": "weir-cache", "mountPath": "/var/lib/weir"},
    ]);
    let impostor: Value = json!({
        "metadata": {"name": "impostor", "labels": {"app": "web", "weir.dev/agent": "enabled"}},
        "spec": {
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [agent],
            "volumes": [
                {"name": "stolen", "secret": {"secretName": "stolen"}}, {"name": "weir-cache", "emptyDir": {}},
            ],
        },
    });
    pods.create(&PostParams::default(), &serde_json::from_value(impostor)?).await?;
    let is_reported = |observed: &Observed| {
        let mut drifted = observed.status.enforcement.drifted.iter();
        drifted.any(|it| it.pod == "impostor" && it.message.contains("with the certificate of weir://"))
    };
    let observed = policy::wait(space, policy::NAME, "an impostor", SOON, is_reported).await?;
    report::note(format!("impostor: {observed}"));
    pods.delete("impostor", &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
