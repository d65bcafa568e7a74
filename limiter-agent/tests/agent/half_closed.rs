//! Tests peers that close their sending side: the other direction of the connection is still served to its end.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
    time::timeout,
};

use crate::support::{Agent, App, PATIENCE, accept, read_head};

/// After this many requests of other clients, the worker has processed all earlier events.
const ROUNDS: usize = 50;

/// The channel for the parts of a response.
type Parts = mpsc::Sender<Bytes>;

/// An app that passes each response that it begins to the test. The response starts with the request's body.
async fn app() -> (App, mpsc::UnboundedReceiver<Parts>) {
    let (tell, told) = mpsc::unbounded_channel();
    let app = App::serve(move |request: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            if request.uri().path() == "/other" {
                return Response::new(crate::support::body("other"));
            }
            let (send, mut parts) = mpsc::channel(1);
            let sent = request.into_body().collect().await.expect("a complete body").to_bytes();
            // Nothing is sent before the test sends a part.
            tell.send(send).expect("the test waits");
            let first = parts.recv().await.expect("the test answers");
            let parts = futures::stream::poll_fn(move |cx| parts.poll_recv(cx));
            let parts = futures::StreamExt::chain(futures::stream::iter([sent, first]), parts);
            Response::new(BodyExt::boxed(StreamBody::new(futures::StreamExt::map(parts, |part| Ok(Frame::data(part))))))
        }
    })
    .await;
    (app, told)
}

#[tokio::test]
async fn a_half_closed_client_gets_its_whole_response() {
    let (app, mut asked) = app().await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    for sent in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ] {
        let mut client = agent.connect().await;
        client.write_all(sent.as_bytes()).await.expect("sent");
        client.shutdown().await.expect("closed");
        let parts = timeout(PATIENCE, asked.recv()).await.expect("before the timeout").expect("the app was asked");
        assert!(agent.statuses("/other", &[], ROUNDS).await.iter().all(|status| *status == 200));
        let answer = tokio::spawn(async move {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.map(|_| answer)
        });
        for number in 0..ROUNDS {
            parts
                .send(format!("<{number}>").into())
                .await
                .unwrap_or_else(|_| panic!("{sent:?}: the agent has given up"));
            assert_eq!(agent.statuses("/other", &[], 1).await, [200]);
        }
        drop(parts);
        let answer = timeout(PATIENCE, answer)
            .await
            .expect("closed before the timeout")
            .expect("the task ran")
            .expect("a clean close");
        assert!(answer.contains("200 OK") && answer.contains(&format!("<{}>", ROUNDS - 1)), "{sent:?}: {answer}");
        assert_eq!(answer.contains("hello"), sent.contains("hello"), "{sent:?}: {answer}");
    }
    agent.until_metric("weir_protocol_connections{protocol=\"http1\"}", 1.0).await;
}

/// The agent reads the end before it has forwarded any byte.
#[tokio::test]
async fn a_client_that_half_closes_at_once_gets_its_whole_response() {
    let app = App::serve(async |request: Request<Incoming>| Response::new(request.into_body().boxed())).await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let long = "x".repeat(20_000);
    for sent in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_owned(),
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello".to_owned(),
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ncontent-length: 5\r\n\r\nhello".to_owned(),
        "POST / HTTP/1.1\r\nhost: a\r\nupgrade: x\r\ncontent-length: 5\r\n\r\nhello".to_owned(),
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            .to_owned(),
        format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 20005\r\n\r\n{long}hello"),
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n".to_owned(),
        format!(
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4e20\r\n{long}\r\n5\r\nhello\r\n0\r\n\r\n"
        ),
    ] {
        agent.suspend().await;
        let mut client = agent.connect().await;
        client.write_all(sent.as_bytes()).await.expect("sent");
        client.shutdown().await.expect("closed");
        agent.go_on();
        let mut answer = String::new();
        timeout(PATIENCE, client.read_to_string(&mut answer)).await.expect("closed before the timeout").expect("a clean close");
        let shown: String = sent.chars().take(100).collect();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{shown:?}: {answer:?}");
        assert_eq!(answer.contains("hello"), sent.contains("hello"), "{shown:?}: {answer:?}");
    }
}

#[tokio::test]
async fn a_client_that_half_closes_in_a_request_gets_no_response() {
    let (app, _asked) = app().await;
    let agent = Agent::start(app.address, &[]);
    for sent in [
        "GET / HTTP/1.1\r\nhost: a\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ] {
        let mut client = agent.connect().await;
        client.write_all(sent.as_bytes()).await.expect("sent");
        client.shutdown().await.expect("closed");
        let mut answer = String::new();
        timeout(PATIENCE, client.read_to_string(&mut answer))
            .await
            .expect("closed before the timeout")
            .expect("a clean close");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{sent:?}: {answer}");
    }
}

#[tokio::test]
async fn a_half_closed_app_is_read_to_its_end_and_not_reused() {
    const LENGTH: usize = 1_000_000;
    for framing in ["", "content-length: 1000000\r\n"] {
        let (tell, mut told) = mpsc::unbounded_channel();
        let app = accept(move |mut stream| {
            let tell = tell.clone();
            async move {
                read_head(&mut stream).await.expect("a head");
                let answer = format!("HTTP/1.1 200 OK\r\n{framing}\r\n{}", "x".repeat(LENGTH));
                stream.write_all(answer.as_bytes()).await.expect("sent");
                stream.shutdown().await.expect("closed");
                // The app continues to read, because no further request is allowed to arrive.
                let mut more = Vec::new();
                let _ = stream.read_to_end(&mut more).await;
                tell.send(more).expect("the test waits");
            }
        });
        let agent = Agent::start(app.await, &["--workers", "1"]);
        for _ in 0..3 {
            let answer = agent.get("/", &[]).await;
            assert_eq!((answer.status().as_u16(), answer.body().len()), (200, LENGTH), "{framing:?}");
        }
        for _ in 0..3 {
            let more =
                timeout(PATIENCE, told.recv()).await.expect("closed before the timeout").expect("one for each request");
            assert!(more.is_empty(), "{framing:?}: {}", String::from_utf8_lossy(&more));
        }
    }
}

/// The app sends an interim response after the client has closed its side. A client that waits gets both responses. If
/// the client has disconnected, the interim response causes a reset, and the app's connection is closed.
#[tokio::test]
async fn an_interim_response_shows_whether_a_half_closed_client_has_left() {
    const INTERIM: &[u8] = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
    const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let (tell, mut told) = mpsc::unbounded_channel();
    let app = accept(move |mut stream| {
        let tell = tell.clone();
        async move {
            while let Some(head) = read_head(&mut stream).await {
                if head.starts_with("GET /other ") {
                    stream.write_all(ANSWER).await.expect("sent");
                } else {
                    return tell.send(stream).expect("the test waits");
                }
            }
        }
    });
    // hyper forwards no interim responses.
    let agent = Agent::start(app.await, &["--workers", "1", "--in-place", "on"]);
    for leaves in [false, true] {
        let mut client = agent.connect().await;
        client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
        let mut app = timeout(PATIENCE, told.recv()).await.expect("before the timeout").expect("the app was asked");
        client.shutdown().await.expect("closed");
        let mut client = Some(client).filter(|_| !leaves);
        assert!(agent.statuses("/other", &[], ROUNDS).await.iter().all(|status| *status == 200));
        app.write_all(INTERIM).await.expect("sent");
        let mut read = Vec::new();
        if let Some(client) = &mut client {
            assert!(read_head(client).await.expect("a head").starts_with("HTTP/1.1 103"));
            app.write_all(ANSWER).await.expect("sent");
            timeout(PATIENCE, client.read_to_end(&mut read)).await.expect("before the timeout").expect("closed");
            assert!(read.starts_with(b"HTTP/1.1 200 OK") && read.ends_with(b"ok"), "{read:?}");
        } else {
            let ended = timeout(PATIENCE, app.read_to_end(&mut read)).await;
            assert!(ended.is_ok() && read.is_empty(), "the agent waits for the app's response");
        }
    }
}
