//! The app behind the agent. It serves bodies of all sizes and speeds, uploads, and a WebSocket that echoes messages. A
//! restart closes all its connections.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::oneshot,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::server::create_response, protocol::Role},
};
use tokio_util::sync::CancellationToken;

use crate::proxy::accept;

/// The sizes of `/large` and `/huge` in bytes.
pub(super) const LARGE: usize = 1 << 20;
pub(super) const HUGE: usize = 16 << 20;
static ZEROES: [u8; HUGE] = [0; HUGE];

/// The time for which the app is down during a restart.
const GAP: Duration = Duration::from_millis(300);
const SLOW: Duration = Duration::from_millis(200);
const DRIP: Duration = Duration::from_millis(30);
const DRIPS: usize = 10;

type Body = UnsyncBoxBody<Bytes, Infallible>;

pub(super) struct App {
    address: SocketAddr,
    /// A socket that reserves the port while the app is down, so that no outgoing connection can get it.
    _place: TcpSocket,
    changes: Changes,
    running: Option<Running>,
}

/// A counter that clients use to detect restarts. It increases when the app stops or starts, and is odd while the app
/// is down.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes(Arc<AtomicU64>);

impl Changes {
    pub(super) fn now(&self) -> u64 {
        self.0.load(SeqCst)
    }

    /// Returns true if the app has been running since `moment`, a value of the counter.
    pub(super) fn none_since(&self, moment: u64) -> bool {
        moment.is_multiple_of(2) && self.now() == moment
    }

    fn change(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

struct Running {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl App {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let place = socket("127.0.0.1:0".parse().context("an address")?)?;
        let address = place.local_addr().context("read the address")?;
        let running = Some(run(address).await?);
        Ok(Self { address, _place: place, changes: Changes::default(), running })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn changes(&self) -> Changes {
        self.changes.clone()
    }

    /// Stops and starts the app repeatedly, and finally leaves it stopped. Returns the number of restarts.
    pub(super) async fn keep_restarting(mut self, every: Duration, stop: CancellationToken) -> u64 {
        let mut restarts = 0;
        while stop.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            self.changes.change();
            self.leave().await;
            tokio::time::sleep(GAP).await;
            self.running = Some(run(self.address).await.expect("the port is reserved"));
            self.changes.change();
            restarts += 1;
        }
        self.changes.change();
        self.leave().await;
        restarts
    }

    async fn leave(&mut self) {
        let Some(Running { stop, thread }) = self.running.take() else { return };
        // If sending fails, the dropped sender also stops the app.
        let _ = stop.send(());
        let _ = tokio::task::spawn_blocking(|| thread.join()).await;
    }
}

/// Creates a socket that can share its port with other sockets.
fn socket(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let socket = TcpSocket::new_v4().context("make a socket")?;
    socket.set_reuseaddr(true).and_then(|()| socket.set_reuseport(true)).context("share the app's port")?;
    socket.bind(address).with_context(|| format!("bind the app to {address}"))?;
    Ok(socket)
}

/// Runs the app on a separate thread. When the thread ends, all connections are closed.
async fn run(address: SocketAddr) -> anyhow::Result<Running> {
    let (stop, stopped) = oneshot::channel();
    let (tell, listening) = oneshot::channel();
    let serve = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = socket(address)?.listen(1024)?;
            let _ = tell.send(());
            tokio::select! {
                () = serve_clients(listener) => {}
                _ = stopped => {}
            }
            Ok::<_, anyhow::Error>(())
        })
    };
    let thread = std::thread::Builder::new().name("app".to_owned());
    let thread = thread.spawn(move || serve().unwrap_or_else(|error: anyhow::Error| eprintln!("soak: app: {error:#}")));
    let thread = thread.context("start the app")?;
    listening.await.context("the app does not listen")?;
    Ok(Running { stop, thread })
}

async fn serve_clients(listener: TcpListener) {
    loop {
        let stream = accept(&listener).await;
        tokio::spawn(async move {
            let http = auto::Builder::new(TokioExecutor::new());
            // An error is ignored, because the client counts broken connections.
            let _ = http.serve_connection_with_upgrades(TokioIo::new(stream), service_fn(answer)).await;
        });
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let response = match request.uri().path() {
        "/large" => plain(Bytes::from_static(&ZEROES[..LARGE])),
        "/huge" => plain(Bytes::from_static(&ZEROES)),
        "/upload" => upload(request.into_body()).await,
        "/ws" => websocket(request),
        "/drip" => dripping(),
        "/slow" => {
            tokio::time::sleep(SLOW).await;
            plain("slow")
        }
        _ => plain("ok"),
    };
    Ok(response)
}

fn plain(body: impl Into<Bytes>) -> Response<Body> {
    Response::new(Full::new(body.into()).boxed_unsync())
}

fn with_status(status: StatusCode) -> Response<Body> {
    let mut response = plain("");
    *response.status_mut() = status;
    response
}

/// Responds with the length of the request's body, if the body is complete.
async fn upload(mut body: Incoming) -> Response<Body> {
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return with_status(StatusCode::BAD_REQUEST) };
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
    plain(bytes.to_string())
}

/// Responds with a slow body: some bytes after each pause, and a trailer at its end.
fn dripping() -> Response<Body> {
    let drips = futures::stream::iter(0..=DRIPS).then(|drip| async move {
        tokio::time::sleep(DRIP).await;
        let mut trailers = HeaderMap::new();
        trailers.insert("x-drips", http::HeaderValue::from(DRIPS));
        let frame = if drip == DRIPS { Frame::trailers(trailers) } else { Frame::data(Bytes::from_static(b"drip\n")) };
        Ok(frame)
    });
    Response::new(StreamBody::new(drips).boxed_unsync())
}

/// Accepts a WebSocket, and echoes every message.
fn websocket(mut request: Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, _) = request.into_parts();
    let Ok(switching) = create_response(&Request::from_parts(parts, ())) else {
        return with_status(StatusCode::BAD_REQUEST);
    };
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let mut messages = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        while let Some(Ok(message)) = messages.next().await {
            if (message.is_text() || message.is_binary()) && messages.send(message).await.is_err() {
                break;
            }
        }
    });
    switching.map(|()| Full::default().boxed_unsync())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_app_was_there_only_if_nothing_changed() {
        let changes = Changes::default();
        let before = changes.now();
        assert!(changes.none_since(before));
        changes.change();
        assert!(!changes.none_since(before));
        assert!(!changes.none_since(changes.now()), "the app is down");
        changes.change();
        assert!(!changes.none_since(before), "the app was down");
        assert!(changes.none_since(changes.now()));
    }
}
