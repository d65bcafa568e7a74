//! Checks that each public item of a library has an example. The examples are tests (`cargo xtask test --only doc`), so
//! they are always correct.
//!
//! This module checks the text, because in these crates every `pub` without a restriction marks a public item.

use super::Violation;

/// The packages that programs of users link.
pub(super) const LIBRARIES: [&str; 2] = ["weir-core", "weir-tower"];

const ITEMS: [&str; 6] = ["fn ", "struct ", "enum ", "trait ", "const ", "type "];

/// Finds the public items of a file whose docs have no example.
pub(super) fn check(place: &str, text: &str) -> Vec<Violation> {
    let (mut shown, mut violations) = (false, Vec::new());
    for (index, line) in text.lines().map(str::trim_start).enumerate() {
        if line.starts_with("///") {
            shown |= line.contains("```");
        } else if !line.starts_with("#[") {
            if is_public(line) && !shown {
                violations.push(Violation::new(
                    format!("{place}:{}", index + 1),
                    "a public item without an example",
                    "add an example of a few lines to its docs",
                ));
            }
            shown = false;
        }
    }
    violations
}

fn is_public(line: &str) -> bool {
    let item = line.strip_prefix("pub ").map(|item| item.strip_prefix("const fn ").map_or(item, |_| "fn "));
    item.is_some_and(|item| ITEMS.iter().any(|kind| item.starts_with(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Vec<String> {
        check("a.rs", text).into_iter().map(|violation| violation.place).collect()
    }

    #[test]
    fn an_item_that_is_shown_passes() {
        assert!(places("/// Docs.\n///\n/// ```\n/// f();\n/// ```\n#[inline]\npub fn f() {}\n").is_empty());
        assert!(places("pub(crate) fn f() {}\npub use a::B;\nfn g() {}\n    pub field: u64,\n").is_empty());
    }

    #[test]
    fn an_item_that_is_not_is_found() {
        assert_eq!(places("/// ```\n/// ```\npub fn f() {}\n\n/// Docs.\npub const fn g() {}\n"), ["a.rs:6"]);
        assert_eq!(
            places("/// Docs.\n#[derive(Debug)]\n    pub struct S;\npub const C: u8 = 0;\n"),
            ["a.rs:3", "a.rs:4"]
        );
    }
}
