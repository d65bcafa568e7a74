//! The app behind the proxies. It gives the same answer to every request, over HTTP/1.1 and HTTP/2 with prior
//! knowledge.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

static SMALL: &[u8] = b"hello, world\n";
/// The large body, of 64 KiB.
static LARGE: [u8; 65_536] = [b'x'; 65_536];

/// The size of the body of `/…/large`.
pub(super) const LARGE_BYTES: u64 = LARGE.len() as u64;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;

/// How long the answer of `/…/hang` takes.
const HANG: Duration = Duration::from_secs(10);

/// A running app, which serves until this program ends.
pub(crate) struct Upstream {
    address: SocketAddr,
}

impl Upstream {
    /// Starts the app on a separate thread.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let listener = {
            let _entered = runtime.enter();
            listen().context("bind the app")?
        };
        let address = listener.local_addr().context("bind the app")?;
        std::thread::Builder::new()
            .name("app".to_owned())
            .spawn(move || runtime.block_on(serve(listener)))
            .context("start the app")?;
        Ok(Self { address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// A listener with room for a crowd: with std's 128, the connections of a proxy would be dropped, and tried again a
/// second later. Call it on a runtime.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    socket.listen(BACKLOG)
}

/// Accepts the next connection. Accepting fails only if no file descriptor is free. Then the clients also report the
/// failure.
pub(crate) async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            return stream;
        }
        tokio::task::yield_now().await;
    }
}

async fn serve(listener: TcpListener) {
    loop {
        let stream = accept(&listener).await;
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            // An error is ignored, because the client counts broken connections.
            let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path().ends_with("/hang") {
        // Longer than any caller waits.
        tokio::time::sleep(HANG).await;
    }
    let body = if request.uri().path().ends_with("/large") { &LARGE[..] } else { SMALL };
    let mut response = Response::new(Full::new(Bytes::from_static(body)));
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain"));
    Ok(response)
}
