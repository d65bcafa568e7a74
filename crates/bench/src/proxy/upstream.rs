//! The app behind the proxies. It gives the same answer to every request, over HTTP/1.1 and HTTP/2 with prior
//! knowledge.

use std::{convert::Infallible, io, net::SocketAddr, time::Duration};

use anyhow::Context as _;
use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Builder,
};

static SMALL: &[u8] = b"hello, world\n";
/// The large body, of 64 KiB.
static LARGE: [u8; 65_536] = [b'x'; 65_536];

/// The size of the body of `/…/large`.
pub(super) const LARGE_BYTES: u64 = LARGE.len() as u64;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 4096;

/// How long the answer of `/…/hang` takes.
const HANG: Duration = Duration::from_secs(10);

/// Starts the app, which serves until this program ends. Returns its address.
pub(crate) fn start() -> anyhow::Result<SocketAddr> {
    let app = |stream| async move {
        let http = auto::Builder::new(TokioExecutor::new());
        // An error is ignored, because the client counts broken connections.
        let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
    };
    let [address] = start_apps([app])?;
    Ok(address)
}

/// Starts apps on a thread of their own, where they serve connections until this program ends. Returns their addresses.
pub(crate) fn start_apps<F, const N: usize>(
    apps: [impl Fn(TcpStream) -> F + Send + 'static; N],
) -> anyhow::Result<[SocketAddr; N]>
where
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let listeners: Vec<_> = {
        let _entered = runtime.enter();
        apps.iter().map(|_| listen()).collect::<Result<_, _>>().context("bind an app")?
    };
    let addresses: Vec<_> =
        listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().context("bind an app")?;
    let serve = move || -> Vec<Infallible> {
        let serve = listeners.into_iter().zip(apps).map(|(listener, app)| async move {
            loop {
                let stream = accept(&listener).await;
                tokio::spawn(app(stream));
            }
        });
        runtime.block_on(join_all(serve))
    };
    std::thread::Builder::new().name("app".to_owned()).spawn(serve).context("start an app")?;
    Ok(std::array::from_fn(|place| addresses[place]))
}

/// A listener with room for a crowd: with std's 128, the connections of a proxy would be dropped, and tried again a
/// second later. Call it on a runtime.
fn listen() -> io::Result<TcpListener> {
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
