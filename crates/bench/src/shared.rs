//! One limit of several processes, in Redis or Memcached: how many round trips and how much of the store's time a
//! request takes, and what Weir's peers need for the same.
//!
//! Each part has its own peers in the same run. A run of some parts keeps what the folder has of the others.

mod agents;
pub(crate) mod oracle;

use std::path::Path;

use clap::ValueEnum;

pub(crate) use self::agents::SharersArgs;
use crate::{
    report::{Measured, Report},
    rls, seeds,
};

const ABOUT: &str = "\
One limit of several processes, in one Redis or Memcached. All contenders of a table are measured in the same run. \
koa-ratelimit and an optimistic counter, with a Redis that is near and one that is far away, are seed 003 of \
[the seeds](seeds.md).";

/// A part of the page. Its name is the start of its titles.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharedPart {
    /// 10, 100 and 1,000 agents on one Redis
    Agents,
    /// Limiters in Python on Redis and Memcached, with one and two processes
    Python,
    /// Rate limit services with two replicas each
    Services,
}

const PARTS: [Measured<SharedPart, bool>; 3] = [
    (SharedPart::Agents, agents::ABOUT, agents::measure),
    (SharedPart::Python, seeds::ABOUT_PYTHON, seeds::measure_python),
    (SharedPart::Services, rls::ABOUT_REPLICAS, rls::measure_replicas),
];

/// Measures these parts, or all if none is named.
pub(crate) fn measure(quick: bool, named: &[SharedPart], out: &Path) -> anyhow::Result<Report> {
    let mut report = Report::new("shared", "One limit of several processes", ABOUT, quick)?;
    report.measure_parts(&PARTS, named, quick, out)?;
    Ok(report)
}
