//! Seed 003: one limit in Redis. Limiters in Node.js before the same app as the agent, with a Redis that is near and one
//! that is far away.

mod contenders;
mod delayed;
mod loads;
mod oracle;
mod tables;

use std::time::Duration;

use anyhow::Context as _;

use self::{
    contenders::{Contender, Running},
    loads::{LOADS, Sample},
};
use crate::{proxy::more_files, redis::round_trip, report::Part, rounds::Rounds};

pub(super) const ABOUT: &str = "\
One limit in Redis. The app is Koa on Node.js, as in the document. It runs alone, with `koa-ratelimit` (a trip to \
Redis for each request), or with an optimistic counter: a program of ours that counts in the process and synchronizes \
every two seconds, as the document's limiter does. Before the app alone, there is *weir-agent*, without a policy, with \
a policy of scope Pod, and with one of scope Shared. Scope Pod makes no trips, so it shows how fast the agent can be \
on this machine. Each contender has a Redis of its own, and each round trip to it takes 0.1 ms (the loopback device) \
or 67 ms (a TCP proxy of ours delays each direction). *Refused* and *admitted* are the document's load, `wrk -t12 \
-c1200`, with one key: on a limit of 1,000 an hour, which refuses nearly all requests, and on a limit that admits all \
of them. For *refused by two processes*, *three times the limit* and *0.8 of the limit*, each limiter runs in two \
processes with an app each, and half of the requests go to each. *Three times* and *0.8* are open-loop loads on a \
limit of 1,000 requests a second with bursts of 2,000: a request does not wait for the last one. Every app records \
when an admitted request arrives. At each of these times, the limit is compared with the number of admissions until \
then: what is more is the *excess*. Limits of the agent and of the optimistic counter are buckets, and `koa-ratelimit` \
has a log of the admitted requests. A *trip* is a script or a transaction in `INFO commandstats`; the CPU time of \
Redis is that of `INFO cpu`, per request. Clients, limiters, apps and Redis share all cores.";

/// A limit of one key.
#[derive(Clone, Copy, Debug)]
struct Limit {
    /// The requests that it applies to.
    path: &'static str,
    /// The maximum number of requests in a period, and in flight.
    requests: u64,
    millis: u64,
}

/// The document's limit.
const SMALL: Limit = Limit { path: "/small", requests: 1_000, millis: 3_600_000 };
/// A limit that no contender can reach.
const LARGE: Limit = Limit { path: "/large", requests: 10_000_000, millis: 3_600_000 };
/// A limit of many requests a second.
const RATE: Limit = Limit { path: "/rate", requests: 2_000, millis: 2_000 };

impl Limit {
    /// The most that a bucket admits within this time, in microseconds, if it is full at first.
    fn most(self, micros: u64) -> u64 {
        let earned = u128::from(self.requests) * u128::from(micros) / (u128::from(self.millis) * 1_000);
        self.requests.saturating_add(u64::try_from(earned).unwrap_or(u64::MAX))
    }

    fn per_second(self) -> u64 {
        self.requests * 1_000 / self.millis
    }
}

/// Where Redis is: the title, and the delay in each direction.
const DISTANCES: [(&str, Duration); 2] = [("Redis at 0.1 ms", Duration::ZERO), (FAR, Duration::from_micros(33_450))];
const FAR: &str = "Redis at 67 ms";

/// What was measured at one distance.
struct Results {
    distance: &'static str,
    /// The measured round trip, in milliseconds.
    round_trip: f64,
    /// By load.
    rounds: Rounds<Sample>,
}

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    more_files()?;
    let rounds = if quick { 1 } else { 3 };
    let folder = tempfile::tempdir().context("make a folder for logs")?;
    let mut distances = Vec::new();
    for (distance, delay) in DISTANCES {
        let start = |contender: Contender| Running::start(contender, delay, folder.path());
        let running = Contender::ALL.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let store = running.first().context("there is no contender")?.store;
        let mut rounds = Rounds::new(Contender::ALL.map(Contender::name));
        for load in &LOADS {
            rounds.add(load.name);
        }
        distances.push((running, Results { distance, round_trip: round_trip(store)?, rounds }));
    }
    for round in 0..rounds {
        for (running, results) in &mut distances {
            for (case, load) in LOADS.iter().enumerate() {
                eprintln!("seeds: 003, {}, {}, round {} of {rounds}", results.distance, load.name, round + 1);
                results.rounds.take_turns(case, round, |place| {
                    let contender = &running[place];
                    let takes_part = load.kind.takes_part(contender.contender);
                    takes_part.then(|| load.run(contender, quick, folder.path())).transpose()
                })?;
            }
        }
    }
    part.versions(contenders::versions()?);
    let results: Vec<_> = distances.into_iter().map(|(_, results)| results).collect();
    tables::write(&results, part);
    Ok(())
}
