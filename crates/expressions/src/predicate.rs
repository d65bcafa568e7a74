//! Predicates: CEL expressions over one request.
//!
//! A request may lack a header or a parameter that a predicate reads. Therefore, a predicate whose evaluation fails is
//! false. A misspelt name would then silently match no request. So names, functions and the number of their values are
//! checked when the predicate is parsed, and the predicate is evaluated once with an empty request.

use std::{
    cell::Cell,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    thread,
};

use cel::{
    Context, Program, Value,
    common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue},
};

use crate::{
    cost::BUDGET,
    language::{self, Patterns, language},
    network::{InvalidNetwork, network},
    pattern::Pattern,
    signs::has_two_signs,
    weight::{ORDINARY, REQUEST, Size, cost, has_nested_loops, is_operator},
};

/// The fields of the only variable, `request`.
const FIELDS: [&str; 6] = ["method", "host", "path", "query", "headers", "clientIP"];

/// The functions of predicates, without operators and macros.
const FUNCTIONS: [&str; 13] = [
    "contains", "startsWith", "endsWith", "matches", "inIpRange", "size", "max", "min", "string", "int", "uint",
    "double", "bytes",
];

/// The macros, which the parser replaces unless they have a wrong number of values.
const MACROS: [&str; 7] = ["has", "all", "exists", "exists_one", "existsOne", "map", "filter"];

/// The maximum length of an expression in bytes. The author is not trusted, so the cost of parsing must be bounded.
const LONGEST: usize = 1024;

/// The maximum nesting depth of brackets, and the maximum depth of recursion of an evaluation.
const DEEPEST: usize = 32;

/// The number of levels that a macro such as `exists` counts as.
const LOOP: usize = 12;

/// The memory of a parsed expression for each byte of its text, measured with the longest lists.
const PARSED: u64 = 36;

/// The size of the parser's stack. The parser recurses several times for each bracket and each operator, which takes
/// 64 KB per bracket in a debug build. The system provides memory only for the used part of the stack.
const STACK: usize = 64 * 1024 * 1024;

/// The error for an invalid predicate, in one line that explains how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPredicate {
    /// The predicate is too long.
    #[error("has more than {LONGEST} bytes: split it into several entries of match")]
    TooLong,
    /// An evaluation would recurse too deep.
    #[error("has brackets and operators more than {DEEPEST} levels deep: write it as several entries of match")]
    TooDeep,
    /// The number of steps would grow with the square of the number of elements that a client sends.
    #[error(
        "has a quantifier (all, exists, exists_one, map or filter) within another: replace the inner one, as in \
         a == 'x' || a == 'y'"
    )]
    Nested,
    /// An evaluation for an ordinary request would not fit the budget.
    #[error(
        "takes too long or too much memory for a request of {} KiB: use smaller repetitions in matches, and fewer \
         quantifiers and sums of texts",
        ORDINARY.bytes / 1024
    )]
    TooCostly,
    /// The parser reads two signs as one, which would invert the condition.
    #[error("has a sign twice, as in `!!`: write it once, or with brackets in between")]
    TwoSigns,
    /// The text does not parse.
    #[error("is not CEL: {0}")]
    Syntax(String),
    /// The predicate uses a variable that does not exist.
    #[error("reads {0}, which does not exist: the only variable is request, as in request.method == 'GET'")]
    UnknownName(String),
    /// The predicate reads a field that a request does not have.
    #[error("reads request.{0}, which does not exist: a request has {fields}", fields = FIELDS.join(", "))]
    UnknownField(String),
    /// The predicate reads a field in backticks, which the interpreter takes for a part of the name.
    #[error("reads {0}, but a name in backticks is not found: write it as in request.headers['x-tier']")]
    Backticks(String),
    /// The predicate calls a function that does not exist.
    #[error("calls {0}, which does not exist: {hint}", hint = similar(.0))]
    UnknownFunction(String),
    /// The predicate calls a function or a macro in a form that does not exist.
    #[error(
        "calls {0} with too many or too few values: write it as in request.path.startsWith('/a'), \
         size(request.path), max(1, 2), has(request.query.a) or request.query.exists(k, k == 'a')"
    )]
    WrongValues(String),
    /// The predicate uses a type that does not exist.
    #[error("uses the type {0}, which does not exist: the types are texts, numbers, booleans, lists and maps")]
    UnknownType(String),
    /// The regular expression of `matches` is not a literal, so a client could choose it.
    #[error("must have the expression of matches as a text, as in request.path.matches('^/v[0-9]+/')")]
    Pattern,
    /// The predicate calls `contains` on bytes, which is not supported: only texts are searched.
    #[error("calls contains of bytes: call it for a text, as in request.path.contains('..')")]
    ContainsBytes,
    /// The network of `inIpRange` is not a literal, so a client could choose it.
    #[error("must have the network of inIpRange as a text, as in inIpRange(request.clientIP, '10.0.0.0/8')")]
    Range,
    /// A network in the predicate is invalid.
    #[error("has a network in inIpRange that {0}")]
    Network(#[from] InvalidNetwork),
    /// A regular expression in the predicate is invalid.
    #[error("cannot match: {0}")]
    Matches(String),
    /// The value of the predicate is not true or false.
    #[error("must be true or false, as in request.method == 'GET'")]
    NotBoolean,
    /// The system cannot start a thread for the parser.
    #[error("cannot be parsed now: {0}")]
    NoThread(String),
}

/// A parsed predicate.
#[derive(Debug)]
pub struct Predicate {
    program: Program,
    patterns: Arc<Patterns>,
    /// The memory in bytes.
    bytes: u64,
    /// The memory in bytes that the predicate took while it was parsed.
    work: u64,
}

impl Predicate {
    /// Returns the maximum cost of an evaluation for a request of this size, without searches for regular expressions
    /// that have no table. An evaluation beyond the [`BUDGET`](crate::BUDGET) would delay other requests.
    pub fn cost(&self, size: Size) -> u64 {
        cost(self.program.expression(), size)
    }

    /// The memory in bytes, of which regular expressions take most.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory in bytes that the predicate took while it was parsed. The time grows with it.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Whether the predicate is true for the request in `context`, which must have the functions of
    /// [`language`](crate::language()). Returns false if the evaluation fails. Takes the cost of searches for regular
    /// expressions without a table from `budget`. Returns `None` if the value depends on a search that would need more.
    pub fn holds(&self, context: &Context<'_>, budget: &Cell<u64>) -> Option<bool> {
        let (value, left) = language::with(&self.patterns, budget.get(), || self.program.execute(context));
        budget.set(left.units);
        match value {
            Some(Ok(Value::Bool(value))) => Some(value),
            _ => (!left.was_denied).then_some(false),
        }
    }
}

/// Parses a predicate. An accepted predicate reads only `request`, with its fields `method`, `host`, `path`, `query`,
/// `headers` and `clientIP`, and its evaluation fits the small stack of a worker thread.
///
/// # Errors
///
/// If the text does not parse, is too long or too deep, has a quantifier within another, uses an unknown name, or has a
/// value that is not true or false.
pub fn predicate(text: &str) -> Result<Predicate, InvalidPredicate> {
    if text.len() > LONGEST {
        return Err(InvalidPredicate::TooLong);
    }
    if brackets(text) > DEEPEST {
        return Err(InvalidPredicate::TooDeep);
    }
    if has_two_signs(text) {
        return Err(InvalidPredicate::TwoSigns);
    }
    thread::scope(|scope| {
        let parser = thread::Builder::new().name("predicate".to_owned()).stack_size(STACK);
        let outcome = parser.spawn_scoped(scope, || parse(text)).map(thread::ScopedJoinHandle::join);
        match outcome {
            Ok(Ok(outcome)) => outcome,
            // The parser is a library, which can panic. A panic must only refuse this text.
            Ok(Err(_)) => Err(InvalidPredicate::Syntax("the parser failed".to_owned())),
            Err(error) => Err(InvalidPredicate::NoThread(error.to_string())),
        }
    })
}

fn parse(text: &str) -> Result<Predicate, InvalidPredicate> {
    let program = Program::compile(text).map_err(|errors| {
        let first = errors.errors.first();
        InvalidPredicate::Syntax(first.map_or_else(
            || "the text cannot be parsed".to_owned(),
            |error| {
                format!(
                    "{}, at line {} column {}",
                    error.msg.lines().next().unwrap_or_default(),
                    error.pos.0,
                    error.pos.1
                )
            },
        ))
    })?;
    if has_nested_loops(program.expression(), false) {
        return Err(InvalidPredicate::Nested);
    }
    let (mut unknown, mut texts) = (None, BTreeSet::new());
    if walk(program.expression(), &mut Vec::new(), &mut texts, &mut unknown) > DEEPEST {
        return Err(InvalidPredicate::TooDeep);
    }
    if let Some(unknown) = unknown {
        return Err(unknown);
    }
    if cost(program.expression(), ORDINARY) > BUDGET {
        return Err(InvalidPredicate::TooCostly);
    }
    let patterns = compile(texts)?;
    let parsed = PARSED * text.len() as u64;
    let bytes = patterns.values().map(Pattern::bytes).sum::<u64>() + parsed;
    let work = patterns.values().map(Pattern::work).sum::<u64>() + parsed;
    let patterns = Arc::new(patterns);
    match language::with(&patterns, BUDGET, || program.execute(&blank())).0 {
        None => Err(InvalidPredicate::Syntax("the interpreter failed".to_owned())),
        Some(Ok(Value::Bool(_)) | Err(_)) => Ok(Predicate { program, patterns, bytes, work }),
        Some(Ok(_)) => Err(InvalidPredicate::NotBoolean),
    }
}

/// Returns how to correct the name of an unknown function.
fn similar(name: &str) -> String {
    let plain = |name: &str| name.replace(['_', '.'], "").to_ascii_lowercase();
    let known = FUNCTIONS.into_iter().chain(MACROS).find(|known| plain(known) == plain(name));
    known.map_or_else(|| format!("the functions are {}", FUNCTIONS.join(", ")), |known| format!("write {known}"))
}

/// Checks the name of a called function, and the number of its values. The interpreter ignores values that it does not
/// expect.
fn check_call(call: &CallExpr) -> Result<(), InvalidPredicate> {
    let name = call.func_name.as_str();
    let values = call.args.len() + usize::from(call.target.is_some());
    let is_right = match name {
        operator if is_operator(operator) => true,
        "contains" | "startsWith" | "endsWith" | "matches" => values == 2,
        "size" | "string" | "int" | "uint" | "double" => values == 1,
        "bytes" => values == 1 && call.target.is_none(),
        "max" | "min" => values > 0 && call.target.is_none(),
        "inIpRange" => return check_range(call),
        other if MACROS.contains(&other) => false,
        _ => return Err(InvalidPredicate::UnknownFunction(name.to_owned())),
    };
    is_right.then_some(()).ok_or_else(|| InvalidPredicate::WrongValues(name.to_owned()))
}

/// Returns the regular expression of a call of `matches`.
fn searched(call: &CallExpr) -> Result<&str, InvalidPredicate> {
    match call.args.last().map(|arg| &arg.expr) {
        Some(Expr::Literal(LiteralValue::String(text))) => Ok(text.inner()),
        _ => Err(InvalidPredicate::Pattern),
    }
}

/// Compiles the regular expressions of a predicate until one is invalid, or searches for them take too long. This takes
/// most of the time for a predicate, so it is the last step.
fn compile(texts: BTreeSet<&str>) -> Result<Patterns, InvalidPredicate> {
    let (mut patterns, mut searches) = (Patterns::new(), 0_u64);
    for text in texts {
        let pattern = Pattern::new(text).map_err(InvalidPredicate::Matches)?;
        searches = searches.saturating_add(pattern.simulation(ORDINARY.bytes));
        if searches > BUDGET {
            return Err(InvalidPredicate::TooCostly);
        }
        patterns.insert(text.to_owned(), pattern);
    }
    Ok(patterns)
}

/// Whether the value in which a call of `contains` searches is bytes for certain.
fn is_of_bytes(call: &CallExpr) -> bool {
    let whole = call.target.as_deref().or(call.args.first());
    whole.is_some_and(|whole| match &whole.expr {
        Expr::Literal(literal) => matches!(literal, LiteralValue::Bytes(_)),
        Expr::Call(inner) => inner.func_name == "bytes",
        _ => false,
    })
}

/// Checks the network of a call of `inIpRange`.
fn check_range(call: &CallExpr) -> Result<(), InvalidPredicate> {
    let (None, [_, IdedExpr { expr: Expr::Literal(LiteralValue::String(text)), .. }]) = (&call.target, &call.args[..])
    else {
        return Err(InvalidPredicate::Range);
    };
    network(text.inner())?;
    Ok(())
}

/// Builds the empty request with which a predicate is tried.
fn blank() -> Context<'static> {
    let nothing = HashMap::<String, Value>::new;
    let request: HashMap<&str, Value> = [
        ("method", "GET".into()),
        ("host", "".into()),
        ("path", "/".into()),
        ("query", nothing().into()),
        ("headers", nothing().into()),
        ("clientIP", "127.0.0.1".into()),
    ]
    .into();
    let mut context = language();
    context.add_variable_from_value(REQUEST, request);
    context
}

/// Returns the nesting depth of brackets. Brackets within texts are counted, too, so the result can be too large, but
/// never too small.
fn brackets(text: &str) -> usize {
    let (mut open, mut deepest) = (0_usize, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Returns the depth of recursion of an evaluation. Sets `unknown` to the first fault, and collects the regular
/// expressions in `texts`. `known` contains the variables of the enclosing macros.
fn walk<'a>(
    expression: &'a IdedExpr,
    known: &mut Vec<&'a str>,
    texts: &mut BTreeSet<&'a str>,
    unknown: &mut Option<InvalidPredicate>,
) -> usize {
    let report = |unknown: &mut Option<InvalidPredicate>, found: InvalidPredicate| {
        unknown.get_or_insert(found);
    };
    let mut own = 1;
    let mut inner = 0;
    match &expression.expr {
        Expr::Unspecified | Expr::Literal(_) => {}
        Expr::Ident(name) => {
            if name != REQUEST && !name.starts_with('@') && !known.contains(&name.as_str()) {
                report(unknown, InvalidPredicate::UnknownName(name.clone()));
            }
        }
        Expr::Select(select) => {
            let of_request = matches!(&select.operand.expr, Expr::Ident(name) if name == REQUEST);
            if of_request && !known.contains(&REQUEST) && !FIELDS.contains(&select.field.as_str()) {
                report(unknown, InvalidPredicate::UnknownField(select.field.clone()));
            }
            if select.field.starts_with('`') {
                report(unknown, InvalidPredicate::Backticks(select.field.clone()));
            }
            inner = walk(&select.operand, known, texts, unknown);
        }
        Expr::Call(call) => {
            let checked = check_call(call).and_then(|()| match call.func_name.as_str() {
                "matches" => searched(call).map(|text| texts.extend([text])),
                "contains" if is_of_bytes(call) => Err(InvalidPredicate::ContainsBytes),
                _ => Ok(()),
            });
            if let Err(invalid) = checked {
                report(unknown, invalid);
            }
            for part in call.target.as_deref().into_iter().chain(&call.args) {
                inner = inner.max(walk(part, known, texts, unknown));
            }
        }
        Expr::List(list) => {
            for element in &list.elements {
                inner = inner.max(walk(element, known, texts, unknown));
            }
        }
        Expr::Map(map) => {
            for entry in &map.entries {
                if let EntryExpr::MapEntry(entry) = &entry.expr {
                    for part in [&entry.key, &entry.value] {
                        inner = inner.max(walk(part, known, texts, unknown));
                    }
                }
            }
        }
        Expr::Struct(message) => report(unknown, InvalidPredicate::UnknownType(message.type_name.clone())),
        Expr::Comprehension(each) => {
            own = LOOP;
            for part in [&each.iter_range, &each.accu_init] {
                inner = inner.max(walk(part, known, texts, unknown));
            }
            let outer = known.len();
            known.extend([each.iter_var.as_str(), each.accu_var.as_str()]);
            known.extend(each.iter_var2.as_deref());
            for part in [&each.loop_cond, &each.loop_step, &each.result] {
                inner = inner.max(walk(part, known, texts, unknown));
            }
            known.truncate(outer);
        }
    }
    own + inner
}

#[cfg(test)]
#[path = "predicate_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::COMPILED;

    fn check(text: &str) -> Result<(), String> {
        predicate(text).map(drop).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn what_can_be_true_of_a_request_passes() {
        for text in [
            "true",
            "request.method == 'GET'",
            "request.headers['x-tier'] != 'gold' && !(request.host in ['a', 'b'])",
            "has(request.query.page) && int(request.query.page) > 100",
            "request.path.startsWith('/api') || request.path.matches('^/v[0-9]+/')",
            "['/a', '/b'].exists(p, request.path.startsWith(p))",
            "request.headers.all(name, name.size() < 20 && !name.contains('x'))",
            "request.query.map(k, request.query[k]).exists(v, v.matches('^[0-9]+$'))",
            "size(request.clientIP) > 7 ? request.method == 'PUT' : -1 < 2",
            "{'a': request.method}['a'] == 'GET'",
            "!inIpRange(request.clientIP, '10.0.0.0/8') && request.path.startsWith('/internal/')",
            "['10.0.0.1'].exists(a, inIpRange(a, '10.0.0.0/8'))",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_wrong_and_how_to_fix_it() {
        let sum = |text: &str, count: usize| format!("({})", vec![text; count].join("+"));
        let path = sum(&sum(&sum("request.path", 2), 2), 2);
        let many_paths = format!("[''].map(x,{path}).map(y,{})==[]", sum(&sum(&sum(&sum("y", 4), 4), 4), 5));
        for (text, part) in [
            ("request.method ==", "is not CEL: Syntax error"),
            ("", "is not CEL"),
            ("method == 'GET'", "reads method, which does not exist: the only variable is request"),
            ("bytes(request.path).contains(b'..')", "calls contains of bytes: call it for a text"),
            ("request.verb == 'GET'", "reads request.verb, which does not exist: a request has method, host"),
            ("request.path.startWith('/a')", "calls startWith, which does not exist: the functions are contains"),
            ("['a'].exists(p, p == q)", "reads q, which"),
            ("['a'].exists(p, true) && p", "reads p, which"),
            ("{'a': nobody}.a", "reads nobody, which"),
            ("[nobody][0]", "reads nobody, which"),
            ("inIpRange(request.clientIP, request.host)", "must have the network of inIpRange as a text"),
            ("request.clientIP.inIpRange('10.0.0.0/8')", "as in inIpRange(request.clientIP, '10.0.0.0/8')"),
            ("inIpRange(request.clientIP)", "must have the network of inIpRange as a text"),
            ("inIpRange(request.clientIP, '10.0.0.1/8')", "has a network in inIpRange that has bits after its prefix"),
            ("request.path.matches('^/(v1')", "cannot match: error: unclosed group"),
            ("request.path", "must be true or false"),
            ("size(request.headers)", "must be true or false"),
            ("timestamp('2026-01-01T00:00:00Z') == 1", "calls timestamp, which"),
            ("request.method = 'GET'", "is not CEL"),
            ("'open", "is not CEL"),
            ("request.method.lower() == 'get'", "calls lower, which"),
            ("request.path.starts_with('/a')", "calls starts_with, which does not exist: write startsWith"),
            (
                "!in_ip_range(request.clientIP, '10.0.0.0/8')",
                "calls in_ip_range, which does not exist: write inIpRange",
            ),
            (".endsWith(request.path, '.png')", "calls .endsWith, which does not exist: write endsWith"),
            ("request.path.to_lower() == '/a'", "calls to_lower, which does not exist: the functions are contains"),
            ("_() == 1", "calls _, which"),
            ("request.headers.`x-tier` == 'gold'", "reads `x-tier`, but a name in backticks is not found: write it"),
            ("has(request.query.`a//b`) && !!true", "reads `a//b`, but a name in backticks"),
            ("request.query.exists(k, k.starts_with('a'))", "calls starts_with, which"),
            ("request.query.exists_one(k)", "calls exists_one with too many or too few values: write it as in"),
            ("has(request.query.a, request.query.b)", "calls has with too many or too few"),
            ("request.path.startsWith()", "calls startsWith with too many or too few"),
            ("request.method == 'PUT' && request.path.endsWith()", "calls endsWith with too many or too few"),
            ("request.path.startsWith('/a', '/b')", "calls startsWith with too many or too few"),
            ("request.path.matches()", "calls matches with too many or too few"),
            ("request.path.max('/a') == '/a'", "calls max with too many or too few"),
            ("request.path.bytes() == b'/a'", "calls bytes with too many or too few"),
            ("request.header['a'] == 'b'", "reads request.header, which"),
            ("request['header'] == 'b' && nobody", "reads nobody, which"),
            ("Request{method: 'GET'} == request", "uses the type Request, which"),
            ("1 + 1", "must be true or false"),
            ("!!('a' in request.headers)", "has a sign twice"),
            ("- -1 == 1", "has a sign twice"),
            ("[1].all(a, [1].all(b, a == b))", "a quantifier (all, exists, exists_one, map or filter) within another"),
            ("request.query.exists(a, request.query.exists(b, a != b))", "within another"),
            ("request.query.exists(a, request.headers.map(b, a + b).size() > 1)", "within another"),
            ("request.path.matches(request.headers['x'])", "must have the expression of matches as a text"),
            ("request.query.exists(k, 'a'.matches(k))", "must have the expression of matches as a text"),
            ("matches(request.path, '^' + '/a')", "must have the expression of matches as a text"),
            (r"request.path.matches('(\\w{100}){100}')", "cannot match: the regular expression is too large"),
            ("request.path.matches('a[ab]{20000}[^ab]')", "cannot match: the regular expression is too large"),
            ("request.path.matches('a[ab]{2000}[^ab]')", "takes too long or too much memory for a request of 4 KiB"),
            (&many_paths, "and fewer quantifiers and sums of texts"),
            (&vec!["1"; 100].join("+"), "levels deep"),
            (&"x".repeat(2000), "more than 1024"),
        ] {
            let message = check(text).expect_err(text);
            assert!(message.contains(part) && !message.contains('\n'), "{text}: {message}");
        }
    }

    #[test]
    fn regular_expressions_are_compiled_last_and_once() {
        for (text, compiled) in [
            ("request.path.matches('a') || request.host.matches('a') || request.path.matches('b')", 2),
            ("request.path.matches('a') || unknown", 0),
            ("request.path.matches('a') || request.path.matches('(') || request.path.matches('b')", 1),
            ("request.path.matches('a[ab]{600}c') || request.path.matches('b')", 1),
        ] {
            COMPILED.set(0);
            let _ = parse(text);
            assert_eq!(COMPILED.get(), compiled, "{text}");
        }
    }

    /// The interpreter has every function of `FUNCTIONS`.
    #[test]
    fn the_functions_exist() {
        for function in FUNCTIONS {
            let program = Program::compile(&format!("{function}('1')")).unwrap();
            let outcome = program.execute(&blank());
            assert!(!matches!(outcome, Err(cel::ExecutionError::UndeclaredReference(_))), "{function}: {outcome:?}");
        }
    }

    /// Parses expressions that are as long and as deep as allowed. They can be accepted or refused, but must not
    /// overflow the stack.
    #[test]
    fn the_worst_expressions_do_not_exhaust_the_stack() {
        let nested = |(open, middle, close): (&str, &str, &str), count: usize| {
            format!("{}{middle}{}", open.repeat(count), close.repeat(count))
        };
        let is_too_deep = |text: &str| check(text).is_err_and(|message| message.contains("levels deep"));
        for brackets in [("(", "true", ")"), ("[", "1", "]"), ("{1:", "2", "}"), ("size(", "'a'", ")")] {
            assert!(is_too_deep(&nested(brackets, DEEPEST + 1)), "{brackets:?}");
        }
        assert_eq!(check(&nested(("(", "true", ")"), DEEPEST)), Ok(()));
        assert_eq!(check(&nested(("1 + ", "1 > 0", ""), DEEPEST - 2)), Ok(()));
        assert!(is_too_deep(&nested(("1 + ", "1 > 0", ""), DEEPEST)));
        for text in ["!!true", "! ! true", "1 - -1 == 2"] {
            assert!(check(text).is_err_and(|message| message.contains("a sign twice")), "{text}");
        }
        for (open, middle, close) in [
            ("", "request", ".a"),
            ("", "request", "[0]"),
            ("", "request", ".a()"),
            ("true?1:", "2", ""),
            ("1+", "1", ""),
            ("1<", "1", ""),
            ("a||", "b", ""),
            ("a&&b||", "b", ""),
            ("a in ", "b", ""),
        ] {
            let text = nested((open, middle, close), (LONGEST - middle.len()) / (open.len() + close.len()));
            let _ = check(&text);
        }
    }
}
