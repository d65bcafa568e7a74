//! The agent with a policy in force.

use std::{net::SocketAddr, path::Path};

use serde_json::Value;

use crate::proxy::{Addresses, Cores, Process, agent_command, free_address, put_snapshot, snapshot_of};

pub(super) const WEIR: &str = "weir-agent";

/// A running agent, with as many threads as the machine has cores. It is stopped when this value is dropped.
pub(super) struct Agent {
    pub(super) process: Process,
    pub(super) listen: SocketAddr,
}

impl Agent {
    /// Starts it with these rules. `flags` are more flags than those of its addresses.
    pub(super) fn start(
        upstream: SocketAddr,
        flags: &[(&str, &str)],
        policy: &Policy,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let at = Addresses { listen: free_address()?, control: free_address()?, telemetry: free_address()? };
        let command = agent_command(upstream, &at, flags)?;
        let process = Process::start(WEIR, &command, Cores::All, &folder.join("weir-agent.log"), at.listen)?;
        put_snapshot(at.control, &policy.snapshot())?;
        Ok(Self { process, listen: at.listen })
    }
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
