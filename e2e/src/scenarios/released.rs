//! The chart's life cycle. `helm test` passes. During an upgrade and a rollback under load, all pods stay limited, and
//! no app restarts. An uninstallation removes all objects of the release, and does not prevent pods from starting.

use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Namespace, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use crate::{
    clock,
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    operator::{self, Release},
    policy::{self, Condition},
    report::{self, millis},
    workload,
};

const PODS: u32 = 2;
const REQUESTS: u32 = 20;
/// The duration of the load, which is long enough for an upgrade and a rollback on a busy machine.
const LOADED: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(60);
const OURS: &str = "app.kubernetes.io/instance=weir";

pub(crate) async fn run(space: &TestNamespace, release: &Release) -> Result<()> {
    let asked = clock::now();
    let said = release.test().await?;
    ensure!(said.contains("Succeeded"), "{said}");
    report::note(format!("helm test passed after {}", millis(clock::since(asked))));
    // The test removes its objects after it has passed.
    let namespaces: Api<Namespace> = Api::all(space.client());
    wait_for("the test's namespace to be deleted", SOON, || async {
        let there = namespaces.get_opt("weir-operator-test").await?;
        Ok(Seen::when(there.is_none(), "the namespace exists"))
    })
    .await?;

    space.apply(&policy::bucket(REQUESTS.into(), REQUESTS.into())).await?;
    workload::create_plain(space).await?;
    let pods = workload::ready(space, PODS as usize).await?;
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
    changed_under_load(space, release).await?;
    uninstalled(space, release, &pods).await?;
    reinstalled(space, release).await
}

/// Upgrades and rolls back under load.
async fn changed_under_load(space: &TestNamespace, release: &Release) -> Result<()> {
    let before = identities(space).await?;
    let operators = operators(space).await?;
    let load =
        Load { name: "load", url: workload::SERVICE_URL, addresses: 1, rate: 4 * REQUESTS * PODS, duration: LOADED };
    let load = load.start(space).await?;
    release.upgrade("podAnnotations.example\\.com/e2e=upgraded").await?;
    ensure!(load.is_running().await?, "the upgrade took longer than the load");
    let upgraded = self::operators(space).await?;
    ensure!(
        !upgraded.iter().any(|pod| operators.contains(pod)),
        "the upgrade did not replace an operator: {upgraded:?}"
    );
    release.roll_back().await?;
    let loaded = load.finish().await?;
    let most = f64::from(PODS) * (f64::from(REQUESTS) + f64::from(REQUESTS) * loaded.seconds);
    report::note(format!(
        "upgraded and rolled back in {:.1} s of load: allowed {} of {most:.0} at most, limited {}",
        loaded.seconds, loaded.allowed, loaded.limited
    ));
    ensure!(
        loaded.allowed as f64 <= most,
        "a pod admitted too many requests: {} allowed, {most:.0} at most",
        loaded.allowed
    );
    ensure!(loaded.limited > 0, "no request was limited");
    let after = identities(space).await?;
    ensure!(after == before, "pods were {before:?} before the upgrade and are {after:?} now");
    policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await.map(drop)
}

/// Uninstalls the operator. New pods then start without an agent, and the other pods keep their limits.
async fn uninstalled(space: &TestNamespace, release: &Release, pods: &[String]) -> Result<()> {
    release.uninstall().await?;
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(space.client());
    let left = webhooks.list(&ListParams::default().labels(OURS)).await?.items;
    ensure!(left.is_empty(), "webhooks without an operator are left: {left:?}");
    let left = release_objects(space).await?;
    ensure!(left.is_empty(), "objects of the release are left: {left}");
    // The operators create the Lease. If it stayed, the next installation would wait for its holder.
    wait_for("the Lease to be deleted with the Deployment", SOON, || async {
        let args = ["get", "leases", "--namespace", operator::NAMESPACE, "--output=name"];
        let left = space.kubectl(&args).await?;
        Ok(Seen::when(left.trim().is_empty(), left))
    })
    .await?;

    let api: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    api.delete(&pods[0], &DeleteParams::default()).await?;
    wait_for("a new pod in place of the deleted one", SOON, || async {
        let there = workload::pods(space).await?;
        let ready = there.iter().filter(|pod| workload::is_ready(pod)).count();
        let replaced = there.iter().all(|pod| pod.metadata.name.as_ref() != Some(&pods[0]));
        Ok(Seen::when(replaced && ready == PODS as usize, format!("{ready} ready, replaced: {replaced}")))
    })
    .await?;
    let url = format!("http://{}:8480/", workload::address(space, &pods[1]).await?);
    let load = Load { name: "kept", url: &url, addresses: 1, rate: 4 * REQUESTS, duration: Duration::from_secs(5) };
    let loaded = load.run(space).await?;
    let most = f64::from(REQUESTS) + f64::from(REQUESTS) * loaded.seconds;
    ensure!(loaded.allowed as f64 <= most, "the old pod lost its limit: {} allowed, {most:.0} at most", loaded.allowed);
    report::note(format!("uninstalled: a new pod starts, an old one allowed {} of {most:.0} at most", loaded.allowed));
    Ok(())
}

/// Installs the operator again. The operator must correct the status from before the uninstallation, which reports that
/// all pods enforce the policy.
async fn reinstalled(space: &TestNamespace, release: &Release) -> Result<()> {
    let stale = policy::get(space, policy::NAME).await?;
    ensure!(stale.enforced_by(PODS.into()), "the status changed while no operator was running: {stale}");
    let installing = clock::now();
    release.install_operator(&space.client()).await?;
    let installed = clock::now();
    policy::wait(space, policy::NAME, "without one agent", SOON, |seen| {
        let without_agent = |it: &Condition| it.status == "False" && it.message.contains("NoAgent");
        seen.condition("Enforced").is_some_and(without_agent)
    })
    .await?;
    report::note(format!(
        "installed again in {}; the status is correct {} later",
        millis(installed - installing),
        millis(clock::since(installed))
    ));
    Ok(())
}

/// The remaining objects of the release, in its namespace and cluster-wide, as kubectl names them.
async fn release_objects(space: &TestNamespace) -> Result<String> {
    const KINDS: &str = "all,secrets,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,\
        poddisruptionbudgets,networkpolicies,leases";
    let args = ["get", KINDS, "--selector", OURS, "--namespace", operator::NAMESPACE, "--output=name"];
    // Endpoints and pods are deleted slightly after their owners.
    let left = async || space.kubectl(&args).await;
    wait_for("the release's objects to be deleted", SOON, || async {
        let left = left().await?;
        Ok(Seen::when(left.trim().is_empty(), left))
    })
    .await?;
    left().await.map(|left| left.trim().to_owned())
}

async fn identities(space: &TestNamespace) -> Result<Vec<(String, Vec<i32>)>> {
    let mut found: Vec<_> = workload::pods(space).await?.iter().map(workload::identity).collect();
    found.sort();
    Ok(found)
}

/// Lists the names of the operator's pods that are not being deleted.
async fn operators(space: &TestNamespace) -> Result<Vec<String>> {
    let pods = operator::pods(&space.client()).await?;
    let here = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(here.filter_map(|pod| pod.metadata.name).collect())
}
