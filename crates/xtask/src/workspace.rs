//! The workspace: the checkout, its target folder, and cargo's metadata.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use cargo_metadata::{Metadata, MetadataCommand};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use crate::children::succeed;

/// The workspace of this command.
pub(crate) struct Workspace {
    pub(crate) metadata: Metadata,
}

impl Workspace {
    /// Finds the workspace from which xtask was built, independent of the current directory.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let metadata = MetadataCommand::new()
            .manifest_path(manifest)
            .other_options(["--locked".to_owned()])
            .exec()
            .context("cargo metadata")?;
        Ok(Self { metadata })
    }

    pub(crate) fn root(&self) -> &Path {
        self.metadata.workspace_root.as_std_path()
    }

    /// The folder for the output of these commands, such as logs, kubeconfig and state. It is below the target folder,
    /// so `cargo clean` removes it.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.target().join("weir")
    }

    pub(crate) fn target(&self) -> &Path {
        self.metadata.target_directory.as_std_path()
    }

    /// Builds with cargo. `flags` are separated by spaces.
    pub(crate) async fn build(&self, flags: &str, interrupt: &CancellationToken) -> anyhow::Result<()> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(self.root()).args(["build", "--locked"]).args(flags.split(' '));
        succeed("cargo build", &mut cargo, interrupt).await
    }

    /// The names of the tests of `package` that cargo builds only with `feature`.
    pub(crate) fn tests_that_need(&self, package: &str, feature: &str) -> Vec<&str> {
        let packages = self.metadata.workspace_packages().into_iter().filter(|it| it.name.as_str() == package);
        let targets = packages.flat_map(|package| &package.targets);
        let tests =
            targets.filter(|target| target.is_test() && target.required_features.iter().any(|it| it == feature));
        tests.map(|target| target.name.as_str()).collect()
    }
}

/// The arguments of cargo that build programs in debug. They select all packages, as the stage `unit` does. With another
/// selection, cargo would choose other features for the dependencies and compile them again, which takes minutes.
pub(crate) const DEBUG_BUILD: &str = "build --locked --workspace";
