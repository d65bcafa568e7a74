//! Tests limits of HTTP/2 requests, of gRPC calls and of WebSocket messages. Each connection stays open while its limit
//! is changed.

use anyhow::{Context as _, Result, ensure};
use futures::{SinkExt as _, StreamExt as _, future::try_join_all};
use http::Request;
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{AFTER, BEFORE, enforce};
use crate::{
    direct::{self, Forward, Stream},
    namespace::TestNamespace,
    report,
};

/// The path of the gRPC method that the scenario calls.
const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(crate) async fn run(space: &TestNamespace, pod: &str) -> Result<()> {
    let (_http2, stream) = Forward::open(space, pod, direct::PROXY).await?;
    let (mut http2, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    let (_grpc, stream) = Forward::open(space, pod, direct::PROXY).await?;
    let mut grpc = HealthClient::new(channel(stream).await?);

    enforce(space, &rules(BEFORE), "").await?;
    let (_websocket, stream) = Forward::open(space, pod, direct::PROXY).await?;
    let (mut websocket, _) = client_async("ws://web/ws", stream).await.context("open a WebSocket connection")?;
    for (limit, expected) in [(BEFORE, BEFORE), (AFTER, AFTER - BEFORE)] {
        enforce(space, &rules(limit), "").await?;
        let admitted = [
            ("HTTP/2 requests", requests(&mut http2).await?),
            ("gRPC calls", calls(&mut grpc).await?),
            ("WebSocket messages", messages(&mut websocket).await?),
        ];
        for (what, admitted) in admitted {
            ensure!(admitted == expected, "{what} at {limit}: {admitted} admitted, not {expected}");
        }
    }
    report::note("HTTP/2 requests, gRPC calls and WebSocket messages, changed live: exact");
    Ok(())
}

fn rules(requests: u64) -> Vec<String> {
    let limits = format!("limits: [{{name: day, requests: {requests}, per: 24h, strategy: FixedWindow}}]");
    vec![
        format!("  - {{name: http2, match: [{{paths: [/http2]}}], {limits}}}"),
        format!("  - {{name: grpc, match: [{{paths: [{CHECK}]}}], {limits}}}"),
        format!("  - {{name: messages, match: [{{paths: [/ws]}}], per: Message, {limits}}}"),
    ]
}

async fn channel(stream: impl Stream) -> Result<Channel> {
    let mut stream = Some(TokioIo::new(stream));
    let connect = tower::service_fn(move |_| {
        let stream = stream.take().ok_or("the client opened a second connection");
        async move { stream }
    });
    Ok(Endpoint::from_static("http://web").connect_with_connector(connect).await?)
}

/// Sends twice the limit at the same time over one connection. Returns the number of admitted requests.
async fn requests(client: &mut http2::SendRequest<Empty<Bytes>>) -> Result<u64> {
    let sent = (0..2 * AFTER).map(|_| {
        let request = Request::get("http://web/http2").body(Empty::new()).expect("a valid request");
        client.send_request(request)
    });
    let answers = try_join_all(sent).await?;
    let mut admitted = 0;
    for answer in answers {
        match answer.status().as_u16() {
            200 => admitted += 1,
            429 => {}
            _ => anyhow::bail!("HTTP/2: {answer:?}"),
        }
    }
    Ok(admitted)
}

async fn calls(client: &mut HealthClient<Channel>) -> Result<u64> {
    let mut admitted = 0;
    for _ in 0..2 * AFTER {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => admitted += 1,
            Err(status) if status.code() == Code::ResourceExhausted => {}
            Err(status) => return Err(status).context("call the health service"),
        }
    }
    Ok(admitted)
}

/// Sends twice the limit, and reads one answer to each message: the echo, or the notice of a refusal.
async fn messages(socket: &mut WebSocketStream<impl Stream>) -> Result<u64> {
    let mut admitted = 0;
    for _ in 0..2 * AFTER {
        socket.send(Message::text("hello")).await?;
        let answer = socket.next().await.context("the connection ended")??.into_text()?;
        if answer.as_str() == "hello" {
            admitted += 1;
        } else {
            let notice: Value = serde_json::from_str(&answer)?;
            ensure!(notice["rule"] == "messages", "an unknown message: {notice}");
        }
    }
    Ok(admitted)
}
