//! Writes what comes from the API's types: the custom resource definition, the copy of it that the chart installs, and the
//! page that explains every field.
//!
//! The types in `crates/api` are the only source; what is written here is never edited by hand.

use std::{path::Path, process::ExitCode};

use anyhow::Context as _;

use crate::{reference, workspace::Workspace};

/// Where the definition is written.
const DEFINITION: [&str; 2] =
    ["crds/weir.dev_ratelimitpolicies.yaml", "charts/weir/crds/weir.dev_ratelimitpolicies.yaml"];

/// Where the page is.
const REFERENCE: &str = "docs/api.md";

#[derive(clap::Args)]
pub(crate) struct CrdsArgs {
    /// Write nothing; exit with 1 if a file is not what would be written
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    let definition = weir_api::crd_yaml();
    let page = reference::page(&definition)?;
    let mut stale = false;
    for (file, wanted) in DEFINITION.map(|file| (file, &definition)).into_iter().chain([(REFERENCE, &page)]) {
        let path = workspace.root().join(file);
        if is_current(&path, wanted) {
            println!("{file} is current");
        } else if args.check {
            println!("{file} is not what crates/api says: run `cargo xtask crds` and commit the result");
            stale = true;
        } else {
            let folder = path.parent().expect("every file is in a folder");
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(&path, wanted))
                .with_context(|| format!("write {}", path.display()))?;
            println!("{file} written");
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn is_current(path: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text == wanted)
}
