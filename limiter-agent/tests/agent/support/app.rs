//! The app behind the agent.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

pub(crate) type Body = BoxBody<Bytes, hyper::Error>;

pub(crate) fn body(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// Opens a WebSocket connection that echoes text.
pub(crate) fn echo(request: &mut Request<Incoming>) -> Response<Body> {
    let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let stream = TokioIo::new(upgrade.await.expect("upgraded"));
        let mut messages = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
        while let Some(Ok(message)) = messages.next().await {
            if message.is_text() && messages.send(message).await.is_err() {
                return;
            }
        }
    });
    let switching = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
    switching.header("sec-websocket-accept", accept).body(empty()).expect("valid")
}

/// A port on which no program listens. No other test can get the port while this value exists.
pub(crate) struct ClosedPort(TcpSocket);

impl ClosedPort {
    pub(crate) fn new() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        Self(socket)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.local_addr().expect("bound")
    }
}

/// Starts a server that handles each connection in a task of its own. It runs as long as the test's runtime.
pub(crate) async fn accept<F>(mut handle: impl FnMut(TcpStream) -> F + Send + 'static) -> SocketAddr
where
    F: Future<Output: Send> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handle(stream));
        }
    });
    address
}

/// An HTTP server that runs as long as the test's runtime.
pub(crate) struct App {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicU64>,
}

impl App {
    /// An app that answers every request with 200 and `ok`.
    pub(crate) async fn start() -> Self {
        Self::serve(async |_| Response::new(body("ok"))).await
    }

    /// An app that supports only HTTP/1.1.
    pub(crate) async fn serve<F, A>(handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::speaking(false, handle).await
    }

    /// An app that supports only HTTP/2.
    pub(crate) async fn serve_http2<F, A>(handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::speaking(true, handle).await
    }

    async fn speaking<F, A>(http2: bool, handle: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let address = accept(move |stream| {
            let (handle, count) = (handle.clone(), Arc::clone(&count));
            let service = service_fn(move |request| {
                count.fetch_add(1, Relaxed);
                let answer = handle(request);
                async move { Ok::<_, hyper::Error>(answer.await) }
            });
            let io = TokioIo::new(stream);
            async move {
                if http2 {
                    http2::Builder::new(TokioExecutor::new()).serve_connection(io, service).await
                } else {
                    http1::Builder::new().serve_connection(io, service).with_upgrades().await
                }
            }
        });
        Self { address: address.await, requests }
    }

    /// The number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}
