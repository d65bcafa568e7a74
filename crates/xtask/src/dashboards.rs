//! Writes the Grafana dashboards that the chart installs from boards.yaml. Never edit the output by hand.
//!
//! `--see` tests the dashboards: it runs the demo's programs under load, lets a real Prometheus scrape them, runs every
//! query of every panel, and renders the answers with Grafana's own panels.

mod bars;
mod grafana;
mod headroom;
mod numbers;
mod page;
mod prometheus;
mod questions;
mod scene;
mod see;
mod shown;

use std::process::ExitCode;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use self::grafana::Board;
use crate::workspace::Workspace;

/// The output folder. The chart creates a ConfigMap from each file in it.
const FOLDER: &str = "charts/weir/dashboards";

#[derive(clap::Args)]
pub(crate) struct DashboardsArgs {
    /// Write nothing; exit with 1 if a file is out of date
    #[arg(long)]
    check: bool,
    /// Write nothing; run the demo's programs and a Prometheus, and render its answers; exit with 1 if a panel is empty
    #[arg(long, conflicts_with = "check")]
    see: bool,
    /// With --see: also write pictures of the dashboards to docs/dashboards
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
            println!("{file} is up to date");
        } else if args.check {
            println!(
                "{file} differs from boards.yaml of crates/xtask: run `cargo xtask dashboards` and commit the result"
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

/// All boards. The entry page is the first one.
pub(crate) fn boards() -> [Board; 3] {
    let text = headroom::filled(include_str!("dashboards/boards.yaml"));
    serde_yaml::from_str(&text).expect("boards.yaml has the fields of Board")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn every_panel_can_be_read_without_asking_anybody() {
        let mut uids = BTreeSet::new();
        for board in boards() {
            assert!(uids.insert(board.uid.clone()), "{} exists twice", board.uid);
            let mut titles = BTreeSet::new();
            for panel in board.panels() {
                let here = format!("{}: {}", board.uid, panel.title);
                assert!(titles.insert(&panel.title), "{here} exists twice");
                assert!(panel.description.ends_with('.'), "the description of {here} is not a sentence");
                assert!(!panel.queries.is_empty(), "{here} has no query");
                for query in &panel.queries {
                    assert!(!query.legend.is_empty(), "{here}: a query without a legend");
                    assert_eq!(query.expr.matches('(').count(), query.expr.matches(')').count(), "{here}");
                }
            }
        }
    }

    #[test]
    fn queries_use_the_variables_of_their_board() {
        const GRAFANAS_OWN: [&str; 3] = ["__rate_interval", "__interval", "__range"];
        for board in boards() {
            let own: Vec<_> = board.variables.iter().map(|variable| variable.name.as_str()).collect();
            let exprs = board.panels().flat_map(|panel| &panel.queries).map(|query| board.written(&query.expr));
            let annotation = board.annotation.iter().map(|annotation| board.written(&annotation.expr));
            let mut used = BTreeSet::new();
            for expr in exprs.chain(annotation) {
                assert!(expr.contains("cluster=~\"$cluster\""), "{}: no $cluster in {expr}", board.uid);
                used.extend(variables_in(&expr));
            }
            for variable in &board.variables {
                used.extend(variables_in(&variable.query));
            }
            for name in &used {
                let known = own.contains(&name.as_str()) || GRAFANAS_OWN.contains(&name.as_str());
                assert!(known, "{}: unknown variable {name}", board.uid);
            }
            for name in own {
                assert!(used.contains(name), "{}: no query uses the variable {name}", board.uid);
            }
        }
    }

    /// The boards, and what their files contain.
    fn files() -> impl Iterator<Item = (Board, Value)> {
        boards().into_iter().map(|board| {
            let file = serde_json::from_str(&board.json()).expect("valid JSON");
            (board, file)
        })
    }

    fn panels(file: &Value) -> impl Iterator<Item = &Value> {
        file["panels"].as_array().expect("a list").iter()
    }

    fn variables_in(expr: &str) -> Vec<String> {
        let names = expr.split('$').skip(1);
        let end = |name: &str| name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
        names.map(|name| name[..end(name)].to_owned()).collect()
    }

    /// The files have the fields and values that the current version of Grafana writes.
    #[test]
    fn files_are_of_the_current_version_and_leave_nothing_to_a_default() {
        const OF_ANNOTATIONS: [&str; 6] = ["datasource", "enable", "hide", "iconColor", "name", "target"];
        for (board, value) in files() {
            assert_eq!(value["schemaVersion"], 42);
            for annotation in value["annotations"]["list"].as_array().expect("a list") {
                let names: Vec<_> = annotation.as_object().expect("an object").keys().map(String::as_str).collect();
                assert_eq!(names, OF_ANNOTATIONS, "{}", board.uid);
            }
            for link in value["links"].as_array().expect("a list") {
                assert!(link["icon"].is_string() && link["targetBlank"].is_boolean(), "{}: {link}", board.uid);
            }
            for panel in panels(&value).filter(|panel| panel["type"] != "row") {
                // Grafana's default thresholds are green, and red from 80.
                let steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"].as_array();
                assert!(steps.is_some_and(|steps| steps[0]["value"].is_null()), "{}: {}", board.uid, panel["title"]);
                assert!(
                    panel["fieldConfig"]["defaults"]["color"]["mode"].is_string(),
                    "{}: {}",
                    board.uid,
                    panel["title"]
                );
            }
        }
    }

    #[test]
    fn boards_lead_from_the_fleet_to_a_policy_to_an_agent() {
        let links = |board: &Board| {
            let value = serde_json::from_str(&board.json()).expect("valid JSON");
            let url = |panel: &Value| panel["fieldConfig"]["defaults"]["links"][0]["url"].as_str().map(str::to_owned);
            panels(&value).filter_map(url).collect::<Vec<_>>()
        };
        let [fleet, policy, agent] = boards();
        for (board, to) in [(&fleet, &policy), (&policy, &agent), (&agent, &policy)] {
            let wanted = format!("/d/{}?", to.uid);
            let found = links(board).into_iter().find(|url| url.starts_with(&wanted));
            let url = found.unwrap_or_else(|| panic!("{} has no link to {}", board.uid, to.uid));
            for variable in to.variables.iter().filter(|variable| variable.name != "rule") {
                assert!(
                    url.contains(&format!("var-{}=", variable.name)) || url.contains("${cluster:queryparam}"),
                    "{url}"
                );
            }
            assert!(url.contains("${__url_time_range}") && url.contains("${datasource:queryparam}"), "{url}");
        }
    }

    #[test]
    fn decisions_have_one_colour_and_nothing_else_has_it() {
        for (board, value) in files() {
            let decisions = panels(&value).find(|panel| panel["title"] == "Decisions");
            let decisions = decisions.unwrap_or_else(|| panic!("{} shows no decisions", board.uid));
            let fixed = |name: &str| {
                let overrides = decisions["fieldConfig"]["overrides"].as_array().expect("a list");
                let own = overrides.iter().find(|one| one["matcher"]["options"] == name);
                own.map(|own| own["properties"][0]["value"]["fixedColor"].as_str().expect("a colour").to_owned())
            };
            let found = ["allowed", "limited", "shadow", "waiting", "bypassed"].map(fixed);
            let wanted = ["#82c985", "#fb9a23", "#7946e0", "#4c9dd1", "#6d6d6d"];
            assert_eq!(found, wanted.map(|colour| Some(colour.to_owned())), "{}", board.uid);
        }
    }

    /// The shades of series without a known name are similar, so the legend has the order of the lines.
    #[test]
    fn legends_with_values_begin_with_the_highest() {
        let mut sorted = 0;
        for (_, value) in files() {
            for panel in panels(&value) {
                let legend = &panel["options"]["legend"];
                let by = match legend["calcs"][0].as_str() {
                    None => continue,
                    Some("sum") => "Total",
                    Some("lastNotNull") => "Last *",
                    Some(other) => panic!("{other}"),
                };
                assert_eq!((&legend["sortBy"], &legend["sortDesc"]), (&by.into(), &true.into()), "{}", panel["title"]);
                sorted += 1;
            }
        }
        assert!(sorted > 9, "{sorted}");
    }

    /// Some shares can exceed 1, and Grafana does not draw what is above a hard maximum.
    #[test]
    fn no_panel_over_time_hides_a_value() {
        for (board, value) in files() {
            for panel in panels(&value).filter(|panel| panel["type"] == "timeseries") {
                let defaults = &panel["fieldConfig"]["defaults"];
                assert!(defaults["max"].is_null(), "{}: {}", board.uid, panel["title"]);
                let is_share = defaults["unit"] == "percentunit";
                assert_eq!(defaults["custom"]["axisSoftMax"] == 1, is_share, "{}: {}", board.uid, panel["title"]);
            }
        }
    }

    #[test]
    fn panels_do_not_lie_over_each_other() {
        for (board, value) in files() {
            let mut taken = BTreeSet::new();
            for panel in panels(&value) {
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
