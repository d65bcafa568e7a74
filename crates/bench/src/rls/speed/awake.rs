//! Keeps the cores awake while latencies are measured.

use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

use crate::proxy::{CLIENT_CORE, PROXY_CORE};

/// On each core, a process that runs when nothing else does. It yields to every other process immediately.
pub(super) struct Awake(Vec<Child>);

impl Awake {
    pub(super) fn start() -> anyhow::Result<Self> {
        let spin = |core: usize| {
            let mut words = Command::new("setpriv");
            // The process ends with this program, even if this program is killed.
            words.args(["--pdeathsig", "KILL", "chrt", "--idle", "0", "taskset", "-c", &core.to_string()]);
            words.args(["sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
            words.spawn().context("start a process that keeps a core awake")
        };
        let mut awake = Self(Vec::new());
        for core in [CLIENT_CORE, PROXY_CORE] {
            awake.0.push(spin(core)?);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // These calls fail only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
