//! Validates a request before it is forwarded to the app, in addition to hyper's own validation.
//!
//! Client, rules and app must agree on each request: on its host, and on where it ends. An ambiguous request is
//! refused, never repaired.

use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header, uri::PathAndQuery};
use http_body::Body;
use weir_enforce::{AmbiguousPaths, is_ambiguous};

use crate::proxy::authority;

/// The reason why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum InvalidRequest {
    #[error("a request needs one host: exactly one Host header in HTTP/1.1, :authority or Host in HTTP/2")]
    Hosts,
    #[error("the Host header is not a host name or address with an optional port")]
    Host,
    #[error("the target and the Host header name different hosts")]
    TwoHosts,
    #[error("the target must not contain a user name, and its scheme must be http or https")]
    Target,
    #[error("the target * is valid only for OPTIONS")]
    Asterisk,
    #[error(
        "the path has a segment . or .., an encoded slash, a backslash or a zero byte, which apps read in different ways \
         (--ambiguous-paths)"
    )]
    Path,
    #[error("a header's value begins or ends with a space or tab")]
    Blank,
    #[error("the name of a header contains a quotation mark")]
    Name,
    #[error(":path must begin with /")]
    NoPath,
    #[error("the request has more than one Content-Length")]
    Lengths,
    #[error("Content-Length is not the length of the body")]
    Length,
    #[error("Max-Forwards must be one number")]
    MaxForwards,
    #[error("the opening handshake of a WebSocket connection has no body")]
    HandshakeBody,
}

/// Validates a request except for its host, which [`name_host`] validates. Call both functions before the rules decide,
/// so that no key is charged for an invalid request.
pub(in super::super) fn vet<B: Body>(
    request: &Request<B>,
    ambiguous_paths: AmbiguousPaths,
) -> Result<(), InvalidRequest> {
    check_length(request)?;
    for (name, value) in request.headers() {
        // Only HTTP/2 can carry such a value (RFC 9113 section 8.2.1). Rules would read the blank, but the app would
        // not.
        if has_blank_end(value) {
            return Err(InvalidRequest::Blank);
        }
        // The h2 library accepts a quotation mark in a name. RFC 9110 section 5.1 forbids it, and an HTTP/1 app would
        // close the connection.
        if name.as_str().contains('"') {
            return Err(InvalidRequest::Name);
        }
    }
    if request.version() == Version::HTTP_2 && !is_path(request.uri()) {
        return Err(InvalidRequest::NoPath);
    }
    if ambiguous_paths == AmbiguousPaths::Refuse && is_ambiguous(request.uri().path()) {
        return Err(InvalidRequest::Path);
    }
    // `*` is not a path, so no rule with paths would match it (RFC 9112 section 3.2.4).
    if request.uri().path() == "*" && request.method() != Method::OPTIONS {
        return Err(InvalidRequest::Asterisk);
    }
    hops_left(request).map(drop)
}

/// The number of proxies that may forward the request, with this one (RFC 9110 section 7.6.2). `None` if any number may.
pub(super) fn hops_left<B>(request: &Request<B>) -> Result<Option<u64>, InvalidRequest> {
    if request.method() != Method::OPTIONS && request.method() != Method::TRACE {
        return Ok(None);
    }
    let mut values = request.headers().get_all(header::MAX_FORWARDS).iter().map(HeaderValue::as_bytes);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(digits @ [_, ..]), None) if digits.iter().all(u8::is_ascii_digit) => {
            let number = str::from_utf8(digits).map_err(|_| InvalidRequest::MaxForwards)?;
            Ok(Some(number.parse().unwrap_or(u64::MAX)))
        }
        _ => Err(InvalidRequest::MaxForwards),
    }
}

/// Whether `:path` begins with a slash (RFC 9113 section 8.3.1). The `http` library turns `?x` and `#x` into a path
/// that is neither the root nor begins with a slash.
fn is_path(uri: &Uri) -> bool {
    let root = PathAndQuery::from_static("/");
    uri.path_and_query()
        .is_some_and(|target| *target == root || (target.as_str() != "/" && target.as_str().starts_with(['/', '*'])))
}

fn has_blank_end(value: &HeaderValue) -> bool {
    matches!(value.as_bytes(), [b' ' | b'\t', ..] | [.., b' ' | b'\t'])
}

/// Checks that the request names exactly one host, writes it into the `Host` field, and reduces the target to its path.
/// `own` is the host for an HTTP/1.0 client that sends none.
pub(in super::super) fn name_host<B>(request: &mut Request<B>, own: &HeaderValue) -> Result<(), InvalidRequest> {
    match host(request)? {
        Named::Nowhere => drop(request.headers_mut().insert(header::HOST, own.clone())),
        Named::InField => {}
        Named::InTarget(host) => {
            let target = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
            request.headers_mut().insert(header::HOST, host);
            *request.uri_mut() = Uri::from(target);
        }
    }
    Ok(())
}

/// The place where a request names its host.
enum Named {
    Nowhere,
    InField,
    InTarget(HeaderValue),
}

/// Checks that the request names exactly one host.
fn host<B>(request: &Request<B>) -> Result<Named, InvalidRequest> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let host = named.next();
    // Only an HTTP/1.0 request can omit the host. In other versions, the app would get a host that no rule has used.
    let named_elsewhere = request.version() == Version::HTTP_2 && request.uri().authority().is_some();
    let needs_field = request.version() != Version::HTTP_10 && !named_elsewhere;
    if named.next().is_some() || (host.is_none() && needs_field) {
        return Err(InvalidRequest::Hosts);
    }
    if host.is_some_and(|host| !authority::is_sound(host.as_bytes())) {
        return Err(InvalidRequest::Host);
    }
    let Some(authority) = request.uri().authority() else {
        // The target of `OPTIONS *` and of a path does not name a host.
        return Ok(if host.is_some() { Named::InField } else { Named::Nowhere });
    };
    let web = request.uri().scheme_str().is_some_and(|scheme| matches!(scheme, "http" | "https"));
    if !web || !authority::is_sound(authority.as_str().as_bytes()) {
        return Err(InvalidRequest::Target);
    }
    // In HTTP/1 the target overrides the field (RFC 9112 section 3.2.2). In HTTP/2 the same program writes both (RFC
    // 9113 section 8.3.1), so a contradiction is intentional.
    if request.version() == Version::HTTP_2
        && host.is_some_and(|host| !host.as_bytes().eq_ignore_ascii_case(authority.as_str().as_bytes()))
    {
        return Err(InvalidRequest::TwoHosts);
    }
    HeaderValue::from_str(authority.as_str()).map(Named::InTarget).map_err(|_| InvalidRequest::Host)
}

/// Checks that there is at most one length, and that it matches the body.
fn check_length<B: Body>(request: &Request<B>) -> Result<(), InvalidRequest> {
    let Some(length) = one_length(request.headers())? else { return Ok(()) };
    let digits = !length.is_empty() && length.as_bytes().iter().all(u8::is_ascii_digit);
    let empty = request.body().is_end_stream();
    if !digits {
        return Err(InvalidRequest::Length);
    }
    if empty && length.as_bytes().iter().any(|digit| *digit != b'0') {
        return Err(InvalidRequest::Length);
    }
    Ok(())
}

fn one_length(headers: &HeaderMap) -> Result<Option<&HeaderValue>, InvalidRequest> {
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let first = lengths.next();
    if lengths.next().is_some() { Err(InvalidRequest::Lengths) } else { Ok(first) }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};

    use super::*;

    fn host(version: Version, uri: &str, hosts: &[&str]) -> Result<(String, String), InvalidRequest> {
        let mut request = Request::builder().version(version).uri(uri).body(()).unwrap();
        for host in hosts {
            request.headers_mut().append(header::HOST, HeaderValue::from_bytes(host.as_bytes()).unwrap());
        }
        name_host(&mut request, &HeaderValue::from_static("own"))?;
        Ok((request.headers()[header::HOST].to_str().unwrap().to_owned(), request.uri().to_string()))
    }

    #[test]
    fn a_request_is_for_one_host() {
        use Version as V;
        let ok = |host: &str, uri: &str| Ok((host.to_owned(), uri.to_owned()));
        for (version, uri, hosts, expected) in [
            (V::HTTP_11, "/x", &["a"][..], ok("a", "/x")),
            (V::HTTP_11, "/x", &["[2001:db8::1]:80"], ok("[2001:db8::1]:80", "/x")),
            (V::HTTP_11, "/x", &[""], ok("", "/x")),
            (V::HTTP_11, "/x", &[], Err(InvalidRequest::Hosts)),
            (V::HTTP_11, "/x", &["a", "a"], Err(InvalidRequest::Hosts)),
            (V::HTTP_11, "/x", &["a, b"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "/x", &["a b"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "/x", &["a/b"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "/x", &["a@b"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "/x", &["\u{e4}"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "/x", &["a:80]"], Err(InvalidRequest::Host)),
            (V::HTTP_11, "http://b/x?y", &["a"], ok("b", "/x?y")),
            (V::HTTP_11, "http://b", &["a"], ok("b", "/")),
            (V::HTTP_11, "http://b/x", &[], Err(InvalidRequest::Hosts)),
            (V::HTTP_11, "http://u@b/x", &["b"], Err(InvalidRequest::Target)),
            (V::HTTP_11, "ftp://b/x", &["b"], Err(InvalidRequest::Target)),
            (V::HTTP_11, "b:80", &["b"], Err(InvalidRequest::Target)),
            (V::HTTP_10, "/x", &[], ok("own", "/x")),
            (V::HTTP_10, "/x", &["a"], ok("a", "/x")),
            (V::HTTP_2, "http://b/x", &[], ok("b", "/x")),
            (V::HTTP_2, "http://b/x", &["B"], ok("b", "/x")),
            (V::HTTP_2, "http://b/x", &["a"], Err(InvalidRequest::TwoHosts)),
            (V::HTTP_2, "http://u@b/x", &[], Err(InvalidRequest::Target)),
            (V::HTTP_2, "/x", &["a"], ok("a", "/x")),
            (V::HTTP_2, "/x", &[], Err(InvalidRequest::Hosts)),
            (V::HTTP_2, "*", &[], Err(InvalidRequest::Hosts)),
        ] {
            assert_eq!(host(version, uri, hosts), expected, "{version:?} {uri} {hosts:?}");
        }
    }

    #[test]
    fn max_forwards_of_options_and_trace_is_one_number() {
        let vetted = |method: &str, values: &[&str]| {
            let request = Request::builder().method(method).uri("/").header("host", "a");
            let request = values.iter().fold(request, |request, value| request.header("max-forwards", *value));
            let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
            vet(&request, AmbiguousPaths::Refuse).and_then(|()| hops_left(&request))
        };
        for method in ["OPTIONS", "TRACE"] {
            for (values, expected) in [
                (&[][..], Ok(None)),
                (&["0"], Ok(Some(0))),
                (&["010"], Ok(Some(10))),
                (&["99999999999999999999"], Ok(Some(u64::MAX))),
                (&[""], Err(InvalidRequest::MaxForwards)),
                (&["-1"], Err(InvalidRequest::MaxForwards)),
                (&["+1"], Err(InvalidRequest::MaxForwards)),
                (&["1, 1"], Err(InvalidRequest::MaxForwards)),
                (&["1", "1"], Err(InvalidRequest::MaxForwards)),
            ] {
                assert_eq!(vetted(method, values), expected, "{method} {values:?}");
            }
        }
        assert_eq!(vetted("GET", &["x"]), Ok(None));
    }

    #[test]
    fn a_target_without_a_path_is_for_options_alone() {
        let vetted = |method: &str| {
            let request = Request::builder().method(method).uri("*").header("host", "a");
            vet(&request.body(Empty::<bytes::Bytes>::new()).unwrap(), AmbiguousPaths::Refuse)
        };
        assert_eq!(vetted("OPTIONS"), Ok(()));
        assert_eq!(vetted("GET"), Err(InvalidRequest::Asterisk));
    }

    /// The paths are as h2 returns them: it removes everything after `#` from `:path`.
    #[test]
    fn a_path_of_http2_begins_with_a_slash() {
        let vetted = |path: &'static str| {
            let target = PathAndQuery::from_maybe_shared(path).unwrap();
            let uri = Uri::builder().scheme("http").authority("a").path_and_query(target).build().unwrap();
            let request = Request::builder().version(Version::HTTP_2).uri(uri);
            vet(&request.body(Empty::<bytes::Bytes>::new()).unwrap(), AmbiguousPaths::Refuse)
        };
        for (path, expected) in [
            ("/", Ok(())),
            ("/x", Ok(())),
            ("/?x", Ok(())),
            ("/x#y", Ok(())),
            ("?x", Err(InvalidRequest::NoPath)),
            ("#x", Err(InvalidRequest::NoPath)),
            ("#", Err(InvalidRequest::NoPath)),
            ("*", Err(InvalidRequest::Asterisk)),
        ] {
            assert_eq!(vetted(path), expected, "{path}");
        }
    }

    #[test]
    fn a_field_name_with_a_quotation_mark_is_refused() {
        let request = Request::builder().uri("/").header("host", "a");
        let mut request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
        // The name is as h2 returns it.
        let name = http::HeaderName::from_lowercase(b"\"x\"").unwrap();
        request.headers_mut().insert(name, HeaderValue::from_static("y"));
        assert_eq!(vet(&request, AmbiguousPaths::Refuse), Err(InvalidRequest::Name));
    }

    #[test]
    fn a_length_is_that_of_the_body() {
        let none = || Empty::<bytes::Bytes>::new();
        let with = |lengths: &[&str]| {
            let request =
                lengths.iter().fold(Request::builder(), |request, length| request.header("content-length", *length));
            (check_length(&request.body(none()).unwrap()).err(), lengths.len())
        };
        assert_eq!(with(&[]).0, None);
        assert_eq!(with(&["0"]).0, None);
        assert_eq!(with(&["5"]).0, Some(InvalidRequest::Length));
        assert_eq!(with(&[""]).0, Some(InvalidRequest::Length));
        assert_eq!(with(&["+0"]).0, Some(InvalidRequest::Length));
        assert_eq!(with(&["0", "0"]).0, Some(InvalidRequest::Lengths));
        let full = Request::builder().header("content-length", "5").body(Full::<bytes::Bytes>::from("hello")).unwrap();
        assert_eq!(check_length(&full), Ok(()));
    }
}
