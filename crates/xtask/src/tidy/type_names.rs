//! Checks that no two public types have the same name: in a crate, and in the product's crates.
//!
//! Public types of a crate are those with `pub` or `pub(crate)`. Types for tests, and types that are visible only in a part
//! of the crate, are ignored. Only types with `pub` are compared between crates. A name stands for one idea there: the
//! types in [`IN_SEVERAL_CRATES`] are forms of one idea.

use std::collections::BTreeMap;

use anyhow::Context as _;
use syn::{Attribute, Ident, Item, Visibility};

use super::{Violation, layers::is_for_tests, sources};
use crate::workspace::Workspace;

/// The crates for development. Their types are not compared with those of other crates.
const FOR_DEVELOPMENT: [&str; 6] = ["weir-bench", "weir-e2e", "weir-fuzz", "weir-testapp", "weir-testbed", "xtask"];

/// The names that types of several crates may have, each with the reason.
const IN_SEVERAL_CRATES: &[(&str, &[&str])] = &[
    (
        "a part of a policy: in YAML (weir-api), on the wire (weir-wire), or in memory",
        &[
            "Action", "Ban", "Cost", "Deadline", "EntryMatch", "HeaderStyle", "HeadersOn", "KeyPart", "Limit",
            "LimitOverride", "Match", "Mode", "OnDeadline", "OnLimit", "OnMessage", "OnStoreLoss", "Override", "Per",
            "Policy", "ResponseHeader", "Rule", "SharedRule", "Strategy",
        ],
    ),
    ("a store: in YAML, on the wire, or its client", &["MemcachedStore", "RedisStore", "Store", "Topology"]),
    ("a part of a question: in the arithmetic of seats, and on the wire", &["BanChange"]),
    ("a path and a message: of a document, a policy or a snapshot", &["Fault"]),
    ("the same error of two programs", &["InvalidTls"]),
    ("a refusal by a limit in memory, and by one in a store", &["Refused"]),
    ("the requests of a minute: in the operator's memory, and in a status", &["Traffic"]),
    ("usual words for a response and its result: of a tower layer, and of a store on the wire", &["Answer", "Outcome"]),
];

/// This file.
const HERE: &str = "crates/xtask/src/tidy/type_names.rs";

/// A public type of one crate.
struct Type {
    name: String,
    place: String,
    /// True for a type with `pub`, false for a type with `pub(crate)`.
    is_exported: bool,
}

/// The names of the types with `pub`, each with the crates that have one, and its place there.
type TypesByName = BTreeMap<String, BTreeMap<String, String>>;

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let (mut violations, mut by_name) = (Vec::new(), TypesByName::new());
    for package in workspace.metadata.workspace_packages() {
        let folder = package.manifest_path.as_std_path().parent().context("a manifest has no folder")?;
        let mut files = Vec::new();
        for file in sources::rust_files(&folder.join("src"))? {
            let place = sources::place(workspace, &file);
            if !sources::holds_only_tests(&place) {
                files.push((place, sources::read(&file)?));
            }
        }
        let types = types(&files)?;
        violations.extend(check_crate(&types));
        if !FOR_DEVELOPMENT.contains(&package.name.as_str()) {
            for it in types.into_iter().filter(|it| it.is_exported) {
                by_name.entry(it.name).or_default().insert(package.name.to_string(), it.place);
            }
        }
    }
    violations.extend(check_between(&by_name, IN_SEVERAL_CRATES));
    Ok(violations)
}

/// Checks that only these names are those of types in several crates.
fn check_between(by_name: &TypesByName, allowed: &[(&str, &[&str])]) -> Vec<Violation> {
    let names = || allowed.iter().flat_map(|(_, names)| names.iter());
    let shared = |name: &str| by_name.get(name).filter(|places| places.len() > 1);
    let mut violations = Vec::new();
    for name in by_name.keys().filter(|name| !names().any(|known| known == name)) {
        let Some(places) = shared(name) else { continue };
        let places: Vec<_> = places.values().map(String::as_str).collect();
        let fault = format!("the public type {name} has the same name as the one at {}", places[1..].join(", "));
        violations.push(Violation::new(places[0], fault, format!("rename one of them, or add the name to {HERE}")));
    }
    let stale = names().filter(|name| shared(name).is_none());
    violations.extend(stale.map(|name| {
        Violation::new(HERE, format!("no two crates have a public type {name}"), "remove the name from the list")
    }));
    violations
}

/// Finds the public types in the files of one crate, given as their places and texts.
fn types(files: &[(String, String)]) -> anyhow::Result<Vec<Type>> {
    let mut types = Vec::new();
    for (place, text) in files {
        let file = syn::parse_file(text).with_context(|| format!("parse {place}"))?;
        types.extend(public_types(&file.items).into_iter().map(|(ident, visibility)| Type {
            name: ident.to_string(),
            place: format!("{place}:{}", ident.span().start().line),
            is_exported: matches!(visibility, Visibility::Public(_)),
        }));
    }
    Ok(types)
}

/// Checks the types of one crate.
fn check_crate(types: &[Type]) -> Vec<Violation> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for it in types {
        by_name.entry(&it.name).or_default().push(&it.place);
    }
    let mut violations = Vec::new();
    for (type_name, places) in by_name {
        if let [first, others @ ..] = &places[..] {
            violations.extend(others.iter().map(|other| {
                let fault = format!("the public type {type_name} has the same name as the one at {first}");
                Violation::new(*other, fault, "rename one of them")
            }));
        }
    }
    violations
}

/// Collects the names of the public types in these items, and in the modules among them.
fn public_types(items: &[Item]) -> Vec<(&Ident, &Visibility)> {
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
            names.push((name, visibility));
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
        let violations = check_crate(&types(&files).expect("the files parse"));
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

    #[test]
    fn a_name_in_two_crates_needs_a_reason() {
        let places = |crates: &[&str]| crates.iter().map(|name| ((*name).to_owned(), format!("{name}.rs:1"))).collect();
        let by_name = [("Place", &["a", "b"][..]), ("Alone", &["a"]), ("Rule", &["a", "c"])]
            .map(|(name, crates)| (name.to_owned(), places(crates)));
        let faults = |allowed: &[(&str, &[&str])]| {
            let violations = check_between(&TypesByName::from(by_name.clone()), allowed);
            violations.into_iter().map(|it| format!("{}: {}", it.place, it.fault)).collect::<Vec<_>>()
        };
        assert_eq!(faults(&[("forms", &["Place", "Rule"])]), [""; 0]);
        assert_eq!(
            faults(&[("forms", &["Rule", "Alone"])]),
            [
                "a.rs:1: the public type Place has the same name as the one at b.rs:1".to_owned(),
                format!("{HERE}: no two crates have a public type Alone"),
            ]
        );
    }
}
