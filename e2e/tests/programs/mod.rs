//! Builds and starts the programs under test. A program is killed when its value is dropped.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    sync::OnceCell,
};

/// A child process that is killed when this value is dropped.
pub(crate) struct Program(pub(crate) Child);

impl Program {
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn();
        Ok(Self(child.with_context(|| format!("start {:?}", command.as_std().get_program()))?))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.0.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(kill_process(id.context("the program has ended")?, signal)?)
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.0.wait().await?;
        Ok(())
    }
}

/// Builds the programs under test, once. Cargo itself builds only the programs of the tested package.
pub(crate) async fn build_programs() -> Result<()> {
    static BUILT: OnceCell<()> = OnceCell::const_new();
    BUILT
        .get_or_try_init(|| async {
            let mut cargo = Command::new(env!("CARGO"));
            // All packages are selected, as in the stage `unit`, because otherwise cargo would choose other features
            // for the dependencies and compile them again.
            cargo.args(["build", "--quiet", "--locked", "--workspace"]);
            cargo.args(["--bin", "weir-operator", "--bin", "weir-agent", "--example", "shop"]);
            cargo.arg("--target-dir").arg(folder()?.parent().context("the folder of the profile has no parent")?);
            // Cargo sets environment variables for the package of this test. They make some build scripts, such as the
            // one of ring, run again. Then cargo would compile everything that depends on ring, here and again in the
            // next stage.
            for (variable, _) in std::env::vars_os() {
                let text = variable.to_string_lossy();
                if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                    cargo.env_remove(variable);
                }
            }
            let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().await?;
            if status.success() { Ok(()) } else { bail!("cannot build the operator and the agent") }
        })
        .await
        .copied()
}

/// The folder that contains the programs of this test's profile.
fn folder() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    Ok(this.ancestors().nth(2).context("the test is not in the folder deps")?.to_owned())
}

/// The path of a program under test.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(name))
}
