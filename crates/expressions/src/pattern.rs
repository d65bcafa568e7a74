//! Regular expressions, with a bound on the time for each byte of a text and on their memory.
//!
//! A search that simulates an automaton takes time in proportion to the size of the expression, for each byte. Caches
//! of states hide this, but an expression such as `a[ab]{4000}c` has too many states for any cache. So an expression
//! becomes a table of all its states if this table is small. Then each byte takes one look-up, and a search needs no
//! memory. This module must not accept an expression without knowing these costs.

#[cfg(test)]
use std::cell::Cell;
use std::{
    borrow::Borrow,
    mem::{size_of, size_of_val},
};

use regex_automata::{
    Input, MatchKind, PatternSet,
    dfa::{Automaton, StartKind, dense},
    meta,
    nfa::thompson::{self, NFA, WhichCaptures},
    util::syntax,
};
use regex_syntax::hir::{Class, Hir, HirKind};

use crate::cost::SIMULATED;

/// The maximum memory of the table of one expression, in bytes.
pub(crate) const LARGEST_TABLE: usize = 128 * 1024;

/// The maximum memory of the automaton from which a table is built, in bytes. Unicode classes are large.
const LARGEST_AUTOMATON: usize = 1024 * 1024;

/// The memory for the states that a search without a table keeps, in bytes.
const CACHE: usize = 128 * 1024;

/// The maximum nesting depth of an expression.
const DEEPEST: u32 = 32;

/// The characters of the texts that an expression searches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    Ascii,
    Unicode,
}

#[cfg(test)]
thread_local! {
    /// The number of patterns that this thread has compiled.
    pub(crate) static COMPILED: Cell<usize> = const { Cell::new(0) };
}

/// All states of one or more expressions.
#[derive(Debug)]
pub(crate) struct StateTable {
    states: Box<dense::DFA<Vec<u32>>>,
    /// The memory of the automaton from which the table was built, in bytes.
    automaton: u64,
}

/// One expression.
#[derive(Debug)]
pub(crate) enum Pattern {
    Table(StateTable),
    /// An expression whose table would be too large, such as one with `\b` or a repetition of a Unicode class.
    Simulated {
        regex: meta::Regex,
        /// The maximum number of states of a search.
        states: u64,
    },
}

/// Parses an expression.
///
/// # Errors
///
/// If the text is no expression. The error is one line.
pub(crate) fn parse(text: &str, alphabet: Alphabet) -> Result<Hir, String> {
    let is_unicode = alphabet == Alphabet::Unicode;
    let config = syntax::Config::new().unicode(is_unicode).utf8(is_unicode).nest_limit(DEEPEST);
    // The last line contains the reason. The lines before it show the position.
    syntax::parse_with(text, &config).map_err(|error| error.to_string().lines().last().unwrap_or_default().to_owned())
}

impl StateTable {
    /// Builds the table of these expressions. Returns `None` if it would take more than `largest` bytes, or if an
    /// expression needs more than a table.
    pub(crate) fn new<H: Borrow<Hir>>(expressions: &[H], alphabet: Alphabet, largest: usize) -> Option<Self> {
        let automaton = thompson::Config::new()
            .utf8(alphabet == Alphabet::Unicode)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(LARGEST_AUTOMATON.max(largest)));
        let automaton: NFA = thompson::Compiler::new().configure(automaton).build_many_from_hir(expressions).ok()?;
        // A set must find all expressions that match, not only the first one.
        let kind = if expressions.len() > 1 { MatchKind::All } else { MatchKind::LeftmostFirst };
        let config = dense::Config::new()
            .start_kind(StartKind::Unanchored)
            .match_kind(kind)
            .dfa_size_limit(Some(largest))
            .determinize_size_limit(Some(4 * largest));
        let states = Box::new(dense::Builder::new().configure(config).build_from_nfa(&automaton).ok()?);
        Some(Self { states, automaton: automaton.memory_usage() as u64 })
    }

    /// Whether an expression matches a part of the text.
    pub(crate) fn is_match(&self, text: &[u8]) -> bool {
        // A search fails only with bytes that end it, and the table has no such bytes.
        matches!(self.states.try_search_fwd(&Input::new(text).earliest(true)), Ok(Some(_)))
    }

    /// Returns the expressions that match a part of the text, by their position.
    pub(crate) fn matches(&self, text: &[u8]) -> Vec<usize> {
        let mut found = PatternSet::new(self.states.pattern_len());
        let complete = self.states.try_which_overlapping_matches(&Input::new(text), &mut found);
        debug_assert!(complete.is_ok(), "the table has no bytes that end a search");
        found.iter().map(|pattern| pattern.as_usize()).collect()
    }

    /// The memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (size_of_val(&*self.states) + self.states.memory_usage()) as u64
    }

    /// The memory in bytes that the table took while it was built.
    pub(crate) fn work(&self) -> u64 {
        self.bytes() + self.automaton
    }
}

impl Pattern {
    /// Compiles an expression for texts in UTF-8.
    ///
    /// # Errors
    ///
    /// If the text is no expression, or needs too much memory. The error is one line.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        #[cfg(test)]
        COMPILED.set(COMPILED.get() + 1);
        let expression = parse(text, Alphabet::Unicode)?;
        if let Some(table) = StateTable::new(&[&expression], Alphabet::Unicode, LARGEST_TABLE) {
            return Ok(Self::Table(table));
        }
        // The engines and the capture groups that are off would need more memory.
        let config = meta::Config::new()
            .which_captures(WhichCaptures::Implicit)
            .nfa_size_limit(Some(LARGEST_AUTOMATON))
            .hybrid_cache_capacity(CACHE)
            .dfa(false)
            .onepass(false)
            .backtrack(false);
        let regex = meta::Builder::new().configure(config).build_from_hir(&expression);
        let regex = regex.map_err(|_| "the regular expression is too large: use smaller repetitions".to_owned())?;
        Ok(Self::Simulated { regex, states: states(&expression) })
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        match self {
            Self::Table(table) => table.is_match(text.as_bytes()),
            Self::Simulated { regex, .. } => regex.is_match(text),
        }
    }

    /// The cost of a search in a text of this length, in addition to [`READ`] for each byte. A table costs nothing more.
    pub(crate) fn simulation(&self, length: u64) -> u64 {
        match self {
            Self::Table(_) => 0,
            Self::Simulated { states, .. } => states.saturating_mul(SIMULATED).saturating_mul(length),
        }
    }

    /// The memory in bytes, with the caches of one thread.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Table(table) => table.bytes(),
            Self::Simulated { regex, .. } => (size_of::<Self>() + regex.memory_usage() + 2 * CACHE) as u64,
        }
    }

    /// The memory in bytes that the expression took while it was compiled.
    pub(crate) fn work(&self) -> u64 {
        match self {
            Self::Table(table) => table.work(),
            Self::Simulated { .. } => self.bytes(),
        }
    }
}

/// Returns the maximum number of states that a search visits for one byte: one for each character in the expression,
/// and one for each choice.
fn states(expression: &Hir) -> u64 {
    let inner = || expression.kind().subs().iter().map(states).fold(1_u64, u64::saturating_add);
    match expression.kind() {
        HirKind::Literal(literal) => literal.0.len() as u64,
        // A class of many ranges takes longer.
        HirKind::Class(Class::Unicode(class)) if class.ranges().len() > 8 => 2,
        HirKind::Repetition(repetition) => {
            let copies = repetition.max.unwrap_or(repetition.min).max(1);
            inner().saturating_mul(copies.into())
        }
        _ => inner(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_table(text: &str) -> bool {
        matches!(Pattern::new(text).expect(text), Pattern::Table(_))
    }

    #[test]
    fn an_expression_costs_one_look_up_for_each_byte_or_all_its_states() {
        let words: Vec<String> = (0..50).map(|number| format!("word{number}")).collect();
        for text in [
            "^/v[0-9]+/users/[^/]+$",
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "(?i)(sqlmap|nikto|nmap)",
            "(^|[;,])[;,\\t ]*session=.*[;,][;,\\t ]*session=",
            &words.join("|"),
            "(a*)*(a|b|ab)*c",
            "",
        ] {
            assert!(is_table(text), "{text}");
        }
        for (text, most) in [(r"\bfoo\b", 8), (r"\w{1,20}", 80), ("a[ab]{4000}c", 10_000)] {
            let Pattern::Simulated { states, .. } = Pattern::new(text).expect(text) else { panic!("{text}") };
            assert!(states <= most, "{text} has {states} states");
        }
        let simulated = Pattern::new("a[ab]{4000}c").expect("an expression");
        assert!(simulated.simulation(1) >= 4000 * SIMULATED && simulated.is_match("ab") == simulated.is_match("b"));
    }

    #[test]
    fn a_table_finds_what_a_simulation_finds() {
        for text in [r"^\w+$", "a.c", "(?i)straße", "^$", "[^a]b"] {
            let (pattern, plain) = (Pattern::new(text).expect(text), meta::Regex::new(text).expect(text));
            for searched in ["", "abc", "a\u{e4}c", "STRASSE", "STRA\u{1e9e}E", "\u{e4}b", "ab"] {
                assert_eq!(pattern.is_match(searched), plain.is_match(searched), "{text} on {searched}");
            }
        }
    }
}
