//! Runs a fuzz target with random input for a given time, or until it fails. Each target is a test that `cargo test`
//! runs briefly, and this module finds it in the sources. `weir-core` has a separate fuzz program, which is built in
//! release mode. CONTRIBUTING.md lists the parsers, their targets and their oracles.

use std::{
    collections::BTreeMap,
    fs,
    process::{Command, ExitCode},
};

use anyhow::{Context as _, ensure};

use crate::workspace::{Workspace, files_below};

/// The target with a program of its own.
const CORE: &str = "core";
/// Targets with a harness of their own: the name, and the test in `weir-agent`.
const OF_AGENT: [(&str, &str); 2] = [
    ("http", "any_connection_behaves_alike_on_both_paths"),
    ("protocols", "any_request_is_the_same_in_both_protocols"),
];
/// The crates whose calls of the harness are no targets of cargo's tests.
const OTHERS: [&str; 3] = ["weir-core", "weir-fuzz", "xtask"];
const CALL: &str = "Target::new(\"";

#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    /// Target to fuzz
    #[arg(required_unless_present = "list")]
    target: Option<String>,
    /// List all targets with their tests
    #[arg(long)]
    list: bool,
    /// Seconds to run
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Run only this input, as a failure has printed it: in hex, or as a seed of `http` and `protocols`
    #[arg(long, value_name = "HEX|SEED")]
    replay: Option<String>,
}

/// The test of a target: its package, the kind of its binary, and its name.
type Test = [String; 3];

pub(crate) fn run(workspace: &Workspace, args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let targets = targets(workspace)?;
    let Some(name) = args.target.as_ref().filter(|_| !args.list) else {
        println!("{CORE:14}weir-core: the program examples/fuzz");
        for (name, [package, _, test]) in &targets {
            println!("{name:14}{package}: {test}");
        }
        return Ok(ExitCode::SUCCESS);
    };
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).env("WEIR_FUZZ_SECONDS", args.seconds.to_string());
    if let Some(replay) = &args.replay {
        command.env("WEIR_FUZZ_REPLAY", replay);
    }
    if let Some([package, place, test]) = targets.get(name) {
        // The tests run in a debug build, because debug builds detect overflows, and `cargo test` has built them
        // already.
        command.args(["test", "--quiet", "-p", package, place, test, "--", "--nocapture"]);
    } else if name == CORE {
        command.args(["run", "--quiet", "--release", "-p", "weir-core", "--example", "fuzz"]);
    } else {
        eprintln!("fuzz: there is no target {name}: `cargo xtask fuzz --list` lists them");
        return Ok(ExitCode::from(2));
    }
    let status = command.status().context("run cargo")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the tests that use the harness, by the names of their targets.
fn targets(workspace: &Workspace) -> anyhow::Result<BTreeMap<String, Test>> {
    let of_agent =
        OF_AGENT.map(|(name, test)| (name.to_owned(), ["weir-agent", "--test=agent", test].map(str::to_owned)));
    let mut found = BTreeMap::from(of_agent);
    let packages = workspace.metadata.workspace_packages();
    for package in packages.into_iter().filter(|package| !OTHERS.contains(&package.name.as_str())) {
        let folder = package.manifest_path.parent().context("a manifest is in a folder")?.as_std_path();
        for sub in ["src", "tests"] {
            for path in files_below(&folder.join(sub))? {
                let name = path.display().to_string();
                if !(name.ends_with("fuzz.rs") || name.contains("/fuzz/") && name.ends_with(".rs")) {
                    continue;
                }
                let place = if sub == "src" { "--lib".to_owned() } else { "--test=fuzz".to_owned() };
                let text = fs::read_to_string(&path).with_context(|| format!("read {name}"))?;
                for (at, _) in text.match_indices(CALL) {
                    let target = text[at + CALL.len()..].split('"').next().unwrap_or_default();
                    let (before, function) = text[..at].rsplit_once("\nfn ").unwrap_or_default();
                    let test = function.split('(').next().unwrap_or_default();
                    ensure!(before.ends_with("#[test]"), "{name}: the function {test} is not a test");
                    let test = [package.name.to_string(), place.clone(), test.to_owned()];
                    ensure!(found.insert(target.to_owned(), test).is_none(), "{name}: {target} exists twice");
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the rows of the table: the parser, its target and its oracle.
    fn rows(contributing: &str) -> Vec<[String; 3]> {
        let table = contributing.split("\n## Fuzzing\n").nth(1).unwrap_or_default();
        let table = table.split("\n## ").next().unwrap_or_default();
        let lines = table.lines().filter(|line| line.starts_with('|')).skip(2);
        let cells =
            |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        lines.map(|line| cells(line).try_into().unwrap_or_else(|cells| panic!("{cells:?} is not a row"))).collect()
    }

    #[test]
    fn the_table_names_every_target_once_and_no_other() {
        let workspace = Workspace::find().expect("the workspace");
        let text = fs::read_to_string(workspace.root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
        let rows = rows(&text);
        let mut named: Vec<String> = rows.iter().map(|[_, target, _]| target.trim_matches('`').to_owned()).collect();
        named.sort();
        let mut found: Vec<_> = targets(&workspace).expect("tests").into_keys().chain([CORE.to_owned()]).collect();
        found.sort();
        assert_eq!(named, found);
        assert!(rows.iter().flatten().all(|cell| !cell.is_empty()), "{rows:?}");
    }

    #[test]
    fn targets_with_a_harness_of_their_own_exist_and_say_how_to_run_them() {
        let workspace = Workspace::find().expect("the workspace");
        for ((name, test), file) in OF_AGENT.into_iter().zip(["differential.rs", "hostile.rs"]) {
            let file = workspace.root().join("limiter-agent/tests/agent").join(file);
            let text = fs::read_to_string(&file).expect("a file");
            assert!(text.contains(&format!("async fn {test}()")), "{} has no {test}", file.display());
            assert!(text.contains(&format!("cargo xtask fuzz {name}")), "{} does not name the command", file.display());
        }
    }
}
