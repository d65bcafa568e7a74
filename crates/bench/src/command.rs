//! Runs other programs.

use std::process::Command;

use anyhow::{Context as _, ensure};

/// Runs a program, and returns its output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{program} failed: {}{said}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}
