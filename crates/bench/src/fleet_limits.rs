//! Limits that the operator counts for all pods (scope Fleet): how exact they are, how much of the limit they use, and
//! what they cost, compared with limiters that need no store either.
//!
//! A run of some parts keeps what the folder has of the others.

mod client;
mod kind;
mod operator;
mod tables;
mod world;

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::ValueEnum;

use crate::report::{Measured, Report};

const ABOUT: &str = "\
One limit for all pods of a policy, which the leading operator counts ([scope Fleet](../design/fleet.md)). There is no \
store. Agents ask the operator over their channels, and take seats in advance.";

const METHOD: &str = "A figure is the median of the repetitions, ± half of the distance between their quartiles. The \
JSON file also has the lowest and the highest value.";

const NEEDS_CLUSTER: &str = "the part `kind` needs --kubeconfig with the kubeconfig of a kind cluster";

/// A part of the page. Its name is the start of its titles.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LimitsPart {
    /// The code of agents and operator in virtual time, compared with a central limiter, equal parts and gossip
    Simulated,
    /// A real operator that counts for up to 10,000 simulated agents
    Operator,
    /// Pods with agents on a kind cluster, with real requests
    Kind,
}

/// Measure limits that the operator counts for all pods.
#[derive(clap::Args)]
pub(crate) struct LimitsArgs {
    /// The parts to measure; by default all. What the folder has of the others stays
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<LimitsPart>,
    /// Run for a short time only: this tests the benchmark, and its figures are not meaningful
    #[arg(long)]
    quick: bool,
    /// The operator to measure
    #[arg(long, value_name = "PROGRAM")]
    operator: PathBuf,
    /// The kubeconfig of the kind cluster for the part `kind`. WEIR_KUBE_BIN must be the folder of kubectl and helm
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl LimitsArgs {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let has_cluster = self.kubeconfig.as_ref().is_some_and(|file| file.is_file());
        let needs_cluster = self.parts.is_empty() || self.parts.contains(&LimitsPart::Kind);
        ensure!(has_cluster || !needs_cluster, NEEDS_CLUSTER);
        let parts: [Measured<LimitsPart, &Self>; 3] = [
            (LimitsPart::Simulated, world::ABOUT, |args, part| world::measure(args.quick, part)),
            (LimitsPart::Operator, operator::ABOUT, |args, part| operator::measure(args.quick, &args.operator, part)),
            (LimitsPart::Kind, kind::ABOUT, |args, part| {
                kind::measure(args.quick, args.kubeconfig.as_deref().context(NEEDS_CLUSTER)?, part)
            }),
        ];
        let mut report = Report::new("fleet-limits", "Limits that the operator counts", ABOUT, self.quick)?;
        report.written_by("cargo xtask bench fleet-limits", METHOD);
        let out = crate::default_out(self.quick);
        report.measure_parts(&parts, &self.parts, &self, &out)?;
        report.write(&out)
    }
}
