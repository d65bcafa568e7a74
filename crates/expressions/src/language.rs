//! The functions of the language, and how a predicate runs with them.
//!
//! The library's own `matches` compiles its regular expression on every call, so once per element of a loop. Here, the
//! regular expressions of a predicate are compiled once, with bounds, when the predicate is parsed. A predicate can use
//! no other regular expressions.

use std::{
    cell::RefCell,
    collections::HashMap,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cel::{Context, FunctionContext, ResolveResult, Value, extractors::This};
use regex::{Regex, RegexBuilder};

use crate::network::network;

/// Bound in bytes for a compiled regular expression, and for its cache. Unicode classes are large.
const LARGEST: usize = 1024 * 1024;

/// How deep a regular expression may be nested.
const DEEPEST: u32 = 32;

/// The regular expressions of one predicate, by their text.
pub(crate) type Patterns = HashMap<String, Regex>;

thread_local! {
    /// The regular expressions of the predicate that is running.
    static RUNNING: RefCell<Option<Arc<Patterns>>> = const { RefCell::new(None) };
}

/// The functions that predicates may call. Building them is slow: build them once.
pub fn language() -> Context<'static> {
    let mut context = Context::default();
    context.add_function("matches", matches);
    context.add_function("inIpRange", in_ip_range);
    context
}

#[expect(clippy::needless_pass_by_value, reason = "the library gives its arguments away")]
fn matches(call: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, pattern: Arc<String>) -> ResolveResult {
    let found = RUNNING.with_borrow(|running| {
        let pattern = running.as_ref()?.get(pattern.as_str())?;
        Some(pattern.is_match(&text))
    });
    found.map(Value::Bool).ok_or_else(|| call.error("is not an expression of this predicate"))
}

/// Whether an address is in a network, as in Google's Cloud Armor. Anything else than an address is in none.
#[expect(clippy::needless_pass_by_value, reason = "the library gives its arguments away")]
fn in_ip_range(call: &FunctionContext<'_, '_>, address: Arc<String>, range: Arc<String>) -> ResolveResult {
    let range = network(&range).map_err(|invalid| call.error(invalid))?;
    let address = address.parse::<IpAddr>().map_err(|invalid| call.error(invalid))?;
    Ok(Value::Bool(range.contains(address.to_canonical())))
}

/// Calls `run` with these regular expressions. None if the library panics, as it does when it negates the smallest number:
/// what a client sends must not end a thread.
pub(crate) fn with<R>(patterns: &Arc<Patterns>, run: impl FnOnce() -> R) -> Option<R> {
    let before = RUNNING.replace(Some(Arc::clone(patterns)));
    // `run` only reads what it is given.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    RUNNING.set(before);
    outcome.ok()
}

/// Compiles a regular expression. The error says in one line what is wrong.
pub(crate) fn pattern(text: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(text);
    builder.size_limit(LARGEST).dfa_size_limit(LARGEST).nest_limit(DEEPEST);
    builder.build().map_err(|error| error.to_string().lines().last().unwrap_or_default().to_owned())
}
