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

#[cfg(feature = "fleet")]
pub(crate) use self::clients::OpenLoopClient;
pub(crate) use self::{
    agent::{redis_store, share},
    crowd::StackArgs,
    python::{ABOUT_STORES as ABOUT_PYTHON, measure_stores as measure_python},
};
use crate::report::{Measured, Report};

const ABOUT: &str = "\
The tests of the documents that Weir started from, each with its own peers in the same run. Weir is the agent, built \
as in its image, with a policy in force that a snapshot brought. Each document has a number, with which the titles \
begin.";

/// One of the documents. Its number is the start of the titles of its part.
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

const PARTS: [Measured<Seed, bool>; 5] = [
    (Seed::Crowd, crowd::ABOUT, crowd::measure),
    (Seed::Levels, levels::ABOUT, levels::measure),
    (Seed::Gateways, gateways::ABOUT, gateways::measure),
    (Seed::Koa, koa::ABOUT, koa::measure),
    (Seed::Python, python::ABOUT, python::measure),
];

/// Measures these seeds, or all if none is named.
pub(crate) fn measure(quick: bool, named: &[Seed], out: &Path) -> anyhow::Result<Report> {
    let mut report = Report::new("seeds", "The seeds through the agent", ABOUT, quick)?;
    report.measure_parts(&PARTS, named, quick, out)?;
    Ok(report)
}
