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

/// The folders without files of this project.
const FOREIGN: [&str; 3] = ["target", "node_modules", ".git"];

/// All files below a folder, or the file itself, sorted. Files of other projects are left out.
pub(crate) fn files_below(place: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut files, mut places) = (Vec::new(), vec![place.to_owned()]);
    while let Some(place) = places.pop() {
        if place.is_dir() {
            for entry in std::fs::read_dir(&place).with_context(|| format!("list {}", place.display()))? {
                let entry = entry?;
                let path = entry.path();
                // A link can lead to a folder that contains it.
                let is_ours =
                    !entry.file_type()?.is_symlink() && !FOREIGN.iter().any(|foreign| path.ends_with(foreign));
                places.extend(is_ours.then_some(path));
            }
        } else if place.exists() {
            files.push(place);
        }
    }
    files.sort();
    Ok(files)
}

/// Copies the files of a folder. Other files in the target folder stay.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    for file in files_below(from)? {
        let copy = to.join(file.strip_prefix(from).unwrap_or(&file));
        std::fs::create_dir_all(copy.parent().unwrap_or(to)).with_context(|| format!("make {}", to.display()))?;
        std::fs::copy(&file, copy).with_context(|| format!("copy {}", file.display()))?;
    }
    Ok(())
}

/// The arguments of cargo that build programs in debug. They select all packages, as the stage `unit` does. With another
/// selection, cargo would choose other features for the dependencies and compile them again, which takes minutes.
pub(crate) const DEBUG_BUILD: &str = "build --locked --workspace";
