//! Tests a real agent with third-party clients: grpcio, websockets, curl, Node, Go, h2spec, nginx, HAProxy, Envoy, wrk
//! and h2load. The tests are in limiter-agent/clients.
//!
//! This is not a stage of `cargo xtask test`, because it installs half a dozen programs and two packages from PyPI,
//! which CI does not need.
//!
//! Autobahn's suite for WebSocket is missing, because `autobahntestsuite` 25.10.1 from PyPI cannot be started: it is
//! written for Python 2 (`from _version import`), which Debian does not contain since version 11. Instead, `cargo xtask
//! fuzz frames` compares frames with tungstenite.
//!
//! One case of h2spec is expected to fail: `test_h2spec.py` names the case and the reason.

use std::process::ExitCode;

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{
    bench::peers,
    children::succeed,
    debian::{self, Missing},
    python,
    workspace::Workspace,
};

#[derive(clap::Args)]
pub(crate) struct ClientsArgs {
    /// Run only these, such as `test_grpc` or `test_curl.Curl.test_trailers`
    tests: Vec<String>,
}

/// Programs that are required, but not installed, because users can have other versions of them.
const NEEDS: [(&str, &str); 4] =
    [("python3", "python3-venv"), ("curl", "curl"), ("node", "nodejs"), ("go", "golang, 1.25 or later")];

pub(crate) async fn run(
    workspace: &Workspace,
    args: &ClientsArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let missing: Vec<_> = NEEDS.iter().filter(|(program, _)| !debian::is_on_path(program)).collect();
    if !missing.is_empty() {
        let lines: String =
            missing.iter().map(|(program, package)| format!("\n  {program:<10} package {package}")).collect();
        return Err(Missing(format!("clients: these programs are missing:{lines}")).into());
    }
    let path = peers::ensure(peers::Of::Proxy, interrupt).await?;
    let folder = workspace.root().join("limiter-agent/clients");
    let python = python::environment("clients", &folder.join("requirements.txt"), interrupt).await?;
    workspace.build("--workspace --bin weir-agent", interrupt).await?;
    let mut tests = Command::new(python);
    tests.current_dir(&folder).args(["-B", "-m", "unittest"]);
    if args.tests.is_empty() {
        // The word "discover" must be the first argument.
        tests.args(["discover", "-v", "-p", "test_*.py"]);
    } else {
        tests.arg("-v").args(&args.tests);
    }
    tests.env("PATH", path).env("WEIR_AGENT", workspace.target().join("debug/weir-agent"));
    succeed("the tests of limiter-agent/clients", &mut tests, interrupt).await?;
    Ok(ExitCode::SUCCESS)
}
