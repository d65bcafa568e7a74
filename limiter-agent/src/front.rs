//! What the agent serves to clients: the proxy of an app, or the rate limit service.

use std::{io, net::TcpListener, sync::Arc};

use weir_client::agent::Leaving;

use crate::{
    proxy::{Proxy, serve_requests},
    service::{RateLimitService, serve_questions},
};

/// The server of the port of `--listen`.
#[derive(Clone, Debug)]
pub(crate) enum Front {
    Proxy(Arc<Proxy>),
    Service(Arc<RateLimitService>),
}

impl Front {
    /// Serves connections of one listener, in this thread, until the drain has ended.
    pub(crate) fn run_worker(&self, listener: TcpListener) -> io::Result<()> {
        match self {
            Self::Proxy(proxy) => serve_requests(listener, proxy),
            Self::Service(service) => serve_questions(listener, service),
        }
    }

    /// Returns when the agent is leaving and the app no longer accepts connections. A rate limit service has no app: it
    /// serves until its stop signal.
    pub(crate) async fn is_gone(&self, leaving: &Leaving) {
        match self {
            Self::Proxy(proxy) => {
                leaving.begun().await;
                proxy.upstream.gone().await;
            }
            Self::Service(_) => std::future::pending().await,
        }
    }

    /// Prepares for the first connections.
    pub(crate) async fn open(&self) {
        match self {
            Self::Proxy(_) => {}
            Self::Service(service) => service.set_serving(true).await,
        }
    }

    /// Stops accepting connections.
    pub(crate) async fn drain(&self) {
        match self {
            Self::Proxy(proxy) => proxy.drain.cancel(),
            Self::Service(service) => {
                service.set_serving(false).await;
                service.drain.cancel();
            }
        }
    }

    /// Ends connections that would not end by themselves, such as idle ones.
    pub(crate) fn stop(&self) {
        match self {
            Self::Proxy(proxy) => proxy.stop.cancel(),
            // The drain ends idle connections, too.
            Self::Service(_) => {}
        }
    }

    /// Closes all connections.
    pub(crate) fn abort(&self) {
        match self {
            Self::Proxy(proxy) => proxy.abort.cancel(),
            Self::Service(service) => service.abort.cancel(),
        }
    }
}
