//! The contenders: the app alone, with a limiter of its own language, or behind the agent. Each runs in two processes
//! that share one Redis.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{LARGE, Limit, RATE, SMALL, delayed::delayed};
use crate::{
    proxy::{Cores, Process, bucket, free_address},
    redis::Redis,
    report::program_version,
    seeds::agent::{Policy, WEIR, redis_store, share, start_agent},
};

const APP: &str = include_str!("peers/app.js");
const LIMITS: [Limit; 3] = [SMALL, LARGE, RATE];
pub(super) const PROCESSES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contender {
    Alone,
    Trip,
    Optimistic,
    /// The agent without a policy.
    Idle,
    /// The agent with limits of its own, which makes no round trips.
    Local,
    Agent,
}

impl Contender {
    /// All of them, in the order of tables.
    pub(super) const ALL: [Self; 6] = [Self::Alone, Self::Trip, Self::Optimistic, Self::Idle, Self::Local, Self::Agent];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alone => "(the app alone)",
            Self::Trip => "koa-ratelimit",
            Self::Optimistic => "optimistic counter",
            Self::Idle => "(weir-agent without a policy)",
            Self::Local => "(weir-agent, scope Pod)",
            Self::Agent => WEIR,
        }
    }

    pub(super) fn has_limit(self) -> bool {
        !matches!(self, Self::Alone | Self::Idle)
    }

    /// Whether all processes enforce one limit together.
    pub(super) fn shares_limit(self) -> bool {
        self.has_limit() && self != Self::Local
    }

    fn is_agent(self) -> bool {
        matches!(self, Self::Idle | Self::Local | Self::Agent)
    }

    /// The limiter in the app.
    fn limiter(self) -> &'static str {
        match self {
            Self::Alone | Self::Idle | Self::Local | Self::Agent => "none",
            Self::Trip => "koa-ratelimit",
            Self::Optimistic => "optimistic",
        }
    }

    fn policy(self, store: SocketAddr) -> Policy {
        match self {
            Self::Idle => return Policy::default(),
            Self::Local => return Policy { rules: LIMITS.map(local_rule).into(), ..Policy::default() },
            _ => {}
        }
        Policy { rules: LIMITS.map(rule).into(), stores: vec![redis_store(store)], ..Policy::default() }
    }
}

/// A rule of scope Shared.
fn rule(limit: Limit) -> Value {
    let mut rule = local_rule(limit);
    share(&mut rule, PROCESSES);
    rule
}

fn local_rule(limit: Limit) -> Value {
    let name = limit.path.trim_start_matches('/');
    json!({
        "name": name,
        "action": "Limit",
        "match": [{ "paths": [limit.path] }],
        "key": [{ "header": "x-key" }],
        "limits": [bucket(limit.requests, limit.millis, limit.requests)],
        "onLimit": { "status": 429, "headers": "IETF" },
        "maxKeys": 10_000,
    })
}

/// The processes of a contender.
pub(super) struct Running {
    pub(super) contender: Contender,
    /// Where clients connect, by process.
    pub(super) listen: Vec<SocketAddr>,
    /// The apps of these processes.
    pub(super) apps: Vec<SocketAddr>,
    pub(super) redis: Redis,
    /// Where the limiters find Redis.
    pub(super) store: SocketAddr,
    _processes: Vec<Process>,
}

impl Running {
    pub(super) fn start(contender: Contender, delay: Duration, folder: &Path) -> anyhow::Result<Self> {
        let redis = Redis::start(folder)?;
        let store = if delay.is_zero() { redis.address } else { delayed(redis.address, delay)? };
        let (mut listen, mut apps, mut processes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..PROCESSES {
            let (process, app) = start_app(contender, store, folder)?;
            processes.push(process);
            apps.push(app);
            if contender.is_agent() {
                let folder = folder.join(format!("agent-{}", app.port()));
                fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
                let (agent, address) = start_agent(app, &[], &contender.policy(store), &folder)?;
                processes.push(agent);
                listen.push(address);
            } else {
                listen.push(app);
            }
        }
        Ok(Self { contender, listen, apps, redis, store, _processes: processes })
    }
}

fn start_app(contender: Contender, store: SocketAddr, folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let app = folder.join("app.js");
    fs::write(&app, APP).context("write the app")?;
    let address = free_address()?;
    let limits = LIMITS
        .map(|Limit { path, requests, millis }| (path.to_owned(), json!({ "requests": requests, "millis": millis })));
    let mut command = Command::new("node");
    command.arg(app).env("NODE_ENV", "production").env("NODE_PATH", modules()?);
    command.env("WEIR_PORT", address.port().to_string()).env("WEIR_LIMITER", contender.limiter());
    command.env("WEIR_REDIS", format!("redis://{store}/"));
    command.env("WEIR_LIMITS", Value::Object(limits.into_iter().collect()).to_string());
    let log = folder.join(format!("app-{}.log", address.port()));
    Ok((Process::start(contender.name(), &command, Cores::All, &log, address)?, address))
}

/// The packages of the peers; `cargo xtask bench` installs them.
fn modules() -> anyhow::Result<PathBuf> {
    std::env::var_os("WEIR_SEEDS_NODE")
        .map(PathBuf::from)
        .context("WEIR_SEEDS_NODE is not set: run cargo xtask bench seeds")
}

/// The versions of Node.js, of Redis, and of the packages.
pub(super) fn versions() -> anyhow::Result<Vec<(String, String)>> {
    let programs = ["node", "redis-server"].map(|program| Ok((program.to_owned(), program_version(program)?)));
    Ok(programs.into_iter().collect::<anyhow::Result<Vec<_>>>()?.into_iter().chain(packages()?).collect())
}

fn packages() -> anyhow::Result<Vec<(String, String)>> {
    let package: Value = serde_json::from_str(include_str!("peers/package.json")).context("read package.json")?;
    let pinned = package["dependencies"].as_object().context("package.json has no dependencies")?;
    let version = |(name, version): (&String, &Value)| Some((name.clone(), version.as_str()?.to_owned()));
    Ok(pinned.iter().filter_map(version).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packages_are_pinned() {
        let packages = packages().expect("valid JSON");
        assert_eq!(packages.len(), 3);
        let is_exact = |version: &str| version.split('.').all(|part| part.parse::<u32>().is_ok());
        assert!(packages.iter().all(|(_, version)| is_exact(version)), "{packages:?}");
    }
}
