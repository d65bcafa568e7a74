//! The protected app, as one worker uses it: its address, its protocol, and the connections to it.
//!
//! Only the worker's thread uses an [`App`]. Its parts are `Send` because axum requires this of a service. Their locks
//! are never contended.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::Version;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{address::AppAddress, connect::ConnectError, pool::Pool, settings::UpstreamHttp2, streams::Streams};

/// A connection that was idle for a whole interval is closed. App servers close idle connections after 2 s or more, so
/// the app rarely closes a connection while the agent uses it. Connecting on loopback is cheap.
pub(super) const IDLE_CHECK: Duration = Duration::from_secs(1);

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
pub(super) struct App {
    address: Arc<AppAddress>,
    when: UpstreamHttp2,
    speaks: Mutex<Speaks>,
    pub(super) pool: Arc<Pool>,
    pub(super) streams: Streams,
}

#[derive(Clone, Copy, Debug)]
enum Speaks {
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
    pub(super) fn new(address: &Arc<AppAddress>, when: UpstreamHttp2) -> Arc<Self> {
        let speaks = Mutex::new(Speaks::Unknown);
        let (pool, streams) = (Pool::new(Arc::clone(address)), Streams::new(Arc::clone(address)));
        Arc::new(Self { address: Arc::clone(address), when, speaks, pool, streams })
    }

    pub(super) fn address(&self) -> SocketAddr {
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
    pub(super) fn close_idle(&self) {
        self.pool.close_idle();
        self.streams.close_idle();
        let speaks = &mut *self.speaks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Speaks::Http1Alone(checks) = speaks {
            *speaks = checks.checked_sub(1).map_or(Speaks::Unknown, Speaks::Http1Alone);
        }
    }

    async fn speaks_http2(&self) -> Result<bool, ConnectError> {
        let speaks = *self.speaks.lock().unwrap_or_else(PoisonError::into_inner);
        match speaks {
            Speaks::Http2 if self.streams.any() => return Ok(true),
            Speaks::Http1Alone(_) => return Ok(false),
            // No connection is open, so another program may now listen on the address.
            Speaks::Http2 | Speaks::Unknown => {}
        }
        let http2 = Box::pin(async { Ok::<_, ConnectError>(greet(self.address.connect().await?).await) }).await?;
        let speaks = if http2 { Speaks::Http2 } else { Speaks::Http1Alone(HTTP1_ALONE_CHECKS) };
        *self.speaks.lock().unwrap_or_else(PoisonError::into_inner) = speaks;
        Ok(http2)
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
