//! The WebSocket endpoint of the app, which sends every message back.

use futures::{SinkExt as _, StreamExt as _};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::server::create_response, protocol::Role},
};

use crate::answers::{Body, text};

/// Accepts the upgrade, and then echoes messages until the client closes the connection.
pub(crate) fn echo(mut request: Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let switching = match create_response(&Request::from_parts(parts, ())) {
        Ok(switching) => switching,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("open a WebSocket connection: {error}\n")),
    };
    tokio::spawn(async move {
        let Ok(stream) = upgrade.await else { return };
        let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Server, None).await;
        while let Some(Ok(message)) = socket.next().await {
            if (message.is_text() || message.is_binary()) && socket.send(message).await.is_err() {
                return;
            }
        }
    });
    switching.map(|()| Empty::new().map_err(|never| match never {}).boxed_unsync())
}
