//! Tests an HTTP/2 app that restarts between requests and during requests.

use std::{convert::Infallible, net::SocketAddr, time::Duration};

use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

use crate::support::{Agent, Body, PATIENCE, body, empty};

/// An app whose connections the test can break together, as if the process were killed.
struct RestartingApp {
    address: SocketAddr,
    lives: watch::Sender<u64>,
    /// Reports the requests that hang.
    hanging: mpsc::UnboundedReceiver<String>,
}

impl RestartingApp {
    /// Starts an app that does not answer `/hang` before its first restart.
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (lives, life) = watch::channel(0);
        let (tell, hanging) = mpsc::unbounded_channel();
        tokio::spawn(serve(listener, life, tell));
        Self { address, lives, hanging }
    }

    /// Breaks all connections. Afterwards, the app answers all requests.
    fn restart(&self) {
        self.lives.send_modify(|life| *life += 1);
    }
}

async fn serve(listener: TcpListener, mut life: watch::Receiver<u64>, tell: mpsc::UnboundedSender<String>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Ok((stream, _)) = listener.accept() => {
                let (now, tell) = (*life.borrow(), tell.clone());
                let service = service_fn(move |request| {
                    let tell = tell.clone();
                    async move { Ok::<_, Infallible>(answer(request, now, tell).await) }
                });
                // The service runs in the connection's task, so that it ends together with the connection.
                let server = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
                connections.spawn(server);
            }
            changed = life.changed() => {
                if changed.is_err() {
                    return;
                }
                connections.shutdown().await;
            }
        }
    }
}

async fn answer(request: Request<Incoming>, life: u64, tell: mpsc::UnboundedSender<String>) -> Response<Body> {
    let (head, sent) = request.into_parts();
    sent.collect().await.expect("a body");
    if life == 0 && head.uri.path() == "/hang" {
        tell.send(head.method.to_string()).expect("the test waits");
        std::future::pending::<()>().await;
    }
    Response::new(body(format!("life {life}")))
}

fn request(method: &str, path: &str, body: Body) -> Request<Body> {
    Request::builder().method(method).uri(format!("http://shop.example.com{path}")).body(body).expect("valid")
}

async fn said(answer: impl Future<Output = hyper::Result<Response<Incoming>>>) -> (u16, String) {
    let whole = async {
        let (head, body) = answer.await.expect("a response").into_parts();
        (head.status.as_u16(), body.collect().await.expect("a complete body").to_bytes())
    };
    let (status, bytes) = timeout(PATIENCE, whole).await.expect("answered before the timeout");
    (status, String::from_utf8(bytes.to_vec()).expect("text"))
}

#[tokio::test]
async fn a_restart_between_requests_fails_no_retryable_request() {
    let app = RestartingApp::start().await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let mut sender = agent.http2().await;
    for life in 0..5 {
        assert_eq!(said(sender.send_request(request("GET", "/", empty()))).await, (200, format!("life {life}")));
        assert_eq!(said(sender.send_request(request("POST", "/", body("x")))).await, (200, format!("life {life}")));
        app.restart();
    }
    assert_eq!(agent.metric("weir_upstream_errors_total{reason=\"closed\"}").await, Some(0.0));
}

#[tokio::test]
async fn a_restart_during_requests_fails_those_that_may_have_been_processed() {
    let mut app = RestartingApp::start().await;
    let agent = Agent::start(app.address, &["--workers", "1"]);
    let mut sender = agent.http2().await;
    // This request opens the connection that the failing requests use.
    assert_eq!(said(sender.send_request(request("GET", "/", empty()))).await.0, 200);
    let mut hang = |method, body| tokio::spawn(sender.send_request(request(method, "/hang", body)));
    let (idempotent, with_body, other) = (hang("GET", empty()), hang("PUT", body("x")), hang("POST", empty()));
    for _ in 0..3 {
        timeout(PATIENCE, app.hanging.recv()).await.expect("asked before the timeout").expect("the request hangs");
    }
    app.restart();
    let outcome = async |answer: tokio::task::JoinHandle<_>| said(async { answer.await.expect("no panic") }).await;
    assert_eq!(outcome(idempotent).await, (200, "life 1".to_owned()), "the request was sent again");
    // One request's body cannot be sent again, and the other request may have been processed.
    assert_eq!(outcome(with_body).await.0, 502);
    assert_eq!(outcome(other).await.0, 502);
    assert_eq!(said(sender.send_request(request("POST", "/", body("x")))).await, (200, "life 1".to_owned()));
    assert_eq!(agent.metric("weir_upstream_errors_total{reason=\"closed\"}").await, Some(2.0));
}

#[tokio::test]
async fn requests_fail_at_once_while_the_app_is_down_and_work_afterwards() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (_lives, life) = watch::channel(1);
    let (tell, _hanging) = mpsc::unbounded_channel();
    let first = tokio::spawn(serve(listener, life.clone(), tell.clone()));
    let agent = Agent::start(address, &["--workers", "1", "--upstream-http2", "always"]);
    // Each request uses a new connection, because a connection closes if the app refuses its request.
    let get = async || {
        let mut sender = agent.http2().await;
        said(sender.send_request(request("GET", "/", empty()))).await
    };
    assert_eq!(get().await, (200, "life 1".to_owned()));
    first.abort();
    let _ = first.await;
    let down = timeout(Duration::from_secs(30), async {
        while get().await.0 != 502 {
            tokio::task::yield_now().await;
        }
    });
    down.await.expect("the agent detects that the app is down");
    let listener = TcpListener::bind(address).await.expect("the port is free");
    tokio::spawn(serve(listener, life, tell));
    assert_eq!(get().await, (200, "life 1".to_owned()));
}
