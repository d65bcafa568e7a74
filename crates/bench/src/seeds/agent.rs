//! The agent with a policy in force.

use std::{net::SocketAddr, path::Path};

use serde_json::{Value, json};

use crate::proxy::{Addresses, Cores, Process, agent_command, free_address, put_snapshot};

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
        let mut policy = json!({
            "uid": "bench",
            "namespace": "bench",
            "name": "bench",
            "revision": "bench",
            "mode": "Enforce",
            "rules": self.rules,
        });
        if let Some(deadline) = self.deadline_millis {
            policy["deadlineMillis"] = deadline.into();
        }
        json!({ "wireVersion": 1, "sequence": 1, "revision": "bench", "policies": [policy], "stores": self.stores })
    }
}
