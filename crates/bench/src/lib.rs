//! Compares Weir's limiters and layers with their peers: how fast they are, and whether they enforce their limit under
//! load.
//!
//! Every table comes from one run on one machine. The contenders take turns, repetition by repetition, so that noise
//! affects all of them equally. Each figure is the median of the repetitions, with the lowest and the highest value.
//! All contenders must be used as their users would use them: this crate must not optimise Weir, or handicap a peer.

mod burst;
mod clock;
mod command;
#[cfg(feature = "fleet")]
mod fleet;
#[cfg(feature = "fleet")]
mod fleet_limits;
mod gateway;
mod layers;
mod limits;
mod open_loop;
mod proxy;
mod redis;
mod report;
mod rls;
mod rounds;
mod seeds;
mod shared;
mod sla;
mod soak;
mod stacks;
mod stats;
mod strategies;
mod turns;

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context as _;
use clap::{Parser, Subcommand, ValueEnum};

pub use self::limits::count_bytes;
use self::{report::Report, seeds::Seed, shared::SharedPart};

/// Compare limiters and layers with their peers.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
    /// Suites to run; by default all except proxy, gateway, rls, seeds and shared, which need other programs
    suites: Vec<Suite>,
    /// The seeds that `seeds` measures; by default all. What the folder has of the others stays
    #[arg(long = "seed", value_name = "NUMBER")]
    seeds: Vec<Seed>,
    /// The parts that `shared` measures; by default all. What the folder has of the others stays
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<SharedPart>,
    /// Run for some seconds only: this tests the benchmarks, and its figures are not meaningful
    #[arg(long)]
    quick: bool,
    /// Output folder; by default docs/benchmarks, or target/weir/benchmarks for a quick run
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Measure nothing, and only draw the charts of the results in the folder again
    #[arg(long, conflicts_with_all = ["suites", "quick", "seeds", "parts"])]
    redraw: bool,
}

/// What this program does in place of the suites. Benchmarks start it as a process for some of the roles.
#[derive(Subcommand)]
enum Role {
    #[cfg(feature = "fleet")]
    Fleet(fleet::FleetArgs),
    #[cfg(feature = "fleet")]
    FleetLimits(fleet_limits::LimitsArgs),
    Soak(soak::SoakArgs),
    RlsAnswers(rls::AnswersArgs),
    #[command(name = GATEWAY)]
    Gateway(gateway::GatewayArgs),
    #[command(name = STACK)]
    Stack(seeds::StackArgs),
    #[command(name = SHARERS)]
    Sharers(shared::SharersArgs),
}

/// The roles of the processes that benchmarks start.
pub(crate) const GATEWAY: &str = "serve-gateway";
pub(crate) const STACK: &str = "serve-stack";
pub(crate) const SHARERS: &str = "run-sharers";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// One decision on one limit, allowed and denied, on 1 to 8 threads; keyed tables; exact counts
    Core,
    /// The overhead of each layer, and 1,000 tasks on one limit
    Tower,
    /// 50,000 requests at the same time with a capacity of 10,000
    Burst,
    /// A service of 10 slots behind limits, from 25 to 600 requests per second
    Sla,
    /// The admissions of each strategy with the same traffic: pictures for the manual, which are the same in every run
    Strategies,
    /// The agent compared with nginx, HAProxy and Envoy, which `cargo xtask bench proxy` installs
    Proxy,
    /// A gateway with a bucket for each client, with Weir, `DashMap` and `Mutex<HashMap>`, under load from wrk
    Gateway,
    /// The agent as Envoy's rate limit service, compared with envoyproxy/ratelimit and Redis
    Rls,
    /// The tests of the documents that Weir started from, through the agent with a policy in force
    Seeds,
    /// One limit of several processes, in Redis or Memcached: many agents, limiters in Python, rate limit services
    Shared,
}

impl Suite {
    /// Returns true if the suite needs no other programs.
    fn needs_no_programs(self) -> bool {
        !matches!(self, Self::Proxy | Self::Gateway | Self::Rls | Self::Seeds | Self::Shared)
    }
}

/// Runs the program `weir-bench`. Its exit code is 0 if everything was measured and written, and if a role that judges
/// found no fault.
pub fn run() -> ExitCode {
    let mut cli = Cli::parse();
    let done = match cli.role.take() {
        Some(role) => role.run(),
        None => measure_all(&cli).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Role {
    fn run(self) -> anyhow::Result<bool> {
        match self {
            #[cfg(feature = "fleet")]
            Self::Fleet(args) => args.run().map(|()| true),
            #[cfg(feature = "fleet")]
            Self::FleetLimits(args) => args.run().map(|()| true),
            Self::Soak(args) => args.run(),
            Self::RlsAnswers(args) => args.run(),
            Self::Gateway(args) => args.serve().map(|()| true),
            Self::Stack(args) => args.serve().map(|()| true),
            Self::Sharers(args) => args.run().map(|()| true),
        }
    }
}

/// How to start this program again in a role.
fn in_role(role: &str) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    command.arg(role);
    Ok(command)
}

fn measure_all(cli: &Cli) -> anyhow::Result<()> {
    let out = cli.out.clone().unwrap_or_else(|| default_out(cli.quick));
    if cli.redraw {
        return report::redraw(&out);
    }
    let chosen =
        |suite: &Suite| if cli.suites.is_empty() { suite.needs_no_programs() } else { cli.suites.contains(suite) };
    for suite in Suite::value_variants().iter().filter(|suite| chosen(suite)) {
        measure(*suite, cli, &out)?.write(&out)?;
    }
    Ok(())
}

fn measure(suite: Suite, cli: &Cli, out: &Path) -> anyhow::Result<Report> {
    let quick = cli.quick;
    match suite {
        Suite::Core => limits::measure(quick),
        Suite::Tower => layers::measure(quick),
        Suite::Burst => burst::measure(quick),
        Suite::Sla => sla::measure(quick),
        Suite::Strategies => strategies::measure(quick),
        Suite::Proxy => proxy::measure(quick),
        Suite::Gateway => gateway::measure(quick),
        Suite::Rls => rls::measure(quick),
        Suite::Seeds => seeds::measure(quick, &cli.seeds, out),
        Suite::Shared => shared::measure(quick, &cli.parts, out),
    }
}

fn default_out(quick: bool) -> PathBuf {
    root().join(if quick { "target/weir/benchmarks" } else { "docs/benchmarks" })
}

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("this package is in crates/")
}
