//! Changes the headers that a proxy must change, and no others.
//!
//! Hop-by-hop fields (RFC 9110 section 7.6.1) are removed in both directions. The app gets the client's address from
//! `X-Forwarded-For`, to which the agent appends the peer, and from `X-Forwarded-Proto` and `-Host`, which the agent
//! sets if they are absent. If the request has `Forwarded` (RFC 7239), the agent appends to it. The agent never adds
//! `Forwarded`, because an app that reads this field would prefer it over the load balancer's values in the other
//! fields. The agent does not add `Via`: some apps do not compress responses for proxies that send `Via`, and requests
//! cannot loop through the agent.
//!
//! Rules use the headers before any of these changes, except for fields that `Connection` names: they are removed first,
//! because the app does not get them.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::Frame;
use weir_enforce::X_FORWARDED_FOR;

use super::app::InvalidResponse;

const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The maximum size of the head of an app's HTTP/1.1 response, and of its trailers. hyper buffers
/// at most as many bytes of an upload, so each upload to an app that does not read costs the agent this memory.
pub(super) const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// The maximum number of fields of such a head. Envoy and HAProxy accept about 100. For each response, hyper writes to
/// all of the space for this many fields, so a large number costs more than the rest of the parsing.
pub(super) const MAX_ANSWER_FIELDS: usize = 256;

/// Hop-by-hop fields except `Connection` itself.
pub(super) const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// End-to-end fields that a client must not remove by naming them in `Connection`.
pub(super) const NEVER_DROPPED: [HeaderName; 6] =
    [header::HOST, header::CONTENT_LENGTH, header::FORWARDED, X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST];

/// Removes the fields that `Connection` names, except those in [`HOP_BY_HOP`]. Call this function before rules decide,
/// so that rules read no field that the app does not get.
pub(super) fn remove_named(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(tokens)
        .filter_map(|token| token.parse().ok())
        .filter(|name| *name != header::CONNECTION && !HOP_BY_HOP.contains(name) && !NEVER_DROPPED.contains(name))
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Removes the hop-by-hop fields of a message.
pub(super) fn remove_hop_by_hop(headers: &mut HeaderMap) {
    remove_named(headers);
    headers.remove(header::CONNECTION);
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Removes trailers that are only valid in a head (RFC 9110 section 6.5.1): framing, routing, and the client's
/// identity, which the head already has.
pub(super) fn cleaned(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        remove_hop_by_hop(trailers);
        for name in NEVER_DROPPED.iter().chain(&[header::TRAILER, header::EXPECT]) {
            trailers.remove(name);
        }
    }
    frame
}

/// Whether a response's body has no transfer coding except `chunked`, the only one that the agent decodes.
pub(super) fn is_plainly_coded(headers: &HeaderMap) -> bool {
    coding(headers.get_all(header::TRANSFER_ENCODING).iter().map(HeaderValue::as_bytes)) != Coding::Other
}

/// The transfer coding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    None,
    Chunked,
    /// Another coding than `chunked`, or several.
    Other,
}

pub(super) fn coding<'b>(mut values: impl Iterator<Item = &'b [u8]>) -> Coding {
    match (values.next(), values.next()) {
        (None, _) => Coding::None,
        (Some(only), None) if only.trim_ascii().eq_ignore_ascii_case(b"chunked") => Coding::Chunked,
        (Some(_), _) => Coding::Other,
    }
}

/// The client's address, and its text for header fields.
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

/// Prepares a request's headers for the app. `chunked` is true for a body of unknown length over HTTP/1.1.
pub(super) fn to_upstream(headers: &mut HeaderMap, peer: &Peer, chunked: bool) {
    let trailers = headers.get_all(header::TE).iter().flat_map(tokens).any(|t| t.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    if chunked {
        // For a GET of unknown length, hyper would omit the body.
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
    // HTTP/2 clients can split cookies over several fields, which HTTP/1 apps do not expect (RFC 9113 section 8.2.3).
    join(headers, header::COOKIE, "; ", None);
}

/// Names `TE` in `Connection`, which each sender of this field must do in HTTP/1 (RFC 9110 section 10.1.4). Call this after
/// [`to_upstream`], and after an upgrade was added.
pub(super) fn name_te(headers: &mut HeaderMap) {
    if headers.contains_key(header::TE) {
        let options = if headers.contains_key(header::UPGRADE) { "upgrade, te" } else { "te" };
        headers.insert(header::CONNECTION, HeaderValue::from_static(options));
    }
}

/// Prepares a response's headers for the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // RFC 9112 section 6.3: the transfer coding overrides the length.
        headers.remove(header::CONTENT_LENGTH);
    }
    say_length_once(headers);
    remove_hop_by_hop(headers);
}

/// Merges repeated equal lengths into one (RFC 9110 section 8.6). A recipient might refuse the list, or read only its
/// first member.
fn say_length_once(headers: &mut HeaderMap) {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    let plain = values.next().is_none_or(|first| first.iter().all(u8::is_ascii_digit)) && values.next().is_none();
    let all = headers.get_all(header::CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    if !plain && let Ok(Some(length)) = one_length(all) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// The length on which all values of `Content-Length` agree; `None` without any.
pub(super) fn one_length<'b>(values: impl Iterator<Item = &'b [u8]>) -> Result<Option<u64>, InvalidResponse> {
    let mut length = None;
    for value in values.flat_map(|value| value.split(|byte| *byte == b',')) {
        let number = digits(value.trim_ascii(), 10).ok_or(InvalidResponse::Length)?;
        if *length.get_or_insert(number) != number {
            return Err(InvalidResponse::Length);
        }
    }
    Ok(length)
}

/// Whether a response to HEAD has several lengths that differ. No body shows which one is right.
pub(super) fn contradicts_itself(headers: &HeaderMap) -> bool {
    let lengths = || headers.get_all(header::CONTENT_LENGTH).iter().map(HeaderValue::as_bytes);
    !headers.contains_key(header::TRANSFER_ENCODING) && lengths().count() > 1 && one_length(lengths()).is_err()
}

/// Parses a number that consists only of digits.
pub(super) fn digits(text: &[u8], radix: u32) -> Option<u64> {
    let add = |number: u64, digit: &u8| {
        let digit = char::from(*digit).to_digit(radix)?;
        number.checked_mul(radix.into())?.checked_add(digit.into())
    };
    text.iter().try_fold(0, add).filter(|_| !text.is_empty())
}

fn append_forwarded(headers: &mut HeaderMap, ip: IpAddr) {
    // The host is quoted without escapes, because its characters need none.
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let element = format!("{};host=\"{host}\";proto=http", forwarded_node(ip));
    let element = HeaderValue::from_maybe_shared(Bytes::from(element)).expect("made of text");
    join(headers, header::FORWARDED, ", ", Some(&element));
}

/// A client address in the form of RFC 7239.
pub(super) fn forwarded_node(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    }
}

/// Joins all values of a field, and one more, into one line. Apps that read only the first line must get the last
/// value, too.
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
            HeaderValue::from_maybe_shared(Bytes::from(joined)).expect("joined from valid values")
        }
    };
    headers.insert(name, joined);
}

/// The elements of a comma-separated field. Elements that are not UTF-8 are omitted, because they cannot be names.
pub(super) fn elements(value: &[u8]) -> impl Iterator<Item = &str> {
    let elements = value.split(|byte| *byte == b',').filter_map(|element| str::from_utf8(element.trim_ascii()).ok());
    elements.filter(|element| !element.is_empty())
}

/// The elements of one header value.
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
    fn hop_by_hop_fields_do_not_reach_the_app() {
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
    fn rules_read_no_field_that_connection_names() {
        let ends = [("x-other", "3"), ("te", "trailers"), ("host", "a"), ("upgrade", "h2c")];
        let mut request =
            headers(&[&[("connection", "keep-alive, X-Private, te, host"), ("x-private", "1")], &ends[..]].concat());
        request.append(header::CONNECTION, HeaderValue::from_static("x-more, connection,upgrade"));
        request.append("x-more", HeaderValue::from_static("2"));
        request.append("x-private", HeaderValue::from_static("4"));
        remove_named(&mut request);
        assert_eq!(request.get_all(header::CONNECTION).iter().count(), 2);
        request.remove(header::CONNECTION);
        assert_eq!(request, headers(&ends));
    }

    #[test]
    fn a_chunked_request_stays_chunked_for_any_method() {
        let fields = [("host", "a"), ("transfer-encoding", "gzip, chunked"), ("forwarded", "for=_hidden")];
        let mut request = headers(&fields);
        to_upstream(&mut request, &peer("2001:db8::3"), true);
        assert_eq!(request["transfer-encoding"], "chunked");
        assert_eq!(request["x-forwarded-for"], "2001:db8::3");
        assert_eq!(request["forwarded"], "for=_hidden, for=\"[2001:db8::3]\";host=\"a\";proto=http");
        assert_eq!(request["x-forwarded-proto"], "http");
    }

    #[test]
    fn fields_for_heads_are_removed_from_trailers() {
        let trailers = headers(&[
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
        let trailers = cleaned(Frame::trailers(trailers)).into_trailers().expect("trailers");
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
    fn equal_lengths_are_merged_into_one() {
        for (said, passed) in [
            (&["5"][..], &["5"][..]),
            (&["005"], &["005"]),
            (&["5", "5"], &["5"]),
            (&["5, 5"], &["5"]),
            (&["05,5", "5"], &["5"]),
            // Contradictory lengths stay unchanged, and the writer refuses the response.
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
