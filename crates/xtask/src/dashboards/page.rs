//! Builds the page of e2e/panels, which renders dashboards with Grafana's own panels. Passes the answers of Prometheus
//! to the page, and reads the page's report.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::prometheus::Series;
use crate::{
    children::succeed,
    workspace::{Workspace, copy_folder},
};

const SOURCE: &str = "e2e/panels";
const LOCK: &str = "package-lock.json";
/// A copy of the lock file from which the packages were installed.
const INSTALLED: &str = "node_modules/.installed-from";

/// The page's input for one board.
#[derive(Debug, Serialize)]
pub(super) struct Given {
    pub(super) dashboard: Value,
    pub(super) start: f64,
    pub(super) end: f64,
    /// The seconds between the values of a line.
    pub(super) step: u32,
    /// The seconds between bars.
    pub(super) bar: u32,
    /// The chosen values of the board's variables.
    pub(super) chosen: BTreeMap<&'static str, &'static str>,
    /// The answers by panel and query, such as `7/A`.
    pub(super) answers: BTreeMap<String, Vec<Series>>,
    pub(super) annotations: Vec<Mark>,
}

/// A point in time of an annotation.
#[derive(Debug, Serialize)]
pub(super) struct Mark {
    pub(super) at: f64,
    pub(super) color: &'static str,
}

/// The page's report on one board in one theme.
#[derive(Debug, Deserialize)]
pub(super) struct Shown {
    pub(super) uid: String,
    pub(super) theme: String,
    pub(super) panels: Vec<ShownPanel>,
    /// Errors in the browser's console.
    pub(super) errors: Vec<String>,
    /// The board's colours by name, as the theme renders them.
    pub(super) colours: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShownPanel {
    pub(super) title: String,
    /// The text of a panel without data.
    pub(super) empty: Option<String>,
    pub(super) canvases: usize,
    /// The rows of a table as text, with the heading first.
    pub(super) rows: Vec<String>,
    pub(super) values: Vec<ShownValue>,
    pub(super) legend: Vec<Entry>,
    /// The beginnings of texts that are cut off or must be scrolled.
    pub(super) overflows: Vec<String>,
    pub(super) unknown_unit: Option<String>,
}

/// A value in large digits.
#[derive(Debug, Deserialize)]
pub(super) struct ShownValue {
    pub(super) title: String,
    pub(super) number: f64,
    pub(super) colour: String,
}

/// A series in a legend.
#[derive(Debug, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) colour: String,
}

/// The built page.
pub(super) struct Page {
    folder: PathBuf,
    interrupt: CancellationToken,
}

impl Page {
    /// Installs the packages of the lock file, if necessary, and bundles the page. All files are below the target
    /// folder.
    pub(super) async fn build(workspace: &Workspace, interrupt: &CancellationToken) -> anyhow::Result<Self> {
        let folder = workspace.target().join("panels");
        copy_folder(&workspace.root().join(SOURCE), &folder)?;
        let page = Self { folder, interrupt: interrupt.clone() };
        let lock = fs::read(page.folder.join(LOCK)).with_context(|| format!("read {SOURCE}/{LOCK}"))?;
        let installed = page.folder.join(INSTALLED);
        if fs::read(&installed).ok().as_ref() != Some(&lock) {
            println!("installing Grafana's panels with npm into {} …", page.folder.display());
            page.run("npm", &["ci", "--loglevel=error", "--no-progress"]).await?;
            fs::write(&installed, lock).with_context(|| format!("write {}", installed.display()))?;
        }
        page.run("node", &["build.mjs", "built"]).await?;
        Ok(page)
    }

    /// Writes a picture of each board in each theme to `into`, which must be empty.
    pub(super) async fn show(&self, boards: &[Given], into: &Path) -> anyhow::Result<Vec<Shown>> {
        let (given, report) = (into.join("boards.json"), into.join("shown.json"));
        fs::write(&given, serde_json::to_vec(boards)?).with_context(|| format!("write {}", given.display()))?;
        let [given_path, into_path, report_path] = [&given, into, &report].map(|path| path.display().to_string());
        self.run("node", &["show.mjs", "built", &given_path, &into_path, &report_path]).await?;
        let text = fs::read(&report).with_context(|| format!("read {report_path}"))?;
        serde_json::from_slice(&text).with_context(|| format!("{report_path} is not a report of {SOURCE}"))
    }

    async fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<()> {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.folder);
        let name = format!("{program} {} in {}", args.join(" "), self.folder.display());
        succeed(&name, &mut command, &self.interrupt).await
    }
}
