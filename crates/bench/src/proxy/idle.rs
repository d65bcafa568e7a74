//! Measures an idle proxy: the time to start, the memory after the start and after a load, and the memory per
//! keep-alive connection.

use anyhow::Context as _;

use super::{
    contenders::{Contender, contenders},
    exchange::Connection,
    rounds::Bench,
    scenarios::PROXIED,
};
use crate::stats::float;

/// The figures of one contender.
pub(super) struct Idle {
    /// The duration of every start in milliseconds.
    pub(super) starts: Vec<f64>,
    /// The resident memory after the start, in bytes.
    pub(super) fresh: f64,
    pub(super) after_load: f64,
    pub(super) per_connection: f64,
}

/// Measures all contenders, in their order.
pub(super) fn measure(bench: &Bench<'_>) -> anyhow::Result<Vec<Idle>> {
    let idle = |contender: &Contender| {
        eprintln!("proxy: {} when idle", contender.name());
        one(bench, *contender).with_context(|| format!("{} when idle", contender.name()))
    };
    contenders().iter().map(idle).collect()
}

fn one(bench: &Bench<'_>, contender: Contender) -> anyhow::Result<Idle> {
    let start = || contender.start(PROXIED, bench.upstream, bench.folder);
    let mut starts = Vec::new();
    for _ in 1..bench.effort.starts {
        starts.push(start()?.process.listening_after.as_secs_f64() * 1e3);
    }
    let proxy = start()?;
    starts.push(proxy.process.listening_after.as_secs_f64() * 1e3);
    let fresh = proxy.process.resident()?;
    bench.wrk(proxy.http1, PROXIED, 0)?;
    let after_load = proxy.process.resident()?;
    let mut connections = Vec::new();
    for _ in 0..bench.effort.idle_connections {
        let mut connection = Connection::open(proxy.http1)?;
        let status = connection.get(&PROXIED.path(), "0")?;
        anyhow::ensure!(status == 200, "a request got the status {status}");
        connections.push(connection);
    }
    let with_connections = proxy.process.resident()?;
    // Closed connections take no memory, so this checks that some connections are still open.
    for connection in connections.iter_mut().step_by(100) {
        connection.get(&PROXIED.path(), "0")?;
    }
    Ok(Idle {
        starts,
        fresh: float(fresh),
        after_load: float(after_load),
        per_connection: float(with_connections.saturating_sub(after_load)) / float(connections.len()),
    })
}
