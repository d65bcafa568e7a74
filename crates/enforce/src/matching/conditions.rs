//! One entry of a rule's `match` list, and the exact check whether a request matches it.

use http::{HeaderName, Method};
use weir_expressions::{Network, PathRegex};

use super::{Glob, HostPattern, Predicate, RequestView};

/// One entry of a `match` list. A request matches if it meets all conditions. An empty list is no condition.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) methods: Vec<Method>,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) paths: Vec<Glob>,
    pub(crate) path_regexes: Vec<PathRegex>,
    pub(crate) headers: Vec<FieldCondition<HeaderName>>,
    pub(crate) query: Vec<FieldCondition<Box<[u8]>>>,
    pub(crate) networks: Vec<Network>,
    /// The number of trusted proxies that append to `X-Forwarded-For`.
    pub(crate) trusted_hops: u8,
    pub(crate) predicate: Option<Predicate>,
    /// The value to assume for expressions that would take too long.
    pub(crate) if_unknown: bool,
    /// The entries of a descriptor, all of them in this order. Empty: no condition.
    pub(crate) descriptor: Vec<EntryCondition>,
}

/// A condition on a header or a query parameter, which must be present. One matching occurrence is enough.
#[derive(Clone, Debug)]
pub(crate) struct FieldCondition<N> {
    pub(crate) name: N,
    pub(crate) value: ValueCondition,
}

/// A condition on an entry of a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct EntryCondition {
    pub(crate) name: Box<str>,
    pub(crate) value: ValueCondition,
    /// Values that do not match.
    pub(crate) except: Vec<ValueCondition>,
}

/// The condition on a value. Values are compared byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueCondition {
    Any,
    Exactly(Box<[u8]>),
    StartingWith(Box<[u8]>),
}

impl Conditions {
    /// Whether there are no conditions.
    pub(super) fn is_none(&self) -> bool {
        let Self {
            methods,
            hosts,
            paths,
            path_regexes,
            headers,
            query,
            networks,
            trusted_hops: _,
            predicate,
            if_unknown: _,
            descriptor,
        } = self;
        let some_path = !(paths.is_empty() && path_regexes.is_empty());
        let some_field = !(headers.is_empty() && query.is_empty());
        let some_client = !networks.is_empty();
        methods.is_empty()
            && hosts.is_empty()
            && !some_path
            && !some_field
            && !some_client
            && predicate.is_none()
            && descriptor.is_empty()
    }

    /// Whether the request meets all conditions. Cheap conditions are checked first.
    pub(super) fn are_met_by(&self, request: &RequestView<'_>) -> bool {
        // Without `..`, a new condition that is not checked here does not compile.
        let Self {
            methods,
            hosts,
            paths,
            path_regexes,
            headers,
            query,
            networks,
            trusted_hops,
            predicate,
            if_unknown,
            descriptor,
        } = self;
        let lines = request.headers();
        none_or_any(methods, |method| method.as_str() == request.method())
            && none_or_any(hosts, |pattern| pattern.matches(request.host()))
            && none_or_any(paths, |glob| glob.matches(request.path()))
            && headers.iter().all(|field| lines.all(&field.name).any(|value| field.value.holds(value)))
            && query.iter().all(|field| request.query(&field.name).any(|value| field.value.holds(&value)))
            && contain_client(networks, *trusted_hops, request)
            && none_or_any(path_regexes, |regex| {
                let path = request.path();
                if request.spend(regex.cost(path)) { regex.is_match(path) } else { *if_unknown }
            })
            && predicate.as_ref().is_none_or(|predicate| predicate.holds(request, *trusted_hops).unwrap_or(*if_unknown))
            && hold_for_descriptor(descriptor, request)
    }
}

fn contain_client(networks: &[Network], trusted_hops: u8, request: &RequestView<'_>) -> bool {
    if networks.is_empty() {
        return true;
    }
    let client = request.client_ip(trusted_hops);
    networks.iter().any(|network| network.contains(client))
}

fn hold_for_descriptor(conditions: &[EntryCondition], request: &RequestView<'_>) -> bool {
    let entries = request.descriptor();
    let holds = |(entry, (key, value)): (&EntryCondition, &(&str, &str))| {
        *entry.name == **key
            && entry.value.holds(value.as_bytes())
            && !entry.except.iter().any(|except| except.holds(value.as_bytes()))
    };
    if conditions.is_empty() {
        return true;
    }
    if conditions.len() != entries.len() {
        return false;
    }
    if request.is_unordered() {
        // The keys of the entries differ, so two conditions on one key match no bucket.
        let is_met = |entry| entries.iter().any(|pair| holds((entry, pair)));
        let is_read = |(key, _): &(&str, &str)| conditions.iter().any(|entry| *entry.name == **key);
        return conditions.iter().all(is_met) && entries.iter().all(is_read);
    }
    conditions.iter().zip(entries).all(holds)
}

impl ValueCondition {
    fn holds(&self, value: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(whole) => value == &**whole,
            Self::StartingWith(start) => value.starts_with(start),
        }
    }
}

fn none_or_any<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use weir_expressions::path_regex;

    use super::*;
    use crate::matching::over_budget;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn request(method: &str, uri: &str, headers: &[(&str, &str)]) -> http::Request<()> {
        let mut builder = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).expect("a valid request")
    }

    fn api_posts() -> Conditions {
        Conditions {
            methods: vec![Method::POST, Method::PUT],
            hosts: vec!["*.example.com".parse().unwrap()],
            paths: vec!["/api/**".parse().unwrap()],
            headers: vec![FieldCondition {
                name: HeaderName::from_static("x-tier"),
                value: ValueCondition::Exactly(b"free".as_slice().into()),
            }],
            ..Conditions::default()
        }
    }

    #[test]
    fn all_conditions_of_an_entry_must_hold() {
        let conditions = api_posts();
        let host = ("host", "a.example.com:8080");
        let tier = ("x-tier", "free");
        for (method, uri, headers, expected) in [
            ("POST", "/api/x", vec![host, tier], true),
            ("PUT", "/api", vec![host, tier], true),
            ("put", "/api", vec![host, tier], true),
            ("pOsT", "/api/x", vec![host, tier], true),
            ("GET", "/api/x", vec![host, tier], false),
            ("POST", "/apis", vec![host, tier], false),
            ("POST", "/api/x", vec![("host", "example.com"), tier], false),
            ("POST", "/api/x", vec![host], false),
            ("POST", "/api/x", vec![host, ("x-tier", "Free")], false),
            ("POST", "/api/x", vec![host, ("x-tier", "gold"), tier], true),
            ("POST", "http://B.Example.COM./x/../%61pi//y?q", vec![tier], true),
        ] {
            let request = request(method, uri, &headers);
            assert_eq!(
                conditions.are_met_by(&RequestView::new(&request, PEER)),
                expected,
                "{method} {uri} {headers:?}"
            );
        }
    }

    #[test]
    fn fields_match_whole_by_prefix_or_by_being_there() {
        let holds = |value: ValueCondition, uri: &str, agent: &[&str]| {
            let query = Conditions {
                query: vec![FieldCondition { name: b"page".as_slice().into(), value: value.clone() }],
                ..Conditions::default()
            };
            let header = Conditions {
                headers: vec![FieldCondition { name: http::header::USER_AGENT, value }],
                ..Conditions::default()
            };
            let agents: Vec<_> = agent.iter().map(|agent| ("user-agent", *agent)).collect();
            let request = request("GET", uri, &agents);
            let view = RequestView::new(&request, PEER);
            (query.are_met_by(&view), header.are_met_by(&view))
        };
        let exactly = |value: &str| ValueCondition::Exactly(value.as_bytes().into());
        let start = |value: &str| ValueCondition::StartingWith(value.as_bytes().into());
        assert_eq!(holds(ValueCondition::Any, "/?page", &[""]), (true, true));
        assert_eq!(holds(ValueCondition::Any, "/?other", &[]), (false, false));
        assert_eq!(holds(exactly("a b"), "/?page=a%20b", &["a b"]), (true, true));
        assert_eq!(holds(exactly("2"), "/?page=1&page=2", &["1", "2"]), (true, true));
        assert_eq!(holds(exactly("2"), "/?page=22", &["22"]), (false, false));
        assert_eq!(holds(start("curl/"), "/?page=curl/8", &["x", "curl/8"]), (true, true));
        assert_eq!(holds(start("curl/"), "/?page=a-curl/8", &["a-curl/8"]), (false, false));
    }

    /// All regular expressions of a request share one budget.
    #[test]
    fn expressions_beyond_the_budget_get_the_assumed_value() {
        let path = format!("/{}", "a".repeat(60_000));
        let request = request("GET", &path, &[]);
        let conditions = |if_unknown: bool| Conditions {
            path_regexes: vec![path_regex("b$").unwrap()],
            if_unknown,
            ..Conditions::default()
        };
        let view = RequestView::new(&request, PEER);
        let before = over_budget();
        let met = (0..1_000).filter(|_| conditions(true).are_met_by(&view)).count();
        assert!((500..1_000).contains(&met), "{met}");
        assert!(!conditions(false).are_met_by(&view));
        assert!(over_budget() - before > met as u64);
        let text = r"request.path.matches('\\bx')";
        let predicate = Conditions { predicate: text.parse().ok(), if_unknown: true, ..Conditions::default() };
        assert!(predicate.are_met_by(&view), "nothing is left for a predicate of the same request");
        assert!(!predicate.are_met_by(&RequestView::new(&request, PEER)));
    }

    #[test]
    fn regexes_are_found_in_the_normal_form() {
        for (pattern, path, expected) in [
            ("^/api/v[0-9]+/", "/api/v12/x", true),
            ("^/api/v[0-9]+/", "/%61pi//v1/x", true),
            ("^/api/v[0-9]+/", "/x/api/v1/", false),
            ("v[0-9]+$", "/api/v1", true),
            ("v[0-9]+$", "/api/v1/", false),
            ("(?i)^/API$", "/api", true),
        ] {
            let conditions = Conditions { path_regexes: vec![path_regex(pattern).unwrap()], ..Conditions::default() };
            let request = request("GET", path, &[]);
            assert_eq!(conditions.are_met_by(&RequestView::new(&request, PEER)), expected, "{pattern} on {path}");
        }
    }
}
