//! Measures the latency that a proxy adds: on one connection that sends requests one after another, and on many
//! connections at a constant rate well below the capacity of every contender.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};

use super::{
    contenders::{Contender, contenders},
    load::{self, Load},
    rounds::Bench,
    scenarios::{ONE_CONNECTION, PROXIED},
};

/// The rate in requests per second: half the capacity of the slowest contender.
pub(super) const RATE: usize = 6_400;
const LENGTH: Duration = Duration::from_secs(1);

/// P50 and P99 of each round in microseconds, minus those of the app without a proxy in the same round.
#[derive(Clone, Default)]
pub(super) struct Added {
    pub(super) alone: Vec<[f64; 2]>,
    pub(super) steady: Vec<[f64; 2]>,
}

/// The figures of the app alone, and the added latencies of all contenders in their order.
pub(super) struct Latencies {
    pub(super) direct: Added,
    pub(super) added: Vec<Added>,
}

pub(super) fn measure(bench: &Bench<'_>) -> anyhow::Result<Latencies> {
    let start = |contender: &Contender| contender.start(PROXIED, bench.upstream, bench.folder);
    let proxies = contenders().iter().map(start).collect::<anyhow::Result<Vec<_>>>()?;
    let mut all = Latencies { direct: Added::default(), added: vec![Added::default(); proxies.len()] };
    for round in 0..bench.effort.rounds {
        eprintln!("proxy: latency, round {} of {}", round + 1, bench.effort.rounds);
        let [alone, steady] = once(bench, bench.upstream).context("the app without a proxy")?;
        all.direct.alone.push(alone);
        all.direct.steady.push(steady);
        for ((proxy, added), contender) in proxies.iter().zip(&mut all.added).zip(contenders()) {
            let [with, steadily] = once(bench, proxy.http1).with_context(|| contender.name())?;
            added.alone.push([with[0] - alone[0], with[1] - alone[1]]);
            added.steady.push([steadily[0] - steady[0], steadily[1] - steady[1]]);
        }
    }
    Ok(all)
}

fn once(bench: &Bench<'_>, address: SocketAddr) -> anyhow::Result<[[f64; 2]; 2]> {
    let alone = bench.wrk(address, ONE_CONNECTION, 0)?;
    let url = format!("http://{address}{}", PROXIED.path());
    let steady = load::steady(&url, PROXIED.connections, RATE, LENGTH, bench.folder)?;
    Ok([quantiles(&alone)?, quantiles(&steady)?])
}

fn quantiles(load: &Load) -> anyhow::Result<[f64; 2]> {
    ensure!(load.failed == 0 && load.refused == 0, "{} failed, {} refused", load.failed, load.refused);
    ensure!(load.p50 > 0.0, "no latency was reported");
    Ok([load.p50, load.p99])
}
