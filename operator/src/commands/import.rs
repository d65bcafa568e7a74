//! `weir-operator import`: writes policies that do what the configuration of another limiter does.

mod envoy_ratelimit;
mod names;
mod tree;
mod words;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};

use crate::{documents, source::listing::bounded, world::Fault};

/// The configuration to import.
#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// Files of envoyproxy/ratelimit: the policies are for `weir-agent rls`
    ///
    /// Prints the policies on standard output, and what has no equivalent on standard error. Exit code 0: all limits were
    /// imported; 1: some limit has no equivalent, and nothing is printed; 2: a flag is not valid, or a file cannot be
    /// read.
    EnvoyRatelimit(EnvoyRatelimit),
}

/// The files of envoyproxy/ratelimit, and the policies to write.
#[derive(Debug, Args)]
pub(crate) struct EnvoyRatelimit {
    /// Files, each with all descriptors of one domain, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The pods of the service
    #[arg(long, value_name = "KIND/NAME", default_value = "Deployment/weir-operator-rate-limit", value_parser = target)]
    target: Target,
    /// Labels of the pods of the service, in place of --target; needed without a cluster
    #[arg(long, value_name = "LABEL=VALUE", value_delimiter = ',', value_parser = label, conflicts_with = "target")]
    selector: Vec<(String, String)>,
    /// Which replicas count together
    #[arg(long, value_enum, default_value = "fleet")]
    scope: Scope,
    /// The RateLimitStore that counts, with --scope shared
    #[arg(long, value_name = "NAME", required_if_eq("scope", "shared"))]
    store: Option<String>,
}

/// The target of the policies.
#[derive(Clone, Debug)]
struct Target {
    kind: String,
    name: String,
}

/// The scope of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// All replicas together, without a store
    Fleet,
    /// All replicas together, in a store
    Shared,
    /// Each replica alone
    Pod,
}

/// The result of an import.
#[derive(Debug)]
pub(crate) enum Imported {
    /// The policies as YAML, and notes about parts without an effect.
    Policies(String, Vec<String>),
    /// The parts that have no equivalent in Weir, each with the reason.
    Refused(Vec<String>),
    /// The flags that are not valid, or the files that cannot be read.
    Unreadable(Vec<String>),
}

impl Import {
    /// Imports the files.
    pub(crate) fn run(&self) -> Imported {
        let Self::EnvoyRatelimit(arguments) = self;
        let wrong = arguments.faults();
        if !wrong.is_empty() {
            return Imported::Unreadable(wrong);
        }
        let (mut text, mut notes, mut faults, mut unreadable) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        let mut taken = names::Names::default();
        let mut domains = BTreeMap::new();
        for path in &arguments.files {
            let place = |message: String| format!("{}: {message}", path.display());
            let file = match read(path) {
                Ok(file) => file,
                Err(error) => {
                    unreadable.push(place(error.to_string()));
                    continue;
                }
            };
            let imported = envoy_ratelimit::file(&file).and_then(|file| {
                // The limit that applies depends on all descriptors of a domain.
                if let Some(first) = domains.insert(file.domain.clone(), path) {
                    let (domain, first) = (&file.domain, first.display());
                    let fix = "put all descriptors of a domain into one file";
                    return Err(vec![format!("domain: {domain:?} is already in {first}: {fix}")]);
                }
                envoy_ratelimit::import(&file, arguments, &mut taken)
            });
            match imported {
                Ok((policies, more)) => {
                    text.extend(policies.iter().map(|policy| format!("---\n{policy}")));
                    notes.extend(more.into_iter().map(place));
                }
                Err(more) => faults.extend(more.into_iter().map(place)),
            }
        }
        if !unreadable.is_empty() {
            return Imported::Unreadable(unreadable);
        }
        if faults.is_empty() { Imported::Policies(text, notes) } else { Imported::Refused(faults) }
    }
}

impl EnvoyRatelimit {
    /// Returns the flags that are not valid, and how to write them.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.store.is_some() && self.scope != Scope::Shared {
            faults.push("--store: is valid only with --scope shared: add --scope shared, or remove --store".to_owned());
        }
        for (index, (label, _)) in self.selector.iter().enumerate() {
            if self.selector[..index].iter().any(|(earlier, _)| earlier == label) {
                faults.push(format!("--selector: has the label {label} twice: keep one of them"));
            }
        }
        if let Err(broken) = documents::read(&envoy_ratelimit::sample(self)).policies() {
            faults.extend(broken.findings.into_iter().map(|finding| of_flag(&finding.fault)));
        }
        faults
    }
}

/// Names the flag that causes a fault of a policy.
fn of_flag(fault: &Fault) -> String {
    let flags = [("spec.targetRefs", "--target"), ("spec.selector", "--selector"), ("spec.rules", "--store")];
    let flag = flags.iter().find(|(path, _)| fault.path.starts_with(path));
    // Users of the flag do not know this field.
    let message = fault.message.trim_start_matches("matchLabels ");
    format!("{}: {message}", flag.map_or(&*fault.path, |(_, flag)| flag))
}

fn read(path: &Path) -> io::Result<String> {
    if path == Path::new("-") { bounded(io::stdin().lock()) } else { bounded(fs::File::open(path)?) }
}

fn target(text: &str) -> Result<Target, String> {
    match text.split_once('/') {
        Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
            Ok(Target { kind: kind.to_owned(), name: name.to_owned() })
        }
        _ => Err("must be a kind and a name, such as Deployment/weir-operator-rate-limit".to_owned()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((label, value)) if !label.is_empty() => Ok((label.to_owned(), value.to_owned())),
        _ => Err("must be a label and its value, such as app=gateway".to_owned()),
    }
}

#[cfg(test)]
mod tests;
