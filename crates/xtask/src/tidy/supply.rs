//! What may enter the dependency tree, by deny.toml: licences, packages that are refused, and where packages come from.
//!
//! The part of `cargo deny check` that needs no network. Advisories change while nothing here does: they are asked for by
//! `cargo deny check advisories`, where its database can be reached.

use anyhow::Context as _;
use cargo_metadata::Metadata;
use spdx::{Expression, LicenseReq, ParseMode};
use toml_edit::{Array, DocumentMut};

use super::Violation;

const RULES: &str = "deny.toml";

/// A package as it is judged.
struct Found<'a> {
    name: &'a str,
    license: Option<&'a str>,
    source: Source<'a>,
}

/// Where a package comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source<'a> {
    Ours,
    CratesIo,
    Other(&'a str),
}

pub(super) fn check(metadata: &Metadata) -> anyhow::Result<Vec<Violation>> {
    let path = metadata.workspace_root.join(RULES);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let found = metadata.packages.iter().map(|package| Found {
        name: package.name.as_str(),
        license: package.license.as_deref(),
        source: match &package.source {
            None => Source::Ours,
            Some(source) if source.is_crates_io() => Source::CratesIo,
            Some(source) => Source::Other(&source.repr),
        },
    });
    judge(&text, &found.collect::<Vec<_>>())
}

fn judge(rules: &str, found: &[Found<'_>]) -> anyhow::Result<Vec<Violation>> {
    let rules: DocumentMut = rules.parse().context(RULES)?;
    let licenses = list(&rules, "licenses", "allow")?.iter().filter_map(|value| value.as_str());
    let allowed: Vec<&str> = licenses.collect();
    let bans = list(&rules, "bans", "deny")?.iter().filter_map(|value| value.as_inline_table()?.get("name")?.as_str());
    let refused: Vec<&str> = bans.collect();
    let mut violations = Vec::new();
    for Found { name, license, source } in found.iter().filter(|package| package.source != Source::Ours) {
        let mut violation = |fault: String, mend: &str| violations.push(Violation::new(RULES, fault, mend));
        let license = license.unwrap_or_default();
        match Expression::parse_mode(license, ParseMode::LAX) {
            Ok(expression)
                if expression.evaluate(|license: &LicenseReq| allowed.contains(&license.to_string().as_str())) => {}
            Ok(_) => {
                violation(
                    format!("{name} has the licence {license}"),
                    "take another package, or allow it for a reason",
                );
            }
            Err(error) => {
                violation(format!("{name} has the licence {license:?}: {}", error.reason), "look at its files");
            }
        }
        if refused.iter().any(|refused| refused == name) {
            violation(format!("{name} is refused"), "the reason stands beside its name");
        }
        if let Source::Other(source) = source {
            violation(format!("{name} comes from {source}"), "take it from crates.io");
        }
    }
    Ok(violations)
}

fn list<'a>(rules: &'a DocumentMut, section: &str, name: &str) -> anyhow::Result<&'a Array> {
    let list = rules.get(section).and_then(|section| section.get(name)?.as_array());
    list.with_context(|| format!("{RULES} has no list {section}.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "
[licenses]
allow = ['MIT', 'Apache-2.0', 'Apache-2.0 WITH LLVM-exception']
[bans]
deny = [{ name = 'openssl', reason = 'one TLS stack' }]
";

    fn faults(name: &str, license: &str, source: Source<'_>) -> Vec<String> {
        let found = Found { name, license: Some(license), source };
        judge(RULES, &[found]).expect("rules").into_iter().map(|violation| violation.fault).collect()
    }

    #[test]
    fn licences_are_those_that_are_allowed() {
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/Apache-2.0",
            "(MIT OR BSL-1.0) AND Apache-2.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(faults("a", good, Source::CratesIo), [""; 0], "{good}");
        }
        assert_eq!(faults("a", "GPL-3.0", Source::CratesIo), ["a has the licence GPL-3.0"]);
        assert_eq!(faults("a", "MIT AND GPL-3.0", Source::CratesIo).len(), 1);
        assert_eq!(faults("a", "", Source::CratesIo).len(), 1);
        assert_eq!(faults("ours", "", Source::Ours), [""; 0]);
    }

    #[test]
    fn some_packages_and_other_sources_are_refused() {
        assert_eq!(faults("openssl", "MIT", Source::CratesIo), ["openssl is refused"]);
        assert_eq!(
            faults("a", "MIT", Source::Other("git+https://example.com/a")),
            ["a comes from git+https://example.com/a"]
        );
    }

    #[test]
    fn rules_that_say_nothing_are_an_error() {
        assert!(judge("", &[]).is_err());
    }
}
