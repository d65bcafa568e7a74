//! Predicates: CEL expressions over one request.
//!
//! An expression is parsed once, when a snapshot is lowered, and tried on a request of which nothing is known, so that a
//! misspelled name is a fault and not a rule that never matches. It sees nothing but the request: no clock, no state. One
//! that fails on a request is false.

use std::{
    collections::HashMap,
    fmt,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, ExecutionError, IdedExpr, Program, Value,
    common::ast::{EntryExpr, Expr, IdedEntryExpr},
    context::VariableResolver,
    objects::{Key, Map},
};

use super::{
    query,
    request::{self, RequestView},
};

/// The longest expression: what is parsed for a stranger must have a bound.
const LONGEST: usize = 1024;

/// How deep an expression may be nested, brackets and chains of operators alike: running calls itself.
const DEEPEST: usize = 32;

/// As how much of that a loop counts, so that there are no loops within loops within loops over what a client sends.
const LOOP: usize = 12;

/// Of which only what is used is ever there.
const PARSER_STACK: usize = 64 * 1024 * 1024;

/// The only name that an expression may ask for.
const REQUEST: &str = "request";

/// The functions of the language. Making them is costly, so it is done once.
static LANGUAGE: LazyLock<Context<'static>> = LazyLock::new(Context::default);

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Predicate {
    program: Program,
}

/// Why an expression was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPredicate {
    #[error("has more than {LONGEST} bytes: split it into several entries of `match`")]
    TooLong,
    #[error("is nested deeper than {DEEPEST} brackets and operators: split it into several entries of `match`")]
    TooDeep,
    #[error("has a sign twice, as in `!!`: write it once, or with brackets in between")]
    TwoSigns,
    #[error("is not CEL: {0}")]
    Syntax(String),
    #[error("`{0}` is unknown: an expression is about `request` and uses CEL's own functions")]
    Unknown(String),
    #[error("`request.{0}` is unknown: there are method, host, path, query, headers and clientIP")]
    UnknownPart(String),
    #[error("must be true or false, as in `request.method == 'GET'`")]
    NotBoolean,
}

/// What an expression sees of one request, as values of the language.
pub(super) struct Facts(Value);

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Facts")
    }
}

impl Facts {
    /// Of fields and parameters that come several times the first counts for `query`; values of `headers` are joined
    /// with `, `, as RFC 9110 section 5.2 has it. Bytes that are no text are replaced.
    pub(super) fn of(request: &RequestView<'_>, query: &str) -> Self {
        let mut parameters = HashMap::new();
        for (name, value) in query::pairs(query) {
            parameters.entry(key(&name)).or_insert_with(|| text(&value));
        }
        let mut joined: HashMap<String, String> = HashMap::new();
        for (name, value) in request.headers().iter() {
            let value = String::from_utf8_lossy(value);
            let known = joined.entry(name.to_ascii_lowercase()).and_modify(|known| {
                known.push_str(", ");
                known.push_str(&value);
            });
            known.or_insert_with(|| value.clone().into_owned());
        }
        let headers = joined.into_iter().map(|(name, value)| (Key::from(name), Value::from(value))).collect();
        let parts = [
            ("method", Value::from(request.method())),
            ("host", Value::from(request.host().to_ascii_lowercase())),
            ("path", Value::from(request.path())),
            ("query", map(parameters)),
            ("headers", map(headers)),
            ("clientIP", Value::from(request.peer().to_canonical().to_string())),
        ];
        Self(map(parts.into_iter().map(|(name, value)| (Key::from(name), value)).collect()))
    }
}

impl VariableResolver for Facts {
    fn resolve(&self, variable: &str) -> Option<Value> {
        (variable == REQUEST).then(|| self.0.clone())
    }
}

fn map(entries: HashMap<Key, Value>) -> Value {
    Value::Map(Map { map: Arc::new(entries) })
}

fn key(bytes: &[u8]) -> Key {
    Key::from(String::from_utf8_lossy(bytes).into_owned())
}

fn text(bytes: &[u8]) -> Value {
    Value::from(String::from_utf8_lossy(bytes).into_owned())
}

impl Predicate {
    /// Whether the expression is true of the request.
    pub(super) fn holds(&self, request: &RequestView<'_>) -> bool {
        matches!(self.value(request), Ok(Value::Bool(true)))
    }

    fn value(&self, request: &RequestView<'_>) -> Result<Value, ExecutionError> {
        let mut context = LANGUAGE.new_inner_scope();
        context.set_variable_resolver(request.facts());
        self.program.execute(&context)
    }
}

impl FromStr for Predicate {
    type Err = InvalidPredicate;

    fn from_str(text: &str) -> Result<Self, InvalidPredicate> {
        if text.len() > LONGEST {
            return Err(InvalidPredicate::TooLong);
        }
        if brackets(text) > DEEPEST {
            return Err(InvalidPredicate::TooDeep);
        }
        // cel 0.13 reads two signs as one, which would turn a condition around.
        let written: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        if written.windows(2).any(|pair| pair == b"!!" || pair == b"--") {
            return Err(InvalidPredicate::TwoSigns);
        }
        let program = parse(text)?;
        let predicate = Self { program };
        match predicate.value(&request::blank()) {
            Err(ExecutionError::UndeclaredReference(name)) => Err(InvalidPredicate::Unknown(name.to_string())),
            // A key of `query` or `headers` that this request lacks, others may have.
            Err(ExecutionError::NoSuchKey(name)) if asks_for(text, &name) => {
                Err(InvalidPredicate::UnknownPart(name.to_string()))
            }
            Ok(value) if !matches!(value, Value::Bool(_)) => Err(InvalidPredicate::NotBoolean),
            Ok(_) | Err(_) => Ok(predicate),
        }
    }
}

/// The parser needs a multiple of the stack that running takes, and panics where it should not: so it has a thread of its
/// own. That is done once for each expression, and never for a request.
fn parse(text: &str) -> Result<Program, InvalidPredicate> {
    std::thread::scope(|scope| {
        let parser = std::thread::Builder::new().stack_size(PARSER_STACK).spawn_scoped(scope, || {
            let program = Program::compile(text)?;
            let depth = depth(&program.expression().expr);
            Ok((program, depth))
        });
        let parsed = parser.map(std::thread::ScopedJoinHandle::join);
        let Ok(Ok(parsed)) = parsed else { return Err(InvalidPredicate::Syntax("the parser gave up".to_owned())) };
        let (program, depth) = parsed.map_err(|errors: cel::ParseErrors| {
            let first = errors.errors.first().map(|error| format!("{} (column {})", error.msg, error.pos.1));
            InvalidPredicate::Syntax(first.unwrap_or_else(|| errors.to_string()))
        })?;
        if depth > DEEPEST { Err(InvalidPredicate::TooDeep) } else { Ok(program) }
    })
}

/// Whether it is `request` itself that was asked for this part.
fn asks_for(text: &str, part: &str) -> bool {
    let written: String = text.split_whitespace().collect();
    let selected = format!("request.{part}");
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_');
    written.match_indices(&selected).any(|(at, _)| ends(&written[at + selected.len()..]))
        || [format!("request['{part}']"), format!("request[\"{part}\"]")].iter().any(|form| written.contains(form))
}

/// How deep brackets are nested; those within strings count as well, which only refuses too much.
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

/// How often running an expression calls itself.
fn depth(expression: &Expr) -> usize {
    let of = |one: &IdedExpr| depth(&one.expr);
    let of_entry = |entry: &IdedEntryExpr| match &entry.expr {
        EntryExpr::StructField(field) => of(&field.value),
        EntryExpr::MapEntry(entry) => of(&entry.key).max(of(&entry.value)),
    };
    let (own, inner) = match expression {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => (1, None),
        Expr::Call(call) => (1, call.target.iter().map(|target| of(target)).chain(call.args.iter().map(of)).max()),
        Expr::Select(select) => (1, Some(of(&select.operand))),
        Expr::List(list) => (1, list.elements.iter().map(of).max()),
        Expr::Map(map) => (1, map.entries.iter().map(of_entry).max()),
        Expr::Struct(fields) => (1, fields.entries.iter().map(of_entry).max()),
        Expr::Comprehension(each) => {
            let parts = [&each.iter_range, &each.accu_init, &each.loop_cond, &each.loop_step, &each.result];
            (LOOP, parts.into_iter().map(of).max())
        }
    };
    own + inner.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> http::Request<()> {
        http::Request::builder()
            .method("POST")
            .uri("/api/%61?page=2&page=3&q=a%20b")
            .header("host", "Shop.Example.com:8080")
            .header("X-Tier", "gold")
            .header("x-n", "1")
            .header("x-n", "2")
            .body(())
            .unwrap()
    }

    #[test]
    fn expressions_see_the_request() {
        let request = request();
        let view = RequestView::new(&request, "::ffff:192.0.2.7".parse().unwrap());
        for (text, expected) in [
            ("true", true),
            ("request.method == 'POST'", true),
            ("request.host == 'shop.example.com'", true),
            ("request.path == '/api/a'", true),
            ("request.path.startsWith('/api/') && request.query.page == '2'", true),
            ("request.query['q'] == 'a b'", true),
            ("request.headers['x-tier'] != 'gold'", false),
            ("request.headers['x-n'] == '1, 2'", true),
            ("request.headers['absent'] == 'x'", false),
            ("request.headers['absent'] != 'x'", false), // it fails, and so is false
            ("!('absent' in request.headers)", true),
            ("!(!('x-n' in request.headers))", true),
            ("-(-1) == 1", true),
            ("request.clientIP == '192.0.2.7'", true),
            ("request.path.matches('^/api/[a-z]$')", true),
            ("int(request.query.page) > 1", true),
            ("int(request.headers['x-tier']) > 1", false),
            ("['GET', 'POST'].exists(m, m == request.method)", true),
        ] {
            let predicate: Predicate = text.parse().unwrap_or_else(|invalid| panic!("{text}: {invalid}"));
            assert_eq!(predicate.holds(&view), expected, "{text}");
        }
    }

    #[test]
    fn what_can_never_hold_is_refused() {
        for (text, word) in [
            ("", "not CEL"),
            ("request.method ==", "not CEL"),
            ("request.method = 'GET'", "not CEL"),
            ("'open", "not CEL"),
            ("method == 'GET'", "`method` is unknown"),
            ("request.method.lower() == 'get'", "`lower` is unknown"),
            ("request.header['a'] == 'b'", "`request.header` is unknown"),
            ("request.method", "true or false"),
            ("1 + 1", "true or false"),
            (&"(".repeat(100), "nested"),
            (&vec!["1"; 100].join("+"), "nested"),
            ("!!('a' in request.headers)", "a sign twice"),
            ("- -1 == 1", "a sign twice"),
            ("[1].all(a, [1].all(b, [1].all(c, a == b)))", "nested"),
            (&"x".repeat(2000), "more than 1024"),
        ] {
            let invalid = text.parse::<Predicate>().expect_err(text).to_string();
            assert!(invalid.contains(word), "{text}: {invalid}");
        }
    }

    /// Whatever is accepted runs on a thread with as little stack as a worker has, and nothing ends the program.
    #[test]
    fn the_longest_chains_are_parsed_or_refused() {
        let request = request();
        let view = RequestView::new(&request, "127.0.0.1".parse().unwrap());
        let full = |piece: &str, end: &str| format!("{}{end}", piece.repeat((LONGEST - end.len()) / piece.len()));
        for text in [
            full("true||", "true"),
            full("1+", "1"),
            full("true?true:", "true"),
            full("!", "a"),
            full("-", "1"),
            full("a.", "a"),
            full("a[", "1"),
            full("[1].all(x,", "true"),
            full("x.all(x,x).", "b"),
            format!("{}1 > 0", "1 + ".repeat(DEEPEST - 2)),
            format!("{}true", "true ? true : ".repeat(DEEPEST - 2)),
            format!("{}true{}", "(".repeat(DEEPEST), ")".repeat(DEEPEST)),
            format!("{}1{} == 1", "[".repeat(DEEPEST - 2), "]".repeat(DEEPEST - 2)),
            "[1, 2].all(a, [1, 2].all(b, a + b > 0))".to_owned(),
        ] {
            if let Ok(predicate) = text.parse::<Predicate>() {
                predicate.holds(&view);
            }
        }
    }
}
