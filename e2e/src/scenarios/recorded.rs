//! Records the output of `kubectl get rlp --watch` while a limit is changed under load, for the README.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use tokio::time::sleep;

use crate::{
    conditions::{Seen, wait_for},
    load::Load,
    namespace::TestNamespace,
    policy,
    recording::Recording,
    workload,
};

const PODS: u32 = 3;
const SOON: Duration = Duration::from_secs(60);
/// A pause that is long enough to read a line.
const PAUSE: Duration = Duration::from_millis(2_500);
const TITLE: &str = "kubectl get rlp --watch, while a limit is changed under load";

pub(crate) async fn run(space: &TestNamespace, file: &Path) -> Result<()> {
    policy::limited_pods(space, PODS, 20, 20).await?;
    let duration = Duration::from_secs(120);
    let load =
        Load { name: "load", url: workload::PODS_URL, addresses: PODS, rate: 150, duration }.start(space).await?;
    policy::wait(space, policy::NAME, "limiting", SOON, |seen| seen.status.traffic.limited > 1_000).await?;

    let recording = Recording::start();
    recording.command("kubectl get rlp --watch &");
    let mut watch = space.cluster.kubectl.watch(&space.namespace, "rlp")?;
    let following = tokio::spawn({
        let recording = recording.clone();
        async move { recording.follow(&mut watch).await.map(|()| watch) }
    });
    lines(&recording, 3).await?;
    for requests in [40, 10] {
        sleep(PAUSE).await;
        let change = format!(r#"[{{"op":"replace","path":"/spec/rules/0/limits/0/requests","value":{requests}}}]"#);
        recording.command("kubectl patch rlp web --type json -p \\");
        recording.output(&format!("  '{change}'"));
        let said = space.kubectl(&["patch", "rlp", policy::NAME, "--type=json", "--patch", &change]).await?;
        let before = recording.len();
        recording.output(said.trim());
        policy::wait_enforced(space, policy::NAME, PODS.into(), SOON).await?;
        lines(&recording, before + 2).await?;
    }
    sleep(PAUSE).await;
    ensure!(load.is_running().await?, "the load ended before the patches");
    load.stop().await?;
    following.abort();
    recording.write(file, TITLE)
}

/// Waits until `count` lines are recorded.
async fn lines(recording: &Recording, count: usize) -> Result<()> {
    wait_for("another line", SOON, || async { Ok(Seen::when(recording.len() >= count, recording.len())) }).await
}
