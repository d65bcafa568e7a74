//! The agent with a policy in force.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};

use crate::proxy::{Addresses, Cores, Process, agent_command, put_snapshot, snapshot_of};

pub(super) const WEIR: &str = "weir-agent";
/// The store's name in rules.
const STORE: &str = "bench/limits";

/// Starts an agent with these rules, and with as many threads as the machine has cores. `flags` are added to the flags
/// for the addresses. Returns the address of the proxy, too.
pub(super) fn start_agent(
    upstream: SocketAddr,
    flags: &[&str],
    policy: &Policy,
    folder: &Path,
) -> anyhow::Result<(Process, SocketAddr)> {
    let at = Addresses::free()?;
    let mut command = agent_command(upstream, &at)?;
    let log = folder.join("weir-agent.log");
    let process = Process::start(WEIR, command.args(flags), Cores::All, &log, at.listen)?;
    put_snapshot(at.control, &policy.snapshot())?;
    Ok((process, at.listen))
}

/// A policy as the operator sends it.
#[derive(Default)]
pub(super) struct Policy {
    pub(super) rules: Vec<Value>,
    pub(super) deadline_millis: Option<u64>,
    /// The stores that the rules name.
    pub(super) stores: Vec<Value>,
}

impl Policy {
    fn snapshot(&self) -> Value {
        let mut snapshot = snapshot_of("bench", 1, self.rules.iter().cloned());
        if let Some(deadline) = self.deadline_millis {
            snapshot["policies"][0]["deadlineMillis"] = deadline.into();
        }
        snapshot["stores"] = self.stores.clone().into();
        snapshot
    }
}

pub(crate) fn redis_store(address: SocketAddr) -> Value {
    store(&json!({ "redis": { "topology": "Standalone", "endpoints": [address.to_string()] } }))
}

pub(super) fn store(backend: &Value) -> Value {
    json!({ "name": STORE, "backend": backend })
}

/// Gives a rule scope Shared, with the default for a lost store.
pub(crate) fn share(rule: &mut Value, sharers: usize) {
    let name = rule["name"].as_str().unwrap_or_default();
    rule["shared"] = json!({
        "store": STORE,
        "counters": format!("bench/bench.{name}"),
        "stamp": 1,
        "onStoreLoss": "LocalShare",
        "sharers": sharers,
    });
}
