//! Runs a scenario, round by round. In each round, the contenders are measured one after another.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, ensure};

use super::{
    Effort,
    contenders::{Contender, Proxy, contenders},
    exchange::Connection,
    lean::Lean,
    load::{self, Load, Wrk},
    process::Cpu,
    scenarios::{Client, Scenario},
    upstream::LARGE_BYTES,
};
use crate::{clock, stats::float, turns::order};

/// The key that the clients send if the scenario has only one key.
const KEY: &str = "0";
/// The number of connections that fill a table of keys.
const FILLERS: u64 = 8;
const FILL: u64 = 100;
/// The longest time for filling a table.
const FILL_TIME: Duration = Duration::from_secs(30);
/// The accepted share of admitted requests in a scenario in which all are refused, because nginx admits one request per
/// minute.
const LET_THROUGH: f64 = 0.001;

/// The settings that all scenarios share.
pub(super) struct Bench<'a> {
    pub(super) upstream: SocketAddr,
    pub(super) folder: &'a Path,
    pub(super) effort: Effort,
}

/// The figures of one contender in one round.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    /// The CPU time in user mode, in microseconds per request.
    pub(super) user: f64,
    pub(super) system: f64,
    pub(super) per_second: f64,
    /// The used share of the core, in percent.
    pub(super) busy: f64,
}

impl Sample {
    pub(super) fn cpu(&self) -> f64 {
        self.user + self.system
    }

    fn new(cpu: Cpu, load: &Load) -> Self {
        let requests = float(load.served + load.refused);
        let (user, system) = (cpu.user.as_secs_f64(), cpu.system.as_secs_f64());
        Self {
            user: user * 1e6 / requests,
            system: system * 1e6 / requests,
            per_second: requests / load.seconds,
            busy: (user + system) * 1e2 / load.seconds,
        }
    }
}

impl Bench<'_> {
    /// Runs a scenario. Returns the rounds of all contenders, in their order.
    pub(super) fn run(&self, scenario: Scenario) -> anyhow::Result<Vec<Vec<Sample>>> {
        let mut running = Vec::new();
        for contender in contenders() {
            let proxy = self.ready(*contender, scenario);
            let proxy = proxy.with_context(|| format!("{}, {}", scenario.name, contender.name()))?;
            running.push((proxy, Vec::new()));
        }
        let rounds = if scenario.aimed_at { self.effort.rounds_of_aims } else { self.effort.rounds };
        for round in 0..rounds {
            eprintln!("proxy: {}, round {} of {rounds}", scenario.name, round + 1);
            for place in order(round, running.len()) {
                let (proxy, samples) = &mut running[place];
                let sample = self.round(proxy, scenario, round);
                samples.push(sample.with_context(|| format!("{}, {}", scenario.name, contenders()[place].name()))?);
            }
        }
        Ok(running.into_iter().map(|(_, samples)| samples).collect())
    }

    /// Starts a contender, checks that it works as the scenario requires, and fills its table of keys.
    fn ready(&self, contender: Contender, scenario: Scenario) -> anyhow::Result<Proxy> {
        let proxy = contender.start(scenario, self.upstream, self.folder)?;
        let mut connection = Connection::open(proxy.http1)?;
        let path = scenario.path();
        let first = connection.get(&path, KEY)?;
        ensure!(first == 200, "the first request got the status {first}");
        let second = connection.get(&path, KEY)?;
        let expected = if scenario.refused { 429 } else { 200 };
        ensure!(second == expected, "the second request got {second}, not {expected}");
        if scenario.keys > 1 && self.effort.fill {
            let met = fill(&proxy, &path, scenario.keys)?;
            eprintln!("proxy: {} has got {met} of {} keys", contender.name(), scenario.keys);
        }
        Ok(proxy)
    }

    fn round(&self, proxy: &Proxy, scenario: Scenario, round: usize) -> anyhow::Result<Sample> {
        let before = proxy.process.cpu()?;
        let load = self.load(proxy, scenario, round)?;
        let cpu = proxy.process.cpu()? - before;
        check(scenario, &load)?;
        Ok(Sample::new(cpu, &load))
    }

    fn load(&self, proxy: &Proxy, scenario: Scenario, seed: usize) -> anyhow::Result<Load> {
        match scenario.client {
            Client::Wrk => self.wrk(proxy.http1, scenario, seed),
            Client::Lean { per_second } => {
                let (address, path) = (proxy.http1, &scenario.path());
                let (connections, length) = (scenario.connections, self.length(scenario));
                Lean { address, path, key: KEY, connections, length, per_second }.run()
            }
            Client::H2load => {
                let url = format!("http://{}{}", proxy.http2, scenario.path());
                load::http2(&url, scenario.connections, self.length(scenario), self.folder)
            }
        }
    }

    fn length(&self, scenario: Scenario) -> Duration {
        if scenario.aimed_at { self.effort.length_of_aims } else { self.effort.length }
    }

    pub(super) fn wrk(&self, address: SocketAddr, scenario: Scenario, seed: usize) -> anyhow::Result<Load> {
        let wrk = Wrk {
            url: &format!("http://{address}{}", scenario.path()),
            threads: 1,
            connections: scenario.connections,
            length: self.length(scenario),
            header: "x-key",
            prefix: "",
            keys: scenario.keys,
            hang: 0,
            seed,
            folder: self.folder,
        };
        wrk.run()
    }
}

/// Checks that the responses are as the scenario requires.
fn check(scenario: Scenario, load: &Load) -> anyhow::Result<()> {
    ensure!(load.failed == 0, "{} requests were not answered", load.failed);
    ensure!(load.served + load.refused > 0, "no request was answered");
    if scenario.refused {
        let most = (float(load.refused) * LET_THROUGH).max(1.0);
        ensure!(float(load.served) <= most, "{} of {} requests were admitted", load.served, load.served + load.refused);
    } else {
        ensure!(load.refused == 0, "{} of {} requests were refused", load.refused, load.served + load.refused);
    }
    if scenario.large {
        ensure!(load.bytes >= load.served * LARGE_BYTES, "bodies were incomplete: {} bytes in total", load.bytes);
    }
    Ok(())
}

/// Sends one request with each key, until the time is over. Returns the number of keys.
fn fill(proxy: &Proxy, path: &str, keys: u64) -> anyhow::Result<u64> {
    let address = proxy.http1;
    let end = clock::now() + FILL_TIME;
    std::thread::scope(|scope| {
        let fillers: Vec<_> = (0..FILLERS)
            .map(|filler| {
                scope.spawn(move || {
                    let mut connection = Connection::open(address)?;
                    let mut met = 0;
                    for batch in (filler * FILL..keys).step_by(usize::try_from(FILLERS * FILL).expect("small")) {
                        let statuses = connection.get_all(path, batch..keys.min(batch + FILL))?;
                        ensure!(statuses.iter().all(|status| *status == 200), "keys from {batch} on got {statuses:?}");
                        met += statuses.len() as u64;
                        if clock::now() >= end {
                            break;
                        }
                    }
                    Ok(met)
                })
            })
            .collect();
        fillers.into_iter().map(|filler| filler.join().ok().context("a filler panicked")?).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::scenarios::{PROXIED, REFUSED, SCENARIOS},
        *,
    };

    const SERVED: Load =
        Load { served: 2_000, refused: 0, failed: 0, seconds: 2.0, bytes: 20_000, p50: 0.0, p95: 0.0, p99: 0.0 };
    const TURNED_AWAY: Load = Load { served: 1, refused: 1_999, ..SERVED };

    #[test]
    fn a_load_counts_only_if_all_of_it_met_the_scenario() {
        assert!(check(PROXIED, &SERVED).is_ok());
        assert!(check(PROXIED, &TURNED_AWAY).is_err());
        assert!(check(PROXIED, &Load { failed: 1, ..SERVED }).is_err());
        assert!(check(PROXIED, &Load { served: 0, ..SERVED }).is_err());
        assert!(check(REFUSED, &TURNED_AWAY).is_ok());
        assert!(check(REFUSED, &SERVED).is_err());
        assert!(check(REFUSED, &Load { served: 3, ..TURNED_AWAY }).is_err());
        let large = SCENARIOS.into_iter().find(|scenario| scenario.large).expect("a scenario with large bodies");
        assert!(check(large, &SERVED).is_err());
        assert!(check(large, &Load { bytes: 2_000 * LARGE_BYTES, ..SERVED }).is_ok());
    }

    #[test]
    fn a_sample_is_of_one_request() {
        let cpu = Cpu { user: Duration::from_millis(4), system: Duration::from_millis(16) };
        let sample = Sample::new(cpu, &SERVED);
        assert!((sample.user - 2.0).abs() < 1e-9 && (sample.system - 8.0).abs() < 1e-9);
        assert!((sample.cpu() - 10.0).abs() < 1e-9 && (sample.per_second - 1_000.0).abs() < 1e-9);
        assert!((sample.busy - 1.0).abs() < 1e-9);
    }
}
