//! Drains the machine with all pods, including the operators. The disruption budget always keeps one operator running,
//! so every new pod gets its agent and its limit.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::{
    clock,
    load::Load,
    namespace::TestNamespace,
    node::Node,
    policy,
    report::{self, millis},
    workload,
};

const PODS: usize = 2;
const REQUESTS: u32 = 5;
const SOON: Duration = Duration::from_secs(90);
/// The taint of the control-plane node of kind. Only pods that tolerate it run on that node.
const TAINT: &str = "node-role.kubernetes.io/control-plane";

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    let before = policy::before_its_pods(space).await?;

    let client = space.client();
    let (elsewhere, drained) = (Node::control_plane(&client).await?, Node::worker(&client).await?);
    let taint = |effect: &str| format!("{TAINT}:{effect}");
    space.kubectl(&["taint", "nodes", &elsewhere.name, &taint("NoSchedule-")]).await?;
    let result = drain(space, &drained, &before).await;
    // The nodes are restored even if the drain fails, because the next scenarios need them. Running pods stay on their
    // node.
    space.kubectl(&["uncordon", &drained.name]).await?;
    space.kubectl(&["taint", "nodes", &elsewhere.name, &format!("{TAINT}=:NoSchedule"), "--overwrite"]).await?;
    result
}

async fn drain(space: &TestNamespace, node: &Node, before: &[String]) -> Result<()> {
    let started = clock::now();
    let drain = ["drain", &node.name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"];
    space.kubectl(&drain).await?;
    let took = clock::since(started);
    let pods = workload::ready(space, PODS).await?;
    ensure!(pods.iter().all(|pod| !before.contains(pod)), "a pod was not drained: {before:?}, then {pods:?}");
    policy::wait_enforced(space, policy::NAME, PODS as u64, SOON).await?;
    report::note(format!(
        "drained in {}, limited on the other machine {} later",
        millis(took),
        millis(clock::since(started) - took)
    ));

    let duration = Duration::from_secs(5);
    // The load uses the addresses of the pods, because a Service and its name are updated slightly later.
    for (number, pod) in pods.iter().enumerate() {
        let url = format!("http://{}:8480/", workload::address(space, pod).await?);
        let name = format!("after-{number}");
        let load = Load { name: &name, url: &url, addresses: 1, rate: 100, duration }.run(space).await?;
        let most = f64::from(REQUESTS) * (load.seconds + 1.0);
        ensure!(
            load.allowed as f64 <= most && load.limited > 0,
            "{pod} admitted too many requests: {load:?}, {most:.0} at most"
        );
    }
    Ok(())
}
