//! Tests SIGTERM under load: every request in flight gets its complete response, and no connection is reset.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::AsyncReadExt,
    sync::{mpsc, watch},
};

use crate::support::{Agent, App, Body, empty};

const PART: usize = 64 * 1024;
const PARTS: usize = 16;

/// An app whose responses begin immediately and continue when the test sends `true`.
async fn slow_app(http2: bool) -> (App, mpsc::UnboundedReceiver<()>, watch::Sender<bool>) {
    let (go, wait) = watch::channel(false);
    let (tell, begun) = mpsc::unbounded_channel();
    let handle = move |_: Request<Incoming>| {
        let (tell, mut wait) = (tell.clone(), wait.clone());
        async move {
            let (send, mut parts) = mpsc::channel::<Bytes>(1);
            tokio::spawn(async move {
                let _ = send.send(vec![0; PART].into()).await;
                tell.send(()).expect("the test waits");
                wait.wait_for(|go| *go).await.expect("the test continues");
                for part in 1..PARTS {
                    let part = u8::try_from(part).expect("small");
                    let _ = send.send(vec![part; PART].into()).await;
                }
            });
            let stream = futures::stream::poll_fn(move |cx| parts.poll_recv(cx));
            let frames = futures::StreamExt::map(stream, |part| Ok(Frame::data(part)));
            Response::new(BodyExt::boxed(StreamBody::new(frames)))
        }
    };
    let app = if http2 { App::serve_http2(handle).await } else { App::serve(handle).await };
    (app, begun, go)
}

async fn check(response: Response<Incoming>) {
    let bytes = response.into_body().collect().await.expect("a complete body").to_bytes();
    assert_eq!(bytes.len(), PART * PARTS);
    assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / PART));
}

fn get(uri: &str) -> Request<Body> {
    Request::get(uri).header("host", "a").body(empty()).expect("valid")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_everything_in_flight() {
    const HTTP1: usize = 50;
    const STREAMS: usize = 50;
    for app_http2 in [false, true] {
        let (app, mut begun, go) = slow_app(app_http2).await;
        let more = ["--drain", "60s", "--upstream-http2", if app_http2 { "always" } else { "never" }];
        let mut agent = Agent::start(app.address, &more);
        let connect = || async { TokioIo::new(agent.connect().await) };

        let mut answers = Vec::new();
        for _ in 0..HTTP1 {
            let (mut sender, connection) = http1::handshake(connect().await).await.expect("HTTP");
            let connection = tokio::spawn(connection);
            answers.push(tokio::spawn(async move {
                check(sender.send_request(get("/")).await.expect("a response")).await;
                connection.await.expect("the task ran").expect("a clean close");
            }));
        }
        for _ in 0..2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), connect().await).await.expect("HTTP/2");
            let connection = tokio::spawn(connection);
            let streams: Vec<_> = (0..STREAMS / 2)
                .map(|_| {
                    let mut sender = sender.clone();
                    tokio::spawn(async move {
                        check(sender.send_request(get("http://a/")).await.expect("a response")).await;
                    })
                })
                .collect();
            answers.push(tokio::spawn(async move {
                for stream in streams {
                    stream.await.expect("a complete response");
                }
                connection.await.expect("the task ran").expect("a clean close");
            }));
        }
        for _ in 0..HTTP1 + STREAMS {
            begun.recv().await.expect("the app is asked");
        }
        let mut idle = agent.connect().await;
        while !agent.telemetry("/metrics").await.1.contains(&format!("weir_connections {}\n", HTTP1 + 3)) {
            tokio::task::yield_now().await;
        }
        agent.terminate();
        assert_eq!(idle.read(&mut [0; 1]).await.expect("a clean close"), 0);
        assert_eq!(agent.telemetry("/readyz").await.0, 503);
        go.send(true).expect("the app waits");
        for answer in answers {
            tokio::time::timeout(Duration::from_secs(60), answer)
                .await
                .expect("before the timeout")
                .expect("a complete response");
        }
        assert_eq!(tokio::task::spawn_blocking(move || agent.wait().code()).await.expect("the agent ended"), Some(0));
    }
}
