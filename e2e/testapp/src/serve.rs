//! The app: an HTTP server with a few paths for tests, which counts the requests that reach it.
//!
//! The app must never limit requests itself, so that every refusal in a test comes from the limiter in front of it.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::{conn::auto, graceful::GracefulShutdown},
};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use crate::{
    answers::{Body, json, text},
    grpc::Grpc,
    websocket,
};

const CHUNK: usize = 64 * 1024;
const MAX_BYTES: usize = 1 << 30;
const MAX_DELAY: Duration = Duration::from_secs(60);

/// The settings of the server.
#[derive(clap::Args)]
pub struct ServeArgs {
    /// Address to listen on; port 0 selects a free port
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Write the bound address to this file, as {"listen": "…"}
    #[arg(long)]
    addresses_file: Option<PathBuf>,
    /// Seconds after SIGTERM in which requests in flight can finish
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain: u64,
}

/// Serves until SIGTERM or SIGINT, and then finishes requests in flight.
///
/// # Errors
/// The address cannot be bound, or the addresses file cannot be written.
pub async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    eprintln!("weir-testapp: listening on {address}");
    if let Some(path) = &args.addresses_file {
        // The file is written under a temporary name and renamed, so that readers never read a partial file.
        let draft = path.with_extension("part");
        std::fs::write(&draft, serde_json::json!({ "listen": address.to_string() }).to_string())
            .and_then(|()| std::fs::rename(&draft, path))
            .with_context(|| format!("write {}", path.display()))?;
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let graceful = GracefulShutdown::new();
    let app = Arc::new(App::new());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    eprintln!("weir-testapp: accept: {error}");
                    continue;
                }
            },
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        };
        // Without TCP_NODELAY, the last small segment of a response waits for the peer's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let app = Arc::clone(&app);
        let service = service_fn(move |request| {
            let app = Arc::clone(&app);
            async move { Ok::<_, Infallible>(app.answer(request).await) }
        });
        // The server accepts HTTP/1.1 with WebSocket, and HTTP/2 with prior knowledge.
        let connection = auto::Builder::new(TokioExecutor::new())
            .serve_connection_with_upgrades(TokioIo::new(stream), service)
            .into_owned();
        tokio::spawn(graceful.watch(connection));
    }
    drop(listener);
    // After the drain time the process ends, even if requests are in flight: a slow client must not keep the pod
    // running.
    let _ = tokio::time::timeout(Duration::from_secs(args.drain), graceful.shutdown()).await;
    Ok(())
}

struct App {
    hostname: String,
    requests: AtomicU64,
    grpc: Grpc,
}

impl App {
    fn new() -> Self {
        let hostname = std::env::var("HOSTNAME")
            .or_else(|_| std::fs::read_to_string("/etc/hostname"))
            .map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
        Self { hostname, requests: AtomicU64::new(0), grpc: Grpc::new() }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path();
        if !matches!(path, "/_count" | "/healthz") {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
        if Grpc::is_call(&request) {
            return self.grpc.call(request).await;
        }
        match path {
            "/" => text(StatusCode::OK, format!("{}\n", self.hostname)),
            "/_count" => json(&serde_json::json!({ "requests": self.requests.load(Ordering::Relaxed) })),
            "/echo" => echo(request),
            "/ws" => websocket::echo(request),
            "/slow" => match delay(request.uri().query()) {
                Some(delay) => {
                    tokio::time::sleep(delay).await;
                    text(StatusCode::OK, "slow\n".to_owned())
                }
                None => text(StatusCode::BAD_REQUEST, "use /slow?ms=N with N from 0 to 60000\n".to_owned()),
            },
            _ => match path.strip_prefix("/bytes/").map(str::parse::<usize>) {
                Some(Ok(length)) if length <= MAX_BYTES => bytes(length),
                Some(_) => text(StatusCode::BAD_REQUEST, format!("use /bytes/N with N from 0 to {MAX_BYTES}\n")),
                None => text(StatusCode::OK, "ok\n".to_owned()),
            },
        }
    }
}

/// Returns the request's body frame by frame. A client receives the beginning of its body before it has sent the end.
fn echo(request: Request<Incoming>) -> Response<Body> {
    let content_type = request.headers().get(CONTENT_TYPE).cloned();
    let mut response = Response::new(request.into_body().map_err(Into::into).boxed_unsync());
    if let Some(value) = content_type {
        response.headers_mut().insert(CONTENT_TYPE, value);
    }
    response
}

fn bytes(length: usize) -> Response<Body> {
    static BLOCK: [u8; CHUNK] = [b'w'; CHUNK];
    let frames = (0..length.div_ceil(CHUNK)).map(move |index| {
        let rest = length - index * CHUNK;
        Ok(Frame::data(Bytes::from_static(&BLOCK[..rest.min(CHUNK)])))
    });
    Response::new(StreamBody::new(futures::stream::iter(frames)).boxed_unsync())
}

fn delay(query: Option<&str>) -> Option<Duration> {
    let millis = query?.split('&').find_map(|pair| pair.strip_prefix("ms="))?;
    let delay = Duration::from_millis(millis.parse().ok()?);
    (delay <= MAX_DELAY).then_some(delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_read_from_the_query_and_bounded() {
        assert_eq!(delay(Some("ms=250")), Some(Duration::from_millis(250)));
        assert_eq!(delay(Some("a=b&ms=0")), Some(Duration::ZERO));
        assert_eq!(delay(Some("ms=60001")), None);
        assert_eq!(delay(Some("ms=-1")), None);
        assert_eq!(delay(None), None);
    }

    #[tokio::test]
    async fn bytes_has_exactly_the_length_asked_for() {
        for length in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let body = bytes(length).into_body().collect().await.expect("the app's body has no errors").to_bytes();
            assert_eq!(body.len(), length);
        }
    }
}
