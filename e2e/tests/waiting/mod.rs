//! Waits for conditions of the programs under test.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::{process::Command, time::sleep};

use crate::programs::Program;

/// The longest wait for any condition. After it, the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Waits until there is something, and returns it. As long as there is nothing, `look` returns the message with which
/// the test fails in the end.
pub(crate) async fn found<T>(look: impl AsyncFn() -> Result<Result<T, String>>) -> Result<T> {
    let start = Instant::now();
    loop {
        match look().await? {
            Ok(found) => return Ok(found),
            Err(message) => ensure!(start.elapsed() < PATIENCE, message),
        }
        sleep(BETWEEN_LOOKS).await;
    }
}

/// Waits until the condition is true. `what` names it in the message of the failure.
pub(crate) async fn until(what: &str, is_true: impl AsyncFn() -> Result<bool>) -> Result<()> {
    found(async || Ok(if is_true().await? { Ok(()) } else { Err(format!("waited for {what}")) })).await
}

/// Starts an agent, and waits for the addresses that it writes to this file.
pub(crate) async fn listening(mut command: Command, addresses: &Path) -> Result<(Program, Value)> {
    command.arg("--addresses-file").arg(addresses);
    let program = Program::start(command)?;
    let bound = found(async || {
        let bound = std::fs::read(addresses).ok().and_then(|text| serde_json::from_slice(&text).ok());
        Ok(bound.ok_or_else(|| "the agent has not written its addresses".to_owned()))
    });
    Ok((program, bound.await?))
}
