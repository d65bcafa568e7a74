//! The telemetry port: `/metrics`, `/healthz`, `/readyz`.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use weir_client::Client;

use crate::{metrics::Metrics, ready::Readiness};

/// The state of the telemetry port.
#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Arc<Readiness>,
}

/// The routes of the telemetry port.
pub(crate) fn router(telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(telemetry)
}

async fn render(State(telemetry): State<Arc<Telemetry>>) -> Response {
    match telemetry.metrics.render() {
        Ok(text) => ([(header::CONTENT_TYPE, Client::METRICS_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn ready(State(telemetry): State<Arc<Telemetry>>) -> Response {
    match telemetry.readiness.get() {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
