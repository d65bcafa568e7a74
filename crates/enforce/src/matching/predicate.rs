//! Predicates: CEL expressions over one request.
//!
//! An expression is parsed once, when a snapshot is lowered. An expression that can never be true is a fault
//! (`weir-expressions`). An expression can read only the request, no clock and no state. If an evaluation fails, the
//! result is false. If an evaluation would take too long, it does not run: limits then assume true, and `Bypass`
//! assumes false, so that no client evades a limit with a large request.

use std::str::FromStr;

use weir_expressions::{InvalidPredicate, Size};

use super::request::RequestView;

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Predicate(weir_expressions::Predicate);

/// The size of a request, on which the cost of an expression depends.
fn size(request: &RequestView<'_>) -> Size {
    let query = request.whole_query();
    let parameters = query.bytes().filter(|byte| *byte == b'&').count() + 1;
    let bytes = query.len() + request.path().len() + request.host().len() + request.method().len();
    let own = Size { parts: parameters as u64, bytes: bytes as u64 };
    request.headers().iter().fold(own, |size, (name, value)| Size {
        parts: size.parts + 1,
        bytes: size.bytes + (name.len() + value.len()) as u64,
    })
}

impl Predicate {
    /// Whether the expression is true for the request behind this number of trusted proxies. Returns `None` if an
    /// evaluation would take too long.
    pub(super) fn holds(&self, request: &RequestView<'_>, trusted_hops: u8) -> Option<bool> {
        request
            .evaluate(self.0.cost(size(request)), |budget| self.0.holds(request.facts(trusted_hops).context(), budget))
    }

    /// The memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}

impl FromStr for Predicate {
    type Err = InvalidPredicate;

    fn from_str(text: &str) -> Result<Self, InvalidPredicate> {
        weir_expressions::predicate(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matching::over_budget;

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
            ("request.headers['absent'] != 'x'", false), // the evaluation fails, so the result is false
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
            assert_eq!(predicate.holds(&view, 0), Some(expected), "{text}");
        }
    }

    /// Evaluates the deepest accepted expressions on the test's thread, whose stack is as small as a worker's: none of
    /// them overflows the stack.
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
                predicate.holds(&view, 0);
            }
        }
    }

    #[test]
    fn an_evaluation_beyond_the_budget_does_not_run() {
        let query: String = (0..6_000).map(|number| format!("{number:x}&")).collect();
        let large = http::Request::builder().uri(format!("/?{query}")).body(()).unwrap();
        let small = http::Request::builder().uri("/?a&b").body(()).unwrap();
        let [large, small] = [&large, &small].map(|request| RequestView::new(request, "127.0.0.1".parse().unwrap()));
        let predicate = || {
            let text = "request.query.exists(k, k == 'b' && !('x' in request.headers))";
            text.parse::<Predicate>().expect("a predicate")
        };
        assert_eq!(predicate().holds(&small, 0), Some(true));
        let before = over_budget();
        assert_eq!(predicate().holds(&large, 0), None);
        assert!(over_budget() > before);
        // The budget depends on the expression, not on the size alone.
        let plain: Predicate = "request.path == '/'".parse().expect("a predicate");
        assert_eq!(plain.holds(&large, 0), Some(true));
    }

    /// The cost of a search depends on the searched text, so large cookies do not make it unknown.
    #[test]
    fn a_search_in_a_short_header_of_a_large_request_runs() {
        let words: Vec<String> = (0..20).map(|number| format!("some{number}bot")).collect();
        let text = format!(r"request.headers['user-agent'].matches('(?i)\\b({})\\b')", words.join("|"));
        let predicate: Predicate = text.parse().expect("a predicate");
        for (agent, expected) in [("Mozilla/5.0 (X11; Linux x86_64)", false), ("Some7Bot/1.0", true)] {
            let request = http::Request::builder().header("user-agent", agent).header("cookie", "x".repeat(30_000));
            let request = request.body(()).unwrap();
            let view = RequestView::new(&request, "127.0.0.1".parse().unwrap());
            for _ in 0..20 {
                assert_eq!(predicate.holds(&view, 0), Some(expected), "{agent}");
            }
        }
    }

    /// `weir-expressions` computes the steps of an evaluation from this size, so predicates must not read more than it.
    #[test]
    fn the_size_of_a_request_bounds_what_predicates_see() {
        let request = http::Request::builder().uri("/a%20b?a=%61&b&&c=1&a=2&%zz").header("x", "y").header("x", "z");
        let request = request.header("host", "Shop.example.com").body(()).expect("a request");
        let view = RequestView::new(&request, "127.0.0.1".parse().unwrap());
        let size = size(&view);
        for (list, parts) in [("query", 4), ("headers", 2)] {
            let predicate: Predicate = format!("size(request.{list}) == {parts}").parse().expect("a predicate");
            assert_eq!(predicate.holds(&view, 0), Some(true), "{list}");
        }
        assert!(size.parts >= 6, "{size:?}");
        assert!(
            size.bytes >= ("/a%20b".len() + "shop.example.com".len() * 2 + "host".len() + "xyz".len()) as u64,
            "{size:?}"
        );
    }
}
