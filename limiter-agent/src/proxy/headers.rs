//! What a proxy must change in a message's headers, and nothing else.
//!
//! Fields that are about one connection (RFC 9110 section 7.6.1) go no further, in both directions. The app learns who
//! asked from `X-Forwarded-For`, to which the peer is appended, and from `X-Forwarded-Proto` and `-Host`, which are set
//! if nobody did so before. Rules look at the headers before any of this.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{self, Entry},
};

pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Of one connection by definition, besides `Connection` itself.
const HOP_BY_HOP: [HeaderName; 7] = [
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
];

/// End-to-end fields that a client must not be able to take away from the app by naming them in `Connection`.
const NEVER_DROPPED: [HeaderName; 6] =
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

/// Readies a request's headers for the app.
pub(super) fn to_upstream(headers: &mut HeaderMap, peer: &HeaderValue) {
    // The body is streamed on as it comes. hyper would take an unknown length on a GET for no body at all.
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    let trailers = headers.get_all(header::TE).iter().flat_map(tokens).any(|t| t.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(headers);
    if chunked {
        headers.insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    if trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    append_forwarded_for(headers, peer);
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
    }
    if !headers.contains_key(X_FORWARDED_HOST)
        && let Some(host) = headers.get(header::HOST).cloned()
    {
        headers.insert(X_FORWARDED_HOST, host);
    }
}

/// Readies a response's headers for the client.
pub(super) fn to_client(headers: &mut HeaderMap) {
    if headers.contains_key(header::TRANSFER_ENCODING) {
        // RFC 9112 section 6.3: the coding rules, the length is a lie.
        headers.remove(header::CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
}

/// One line for all occurrences: apps that read only the first must see the peer too.
fn append_forwarded_for(headers: &mut HeaderMap, peer: &HeaderValue) {
    let joined = {
        let mut joined = Vec::new();
        for value in headers.get_all(X_FORWARDED_FOR) {
            joined.extend_from_slice(value.as_bytes());
            joined.extend_from_slice(b", ");
        }
        joined
    };
    let value = if joined.is_empty() {
        peer.clone()
    } else {
        let whole = [joined.as_slice(), peer.as_bytes()].concat();
        HeaderValue::from_maybe_shared(bytes::Bytes::from(whole)).expect("joined from valid values")
    };
    headers.insert(X_FORWARDED_FOR, value);
}

/// The elements of a comma-separated field.
pub(super) fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap())).collect()
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
            ("authorization", "Bearer y"),
        ]);
        to_upstream(&mut request, &HeaderValue::from_static("192.0.2.3"));
        let expected = headers(&[
            ("host", "shop.example.com"),
            ("te", "trailers"),
            ("x-forwarded-for", "192.0.2.1, 192.0.2.2, 192.0.2.3"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "shop.example.com"),
            ("authorization", "Bearer y"),
        ]);
        assert_eq!(request, expected);
    }

    #[test]
    fn a_chunked_request_stays_chunked_whatever_its_method() {
        let mut request = headers(&[("host", "a"), ("transfer-encoding", "gzip, chunked")]);
        to_upstream(&mut request, &HeaderValue::from_static("192.0.2.3"));
        assert_eq!(request["transfer-encoding"], "chunked");
        assert_eq!(request["x-forwarded-for"], "192.0.2.3");
        assert_eq!(request["x-forwarded-proto"], "http");
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
}
