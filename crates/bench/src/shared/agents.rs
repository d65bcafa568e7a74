//! 10, 100 and 1,000 agents that share one limit in one Redis.

mod run;
mod sharers;
mod tables;
mod trips;

use anyhow::Context as _;

pub(crate) use self::sharers::SharersArgs;
use self::{
    run::{Sample, run},
    sharers::Decides,
};
use super::oracle::SharedLimit;
use crate::{proxy::more_files, report::Part};

pub(super) const ABOUT: &str = "\
10, 100 and 1,000 agents share one limit in one Redis. 1,000 processes do not fit on this machine, so the agents of \
these tables are clients of the library that the agent uses (`weir-store`), spread over four processes, each with a \
connection of its own to a real Redis. *One trip per request*: the same processes and connections, with a script for \
each request that increments a counter and lets it expire. All agents together send requests at a constant rate, each \
request to any of them, so the more agents there are, the fewer requests each has. *Far below the limit*: 10,000 \
requests a second on a limit of a million. *0.8 of the limit*: 4,000 on a limit of 5,000 a second. *Three times the \
limit*: 15,000 on that limit. With *1,000 keys*, each key has a thousandth of the limit, in periods of two seconds. \
Limits are buckets that hold what they earn in a period. A *trip* is a script in `INFO commandstats`, and CPU is that \
of `INFO cpu`; both include what agents give back in the seconds after the load. *Seats lost* is the part of the \
charged seats that no request used. An agent takes the seats of about 100 ms in advance, and those that it does not \
use in this time are lost: of 10 seats, 1.3 on average, because requests come at random moments. Below the \
limit, a lost seat causes no refusal. *Excess* is the most by which the admissions of all agents exceed the limit \
between any two moments, in whole numbers. *Limit used* is the number of admitted requests, as a part of the most that \
limit and load allow.";

/// The numbers of agents.
const AGENTS: [usize; 3] = [10, 100, 1_000];

/// The load that all agents get together.
struct Load {
    name: &'static str,
    keys: u32,
    /// Of each key.
    limit: SharedLimit,
    /// Requests a second of all agents.
    rate: u64,
}

const FAR: SharedLimit = SharedLimit { requests: 1_000_000, millis: 1_000 };
const HOT: SharedLimit = SharedLimit { requests: 5_000, millis: 1_000 };
const EACH: SharedLimit = SharedLimit { requests: 10, millis: 2_000 };
const KEYS: u32 = 1_000;

const LOADS: [Load; 6] = [
    Load { name: "one key, far below the limit", keys: 1, limit: FAR, rate: 10_000 },
    Load { name: "one key, 0.8 of the limit", keys: 1, limit: HOT, rate: 4_000 },
    Load { name: "one key, three times the limit", keys: 1, limit: HOT, rate: 15_000 },
    Load { name: "1,000 keys, far below the limit", keys: KEYS, limit: FAR, rate: 10_000 },
    Load { name: "1,000 keys, 0.8 of the limit", keys: KEYS, limit: EACH, rate: 4_000 },
    Load { name: "1,000 keys, three times the limit", keys: KEYS, limit: EACH, rate: 15_000 },
];

const CONTENDERS: [(&str, Decides); 2] = [("weir-store", Decides::Weir), ("one trip per request", Decides::Trip)];

/// The samples, by load, number of agents and contender.
type Found = Vec<Vec<Vec<Vec<Sample>>>>;

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    more_files()?;
    let (rounds, seconds) = if quick { (1, 1) } else { (2, 3) };
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let mut found: Found =
        LOADS.iter().map(|_| AGENTS.iter().map(|_| vec![Vec::new(); CONTENDERS.len()]).collect()).collect();
    for round in 0..rounds {
        for (load, found) in LOADS.iter().zip(&mut found) {
            for (agents, found) in AGENTS.iter().zip(found) {
                for turn in 0..CONTENDERS.len() {
                    let place = (turn + round) % CONTENDERS.len();
                    let (name, decides) = CONTENDERS[place];
                    eprintln!("shared: {}, {agents} agents, {name}, round {} of {rounds}", load.name, round + 1);
                    let sample = run(load, *agents, decides, seconds, folder.path());
                    found[place].push(sample.with_context(|| format!("{name}, {}", load.name))?);
                }
            }
        }
    }
    tables::write(&found, part);
    Ok(())
}
