//! What a proxy must change in a message's headers, and nothing else.
//!
//! Fields that are about one connection (RFC 9110 section 7.6.1) go no further, in both directions. The app learns who
//! asked from `X-Forwarded-For`, to which the peer is appended, and from `X-Forwarded-Proto` and `-Host`, which are set
//! if nobody did so before. `Forwarded` (RFC 7239) says the same in one field: it is continued where somebody in front
//! began it, and not begun here, since an app that reads it would then believe it over what the load balancer wrote in
//! the others. There is no `Via`: some apps do not compress for proxies that say it, and nothing here can loop.
//!
//! Rules look at the headers before any of this.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, Entry},
};
use weir_enforce::X_FORWARDED_FOR;

use super::failure::Garbled;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// How large the head of an answer of the app's may be, over HTTP/1.1.
pub(super) const MAX_ANSWER_BYTES: usize = 400 * 1024;

/// How many fields it may have. As over HTTP/2 (RFC 9113 section 6.5.2), each counts 32 bytes more than its name and its value have, so
/// it is the bytes that are the limit.
pub(super) const MAX_ANSWER_FIELDS: usize = MAX_ANSWER_BYTES / (32 + 2);

/// Of one connection by definition, besides `Connection` itself.
pub(super) const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// End-to-end fields that a client must not be able to take away from the app by naming them in `Connection`.
pub(super) const NEVER_DROPPED: [HeaderName; 6] =
    [header::HOST, header::CONTENT_LENGTH, header::FORWARDED, X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST];

/// Removes what belongs to the connection that a message came by.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if let Entry::Occupied(connection) = headers.entry(header::CONNECTION) {
        let (_, values) = connection.remove_entry_mult();
        let named: Vec<HeaderName> =
            values.flat_map(|value| tokens(&value).filter_map(|t| t.parse().ok()).collect::<Vec<_>>()).collect();
        for name in named {
            if !NEVER_DROPPED.contains(&name) {
                headers.remove(name);
            }
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes from trailers what only a head may say (RFC 9110 section 6.5.1): how the message is framed and to whom it goes, and
/// who sent it, which the head was given.
pub(super) fn clean_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in NEVER_DROPPED.iter().chain(&[header::TRAILER, header::EXPECT]) {
        trailers.remove(name);
    }
}

/// Whether an answer's body is coded in the one way that is undone here: clients are not told of another.
pub(super) fn is_plainly_coded(headers: &HeaderMap) -> bool {
    plain_coding(headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes)) != Some(false)
}

/// Whether `chunked` is the only coding; none without any.
pub(super) fn plain_coding<'b>(mut values: impl Iterator<Item = &'b [u8]>) -> Option<bool> {
    let first = values.next()?;
    Some(first.trim_ascii().eq_ignore_ascii_case(b"chunked") && values.next().is_none())
}

/// Who sent a request, as the fields have it.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    ip: IpAddr,
    text: HeaderValue,
}

impl Peer {
    pub(super) fn new(ip: IpAddr) -> Self {
        Self { ip, text: HeaderValue::from_str(&ip.to_string()).expect("an address is a valid field value") }
    }

    pub(super) fn ip(&self) -> IpAddr {
        self.ip
    }

    pub(super) fn text(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

/// Readies a request's headers for the app. `chunked` is for a body of unknown length on HTTP/1.1.
pub(super) fn to_upstream(headers: &mut HeaderMap, peer: &Peer, chunked: bool) {
    let trailers = headers.get_all(header::TE).iter().flat_map(tokens).any(|t| t.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    if chunked {
        // hyper would take an unknown length on a GET for no body at all.
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if headers.contains_key(header::FORWARDED) {
        append_forwarded(headers, peer.ip);
    }
    join(headers, X_FORWARDED_FOR, ", ", Some(&peer.text));
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Some(host) = headers.get(header::HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
    // HTTP/2 may send cookies one by one, which no app of HTTP/1 expects (RFC 9113 section 8.2.3).
    join(headers, header::COOKIE, "; ", None);
}

/// Readies a response's headers for the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // RFC 9112 section 6.3: the coding rules, the length is a lie.
        headers.remove(header::CONTENT_LENGTH);
    }
    say_length_once(headers);
    remove_hop_by_hop(headers);
}

/// What the app says several times is passed on once (RFC 9110 section 8.6): a recipient might take the list for a
/// mistake, or go by its first member alone.
fn say_length_once(headers: &mut HeaderMap) {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let plain = values.next().is_none_or(|first| first.iter().all(u8::is_ascii_digit)) && values.next().is_none();
    let all = headers.get_all(header::CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    if !plain && let Ok(Some(length)) = one_length(all) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// The length that all values of `Content-Length` agree on; none without any.
pub(super) fn one_length<'b>(values: impl Iterator<Item = &'b [u8]>) -> Result<Option<u64>, Garbled> {
    let mut length = None;
    for value in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let number = number(value.trim_ascii()).ok_or(Garbled::Length)?;
        if *length.get_or_insert(number) != number {
            return Err(Garbled::Length);
        }
    }
    Ok(length)
}

fn number(digits: &[u8]) -> Option<u64> {
    let add = |number: u64, digit: &u8| {
        let digit = char::from(*digit).to_digit(10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    };
    digits.iter().try_fold(0, add).filter(|_| !digits.is_empty())
}

fn append_forwarded(headers: &mut HeaderMap, ip: IpAddr) {
    // Quoted as it is: what a host is made of needs no escape.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let element = format!("{};host=\"{host}\";proto=http", forwarded_node(ip));
    let element = HeaderValue::from_maybe_shared(bytes::Bytes::from(element)).expect("made of text");
    join(headers, header::FORWARDED, ", ", Some(&element));
}

/// Who asked, as RFC 7239 wants it written.
pub(super) fn forwarded_node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    }
}

/// One line for all occurrences of a field and one more: apps that read only the first must see the last too.
fn join(headers: &mut HeaderMap, name: HeaderName, separator: &str, last: Option<&HeaderValue>) {
    let mut values = headers.get_all(&name).iter().chain(last);
    let (Some(first), second) = (values.next(), values.next()) else { return };
    let joined = match second {
        None => first.clone(),
        Some(second) => {
            let mut joined = first.as_bytes().to_vec();
            for value in std::iter::once(second).chain(values) {
                joined.extend_from_slice(separator.as_bytes());
                joined.extend_from_slice(value.as_bytes());
            }
            HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).expect("joined from valid values")
        }
    };
    headers.insert(name, joined);
}

/// The elements of a comma-separated field, but for those that are no text, which are nobody's name.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &str> {
    let elements = value.split(|byte| *byte == b',').filter_map(|element| str::from_utf8(element.trim_ascii()).ok());
    elements.filter(|element| !element.is_empty())
}

/// The same of one value.
pub(super) fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    elements(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
    }

    fn peer(ip: &str) -> Peer {
        Peer::new(ip.parse().unwrap())
    }

    #[test]
    fn nothing_of_the_clients_connection_goes_on() {
        let mut request = headers(&[
            ("connection", "keep-alive, X-Private"),
            ("connection", "x-more, host, x-forwarded-for"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("x-more", "2"),
            ("te", "trailers, deflate"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic x"),
            ("host", "shop.example.com"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-for", "192.0.2.2"),
            ("x-forwarded-proto", "https"),
            ("forwarded", "for=192.0.2.1"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("authorization", "Bearer y"),
        ]);
        to_upstream(&mut request, &peer("192.0.2.3"), false);
        let expected = headers(&[
            ("host", "shop.example.com"),
            ("te", "trailers"),
            ("x-forwarded-for", "192.0.2.1, 192.0.2.2, 192.0.2.3"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example.com"),
            ("forwarded", "for=192.0.2.1, for=192.0.2.3;host=\"shop.example.com\";proto=http"),
            ("cookie", "a=1; b=2"),
            ("authorization", "Bearer y"),
        ]);
        assert_eq!(request, expected);
    }

    #[test]
    fn a_chunked_request_stays_chunked_whatever_its_method() {
        let fields = [("host", "a"), ("transfer-encoding", "gzip, chunked"), ("forwarded", "for=_hidden")];
        let mut request = headers(&fields);
        to_upstream(&mut request, &peer("2001:db8::3"), true);
        assert_eq!(request["transfer-encoding"], "chunked");
        assert_eq!(request["x-forwarded-for"], "2001:db8::3");
        assert_eq!(request["forwarded"], "for=_hidden, for=\"[2001:db8::3]\";host=\"a\";proto=http");
        assert_eq!(request["x-forwarded-proto"], "http");
    }

    #[test]
    fn trailers_say_nothing_that_is_for_a_head() {
        let mut trailers = headers(&[
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("upgrade", "h2c"),
            ("x-forwarded-for", "6.6.6.6"),
            ("forwarded", "for=6.6.6.6"),
            ("host", "b"),
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("trailer", "x"),
            ("grpc-status", "0"),
            ("x-sum", "1"),
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(trailers, headers(&[("grpc-status", "0"), ("x-sum", "1")]));
    }

    #[test]
    fn a_response_loses_its_connection_fields_and_a_false_length() {
        let mut response = headers(&[
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("content-length", "7"),
            ("trailer", "x-sum"),
        ]);
        to_client(&mut response);
        assert_eq!(response, headers(&[("trailer", "x-sum")]));
    }

    #[test]
    fn a_length_is_said_once_if_it_can_be_read_in_one_way_only() {
        for (said, passed) in [
            (&["5"][..], &["5"][..]),
            (&["005"], &["005"]),
            (&["5", "5"], &["5"]),
            (&["5, 5"], &["5"]),
            (&["05,5", "5"], &["5"]),
            // No body shows which of them holds: the writer of the answer refuses it.
            (&["5", "6"], &["5", "6"]),
            (&["+5"], &["+5"]),
        ] {
            let [mut response, passed] = [said, passed]
                .map(|lengths| headers(&lengths.iter().map(|&length| ("content-length", length)).collect::<Vec<_>>()));
            to_client(&mut response);
            assert_eq!(response, passed, "{said:?}");
        }
    }
}
