//! Upgraded connections, such as WebSocket. The opening request passes the limits like any other request. Then bytes
//! are copied in both directions until both sides have closed. When the app has closed, a silent client has a few
//! seconds, because it must not hold a connection and a permit that the app has given up.
//!
//! If a rule counts the connection's messages, [`websocket::relay()`] parses them instead, and the agent requests from
//! the app a WebSocket connection without extensions.
//!
//! The agent does not forward an upgrade to another version of HTTP: the tunnel would carry requests past the limits. A
//! server is always allowed to ignore an upgrade (RFC 9110 section 7.8), so the request is answered over HTTP/1.1.

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::Body;
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use weir_enforce::{Messages, Tunnel};

use super::{
    failure::Failure,
    response_body::ResponseBody,
    socket::LingeringClose,
    stalled_tunnel::StallLimit,
    strict::{asks_for_upgrade, carries_http},
    vetting::InvalidRequest,
    websocket::{self, handshake},
};
use crate::proxy::{headers, state::Proxy, traffic::Protocol};

/// The time for which a client may be silent when the app has closed its side of a tunnel.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);

const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The size of the buffer for bytes to the app.
const BUFFER: usize = 8 * 1024;

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
    if request.version() != Version::HTTP_11 || !asks_for_upgrade(fields) {
        return Ok(None);
    }
    let named = fields.get_all(header::UPGRADE).iter().flat_map(headers::tokens);
    let protocols: Vec<&str> = named.filter(|name| !carries_http(name)).collect();
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

impl Upgrade {
    /// Adds the upgrade to the request for the app.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, self.protocols.clone());
        // An upgrade to HTTP/2 needs this field.
        headers.remove(HTTP2_SETTINGS);
        if self.messages.is_some() {
            handshake::offer_no_extensions(headers);
        }
    }

    /// Returns the app's 101 for the client, and connects both sides after it was sent, in one of these tasks.
    ///
    /// # Errors
    ///
    /// Returns an error if the app switched to another protocol than requested.
    pub(super) fn tunnel(
        self,
        response: &mut Response<Incoming>,
        tunnels: &TaskTracker,
        proxy: &Arc<Proxy>,
    ) -> Result<Response<ResponseBody>, Failure> {
        if !self.agrees(response.headers()) {
            return Err(Failure::UnaskedUpgrade);
        }
        let Self { client, protocols, messages } = self;
        let app = hyper::upgrade::on(&mut *response);
        let websocket = handshake::is_chosen(response.headers());
        let open_count = proxy.traffic.open(if websocket { Protocol::WebSocket } else { Protocol::Tunnel });
        let tunnel = Tunnel::default();
        let held = tunnel.clone();
        let proxy = Arc::clone(proxy);
        tunnels.spawn_local(async move {
            let _open_count = open_count;
            let _held = held;
            let (mut client, app) = match tokio::try_join!(client, app) {
                Ok((client, app)) => {
                    (StallLimit::new(TokioIo::new(client), proxy.settings.stall_timeout), TokioIo::new(app))
                }
                Err(error) => return tracing::debug!(%error, "upgrade failed"),
            };
            // The result is ignored, because there is no one to report an error to.
            let _ = match messages {
                Some(messages) => websocket::relay(&mut client, app, || messages.decide(), &proxy.stop).await,
                None => copy(&mut client, app).await,
            };
            // The kernel resets a connection that is closed with unread bytes. Then the client would not get the end of
            // the app's data.
            if client.shutdown().await.is_ok() {
                let mut lingering = LingeringClose::default();
                poll_fn(|cx| lingering.poll_over(&mut client, cx)).await;
            }
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

/// Copies bytes in both directions until both sides have closed.
///
/// A client may close its side and then wait for the app. An app that has closed its side seldom reads what follows, and
/// the agent cannot see whether it still can. So the client then has to send something from time to time, or to close.
async fn copy(client: impl AsyncRead + AsyncWrite, app: impl AsyncRead + AsyncWrite) -> io::Result<()> {
    let (mut client_reads, mut client_writes) = tokio::io::split(client);
    let (mut app_reads, mut app_writes) = tokio::io::split(app);
    let app_closed = CancellationToken::new();
    let to_client = async {
        tokio::io::copy(&mut app_reads, &mut client_writes).await?;
        client_writes.shutdown().await?;
        app_closed.cancel();
        Ok(())
    };
    let to_app = async {
        let mut buffer = vec![0; BUFFER].into_boxed_slice();
        loop {
            let silence = async {
                app_closed.cancelled().await;
                tokio::time::sleep(SILENCE_TIMEOUT).await;
            };
            let read = tokio::select! {
                biased;
                read = client_reads.read(&mut buffer) => read?,
                () = silence => return Err(io::ErrorKind::TimedOut.into()),
            };
            if read == 0 {
                return app_writes.shutdown().await;
            }
            let written = async {
                app_writes.write_all(&buffer[..read]).await?;
                app_writes.flush().await
            };
            if let Err(error) = written.await {
                // What the app sent before must still reach the client.
                tracing::debug!(%error, "the app disconnected");
                return Ok(());
            }
        }
    };
    tokio::try_join!(to_client, to_app).map(drop)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{DuplexStream, duplex},
        time::{Instant, sleep},
    };

    use super::*;
    use crate::proxy::hyper::request_body::ForwardedBody;

    /// Runs a tunnel. `test` acts as the client and as the app.
    async fn tunnelled(test: impl AsyncFnOnce(DuplexStream, DuplexStream)) -> io::Result<()> {
        let ((client, client_end), (app, app_end)) = (duplex(64), duplex(64));
        tokio::join!(copy(client_end, app_end), test(client, app)).0
    }

    async fn read_to_end(stream: &mut DuplexStream) -> Vec<u8> {
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        read
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_does_not_outlive_the_app() {
        let begun = Instant::now();
        let ended = tunnelled(async |mut client, mut app| {
            // Before the app closes, silence has no limit.
            sleep(Duration::from_secs(3_600)).await;
            app.write_all(b"bye").await.unwrap();
            app.shutdown().await.unwrap();
            assert_eq!(read_to_end(&mut client).await, b"bye");
            for _ in 0..5 {
                sleep(SILENCE_TIMEOUT - Duration::from_secs(1)).await;
                client.write_all(b"more").await.unwrap();
            }
            assert_eq!(read_to_end(&mut app).await, b"more".repeat(5));
        })
        .await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 3_600 + 5 * (SILENCE_TIMEOUT.as_secs() - 1) + SILENCE_TIMEOUT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_has_closed_its_side_gets_the_whole_answer() {
        let ended = tunnelled(async |mut client, mut app| {
            client.write_all(b"all").await.unwrap();
            client.shutdown().await.unwrap();
            assert_eq!(read_to_end(&mut app).await, b"all");
            sleep(Duration::from_secs(3_600)).await;
            let answer = b"a long answer ".repeat(1_000);
            let (sent, read) = tokio::join!(app.write_all(&answer), async {
                let mut read = vec![0; answer.len()];
                client.read_exact(&mut read).await.unwrap();
                read
            });
            sent.unwrap();
            assert_eq!(read, answer);
            app.shutdown().await.unwrap();
            assert!(read_to_end(&mut client).await.is_empty());
        })
        .await;
        ended.unwrap();
    }

    #[test]
    fn no_tunnel_carries_requests_past_the_limits() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "websocket", Some("websocket")),
            ("keep-alive, upgrade", "websocket", Some("websocket")),
            ("keep-alive", "websocket", None),
            ("upgrade", "h2c", None),
            ("upgrade", "HTTP/2.0", None),
            ("upgrade", "H2C-17, h2-14, HTTP", None),
            ("upgrade", "h2x", Some("h2x")),
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
