//! What rules look at: a request as it came, wherever its parts are kept.
//!
//! What is costly (the normal form of the path, the host, the values that a predicate sees) is worked out at most once
//! for all the rules of a request, and only if one of them asks.

use std::{borrow::Cow, cell::OnceCell, net::IpAddr};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{
    host,
    path::{self, AmbiguousPaths},
    predicate, query,
};

/// The fields of a request's head: in a map, or as lines in their order.
#[derive(Clone, Copy, Debug)]
pub enum Headers<'a> {
    /// As the `http` crate keeps them.
    Map(&'a HeaderMap),
    /// As they came.
    Lines(&'a [FieldLine<'a>]),
}

/// A field as it came: its name in any case, which is a token, and its value without the space around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLine<'a> {
    /// A token, in any case.
    pub name: &'a [u8],
    /// Without the space around it.
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

    /// All fields; names may be in any case.
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
    /// Whether it has this name, which is in small letters.
    #[inline]
    fn is(&self, name: &[u8]) -> bool {
        // Mostly written as it is known, and then next to nothing has to be done for each byte.
        let same = |(byte, known): (&u8, &u8)| byte == known || byte.to_ascii_lowercase() == *known;
        self.name.len() == name.len() && self.name.iter().zip(name).all(same)
    }
}

/// What matchers and keys need to know of a request.
pub struct RequestView<'a> {
    method: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    /// Of an absolute target, or of HTTP/2's `:authority`.
    authority: Option<&'a str>,
    headers: Headers<'a>,
    peer: IpAddr,
    paths: AmbiguousPaths,
    normal_path: OnceCell<Cow<'a, str>>,
    host: OnceCell<&'a str>,
    /// On the heap, as few requests have any: this is made for each.
    facts: OnceCell<Box<predicate::Facts>>,
}

impl<'a> RequestView<'a> {
    /// `peer` is the address that the connection comes from.
    pub fn new<B>(request: &'a http::Request<B>, peer: IpAddr) -> Self {
        Self::of_parts(request.method().as_str(), request.uri(), Headers::Map(request.headers()), peer)
    }

    /// A request for a path that it came with alone: no host but that of the fields.
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

    /// A request with these parts: `target` has the form of a request line's, with or without scheme and authority.
    pub fn of_parts(method: &'a str, target: &'a http::Uri, headers: Headers<'a>, peer: IpAddr) -> Self {
        Self {
            authority: target.authority().map(http::uri::Authority::as_str),
            ..Self::of_target(method, (target.path(), target.query()), headers, peer)
        }
    }

    /// With its path read in this way; otherwise what is encoded is kept.
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

    /// The host that the client meant, without its port and in its own case; empty if it named none.
    pub(crate) fn host(&self) -> &'a str {
        self.host.get_or_init(|| match self.authority {
            Some(authority) => host::without_port(authority),
            None => {
                let header = self.headers.get(&http::header::HOST).and_then(|value| str::from_utf8(value).ok());
                host::without_port(header.unwrap_or_default())
            }
        })
    }

    /// The values of a parameter of the query, in order.
    pub(crate) fn query<'b>(&self, name: &'b [u8]) -> impl Iterator<Item = Cow<'a, [u8]>> + use<'a, 'b> {
        query::values(self.query.unwrap_or_default(), name)
    }

    /// All of the query; empty without one.
    pub(super) fn whole_query(&self) -> &'a str {
        self.query.unwrap_or_default()
    }

    /// What predicates see.
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
