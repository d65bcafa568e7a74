//! Compares the index with a linear search, and counts the entries that it checks.

use http::{HeaderName, Method};
use proptest::prelude::*;
use weir_expressions::path_regex;

use super::*;

fn field<N>(name: N, value: ValueCondition) -> FieldCondition<N> {
    FieldCondition { name, value }
}

fn view(request: &http::Request<()>) -> RequestView<'_> {
    RequestView::new(request, "127.0.0.1".parse().expect("an address"))
}

/// Finds the matchers that match with the index. Also returns the number of candidates.
fn found(index: &Index, matchers: &[Matcher], request: &RequestView<'_>) -> (Vec<usize>, usize) {
    let mut buffer = Vec::new();
    let candidates = index.candidates(request, &mut buffer);
    let mut matching: Vec<usize> = candidates
        .iter()
        .map(|id| index.entry(*id))
        .filter(|(matcher, entry)| matchers[*matcher].entry_matches(*entry, request))
        .map(|(matcher, _)| matcher)
        .collect();
    matching.dedup();
    (matching, candidates.len())
}

/// Finds the matchers that match by checking each of them.
fn linear(matchers: &[Matcher], request: &RequestView<'_>) -> Vec<usize> {
    let matches = |matcher: &Matcher| (0..matcher.entries().len()).any(|entry| matcher.entry_matches(entry, request));
    (0..matchers.len()).filter(|one| matches(&matchers[*one])).collect()
}

fn globs() -> impl Strategy<Value = String> {
    let segment = prop_oneof![
        4 => "[abc]{1,2}",
        1 => Just("*".to_owned()),
        1 => Just("**".to_owned()),
        1 => "[ab]\\*",
    ];
    (prop::collection::vec(segment, 0..11), any::<bool>()).prop_map(|(segments, slash)| {
        let end = if slash && !segments.is_empty() { "/" } else { "" };
        format!("/{}{end}", segments.join("/"))
    })
}

fn values() -> impl Strategy<Value = ValueCondition> {
    prop_oneof![
        Just(ValueCondition::Any),
        "[ab]".prop_map(|value| ValueCondition::Exactly(value.into_bytes().into())),
        "[ab]".prop_map(|value| ValueCondition::StartingWith(value.into_bytes().into())),
    ]
}

fn conditions() -> impl Strategy<Value = Conditions> {
    let some = |most| 0..=most;
    (
        prop::collection::vec(prop_oneof![Just(Method::GET), Just(Method::POST)], some(1)),
        prop::collection::vec(prop_oneof!["[abA]{1,2}", "\\*\\.[abA]{1,2}", "\\*\\.[ab]\\.[ab]"], some(2)),
        prop::collection::vec(globs(), some(2)),
        prop::collection::vec(prop_oneof!["\\^/[abc]", "[abc]\\$", "[abc]/[abc]\\+"], some(2)),
        prop::collection::vec(("x-[ab]", values()), some(2)),
        prop::collection::vec(("[ab]", values()), some(2)),
        prop::option::weighted(0.1, Just("request.path.size() > 4")),
    )
        .prop_map(|(methods, hosts, paths, regexes, headers, query, predicate)| Conditions {
            methods,
            hosts: hosts.iter().map(|host| host.parse().expect(host)).collect(),
            paths: paths.iter().map(|glob| glob.parse().expect(glob)).collect(),
            path_regexes: regexes.iter().map(|regex| path_regex(regex).expect(regex)).collect(),
            headers: headers
                .into_iter()
                .map(|(name, value)| field(name.parse::<HeaderName>().expect("a name"), value))
                .collect(),
            query: query.into_iter().map(|(name, value)| field(name.into_bytes().into(), value)).collect(),
            networks: Vec::new(),
            trusted_hops: 0,
            predicate: predicate.map(|text| text.parse().expect(text)),
            if_unknown: false,
            descriptor: Vec::new(),
        })
}

fn requests() -> impl Strategy<Value = http::Request<()>> {
    (
        prop_oneof![Just("GET"), Just("POST")],
        "(/[abc]{1,2}){0,10}/?",
        prop::option::of("[ab]=[ab]{1,2}(&[ab]=[ab]){0,2}"),
        prop::option::of("([abAB]{1,2}\\.){0,2}[abA]{1,2}(:80)?"),
        prop::collection::vec(("x-[ab]", "[ab]{1,2}"), 0..3),
    )
        .prop_map(|(method, path, query, host, headers)| {
            let path = if path.is_empty() { "/".to_owned() } else { path };
            let uri = query.map_or(path.clone(), |query| format!("{path}?{query}"));
            let mut request = http::Request::builder().method(method).uri(uri);
            for (name, value) in host.into_iter().map(|host| ("host".to_owned(), host)).chain(headers) {
                request = request.header(name, value);
            }
            request.body(()).expect("a valid request")
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_index_finds_what_looking_at_each_finds(
        lists in prop::collection::vec(prop::collection::vec(conditions(), 0..3), 0..30),
        requests in prop::collection::vec(requests(), 8),
    ) {
        let matchers: Vec<Matcher> = lists.into_iter().map(Matcher::new).collect();
        let index = Index::new(matchers.iter());
        for request in &requests {
            let view = view(request);
            let (found, looked_at) = found(&index, &matchers, &view);
            prop_assert_eq!(&found, &linear(&matchers, &view), "{:?}", request);
            prop_assert!(looked_at <= index.entries());
        }
    }
}

/// With a thousand rules of one kind, a request checks the matching rule and very few others.
#[test]
fn a_thousand_rules_are_not_looked_at() {
    let with = |set: &dyn Fn(usize, &mut Conditions)| -> Vec<Matcher> {
        (0..1000)
            .map(|number| {
                let mut conditions = Conditions::default();
                set(number, &mut conditions);
                Matcher::new(vec![conditions])
            })
            .collect()
    };
    let glob = |text: String| text.parse::<Glob>().expect("a glob");
    let exactly = |text: String| ValueCondition::Exactly(text.into_bytes().into());
    let tenant = HeaderName::from_static("x-tenant");
    for (kind, matchers) in [
        ("path below", with(&|n, to| to.paths.push(glob(format!("/api/r{n}/**"))))),
        ("whole path", with(&|n, to| to.paths.push(glob(format!("/api/r{n}/items"))))),
        ("path after a star", with(&|n, to| to.paths.push(glob(format!("/*/r{n}/items"))))),
        ("regex", with(&|n, to| to.path_regexes.push(path_regex(&format!("^/api/r{n}/")).expect("a regex")))),
        ("host", with(&|n, to| to.hosts.push(format!("r{n}.example.com").parse().expect("a host")))),
        ("domain", with(&|n, to| to.hosts.push(format!("*.r{n}.example.com").parse().expect("a host")))),
        ("header", with(&|n, to| to.headers.push(field(tenant.clone(), exactly(format!("r{n}")))))),
        ("query", with(&|n, to| to.query.push(field(b"tenant".as_slice().into(), exactly(format!("r{n}")))))),
        (
            "one path, many tenants",
            with(&|n, to| {
                to.paths.push(glob("/api/**".to_owned()));
                to.headers.push(field(tenant.clone(), exactly(format!("r{n}"))));
            }),
        ),
    ] {
        let index = Index::new(matchers.iter());
        let host = if kind == "domain" { "a.R7.example.com" } else { "R7.example.com" };
        let request = http::Request::builder().uri("/api/r7/items?tenant=r7").header("host", host);
        let request = request.header("x-tenant", "r7").body(()).expect("a request");
        assert_eq!(found(&index, &matchers, &view(&request)), (vec![7], 1), "{kind}");
        let other = http::Request::builder().uri("/other?tenant=x").header("host", "x").body(()).expect("a request");
        assert_eq!(found(&index, &matchers, &view(&other)), (vec![], 0), "{kind}");
    }
}

#[test]
fn only_a_glob_of_every_path_is_no_condition() {
    let request = http::Request::builder().uri("/b/c").body(()).expect("a request");
    for (globs, expected) in [
        (&["/**"][..], true),
        (&["/a", "/**"], true),
        (&["/**", "/a"], true),
        (&["/a/**"], false),
        (&["/a", "/a/**"], false),
        (&["/*"], false),
    ] {
        let paths = globs.iter().map(|glob| glob.parse().expect("a glob")).collect();
        let matcher = Matcher::new(vec![Conditions { paths, ..Conditions::default() }]);
        assert_eq!(matcher.matches(&view(&request)), expected, "{globs:?}");
    }
}

#[test]
fn a_matcher_without_entries_is_about_every_request() {
    let matchers = [Matcher::new(Vec::new())];
    let index = Index::new(matchers.iter());
    assert_eq!(found(&index, &matchers, &view(&http::Request::new(()))), (vec![0], 1));
}
