//! The app behind the gateways: it takes 10 ms for a request, and notes when each one came.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};

use crate::{clock, proxy::start_apps};

/// The path that is answered immediately.
pub(super) const AT_ONCE: &str = "/at-once";
const WORK: Duration = Duration::from_millis(10);

/// Serves until this program ends.
pub(super) struct App {
    pub(super) address: SocketAddr,
    arrivals: Arrivals,
}

/// When requests arrived, since 1970.
type Arrivals = Arc<Mutex<Vec<Duration>>>;

impl App {
    /// Starts it on a thread of its own.
    pub(super) fn start() -> anyhow::Result<Self> {
        let arrivals = Arrivals::default();
        let noted = Arc::clone(&arrivals);
        let serve = move |stream| {
            let arrivals = Arc::clone(&noted);
            async move {
                let mut http = auto::Builder::new(TokioExecutor::new());
                // All requests that a gateway admits at the same time may come on one connection.
                http.http2().max_concurrent_streams(None);
                let answer = service_fn(move |request| answer(request, Arc::clone(&arrivals)));
                // The client counts a broken connection.
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            }
        };
        let [address] = start_apps([serve])?;
        Ok(Self { address, arrivals })
    }

    /// The arrivals since this was last asked for, sorted.
    pub(super) fn take_arrivals(&self) -> Vec<Duration> {
        let mut arrivals = std::mem::take(&mut *self.arrivals.lock().unwrap_or_else(PoisonError::into_inner));
        arrivals.sort();
        arrivals
    }
}

async fn answer(request: Request<Incoming>, arrivals: Arrivals) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() != AT_ONCE {
        arrivals.lock().unwrap_or_else(PoisonError::into_inner).push(clock::since_1970());
        tokio::time::sleep(WORK).await;
    }
    Ok(Response::new(Full::new(Bytes::from_static(b"hello, world\n"))))
}
