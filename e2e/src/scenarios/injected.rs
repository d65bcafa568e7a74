//! A Deployment with only a label gets agents. The agents limit requests through its Service, and the kubelet's probes
//! still reach the app. A pod that was created while no operator answered is reported.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};

use crate::{
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    operator,
    policy::{self, Observed},
    report, workload,
};

const SOON: Duration = Duration::from_secs(60);

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let pods = policy::before_its_pods(space).await?;

    let load = Load {
        name: "through-the-service",
        url: workload::SERVICE_URL,
        addresses: 1,
        rate: 100,
        duration: Duration::from_secs(5),
    };
    let counted = load.run(space).await?;
    // Two pods with 5 per second and a burst of 5 each: at most 60 in 5 s, plus a tolerance.
    ensure!(counted.errors == 0 && counted.limited > 300, "{counted:?}");
    ensure!((30..=70).contains(&counted.allowed), "{counted:?}");
    report::note(format!("injected: {} allowed and {} limited through the Service", counted.allowed, counted.limited));
    let bare: Vec<_> = workload::pods(space).await?.into_iter().filter(|pod| !starts_limited(pod)).collect();
    ensure!(bare.is_empty(), "pods without a snapshot in the environment: {bare:#?}");

    // Without an operator, the pod starts without an agent. The status reports it when an operator runs again.
    operator::kill(&space.client()).await?;
    workload::wait_injection(space, false).await?;
    let api: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(space.client(), &space.namespace);
    api.delete(&pods[0], &DeleteParams::default()).await?;
    wait_for("another pod in its place", Duration::from_secs(60), || async {
        let there = api.list(&ListParams::default().labels("app=web")).await?.items;
        let ready = there.iter().filter(|pod| workload::is_ready(pod)).count();
        let replaced = there.iter().all(|pod| pod.metadata.name.as_ref() != Some(&pods[0]));
        Ok(Seen::when(replaced && ready == 2, format!("{ready} ready, replaced: {replaced}")))
    })
    .await?;
    operator::bring_back(&space.client()).await?;
    let is_reported = |observed: &Observed| {
        observed.condition("Enforced").is_some_and(|it| it.status == "False" && it.message.contains("NoAgent"))
    };
    let observed = policy::wait(space, policy::NAME, "a pod without an agent", SOON, is_reported).await?;
    report::note(format!("created while no operator answered: {observed}"));
    Ok(())
}

fn starts_limited(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let variables = containers.flat_map(|container| container.env.iter().flatten());
    let mut snapshots = variables.filter(|variable| variable.name == "WEIR_BOOTSTRAP");
    snapshots.any(|variable| variable.value.as_ref().is_some_and(|value| value.contains("per-pod")))
}
