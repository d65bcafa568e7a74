//! The telemetry port: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::metrics::Metrics;

/// The routes of the telemetry port.
pub(crate) fn router(metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(metrics)
}

async fn render(State(metrics): State<Arc<Metrics>>) -> Response {
    match metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// Ready from the first moment: without a snapshot everything passes, and with one it is enforced.
async fn ready(State(metrics): State<Arc<Metrics>>) -> Response {
    if metrics.proxy.drain.is_cancelled() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "draining: this agent was told to stop and takes no new connections\n",
        )
            .into_response();
    }
    "ok\n".into_response()
}
