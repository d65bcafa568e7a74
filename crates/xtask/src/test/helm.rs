//! Lints and renders the charts with helm, with the default values and with every file of values in their `ci` folders.
//!
//! `e2e/tests/chart.rs` applies the rendered charts to an apiserver.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::{chart, runner::Step};
use crate::workspace::Workspace;

/// The charts, each with the check for its rendered objects.
const CHARTS: [(&str, Judge); 2] = [("charts/weir-crds", chart::check_definitions), ("charts/weir", chart::check)];

/// The values with which the chart renders all monitoring.
const MONITORED: &str = "monitored-values.yaml";

type Judge = fn(&str) -> anyhow::Result<()>;

pub(super) fn steps(workspace: &Workspace, helm: &Path) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for (chart, judge) in CHARTS {
        let path = workspace.root().join(chart).display().to_string();
        let step = |command: &[&str], values: Option<&Path>| {
            let values = values.map(|file| format!("--values={}", file.display()));
            values.into_iter().fold(Step::new(helm, command).arg(&path), Step::arg)
        };
        let files = values(&workspace.root().join(chart).join("ci"))?;
        for values in [None].into_iter().chain(files.iter().map(|file| Some(file.as_path()))) {
            let judge =
                if values.is_some_and(|file| file.ends_with(MONITORED)) { chart::check_monitored } else { judge };
            steps.push(step(&["lint", "--strict"], values));
            steps.push(step(&["template", "weir", "--namespace", "weir-system"], values).judge(judge));
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
        let expected: usize = CHARTS.iter().map(|(chart, _)| 2 * (1 + files(chart))).sum();
        assert_eq!(steps(&workspace, Path::new("helm")).expect("charts").len(), expected);
        let monitored = workspace.root().join("charts/weir/ci").join(MONITORED);
        assert!(monitored.is_file(), "{} is missing, which has a stricter check", monitored.display());
    }

    #[test]
    fn a_folder_without_values_is_an_error() {
        assert!(values(tempfile::tempdir().expect("a temporary folder").path()).is_err());
    }
}
