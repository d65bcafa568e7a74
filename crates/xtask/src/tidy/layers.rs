//! Checks the imports between the modules of each crate: there are no import cycles, and a module imports only from lower
//! layers.
//!
//! The layers are in the table [`table::CRATES`]. The crates for development have none.

mod read;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

pub(super) use self::read::is_for_tests;
use self::{
    read::{Import, Module, Source},
    table::Crate,
};
use super::Violation;
use crate::workspace::Workspace;

const TABLE: &str = "crates/xtask/src/tidy/layers/table.rs";

pub(super) fn check(workspace: &Workspace) -> anyhow::Result<Vec<Violation>> {
    let root = workspace.root();
    let mut violations = Vec::new();
    for of in table::CRATES {
        violations.extend(check_crate(of, &read::read(&root.join(of.root))?, root));
    }
    for file in without_layers(workspace) {
        violations.extend(cycles(&read::read(file)?, |_| true, root));
    }
    Ok(violations)
}

/// The root files of all other crates and programs.
fn without_layers(workspace: &Workspace) -> impl Iterator<Item = &Path> {
    let targets = workspace.metadata.workspace_packages().into_iter().flat_map(|package| &package.targets);
    let files = targets.filter(|target| target.is_lib() || target.is_bin()).map(|target| target.src_path.as_std_path());
    files.filter(|file| !table::CRATES.iter().any(|of| *file == workspace.root().join(of.root)))
}

fn check_crate(of: &Crate, source: &Source, root: &Path) -> Vec<Violation> {
    let mut violations = modules(of, source);
    let floors: BTreeMap<&str, usize> =
        of.layers.iter().enumerate().flat_map(|(floor, names)| names.iter().map(move |name| (*name, floor))).collect();
    let mut said = BTreeSet::new();
    for import in source.imports.iter().filter(|import| runs_upward(import, &floors)) {
        let (from, to) = (name(&import.from), name(&import.to));
        if said.insert((from.clone(), to.clone())) {
            violations.push(Violation::new(
                place(import, root),
                format!("{from} imports {to}, which is not in a layer below it"),
                format!("move the items that {from} needs to a module below both, or change the layers in {TABLE}"),
            ));
        }
    }
    // An import from a higher layer is reported as such, not as a part of a cycle.
    violations.extend(cycles(source, |import| !runs_upward(import, &floors), root));
    violations
}

/// Checks that the imports that `counts` accepts form no cycle.
fn cycles(source: &Source, counts: impl Fn(&Import) -> bool, root: &Path) -> Vec<Violation> {
    let imports: Vec<Import> = source.imports.iter().filter(|import| counts(import)).filter_map(of_siblings).collect();
    let violation = |circle: BTreeSet<Module>| {
        let first = imports.iter().find(|import| circle.contains(&import.from) && circle.contains(&import.to));
        let names: Vec<_> = circle.iter().map(name).collect();
        Violation::new(
            place(first.expect("a cycle has imports"), root),
            format!("{} form an import cycle", names.join(", ")),
            "move the shared items to a separate module",
        )
    };
    circles(&imports).into_iter().map(violation).collect()
}

/// Returns the import as one between the two modules of the same parent that contain its ends: modules of a module import
/// for it. None if one end contains the other: a module uses its parts, and the parts can use the items that the module
/// itself defines, because the impls of a type can be in several files.
fn of_siblings(import: &Import) -> Option<Import> {
    let shared = import.from.iter().zip(&import.to).take_while(|(from, to)| from == to).count();
    let [from, to] = [&import.from, &import.to].map(|module| module.get(..=shared).map(<[_]>::to_vec));
    Some(Import { from: from?, to: to?, file: import.file.clone(), line: import.line })
}

/// Checks that each top-level module is in exactly one layer, and that each name in a layer is a module.
fn modules(of: &Crate, source: &Source) -> Vec<Violation> {
    let there: BTreeSet<&str> =
        source.modules.iter().filter(|module| module.len() == 1).map(|module| module[0].as_str()).collect();
    let mut listed = BTreeSet::new();
    let mut violations = Vec::new();
    let mut refuse = |fault: String, fix: &str| violations.push(Violation::new(TABLE, fault, fix));
    for name in of.layers.iter().flat_map(|layer| layer.iter()) {
        if !listed.insert(*name) {
            refuse(format!("{}: {name} is in two layers", of.root), "remove it from one of them");
        } else if !there.contains(name) {
            refuse(format!("{}: there is no module {name}", of.root), "remove it from the layers");
        }
    }
    for name in there.difference(&listed) {
        refuse(
            format!("{}: the module {name} is in no layer", of.root),
            "add it to a layer above all modules that it imports",
        );
    }
    violations
}

/// Returns true if the module imports from its own or a higher layer. The root of the crate is above all layers,
/// because it re-exports names of its modules.
fn runs_upward(import: &Import, floors: &BTreeMap<&str, usize>) -> bool {
    let Some(from) = import.from.first() else { return false };
    let Some(to) = import.to.first() else { return true };
    match (floors.get(from.as_str()), floors.get(to.as_str())) {
        (Some(from_floor), Some(to_floor)) => from != to && to_floor >= from_floor,
        // A module that is in no layer is reported separately.
        _ => false,
    }
}

/// Finds import cycles: sets of two or more modules that reach each other.
fn circles(imports: &[Import]) -> Vec<BTreeSet<Module>> {
    let mut below: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for import in imports {
        below.entry(&import.from).or_default().insert(&import.to);
    }
    let reached = |start: &Module| {
        let mut seen: BTreeSet<&Module> = BTreeSet::new();
        let mut rest: Vec<&Module> = below.get(start).into_iter().flatten().copied().collect();
        while let Some(module) = rest.pop() {
            if seen.insert(module) {
                rest.extend(below.get(module).into_iter().flatten());
            }
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<&Module>> = below.keys().map(|start| (*start, reached(start))).collect();
    let mut circles = BTreeSet::new();
    for (start, seen) in &reach {
        if seen.contains(start) {
            let both = seen.iter().filter(|other| reach.get(**other).is_some_and(|back| back.contains(start)));
            circles.insert(both.map(|module| (*module).clone()).collect());
        }
    }
    circles.into_iter().collect()
}

fn name(module: &Module) -> String {
    if module.is_empty() { "the root".to_owned() } else { module.join("::") }
}

fn place(import: &Import, root: &Path) -> String {
    let file = import.file.strip_prefix(root).unwrap_or(&import.file);
    format!("{}:{}", file.display(), import.line)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Checks a crate that consists of these files and has these layers. Returns the faults, each with its place.
    fn faults(layers: &'static [&'static [&'static str]], files: &[(&str, &str)]) -> Vec<String> {
        checked(files, |source, root| check_crate(&Crate { root: "lib.rs", layers }, source, root))
    }

    fn checked(files: &[(&str, &str)], check: impl Fn(&Source, &Path) -> Vec<Violation>) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            let file = folder.path().join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, text).expect("written");
        }
        let source = read::read(&folder.path().join("lib.rs")).expect("valid Rust");
        let violations = check(&source, folder.path());
        violations.into_iter().map(|violation| format!("{}: {}", violation.place, violation.fault)).collect()
    }

    const LAYERS: &[&[&str]] = &[&["a"], &["b", "c"]];
    const ROOT: (&str, &str) = ("lib.rs", "mod a;\nmod b;\nmod c;\npub use b::B;\nstruct OfRoot;\n");
    const A: (&str, &str) = ("a.rs", "pub struct A;\n");
    const B: (&str, &str) = ("b.rs", "use crate::a::A;\npub struct B(A);\n");
    const ONLY_B: (&str, &str) = ("b.rs", "pub struct B;\n");
    const C: (&str, &str) = ("c.rs", "fn c(a: super::a::A) {}\n");

    #[test]
    fn imports_that_run_down_pass() {
        assert_eq!(faults(LAYERS, &[ROOT, A, B, C]), [""; 0]);
    }

    #[test]
    fn an_import_that_runs_upward_is_found_however_it_is_written() {
        for text in [
            "use crate::b::B;",
            "use super::b::B;",
            "use crate::{b::{self}};",
            "use crate::b as other;",
            "use crate::b::*;",
            "pub use crate::b::B;",
            "fn f() { crate::b::g(); }",
            "fn f() { use crate::b::B; }",
            "struct S { b: Option<crate::b::B> }",
            "impl crate::b::B {}",
            "fn f() { assert!(matches!(x, [crate::b::B, ..])); }",
            "macro_rules! m { () => { $crate::b::g() } }",
            "mod inner { fn f() { super::super::b::g() } }",
            // A name that the root re-exports from b counts as an import of b.
            "use crate::B;",
        ] {
            let found = faults(LAYERS, &[ROOT, ("a.rs", text), ONLY_B, C]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].starts_with("a.rs:1: a"), "{text}: {found:?}");
            assert!(found[0].ends_with("imports b, which is not in a layer below it"), "{text}: {found:?}");
        }
    }

    #[test]
    fn what_is_no_import_of_a_module_passes() {
        for text in [
            "// use crate::b::B;\nconst TEXT: &str = \"crate::b::B\";",
            "#[cfg(test)]\nmod tests { use crate::b::B; }",
            "#[cfg(all(test, not(loom)))]\nuse crate::b::B;",
            "#[cfg(test)]\nfn f() { crate::b::g() }",
            "impl S { #[cfg(test)]\nfn f() { crate::b::g() } }",
            "pub(in crate::b) fn f() {}",
            "use other::b::B;\nuse ::b::C;\nfn f(b: u8) { b.g(); self::h(b) }",
        ] {
            assert_eq!(faults(LAYERS, &[ROOT, ("a.rs", text), ONLY_B, C]), [""; 0], "{text}");
        }
    }

    #[test]
    fn an_import_within_a_layer_and_one_of_the_root_are_found() {
        assert_eq!(
            faults(LAYERS, &[ROOT, A, B, ("c.rs", "\nuse crate::b::B;")]),
            ["c.rs:2: c imports b, which is not in a layer below it"]
        );
        assert_eq!(
            faults(LAYERS, &[ROOT, ("a.rs", "use crate::OfRoot;"), ("b.rs", ""), C]),
            ["a.rs:1: a imports the root, which is not in a layer below it"]
        );
    }

    #[test]
    fn a_circle_below_one_module_is_found_with_its_members() {
        let files = |x, y| {
            faults(LAYERS, &[ROOT, ("a.rs", "mod x;\nmod y;\npub struct A;"), ("a/x.rs", x), ("a/y.rs", y), B, C])
        };
        assert_eq!(files("use super::y::Y;", "pub struct Y;"), [""; 0]);
        assert_eq!(
            files("use super::y::Y;", "use super::x;\npub struct Y;"),
            ["a/x.rs:1: a::x, a::y form an import cycle"]
        );
        let parent = "mod x;\nmod y;\nuse x::X;\npub struct A(X);";
        let of_parent = |x| faults(LAYERS, &[ROOT, ("a.rs", parent), ("a/x.rs", x), ("a/y.rs", "pub struct Y;"), B, C]);
        assert_eq!(of_parent("pub struct X;"), [""; 0]);
        // The parts of a module can use items that the module itself defines.
        assert_eq!(of_parent("pub struct X(super::A);"), [""; 0]);
        // A name that the parent only re-exports counts as an import of its owner.
        assert_eq!(of_parent("use super::X as Own;\npub struct X;"), [""; 0]);
    }

    #[test]
    fn a_circle_of_modules_through_their_parts_is_found() {
        let files = |x| {
            faults(
                &[&["a"]],
                &[
                    ("lib.rs", "mod a;"),
                    ("a.rs", "mod x;\nmod y;"),
                    ("a/x.rs", "mod of_x;\nuse super::y::of_y::Y;\npub struct X(Y);"),
                    ("a/x/of_x.rs", x),
                    ("a/y.rs", "mod of_y;\nuse super::x::of_x::Z;\npub struct W(Z);"),
                    ("a/y/of_y.rs", "pub struct Y;"),
                ],
            )
        };
        assert_eq!(files("pub struct Z;"), ["a/x.rs:2: a::x, a::y form an import cycle"]);
    }

    #[test]
    fn a_circle_in_a_crate_without_layers_is_found() {
        let files =
            |b| checked(&[ROOT, A, ("b.rs", b), ("c.rs", "use crate::b::B;")], |it, root| cycles(it, |_| true, root));
        // Without layers, a module can import from each other module, and what the root defines.
        assert_eq!(files("use crate::{OfRoot, a::A};\npub struct B;"), [""; 0]);
        assert_eq!(files("use super::c::C;\npub struct B;"), ["b.rs:1: b, c form an import cycle"]);
    }

    #[test]
    fn the_crates_for_development_have_no_layers_but_are_checked() {
        let workspace = Workspace::find().expect("the workspace");
        let checked: Vec<_> = without_layers(&workspace).collect();
        for file in ["crates/bench/src/lib.rs", "crates/xtask/src/main.rs", "e2e/src/lib.rs", "e2e/testapp/src/lib.rs"]
        {
            assert!(checked.contains(&&*workspace.root().join(file)), "{file}: {checked:?}");
        }
    }

    #[test]
    fn modules_and_layers_must_agree() {
        const OTHER: &[&[&str]] = &[&["a", "gone"], &["b", "a"]];
        assert_eq!(
            faults(OTHER, &[ROOT, A, ONLY_B, C]),
            [
                format!("{TABLE}: lib.rs: there is no module gone"),
                format!("{TABLE}: lib.rs: a is in two layers"),
                format!("{TABLE}: lib.rs: the module c is in no layer"),
            ]
        );
    }
}
