//! The operator under test, as a separate process with its release profile. The process is stopped when this value is
//! dropped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process},
};

use crate::clock;

/// The longest time for the exit of an operator: the default of the chart. For four seconds of it, the operator still
/// serves its webhook and identities.
const GRACE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// A running operator.
pub(crate) struct OperatorProcess {
    child: Child,
    log: PathBuf,
    pub(crate) started: Instant,
}

/// The memory of the operator, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) peak: u64,
}

impl OperatorProcess {
    /// Starts an operator. It has an authority, unless agents use plain HTTP.
    pub(crate) fn start(program: &Path, kubeconfig: &Path, log: PathBuf, plaintext: bool) -> anyhow::Result<Self> {
        let output = fs::File::create(&log).with_context(|| format!("write {}", log.display()))?;
        let started = clock::now();
        // No agent uses this service, because agents already have their certificates.
        let identity = ["--identity-listen", "127.0.0.1:0", "--identity-url", "https://127.0.0.1"];
        let child = Command::new("setpriv")
            // The operator ends with this program, also if this program is killed.
            .args(["--pdeathsig", "TERM"])
            .arg(program)
            .args(["run", "--telemetry", "127.0.0.1:0", "--lease-namespace", "default"])
            .args(if plaintext { &[][..] } else { &identity[..] })
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(Self { child, log, started })
    }

    /// The processor time that the operator has used.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        parse_cpu(&self.read("stat")?).context("read the operator's processor time")
    }

    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let status = self.read("status")?;
        let find = |name: &str| parse_kilobytes(&status, name).with_context(|| format!("the operator has no {name}"));
        Ok(Memory { resident: find("VmRSS:")?, peak: find("VmHWM:")? })
    }

    fn read(&self, file: &str) -> anyhow::Result<String> {
        let path = format!("/proc/{}/{file}", self.child.id());
        fs::read_to_string(path).with_context(|| format!("the operator has ended: {}", self.log_tail()))
    }

    /// Sends SIGTERM to the operator, and waits for its exit.
    pub(crate) fn end(mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM);
        let asked = clock::now();
        while clock::since(asked) < GRACE {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                bail!("the operator ended with {status}: {}", self.log_tail());
            }
            clock::sleep(LOOK);
        }
        bail!("the operator does not end: {}", self.log_tail())
    }

    /// The last lines of the operator's log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn signal(&self, signal: Signal) {
        // The exit status was not collected yet, so the ID is still valid. This call fails only if the process has just
        // exited.
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(id, signal);
        }
    }
}

impl Drop for OperatorProcess {
    fn drop(&mut self) {
        // These calls fail only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses fields 14 and 15 of `stat`. They are after the program's name, which can contain any character.
fn parse_cpu(stat: &str) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<_>>()?;
    Some(Duration::from_nanos(ticks * 1_000_000_000 / clock_ticks_per_second()))
}

fn parse_kilobytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        let ticks = clock_ticks_per_second();
        let stat = format!("7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 {ticks} {} 0 0 20 0", 2 * ticks);
        assert_eq!(parse_cpu(&stat), Some(Duration::from_secs(3)));
        assert_eq!(parse_kilobytes("Name:\ta\nVmHWM:\t  12 kB\nVmRSS:\t 7 kB\n", "VmHWM:"), Some(12 * 1024));
        assert_eq!(parse_kilobytes("Name:\ta\n", "VmHWM:"), None);
    }
}
