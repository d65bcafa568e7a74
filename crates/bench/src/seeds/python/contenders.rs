//! The contenders: one app of FastAPI, served by uvicorn, alone, with a limiter of its own language, or behind the agent.

use std::{fs, net::SocketAddr, path::Path, process::Command};

use anyhow::Context as _;

use super::{counting::Counting, plan::Plan};
use crate::{
    proxy::{CLIENT_CORE, Cores, PROXY_CORE, Process, free_address},
    seeds::agent::{Agent, Policy},
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
                let agent = start_agent(address, plan, counting, folder)?;
                address = agent.listen;
                running.processes.push(agent.process);
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
pub(super) fn start_agent(app: SocketAddr, plan: &Plan, counting: &Counting, folder: &Path) -> anyhow::Result<Agent> {
    let folder = folder.join(format!("agent-{}", free_address()?.port()));
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let policy = Policy { rules: plan.rules(counting), stores: counting.stores(), ..Policy::default() };
    let agent = Agent::start(app, &[("--workers", "1")], &policy, &folder)?;
    agent.process.run_on(Placement::OneCore.cores())?;
    Ok(agent)
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
    let environment = [
        ("WEIR_SEEDS_LIMITER", contender.limiter().to_owned()),
        ("WEIR_SEEDS_STORE", counting.url()),
        ("WEIR_SEEDS_PLAN", serde_json::to_string(plan).context("write the plan")?),
    ];
    let flags = [
        ("--app-dir", folder.display().to_string()),
        ("--host", listen.ip().to_string()),
        ("--port", listen.port().to_string()),
        ("--loop", "uvloop".to_owned()),
        ("--http", "httptools".to_owned()),
        ("--log-level", "error".to_owned()),
        // Longer than a round of all contenders.
        ("--timeout-keep-alive", "75".to_owned()),
        ("--backlog", "2048".to_owned()),
    ];
    let command: Vec<String> = std::iter::once("env".to_owned())
        .chain(environment.into_iter().map(|(name, value)| format!("{name}={value}")))
        .chain([&python, "-B", "-m", "uvicorn", "app:app", "--no-access-log"].map(str::to_owned))
        .chain(flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]))
        .collect();
    Ok((Process::start(contender.name(), &command, Cores::Own, &folder.join("log"), listen)?, listen))
}

/// The versions of the packages, from the interpreter that runs them.
pub(super) fn versions() -> Vec<(String, String)> {
    const ASK: &str = "import sys; from importlib.metadata import version; print('python', sys.version.split()[0]); \
        [print(name, version(name)) for name in sys.argv[1:]]";
    const PACKAGES: [&str; 10] = [
        "traffik",
        "slowapi",
        "limits",
        "fastapi",
        "starlette",
        "uvicorn",
        "websockets",
        "redis",
        "aiomcache",
        "pymemcache",
    ];
    let python = std::env::var(PYTHON).unwrap_or_default();
    let output = Command::new(python).args(["-c", ASK]).args(PACKAGES).output().ok();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let pair = |line: &str| line.split_once(' ').map(|(name, version)| (name.to_owned(), version.to_owned()));
    text.lines().filter_map(pair).collect()
}
