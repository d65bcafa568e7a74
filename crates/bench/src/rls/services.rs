//! The contenders as processes: envoyproxy/ratelimit with its Redis, and `weir-agent rls`.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::Context as _;
use serde_json::Value;

use crate::{
    proxy::{Cores, Cpu, Process, agent_program, free_address},
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
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let place = folder.display().to_string();
        let (store, redis) = match settings.redis {
            Some(redis) => (None, redis),
            None => redis::start(folder, settings.cores).map(|(store, redis)| (Some(store), redis))?,
        };

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
        Ok(Self { grpc, json, control: None, processes: std::iter::once(service).chain(store).collect() })
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

    /// Starts a node of Gubernator with this number, which joins the first one. Nodes know each other by their IP address
    /// and by the name of their machine, so each has its own.
    pub(crate) fn gubernator(folder: &Path, number: u8, port: u16, cores: Cores) -> anyhow::Result<Self> {
        let program =
            std::env::var(GUBERNATOR).with_context(|| format!("{GUBERNATOR} is not set: cargo xtask sets it"))?;
        let at = |offset: u16| SocketAddr::from(([127, 0, 0, number], port + offset));
        let (grpc, http, members) = (at(0), at(1), at(2));
        let settings = [
            ("GUBER_GRPC_ADDRESS", grpc),
            ("GUBER_HTTP_ADDRESS", http),
            ("GUBER_ADVERTISE_ADDRESS", grpc),
            ("GUBER_MEMBERLIST_ADVERTISE_ADDRESS", grpc),
            ("GUBER_MEMBERLIST_ADDRESS", members),
            ("GUBER_MEMBERLIST_BIND_ADDRESS", members),
            ("GUBER_MEMBERLIST_KNOWN_NODES", SocketAddr::from(([127, 0, 0, 1], port + 2))),
        ];
        let settings = settings.into_iter().map(|(name, address)| format!("{name}={address}"));
        let fixed = ["GUBER_PEER_DISCOVERY_TYPE=member-list", "GUBER_LOG_LEVEL=error", "OTEL_TRACES_EXPORTER=none"];
        let run = ["unshare", "--uts", "sh", "-c", r#"hostname "$0" && exec "$1""#].map(str::to_owned);
        let command: Vec<_> = std::iter::once("env".to_owned())
            .chain(settings)
            .chain(fixed.map(str::to_owned))
            .chain(run)
            .chain([format!("node-{number}"), program])
            .collect();
        let process = Process::start("gubernator", &command, cores, &folder.join("gubernator.log"), grpc)?;
        Ok(Self { grpc, json: http, control: None, processes: vec![process] })
    }

    /// The CPU time of all its processes so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes.iter().map(|process| process.cpu().map(Cpu::total)).sum()
    }
}
