//! The processes of the demo: builds the programs, starts them on free loopback ports, and stops them.
//!
//! All files, including a copy of the policy, are in a temporary folder, which is removed at the end.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{ChildStdout, Command},
};

use super::{
    LENGTH, REPORT_EVERY,
    agents::{Agent, Enforcement},
    policy::PolicyFile,
    screen::Screen,
};
use crate::{
    children::Child,
    clock,
    workspace::{Workspace, copy_folder},
};

const AGENTS: usize = 2;
/// The label of these agents, which the demo's policies select.
const LABEL: &str = "app=demo";
const GRACE: Duration = Duration::from_secs(3);
/// The timeout of each step.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct Cast {
    folder: TempDir,
    root: PathBuf,
    /// The folder of the programs.
    binaries: PathBuf,
    pub(crate) policy: PolicyFile,
    policy_name: String,
    pub(crate) agents: Vec<Agent>,
    /// The app's address. Empty until the app listens.
    app: String,
    children: Vec<Child>,
}

impl Cast {
    /// Copies the policies of a folder. The demo measures `policy.yaml`.
    pub(crate) fn new(workspace: &Workspace, policies_of: &str) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-demo-").tempdir().context("make a temporary folder")?;
        let policies = folder.path().join("policies");
        copy_folder(&workspace.root().join(policies_of), &policies)?;
        let policy = PolicyFile::find(&policies)?;
        Ok(Self {
            folder,
            root: workspace.root().to_owned(),
            binaries: workspace.target().join("release"),
            policy_name: policy.name()?,
            policy,
            agents: Vec::new(),
            app: String::new(),
            children: Vec::new(),
        })
    }

    pub(crate) async fn build(&mut self, screen: &Screen) -> anyhow::Result<()> {
        screen.note("building weir-agent, weir-operator and weir-testapp in release …");
        let mut command = Command::new(env!("CARGO"));
        command.args(["build", "--release", "--locked", "-p=weir-agent", "-p=weir-operator", "-p=weir-testapp"]);
        // With --json, the standard output must contain only JSON. Cargo reports its progress on standard error.
        command.current_dir(&self.root).stdout(Stdio::null());
        let mut cargo = Child::spawn("cargo build", &mut command)?;
        ensure!(cargo.wait().await?.success(), "cargo build failed");
        Ok(())
    }

    /// Starts the programs. Returns when all agents enforce the policy. `flags` are further flags of the operator.
    pub(crate) async fn start(&mut self, flags: &[String]) -> anyhow::Result<()> {
        self.start_app().await?;
        for number in 1..=AGENTS {
            let agent = self.start_agent(&format!("agent-{number}"), &[]).await?;
            self.agents.push(agent);
        }
        let mut operator = self.program("weir-operator");
        operator.args(["standalone", "--status-interval", "1", "--policies"]).arg(self.policies());
        for agent in &self.agents {
            operator.args(["--agent", &format!("http://{},{LABEL}", agent.control)]);
        }
        operator.args(flags);
        self.spawn("operator", &mut operator)?;
        for agent in &self.agents {
            let enforced = agent.acknowledged(&self.policy_name, |_| true);
            tokio::time::timeout(PATIENCE, enforced)
                .await
                .with_context(|| format!("the agent at {} did not get the policy in time", agent.control))?;
        }
        Ok(())
    }

    /// Starts one more agent in front of the app. The operator does not know it, unless flags of the operator name it.
    pub(crate) async fn another(&mut self, name: &str, flags: &[String]) -> anyhow::Result<Agent> {
        self.start_app().await?;
        self.start_agent(name, flags).await
    }

    /// Starts a rate limit service. The operator does not know it, unless flags of the operator name it.
    pub(crate) async fn rate_limit_service(&mut self, name: &str, flags: &[String]) -> anyhow::Result<Agent> {
        let free = "127.0.0.1:0";
        let mut all = vec!["rls", "--listen", free, "--control", free, "--telemetry", free];
        all.extend(flags.iter().map(String::as_str));
        self.start_with_addresses(name, "weir-agent", &all).await
    }

    /// The address of the app, which runs if an agent runs.
    pub(crate) fn app(&self) -> &str {
        &self.app
    }

    /// Starts the app, unless it runs.
    async fn start_app(&mut self) -> anyhow::Result<()> {
        #[derive(serde::Deserialize)]
        struct App {
            listen: String,
        }
        if self.app.is_empty() {
            let app: App =
                self.start_with_addresses("app", "weir-testapp", &["serve", "--listen", "127.0.0.1:0"]).await?;
            self.app = app.listen;
        }
        Ok(())
    }

    async fn start_agent(&mut self, name: &str, more: &[String]) -> anyhow::Result<Agent> {
        let (free, app) = ("127.0.0.1:0", self.app.clone());
        let mut flags = vec!["--listen", free, "--control", free, "--telemetry", free, "--upstream", &app];
        flags.extend(more.iter().map(String::as_str));
        self.start_with_addresses(name, "weir-agent", &flags).await
    }

    /// Starts the load, which sends to all agents round robin. Returns the lines that it prints.
    pub(crate) fn start_load(&self, rate: f64) -> anyhow::Result<(Child, Lines<BufReader<ChildStdout>>)> {
        let mut command = self.program("weir-testapp");
        command.args(["load", "--json", "--rate", &rate.to_string(), "--duration", &LENGTH.as_secs().to_string()]);
        command.args(["--report-every", &REPORT_EVERY.as_millis().to_string()]);
        for agent in &self.agents {
            command.args(["--url", &format!("http://{}/", agent.listen)]);
        }
        command.stdout(Stdio::piped()).stderr(self.log("load")?);
        let mut load = Child::spawn("load", &mut command)?;
        let stdout = load.stdout().context("the load's output is not piped")?;
        Ok((load, BufReader::new(stdout).lines()))
    }

    /// Starts a background load, which sends to these addresses round robin until the end. `flags` choose the requests.
    pub(crate) fn keep_loading(
        &mut self,
        name: &str,
        addresses: &[SocketAddr],
        path: &str,
        flags: &[&str],
    ) -> anyhow::Result<()> {
        let mut command = self.program("weir-testapp");
        command.arg("load").args(flags);
        for address in addresses {
            command.args(["--url", &format!("http://{address}{path}")]);
        }
        self.spawn(name, &mut command)
    }

    /// Starts a third-party program, which is stopped with the other processes.
    pub(crate) fn join(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        self.spawn(name, command)
    }

    /// The temporary folder, which is removed at the end.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes the policy's new text. Returns the time until the last agent reported that the new revision is in force.
    pub(crate) async fn change(&self, text: &str) -> anyhow::Result<Duration> {
        let old = self.enforcement().await.revision.context("no agent reports a revision")?;
        let written = clock::now();
        self.policy.write(text)?;
        let all = async {
            let mut last = written;
            // Waiting for one agent after another takes as long as waiting for all, because the last one decides.
            for agent in &self.agents {
                last = agent.acknowledged(&self.policy_name, |revision| revision != old).await;
            }
            last
        };
        let last = tokio::time::timeout(PATIENCE, all)
            .await
            .with_context(|| format!("not all agents acknowledged the change within {} s", PATIENCE.as_secs()))?;
        Ok(last - written)
    }

    pub(crate) async fn enforcement(&self) -> Enforcement {
        let mut revisions = Vec::new();
        for agent in &self.agents {
            // An agent that does not answer counts as not enforcing.
            revisions.push(agent.revision(&self.policy_name).await.ok().flatten());
        }
        let newest = revisions.iter().flatten().next_back().cloned();
        let enforcing = revisions.iter().filter(|revision| revision.is_some() && **revision == newest).count();
        Enforcement { enforcing, agents: self.agents.len(), revision: newest }
    }

    /// Waits until the status file next to the policy reports that all agents enforce the same revision.
    pub(crate) async fn reported(&self, actual: &Enforcement) -> anyhow::Result<String> {
        let wanted = format!("{0}/{0}", self.agents.len());
        let agrees = async {
            loop {
                let (enforced, revision) = self.status_file().unwrap_or_default();
                if enforced == wanted && Some(&revision) == actual.revision.as_ref() {
                    return enforced;
                }
                tokio::time::sleep(POLL).await;
            }
        };
        match tokio::time::timeout(PATIENCE, agrees).await {
            Ok(enforced) => Ok(enforced),
            Err(_) => bail!(
                "{} does not report {wanted} with revision {}",
                self.policy.status().display(),
                actual.revision.as_deref().unwrap_or("(none)")
            ),
        }
    }

    fn status_file(&self) -> Option<(String, String)> {
        let text = fs::read_to_string(self.policy.status()).ok()?;
        let status: serde_yaml::Value = serde_yaml::from_str(&text).ok()?;
        let status = status.get("status")?;
        let enforced = status.get("summary")?.get("enforced")?.as_str()?;
        Some((enforced.to_owned(), status.get("revision")?.as_str()?.to_owned()))
    }

    /// Waits until a process ends. Returns its name.
    pub(crate) async fn first_to_end(&mut self) -> String {
        loop {
            if let Some(child) = self.children.iter_mut().find_map(|child| child.ended().map(|_| child.name.clone())) {
                return child;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// The last lines of every log that is not empty.
    pub(crate) fn log_tails(&self) -> Vec<(String, String)> {
        let names = self.children.iter().map(|child| child.name.as_str()).chain(["load"]);
        names
            .filter_map(|name| {
                let text = fs::read_to_string(self.log_path(name)).ok()?;
                let lines: Vec<_> = text.lines().collect();
                let tail = lines[lines.len().saturating_sub(10)..].join("\n");
                (!tail.is_empty()).then(|| (name.to_owned(), tail))
            })
            .collect()
    }

    /// Stops the processes in the reverse order of their starts. So each process ends before the processes that it
    /// uses.
    pub(crate) async fn stop(mut self) {
        while let Some(mut child) = self.children.pop() {
            child.stop(GRACE).await;
        }
    }

    pub(crate) fn policies(&self) -> PathBuf {
        self.folder.path().join("policies")
    }

    async fn start_with_addresses<T: DeserializeOwned>(
        &mut self,
        name: &str,
        program: &str,
        flags: &[&str],
    ) -> anyhow::Result<T> {
        let file = self.folder.path().join(format!("{name}.addresses"));
        let mut command = self.program(program);
        command.args(flags).arg("--addresses-file").arg(&file);
        self.spawn(name, &mut command)?;
        let deadline = clock::now() + PATIENCE;
        loop {
            // A missing or incomplete file means that the program is not ready yet.
            if let Some(addresses) = fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str(&text).ok()) {
                return Ok(addresses);
            }
            if let Some(status) = self.children.last_mut().and_then(Child::ended) {
                bail!("{name} ended during its start: {status}");
            }
            ensure!(clock::now() < deadline, "{name} has not written its addresses");
            tokio::time::sleep(POLL).await;
        }
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> anyhow::Result<()> {
        let log = self.log(name)?;
        command.stdout(log.try_clone().context("share the log")?).stderr(log);
        self.children.push(Child::spawn(name, command)?);
        Ok(())
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.binaries.join(name));
        // The user's WEIR_ variables must not affect the programs of the demo.
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
            command.env_remove(variable);
        }
        command
    }

    fn log(&self, name: &str) -> anyhow::Result<fs::File> {
        let path = self.log_path(name);
        fs::File::create(&path).with_context(|| format!("write {}", path.display()))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }
}
