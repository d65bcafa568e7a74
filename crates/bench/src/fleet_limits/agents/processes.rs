//! The processes: agents with certificates, and an operator in standalone mode with a policy of scope Fleet.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use serde::Deserialize;
use tempfile::TempDir;

use super::{
    super::{
        client::{policy, until_counted},
        world::PROCESSES,
    },
    link::Link,
};
use crate::{
    clock,
    proxy::{Addresses, Cores, Process, agent_command},
};

/// The longest wait until an agent has started.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// The agents, and the operator that counts for them.
pub(super) struct Fleet {
    folder: TempDir,
    agents: Vec<Agent>,
    pub(super) operator: Process,
}

struct Agent {
    listen: SocketAddr,
    telemetry: SocketAddr,
    link: Link,
    _process: Process,
}

/// The addresses that an agent writes to its file.
#[derive(Deserialize)]
struct Bound {
    listen: SocketAddr,
    control: SocketAddr,
    telemetry: SocketAddr,
}

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Writes a certificate with this name, and its key.
    fn issue(&self, name: SanType, folder: &Path) -> anyhow::Result<()> {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(name);
        let key = KeyPair::generate()?;
        fs::create_dir_all(folder)?;
        fs::write(folder.join("tls.crt"), params.signed_by(&key, &self.0)?.pem())?;
        Ok(fs::write(folder.join("tls.key"), key.serialize_pem())?)
    }
}

impl Fleet {
    /// Starts the processes, and waits until the operator counts for all agents.
    pub(super) async fn start(operator: &Path, limit: u64, upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let (authority, operators) = (Authority::new()?, Authority::new()?);
        let at = |name: &str| folder.path().join(name);
        operators.issue(SanType::DnsName("operator.test".try_into()?), &at("operator"))?;
        fs::write(at("operator").join("agents.crt"), authority.0.pem())?;
        let mut agents = Vec::new();
        for number in 0..PROCESSES {
            let own = at(&format!("agent-{number}"));
            authority.issue(SanType::IpAddress([127, 0, 0, 1].into()), &own)?;
            fs::write(own.join("ca.crt"), operators.0.pem())?;
            agents.push(Agent::start(&own, upstream).await?);
        }
        fs::create_dir_all(at("policies"))?;
        fs::write(at("policies").join("policy.yaml"), policy(limit))?;
        let operator = start_operator(operator, folder.path(), &agents)?;
        let fleet = Self { folder, agents, operator };
        let counted = until_counted(fleet.agents.iter().map(|agent| agent.telemetry)).await;
        counted.with_context(|| format!("the end of the operator's log:\n{}", fleet.operator.log_tail()))?;
        Ok(fleet)
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.agents.iter().map(|agent| agent.listen).collect()
    }

    /// Starts the next operator. The previous one must have ended, or this call ends it.
    pub(super) fn start_operator(&mut self, program: &Path) -> anyhow::Result<()> {
        self.operator = start_operator(program, self.folder.path(), &self.agents)?;
        Ok(())
    }

    /// Cuts the first agents off, or connects them again.
    pub(super) fn cut(&self, agents: usize, is_cut: bool) {
        self.agents.iter().take(agents).for_each(|agent| agent.link.cut(is_cut));
    }

    /// Fails if the operator has ended.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        self.operator.check()
    }
}

impl Agent {
    /// Starts an agent on free ports, and reads their addresses from its file.
    async fn start(folder: &Path, upstream: SocketAddr) -> anyhow::Result<Self> {
        let addresses = folder.join("addresses");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut command = agent_command(upstream, &Addresses { listen: any, control: any, telemetry: any })?;
        for (flag, name) in [
            ("--addresses-file", "addresses"),
            ("--control-cert", "tls.crt"),
            ("--control-key", "tls.key"),
            ("--control-client-ca", "ca.crt"),
        ] {
            command.arg(flag).arg(folder.join(name));
        }
        let process = Process::spawn("an agent", &command, Cores::All, &folder.join("agent.log"))?;
        let bound = loop {
            let text = fs::read(&addresses).ok();
            if let Some(bound) = text.and_then(|text| serde_json::from_slice::<Bound>(&text).ok()) {
                break bound;
            }
            ensure!(clock::since(process.started) < PATIENCE, "an agent has not written its addresses");
            tokio::time::sleep(LOOK).await;
        };
        let link = Link::start(bound.control).await?;
        Ok(Self { listen: bound.listen, telemetry: bound.telemetry, link, _process: process })
    }
}

/// Starts an operator in standalone mode.
fn start_operator(program: &Path, folder: &Path, agents: &[Agent]) -> anyhow::Result<Process> {
    let mut command = Command::new(program);
    command.args(["standalone", "--telemetry", "127.0.0.1:0"]);
    for (flag, name) in [
        ("--policies", "policies"),
        ("--agent-ca", "operator/agents.crt"),
        ("--client-cert", "operator/tls.crt"),
        ("--client-key", "operator/tls.key"),
    ] {
        command.arg(flag).arg(folder.join(name));
    }
    command.args(agents.iter().map(|agent| format!("--agent=https://{}", agent.link.address)));
    Process::spawn("the operator", &command, Cores::All, &folder.join("operator.log"))
}
