//! The protected app, as one worker uses it: its address, its protocol, and the connections to it.
//!
//! Only the worker's thread uses an [`App`]. Its parts are `Send` because axum requires this of a service. Their locks
//! are never contended.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::Version;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync,
    time::timeout,
};

use super::{pool::Pool, streams::Streams};
use crate::proxy::{
    app::{AppAddress, ConnectError},
    settings::UpstreamHttp2,
};

/// A connection that was idle for a whole interval is closed. App servers close idle connections after 2 s or more, so
/// the app rarely closes a connection while the agent uses it. Connecting on loopback is cheap.
pub(in super::super) const IDLE_CHECK: Duration = Duration::from_secs(1);

/// The number of checks for which the agent remembers that the app does not support HTTP/2. After this time, another
/// app may have replaced it.
const HTTP1_ALONE_CHECKS: u32 = 30;

/// The HTTP/2 preface with empty settings, and the byte that shows an HTTP/2 response: the type in the head of the
/// first frame, which must be SETTINGS (RFC 9113 section 3.4).
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const FRAME_HEAD: usize = 9;
const FRAME_TYPE: usize = 3;
const SETTINGS: u8 = 4;

/// The time limit for the app's answer to the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(in super::super) struct App {
    address: Arc<AppAddress>,
    when: UpstreamHttp2,
    speaks: Mutex<Known>,
    /// Locked while a request asks the app, so that a burst of requests opens one connection for that.
    asking: sync::Mutex<()>,
    pub(super) pool: Arc<Pool>,
    pub(super) streams: Streams,
}

/// What the agent knows about the app's protocol.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    speaks: AppProtocol,
    /// The number of answers and failures so far.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AppProtocol {
    #[default]
    Unknown,
    Http2,
    /// HTTP/1 only, for this many more checks.
    Http1Alone(u32),
}

/// The connection that carries a request to the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl App {
    pub(in super::super) fn new(address: &Arc<AppAddress>, when: UpstreamHttp2) -> Arc<Self> {
        let (pool, streams) = (Pool::new(Arc::clone(address)), Streams::new(Arc::clone(address)));
        let address = Arc::clone(address);
        Arc::new(Self { address, when, speaks: Mutex::default(), asking: sync::Mutex::default(), pool, streams })
    }

    pub(in super::super) fn address(&self) -> SocketAddr {
        self.address.named()
    }

    /// Chooses the protocol for a request that the client sent over `version`.
    pub(super) async fn protocol(&self, version: Version, upgrade: bool) -> Result<Protocol, ConnectError> {
        let http2 = match self.when {
            UpstreamHttp2::Never => false,
            UpstreamHttp2::Always => !upgrade,
            UpstreamHttp2::Auto => version == Version::HTTP_2 && self.speaks_http2().await?,
        };
        Ok(if http2 { Protocol::Http2 } else { Protocol::Http1 })
    }

    /// Closes idle connections. Call this function every [`IDLE_CHECK`].
    pub(in super::super) fn close_idle(&self) {
        self.pool.close_idle();
        self.streams.close_idle();
        let speaks = &mut self.known().speaks;
        if let AppProtocol::Http1Alone(checks) = speaks {
            *speaks = checks.checked_sub(1).map_or(AppProtocol::Unknown, AppProtocol::Http1Alone);
        }
    }

    async fn speaks_http2(&self) -> Result<bool, ConnectError> {
        let before = *self.known();
        match before.speaks {
            AppProtocol::Http2 if self.streams.any() => return Ok(true),
            AppProtocol::Http1Alone(_) => return Ok(false),
            // No connection is open, so another program may now listen on the address.
            AppProtocol::Http2 | AppProtocol::Unknown => {}
        }
        let turn = self.asking.lock().await;
        let now = *self.known();
        if now.asked == before.asked {
            return Box::pin(self.ask()).await;
        }
        // Another request has asked in the meantime.
        drop(turn);
        if now.speaks == AppProtocol::Unknown {
            // It did not reach the app. All requests that waited for it try that at the same time.
            return Box::pin(self.ask()).await;
        }
        Ok(now.speaks == AppProtocol::Http2)
    }

    async fn ask(&self) -> Result<bool, ConnectError> {
        let answer = match self.address.connect().await {
            Ok(stream) => Ok(greet(stream).await),
            Err(error) => Err(error),
        };
        let mut known = self.known();
        known.asked += 1;
        known.speaks = match answer {
            Ok(true) => AppProtocol::Http2,
            Ok(false) => AppProtocol::Http1Alone(HTTP1_ALONE_CHECKS),
            Err(_) => AppProtocol::Unknown,
        };
        answer
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.speaks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the peer answers in HTTP/2. An HTTP/1 app treats the greeting as a malformed request.
async fn greet(mut stream: TcpStream) -> bool {
    let mut head = [0; FRAME_HEAD];
    let ask = async {
        stream.write_all(GREETING).await?;
        stream.read_exact(&mut head).await
    };
    matches!(timeout(GREETING_TIMEOUT, ask).await, Ok(Ok(_))) && head[FRAME_TYPE] == SETTINGS
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use futures::future::join_all;
    use tokio::net::TcpListener;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// An app that answers each greeting, and the number of connections that it has accepted.
    async fn app(answer: &'static [u8]) -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (address, accepted) = (listener.local_addr().expect("an address"), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&accepted);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                count.fetch_add(1, Relaxed);
                stream.write_all(answer).await.expect("write");
            }
        });
        (address, accepted)
    }

    fn at(address: SocketAddr) -> Arc<App> {
        let listen = SocketAddr::from(([127, 0, 0, 1], 1));
        App::new(&Arc::new(AppAddress::new(address, listen, &CancellationToken::new())), UpstreamHttp2::Auto)
    }

    async fn ask(app: &App, requests: usize) -> Vec<bool> {
        let all = join_all((0..requests).map(|_| app.protocol(Version::HTTP_2, false))).await;
        all.into_iter().map(|protocol| protocol.expect("reached") == Protocol::Http2).collect()
    }

    /// Otherwise a burst opens one connection for each request.
    #[tokio::test]
    async fn a_burst_of_requests_asks_the_app_once_for_its_protocol() {
        for (answer, speaks_http2) in [(&b"\0\0\0\x04\0\0\0\0\0"[..], true), (b"HTTP/1.1 400 Bad Request\r\n", false)] {
            let (address, accepted) = app(answer).await;
            let app = at(address);
            assert_eq!(ask(&app, 200).await, [speaks_http2; 200]);
            assert_eq!(accepted.load(Relaxed), 1);
            // If the app speaks HTTP/2, no connection is open now, so another program may listen on the address.
            assert_eq!(ask(&app, 200).await, [speaks_http2; 200]);
            assert_eq!(accepted.load(Relaxed), 1 + usize::from(speaks_http2));
        }
    }

    #[tokio::test]
    async fn requests_that_waited_for_an_app_that_is_down_find_out_themselves() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let app = at(address);
        let all = join_all((0..20).map(|_| app.protocol(Version::HTTP_2, false))).await;
        assert!(all.iter().all(|protocol| matches!(protocol, Err(ConnectError::Refused(..)))), "{all:?}");
    }
}
