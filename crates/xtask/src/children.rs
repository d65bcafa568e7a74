//! The processes that this program starts. Each process leads a separate process group. The group is stopped by its ID,
//! first with SIGTERM, then with SIGKILL. This module must never stop a process that this program did not start.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::{Child as Process, Command},
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

/// Returns a token that is cancelled at the first Ctrl-C, SIGTERM or SIGHUP. After this call, these signals do not end
/// this program. The caller must stop the processes that it started, and return.
pub(crate) fn interrupts() -> anyhow::Result<CancellationToken> {
    let token = CancellationToken::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).context("listen for signals")?;
        let token = token.clone();
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                token.cancel();
            }
        });
    }
    Ok(token)
}

/// A process and its descendants, except those that create their own process group.
pub(crate) struct Child {
    pub(crate) name: String,
    process: Process,
}

impl Child {
    pub(crate) fn spawn(name: impl Into<String>, command: &mut Command) -> anyhow::Result<Self> {
        let name = name.into();
        // Cargo sets environment variables for this package. They are wrong for other packages, and make some build
        // scripts, such as the one of ring, run again without need.
        for (variable, _) in std::env::vars_os() {
            let text = variable.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == "CARGO_BIN_NAME" {
                command.env_remove(variable);
            }
        }
        let process = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}: {:?}", command.as_std().get_program()))?;
        Ok(Self { name, process })
    }

    pub(crate) fn stdout(&mut self) -> Option<tokio::process::ChildStdout> {
        self.process.stdout.take()
    }

    pub(crate) async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.wait().await.with_context(|| format!("wait for {}", self.name))
    }

    /// The exit status. None while the process runs.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Sends SIGTERM, and SIGKILL after `grace`.
    pub(crate) async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(grace, self.process.wait()).await.is_err() {
            self.signal(Signal::KILL);
            // A process cannot ignore SIGKILL, so this wait only collects the exit status.
            let _ = self.process.wait().await;
        }
    }

    fn signal(&mut self, signal: Signal) {
        // Without an ID, the exit status was already collected, and the system can have reused the number.
        if let Some(group) = self.process.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) {
            // This call fails only if the process has just ended.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a program, and returns its exit code. On an interrupt, the program is stopped.
pub(crate) async fn finish(
    name: &str,
    command: &mut Command,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<i32>> {
    let mut child = Child::spawn(name, command)?;
    tokio::select! {
        status = child.wait() => Ok(status.with_context(|| format!("run {name}"))?.code()),
        () = interrupt.cancelled() => {
            child.stop(Duration::from_secs(2)).await;
            Ok(None)
        }
    }
}

/// Runs a program, which must succeed. On an interrupt, the program is stopped.
pub(crate) async fn succeed(name: &str, command: &mut Command, interrupt: &CancellationToken) -> anyhow::Result<()> {
    ensure!(finish(name, command, interrupt).await? == Some(0), "{name} failed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    /// Starts a shell that starts a grandchild, prints its ID, and waits for it.
    async fn family() -> (Child, String) {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]).stdout(Stdio::piped());
        let mut child = Child::spawn("family", &mut command).expect("sh starts");
        let mut lines = BufReader::new(child.stdout().expect("stdout is piped")).lines();
        let grandchild = lines.next_line().await.expect("readable").expect("a line");
        (child, grandchild)
    }

    /// Returns true if the process has ended, or is a zombie that init has not collected yet.
    fn is_gone(id: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{id}/stat")).map_or(true, |stat| stat.contains(") Z "))
    }

    async fn until_gone(id: &str) {
        let gone = async {
            while !is_gone(id) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone).await.expect("the grandchild ends with its group");
    }

    #[tokio::test]
    async fn stop_ends_the_whole_group() {
        let (mut child, grandchild) = family().await;
        assert!(!is_gone(&grandchild));
        child.stop(Duration::from_secs(10)).await;
        assert!(child.ended().is_some());
        until_gone(&grandchild).await;
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; while :; do sleep 600; done"]).stdout(Stdio::piped());
        let mut child = Child::spawn("deaf", &mut command).expect("sh starts");
        let mut lines = BufReader::new(child.stdout().expect("stdout is piped")).lines();
        lines.next_line().await.expect("readable");
        child.stop(Duration::from_millis(50)).await;
        assert!(child.ended().is_some());
    }

    #[tokio::test]
    async fn a_dropped_child_leaves_nothing_behind() {
        let (child, grandchild) = family().await;
        drop(child);
        until_gone(&grandchild).await;
    }
}
