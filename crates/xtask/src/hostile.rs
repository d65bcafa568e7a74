//! Sends hostile requests to an agent, nginx and HAProxy, and counts the requests that each of them refuses. `cargo
//! xtask test` sends the same corpus, `limiter-agent/tests/agent/hostile`, to agents only.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{
    children::succeed,
    debian::{self, Need, SYSTEM},
    workspace::Workspace,
};

const PEERS: [Need; 2] = [("nginx", "nginx", "a peer"), ("haproxy", "haproxy", "a peer")];

/// The test of `weir-agent` to run.
const TEST: &str = "hostile::peers::weir_refuses_all_that_nginx_and_haproxy_both_refuse";

pub(crate) async fn run(workspace: &Workspace, interrupt: &CancellationToken) -> anyhow::Result<ExitCode> {
    debian::ensure("hostile", PEERS, interrupt).await?;
    let mut test = Command::new(env!("CARGO"));
    test.current_dir(workspace.root()).args(["test", "--locked", "--quiet", "-p", "weir-agent", "--features=peers"]);
    test.args(["--test=agent", "--", "--exact", TEST, "--nocapture"]);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM.map(Into::into));
    test.env("PATH", std::env::join_paths(folders)?);
    succeed("the comparison", &mut test, interrupt).await?;
    Ok(ExitCode::SUCCESS)
}
