//! `cargo xtask manual`: checks the pages. Links must lead somewhere, policies must be valid, commands must name
//! existing things, and figures of benchmarks must be those that the benchmarks wrote.
//!
//! It reads pages and runs `weir-operator check` and `--help`, as readers do. Only `--figures` changes pages.
//! `e2e/tests/manual.rs` applies the objects of the pages to a cluster.

mod book;
mod commands;
mod fields;
mod figures;
mod markdown;

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
use crate::workspace::Workspace;

/// Folders of pages, and single pages.
const PAGES: [&str; 7] =
    ["docs", "charts", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "e2e/airgap/README.md"];

/// The table of contents of the site.
const SUMMARY: &str = "docs/SUMMARY.md";

/// A fault of a page.
struct Fault {
    page: String,
    line: usize,
    what: String,
}

#[derive(clap::Args)]
pub(crate) struct ManualArgs {
    /// Folder of weir-operator and weir-agent; without it, both are built
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Build the site with mdBook into target/manual instead, and check its links
    #[arg(long, conflicts_with = "programs")]
    book: bool,
    /// Only write the benchmarks' figures into the pages that show them
    #[arg(long, conflicts_with_all = ["programs", "book"])]
    figures: bool,
}

pub(crate) fn run(workspace: &Workspace, args: ManualArgs) -> anyhow::Result<ExitCode> {
    if args.book {
        return site(workspace.root());
    }
    let pages = read(workspace.root())?;
    let mut faults = Vec::new();
    let figures = figures(workspace.root(), &pages, args.figures, &mut faults)?;
    if args.figures {
        return Ok(report(&faults, &format!("{figures} figures")));
    }
    let programs = args.programs.map_or_else(|| build(workspace), Ok)?;
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
    ensure!(policies.len() > 10 && run > 20 && figures > 20, "hardly anything was found to check");
    Ok(if good { code } else { ExitCode::FAILURE })
}

fn report(faults: &[Fault], checked: &str) -> ExitCode {
    for Fault { page, line, what } in faults {
        println!("{page}:{line}: {what}");
    }
    println!("manual: {checked}, {} faults", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How to install mdBook, which Debian does not package.
const INSTALL: &str = "cargo install mdbook --locked";

fn site(root: &Path) -> anyhow::Result<ExitCode> {
    let book::Site::Built { pages, faults } = book::build(root)? else {
        eprintln!("mdbook is not in PATH: {INSTALL} (some minutes)");
        return Ok(ExitCode::from(2));
    };
    Ok(report(&faults, &format!("{pages} pages of a site")))
}

/// Builds both programs like the tests with an apiserver, so that nothing is compiled twice.
fn build(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--package", "weir-operator", "--package", "weir-agent"]);
    let status = cargo.current_dir(workspace.root()).status().context("run cargo")?;
    ensure!(status.success(), "cannot build the operator and the agent");
    Ok(workspace.target().join("debug"))
}

/// All pages by their path.
fn read(root: &Path) -> anyhow::Result<BTreeMap<String, Page>> {
    let mut pages = BTreeMap::new();
    let mut places: Vec<PathBuf> = PAGES.iter().map(|place| root.join(place)).collect();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            let entries = fs::read_dir(&place).with_context(|| format!("read {}", place.display()))?;
            places.extend(entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?);
        } else if place.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&place).with_context(|| format!("read {}", place.display()))?;
            let name = place.strip_prefix(root).unwrap_or(&place).display().to_string();
            pages.insert(name, Page::parse(&text));
        }
    }
    Ok(pages)
}

/// Marked figures are those of the benchmarks. If `write`, the pages get them, and only sources can be wrong.
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

/// Every link within the checkout leads to a file, and to a heading of it if it names one.
fn links(root: &Path, pages: &BTreeMap<String, Page>, faults: &mut Vec<Fault>) {
    for (name, page) in pages {
        for (line, target) in &page.links {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target.as_str(), None), |(file, at)| (file, Some(at)));
            let place = if file.is_empty() { name.clone() } else { markdown::beside(name, file) };
            let mut fault = |what: String| faults.push(Fault { page: name.clone(), line: *line, what });
            if !pages.contains_key(&place) && !root.join(&place).exists() {
                fault(format!("{target} leads nowhere: there is no {place}"));
            } else if let (Some(anchor), Some(page)) = (anchor, pages.get(&place))
                && !page.headings.contains(anchor)
            {
                fault(format!("{target} leads nowhere: {place} has no heading #{anchor}"));
            }
            // The site contains only what is in docs.
            if name.starts_with("docs/") && !place.starts_with("docs/") {
                fault(format!("{target} is not a page of the manual: write the path without a link"));
            }
        }
    }
}

/// The site has every page below docs.
fn summary(pages: &BTreeMap<String, Page>, faults: &mut Vec<Fault>) -> anyhow::Result<()> {
    let summary = pages.get(SUMMARY).with_context(|| format!("no {SUMMARY}"))?;
    let listed: Vec<String> = summary.links.iter().map(|(_, target)| markdown::beside(SUMMARY, target)).collect();
    for name in pages.keys().filter(|name| name.starts_with("docs/") && *name != SUMMARY && !listed.contains(name)) {
        faults.push(Fault { page: SUMMARY.to_owned(), line: 1, what: format!("{name} is not listed") });
    }
    Ok(())
}

/// The policies of all pages, by page and line. Other YAML must be valid YAML and must be marked.
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
                        fault("an object without a kind: mark a part of one as `yaml part`".to_owned());
                    }
                    Ok(_) => {}
                    Err(error) => fault(error.to_string()),
                },
                // Of other programs, and parts of objects.
                "yaml foreign" | "yaml part" => {
                    if let Err(error) = kinds(&block.text) {
                        fault(error.to_string());
                    }
                }
                "" | "console" | "text" | "json" | "rust" | "sh" => {}
                other => fault(format!("what is a block of {other:?}?")),
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

/// Checks them with the operator, which answers like a cluster. One by one, because pages show policies with the same
/// name.
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
        let workspace = Workspace::find().expect("these tests run in it");
        let check = |text: &str| faults(|pages, all| links(workspace.root(), pages, all), &[("docs/a.md", text)]);
        assert_eq!(check("# A b\n[x](api.md) [y](#a-b) [z](https://example.com) ![p](pictures/parts.svg)\n"), [""; 0]);
        assert_eq!(check("[x](nothing.md)\n"), ["docs/a.md:1: nothing.md leads nowhere: there is no docs/nothing.md"]);
        assert_eq!(check("\n[x](#b)\n"), ["docs/a.md:2: #b leads nowhere: docs/a.md has no heading #b"]);
        assert_eq!(
            check("[x](../README.md)\n"),
            ["docs/a.md:1: ../README.md is not a page of the manual: write the path without a link"]
        );
    }

    #[test]
    fn the_site_has_every_page() {
        let check = |listed: &str| {
            let pages = [("docs/SUMMARY.md", listed), ("docs/a.md", ""), ("README.md", "")];
            faults(|pages, all| summary(pages, all).expect("there is a summary"), &pages)
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
            ["a.md:1: an object without a kind: mark a part of one as `yaml part`"]
        );
        assert_eq!(check("```yaml foreign\na: [\n```\n").len(), 1);
        assert_eq!(check("```yamll\n```\n"), ["a.md:1: what is a block of \"yamll\"?"]);
        let mut none = Vec::new();
        let page = BTreeMap::from([("d/a.md".to_owned(), Page::parse("\n```yaml\nkind: RateLimitPolicy\n```\n"))]);
        assert_eq!(blocks(&page, &mut none), [("d-a.md-2.yaml".to_owned(), "kind: RateLimitPolicy\n".to_owned())]);
    }
}
