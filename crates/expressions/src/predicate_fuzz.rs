//! Predicates: a predicate is refused with a message of one line, or its evaluation costs at most what was predicted.
//! To count the cost, each part of an expression is wrapped in a call that measures the value of each evaluation. The
//! prediction does not use these values, so the count and the prediction have only the unit in common.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cel::{
    Context, ExecutionError, FunctionContext, Value,
    common::ast::{CallExpr, EntryExpr, Expr, IdedExpr},
    objects::{Key, Map},
};
use weir_fuzz::{Choices, Target, mutated};

use super::{Predicate, predicate};
use crate::{
    cost::{BUDGET, STEP},
    language::{self, language},
    weight::{REQUEST, Size},
};

/// The stack for an evaluation with counters, which make the expression deeper than [`predicate`] allows.
const STACK: usize = 256 * 1024 * 1024;

const TEXTS: &[&str] = &[
    "request.path", "request.host", "request.query.a", "request.headers['x']", "'a'", "''", "k", "string(1)",
    "request.path + k", "request['path']",
];
const NUMBERS: &[&str] = &[
    "0", "1", "-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615u", "1.5",
    "int(request.query.a)", "uint(1)", "double('1e400')", "size(request.query)", "request.path.size()", "max(1, 2)",
    "size(request.query.map(k, k))",
];
const LISTS: &[&str] = &[
    "request.query", "request.headers", "['a', 'b', 'c']", "[]", "{'a': 1}", "request", "[request.path]",
    "request.query.map(k, k)", "request.headers.filter(k, true)", "[1, 'a', true, null]",
];
const PIECES: &[&str] = &[
    "request", ".", "path", "query", "[", "]", "(", ")", "{", "}", "'a'", "1", "2u", "true", "null", "==", "<", "&&",
    "||", "!", "-", "+", "%", "?", ":", ",", " in ", "has(", "exists(", "map(", "matches(", "size(", "k", "b'a'",
    "'''", "\u{e4}", "\n", "//", "[?", ".?", "@", "`a`", "Request{}", "0x", "1e", "..", "starts_with(", "exists_one(",
    "max(",
];

#[test]
fn any_predicate_is_refused_or_runs_within_its_budget() {
    Target::new("predicates").run(40, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let text = match choices.below(4) {
            0 => choices.text(PIECES, 14),
            1 => {
                let (text, other) = (condition(&mut choices, 3), condition(&mut choices, 1));
                let changed = mutated(text.as_bytes(), other.as_bytes(), &mut choices.random());
                String::from_utf8_lossy(&changed).into_owned()
            }
            _ => condition(&mut choices, 4),
        };
        match predicate(&text) {
            Ok(predicate) => runs_within(&text, &predicate, &Request::any(&mut choices))?,
            Err(invalid) => {
                let told = invalid.to_string();
                if told.is_empty() || told.contains('\n') || told.contains("cannot be parsed now") {
                    return Err(format!("{text:?} is refused by {told:?}"));
                }
            }
        }
    }
    Ok(())
}

/// Generates an expression that is usually a boolean.
fn condition(choices: &mut Choices<'_>, depth: usize) -> String {
    let below = depth.saturating_sub(1);
    match choices.below(if depth == 0 { 5 } else { 11 }) {
        0 => format!("{} == {}", choices.one(TEXTS), choices.one(TEXTS)),
        1 => {
            let sign = *choices.one(&["<", "<=", ">", "==", "!="]);
            format!("{} {sign} {}", number(choices, below), number(choices, below))
        }
        2 => format!("{} in {}", choices.one(TEXTS), choices.one(LISTS)),
        3 => format!(
            "{}.matches('{}')",
            choices.one(TEXTS),
            choices.one(&["^/a", "(a*)*b", "(a|b)*c$", "", "(", "a{9}{9}"])
        ),
        4 => format!("{}.contains({})", text(choices, below), choices.one(TEXTS)),
        5 => format!("({}) && ({})", condition(choices, below), condition(choices, below)),
        6 => format!("{} || {}", condition(choices, below), condition(choices, below)),
        7 => format!("!({})", condition(choices, below)),
        8 => format!("{} ? {} : {}", condition(choices, 0), condition(choices, below), condition(choices, below)),
        9 => format!("has(request.query.{})", choices.one(&["a", "x"])),
        _ => {
            let quantifier = *choices.one(&["all", "exists", "exists_one"]);
            format!("{}.{quantifier}(k, {})", list(choices, below), condition(choices, below))
        }
    }
}

/// Generates an expression that is usually a text.
fn text(choices: &mut Choices<'_>, depth: usize) -> String {
    match choices.below(if depth == 0 { 1 } else { 4 }) {
        0 => (*choices.one(TEXTS)).to_owned(),
        1 => {
            let one = text(choices, depth - 1);
            format!("({one} + {one} + {one})")
        }
        2 => format!("({} + {})", text(choices, depth - 1), text(choices, depth - 1)),
        _ => format!("[{}, {}][0]", text(choices, depth - 1), text(choices, depth - 1)),
    }
}

/// Generates an expression that is usually a list.
fn list(choices: &mut Choices<'_>, depth: usize) -> String {
    match choices.below(if depth == 0 { 1 } else { 6 }) {
        0 => (*choices.one(LISTS)).to_owned(),
        1 => format!("{}.map(k, {})", list(choices, depth - 1), text(choices, depth)),
        2 => format!("{}.map(k, [k, k] + [k])[0]", list(choices, depth - 1)),
        3 => format!("{}.filter(k, {})", list(choices, depth - 1), condition(choices, 0)),
        4 => format!("({} + {})", list(choices, depth - 1), list(choices, depth - 1)),
        _ => format!("[{}, {}]", text(choices, depth - 1), list(choices, depth - 1)),
    }
}

fn number(choices: &mut Choices<'_>, depth: usize) -> String {
    if depth == 0 || choices.rarely(2) {
        return (*choices.one(NUMBERS)).to_owned();
    }
    match choices.below(3) {
        0 => format!("-({})", number(choices, depth - 1)),
        1 => format!("size({} + {})", choices.one(LISTS), choices.one(LISTS)),
        _ => {
            let sign = *choices.one(&["+", "-", "*", "/", "%"]);
            format!("({} {sign} {})", number(choices, depth - 1), number(choices, depth - 1))
        }
    }
}

/// The request with which a predicate is evaluated.
struct Request {
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

impl Request {
    fn any(choices: &mut Choices<'_>) -> Self {
        let values = ["", "a", "7", "x", "-9223372036854775808", "abababababababababababababababababab"];
        let many = if choices.rarely(3) { 40 } else { 4 };
        let mut pairs = || -> BTreeMap<String, String> {
            let count = 1 + choices.below(many);
            let name = |index: usize| if index == 0 { "a".to_owned() } else { format!("x{index}") };
            (0..count).map(|index| (name(index), (*choices.one(&values)).to_owned())).collect()
        };
        let (query, headers) = (pairs(), pairs());
        Self { path: format!("/{}", choices.text(&["a", "api", "/", "ab"], 40)), query, headers }
    }

    /// Computes the size as callers of `Predicate::fits` compute it, from names, values, the path and the host.
    fn size(&self) -> Size {
        let pairs = || self.query.iter().chain(&self.headers);
        let bytes = pairs().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        Size { parts: pairs().count() as u64, bytes: (bytes + self.path.len() + "host".len()) as u64 }
    }

    fn context(&self, mut context: Context<'static>) -> Context<'static> {
        let map = |pairs: &BTreeMap<String, String>| {
            let pairs = pairs.iter().map(|(name, value)| (Key::from(name.clone()), Value::from(value.clone())));
            Value::Map(Map { map: Arc::new(pairs.collect()) })
        };
        let request: HashMap<&str, Value> = [
            ("method", "GET".into()),
            ("host", "host".into()),
            ("path", self.path.clone().into()),
            ("query", map(&self.query)),
            ("headers", map(&self.headers)),
            ("clientIP", "127.0.0.1".into()),
        ]
        .into();
        context.add_variable_from_value(REQUEST, request);
        context
    }
}

thread_local! {
    static COST: Cell<u64> = const { Cell::new(0) };
}

/// Evaluates a predicate as agents do, and with counters.
fn runs_within(text: &str, predicate: &Predicate, request: &Request) -> Result<(), String> {
    let size = request.size();
    let most = predicate.cost(size);
    if most > BUDGET {
        return Ok(());
    }
    let Some(holds) = predicate.holds(&request.context(language()), &Cell::new(BUDGET)) else { return Ok(()) };
    let (cost, value) = counted(predicate, request);
    // The predicate would match no request.
    if let Some(Err(ExecutionError::UndeclaredReference(_) | ExecutionError::InvalidArgumentCount { .. })) = value {
        return Err(format!("{text:?} has no value: {value:?}"));
    }
    if cost > most {
        return Err(format!("{text:?} cost {cost}, and {most} was predicted for {size:?}"));
    }
    if holds != matches!(value, Some(Ok(Value::Bool(true)))) {
        return Err(format!("{text:?} is {holds}, and with counters {value:?}"));
    }
    Ok(())
}

/// Returns the cost of an evaluation, and its value.
fn counted(predicate: &Predicate, request: &Request) -> (u64, Option<Result<Value, ExecutionError>>) {
    let run = || {
        let mut language = language();
        language.add_function("@tick", tick);
        let context = request.context(language);
        let tree = wrapped(predicate.program.expression());
        COST.set(0);
        let value = language::with(&predicate.patterns, u64::MAX, || context.resolve(&tree)).0;
        (COST.get(), value)
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, run);
        thread.expect("a thread").join().expect("an outcome")
    })
}

/// `@tick(value)` counts the cost of copying the value, and returns the value.
fn tick(call: &FunctionContext<'_, '_>) -> Result<Value, ExecutionError> {
    COST.set(COST.get() + STEP);
    let value = call.ptx.resolve(&call.args[0])?;
    COST.set(COST.get() + copied(&value));
    Ok(value)
}

/// Returns the cost of copying a value.
fn copied(value: &Value) -> u64 {
    let of_key = |key: &Key| if let Key::String(text) = key { text.len() as u64 } else { 0 };
    STEP + match value {
        Value::String(text) => text.len() as u64,
        Value::Bytes(bytes) => bytes.len() as u64,
        Value::List(list) => list.iter().map(copied).sum(),
        Value::Map(map) => map.map.iter().map(|(key, value)| of_key(key) + copied(value)).sum(),
        _ => 0,
    }
}

/// Wraps each part of the expression in a counter, except for variables, which are not copied.
fn wrapped(expression: &IdedExpr) -> IdedExpr {
    let mut inner = expression.clone();
    let wrap = |part: &mut IdedExpr| *part = wrapped(part);
    match &mut inner.expr {
        Expr::Ident(_) => return inner,
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(wrap),
        Expr::Select(select) => wrap(&mut select.operand),
        Expr::List(list) => list.elements.iter_mut().for_each(wrap),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    [&mut entry.key, &mut entry.value].into_iter().for_each(wrap);
                }
            }
        }
        Expr::Comprehension(each) => {
            let inputs = [&mut each.iter_range, &mut each.accu_init];
            let steps = [&mut each.loop_cond, &mut each.loop_step, &mut each.result];
            inputs.into_iter().chain(steps).for_each(wrap);
        }
        _ => {}
    }
    let call = CallExpr { func_name: "@tick".to_owned(), target: None, args: vec![inner] };
    IdedExpr { id: 0, expr: Expr::Call(call) }
}

/// The library's arithmetic panics with these numbers.
#[test]
fn numbers_of_a_client_end_no_thread() {
    let numbers = [("a", "-9223372036854775808"), ("b", "-1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let request = Request { path: "/".to_owned(), query: numbers.into(), headers: BTreeMap::new() };
    for text in [
        "-int(request.query.a) > 0",
        "int(request.query.a) % int(request.query.b) == 7",
        "int(request.query.a) / int(request.query.b) > 0",
        "int(request.query.a) * int(request.query.b) > 0",
    ] {
        let predicate = predicate(text).expect(text);
        assert_eq!(predicate.holds(&request.context(language()), &Cell::new(BUDGET)), Some(false), "{text}");
    }
    // The thread can evaluate the next predicate.
    let next = predicate("request.path.matches('^/$')").expect("good");
    assert_eq!(next.holds(&request.context(language()), &Cell::new(BUDGET)), Some(true));
}

/// With the largest requests that the defaults allow, an evaluation costs no more than the budget, and a predicate that
/// would cost more is not evaluated.
#[test]
fn nothing_that_runs_costs_more_than_the_budget() {
    let (mut run, mut refused) = (0, 0);
    let pairs = |count: usize| (0..count).map(|number| (format!("{number:x}"), String::new())).collect();
    let long = format!("/{}b", "a".repeat(60_000));
    for (path, query) in [("/", pairs(12_000)), (&long, pairs(0)), ("/", pairs(2_400))] {
        let request = Request { path: path.to_owned(), query, headers: [("x".to_owned(), "y".to_owned())].into() };
        for text in [
            "request.query.exists(k, k == 'nobody')",
            "request.query.exists(k, k.matches('^(a|b)*c$'))",
            "request.query.exists(k, request.query[k] == 'x')",
            "request.query.map(k, k + k).size() == 1",
            "request.path.matches('(a*)*(a|b|ab)*c')",
            "request.headers.all(h, request.path.contains(h + 'c'))",
        ] {
            let predicate = predicate(text).expect(text);
            if predicate.cost(request.size()) <= BUDGET {
                let (cost, _) = counted(&predicate, &request);
                assert!(0 < cost && cost <= BUDGET, "{text}: {cost}");
                run += 1;
            } else {
                refused += 1;
            }
        }
    }
    assert!(run > 5 && refused > 3, "{run} were evaluated, {refused} were not");
}

/// The library would panic for the first argument, and take seconds for the second one.
#[test]
fn bytes_contain_nothing() {
    let request = Request { path: "/".to_owned(), query: BTreeMap::new(), headers: BTreeMap::new() };
    for text in
        ["(request.path == '/' ? b'a' : b'b').contains(b'')", "[bytes(request.path)][0].contains(bytes(request.path))"]
    {
        let (_, value) = counted(&predicate(text).expect(text), &request);
        assert!(matches!(value, Some(Err(ExecutionError::FunctionError { .. }))), "{text}: {value:?}");
    }
}
