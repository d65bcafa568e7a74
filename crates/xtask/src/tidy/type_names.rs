//! Checks that no two public types of a crate have the same name.
//!
//! Public types are those with `pub` or `pub(crate)`. Types for tests, and types that are visible only in a part of the
//! crate, are ignored.

use std::collections::BTreeMap;

use anyhow::Context as _;
use syn::{Attribute, Ident, Item, Visibility};

use super::{Violation, layers::is_for_tests, sources};
use crate::workspace::Workspace;

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let mut violations = Vec::new();
    for package in workspace.metadata.workspace_packages() {
        let folder = package.manifest_path.as_std_path().parent().context("a manifest has no folder")?;
        let mut files = Vec::new();
        for file in sources::rust_files(&folder.join("src"))? {
            let place = sources::place(workspace, &file);
            if !sources::holds_only_tests(&place) {
                files.push((place, sources::read(&file)?));
            }
        }
        violations.extend(check_crate(&files)?);
    }
    Ok(violations)
}

/// Checks the files of one crate, given as their places and texts.
fn check_crate(files: &[(String, String)]) -> anyhow::Result<Vec<Violation>> {
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, text) in files {
        let file = syn::parse_file(text).with_context(|| format!("parse {place}"))?;
        for ident in public_types(&file.items) {
            let line = ident.span().start().line;
            types.entry(ident.to_string()).or_default().push(format!("{place}:{line}"));
        }
    }
    let mut violations = Vec::new();
    for (type_name, places) in types {
        if let [first, others @ ..] = &places[..] {
            violations.extend(others.iter().map(|other| {
                let fault = format!("the public type {type_name} has the same name as the one at {first}");
                Violation::new(other, fault, "rename one of them")
            }));
        }
    }
    Ok(violations)
}

/// Collects the names of the public types in these items, and in the modules among them.
fn public_types(items: &[Item]) -> Vec<&Ident> {
    let mut names = Vec::new();
    for item in items {
        let (attributes, visibility, name): (&[Attribute], _, _) = match item {
            Item::Struct(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Enum(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Union(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Trait(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Type(it) => (&it.attrs, &it.vis, &it.ident),
            Item::Mod(it) if !is_for_tests(&it.attrs) => {
                names.extend(it.content.iter().flat_map(|(_, items)| public_types(items)));
                continue;
            }
            _ => continue,
        };
        if is_public(visibility) && !is_for_tests(attributes) {
            names.push(name);
        }
    }
    names
}

fn is_public(visibility: &Visibility) -> bool {
    match visibility {
        Visibility::Public(_) => true,
        Visibility::Restricted(restricted) => restricted.path.is_ident("crate"),
        Visibility::Inherited => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(place, text)| ((*place).to_owned(), (*text).to_owned())).collect();
        let violations = check_crate(&files).expect("the files parse");
        violations.into_iter().map(|violation| format!("{}: {}", violation.place, violation.fault)).collect()
    }

    #[test]
    fn two_public_types_of_one_name_are_refused() {
        for other in [
            "pub struct Place;", "pub(crate) enum Place {}", "pub trait Place {}", "pub type Place = u8;",
            "mod inner { pub(crate) struct Place; }",
        ] {
            assert_eq!(
                faults(&[("a.rs", "pub struct Place;\n"), ("b.rs", &format!("\n{other}"))]),
                ["b.rs:2: the public type Place has the same name as the one at a.rs:1"],
                "{other}"
            );
        }
    }

    #[test]
    fn private_types_types_for_tests_and_other_names_pass() {
        for other in [
            "struct Place;",
            "pub(super) struct Place;",
            "pub(in crate::b) struct Place;",
            "#[cfg(test)]\npub struct Place;",
            "#[cfg(test)]\nmod tests { pub struct Place; }",
            "pub struct Other;",
            "pub fn place() {}",
        ] {
            assert_eq!(faults(&[("a.rs", "pub struct Place;"), ("b.rs", other)]), [""; 0], "{other}");
        }
    }
}
