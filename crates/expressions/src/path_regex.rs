//! Regular expressions for paths.

use regex::bytes::{Regex, RegexBuilder};

/// The maximum size in bytes of a compiled expression, and of its cache.
const LARGEST: usize = 256 * 1024;

/// The maximum nesting depth of an expression.
const DEEPEST: u32 = 32;

/// The error for an invalid expression, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRegex {
    /// The text is not a regular expression, or uses a feature that can take more than linear time.
    #[error("is not a regular expression: {0}")]
    Syntax(String),
    /// The expression would take too much memory.
    #[error("takes more than {LARGEST} bytes once compiled: use smaller repetitions, or a path with * and **")]
    TooLarge,
}

/// Compiles an expression for paths in normal form. Such paths are ASCII, so classes such as `\w` are ASCII classes,
/// which are small.
///
/// # Errors
///
/// If the text does not parse, or the compiled expression is too large.
pub fn path_regex(text: &str) -> Result<Regex, InvalidRegex> {
    let mut builder = RegexBuilder::new(text);
    builder.unicode(false).size_limit(LARGEST).dfa_size_limit(LARGEST).nest_limit(DEEPEST);
    builder.build().map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => InvalidRegex::TooLarge,
        // The last line contains the reason. The lines before it show the position.
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            InvalidRegex::Syntax(last.strip_prefix("error: ").unwrap_or(last).to_owned())
        }
    })
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
            (&nested(33), "nest"),
        ] {
            let invalid = path_regex(text).expect_err(text).to_string();
            assert!(invalid.contains(part) && !invalid.contains('\n'), "{text}: {invalid}");
        }
        for text in ["^/v[0-9]+/", r"^/\w{1,64}$", "(?i)^/API$", "", &nested(31)] {
            assert!(path_regex(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn classes_are_those_of_ascii() {
        assert!(!path_regex(r"^/\w$").unwrap().is_match("/\u{e9}".as_bytes()));
    }
}
