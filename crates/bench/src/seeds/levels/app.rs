//! The app: an HTTP server with ten slots for each contender.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;

use crate::{proxy::start_apps, sla::Slots};

/// The path that needs no slot.
pub(in crate::seeds) const AT_ONCE: &str = "/at-once";

/// Starts this many apps on one thread, which serve until this program ends. Returns their addresses.
pub(in crate::seeds) fn start<const N: usize>() -> anyhow::Result<[SocketAddr; N]> {
    start_apps(std::array::from_fn(|_| {
        let slots = Slots::new();
        move |stream| {
            let slots = slots.clone();
            async move {
                let answer = service_fn(move |request: Request<Incoming>| answer(request, slots.clone()));
                // The client counts a broken connection.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            }
        }
    }))
}

async fn answer(request: Request<Incoming>, slots: Slots) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"hello, world\n")));
    if request.uri().path() != AT_ONCE && slots.call().await.is_err() {
        *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    }
    Ok(response)
}
