//! Names of policies and rules, which are DNS labels.

use std::collections::HashSet;

/// The longest name.
const LONGEST: usize = 63;

/// Names that are taken.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<String>);

impl Names {
    /// Makes a name from a text, and adds a number if the name is taken.
    pub(super) fn new_from(&mut self, text: &str) -> String {
        let base = label(text, LONGEST);
        let numbered = |number: usize| {
            let suffix = format!("-{number}");
            label(text, LONGEST - suffix.len()) + &suffix
        };
        let mut names = std::iter::once(base).chain((2..).map(numbered));
        let name = names.find(|name| !self.0.contains(name)).unwrap_or_default();
        self.0.insert(name.clone());
        name
    }
}

/// Returns a DNS label of at most `longest` characters from the start of the text.
fn label(text: &str, longest: usize) -> String {
    let mut label = String::new();
    for character in text.chars() {
        let next = if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' };
        if label.len() < longest && !(next == '-' && (label.is_empty() || label.ends_with('-'))) {
            label.push(next);
        }
    }
    let label = label.trim_end_matches('-');
    if label.is_empty() { "limit".to_owned() } else { label.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_different() {
        let mut names = Names::default();
        for (text, name) in [
            ("path_/Check out/", "path-check-out"),
            ("path.check.out", "path-check-out-2"),
            ("", "limit"),
            ("_*_", "limit-2"),
            ("É1", "1"),
        ] {
            assert_eq!(names.new_from(text), name, "{text}");
        }
        let long = "a".repeat(70);
        assert_eq!(names.new_from(&long), "a".repeat(63));
        assert_eq!(names.new_from(&long), format!("{}-2", "a".repeat(61)));
    }
}
