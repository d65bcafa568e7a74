//! Where limiters count: each process in its memory, or all processes of a contender in one store.

use std::{net::SocketAddr, path::Path, process::Command};

use serde_json::{Value, json};

use crate::{
    proxy::{Cores, Process, free_address},
    redis,
    seeds::agent::{redis_store, share, store},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Redis(SocketAddr),
    Memcached(SocketAddr),
}

/// The processes of a contender, each with an app, and where they count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counting {
    pub(super) processes: usize,
    pub(super) store: Store,
}

impl Counting {
    /// One process, which counts alone.
    pub(super) fn in_memory() -> Self {
        Self { processes: 1, store: Store::Memory }
    }

    /// As the app knows it.
    pub(super) fn url(&self) -> String {
        match self.store {
            Store::Memory => "memory://".to_owned(),
            Store::Redis(address) => format!("redis://{address}"),
            Store::Memcached(address) => format!("memcached://{address}"),
        }
    }

    /// The stores of the agent's policy.
    pub(super) fn stores(&self) -> Vec<Value> {
        match self.store {
            Store::Memory => Vec::new(),
            Store::Redis(address) => vec![redis_store(address)],
            Store::Memcached(address) => vec![store(&json!({ "memcached": { "servers": [address.to_string()] } }))],
        }
    }

    /// Gives a rule of the agent scope Shared, if the contender has a store.
    pub(super) fn share(&self, rule: &mut Value) {
        if self.store != Store::Memory && rule["action"] == "Limit" {
            share(rule, self.processes);
        }
    }
}

/// Starts a Redis on the core of the limiters.
pub(super) fn start_redis(folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    redis::start(folder, Cores::Own)
}

/// Starts a Memcached on the core of the limiters.
pub(super) fn start_memcached(folder: &Path) -> anyhow::Result<(Process, SocketAddr)> {
    let address = free_address()?;
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut command = Command::new("memcached");
    command.args(["-l", &host, "-p", &port, "-U", "0", "-u", "nobody", "-m", "256", "-c", "4096"]);
    let log = folder.join(format!("memcached-{port}.log"));
    let process = Process::start("memcached", &command, Cores::Own, &log, address)?;
    Ok((process, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_limits_of_several_processes_are_shared() {
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let shared = Counting { processes: 2, store: Store::Redis(address) };
        let rule = |counting: Counting, action: &str| {
            let mut rule = json!({ "name": "one", "action": action });
            counting.share(&mut rule);
            rule
        };
        assert_eq!(rule(shared, "Limit")["shared"]["counters"], "bench/bench.one");
        assert!(rule(shared, "Bypass").get("shared").is_none());
        assert!(rule(Counting::in_memory(), "Limit").get("shared").is_none());
        assert!(Counting::in_memory().stores().is_empty());
    }
}
