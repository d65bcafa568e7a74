//! The tests of the documents that Weir started from, each with its own peers in the same run. Weir is the agent with a
//! policy in force, as users run it.
//!
//! Each seed is a part of the report. A run of some parts keeps what the folder has of the others.

mod agent;
mod clients;
mod crowd;
mod gateways;
mod koa;
mod levels;
mod python;

use std::path::Path;

use clap::ValueEnum;

use crate::report::{Part, Report};

pub(crate) use self::{
    crowd::StackArgs,
    python::{ABOUT_STORES as ABOUT_PYTHON, measure_stores as measure_python},
};

const ABOUT: &str = "\
The tests of the documents that Weir started from, each with its own peers in the same run. Weir is the agent, built \
as in its image, with a policy in force that a snapshot brought. Each document has a number, with which the titles \
begin.";

/// One of the documents.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Seed {
    /// 50,000 requests at the same time with a capacity of 10,000, and 1,000 clients on one limit
    #[value(name = "000")]
    Crowd,
    /// A service of ten slots behind limits, from 25 to 600 requests a second
    #[value(name = "001")]
    Levels,
    /// A gateway with a bucket for each client address
    #[value(name = "002")]
    Gateways,
    /// Limiters in Node.js with one limit in Redis, near and far away
    #[value(name = "003")]
    Koa,
    /// Limiters in Python before the same app as the agent
    #[value(name = "004")]
    Python,
}

impl Seed {
    /// Its number, with which its part of the report begins.
    fn number(self) -> &'static str {
        match self {
            Self::Crowd => "000",
            Self::Levels => "001",
            Self::Gateways => "002",
            Self::Koa => "003",
            Self::Python => "004",
        }
    }

    /// What it measures, and how.
    fn about(self) -> &'static str {
        match self {
            Self::Crowd => crowd::ABOUT,
            Self::Levels => levels::ABOUT,
            Self::Gateways => gateways::ABOUT,
            Self::Koa => koa::ABOUT,
            Self::Python => python::ABOUT,
        }
    }

    fn measure(self, quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
        match self {
            Self::Crowd => crowd::measure(quick, part),
            Self::Levels => levels::measure(quick, part),
            Self::Gateways => gateways::measure(quick, part),
            Self::Koa => koa::measure(quick, part),
            Self::Python => python::measure(quick, part),
        }
    }
}

/// Measures these seeds, or all if none is named.
pub(crate) fn measure(quick: bool, named: &[Seed], out: &Path) -> anyhow::Result<Report> {
    let all = Seed::value_variants();
    let chosen = |seed: &Seed| named.is_empty() || named.contains(seed);
    let abouts = all.iter().map(|seed| format!("**{}.** {}", seed.number(), seed.about()));
    let about: Vec<_> = std::iter::once(ABOUT.to_owned()).chain(abouts).collect();
    let mut report = Report::new("seeds", "The seeds through the agent", about.join("\n\n"), quick)?;
    for seed in all.iter().filter(|seed| chosen(seed)) {
        seed.measure(quick, &mut Part { report: &mut report, name: seed.number() })?;
    }
    let kept: Vec<_> = all.iter().filter(|seed| !chosen(seed)).map(|seed| seed.number()).collect();
    report.keep(out, &kept)?;
    Ok(report)
}
