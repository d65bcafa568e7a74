//! Writes the Grafana dashboards that the chart installs. They are never edited by hand: what is written here is.
//!
//! `--see` proves them: it runs the demo's programs under a load, has a real Prometheus scrape them, and asks every query
//! of every panel.

mod agent;
mod fleet;
mod grafana;
mod pictures;
mod policy;
mod prometheus;
mod see;

use std::process::ExitCode;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use self::grafana::Board;
use crate::workspace::Workspace;

/// Where they are written; the chart makes a ConfigMap of each.
const FOLDER: &str = "charts/weir/dashboards";

#[derive(clap::Args)]
pub(crate) struct DashboardsArgs {
    /// Write nothing; exit with 1 if a file is not what would be written
    #[arg(long)]
    check: bool,
    /// Write nothing; run the demo's programs and a Prometheus, and ask every query: exit with 1 if one finds nothing
    #[arg(long, conflicts_with = "check")]
    see: bool,
    /// With --see: write what the panels show to docs/dashboards, too
    #[arg(long, requires = "see")]
    draw: bool,
}

pub(crate) async fn run(
    workspace: &Workspace,
    args: &DashboardsArgs,
    interrupt: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    if args.see {
        return see::run(workspace, args.draw, interrupt).await;
    }
    let mut stale = false;
    for board in boards() {
        let file = format!("{FOLDER}/{}.json", board.uid);
        let path = workspace.root().join(&file);
        let wanted = board.json();
        if std::fs::read_to_string(&path).is_ok_and(|text| text == wanted) {
            println!("{file} is current");
        } else if args.check {
            println!(
                "{file} is not what crates/xtask/src/dashboards says: run `cargo xtask dashboards` and commit the result"
            );
            stale = true;
        } else {
            std::fs::create_dir_all(workspace.root().join(FOLDER))
                .and_then(|()| std::fs::write(&path, &wanted))
                .with_context(|| format!("write {}", path.display()))?;
            println!("{file} written");
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All of them, the one to begin with first.
pub(crate) fn boards() -> [Board; 3] {
    [fleet::board(), policy::board(), agent::board()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_panel_can_be_read_without_asking_anybody() {
        let mut uids = BTreeSet::new();
        for board in boards() {
            assert!(uids.insert(board.uid), "{} is there twice", board.uid);
            let mut titles = BTreeSet::new();
            for panel in board.panels() {
                let here = format!("{}: {}", board.uid, panel.title);
                assert!(titles.insert(panel.title), "{here} is there twice");
                assert!(panel.description.ends_with('.'), "{here} has no sentence that describes it");
                assert!(!panel.queries.is_empty(), "{here} asks nothing");
                for query in &panel.queries {
                    assert!(!query.legend.is_empty(), "{here}: a series without a name");
                    assert_eq!(query.expr.matches('(').count(), query.expr.matches(')').count(), "{here}");
                }
            }
        }
    }

    #[test]
    fn queries_use_the_variables_of_their_board() {
        const GRAFANAS_OWN: [&str; 1] = ["__rate_interval"];
        for board in boards() {
            let own: Vec<_> = board.variables.iter().map(|variable| variable.name).collect();
            let exprs = board.panels().flat_map(|panel| &panel.queries).map(|query| query.expr);
            let mut used = BTreeSet::new();
            for expr in exprs.chain(board.variables.iter().map(|variable| variable.query)) {
                for name in expr.split('$').skip(1) {
                    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
                    used.insert(&name[..end]);
                }
            }
            for name in &used {
                assert!(own.contains(name) || GRAFANAS_OWN.contains(name), "{}: no variable {name}", board.uid);
            }
            for name in own {
                assert!(used.contains(name), "{}: nothing asks for {name}", board.uid);
            }
        }
    }

    #[test]
    fn panels_do_not_lie_over_each_other() {
        for board in boards() {
            let value: serde_json::Value = serde_json::from_str(&board.json()).expect("it is JSON");
            let mut taken = BTreeSet::new();
            for panel in value["panels"].as_array().expect("panels") {
                let at = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
                assert!(at("x") + at("w") <= 24);
                for x in at("x")..at("x") + at("w") {
                    for y in at("y")..at("y") + at("h") {
                        assert!(taken.insert((x, y)), "{}: {}", board.uid, panel["title"]);
                    }
                }
            }
        }
    }
}
