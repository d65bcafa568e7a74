//! `cargo xtask tidy`: checks the rules of this project that no compiler checks. Each violation names its place and the
//! fix.
//!
//! The checks only read files.

pub(crate) mod charts;
mod dependencies;
mod examples;
mod glossary;
mod layers;
mod sources;
mod type_names;
mod words;

use std::{fmt, process::ExitCode};

use crate::workspace::Workspace;

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The file of the violation, with the line if it is known.
    place: String,
    fault: String,
    fix: String,
}

impl Violation {
    fn new(place: impl Into<String>, fault: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { place: place.into(), fault: fault.into(), fix: fix.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  fix: {}", self.place, self.fault, self.fix)
    }
}

pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<ExitCode> {
    let mut violations = dependencies::check(&dependencies::Tree::read(&workspace.metadata)?);
    violations.extend(layers::check(workspace)?);
    violations.extend(charts::check(workspace)?);
    violations.extend(type_names::check(workspace)?);
    violations.extend(words::check(workspace)?);
    violations.extend(glossary::check(workspace.root())?);
    let sources = sources::check(workspace)?;
    violations.extend(sources.violations);
    for violation in &violations {
        println!("error: {violation}");
    }
    println!("tidy: {} files, {} violations", sources.files, violations.len());
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
