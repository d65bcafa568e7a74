//! Which requests a rule is about.
//!
//! A [`Matcher`] is a rule's `match` list, parsed once. It looks at a [`RequestView`], which computes what is costly
//! (the normalised path) at most once for all the rules of a request. Nothing here allocates for an ordinary request,
//! and nothing here ever changes the request: what is compared is a normal form, what is forwarded is what came.

mod glob;
mod host;
mod path;

use std::{borrow::Cow, cell::OnceCell};

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

pub(crate) use self::{glob::Glob, host::HostPattern};

/// What matchers need to know of a request.
pub(crate) struct RequestView<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    path: OnceCell<Cow<'a, str>>,
    host: OnceCell<&'a str>,
}

impl<'a> RequestView<'a> {
    pub(crate) fn new<B>(request: &'a http::Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            path: OnceCell::new(),
            host: OnceCell::new(),
        }
    }

    pub(crate) fn headers(&self) -> &'a HeaderMap {
        self.headers
    }

    fn path(&self) -> &str {
        self.path.get_or_init(|| path::normalise(self.uri.path()))
    }

    /// The host that the client meant, without its port; empty if it named none.
    fn host(&self) -> &'a str {
        self.host.get_or_init(|| match self.uri.authority() {
            Some(authority) => host::without_port(authority.as_str()),
            None => {
                let header = self.headers.get(http::header::HOST).and_then(|value| value.to_str().ok());
                host::without_port(header.unwrap_or_default())
            }
        })
    }
}

/// A rule's `match` list: any entry may match; without entries, every request does.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    entries: Vec<Conditions>,
}

/// One entry of a `match` list: all conditions must hold, and an empty list is no condition.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) methods: Vec<Method>,
    pub(crate) hosts: Vec<HostPattern>,
    pub(crate) paths: Vec<Glob>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Matcher {
    pub(crate) fn new(entries: Vec<Conditions>) -> Self {
        Self { entries }
    }

    pub(crate) fn matches(&self, request: &RequestView<'_>) -> bool {
        self.entries.is_empty() || self.entries.iter().any(|entry| entry.hold(request))
    }
}

impl Conditions {
    fn hold(&self, request: &RequestView<'_>) -> bool {
        none_or_any(&self.methods, |method| method == request.method)
            && none_or_any(&self.hosts, |pattern| pattern.matches(request.host()))
            && none_or_any(&self.paths, |glob| glob.matches(request.path()))
            && self.headers.iter().all(|(name, value)| request.headers.get_all(name).iter().any(|sent| sent == value))
    }
}

fn none_or_any<T>(list: &[T], holds: impl FnMut(&T) -> bool) -> bool {
    list.is_empty() || list.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            headers: vec![(HeaderName::from_static("x-tier"), HeaderValue::from_static("free"))],
        }
    }

    #[test]
    fn all_conditions_of_an_entry_must_hold() {
        let matcher = Matcher::new(vec![api_posts()]);
        let host = ("host", "a.example.com:8080");
        let tier = ("x-tier", "free");
        for (method, uri, headers, expected) in [
            ("POST", "/api/x", vec![host, tier], true),
            ("PUT", "/api", vec![host, tier], true),
            ("GET", "/api/x", vec![host, tier], false),
            ("POST", "/apis", vec![host, tier], false),
            ("POST", "/api/x", vec![("host", "example.com"), tier], false),
            ("POST", "/api/x", vec![host], false),
            ("POST", "/api/x", vec![host, ("x-tier", "Free")], false),
            ("POST", "/api/x", vec![host, ("x-tier", "gold"), tier], true),
            ("POST", "http://B.Example.COM./x/../%61pi//y?q", vec![tier], true),
        ] {
            let request = request(method, uri, &headers);
            assert_eq!(matcher.matches(&RequestView::new(&request)), expected, "{method} {uri} {headers:?}");
        }
    }

    #[test]
    fn any_entry_may_match_and_none_means_every_request() {
        let get = Conditions { methods: vec![Method::GET], ..Conditions::default() };
        let either = Matcher::new(vec![api_posts(), get]);
        assert!(either.matches(&RequestView::new(&request("GET", "/", &[]))));
        assert!(!either.matches(&RequestView::new(&request("HEAD", "/", &[]))));
        assert!(Matcher::default().matches(&RequestView::new(&request("HEAD", "/", &[]))));
    }
}
