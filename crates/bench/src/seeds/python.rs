//! Seed 004: limiters in Python before the same app as the agent: traffik and slowapi, in memory.
//!
//! The app and its limiter get the same processors as the app and the agent.

mod clients;
mod contenders;
mod counting;
mod messages;
mod overhead;
mod plan;
mod rounds;
mod speed;
mod stores;
mod strategies;
mod tables;

use std::time::Duration;

use anyhow::Context as _;

pub(crate) use self::stores::{ABOUT as ABOUT_STORES, measure as measure_stores};
use crate::{
    proxy::{make_room, on_a_thread},
    report::Part,
};

pub(super) const ABOUT: &str = "\
Limiters in Python, in memory. The app is one of FastAPI, served by one process of uvicorn with uvloop and httptools. It \
runs alone, with traffik or slowapi, each as a dependency or decorator of an endpoint and as a middleware, or behind the \
agent. *Two cores*: app and limiter may use both cores, and the clients one of them. *One core*: app and limiter share a \
core, as in a pod with one processor, and the clients have the other; the tables without a number of cores are of this \
kind. The clients are our own (crates/bench/src/seeds/python): they send a list of requests over kept-alive connections, \
each of which sends its next request as soon as it has an answer, and repeat the list with new keys. So every list begins \
with empty counters, and shows whether it was admitted exactly. The limiters count by the header `x-key`, in windows of a \
day unless the text says otherwise. All contenders get their routes and limits from one plan.

The last row of a table compares the app without a limiter with the best peer. Where all requests are served, it shows \
about how far a limiter can be ahead. The agent is a process of its own: a request that it admits passes two more \
sockets, which costs about as much time as a limiter within a Python app. A request that it refuses never reaches Python. \
So the agent is ahead by a factor where requests are refused, and by some percent, or not at all, where all are served. \
With two cores, three processes share them: the clients, the agent and the app.";

#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    length: Duration,
}

const FULL: Effort = Effort { rounds: 5, length: Duration::from_millis(250) };
const QUICK: Effort = Effort { rounds: 1, length: Duration::from_millis(50) };

pub(super) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    on_a_thread(|| measure_on_two_cores(quick, part))
}

fn measure_on_two_cores(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    let Effort { rounds, length } = if quick { QUICK } else { FULL };
    make_room()?;
    let folder = tempfile::tempdir().context("make a folder for the apps")?;
    let folder = folder.path();
    part.report.add_versions(contenders::versions());
    let wrong = speed::measure(rounds, length, folder, part)? + messages::measure(rounds, length, folder, part)?;
    part.aim("every list of every scenario was admitted exactly", format!("{wrong} were not"), wrong == 0);
    strategies::measure(rounds.min(3), length, folder, part)?;
    overhead::measure(rounds, length, folder, part)
}
