//! A request as rules see it, unchanged. It borrows the parts from the caller.
//!
//! Costly values (the normal form of the path, the host, the values for predicates) are computed at most once for all
//! rules of a request, and only if a rule needs them.

use std::{borrow::Cow, cell::OnceCell, net::IpAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    host,
    path::{self, AmbiguousPaths},
    predicate, query,
};

/// The fields of a request's head: in a map, or as lines in their original order.
#[derive(Clone, Copy, Debug)]
pub enum Headers<'a> {
    /// In the form of the `http` crate.
    Map(&'a HeaderMap),
    /// In their original form.
    Lines(&'a [FieldLine<'a>]),
}

/// A field in its original form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// A token, in any case.
    pub name: &'a [u8],
    /// Without the whitespace around it.
    pub value: &'a [u8],
}

impl<'a> Headers<'a> {
    /// The value of the first field of this name.
    #[inline]
    pub(crate) fn get(self, name: &HeaderName) -> Option<&'a [u8]> {
        match self {
            Self::Map(map) => map.get(name).map(HeaderValue::as_bytes),
            Self::Lines(lines) => {
                let name = name.as_str().as_bytes();
                lines.iter().find(|line| line.is(name)).map(|line| line.value)
            }
        }
    }

    /// The values of all fields of this name, in order.
    pub(crate) fn all<'b>(self, name: &'b HeaderName) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'b> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map.get_all(name)), [].as_slice()),
            Self::Lines(lines) => (None, lines),
        };
        let name = name.as_str().as_bytes();
        let mapped = map.into_iter().flatten().map(HeaderValue::as_bytes);
        mapped.chain(lines.iter().filter(move |line| line.is(name)).map(|line| line.value))
    }

    /// All fields. Names may be in any case.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, &'a [u8])> {
        let (map, lines) = match self {
            Self::Map(map) => (Some(map), [].as_slice()),
            Self::Lines(lines) => (None, lines),
        };
        let mapped = map.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_bytes()));
        mapped.chain(lines.iter().map(|line| (str::from_utf8(line.name).expect("a name is a token"), line.value)))
    }
}

impl FieldLine<'_> {
    /// Whether the field has this name, which must be in lower case.
    #[inline]
    fn is(&self, name: &[u8]) -> bool {
        // Most names arrive in lower case, and then the first comparison suffices.
        let same = |(byte, known): (&u8, &u8)| byte == known || byte.to_ascii_lowercase() == *known;
        self.name.len() == name.len() && self.name.iter().zip(name).all(same)
    }
}

/// The parts of a request that matchers and keys read.
pub struct RequestView<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// The authority of an absolute target, or HTTP/2's `:authority`.
    authority: Option<&'a str>,
    headers: Headers<'a>,
    peer: IpAddr,
    paths: AmbiguousPaths,
    normal_path: OnceCell<Cow<'a, str>>,
    host: OnceCell<&'a str>,
    /// Boxed, because few requests need it and a view is built for each.
    facts: OnceCell<Box<predicate::Facts>>,
}

impl<'a> RequestView<'a> {
    /// `peer` is the address of the connection's peer.
    pub fn new<B>(request: &'a http::Request<B>, peer: IpAddr) -> Self {
        Self::of_parts(request.method().as_str(), request.uri(), Headers::Map(request.headers()), peer)
    }

    /// A request with a target that is only a path: the host comes from the fields.
    pub fn of_target(
        method: &'a str,
        (path, query): (&'a str, Option<&'a str>),
        headers: Headers<'a>,
        peer: IpAddr,
    ) -> Self {
        Self {
            method,
            path,
            query,
            authority: None,
            headers,
            peer,
            paths: AmbiguousPaths::Keep,
            normal_path: OnceCell::new(),
            host: OnceCell::new(),
            facts: OnceCell::new(),
        }
    }

    /// A request with these parts. `target` has the form of a request line's, with or without scheme and authority.
    pub fn of_parts(method: &'a str, target: &'a http::Uri, headers: Headers<'a>, peer: IpAddr) -> Self {
        Self {
            authority: target.authority().map(http::uri::Authority::as_str),
            ..Self::of_target(method, (target.path(), target.query()), headers, peer)
        }
    }

    /// Reads the path in this way. The default is to keep what is encoded.
    pub fn reading(self, paths: AmbiguousPaths) -> Self {
        Self { paths, ..self }
    }

    pub(crate) fn method(&self) -> &'a str {
        self.method
    }

    pub(crate) fn headers(&self) -> Headers<'a> {
        self.headers
    }

    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// The path in the normal form of [`path::normalise`].
    pub(crate) fn path(&self) -> &str {
        self.normal_path.get_or_init(|| path::normalise(self.path, self.paths))
    }

    /// The host that the client named, without its port and in its original case. Empty if there is none.
    pub(crate) fn host(&self) -> &'a str {
        self.host.get_or_init(|| match self.authority {
            Some(authority) => host::without_port(authority),
            None => {
                let header = self.headers.get(&http::header::HOST).and_then(|value| str::from_utf8(value).ok());
                host::without_port(header.unwrap_or_default())
            }
        })
    }

    /// The values of a query parameter, in order.
    pub(crate) fn query<'b>(&self, name: &'b [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a, 'b> {
        query::values(self.query.unwrap_or_default(), name)
    }

    /// The whole query. Empty without one.
    pub(super) fn whole_query(&self) -> &'a str {
        self.query.unwrap_or_default()
    }

    /// The values for predicates.
    pub(super) fn facts(&self) -> &predicate::Facts {
        self.facts.get_or_init(|| Box::new(predicate::Facts::of(self, self.whole_query())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_and_lines_say_the_same() {
        let lines: [(&str, &[u8]); 4] = [("Host", b"a"), ("X-Tier", b"free"), ("accept", b"*/*"), ("x-tier", b"\xff")];
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
        }
        let tier = HeaderName::from_static("x-tier");
        let came = lines.map(|(name, value)| FieldLine { name: name.as_bytes(), value });
        for headers in [Headers::Map(&map), Headers::Lines(&came)] {
            assert_eq!(headers.get(&tier), Some(&b"free"[..]));
            assert_eq!(headers.get(&HeaderName::from_static("x")), None);
            assert_eq!(headers.all(&tier).collect::<Vec<_>>(), [&b"free"[..], b"\xff"]);
            assert_eq!(headers.all(&tier).next_back(), Some(&b"\xff"[..]));
            let mut all: Vec<_> = headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).collect();
            all.sort();
            let mut expected: Vec<_> = lines.iter().map(|(name, value)| (name.to_ascii_lowercase(), *value)).collect();
            expected.sort();
            assert_eq!(all, expected);
        }
    }
}
