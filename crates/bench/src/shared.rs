//! One limit of several processes, in Redis or Memcached: how many trips and how much of the store's time a request
//! takes, and what Weir's peers need for the same.
//!
//! Each part has its own peers in the same run. A run of some parts keeps what the folder has of the others.

mod agents;
pub(crate) mod oracle;

use std::path::Path;

use clap::ValueEnum;

use crate::{
    report::{Part, Report},
    rls, seeds,
};

pub(crate) use self::agents::SharersArgs;

const ABOUT: &str = "\
One limit of several processes, in one Redis or Memcached. All contenders of a table are measured in the same run. \
koa-ratelimit and an optimistic counter, with a Redis that is near and one that is far away, are seed 003 of \
[the seeds](seeds.md).";

/// A part of the page.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharedPart {
    /// 10, 100 and 1,000 agents on one Redis
    Agents,
    /// Limiters in Python on Redis and Memcached, with one and two processes
    Python,
    /// Rate limit services with two replicas each
    Services,
}

impl SharedPart {
    /// The name of the part, which is the start of its titles.
    fn name(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Python => "python",
            Self::Services => "services",
        }
    }

    /// Describes what the part measures, and how.
    fn about(self) -> &'static str {
        match self {
            Self::Agents => agents::ABOUT,
            Self::Python => seeds::ABOUT_PYTHON,
            Self::Services => rls::ABOUT_REPLICAS,
        }
    }

    fn measure(self, quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
        match self {
            Self::Agents => agents::measure(quick, part),
            Self::Python => seeds::measure_python(quick, part),
            Self::Services => rls::measure_replicas(quick, part),
        }
    }
}

/// Measures these parts, or all if none is named.
pub(crate) fn measure(quick: bool, named: &[SharedPart], out: &Path) -> anyhow::Result<Report> {
    let all = SharedPart::value_variants();
    let chosen = |part: &SharedPart| named.is_empty() || named.contains(part);
    let abouts = all.iter().map(|part| format!("**{}.** {}", part.name(), part.about()));
    let about: Vec<_> = std::iter::once(ABOUT.to_owned()).chain(abouts).collect();
    let mut report = Report::new("shared", "One limit of several processes", about.join("\n\n"), quick)?;
    for part in all.iter().filter(|part| chosen(part)) {
        part.measure(quick, &mut Part { report: &mut report, name: part.name() })?;
    }
    let kept: Vec<_> = all.iter().filter(|part| !chosen(part)).map(|part| part.name()).collect();
    report.keep(out, &kept)?;
    Ok(report)
}
