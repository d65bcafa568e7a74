//! Checks single files: how they must begin, and which text they must not contain.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::{Violation, examples};
use crate::workspace::{Workspace, files_below};

/// The maximum number of lines of code in a file, without comments, blank lines and tests. A longer file contains more
/// than one idea.
const LONGEST: usize = 400;

/// The folders of a package that contain Rust files.
const FOLDERS: [&str; 5] = ["src", "tests", "benches", "examples", "fuzz"];

/// The text that lifts clippy's ban on clocks. It is concatenated, so that this file does not contain it.
const CLOCK: &str = concat!("expect(clippy::", "disallowed_methods");

/// The words that must not be committed. They are concatenated, so that this file does not contain them.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimplement", "ed!(")];

const IGNORED: &str = concat!("#[", "ignore");

pub(super) struct Findings {
    pub(super) files: usize,
    pub(super) violations: Vec<Violation>,
}

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Findings> {
    let mut findings = Findings { files: 0, violations: Vec::new() };
    let root = read(&workspace.root().join("Cargo.toml"))?;
    for package in workspace.metadata.workspace_packages() {
        let manifest = package.manifest_path.as_std_path();
        let text = read(manifest)?;
        findings.violations.extend(check_manifest(&place(workspace, manifest), &text, &root));
        let folder = manifest.parent().expect("a manifest is in a folder");
        for sub in FOLDERS {
            for file in rust_files(&folder.join(sub))? {
                findings.files += 1;
                let place = place(workspace, &file);
                let text = read(&file)?;
                findings.violations.extend(check_source(&place, &text, sub == "src" && !holds_only_tests(&place)));
                if sub == "src" && examples::LIBRARIES.contains(&package.name.as_str()) {
                    findings.violations.extend(examples::check(&place, &text));
                }
                findings.violations.extend(check_length(&place, &text));
            }
        }
    }
    Ok(findings)
}

/// Checks that each crate uses the lints of the workspace. A crate that must lift the ban on unsafe code cannot inherit
/// them, because `forbid` cannot be overridden. Its manifest must repeat all of them.
fn check_manifest(place: &str, text: &str, root: &str) -> Option<Violation> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    let section = lines.by_ref().take_while(|line| !line.starts_with('['));
    let inherits = section.into_iter().any(|line| line.replace(' ', "") == "workspace=true");
    let own = lints(text, "[lints.");
    (!inherits && (own.is_empty() || own != lints(root, "[workspace.lints."))).then(|| {
        Violation::new(
            place,
            "the crate does not use the lints of the workspace",
            "add [lints] workspace = true, or all of [workspace.lints] with unsafe_code = \"deny\" where one module lifts it",
        )
    })
}

/// Returns the lines of the tables whose names begin with `tables`, without comments. `forbid` of unsafe code is
/// replaced by `deny`.
fn lints(text: &str, tables: &str) -> Vec<String> {
    let mut inside = false;
    let mut lints = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if line.starts_with('[') {
            inside = line.starts_with(tables);
        }
        if inside && !line.is_empty() {
            lints.push(line.replace(tables, "[").replace("unsafe_code = \"forbid\"", "unsafe_code = \"deny\""));
        }
    }
    lints
}

fn check_source(place: &str, text: &str, wants_docs: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    if wants_docs && !first.starts_with("//!") {
        violations.push(Violation::new(
            place,
            "the module has no description",
            "begin with a paragraph of //! about its purpose, and about what it must never do",
        ));
    }
    if place.ends_with("/mod.rs") && !is_shared_by_tests(place) {
        violations.push(Violation::new(
            place,
            "a module in a file mod.rs",
            "name the file after its module: x.rs next to the folder x",
        ));
    }
    for (index, line) in text.lines().enumerate() {
        let here = || format!("{place}:{}", index + 1);
        for word in UNFINISHED.iter().filter(|word| line.contains(**word)) {
            violations.push(Violation::new(
                here(),
                format!("unfinished: {}", word.trim_end_matches('(')),
                "finish it, or open an issue",
            ));
        }
        let for_tests = line.starts_with("#![cfg_attr(test, ");
        if wants_docs && !place.ends_with("src/clock.rs") && line.contains(CLOCK) && !for_tests {
            violations.push(Violation::new(
                here(),
                "a file other than src/clock.rs that reads the clock",
                "call the crate's src/clock.rs, or take the time as an argument",
            ));
        }
        if line.trim_start().starts_with(IGNORED) {
            violations.push(Violation::new(
                here(),
                "a test that does not run",
                "run it, put it behind a feature that `cargo xtask test` enables, or remove it",
            ));
        }
    }
    violations
}

fn check_length(place: &str, text: &str) -> Option<Violation> {
    let own = text.split_once("#[cfg(test)]\nmod tests {").map_or(text, |(own, _)| own);
    let lines = own.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).count();
    (lines > LONGEST && !holds_only_tests(place)).then(|| {
        Violation::new(
            place,
            format!("{lines} lines of code, more than {LONGEST}"),
            "split the file: one idea per file",
        )
    })
}

/// Returns true for a module that several integration tests share. It must be a `mod.rs`, because cargo would build
/// `tests/x.rs` as a test.
fn is_shared_by_tests(place: &str) -> bool {
    place.rsplit('/').nth(2) == Some("tests")
}

/// Returns true if the file contains only tests. Such a file needs no description, because the tested module has one.
pub(super) fn holds_only_tests(place: &str) -> bool {
    place.contains("/tests/") || place.ends_with("_tests.rs") || place.ends_with("/tests.rs")
}

pub(super) fn rust_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
    Ok(files_below(folder)?.into_iter().filter(is_rust).collect())
}

pub(super) fn place(workspace: &Workspace, path: &Path) -> String {
    path.strip_prefix(workspace.root()).unwrap_or(path).display().to_string()
}

pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str, wants_docs: bool) -> Vec<(String, String)> {
        let violations = check_source("a.rs", text, wants_docs);
        violations.into_iter().map(|violation| (violation.place, violation.fault)).collect()
    }

    #[test]
    fn a_clean_file_passes() {
        assert_eq!(faults("\n//! What it is for.\n\nfn f() {}\n", true), []);
    }

    #[test]
    fn a_module_without_docs_is_found_under_src_only() {
        assert_eq!(faults("use a;\n//! late\n", true).len(), 1);
        assert_eq!(faults("use a;\n", false), []);
        assert_eq!(faults("", true).len(), 1);
    }

    #[test]
    fn modules_have_one_layout() {
        let of = |place| check_source(place, "//! Docs.\n", false).len();
        assert_eq!(of("crates/a/src/b/mod.rs"), 1);
        assert_eq!(of("crates/a/tests/agent/b/mod.rs"), 1);
        assert_eq!(of("crates/a/src/b.rs") + of("crates/a/tests/b/mod.rs"), 0);
    }

    #[test]
    fn unfinished_work_is_found_with_its_line() {
        let text = format!("//! Docs.\n// {}: later\nfn f() {{ {}) }}\n", UNFINISHED[0], UNFINISHED[2]);
        let places: Vec<_> = faults(&text, true).into_iter().map(|(place, _)| place).collect();
        assert_eq!(places, ["a.rs:2", "a.rs:3"]);
    }

    #[test]
    fn only_the_clock_file_may_lift_the_ban_on_clocks() {
        let text = |before: &str| format!("//! Docs.\n{before}{CLOCK}, reason = \"x\")]\n");
        assert_eq!(faults(&text("    #["), true).len(), 1);
        assert_eq!(faults(&text("#!["), true).len(), 1);
        assert_eq!(faults(&text("#![cfg_attr(test, "), true), []);
        assert_eq!(faults(&text("#!["), false), [], "tests are allowed to read clocks");
        assert!(check_source("crates/a/src/clock.rs", &text("#!["), true).is_empty());
    }

    #[test]
    fn a_test_that_does_not_run_is_found() {
        let text = format!("//! Docs.\n    {IGNORED} = \"slow\"]\n// {IGNORED}] in a comment\n");
        assert_eq!(faults(&text, true), [("a.rs:2".to_owned(), "a test that does not run".to_owned())]);
    }

    #[test]
    fn lints_must_come_from_the_workspace() {
        let check = |text| check_manifest("Cargo.toml", text, "[workspace.lints.rust]\n");
        assert!(check("[package]\n[lints]\nworkspace = true\n[dependencies]\n").is_none());
        assert!(check("[package]\nworkspace = true\n").is_some());
        assert!(check("[lints]\n[dependencies]\nworkspace = true\n").is_some());
        assert!(check("[lints.rust]\nunsafe_code = \"allow\"\n").is_some());
    }

    #[test]
    fn own_lints_must_be_those_of_the_workspace_but_for_unsafe_code() {
        let root = "[workspace.lints.rust]\nunsafe_code = \"forbid\" # but\nmissing_docs = \"warn\"\n[profile.dev]\ndebug = 1\n";
        let check = |text| check_manifest("Cargo.toml", text, root);
        assert!(
            check("[lints.rust]\n# Why.\nunsafe_code = \"deny\"\nmissing_docs = \"warn\"\n[dependencies]\n").is_none()
        );
        assert!(check("[lints.rust]\nunsafe_code = \"allow\"\nmissing_docs = \"warn\"\n").is_some());
        assert!(check("[lints.rust]\nunsafe_code = \"deny\"\n").is_some());
    }

    #[test]
    fn a_file_is_long_by_its_lines_of_code() {
        let code = "let x = 1; // why\n\n    // why\n/// what\n".repeat(LONGEST);
        assert!(check_length("a.rs", &format!("{code}#[cfg(test)]\nmod tests {{\n{code}")).is_none());
        assert!(check_length("a.rs", &format!("#[cfg(test)]\nmod a_tests;\n{code}")).is_some());
        assert!(check_length("a.rs", &format!("{code}x\n")).is_some());
        assert!(check_length("a/tests/b.rs", &format!("{code}x\n")).is_none());
    }
}
