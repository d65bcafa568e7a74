//! `cargo xtask manual`: checks the pages of the manual. The targets of links must exist, policies must be valid,
//! commands must name existing files, charts and flags, and figures must agree with the results of the benchmarks.
//!
//! The command reads pages, and runs `weir-operator check` and `--help`, as readers do. Only `--figures` and `--metrics`
//! change pages.
//! `e2e/tests/manual.rs` applies the objects of the pages to a cluster.

mod commands;
mod fields;
mod figures;
mod markdown;
mod metrics;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, ensure};
use serde::Deserialize as _;
use serde_yaml::Value;

use self::{commands::Commands, figures::Results, markdown::Page};
use crate::workspace::{DEBUG_BUILD, Workspace, files_below};

/// The folders with pages, and single pages.
const PAGES: [&str; 8] = [
    "docs", "charts", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
    "e2e/airgap/README.md",
];

/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A fault on a page.
struct Fault {
    page: String,
    line: usize,
    what: String,
}

#[derive(clap::Args)]
pub(crate) struct ManualArgs {
    /// Only write the benchmarks' figures into the pages that show them
    #[arg(long)]
    figures: bool,
    /// Only write the page that lists all metrics
    #[arg(long, conflicts_with = "figures")]
    metrics: bool,
}

pub(crate) fn run(workspace: &Workspace, args: &ManualArgs) -> anyhow::Result<ExitCode> {
    let listed = metrics::page(workspace.root())?;
    let page = workspace.root().join(metrics::PAGE);
    if args.metrics {
        fs::write(&page, listed).with_context(|| format!("write {}", metrics::PAGE))?;
        println!("{}: written", metrics::PAGE);
        return Ok(ExitCode::SUCCESS);
    }
    let pages = read(workspace.root())?;
    let mut faults = Vec::new();
    if fs::read_to_string(&page).ok().as_ref() != Some(&listed) {
        let what = "differs from the tables in the sources: run `cargo xtask manual --metrics`".to_owned();
        faults.push(Fault { page: metrics::PAGE.to_owned(), line: 1, what });
    }
    let figures = figures(workspace.root(), &pages, args.figures, &mut faults)?;
    if args.figures {
        return Ok(report(&faults, &format!("{figures} figures")));
    }
    let programs = build(workspace)?;
    links(workspace.root(), &pages, &mut faults);
    summary(&pages, &mut faults)?;
    let policies = blocks(&pages, &mut faults);
    let commands = Commands::new(workspace, &programs)?;
    let mut run = 0;
    for (name, page) in &pages {
        for block in page.blocks.iter().filter(|block| block.info == "console") {
            for (line, words) in block.commands() {
                run += 1;
                let checked = words.and_then(|words| commands.check(&words, page));
                faults.extend(checked.err().map(|what| Fault { page: name.clone(), line, what }));
            }
        }
    }
    let good = check_policies(&programs, &policies)?;
    let checked = format!("{} pages, {} policies, {run} commands, {figures} figures", pages.len(), policies.len());
    let code = report(&faults, &checked);
    ensure!(policies.len() > 10 && run > 20 && figures > 20, "too few policies, commands or figures were found");
    Ok(if good { code } else { ExitCode::FAILURE })
}

fn report(faults: &[Fault], checked: &str) -> ExitCode {
    for Fault { page, line, what } in faults {
        println!("{page}:{line}: {what}");
    }
    println!("manual: {checked}, {} faults", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds both programs.
fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(DEBUG_BUILD.split(' ')).args(["--bin", "weir-operator", "--bin", "weir-agent", "--quiet"]);
    let status = cargo.current_dir(workspace.root()).status().context("run cargo")?;
    ensure!(status.success(), "cannot build the operator and the agent");
    Ok(workspace.target().join("debug"))
}

/// Reads all pages, by path.
fn read(root: &Path) -> anyhow::Result<BTreeMap<String, Page>> {
    let mut pages = BTreeMap::new();
    for place in PAGES {
        ensure!(root.join(place).exists(), "{place} is in PAGES, but does not exist");
        for file in files_below(&root.join(place))?.iter().filter(|it| it.extension().is_some_and(|it| it == "md")) {
            let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
            let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
            pages.insert(name, Page::parse(&text));
        }
    }
    Ok(pages)
}

/// Compares the marked figures with the benchmarks. With `write`, it writes them to the pages. Then only a wrong source
/// is a fault.
fn figures(root: &Path, pages: &BTreeMap<String, Page>, write: bool, faults: &mut Vec<Fault>) -> anyhow::Result<usize> {
    let results = Results::read(&root.join("docs/benchmarks"))?;
    let mut figures = 0;
    for name in pages.keys() {
        let file = root.join(name);
        let text = fs::read_to_string(&file).with_context(|| format!("read {name}"))?;
        let mut renewed = results.renew(&text);
        if write && renewed.text != text {
            fs::write(&file, &renewed.text).with_context(|| format!("write {name}"))?;
            renewed = results.renew(&renewed.text);
            println!("{name}: written");
        }
        figures += renewed.figures;
        faults.extend(renewed.faults.into_iter().map(|(line, what)| Fault { page: name.clone(), line, what }));
    }
    Ok(figures)
}

/// Checks that the file of every link within the checkout exists, and also the heading if the link names one.
fn links(root: &Path, pages: &BTreeMap<String, Page>, faults: &mut Vec<Fault>) {
    for (name, page) in pages {
        for (line, target) in &page.links {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(file, at)| (file, Some(at)));
            let place = if file.is_empty() { name.clone() } else { markdown::relative_to(name, file) };
            let mut fault = |what: String| faults.push(Fault { page: name.clone(), line: *line, what });
            if !pages.contains_key(&place) && !root.join(&place).exists() {
                fault(format!("the link {target} is broken: {place} does not exist"));
            } else if let (Some(anchor), Some(page)) = (anchor, pages.get(&place))
                && !page.headings.contains(anchor)
            {
                fault(format!("the link {target} is broken: {place} has no heading #{anchor}"));
            }
            // The site contains only the pages of docs.
            if name.starts_with("docs/") && !place.starts_with("docs/") {
                fault(format!("{target} is not a page of the manual: write the path without a link"));
            }
        }
    }
}

/// Checks that the site's table of contents lists every page below docs.
fn summary(pages: &BTreeMap<String, Page>, faults: &mut Vec<Fault>) -> anyhow::Result<()> {
    let summary = pages.get(SUMMARY).with_context(|| format!("no {SUMMARY}"))?;
    let listed: Vec<String> = summary.links.iter().map(|(_, target)| markdown::relative_to(SUMMARY, target)).collect();
    for name in pages.keys().filter(|name| name.starts_with("docs/") && *name != SUMMARY && !listed.contains(name)) {
        faults.push(Fault { page: SUMMARY.to_owned(), line: 1, what: format!("{name} is not listed") });
    }
    Ok(())
}

/// Collects the policies of all pages, by page and line. Other YAML must be valid and marked.
fn blocks(pages: &BTreeMap<String, Page>, faults: &mut Vec<Fault>) -> Vec<(String, String)> {
    let mut policies = Vec::new();
    for (name, page) in pages {
        for block in &page.blocks {
            let mut fault = |what: String| faults.push(Fault { page: name.clone(), line: block.line, what });
            match block.info.as_str() {
                "yaml" => match kinds(&block.text) {
                    Ok(kinds) if kinds.iter().any(|kind| kind == "RateLimitPolicy") => {
                        policies.push((format!("{}-{}.yaml", name.replace('/', "-"), block.line), block.text.clone()));
                    }
                    Ok(kinds) if kinds.iter().any(String::is_empty) => {
                        fault("an object without a kind: mark parts of objects as `yaml part`".to_owned());
                    }
                    Ok(_) => {}
                    Err(error) => fault(error.to_string()),
                },
                // These are objects of other programs, and parts of objects.
                "yaml foreign" | "yaml part" => {
                    if let Err(error) = kinds(&block.text) {
                        fault(error.to_string());
                    }
                }
                "" | "console" | "text" | "json" | "rust" | "sh" | "toml" | "js" | "python" => {}
                other => fault(format!("unknown kind of block: {other:?}")),
            }
        }
    }
    policies
}

fn kinds(text: &str) -> Result<Vec<String>, serde_yaml::Error> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| {
            let object = Value::deserialize(document)?;
            Ok(object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned())
        })
        .collect()
}

/// Checks the policies with the operator, which gives the same result as a cluster. Each policy is checked alone,
/// because several pages have policies with the same name.
fn check_policies(programs: &Path, policies: &[(String, String)]) -> anyhow::Result<bool> {
    let folder = tempfile::tempdir().context("make a temporary folder")?;
    let mut good = true;
    for (name, text) in policies {
        let file = folder.path().join(name);
        fs::write(&file, text).with_context(|| format!("write {name}"))?;
        let mut command = Command::new(programs.join("weir-operator"));
        let output = command.arg("check").arg(&file).output().context("run weir-operator check")?;
        let said = String::from_utf8_lossy(&output.stdout);
        for fault in said.lines().filter(|line| !line.contains(": ok (")) {
            println!("{}", fault.trim_start_matches(&format!("{}/", folder.path().display())));
        }
        if !output.status.success() && said.is_empty() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
        }
        good &= output.status.success();
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(check: impl FnOnce(&BTreeMap<String, Page>, &mut Vec<Fault>), pages: &[(&str, &str)]) -> Vec<String> {
        let pages = pages.iter().map(|(name, text)| ((*name).to_owned(), Page::parse(text))).collect();
        let mut faults = Vec::new();
        check(&pages, &mut faults);
        faults.into_iter().map(|fault| format!("{}:{}: {}", fault.page, fault.line, fault.what)).collect()
    }

    #[test]
    fn links_must_lead_somewhere() {
        let workspace = Workspace::find().expect("the workspace");
        let check = |text: &str| faults(|pages, all| links(workspace.root(), pages, all), &[("docs/a.md", text)]);
        assert_eq!(check("# A b\n[x](api.md) [y](#a-b) [z](https://example.com) ![p](pictures/parts.svg)\n"), [""; 0]);
        assert_eq!(
            check("[x](nothing.md)\n"),
            ["docs/a.md:1: the link nothing.md is broken: docs/nothing.md does not exist"]
        );
        assert_eq!(check("\n[x](#b)\n"), ["docs/a.md:2: the link #b is broken: docs/a.md has no heading #b"]);
        assert_eq!(
            check("[x](../README.md)\n"),
            ["docs/a.md:1: ../README.md is not a page of the manual: write the path without a link"]
        );
    }

    #[test]
    fn the_site_has_every_page() {
        let check = |listed: &str| {
            let pages = [("docs/SUMMARY.md", listed), ("docs/a.md", ""), ("README.md", "")];
            faults(|pages, all| summary(pages, all).expect("a summary"), &pages)
        };
        assert_eq!(check("- [A](a.md)\n"), [""; 0]);
        assert_eq!(check("- [B](b.md)\n"), ["docs/SUMMARY.md:1: docs/a.md is not listed"]);
    }

    #[test]
    fn yaml_is_yaml_and_says_what_it_is() {
        let check = |text: &str| faults(|pages, all| drop(blocks(pages, all)), &[("a.md", text)]);
        assert_eq!(check("```yaml\nkind: Service\n```\n```yaml part\na: 1\n```\n"), [""; 0]);
        assert_eq!(
            check("```yaml\na: 1\n```\n"),
            ["a.md:1: an object without a kind: mark parts of objects as `yaml part`"]
        );
        assert_eq!(check("```yaml foreign\na: [\n```\n").len(), 1);
        assert_eq!(check("```yamll\n```\n"), ["a.md:1: unknown kind of block: \"yamll\""]);
        let mut none = Vec::new();
        let page = BTreeMap::from([("d/a.md".to_owned(), Page::parse("\n```yaml\nkind: RateLimitPolicy\n```\n"))]);
        assert_eq!(blocks(&page, &mut none), [("d-a.md-2.yaml".to_owned(), "kind: RateLimitPolicy\n".to_owned())]);
    }
}
