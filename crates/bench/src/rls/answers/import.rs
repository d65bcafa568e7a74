//! Imports configurations of envoyproxy/ratelimit as a user does: `weir-operator import` writes the policies, and an
//! operator without a cluster pushes them to the agent.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde_json::Value;

use super::config::Config;
use crate::{
    clock,
    proxy::{Connection, Cores, Process, free_address, next_to_this},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// An operator with a folder of policies.
pub(super) struct Operator {
    folder: PathBuf,
    /// The control port of its agent.
    control: SocketAddr,
    _process: Process,
}

/// The policies of a configuration, as YAML.
pub(super) fn policies(config: &Config, file: &Path) -> anyhow::Result<String> {
    let mut import = Command::new(program()?);
    import.args(["import", "envoy-ratelimit", "--scope", "pod", "--selector", "app=rls"]).arg(file);
    let output = import.output().context("run weir-operator import")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "weir-operator import: {errors}\n{}", config.yaml());
    String::from_utf8(output.stdout).context("the policies are not UTF-8")
}

impl Operator {
    /// Starts an operator for this agent.
    pub(super) fn start(folder: &Path, control: SocketAddr) -> anyhow::Result<Self> {
        let policies = folder.join("policies");
        fs::create_dir(&policies).with_context(|| format!("make {}", policies.display()))?;
        let telemetry = free_address()?;
        let mut command = Command::new(program()?);
        command.arg("standalone").arg("--policies").arg(&policies).arg("--state-dir").arg(folder);
        command.arg(format!("--agent=http://{control},app=rls,weir.dev/rate-limit-service=enabled"));
        command.arg(format!("--telemetry={telemetry}"));
        let log = folder.join("weir-operator.log");
        let process = Process::start("weir-operator", &command, Cores::All, &log, telemetry)?;
        Ok(Self { folder: policies, control, _process: process })
    }

    /// Replaces all policies, and waits until the agent enforces exactly these.
    pub(super) fn apply(&self, policies: &[String]) -> anyhow::Result<()> {
        let text = policies.concat();
        // The operator must never read a part of the file.
        let (file, new) = (self.folder.join("policies.yaml"), self.folder.join("policies.new"));
        fs::write(&new, &text).with_context(|| format!("write {}", new.display()))?;
        fs::rename(&new, &file).with_context(|| format!("write {}", file.display()))?;
        let (wanted, begun) = (names(&text), clock::now());
        loop {
            let found = self.enforced()?;
            if found == wanted {
                return Ok(());
            }
            if clock::since(begun) > PATIENCE {
                bail!("the agent enforces {found:?}, and not {wanted:?}");
            }
            clock::sleep(Duration::from_millis(10));
        }
    }

    /// The names of the policies that the agent enforces.
    fn enforced(&self) -> anyhow::Result<BTreeSet<String>> {
        let request = format!("GET /v1/status HTTP/1.1\r\nhost: {}\r\n\r\n", self.control);
        let (_, body) = Connection::open(self.control)?.exchange(request.as_bytes())?;
        let status: Value = serde_json::from_str(&body).context("read the agent's status")?;
        let policies = status["policies"].as_array().context("the status has no list of policies")?;
        Ok(policies.iter().filter_map(|policy| policy["name"].as_str()).map(str::to_owned).collect())
    }
}

/// The operator next to this program.
fn program() -> anyhow::Result<PathBuf> {
    let program = next_to_this("weir-operator")?;
    ensure!(program.is_file(), "{} is missing: cargo build -p weir-operator", program.display());
    Ok(program)
}

/// The names of the policies in a text that the importer wrote.
fn names(text: &str) -> BTreeSet<String> {
    let lines = text.lines().zip(text.lines().skip(1)).filter(|(line, _)| *line == "metadata:");
    lines.filter_map(|(_, name)| name.trim().strip_prefix("name: ")).map(str::to_owned).collect()
}
