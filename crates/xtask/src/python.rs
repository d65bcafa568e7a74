//! Python environments below the user's cache, each with the packages of a requirements file.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::bench::{finish, peers};

/// The interpreter of an environment that has these packages in these versions.
pub(crate) async fn environment(
    name: &str,
    requirements: &Path,
    interrupt: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    let environment = peers::cache()?.join(name);
    let python = environment.join("bin/python");
    if !python.is_file() {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&environment);
        let made = finish("python3 -m venv", &mut venv, interrupt).await?;
        ensure!(made == Some(0), "python3 -m venv failed: on Debian it is in the package python3-venv");
    }
    // pip does nothing, without network, if all packages are installed in these versions.
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(requirements);
    let installed = finish("pip", &mut pip, interrupt).await? == Some(0);
    ensure!(installed, "pip could not install {}", requirements.display());
    Ok(python)
}
