//! The app: an HTTP server with ten slots for each contender.

use std::{convert::Infallible, net::SocketAddr};

use anyhow::Context as _;
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, runtime::Builder};

use crate::{
    proxy::{accept, listen},
    sla::Slots,
};

/// The path that needs no slot.
pub(in crate::seeds) const AT_ONCE: &str = "/at-once";

/// Serves until this program ends.
pub(in crate::seeds) struct App {
    addresses: Vec<SocketAddr>,
}

impl App {
    /// Starts this many apps on one thread.
    pub(in crate::seeds) fn start(count: usize) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build().context("start a runtime")?;
        let listeners = {
            let _entered = runtime.enter();
            (0..count).map(|_| listen()).collect::<Result<Vec<_>, _>>().context("bind the apps")?
        };
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>();
        let addresses = addresses.context("bind the apps")?;
        let serve = move || {
            runtime.block_on(async {
                futures::future::join_all(listeners.into_iter().map(|listener| serve(listener, Slots::new()))).await
            })
        };
        std::thread::Builder::new().name("app".to_owned()).spawn(serve).context("start the apps")?;
        Ok(Self { addresses })
    }

    pub(in crate::seeds) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

async fn serve(listener: TcpListener, slots: Slots) {
    loop {
        let stream = accept(&listener).await;
        let slots = slots.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| answer(request, slots.clone()));
            // The client counts a broken connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(request: Request<Incoming>, slots: Slots) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"hello, world\n")));
    if request.uri().path() != AT_ONCE && slots.call().await.is_err() {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    }
    Ok(response)
}
