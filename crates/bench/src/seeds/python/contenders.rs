//! The contenders: one app of FastAPI, served by uvicorn, alone, with a limiter of its own language, or behind the agent.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use anyhow::Context as _;

use super::{counting::Counting, plan::Plan};
use crate::{
    proxy::{CLIENT_CORE, Cores, PROXY_CORE, Process, free_address},
    seeds::agent::{Policy, start_agent},
};

const APP: &str = include_str!("app.py");

/// The interpreter with all packages; `cargo xtask bench` installs it.
const PYTHON: &str = "WEIR_SEEDS_PYTHON";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Alone,
    Agent,
    Traffik,
    TraffikMiddleware,
    Slowapi,
    SlowapiMiddleware,
}

/// All of them, in the order of tables.
pub(super) const CONTENDERS: [Contender; 6] = [
    Contender::Alone,
    Contender::Agent,
    Contender::Traffik,
    Contender::TraffikMiddleware,
    Contender::Slowapi,
    Contender::SlowapiMiddleware,
];

/// Where the app and its limiter run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// On a core of their own, as in a pod that is limited to one processor.
    OneCore,
    /// On both cores, one of which is also that of the clients.
    TwoCores,
}

pub(super) const PLACEMENTS: [Placement; 2] = [Placement::TwoCores, Placement::OneCore];

impl Placement {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::OneCore => "one core",
            Self::TwoCores => "two cores",
        }
    }

    fn cores(self) -> &'static [usize] {
        match self {
            Self::OneCore => &[PROXY_CORE],
            Self::TwoCores => &[CLIENT_CORE, PROXY_CORE],
        }
    }
}

/// A contender that serves.
pub(super) struct Running {
    pub(super) contender: Contender,
    /// Where clients connect, by process.
    pub(super) addresses: Vec<SocketAddr>,
    processes: Vec<Process>,
}

impl Contender {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alone => "(the app alone)",
            Self::Agent => "weir-agent",
            Self::Traffik => "traffik, dependency",
            Self::TraffikMiddleware => "traffik, middleware",
            Self::Slowapi => "slowapi, decorator",
            Self::SlowapiMiddleware => "slowapi, middleware",
        }
    }

    /// Whether ours is compared with it.
    pub(super) fn is_peer(self) -> bool {
        !matches!(self, Self::Alone | Self::Agent)
    }

    /// As the app knows it.
    fn limiter(self) -> &'static str {
        match self {
            Self::Alone | Self::Agent => "none",
            Self::Traffik => "traffik",
            Self::TraffikMiddleware => "traffik-middleware",
            Self::Slowapi => "slowapi",
            Self::SlowapiMiddleware => "slowapi-middleware",
        }
    }

    /// Starts its processes, and the apps behind the agents, on one core.
    pub(super) fn start(self, plan: &Plan, counting: &Counting, folder: &Path) -> anyhow::Result<Running> {
        let mut running = Running { contender: self, addresses: Vec::new(), processes: Vec::new() };
        for _ in 0..counting.processes {
            let (app, mut address) = start_app(self, plan, counting, folder)?;
            running.processes.push(app);
            if self == Self::Agent {
                let (agent, listen) = start_agent_of(plan, address, counting, folder)?;
                address = listen;
                running.processes.push(agent);
            }
            running.addresses.push(address);
        }
        running.move_to(Placement::OneCore)?;
        Ok(running)
    }
}

impl Running {
    /// Moves its processes.
    pub(super) fn move_to(&self, placement: Placement) -> anyhow::Result<()> {
        self.processes.iter().try_for_each(|process| process.run_on(placement.cores()))
    }
}

/// An agent that enforces the plan before this app, on one core.
pub(super) fn start_agent_of(
    plan: &Plan,
    app: SocketAddr,
    counting: &Counting,
    folder: &Path,
) -> anyhow::Result<(Process, SocketAddr)> {
    let folder = folder.join(format!("agent-{}", free_address()?.port()));
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let policy = Policy { rules: plan.rules(counting), stores: counting.stores(), ..Policy::default() };
    let (process, listen) = start_agent(app, &["--workers=1"], &policy, &folder)?;
    process.run_on(Placement::OneCore.cores())?;
    Ok((process, listen))
}

fn start_app(
    contender: Contender,
    plan: &Plan,
    counting: &Counting,
    folder: &Path,
) -> anyhow::Result<(Process, SocketAddr)> {
    let listen = free_address()?;
    let folder = folder.join(format!("app-{}", listen.port()));
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    fs::write(folder.join("app.py"), APP).context("write the app")?;
    let python = std::env::var(PYTHON).with_context(|| format!("{PYTHON} is not set: run cargo xtask bench seeds"))?;
    let mut command = Command::new(python);
    command.env("WEIR_SEEDS_LIMITER", contender.limiter()).env("WEIR_SEEDS_STORE", counting.url());
    command.env("WEIR_SEEDS_PLAN", serde_json::to_string(plan).context("write the plan")?);
    command.args(["-B", "-m", "uvicorn", "app:app", "--no-access-log", "--app-dir"]).arg(&folder);
    command.args(["--host", &listen.ip().to_string(), "--port", &listen.port().to_string()]);
    command.args(["--loop", "uvloop", "--http", "httptools", "--log-level", "error", "--backlog", "2048"]);
    // Longer than a round of all contenders.
    command.args(["--timeout-keep-alive", "75"]);
    Ok((Process::start(contender.name(), &command, Cores::Own, &folder.join("log"), listen)?, listen))
}

/// The versions of the packages, from the interpreter that runs them.
pub(super) fn versions() -> Vec<(String, String)> {
    const ASK: &str = "import sys; from importlib.metadata import version; print('python', sys.version.split()[0]); \
        [print(name, version(name)) for name in sys.argv[1:]]";
    const PACKAGES: [&str; 10] = [
        "traffik", "slowapi", "limits", "fastapi", "starlette", "uvicorn", "websockets", "redis", "aiomcache",
        "pymemcache",
    ];
    let python = std::env::var(PYTHON).unwrap_or_default();
    let output = Command::new(python).args(["-c", ASK]).args(PACKAGES).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let pair = |line: &str| line.split_once(' ').map(|(name, version)| (name.to_owned(), version.to_owned()));
    text.lines().filter_map(pair).collect()
}
