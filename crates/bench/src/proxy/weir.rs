//! The agent as a contender: its flags, and the snapshot with a scenario's rules.

use std::{net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::{exchange::Connection, process::free_address, scenarios::Scenario};

/// A rate that no contender can reach.
pub(super) const UNREACHED: u64 = 1_000_000;
const SECOND: u64 = 1_000;
const DAY: u64 = 24 * 3600 * SECOND;

/// The addresses of an agent.
pub(crate) struct Addresses {
    pub(crate) listen: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) telemetry: SocketAddr,
}

impl Addresses {
    pub(crate) fn free() -> anyhow::Result<Self> {
        Ok(Self { listen: free_address()?, control: free_address()?, telemetry: free_address()? })
    }

    pub(crate) fn flags(&self) -> [String; 3] {
        let Self { listen, control, telemetry } = self;
        [format!("--listen={listen}"), format!("--control={control}"), format!("--telemetry={telemetry}")]
    }
}

/// The path of the agent: the value of `WEIR_AGENT`, or the agent next to this program.
pub(crate) fn agent_program() -> anyhow::Result<PathBuf> {
    let program = match std::env::var_os("WEIR_AGENT") {
        Some(named) => named.into(),
        None => next_to_this("weir-agent")?,
    };
    ensure!(program.is_file(), "{} is missing: cargo build --release -p weir-agent", program.display());
    Ok(program)
}

/// The path of another program in the folder of this one.
pub(crate) fn next_to_this(program: &str) -> anyhow::Result<PathBuf> {
    Ok(std::env::current_exe().context("find this program")?.with_file_name(program))
}

/// How to start an agent with these addresses.
pub(crate) fn command(upstream: SocketAddr, at: &Addresses) -> anyhow::Result<Command> {
    let mut command = Command::new(agent_program()?);
    command.args(at.flags()).args(["--upstream", &upstream.to_string()]);
    Ok(command)
}

/// Sends a snapshot with the scenario's rules to the agent.
pub(super) fn configure(control: SocketAddr, scenario: Scenario) -> anyhow::Result<()> {
    put(control, &snapshot(scenario))
}

/// Puts a snapshot in force.
pub(crate) fn put(control: SocketAddr, snapshot: &Value) -> anyhow::Result<()> {
    let body = snapshot.to_string();
    let head = format!("PUT /v1/config HTTP/1.1\r\nhost: {control}\r\ncontent-length: {}\r\n\r\n", body.len());
    let (status, said) = Connection::open(control)?.exchange((head + &body).as_bytes())?;
    ensure!(status == 200, "the agent refused its snapshot with {status}: {said}");
    Ok(())
}

/// A snapshot as the operator sends it, with one policy of these rules.
pub(crate) fn snapshot_of(name: &str, sequence: u64, rules: impl IntoIterator<Item = Value>) -> Value {
    let (revision, rules) = (format!("{name}-{sequence}"), rules.into_iter().collect::<Vec<_>>());
    let policy =
        json!({"uid": name, "namespace": name, "name": name, "revision": revision, "mode": "Enforce", "rules": rules});
    json!({"wireVersion": 1, "sequence": sequence, "revision": revision, "policies": [policy]})
}

/// A limit of a rule: a token bucket.
pub(crate) fn bucket(requests: u64, period_millis: u64, burst: u64) -> Value {
    json!({
        "name": "limit",
        "strategy": "TokenBucket",
        "requests": requests,
        "periodMillis": period_millis,
        "burst": burst,
    })
}

/// The snapshot of a scenario, with the rules that a user would write.
fn snapshot(scenario: Scenario) -> Value {
    let (requests, period) = if scenario.refused { (1, DAY) } else { (UNREACHED, SECOND) };
    let rules = scenario.rule_prefixes().into_iter().enumerate().map(|(number, prefix)| {
        json!({
            "name": format!("rule-{number}"),
            "action": "Limit",
            "match": [{ "paths": [format!("{prefix}**")] }],
            "key": [{ "header": "x-key" }],
            "limits": [bucket(requests, period, requests)],
            "onLimit": { "status": 429, "headers": "IETF" },
            "maxKeys": scenario.keys.max(1_000),
        })
    });
    snapshot_of("bench", 1, rules)
}
