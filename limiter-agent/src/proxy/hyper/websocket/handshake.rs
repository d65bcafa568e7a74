//! The opening handshake of a connection whose messages are counted.
//!
//! The app decides whether to accept, and the client checks the response (`Sec-WebSocket-Accept`). This module only
//! ensures that RFC 6455 frames without extensions follow.

use http::{HeaderMap, HeaderName, Method, Request, header};

use crate::proxy::headers::tokens;

/// The protocol's name in `Upgrade`.
pub(in super::super) const PROTOCOL: &str = "websocket";

/// The only standardized version of the protocol.
const VERSION: &str = "13";

/// Whether `protocol`, an element of `Upgrade`, is WebSocket.
pub(in super::super) fn is_meant(protocol: &str) -> bool {
    // The element can contain a version, too.
    protocol.split('/').next().is_some_and(|name| name.eq_ignore_ascii_case(PROTOCOL))
}

/// Whether a request that names the protocol requests a connection of RFC 6455.
pub(in super::super) fn opens<B>(request: &Request<B>) -> bool {
    let only = |name: HeaderName| {
        let mut values = request.headers().get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    request.method() == Method::GET
        && only(header::SEC_WEBSOCKET_KEY).is_some()
        && only(header::SEC_WEBSOCKET_VERSION).is_some_and(|version| version == VERSION)
}

/// Removes the client's offer of extensions, so that the app agrees to none.
pub(in super::super) fn offer_no_extensions(fields: &mut HeaderMap) {
    fields.remove(header::SEC_WEBSOCKET_EXTENSIONS);
}

/// Whether the app switched to WebSocket, perhaps among other protocols.
pub(in super::super) fn is_chosen(fields: &HeaderMap) -> bool {
    fields.get_all(header::UPGRADE).iter().flat_map(tokens).any(is_meant)
}

/// Whether the app switched to WebSocket without an extension.
pub(in super::super) fn agreed(fields: &HeaderMap) -> bool {
    is_chosen(fields) && !fields.contains_key(header::SEC_WEBSOCKET_EXTENSIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_standard_version_opens() {
        for (method, fields, expected) in [
            (Method::GET, &[("sec-websocket-key", "k"), ("sec-websocket-version", "13")][..], true),
            (Method::POST, &[("sec-websocket-key", "k"), ("sec-websocket-version", "13")], false),
            (Method::GET, &[("sec-websocket-key", "k"), ("sec-websocket-version", "8")], false),
            (Method::GET, &[("sec-websocket-key", "k")], false),
            (Method::GET, &[("sec-websocket-version", "13")], false),
            (
                Method::GET,
                &[("sec-websocket-key", "k"), ("sec-websocket-version", "13"), ("sec-websocket-version", "8")],
                false,
            ),
        ] {
            let mut request = Request::builder().method(method);
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            assert_eq!(opens(&request.body(()).unwrap()), expected, "{fields:?}");
        }
    }

    #[test]
    fn an_app_must_not_agree_to_what_was_not_offered() {
        for (fields, expected) in [
            (&[("upgrade", "WebSocket")][..], true),
            (&[("upgrade", "websocket"), ("sec-websocket-extensions", "permessage-deflate")], false),
            (&[("upgrade", "irc/6.9")], false),
            (&[("upgrade", "irc/6.9, websocket")], true),
            (&[], false),
        ] {
            let fields: HeaderMap =
                fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
            assert_eq!(agreed(&fields), expected, "{fields:?}");
        }
    }
}
