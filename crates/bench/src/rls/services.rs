//! The contenders as processes: envoyproxy/ratelimit with its Redis, and `weir-agent rls`.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::Context as _;
use serde_json::Value;

use crate::proxy::{Cores, Process, agent_program, free_address};

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
    /// Settings besides the necessary ones.
    pub(crate) more: &'static [(&'static str, &'static str)],
}

impl Service {
    /// Starts Redis and envoyproxy/ratelimit, which reads the files in `folder/config`.
    pub(crate) fn peer(folder: &Path, settings: PeerSettings) -> anyhow::Result<Self> {
        let program = std::env::var(PEER).with_context(|| format!("{PEER} is not set: cargo xtask sets it"))?;
        let (redis, grpc, json, debug) = (free_address()?, free_address()?, free_address()?, free_address()?);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let port = redis.port().to_string();
        let command = ["redis-server", "--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let place = folder.display().to_string();
        let command = [&command[..], &["--dir", &place]].concat();
        let store = Process::start("redis", &words(&command), settings.cores, &folder.join("redis.log"), redis)?;

        let address =
            |name: &str, port: &str, at: SocketAddr| [format!("{name}={}", at.ip()), format!("{port}={}", at.port())];
        let fixed = words(&[
            "env",
            "REDIS_SOCKET_TYPE=tcp",
            &format!("REDIS_URL={redis}"),
            &format!("RUNTIME_ROOT={place}"),
            "RUNTIME_SUBDIRECTORY=",
            "RUNTIME_APPDIRECTORY=config",
            "RUNTIME_WATCH_ROOT=false",
            "USE_STATSD=false",
            "DISABLE_STATS=true",
            "LOG_LEVEL=error",
        ]);
        let addresses = [
            address("GRPC_HOST", "GRPC_PORT", grpc),
            address("HOST", "PORT", json),
            address("DEBUG_HOST", "DEBUG_PORT", debug),
        ];
        let more = settings.more.iter().map(|(name, value)| format!("{name}={value}"));
        let command: Vec<_> =
            fixed.into_iter().chain(addresses.into_iter().flatten()).chain(more).chain([program]).collect();
        let log = folder.join("ratelimit.log");
        let service = Process::start("envoyproxy/ratelimit", &command, settings.cores, &log, grpc)?;
        Ok(Self { grpc, json, control: None, processes: vec![service, store] })
    }

    /// Starts `weir-agent rls` with a snapshot.
    pub(crate) fn weir(folder: &Path, snapshot: &Value, cores: Cores) -> anyhow::Result<Self> {
        let (listen, control, telemetry) = (free_address()?, free_address()?, free_address()?);
        let bootstrap = folder.join("bootstrap.json");
        fs::write(&bootstrap, snapshot.to_string()).with_context(|| format!("write {}", bootstrap.display()))?;
        let flags = [
            ("--listen", listen.to_string()),
            ("--control", control.to_string()),
            ("--telemetry", telemetry.to_string()),
            ("--bootstrap", bootstrap.display().to_string()),
        ];
        let flags = flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        let command: Vec<_> = [agent_program()?, "rls".to_owned()].into_iter().chain(flags).collect();
        let process = Process::start("weir-agent", &command, cores, &folder.join("weir-agent.log"), listen)?;
        Ok(Self { grpc: listen, json: listen, control: Some(control), processes: vec![process] })
    }

    /// The CPU time of all its processes so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| process.cpu().map(|cpu| cpu.user + cpu.system)).sum()
    }
}
