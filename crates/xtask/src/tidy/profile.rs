//! The rule that this toolchain's compiler takes the agent's profile. No test builds the agent of the image, which takes
//! minutes, and the compiler goes on without a profile that it cannot read: nothing else would tell.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context as _;

use super::Violation;
use crate::profile;
use crate::workspace::Workspace;

/// Enough for the compiler to look the profile up.
const PROGRAM: &[u8] = b"pub fn one_more(than: u64) -> u64 { than + 1 }";

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Option<Violation>> {
    let fault = refused(&profile::file(workspace), workspace.root())?;
    Ok(fault.map(|fault| Violation::new(profile::FILE, fault, "cargo xtask profile writes it again")))
}

/// What the compiler of the toolchain that `root` asks for says against a profile.
fn refused(profile: &Path, root: &Path) -> anyhow::Result<Option<String>> {
    let folder = tempfile::tempdir().context("make a folder for the compiler")?;
    let mut flag = std::ffi::OsString::from("-Cprofile-use=");
    flag.push(profile);
    let mut compiler = Command::new("rustc")
        .current_dir(root)
        .args(["--crate-type=lib", "--crate-name=profiled", "-O", "--emit=obj", "-o"])
        .arg(folder.path().join("profiled.o"))
        .arg(flag)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("start rustc")?;
    // One that has refused its flags reads no program.
    let _ = compiler.stdin.take().context("rustc reads a program")?.write_all(PROGRAM);
    let output = compiler.wait_with_output().context("wait for rustc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // Of a profile that it cannot read it only warns, and goes on without.
    let fault = said.lines().find(|line| !line.is_empty()).map(str::to_owned);
    Ok(fault.or_else(|| (!output.status.success()).then(|| format!("rustc: {}", output.status))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_that_the_compiler_does_not_take_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let profile = folder.path().join("agent.profdata");
        let refused = || refused(&profile, Path::new(env!("CARGO_MANIFEST_DIR"))).expect("there is a compiler");
        assert!(refused().is_some(), "there is none");
        std::fs::write(&profile, "version https://git-lfs.github.com/spec/v1").expect("writable");
        assert!(refused().is_some(), "it is no profile");
    }
}
