//! The operator's own HTTP endpoints: `/metrics`, `/healthz`, `/readyz`. Nothing here changes anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::metrics::Metrics;

/// Whether everything that existed at the start was compiled. Cheap to clone; clones share the answer.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// From now on, or no longer.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }

    /// Now.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
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
    if ready.get() { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "still listing\n") }
}

async fn render(State(metrics): State<Metrics>) -> impl axum::response::IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], metrics.render())
}
