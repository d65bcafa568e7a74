//! Measures the latency that a proxy adds: on one connection that sends requests one after another, and on many
//! connections at a constant rate well below the capacity of every contender.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, ensure};

use super::{
    contenders::{Proxy, contenders},
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
    pub(super) added: Vec<Result<Added, String>>,
}

pub(super) fn measure(bench: &Bench<'_>) -> anyhow::Result<Latencies> {
    let proxies: Vec<_> = contenders()
        .iter()
        .copied()
        .map(|contender| contender.start(PROXIED, bench.upstream, bench.folder).map_err(|error| format!("{error:#}")))
        .collect();
    let mut added: Vec<_> =
        proxies.iter().map(|proxy| proxy.as_ref().map(|_| Added::default()).map_err(Clone::clone)).collect();
    let mut direct = Added::default();
    for round in 0..bench.effort.rounds {
        eprintln!("proxy: latency, round {} of {}", round + 1, bench.effort.rounds);
        let [alone, steady] = once(bench, bench.upstream).context("the app without a proxy")?;
        direct.alone.push(alone);
        direct.steady.push(steady);
        for (proxy, added) in proxies.iter().zip(&mut added) {
            let (Ok(Proxy { http1, .. }), Ok(rounds)) = (proxy, &mut *added) else { continue };
            match once(bench, *http1) {
                Ok([with, steadily]) => {
                    rounds.alone.push([with[0] - alone[0], with[1] - alone[1]]);
                    rounds.steady.push([steadily[0] - steady[0], steadily[1] - steady[1]]);
                }
                Err(error) => *added = Err(format!("{error:#}")),
            }
        }
    }
    Ok(Latencies { direct, added })
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
