//! The contenders as processes: envoyproxy/ratelimit with its Redis, and `weir-agent rls`.

use std::{fs, net::SocketAddr, path::Path, process::Command, time::Duration};

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    proxy::{Addresses, Cores, Cpu, Process, agent_program, free_address},
    redis,
};

/// The environment variable with the path of envoyproxy/ratelimit.
pub(crate) const PEER: &str = "WEIR_RATELIMIT";

/// A started service, with everything that works for it.
pub(crate) struct Service {
    /// Serves gRPC.
    pub(crate) grpc: SocketAddr,
    /// Serves `POST /json`.
    pub(crate) json: SocketAddr,
    /// Takes snapshots, if it is the agent.
    pub(crate) control: Option<SocketAddr>,
    processes: Vec<Process>,
}

/// How to start envoyproxy/ratelimit.
#[derive(Clone, Copy)]
pub(crate) struct PeerSettings {
    pub(crate) cores: Cores,
    /// Settings in addition to the necessary ones.
    pub(crate) more: &'static [(&'static str, &'static str)],
    /// Its Redis; none if it starts one of its own.
    pub(crate) redis: Option<SocketAddr>,
}

/// The environment variable with the path of Gubernator.
const GUBERNATOR: &str = "WEIR_GUBERNATOR";

impl Service {
    /// Starts envoyproxy/ratelimit, which reads the files in `folder/config`, and Redis if it has none.
    pub(crate) fn peer(folder: &Path, settings: PeerSettings) -> anyhow::Result<Self> {
        let program = std::env::var(PEER).with_context(|| format!("{PEER} is not set: cargo xtask sets it"))?;
        let (grpc, json, debug) = (free_address()?, free_address()?, free_address()?);
        let (store, redis) = match settings.redis {
            Some(redis) => (None, redis),
            None => redis::start(folder, settings.cores).map(|(store, redis)| (Some(store), redis))?,
        };
        let mut command = Command::new(program);
        command.env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", redis.to_string()).env("RUNTIME_ROOT", folder);
        command.envs([
            ("RUNTIME_SUBDIRECTORY", ""),
            ("RUNTIME_APPDIRECTORY", "config"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("USE_STATSD", "false"),
            ("DISABLE_STATS", "true"),
            ("LOG_LEVEL", "error"),
        ]);
        for (prefix, at) in [("GRPC_", grpc), ("", json), ("DEBUG_", debug)] {
            command.env(format!("{prefix}HOST"), at.ip().to_string());
            command.env(format!("{prefix}PORT"), at.port().to_string());
        }
        command.envs(settings.more.iter().copied());
        let log = folder.join("ratelimit.log");
        let service = Process::start("envoyproxy/ratelimit", &command, settings.cores, &log, grpc)?;
        Ok(Self { grpc, json, control: None, processes: std::iter::once(service).chain(store).collect() })
    }

    /// Starts `weir-agent rls` with a snapshot.
    pub(crate) fn weir(folder: &Path, snapshot: &Value, cores: Cores) -> anyhow::Result<Self> {
        let at = Addresses::free()?;
        let bootstrap = folder.join("bootstrap.json");
        fs::write(&bootstrap, snapshot.to_string()).with_context(|| format!("write {}", bootstrap.display()))?;
        let mut command = Command::new(agent_program()?);
        command.arg("rls").args(at.flags()).arg("--bootstrap").arg(bootstrap);
        let process = Process::start("weir-agent", &command, cores, &folder.join("weir-agent.log"), at.listen)?;
        Ok(Self { grpc: at.listen, json: at.listen, control: Some(at.control), processes: vec![process] })
    }

    /// Starts a node of Gubernator with this number, which joins the first one. Nodes know each other by their IP address
    /// and by the name of their machine, so each has its own.
    pub(crate) fn gubernator(folder: &Path, number: u8, port: u16, cores: Cores) -> anyhow::Result<Self> {
        let program =
            std::env::var(GUBERNATOR).with_context(|| format!("{GUBERNATOR} is not set: run cargo xtask bench"))?;
        let at = |offset: u16| SocketAddr::from(([127, 0, 0, number], port + offset));
        let (grpc, http, members) = (at(0), at(1), at(2));
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", r#"hostname "$0" && exec "$1""#, &format!("node-{number}"), &program]);
        command.env("GUBER_PEER_DISCOVERY_TYPE", "member-list").env("GUBER_LOG_LEVEL", "error");
        command.env("OTEL_TRACES_EXPORTER", "none");
        for (setting, address) in [
            ("GUBER_GRPC_ADDRESS", grpc),
            ("GUBER_HTTP_ADDRESS", http),
            ("GUBER_ADVERTISE_ADDRESS", grpc),
            ("GUBER_MEMBERLIST_ADVERTISE_ADDRESS", grpc),
            ("GUBER_MEMBERLIST_ADDRESS", members),
            ("GUBER_MEMBERLIST_BIND_ADDRESS", members),
            ("GUBER_MEMBERLIST_KNOWN_NODES", SocketAddr::from(([127, 0, 0, 1], port + 2))),
        ] {
            command.env(setting, address.to_string());
        }
        let process = Process::start("gubernator", &command, cores, &folder.join("gubernator.log"), grpc)?;
        Ok(Self { grpc, json: http, control: None, processes: vec![process] })
    }

    /// The CPU time of all its processes so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| process.cpu().map(Cpu::total)).sum()
    }
}
