//! Upgraded connections, such as WebSocket: the opening request goes through the limits like any other, then bytes
//! are copied both ways until either side is done.
//!
//! An upgrade to another form of HTTP is not passed on: the tunnel would carry requests past the limits. Ignoring it is
//! always allowed (RFC 9110 section 7.8), so the request is simply answered over HTTP/1.1.

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio_util::task::TaskTracker;

use super::{ResponseBody, body::RequestBody, headers};

/// An upgrade that the client asked for.
pub(super) struct Upgrade {
    client: OnUpgrade,
    protocols: HeaderValue,
}

/// To be asked before the hop-by-hop fields are removed.
pub(super) fn requested(request: &mut Request<RequestBody>) -> Option<Upgrade> {
    let fields = request.headers();
    if request.version() != Version::HTTP_11 || !fields.contains_key(header::UPGRADE) {
        return None;
    }
    let named = fields.get_all(header::CONNECTION).iter().flat_map(headers::tokens);
    if !named.into_iter().any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let protocols: Vec<&str> =
        fields.get_all(header::UPGRADE).iter().flat_map(headers::tokens).filter(|name| !carries_http(name)).collect();
    if protocols.is_empty() {
        return None;
    }
    let protocols = HeaderValue::from_str(&protocols.join(", ")).ok()?;
    Some(Upgrade { client: hyper::upgrade::on(request), protocols })
}

fn carries_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    ["h2c", "h2", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

impl Upgrade {
    /// Asks the app for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocols.clone());
    }

    /// Connects both sides once the client has the app's 101, which is returned.
    pub(super) fn tunnel(self, response: &mut Response<Incoming>, tunnels: &TaskTracker) -> Response<ResponseBody> {
        let Self { client, protocols } = self;
        let app = hyper::upgrade::on(&mut *response);
        tunnels.spawn_local(async move {
            let (client, app) = match tokio::try_join!(client, app) {
                Ok(both) => both,
                Err(error) => return tracing::debug!(%error, "upgrade failed"),
            };
            // Either side may go whenever it likes: that is how tunnels end.
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(app)).await;
        });
        let mut switching = Response::new(ResponseBody::own(""));
        *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let fields = switching.headers_mut();
        *fields = std::mem::take(response.headers_mut());
        let chosen = fields.get(header::UPGRADE).cloned();
        headers::remove_hop_by_hop(fields);
        fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(header::UPGRADE, chosen.unwrap_or(protocols));
        switching
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tunnel_carries_requests_past_the_limits() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "websocket", Some("websocket")),
            ("keep-alive, upgrade", "websocket", Some("websocket")),
            ("keep-alive", "websocket", None),
            ("upgrade", "h2c", None),
            ("upgrade", "HTTP/2.0", None),
            ("upgrade", "TLS/1.2, websocket", Some("websocket")),
            ("upgrade", "SPDY/3.1", Some("SPDY/3.1")),
        ] {
            let mut request = Request::builder()
                .header(header::CONNECTION, connection)
                .header(header::UPGRADE, upgrade)
                .body(RequestBody::empty())
                .unwrap();
            let protocols = requested(&mut request).map(|upgrade| upgrade.protocols);
            assert_eq!(protocols, expected.map(HeaderValue::from_static), "{connection}: {upgrade}");
        }
    }
}
