//! Regular expressions for paths. Each of them is a table of states, so a search takes one look-up for each byte.

use std::mem::size_of;

use crate::{
    cost::{READ, STEP},
    pattern::{Alphabet, LARGEST_TABLE, StateTable, parse},
};

/// The maximum memory of a set, in bytes.
const LARGEST_SET: usize = 1024 * 1024;

/// The maximum product of the number of expressions in a set and of the bytes of a path. A search looks at all
/// expressions that match, after each byte.
const LONGEST_SEARCH: usize = 1 << 20;

/// The error for an invalid expression, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegex {
    /// The text is not a regular expression, or uses a feature that can take more than linear time.
    #[error("is not a regular expression: {0}")]
    Syntax(String),
    /// The expression would take too much memory.
    #[error(
        "takes more than {} KiB once compiled: begin it with ^, use smaller repetitions, or use a path with * and **",
        LARGEST_TABLE / 1024
    )]
    TooLarge,
}

/// A regular expression for paths in normal form.
#[derive(Debug)]
pub struct PathRegex {
    text: Box<str>,
    table: StateTable,
}

/// Several regular expressions for paths, which are searched at once.
#[derive(Debug)]
pub struct PathRegexSet {
    table: StateTable,
    count: usize,
}

/// Compiles an expression for paths in normal form. Such paths are ASCII, so classes such as `\w` are ASCII classes,
/// which are small.
///
/// # Errors
///
/// If the text does not parse, or the compiled expression is too large.
pub fn path_regex(text: &str) -> Result<PathRegex, InvalidRegex> {
    let expression = parse(text, Alphabet::Ascii)
        .map_err(|reason| InvalidRegex::Syntax(reason.strip_prefix("error: ").unwrap_or(&reason).to_owned()))?;
    let table = StateTable::new(&[expression], Alphabet::Ascii, LARGEST_TABLE).ok_or(InvalidRegex::TooLarge)?;
    Ok(PathRegex { text: text.into(), table })
}

impl PathRegex {
    /// Whether the expression matches a part of the path.
    pub fn is_match(&self, path: &str) -> bool {
        self.table.is_match(path.as_bytes())
    }

    /// The cost of a search, in the unit of [`BUDGET`](crate::BUDGET).
    pub fn cost(&self, path: &str) -> u64 {
        (path.len() as u64).saturating_mul(READ).saturating_add(STEP)
    }

    /// The memory of the expression in bytes.
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + self.text.len()) as u64 + self.table.bytes()
    }

    /// The memory in bytes that the expression took while it was compiled. The time grows with it.
    pub fn work(&self) -> u64 {
        self.table.work()
    }

    /// Returns the text of the expression.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl PathRegexSet {
    /// Combines expressions. Returns `None` if the set would take too much memory.
    pub fn new(texts: &[&str]) -> Option<Self> {
        let parsed: Option<Vec<_>> = texts.iter().map(|text| parse(text, Alphabet::Ascii).ok()).collect();
        Some(Self { table: StateTable::new(&parsed?, Alphabet::Ascii, LARGEST_SET)?, count: texts.len() })
    }

    /// Returns the positions of the expressions that match a part of the path. Returns `None` if a search in this path
    /// would take too long.
    pub fn matches(&self, path: &str) -> Option<Vec<usize>> {
        if self.count.saturating_mul(path.len()) > LONGEST_SEARCH {
            return None;
        }
        // `is_match` is called first because it does not allocate, and most paths match no expression.
        Some(if self.table.is_match(path.as_bytes()) { self.table.matches(path.as_bytes()) } else { Vec::new() })
    }
}

#[cfg(test)]
#[path = "path_regex_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line() {
        let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        for (text, part) in [
            ("^/(v1", "is not a regular expression: unclosed group"),
            ("(?=a)", "look-around"),
            (r"(\w{100}){100}", "use smaller repetitions"),
            ("a{1000}{1000}", "use smaller repetitions"),
            ("a[ab]{20}c", "begin it with ^, use smaller repetitions"),
            ("[ab]{8000}", "takes more than 128 KiB once compiled"),
            (&nested(33), "nest"),
        ] {
            let invalid = path_regex(text).expect_err(text).to_string();
            assert!(invalid.contains(part) && !invalid.contains('\n'), "{text}: {invalid}");
        }
        let words: Vec<String> = (0..50).map(|number| format!("w{number}")).collect();
        for text in [
            "^/v[0-9]+/",
            r"^/\w{1,64}$",
            "(?i)^/API$",
            "",
            "^/v[0-9]+/users/[^/]+$",
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            r"(?i)\.(php|asp|aspx|jsp|cgi)(/|;|$)",
            r"/[^/]{1,255}/\d{1,20}$",
            r"^/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/.*\.json$",
            &words.join("|"),
            &nested(31),
        ] {
            assert!(path_regex(text).is_ok_and(|regex| regex.bytes() < 64 * 1024), "{text}");
        }
    }

    #[test]
    fn classes_are_those_of_ascii() {
        assert!(!path_regex(r"^/\w$").unwrap().is_match("/\u{e9}"));
    }

    #[test]
    fn a_set_finds_what_each_expression_finds() {
        let texts = ["^/a", "b$", "", "/[ab]+/c"];
        let set = PathRegexSet::new(&texts).expect("a small set");
        for path in ["/a", "/b", "/ab/c", "/c"] {
            let expected = (0..texts.len()).filter(|at| path_regex(texts[*at]).expect("valid").is_match(path));
            assert_eq!(set.matches(path), Some(expected.collect()), "{path}");
        }
        assert_eq!(set.matches(&"/a".repeat(LONGEST_SEARCH)), None);
        assert!(PathRegexSet::new(&["a.{8}b", "b.{9}a", "c.{9}a"]).is_none());
    }
}
