//! The one listener of all agents: HTTP/2 over mutual TLS like real agents, or plain HTTP/1.1.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use bytes::Bytes;
use futures::Stream;
use futures::stream::unfold;
use http::HeaderValue;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Either, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use weir_wire::STATUS_LINES;

use super::agents::Agents;
use super::identities::Identities;

/// Pending connections: a starting operator opens thousands at once.
const BACKLOG: u32 = 8192;
/// Larger than any snapshot of these fleets.
const LONGEST: usize = 4 << 20;
/// How often an agent pings a silent operator, and how long it waits for the answer.
const PING_INTERVAL: Duration = Duration::from_secs(300);
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// The query of a client that wants a stream of statuses.
const EVERY: &str = "everyMillis=";
/// Lines are sent at the start of a tenth of a second, in nanoseconds.
const TENTH: u32 = 100_000_000;

/// Listens on a free port, and returns it.
pub(super) fn listen() -> anyhow::Result<(TcpListener, u16)> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let listener = socket.listen(BACKLOG).context("listen for the agents")?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Answers for all agents, for ever. Uses plain HTTP without `identities`.
pub(super) async fn serve(
    listener: TcpListener,
    agents: Arc<Agents>,
    identities: Option<Arc<Identities>>,
) -> Infallible {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                eprintln!("fleet: cannot take a connection: {error}");
                tokio::task::yield_now().await;
                continue;
            }
        };
        // Other machines can reach this port, too, but no agent has the address that they use.
        let number = match stream.local_addr().map(|address| address.ip()) {
            Ok(IpAddr::V4(address)) => agents.number(address),
            _ => None,
        };
        if let Some(number) = number
            && stream.set_nodelay(true).is_ok()
        {
            let (agents, identities) = (agents.clone(), identities.clone());
            tokio::spawn(converse(number, agents, identities, stream));
        }
    }
}

/// The outcome does not matter: the operator connects again.
async fn converse(number: usize, agents: Arc<Agents>, identities: Option<Arc<Identities>>, stream: TcpStream) {
    let service = service_fn(move |request| {
        let agents = agents.clone();
        async move { anyhow::Ok(answer(number, &agents, request).await?) }
    });
    let Some(identities) = identities else {
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        return;
    };
    let Some(server) = identities.server(number) else { return };
    let Ok(stream) = TlsAcceptor::from(server).accept(stream).await else { return };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new()).keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

type Body = Either<Full<Bytes>, BoxBody<Bytes, Infallible>>;

async fn answer(number: usize, agents: &Arc<Agents>, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let every = head.uri.query().and_then(|query| query.strip_prefix(EVERY));
    if let Some(every) = every {
        let every = Duration::from_millis(every.parse()?);
        let lines = StreamBody::new(lines(number, agents.clone(), every));
        return Ok(Response::builder()
            .header(CONTENT_TYPE, STATUS_LINES)
            .body(Either::Right(BodyExt::boxed(lines)))?);
    }
    let body = Limited::new(body, LONGEST).collect().await.map_err(anyhow::Error::from_boxed)?.to_bytes();
    let known = head.headers.get(IF_NONE_MATCH).map(HeaderValue::as_bytes);
    let answer = agents.answer(number, head.method.as_str(), head.uri.path(), known, &body);
    let mut response = Response::builder().status(answer.code);
    if !answer.body.is_empty() {
        response = response.header(CONTENT_TYPE, "application/json");
    }
    if let Some(tag) = &answer.tag {
        response = response.header(ETAG, tag);
    }
    Ok(response.body(Either::Left(Full::new(answer.given().into())))?)
}

/// One line at once, and then one per interval, like real agents.
fn lines(
    number: usize,
    agents: Arc<Agents>,
    every: Duration,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + Sync {
    unfold((agents, Duration::ZERO, None), move |(agents, pause, mut told)| async move {
        sleep(pause).await;
        let line = agents.line(number, &mut told);
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let pause = every - every.min(Duration::from_nanos(u64::from(since_1970.subsec_nanos() % TENTH)));
        Some((Ok(Frame::data(line)), (agents, pause, told)))
    })
}
