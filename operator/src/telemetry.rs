//! The operator's own HTTP endpoints: `/metrics`, `/healthz`, `/readyz`. Nothing here changes anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::metrics::Metrics;

/// Whether everything that existed at the start was compiled, and the injection webhook, if there is one, has a
/// certificate to show. Cheap to clone; clones share the answer.
#[derive(Clone, Debug)]
pub struct Ready(Arc<Gates>);

#[derive(Debug)]
struct Gates {
    listed: AtomicBool,
    injecting: AtomicBool,
}

impl Default for Ready {
    fn default() -> Self {
        Self(Arc::new(Gates { listed: false.into(), injecting: true.into() }))
    }
}

impl Ready {
    /// Whether everything was compiled, from now on.
    pub fn set(&self, listed: bool) {
        self.0.listed.store(listed, Ordering::Release);
    }

    /// Whether the injection webhook can be asked, from now on.
    pub fn set_injecting(&self, injecting: bool) {
        self.0.injecting.store(injecting, Ordering::Release);
    }

    /// Now.
    pub fn get(&self) -> bool {
        self.lacks().is_none()
    }

    /// What there is to wait for.
    fn lacks(&self) -> Option<&'static str> {
        if !self.0.listed.load(Ordering::Acquire) {
            return Some("still listing\n");
        }
        let injecting = self.0.injecting.load(Ordering::Acquire);
        (!injecting).then_some("the injection webhook has no certificate yet\n")
    }
}

/// The endpoints.
pub fn router(metrics: Metrics, ready: Ready) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz).with_state(ready))
        .route("/metrics", get(render).with_state(metrics))
}

async fn readyz(State(ready): State<Ready>) -> (StatusCode, &'static str) {
    ready.lacks().map_or((StatusCode::OK, "ok\n"), |reason| (StatusCode::SERVICE_UNAVAILABLE, reason))
}

async fn render(State(metrics): State<Metrics>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
