//! Lints and renders the charts with helm, with the default values and with every file of values in their `ci` folders.
//!
//! `e2e/tests/chart.rs` checks the rendered objects, and applies them to an apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::runner::Step;
use crate::{tidy::charts::CHARTS, workspace::Workspace};

pub(super) fn steps(workspace: &Workspace, helm: &Path) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for chart in CHARTS {
        let path = workspace.root().join(chart).display().to_string();
        let step = |command: &[&str], values: Option<&Path>| {
            let values = values.map(|file| format!("--values={}", file.display()));
            values.into_iter().fold(Step::new(helm, command).arg(&path), Step::arg)
        };
        let files = values(&workspace.root().join(chart).join("ci"))?;
        for values in [None].into_iter().chain(files.iter().map(|file| Some(file.as_path()))) {
            steps.push(step(&["lint", "--strict"], values));
            steps.push(step(&["template", "weir", "--namespace", "weir-system"], values));
        }
    }
    Ok(steps)
}

/// Lists the files of values in a folder. Their names follow the convention of chart-testing.
fn values(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    files.retain(|file| file.to_string_lossy().ends_with("-values.yaml"));
    files.sort();
    ensure!(!files.is_empty(), "{} has no files of values", folder.display());
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chart_is_linted_and_rendered_with_every_file_of_values() {
        let workspace = Workspace::find().expect("the workspace");
        let files = |chart: &str| values(&workspace.root().join(chart).join("ci")).expect("values").len();
        let expected: usize = CHARTS.iter().map(|chart| 2 * (1 + files(chart))).sum();
        assert_eq!(steps(&workspace, Path::new("helm")).expect("charts").len(), expected);
    }

    #[test]
    fn a_folder_without_values_is_an_error() {
        assert!(values(tempfile::tempdir().expect("a temporary folder").path()).is_err());
    }
}
