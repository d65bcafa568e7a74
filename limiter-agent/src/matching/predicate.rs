//! Predicates: CEL expressions over one request.
//!
//! An expression is parsed once, when a snapshot is lowered, and what could never hold is a fault (`weir-expressions`). It
//! sees nothing but the request: no clock, no state. One that fails on a request is false.

use std::{
    collections::HashMap,
    fmt,
    str::FromStr,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Program, Value,
    context::VariableResolver,
    objects::{Key, Map},
};
use weir_expressions::InvalidPredicate;

use super::{query, request::RequestView};

/// The only name that an expression may ask for.
const REQUEST: &str = "request";

/// The functions of the language. Making them is costly, so it is done once.
static LANGUAGE: LazyLock<Context<'static>> = LazyLock::new(Context::default);

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Predicate {
    program: Program,
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
        let mut context = LANGUAGE.new_inner_scope();
        context.set_variable_resolver(request.facts());
        matches!(self.program.execute(&context), Ok(Value::Bool(true)))
    }
}

impl FromStr for Predicate {
    type Err = InvalidPredicate;

    fn from_str(text: &str) -> Result<Self, InvalidPredicate> {
        weir_expressions::predicate(text).map(|program| Self { program })
    }
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

    /// Whatever is accepted runs on a thread with as little stack as a worker has, and nothing ends the program.
    #[test]
    fn the_longest_chains_are_parsed_or_refused() {
        let request = request();
        let view = RequestView::new(&request, "127.0.0.1".parse().unwrap());
        let full = |piece: &str, end: &str| format!("{}{end}", piece.repeat((1024 - end.len()) / piece.len()));
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
            format!("{}1 > 0", "1 + ".repeat(30)),
            format!("{}true", "true ? true : ".repeat(30)),
            format!("{}true{}", "(".repeat(32), ")".repeat(32)),
            format!("{}1{} == 1", "[".repeat(30), "]".repeat(30)),
            "[1, 2].all(a, [1, 2].all(b, a + b > 0))".to_owned(),
        ] {
            if let Ok(predicate) = text.parse::<Predicate>() {
                predicate.holds(&view);
            }
        }
    }
}
