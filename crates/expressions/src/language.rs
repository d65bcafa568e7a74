//! The functions of predicates, and the evaluation of a predicate with them.
//!
//! The library's `matches` compiles its regular expression on every call, so once per element of a loop. Here, the
//! regular expressions of a predicate are compiled once, with bounds, when the predicate is parsed. A predicate cannot
//! use other regular expressions.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use cel::{Context, FunctionContext, ResolveResult, Value, extractors::This, functions};

use crate::{network::network, pattern::Pattern};

/// The regular expressions of one predicate, by their text.
pub(crate) type Patterns = HashMap<String, Pattern>;

thread_local! {
    /// The regular expressions of the predicate that this thread evaluates.
    static RUNNING: RefCell<Option<Arc<Patterns>>> = const { RefCell::new(None) };

    static SEARCH_BUDGET: Cell<SearchBudget> = const { Cell::new(SearchBudget { units: 0, was_denied: false }) };
}

/// The rest of the budget for searches without a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchBudget {
    pub(crate) units: u64,
    /// True if a search would have needed more.
    pub(crate) was_denied: bool,
}

/// Builds the functions that predicates can call. This is slow: call it once.
pub fn language() -> Context<'static> {
    let mut context = Context::default();
    context.add_function("matches", matches);
    context.add_function("contains", contains);
    context.add_function("inIpRange", in_ip_range);
    context
}

#[expect(clippy::needless_pass_by_value, reason = "the library passes its arguments by value")]
fn matches(call: &FunctionContext<'_, '_>, This(text): This<Arc<String>>, pattern: Arc<String>) -> ResolveResult {
    RUNNING.with_borrow(|running| {
        let pattern = running.as_ref().and_then(|known| known.get(pattern.as_str()));
        let pattern = pattern.ok_or_else(|| call.error("is not an expression of this predicate"))?;
        // The time depends on this text, not on the longest one that the request could contain.
        let budget = SEARCH_BUDGET.get();
        let Some(units) = budget.units.checked_sub(pattern.simulation(text.len() as u64)) else {
            SEARCH_BUDGET.set(SearchBudget { was_denied: true, ..budget });
            return Err(call.error("would take too long"));
        };
        SEARCH_BUDGET.set(SearchBudget { units, ..budget });
        Ok(Value::Bool(pattern.is_match(&text)))
    })
}

/// The library's function, except for bytes. For these, it panics if the argument is empty, and its time grows with the
/// product of the two lengths.
fn contains(call: &FunctionContext<'_, '_>, This(whole): This<Value>, part: Value) -> ResolveResult {
    if matches!(whole, Value::Bytes(_)) {
        return Err(call.error("needs a text, a list or a map"));
    }
    functions::contains(This(whole), part)
}

/// Whether an address is in a network, as in Google's Cloud Armor. Fails if the text is not an address.
#[expect(clippy::needless_pass_by_value, reason = "the library passes its arguments by value")]
fn in_ip_range(call: &FunctionContext<'_, '_>, address: Arc<String>, range: Arc<String>) -> ResolveResult {
    let range = network(&range).map_err(|invalid| call.error(invalid))?;
    let address = address.parse::<IpAddr>().map_err(|invalid| call.error(invalid))?;
    Ok(Value::Bool(range.contains(address.to_canonical())))
}

/// Calls `run` with these regular expressions and this budget for searches without a table. Returns its result, and the
/// budget afterwards. The result is `None` if the library panics, for example when it negates the smallest number: no
/// request must be able to end a thread.
pub(crate) fn with<R>(patterns: &Arc<Patterns>, budget: u64, run: impl FnOnce() -> R) -> (Option<R>, SearchBudget) {
    let before = RUNNING.replace(Some(Arc::clone(patterns)));
    SEARCH_BUDGET.set(SearchBudget { units: budget, was_denied: false });
    // `run` only reads its captured values, so a panic leaves none of them in an invalid state.
    let outcome = catch_unwind(AssertUnwindSafe(run));
    RUNNING.set(before);
    (outcome.ok(), SEARCH_BUDGET.get())
}
