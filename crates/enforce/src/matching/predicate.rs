//! Predicates: CEL expressions over one request.
//!
//! An expression is parsed once, when a snapshot is lowered. One that can never hold is a fault (`weir-expressions`).
//! An expression sees only the request: no clock, no state. If it fails on a request, it is false. If it would take too
//! long, it does not run: limits then assume true and `Bypass` assumes false, so that no client evades a limit by the
//! size of a request.

use std::{
    collections::HashMap,
    fmt,
    str::FromStr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use cel::{
    Context, Value,
    objects::{Key, Map},
};
use weir_expressions::{InvalidPredicate, Size, language};

use super::{query, request::RequestView};

/// The only variable of an expression.
const REQUEST: &str = "request";

/// The functions of the language. Building them is costly, so it happens once.
static LANGUAGE: LazyLock<Context<'static>> = LazyLock::new(language);

/// How many evaluations were skipped because they would have taken too long.
static OVER_BUDGET: AtomicU64 = AtomicU64::new(0);

/// How many evaluations of predicates were skipped because they would have taken too long for the request.
pub fn over_budget() -> u64 {
    OVER_BUDGET.load(Relaxed)
}

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Predicate {
    expression: weir_expressions::Predicate,
    /// The value to assume where evaluation would take too long.
    unknown: bool,
}

/// The values of one request that an expression sees. They are built once, because the interpreter copies its input.
pub(super) struct Facts(Context<'static>);

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Facts")
    }
}

impl Facts {
    /// In `query`, the first of several parameters with one name counts. In `headers`, the values of one name are
    /// joined with `, `, as in RFC 9110 section 5.2. Bytes that are not UTF-8 are replaced.
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
        let mut context = LANGUAGE.new_inner_scope();
        let parts = map(parts.into_iter().map(|(name, value)| (Key::from(name), value)).collect());
        context.add_variable_from_value(REQUEST, parts);
        Self(context)
    }
}

/// The size of a request, which the cost of an expression depends on.
fn size(request: &RequestView<'_>) -> Size {
    let query = request.whole_query();
    let parameters = query.bytes().filter(|byte| *byte == b'&').count() + 1;
    let own =
        Size { parts: parameters as u64, bytes: (query.len() + request.path().len() + request.host().len()) as u64 };
    request.headers().iter().fold(own, |size, (name, value)| Size {
        parts: size.parts + 1,
        bytes: size.bytes + (name.len() + value.len()) as u64,
    })
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
    /// Sets the value to assume where evaluation would take too long.
    pub(crate) fn or_if_unknown(self, unknown: bool) -> Self {
        Self { unknown, ..self }
    }

    /// Whether the expression holds for the request.
    pub(super) fn holds(&self, request: &RequestView<'_>) -> bool {
        if !self.expression.fits(size(request)) {
            OVER_BUDGET.fetch_add(1, Relaxed);
            return self.unknown;
        }
        self.expression.holds(&request.facts().0)
    }
}

impl FromStr for Predicate {
    type Err = InvalidPredicate;

    fn from_str(text: &str) -> Result<Self, InvalidPredicate> {
        weir_expressions::predicate(text).map(|expression| Self { expression, unknown: false })
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

    /// Every accepted expression runs on a thread with as little stack as a worker has, and no expression crashes the
    /// program.
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
            "[1, 2].all(a, a > 0)".to_owned(),
        ] {
            if let Ok(predicate) = text.parse::<Predicate>() {
                predicate.holds(&view);
            }
        }
    }

    #[test]
    fn what_would_take_too_long_is_not_run_and_is_taken_for_what_was_said() {
        let query: String = (0..6_000).map(|number| format!("{number:x}&")).collect();
        let large = http::Request::builder().uri(format!("/?{query}")).body(()).unwrap();
        let small = http::Request::builder().uri("/?a&b").body(()).unwrap();
        let [large, small] = [&large, &small].map(|request| RequestView::new(request, "127.0.0.1".parse().unwrap()));
        let predicate = || {
            let text = "request.query.exists(k, k == 'b' && !('x' in request.headers))";
            text.parse::<Predicate>().expect("a predicate")
        };
        assert!(predicate().holds(&small));
        let before = over_budget();
        for unknown in [false, true] {
            assert_eq!(predicate().or_if_unknown(unknown).holds(&large), unknown);
        }
        assert!(over_budget() >= before + 2);
        // The budget depends on the expression, not on the size alone.
        let plain: Predicate = "request.path == '/'".parse().expect("a predicate");
        assert!(plain.holds(&large));
    }

    /// `weir-expressions` counts steps for a request of this size. Predicates must not see a larger one.
    #[test]
    fn the_size_of_a_request_bounds_what_predicates_see() {
        let request = http::Request::builder().uri("/a%20b?a=%61&b&&c=1&a=2&%zz").header("x", "y").header("x", "z");
        let request = request.header("host", "Shop.example.com").body(()).expect("a request");
        let view = RequestView::new(&request, "127.0.0.1".parse().unwrap());
        let size = size(&view);
        for (list, parts) in [("query", 4), ("headers", 2)] {
            let predicate: Predicate = format!("size(request.{list}) == {parts}").parse().expect("a predicate");
            assert!(predicate.holds(&view), "{list}");
        }
        assert!(size.parts >= 6, "{size:?}");
        assert!(
            size.bytes >= ("/a%20b".len() + "shop.example.com".len() * 2 + "host".len() + "xyz".len()) as u64,
            "{size:?}"
        );
    }
}
