//! Defines plain requests: unambiguous requests that need only a response.
//!
//! A request that is not plain can be valid. It takes hyper's path, which supports all of HTTP/1.1 and refuses invalid
//! requests. When in doubt, a request is not plain. The other path costs only some microseconds. This module must never
//! accept a request that [`strict`](crate::proxy::hyper::strict), [`vetting`](crate::proxy::hyper::vetting) or hyper
//! would refuse or understand differently.

use weir_enforce::{AmbiguousPaths, FieldLine, is_ambiguous};

use super::{
    field::{Field, RequestFields},
    head::{self, Head, NoHead},
};
use crate::proxy::{authority, headers::digits};

/// The bounds of a head, from the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadBounds {
    pub(super) bytes: usize,
    pub(super) fields: usize,
    /// The treatment of paths that apps read in different ways.
    pub(super) ambiguous_paths: AmbiguousPaths,
}

/// The result of parsing the first bytes of a request.
#[derive(Debug)]
pub(super) enum Look<'h, 'b> {
    /// The request is incomplete, and possibly plain. If its head is complete, the value is the length of the whole
    /// request.
    Part(Option<usize>),
    Plain(Request<'h, 'b>),
    Other,
}

/// A plain request with its complete body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'h, 'b> {
    pub(super) method: &'static str,
    pub(super) path: &'b str,
    pub(super) query: Option<&'b str>,
    pub(super) fields: &'h [FieldLine<'b>],
    /// The kind of each field.
    pub(super) kinds: &'h [Field],
    pub(super) host: &'b [u8],
    pub(super) body: &'b [u8],
    /// The length of head and body.
    pub(super) length: usize,
    /// Whether the client sends no more requests after this one.
    pub(super) last: bool,
}

impl<'h, 'b> Request<'h, 'b> {
    /// Parses the first bytes of a request, and puts the fields into `lines`, which must be empty. No field is parsed
    /// twice.
    #[inline]
    pub(super) fn look(bytes: &'b [u8], lines: &'h mut RequestFields<'b>, bounds: HeadBounds) -> Look<'h, 'b> {
        let Head { method, path, query, length } = match head::read(bytes, lines, bounds.fields) {
            Ok(head) if head.length <= bounds.bytes => head,
            Err(NoHead::Part) if bytes.len() <= bounds.bytes => return Look::Part(None),
            _ => return Look::Other,
        };
        if bounds.ambiguous_paths == AmbiguousPaths::Refuse && is_ambiguous(path) {
            return Look::Other;
        }
        let RequestFields { fields, kinds } = lines;
        let Some(Known { host, body, last }) = Known::of(method, fields, kinds) else { return Look::Other };
        let Some(whole) = length.checked_add(body) else { return Look::Other };
        let Some(body) = bytes.get(length..whole) else { return Look::Part(Some(whole)) };
        Look::Plain(Self { method, path, query, fields, kinds, host, body, length: whole, last })
    }

    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    /// Whether the request can be retried if there was no response (RFC 9110 section 9.2.2).
    pub(super) fn is_repeatable(&self) -> bool {
        self.body.is_empty() && matches!(self.method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS")
    }
}

/// The values of the fields that the short path needs.
struct Known<'b> {
    host: &'b [u8],
    body: usize,
    last: bool,
}

impl<'b> Known<'b> {
    /// Reads the fields. Returns `None` if a field is not plain.
    fn of(method: &str, fields: &[FieldLine<'b>], kinds: &[Field]) -> Option<Self> {
        let (mut host, mut length, mut connection) = (None, None, None);
        for (field, kind) in fields.iter().zip(kinds) {
            match kind {
                Field::Host => {
                    let sound = host.is_none() && authority::is_sound(field.value);
                    host = Some(field.value).filter(|_| sound);
                    host?;
                }
                Field::ContentLength => {
                    let first = length.is_none();
                    length = small_number(field.value).filter(|_| first);
                    length?;
                }
                Field::Connection => {
                    let first = connection.is_none();
                    connection = is_last(field.value).filter(|_| first);
                    connection?;
                }
                Field::MaxForwards if method == "OPTIONS" => return None,
                Field::Expect | Field::Te | Field::Trailer | Field::TransferEncoding | Field::Upgrade => return None,
                _ => {}
            }
        }
        Some(Self { host: host?, body: length.unwrap_or(0), last: connection.unwrap_or(false) })
    }
}

/// Parses a number of at most six digits. A request with a larger body is not plain.
fn small_number(text: &[u8]) -> Option<usize> {
    digits(text, 10).filter(|_| text.len() <= 6).and_then(|number| number.try_into().ok())
}

/// Whether a `Connection` field closes the connection, or `None` if it has any other value.
fn is_last(value: &[u8]) -> Option<bool> {
    if value.eq_ignore_ascii_case(b"keep-alive") {
        Some(false)
    } else {
        value.eq_ignore_ascii_case(b"close").then_some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: HeadBounds = HeadBounds { bytes: 8192, fields: 20, ambiguous_paths: AmbiguousPaths::Refuse };

    fn is_plain(bytes: &[u8]) -> Option<bool> {
        match Request::look(bytes, &mut RequestFields::default(), BOUNDS) {
            Look::Part(_) => None,
            Look::Plain(_) => Some(true),
            Look::Other => Some(false),
        }
    }

    #[test]
    fn only_unambiguous_requests_without_extras_are_plain() {
        let long = format!("x: {}\r\n", "y".repeat(8192));
        let many = "x: y\r\n".repeat(20);
        for (head, plain) in [
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", true),
            ("GET /a%20b/.../%61//?q=%2f&r HTTP/1.1\r\nHost: a.example:80\r\nAccept: */*\r\n\r\n", true),
            ("HEAD / HTTP/1.1\r\nhost:a \r\nconnection: Keep-Alive\r\n\r\n", true),
            ("DELETE / HTTP/1.1\r\nhost: [::1]:80\r\nConnection: close\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi", true),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 002\r\n\r\nhi", true),
            ("GET / HTTP/1.1\r\nhost: a\r\nx: \u{e4}\tb\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nhost:\r\n\r\n", true),
            ("GET / HTTP/1.1\r\nhost: a\r\nmax-forwards: 0\r\n\r\n", true),
            // Methods, targets and versions that are not plain.
            ("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("get / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false),
            ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET http://a/ HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a#b HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a|b HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /\u{e4} HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a\\b HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET  / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET / HTTP/1.0\r\nhost: a\r\n\r\n", false),
            ("GET / HTTP/2.0\r\nhost: a\r\n\r\n", false),
            ("GET /a%2fb HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a/..;/b HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a/../b HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET /a/%2e HTTP/1.1\r\nhost: a\r\n\r\n", false),
            // Unusual line ends and blanks.
            ("\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", false),
            ("GET / HTTP/1.1\nhost: a\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\n\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nx: y\r\n z\r\n\r\n", false),
            ("GET / HTTP/1.1\r\n host: a\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\rb\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nx: \0\r\n\r\n", false),
            // Missing or unusual hosts.
            ("GET / HTTP/1.1\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a, b\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: u@a\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a:80]\r\n\r\n", false),
            // Requests that the short path cannot serve, because they need more than a response.
            ("GET / HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\ntrailer: x\r\n\r\n", false),
            ("OPTIONS / HTTP/1.1\r\nhost: a\r\nMax-Forwards: 5\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nconnection: x\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nconnection: close, x\r\n\r\n", false),
            ("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nconnection: close\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false),
            // Lengths that are not plain.
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +2\r\n\r\nhi", false),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2, 2\r\n\r\nhi", false),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length:\r\n\r\nhi", false),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi", false),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551618\r\n\r\nhi", false),
            (&format!("GET / HTTP/1.1\r\nhost: a\r\n{long}\r\n"), false),
            (&format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), false),
        ] {
            assert_eq!(is_plain(head.as_bytes()), Some(plain), "{head:?}");
        }
    }

    #[test]
    fn an_incomplete_request_is_not_plain_yet() {
        let whole = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
        for end in 0..whole.len() {
            assert_eq!(is_plain(&whole[..end]), None, "{end}");
        }
        assert_eq!(is_plain(&[&whole[..], b"GET"].concat()), Some(true));
        let Look::Part(Some(length)) = Request::look(&whole[..whole.len() - 1], &mut RequestFields::default(), BOUNDS)
        else {
            panic!("the head contains the length");
        };
        assert_eq!(length, whole.len());
        assert_eq!(is_plain(&vec![b'G'; 8193]), Some(false));
    }

    #[test]
    fn the_parts_of_a_request_are_found() {
        let bytes = b"PUT /a?b?c HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhiGET";
        let mut lines = RequestFields::default();
        let Look::Plain(request) = Request::look(bytes, &mut lines, BOUNDS) else { panic!("plain") };
        assert_eq!((request.method, request.path, request.query), ("PUT", "/a", Some("b?c")));
        assert_eq!((request.host, request.body, request.length), (&b"a"[..], &b"hi"[..], bytes.len() - 3));
        assert!(request.last && !request.is_repeatable() && !request.is_head());
    }
}
