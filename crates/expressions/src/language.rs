//! The functions of the language, and how a predicate is run with them.
//!
//! `matches` of the library compiles its regular expression each time, for each element of a loop. So the ones that stand in a
//! predicate are compiled when it is parsed, with bounds, and there are no others.

use std::{cell::RefCell, collections::HashMap, sync::Arc};

use cel::{Context, FunctionContext, ResolveResult, Value, extractors::This};
use regex::{Regex, RegexBuilder};

/// What a regular expression may take once compiled, and what its cache may, in bytes. Classes of all languages are large.
const LARGEST: usize = 1024 * 1024;

/// How deep it may be nested.
const DEEPEST: u32 = 32;

/// Those of one predicate, by their text.
pub(crate) type Patterns = HashMap<String, Regex>;

thread_local! {
    /// Those of the predicate that is running.
    static RUNNING: RefCell<Option<Arc<Patterns>>> = const { RefCell::new(None) };
}

/// The functions that predicates may call. Making them is costly: once is enough.
pub fn language() -> Context<'static> {
    let mut context = Context::default();
    context.add_function("matches", matches);
    context
}

#[expect(clippy::needless_pass_by_value, reason = "the library gives its arguments away")]
fn matches(call: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, pattern: Arc<String>) -> ResolveResult {
    let found = RUNNING.with_borrow(|running| {
        let pattern = running.as_ref()?.get(pattern.as_str())?;
        Some(pattern.is_match(&text))
    });
    found.map(Value::Bool).ok_or_else(|| call.error("is no expression of this predicate"))
}

/// Calls `run` with these.
pub(crate) fn with<R>(patterns: &Arc<Patterns>, run: impl FnOnce() -> R) -> R {
    let before = RUNNING.replace(Some(Arc::clone(patterns)));
    let outcome = run();
    RUNNING.set(before);
    outcome
}

/// Compiles one; an error is what is wrong with it, in one line.
pub(crate) fn pattern(text: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(LARGEST).dfa_size_limit(LARGEST).nest_limit(DEEPEST);
    builder.build().map_err(|error| error.to_string().lines().last().unwrap_or_default().to_owned())
}
