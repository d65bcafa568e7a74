//! `weir-operator check`: validates policies as a cluster would, without a cluster, and prints the result for people or
//! for programs.

mod format;
mod lint;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use clap::ValueEnum;

use crate::{
    documents::{self, Finding, TextPosition},
    source::{
        listing::{Found, LARGEST, STATUS_SUFFIX, find, is_input},
        status_file::is_status_text,
    },
    world::{Fault, ObjectKey},
};

/// The rule id for every fault that a cluster would refuse.
const INVALID: &str = "invalid";
/// The rule id for a text without the required policy.
const NO_POLICY: &str = "no-policy";

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Every policy is valid.
    Good,
    /// Some policy has faults.
    Faulty,
    /// Some file cannot be read.
    Unreadable,
}

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// One line for each fault and each valid file
    #[default]
    Text,
    /// One JSON object
    Json,
    /// Annotations of GitHub Actions
    Github,
    /// SARIF 2.1.0, which code scanners and editors read
    Sarif,
}

/// The paths to check, and how strictly.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Files, directories of files, and `-` for standard input.
    pub paths: Vec<PathBuf>,
    /// True to include subdirectories.
    pub recursive: bool,
    /// True if a path without any policy is a fault.
    pub require_policies: bool,
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct CheckReport {
    files: Vec<Checked>,
    /// Each path that could not be read, with the reason.
    unreadable: Vec<(String, String)>,
}

#[derive(Debug)]
struct Checked {
    name: String,
    policies: usize,
    problems: Vec<Problem>,
}

#[derive(Debug)]
struct Problem {
    /// True for a warning: a cluster accepts the policy nevertheless.
    is_warning: bool,
    rule: &'static str,
    finding: Finding,
}

impl CheckOptions {
    /// Checks all paths.
    pub fn report(&self) -> CheckReport {
        let mut report = CheckReport::default();
        for path in &self.paths {
            if path.is_dir() { self.directory(path, &mut report) } else { self.file(path, &mut report) }
        }
        report
    }

    fn file(&self, path: &Path, report: &mut CheckReport) {
        let name = path.display().to_string();
        match read(path) {
            Err(error) => report.unreadable.push((name, error.to_string())),
            // `*.yaml` includes the files that standalone mode writes next to its policies.
            Ok(text) if name.ends_with(STATUS_SUFFIX) && std::str::from_utf8(&text).is_ok_and(is_status_text) => {}
            Ok(text) => {
                let (mut checked, _) = check(name, &text);
                if self.require_policies && checked.policies == 0 && checked.problems.is_empty() {
                    let message = "contains no policy: a document with kind RateLimitPolicy must be here";
                    checked.problems.push(Problem::at_start(NO_POLICY, message));
                }
                report.files.push(checked);
            }
        }
    }

    /// Checks a directory as standalone mode would read it.
    fn directory(&self, path: &Path, report: &mut CheckReport) {
        let display = path.display().to_string();
        let names = match find(path, self.recursive) {
            Err(error) => return report.unreadable.push((display, error.to_string())),
            Ok(Found { names, hidden }) if names.is_empty() && hidden.is_empty() => {
                let problem = "no .yaml, .yml or .json file is in this directory";
                if self.require_policies {
                    let problems = vec![Problem::at_start(NO_POLICY, problem)];
                    return report.files.push(Checked { name: display, policies: 0, problems });
                }
                return report.unreadable.push((display, problem.to_owned()));
            }
            Ok(Found { names, hidden }) => {
                // An input file that cannot be seen is in `names`, too.
                let hidden =
                    hidden.into_iter().filter(|(below, _)| !is_input(below.rsplit('/').next().unwrap_or(below)));
                let hidden = hidden.map(|(below, error)| (path.join(below).display().to_string(), error.to_string()));
                report.unreadable.extend(hidden);
                names
            }
        };
        let mut known: BTreeMap<(&str, ObjectKey), String> = BTreeMap::new();
        let mut found = false;
        for name in names {
            let path = path.join(&*name);
            let name = path.display().to_string();
            match read(&path) {
                Err(error) => report.unreadable.push((name, error.to_string())),
                Ok(text) => {
                    let (mut checked, objects) = check(name.clone(), &text);
                    found |= checked.policies > 0 || !checked.problems.is_empty();
                    for (object, finding) in objects {
                        if let Some(first) = known.get(&object) {
                            let (kind, key) = object;
                            let message = format!("{kind} {key} is already in {first}: give one of them another name");
                            let fault = Fault { message, ..finding.fault };
                            let finding = Finding { fault, ..finding };
                            checked.problems.push(Problem { is_warning: false, rule: INVALID, finding });
                        } else {
                            known.insert(object, name.clone());
                        }
                    }
                    report.files.push(checked);
                }
            }
        }
        if self.require_policies && !found {
            let problems = vec![Problem::at_start(NO_POLICY, "no file in this directory contains a policy")];
            report.files.push(Checked { name: display, policies: 0, problems });
        }
    }
}

impl CheckReport {
    /// Returns the overall result.
    pub fn result(&self) -> CheckResult {
        let mut problems = self.files.iter().flat_map(|file| &file.problems);
        if !self.unreadable.is_empty() {
            CheckResult::Unreadable
        } else if problems.any(|problem| !problem.is_warning) {
            CheckResult::Faulty
        } else {
            CheckResult::Good
        }
    }
}

impl Problem {
    fn at_start(rule: &'static str, message: &str) -> Self {
        let fault = Fault { path: String::new(), message: message.to_owned() };
        Self { is_warning: false, rule, finding: Finding { place: TextPosition { line: 1, column: 1 }, fault } }
    }
}

/// Reads a file, a pipe or standard input, even if it is not text.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().lock().take(LARGEST + 1).read_to_end(&mut bytes)?;
    } else {
        File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// The kind and the name of an object, and the place of the name.
type Named = ((&'static str, ObjectKey), Finding);

/// Checks a text. Returns its policies and stores.
fn check(name: String, bytes: &[u8]) -> (Checked, Vec<Named>) {
    let mut checked = Checked { name, policies: 0, problems: Vec::new() };
    if bytes.len() as u64 > LARGEST {
        let message = format!("is larger than {LARGEST} bytes: split it");
        checked.problems.push(Problem::at_start(INVALID, &message));
        return (checked, Vec::new());
    }
    let mut text = match std::str::from_utf8(bytes) {
        Ok(text) => documents::read(text),
        Err(error) => {
            let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
            let mut problem = Problem::at_start(INVALID, "is not UTF-8 from here on: save it as UTF-8");
            let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
            problem.finding.place = TextPosition { line: before.matches('\n').count() + 1, column };
            checked.problems.push(problem);
            return (checked, Vec::new());
        }
    };
    checked.policies = text.policies.len();
    let mut names = Vec::new();
    let fault = |finding| Problem { is_warning: false, rule: INVALID, finding };
    checked.problems.extend(std::mem::take(&mut text.cluster_findings).into_iter().map(fault));
    for document in &text.policies {
        if let Some(key) = &document.key {
            names.push((("policy", key.clone()), document.finding("metadata.name", "")));
        }
        if let Ok(spec) = &document.policy {
            let warnings = lint::lint(spec).into_iter();
            checked.problems.extend(warnings.map(|warning| Problem {
                is_warning: true,
                rule: warning.rule,
                finding: document.finding(&warning.path, warning.message),
            }));
        }
    }
    names.extend(std::mem::take(&mut text.store_names).into_iter().map(|(key, finding)| (("store", key), finding)));
    match text.policies() {
        Ok(_) => {}
        Err(broken) => {
            checked.problems.extend(broken.findings.into_iter().map(fault));
            // Duplicates within one text were reported already.
            names.sort_by(|one, other| one.0.cmp(&other.0));
            names.dedup_by(|one, other| one.0 == other.0);
        }
    }
    checked.problems.sort_by_key(|problem| problem.finding.place);
    (checked, names)
}

#[cfg(test)]
mod tests;
