//! An evaluation allocates at most as many bytes as its predicted cost, and a predicate with a larger cost is refused or
//! not evaluated. The allocator counts the bytes, so the test shares nothing with the prediction.

use std::{
    alloc::System,
    cell::Cell,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cel::{
    Context, Value,
    objects::{Key, Map},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use weir_expressions::{BUDGET, Size, language, predicate};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

struct Request {
    path: String,
    query: BTreeMap<String, String>,
}

impl Request {
    fn size(&self) -> Size {
        let bytes = self.query.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        Size { parts: self.query.len() as u64, bytes: (bytes + self.path.len()) as u64 }
    }

    fn context(&self) -> Context<'static> {
        let pairs = self.query.iter().map(|(name, value)| (Key::from(name.clone()), Value::from(value.clone())));
        let query = Value::Map(Map { map: Arc::new(pairs.collect()) });
        let request: HashMap<&str, Value> = [
            ("method", "GET".into()),
            ("host", "".into()),
            ("path", self.path.clone().into()),
            ("query", query),
            ("headers", HashMap::<String, Value>::new().into()),
            ("clientIP", "127.0.0.1".into()),
        ]
        .into();
        let mut context = language();
        context.add_variable_from_value("request", request);
        context
    }
}

/// Returns the sum of copies of a text. The counts of the levels are multiplied, so the sum is not deep.
fn sum(text: &str, counts: &[usize]) -> String {
    counts.iter().fold(text.to_owned(), |text, count| format!("({})", vec![text; *count].join("+")))
}

#[test]
fn an_evaluation_allocates_no_more_than_its_cost() {
    let pairs = |count: usize| (0..count).map(|number| (format!("k{number}"), "value".repeat(4))).collect();
    let path = |length: usize| format!("/{}", "a".repeat(length));
    let requests = [(10, 2), (200, 40), (4_000, 2), (60_000, 0), (10, 800)];
    let requests = requests.map(|(length, count)| Request { path: path(length), query: pairs(count) });
    let texts = sum("request.path", &[2, 2, 4]);
    let texts = [
        "request.path == '/'".to_owned(),
        format!("{texts} == ''"),
        format!("{}.contains('b')", sum(&texts, &[4])),
        format!("[''].map(x, {texts}).map(y, {}) == []", sum("y", &[4, 4, 4])),
        format!("[''].map(x, {texts}).map(y, {}).exists(z, z == '')", sum("y", &[3, 3])),
        format!("[[1, 2, 3, 4, 5, 6, 7, 8]].map(x, {})[0].exists(y, request.path == '')", sum("x", &[4, 4])),
        format!("[[request.path, request.path]].map(x, {})[0].map(y, y + y) == []", sum("x", &[4, 4])),
        "request.query.map(k, request.query[k]).filter(v, v.size() > 3) == []".to_owned(),
        "request.query.map(k, request.path).map(k, k + k) == []".to_owned(),
        "request.query.map(k, [k, request.path]).exists(l, l[1] == '')".to_owned(),
        "request.query.exists_one(k, string(request.path + k).startsWith(request.query[k]))".to_owned(),
        format!("[{}].exists(x, bytes(request.path).size() == 0)", vec!["1"; 300].join(",")),
        "{'a': request.query, 'b': [request, request]}.exists(k, request == k)".to_owned(),
        "max([request.path, request.path + 'a']) == min(request.query.map(k, k))".to_owned(),
        "request.path.matches('(a*)*b') && request.path.matches(r'\\bx')".to_owned(),
    ];
    let (mut evaluated, mut skipped) = (0, 0);
    for text in &texts {
        let Ok(predicate) = predicate(text) else {
            skipped += 1;
            continue;
        };
        for request in &requests {
            let most = predicate.cost(request.size());
            if most > BUDGET {
                skipped += 1;
                continue;
            }
            let context = request.context();
            // The first evaluation fills the caches of regular expressions.
            predicate.holds(&context, &Cell::new(u64::MAX));
            let region = Region::new(ALLOCATOR);
            predicate.holds(&context, &Cell::new(u64::MAX));
            let change = region.change();
            let allocated = (change.bytes_allocated + change.bytes_reallocated.max(0).unsigned_abs()) as u64;
            assert!(allocated <= most, "{text} for {:?}: {allocated} bytes, {most} predicted", request.size());
            evaluated += 1;
        }
    }
    assert!(evaluated > 40 && skipped > 5, "{evaluated} were evaluated, {skipped} were not");
}
