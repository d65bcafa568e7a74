use std::collections::BTreeSet;

use super::*;

fn faults(text: &str) -> Vec<String> {
    let violations = check_text("a.rs", text).expect("valid Rust");
    violations.into_iter().map(|violation| format!("{}: {}", violation.place, violation.fault)).collect()
}

fn rewritten(text: &str) -> String {
    rewrite("a.rs", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

const LAYOUT: &str = "//! Docs.

#![allow(x)]

extern crate a;
mod b;
pub mod c;

use core::mem;
use std::{
    fmt::{self, Display as _},
    io, // where
};

// Why.
use ::e::f;
use d::{e::*, g};
#[cfg(test)]
use d::{h, r#type};

use super::{super::i, j};
use crate::{
    k,
    l::{self, m},
};

#[doc(inline)]
pub use self::b::B;
pub(crate) use self::b::{C, D};

fn f() {
    use std::io;
}

mod tests {
    use std::io;

    use super::*;
}
";

#[test]
fn the_layout_passes_and_is_not_rewritten() {
    assert_eq!(faults(LAYOUT), [""; 0]);
    assert_eq!(rewritten(LAYOUT), LAYOUT);
    for text in [
        "",
        "fn f() {}",
        "mod a;",
        "mod a;\npub use self::a::A;\nfn f() {}",
        "use a as b;\nuse a::c;",
        "use a::{};",
        "use a::{b::{self}, c::{self as d}};",
    ] {
        assert_eq!(faults(text), [""; 0], "{text}");
    }
}

#[test]
fn each_fault_is_found_at_its_line_and_rewritten() {
    for (text, fault, after) in [
        ("fn f() {}\n\nuse a;\n", "a.rs:3: an import below other items", "\n\nuse a;\n\nfn f() {}\n\n"),
        (
            "//! Docs.\n\nmod b; // why\n\nfn f() {}\npub use a;\n",
            "a.rs:6: an import below other items",
            "//! Docs.\n\nmod b; // why\n\npub use a;\n\n\n\nfn f() {}\n",
        ),
        ("mod b {}\nuse a;\n", "a.rs:2: an import below other items", "\n\nuse a;\n\nmod b {}\n"),
        ("use a;\nmod b;\nuse c;\nmod d;\n", "a.rs:3: modules between the imports", "use a;\nuse c;\nmod b;\nmod d;\n"),
        (
            "use a;\n\nuse std::b;\n",
            "a.rs:3: the group of std, core and alloc is below the group of external crates",
            "use std::b;\n\nuse a;\n\n",
        ),
        (
            "use crate::b;\n\nuse a;\n",
            "a.rs:3: the group of external crates is below the group of crate, super and self",
            "use a;\n\nuse crate::b;\n\n",
        ),
        (
            "pub use a;\n\nuse crate::b;\n",
            "a.rs:3: the group of crate, super and self is below the group of re-exports",
            "use crate::b;\n\npub use a;\n\n",
        ),
        ("use a;\n\nuse b;\n", "a.rs:3: a blank line inside the group of external crates", "use a;\nuse b;\n\n"),
        (
            "use std::a;\nuse b;\n",
            "a.rs:2: no blank line between the groups of std, core and alloc and of external crates",
            "use std::a;\n\nuse b;\n",
        ),
        ("//! Docs.\nuse a::b;\nuse a::c;\n", "a.rs:3: a second `use` of `a`", "//! Docs.\nuse a::{b, c};\n"),
        ("use a::b;\nuse a::c;\n", "a.rs:2: a second `use` of `a`", "use a::{b, c};\n"),
        ("pub use a::b;\npub use a::c;\n", "a.rs:2: a second `use` of `a`", "pub use a::{b, c};\n"),
        (
            "use a::{b, b::c, d::e, d::f as g};\n",
            "a.rs:1: `use a::{b, b::c, d::e, d::f as g}` must be `use a::{b::{c, self}, d::{e, f as g}}`",
            "use a::{b::{c, self}, d::{e, f as g}};\n",
        ),
        ("use {a::b, std::c};\n", "a.rs:1: a `use` of several crates", "use std::c;\n\nuse a::b;\n"),
        ("mod b;\n\nuse b::c;\n", "a.rs:3: `use b::c` must be `use self::b::c`", "mod b;\n\nuse self::b::c;\n"),
        (
            "use B as C;\nenum B {}\n",
            "a.rs:1: `use B as C` must be `use self::B as C`",
            "use self::B as C;\nenum B {}\n",
        ),
        (
            "mod tests {\n    use super::*;\n    use std::a;\n}\n",
            "a.rs:3: the group of std, core and alloc is below the group of crate, super and self",
            "mod tests {\n    use std::a;\n\nuse super::*;\n    }\n",
        ),
    ] {
        assert!(faults(text).contains(&fault.to_owned()), "{text}: {:?}", faults(text));
        assert_eq!(rewritten(text), after, "{text}");
    }
}

#[test]
fn what_keeps_an_import_apart_stays_at_it() {
    let text = "//! Docs.\n\n// About all.\n\nuse a::b;\n#[cfg(test)]\nuse a::c;\n/// What.\npub use a::d;\n\n// About e.\n\nuse a::e;\nuse a::ë;\n";
    assert_eq!(
        rewritten(text),
        "//! Docs.\n\n// About all.\n\nuse a::{b, e, ë};\n#[cfg(test)]\nuse a::c;\n\n/// What.\npub use a::d;\n\n// About e.\n\n"
    );
}

#[test]
fn an_import_whose_comment_would_lose_its_place_is_refused() {
    for import in [
        "use b::{/* why */ c, d};",
        "use b::{\n    // why\n    c,\n    d,\n};",
        "use b; // why",
        "use b; /* why */",
        "/* why */\nuse b;",
        "// why\n// not\nuse b;",
    ] {
        let refused =
            |text: &str| rewrite("a.rs", text).is_err_and(|error| error.to_string().contains("the comment at"));
        assert!(refused(&format!("use d;\n\n{import}\n")), "{import}");
        assert!(!refused(&format!("use d;\n{import}\n")), "{import}: the layout is good");
    }
}

#[test]
fn an_import_of_a_macro_of_the_module_stays_below_it() {
    let text = "use a;\n\nmacro_rules! b { () => {}; }\npub(crate) use b;\npub(crate) use b as c;\n";
    assert_eq!(faults(text), [""; 0]);
}

/// A generator of pseudo-random numbers. The same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

const HEADS: [&str; 7] = ["", "", "", "pub ", "pub(crate) ", "#[cfg(test)]\n", "/// What.\n#[allow(x)]\npub "];
const ROOTS: [&str; 9] = ["std", "core", "alloc", "serde", "weir_core", "crate", "super", "self", "child"];

/// The imports of a file: for each path, its module, the text before the `use`, and the full path.
type Imported = BTreeSet<(usize, String, String)>;

/// Creates a random tree below `path`, and records each of its paths.
fn tree(random: &mut Random, path: &str, depth: usize, paths: &mut Vec<String>) -> String {
    let end = if depth == 0 { 4 } else { 7 };
    let name = random.one(&["a", "b", "c", "Ü", "r#d"]);
    match random.below(end) {
        0 | 1 => {
            paths.push(format!("{path}::{name}"));
            name.to_owned()
        }
        2 => {
            paths.push(format!("{path}::{name} as x"));
            format!("{name} as x")
        }
        3 => {
            paths.push(format!("{path}::*"));
            "*".to_owned()
        }
        4 => {
            paths.push(format!("{path}::{name}"));
            format!("{name}::{{self}}")
        }
        5 => format!("{name}::{}", tree(random, &format!("{path}::{name}"), depth - 1, paths)),
        _ => {
            let trees: Vec<_> = (0..1 + random.below(3)).map(|_| tree(random, path, depth - 1, paths)).collect();
            format!("{{{}}}", trees.join(random.one(&[", ", ",\n    "])))
        }
    }
}

/// Items that can be between imports, other than blank lines.
const OTHERS: [&str; 3] = ["// About all.\n\n", "mod other;\n", "fn f() {}\n"];

/// Creates a file with imports in any order and form. Also returns the imported paths.
fn file(random: &mut Random) -> (String, Imported) {
    let (mut text, mut imported) = ("mod child;\n".to_owned(), Imported::new());
    for module in 0..2 {
        for _ in 0..random.below(7) {
            let (head, root) = (random.one(&HEADS), random.one(&ROOTS));
            let mut paths = Vec::new();
            let tree = tree(random, root, 3, &mut paths);
            text += &format!("{head}use {root}::{tree};\n");
            text += random.one(&["", "", "", "\n", "\n\n", OTHERS[0], OTHERS[1], OTHERS[2]]);
            imported.extend(paths.iter().map(|path| (module, words(head), full(module, path))));
        }
        text += if module == 0 { "mod inner {\n" } else { "}\n" };
    }
    (text, imported)
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the full path. Only the first module has a child module `child`. In the second one, `child` is a crate.
fn full(module: usize, path: &str) -> String {
    if module == 0 && path.starts_with("child::") { format!("self::{path}") } else { path.to_owned() }
}

/// Reads the imported paths of a file, letter by letter.
fn imported(text: &str) -> Imported {
    let (outer, inner) = text.split_once("mod inner {").expect("an inner module");
    let mut imported = Imported::new();
    for (module, text) in [(0, outer), (1, inner)] {
        let text = OTHERS.iter().fold(text.to_owned(), |text, other| text.replace(other.trim(), ""));
        for item in text.split(';') {
            let Some((head, tree)) = item.split_once("use ") else { continue };
            let (mut prefixes, mut name) = (Vec::new(), String::new());
            for letter in tree.chars().chain([',']) {
                match letter {
                    '{' => prefixes.push(std::mem::take(&mut name)),
                    ',' | '}' => {
                        let path = prefixes.concat() + name.trim();
                        if !name.trim().is_empty() {
                            let path = path.strip_suffix("::self").unwrap_or(&path);
                            imported.insert((module, words(head), full(module, path)));
                        }
                        name.clear();
                        if letter == '}' {
                            prefixes.pop();
                        }
                    }
                    letter if name.is_empty() && letter.is_whitespace() => {}
                    letter => name.push(letter),
                }
            }
        }
    }
    imported
}

#[test]
fn a_rewriting_keeps_all_imports_and_needs_no_second_one() {
    let mut rewritings = 0;
    for seed in 0..500 {
        let (text, expected) = file(&mut Random(seed));
        assert_eq!(imported(&text), expected, "this test's reader, seed {seed}\n{text}");
        let after = rewritten(&text);
        assert_eq!(imported(&after), expected, "seed {seed}\n{text}\n---\n{after}");
        for other in OTHERS {
            assert_eq!(after.matches(other.trim()).count(), text.matches(other.trim()).count(), "seed {seed}\n{after}");
        }
        assert_eq!(faults(&after), [""; 0], "seed {seed}\n{after}");
        assert_eq!(rewritten(&after), after, "seed {seed}");
        rewritings += usize::from(after != text);
    }
    assert!(rewritings > 300, "{rewritings}");
}
