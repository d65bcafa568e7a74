//! Upgraded connections, such as WebSocket. The opening request passes the limits like any other request; then bytes
//! are copied in both directions until either side closes.
//!
//! If a rule counts the connection's messages, [`websocket::relay()`] parses them instead, and the agent requests from
//! the app a WebSocket connection without extensions.
//!
//! The agent does not forward an upgrade to another version of HTTP: the tunnel would carry requests past the limits. A
//! server is always allowed to ignore an upgrade (RFC 9110 section 7.8), so the request is answered over HTTP/1.1.

use std::{io, sync::Arc};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::Body;
use hyper::{
    body::Incoming,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use weir_enforce::{Messages, Tunnel};

use super::{
    failure::Failure,
    headers,
    response_body::ResponseBody,
    traffic::{Protocol, Traffic},
    vetting::InvalidRequest,
    websocket::{self, handshake},
};

/// The upgraded connections.
#[derive(Clone, Debug)]
pub(super) struct Tunnels {
    /// The tasks of the connections, which outlive their requests. A drain waits for these tasks.
    pub(super) tasks: TaskTracker,
    /// Cancelled when connections that can close gracefully should do so. The token is shared, because cloning it takes
    /// a lock.
    pub(super) drain: Arc<CancellationToken>,
}

/// An upgrade that the client requested.
pub(super) struct Upgrade {
    client: OnUpgrade,
    protocols: HeaderValue,
    messages: Option<Messages>,
}

/// Returns the upgrade that a request contains, if any. Call this function before hop-by-hop fields are removed.
/// `messages` returns the rules that count messages, if any.
///
/// # Errors
///
/// Returns an error if an app could read the bytes after the head as messages that no rule has counted.
pub(super) fn requested<B: Body>(
    request: &mut Request<B>,
    messages: impl FnOnce(&Request<B>) -> Option<Messages>,
) -> Result<Option<Upgrade>, InvalidRequest> {
    let fields = request.headers();
    if request.version() != Version::HTTP_11 || !fields.contains_key(header::UPGRADE) {
        return Ok(None);
    }
    let named = fields.get_all(header::CONNECTION).iter().flat_map(headers::tokens);
    if !named.into_iter().any(|token| token.eq_ignore_ascii_case("upgrade")) {
        return Ok(None);
    }
    let protocols: Vec<&str> =
        fields.get_all(header::UPGRADE).iter().flat_map(headers::tokens).filter(|name| !carries_http(name)).collect();
    let websocket = protocols.iter().any(|name| handshake::is_meant(name));
    let messages = if websocket { messages(request) } else { None };
    let protocols = match &messages {
        _ if protocols.is_empty() => return Ok(None),
        Some(_) if !request.body().is_end_stream() => return Err(InvalidRequest::HandshakeBody),
        // An older version of WebSocket has different frames. The app gets a request without an upgrade, and answers
        // with the versions that it supports.
        Some(_) if !handshake::opens(request) => return Ok(None),
        Some(_) => HeaderValue::from_static(handshake::PROTOCOL),
        None => match HeaderValue::from_str(&protocols.join(", ")) {
            Ok(protocols) => protocols,
            Err(_) => return Ok(None),
        },
    };
    Ok(Some(Upgrade { client: hyper::upgrade::on(request), protocols, messages }))
}

fn carries_http(protocol: &str) -> bool {
    let name = protocol.split('/').next().unwrap_or_default();
    ["h2c", "h2", "http", "tls"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

impl Upgrade {
    /// Adds the upgrade to the request for the app.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocols.clone());
        if self.messages.is_some() {
            handshake::offer_no_extensions(headers);
        }
    }

    /// Returns the app's 101 for the client, and connects both sides after it was sent.
    ///
    /// # Errors
    ///
    /// Returns an error if the app switched to another protocol than requested.
    pub(super) fn tunnel(
        self,
        response: &mut Response<Incoming>,
        tunnels: &Tunnels,
        traffic: &Arc<Traffic>,
    ) -> Result<Response<ResponseBody>, Failure> {
        if !self.agrees(response.headers()) {
            return Err(Failure::UnaskedUpgrade);
        }
        let Self { client, protocols, messages } = self;
        let app = hyper::upgrade::on(&mut *response);
        let drain = Arc::clone(&tunnels.drain);
        let websocket = handshake::is_chosen(response.headers());
        let speaking = traffic.speaking(if websocket { Protocol::WebSocket } else { Protocol::Tunnel });
        let tunnel = Tunnel::default();
        let held = tunnel.clone();
        tunnels.tasks.spawn_local(async move {
            let _speaking = speaking;
            let _held = held;
            let (client, app) = match tokio::try_join!(client, app) {
                Ok((client, app)) => (TokioIo::new(client), TokioIo::new(app)),
                Err(error) => return tracing::debug!(%error, "upgrade failed"),
            };
            // The result is ignored, because a tunnel ends when either side closes.
            let _ = match messages {
                Some(messages) => websocket::relay(client, app, &messages, &drain).await,
                None => copy(client, app).await,
            };
        });
        let mut switching = Response::new(ResponseBody::own(""));
        *switching.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        switching.extensions_mut().insert(tunnel);
        let fields = switching.headers_mut();
        *fields = std::mem::take(response.headers_mut());
        let chosen = fields.get(header::UPGRADE).cloned();
        headers::remove_hop_by_hop(fields);
        fields.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        fields.insert(header::UPGRADE, chosen.unwrap_or(protocols));
        Ok(switching)
    }

    /// Whether the app agreed to what the rules per message require.
    fn agrees(&self, answer: &HeaderMap) -> bool {
        match &self.messages {
            Some(_) => handshake::agreed(answer),
            // If the client requested another protocol, the agent did not check for rules per message.
            None => !handshake::is_chosen(answer) || headers::tokens(&self.protocols).any(handshake::is_meant),
        }
    }
}

async fn copy(mut client: TokioIo<Upgraded>, mut app: TokioIo<Upgraded>) -> io::Result<()> {
    tokio::io::copy_bidirectional(&mut client, &mut app).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::request_body::ForwardedBody;

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
                .body(ForwardedBody::default())
                .unwrap();
            let protocols = requested(&mut request, |_| None).unwrap().map(|upgrade| upgrade.protocols);
            assert_eq!(protocols, expected.map(HeaderValue::from_static), "{connection}: {upgrade}");
        }
    }
}

#[cfg(test)]
#[path = "upgrade_fuzz.rs"]
mod fuzz;
