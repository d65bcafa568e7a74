//! Finds the third-party programs that a command needs, or installs them from Debian's packages.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::children::succeed;

/// What this machine lacks. The exit code is then 2.
#[derive(Debug)]
pub(crate) struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// A program, its Debian package, and its purpose.
pub(crate) type Need = (&'static str, &'static str, &'static str);

/// Folders with programs that are not in the PATH of every user.
pub(crate) const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Checks that all of `needs` are available. On Debian as root, it installs missing programs first.
pub(crate) async fn ensure(
    command: &str,
    needs: impl IntoIterator<Item = Need>,
    interrupt: &CancellationToken,
) -> anyhow::Result<()> {
    let missing: Vec<Need> = needs.into_iter().filter(|(program, _, _)| !is_on_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_debian_as_root() {
        let lines =
            missing.iter().map(|(program, package, reason)| format!("\n  {program:<10} {reason}; package {package}"));
        let lines: String = lines.collect();
        let text = "these programs are missing (on Debian as root, this command installs them):";
        return Err(Missing(format!("{command}: {text}{lines}")).into());
    }
    let packages: Vec<_> = missing.iter().map(|(_, package, _)| *package).collect();
    eprintln!("{command}: installing {} with apt-get", packages.join(", "));
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y"]).args(args);
        // The standard output of this command must not contain the output of apt-get, because programs can read it.
        command.stdout(std::io::stderr());
        command
    };
    succeed("apt-get update", &mut apt(&["update"]), interrupt).await?;
    let mut install = apt(&["install", "--no-install-recommends"]);
    succeed("apt-get install", install.args(&packages), interrupt).await
}

/// Returns true if this is Debian, or made of it, and programs can be installed.
pub(crate) fn is_debian_as_root() -> bool {
    Path::new("/etc/debian_version").exists() && rustix::process::geteuid().is_root()
}

pub(crate) fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let rust = Path::new(env!("CARGO")).parent().map(PathBuf::from);
    let mut folders = std::env::split_paths(&path).chain(SYSTEM.map(PathBuf::from)).chain(rust);
    folders.any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_where_they_are() {
        assert!(is_on_path("sh") && is_on_path("cargo"));
        assert!(!is_on_path("no-such-program-anywhere"));
    }
}
