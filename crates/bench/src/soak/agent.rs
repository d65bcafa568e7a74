//! The agent under test, as a separate process. Its figures come from /proc and from its metrics.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, ensure};

use super::{clients::http1, samples::Sample};
use crate::{
    clock,
    proxy::{Addresses, Cores, Process, agent_command},
};

/// The number of workers: enough for races between workers, and typical for a sidecar.
const WORKERS: &str = "2";

pub(super) struct SoakedAgent {
    process: Process,
    proxy: SocketAddr,
    control: SocketAddr,
    telemetry: SocketAddr,
    log: PathBuf,
}

/// The exit of the agent, and figures of its log.
pub(super) struct Ended {
    pub(super) status: String,
    pub(super) well: bool,
    pub(super) panics: usize,
    pub(super) errors: usize,
}

impl SoakedAgent {
    pub(super) fn start(app: SocketAddr, more: &[String], folder: &Path) -> anyhow::Result<Self> {
        let at = Addresses::free()?;
        let mut command = agent_command(app, &at)?;
        command
            .args(["--workers", WORKERS, "--header-timeout", "5s", "--stall-timeout", "5s", "--idle-timeout", "10s"]);
        command.args(more);
        let log = folder.join("agent.log");
        let process = Process::start("weir-agent", &command, Cores::All, &log, at.listen)?;
        Ok(Self { process, proxy: at.listen, control: at.control, telemetry: at.telemetry, log })
    }

    pub(super) fn proxy(&self) -> SocketAddr {
        self.proxy
    }

    pub(super) fn control(&self) -> SocketAddr {
        self.control
    }

    pub(super) async fn sample(&self, started: Instant) -> anyhow::Result<Sample> {
        let mut connection = http1::Connection::open(self.telemetry).await?;
        let (status, metrics) = connection.get("/metrics", &[]).await?;
        ensure!(status == 200, "/metrics has the status {status}");
        let metrics = std::str::from_utf8(&metrics).context("read the metrics")?;
        // Every sample also counts the descriptor of this scrape's own connection.
        Ok(Sample {
            seconds: clock::since(started).as_secs_f64(),
            resident: self.process.resident()?,
            descriptors: self.process.descriptors()?,
            cpu: self.process.cpu()?.total().as_secs_f64(),
            ..Sample::of_metrics(metrics)?
        })
    }

    /// Sends SIGTERM to the agent, waits for its exit, and reads its log.
    pub(super) fn end(self) -> anyhow::Result<Ended> {
        let Self { process, log, .. } = self;
        let status = process.end()?;
        let said = std::fs::read_to_string(&log).context("read the agent's log")?;
        let lines = |what: &str| said.lines().filter(|line| line.contains(what)).count();
        let ended = Ended {
            status: status.map_or_else(|| "had to be killed".to_owned(), |status| status.to_string()),
            well: status.is_some_and(|status| status.success()),
            panics: lines("panicked at"),
            errors: lines(" ERROR "),
        };
        for line in said.lines().filter(|line| line.contains("panicked at") || line.contains(" ERROR ")).take(10) {
            eprintln!("soak: the agent's log: {line}");
        }
        Ok(ended)
    }
}
