//! The telemetry port: `/metrics`, `/healthz`, `/readyz`.

mod scrapes;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use weir_client::Client;

use self::scrapes::Scrapes;
use crate::{metrics::Metrics, ready::Readiness};

/// The state of the telemetry port.
#[derive(Debug)]
pub(crate) struct Telemetry {
    metrics: Metrics,
    scrapes: Scrapes,
    readiness: Arc<Readiness>,
}

impl Telemetry {
    pub(crate) fn new(metrics: Metrics, readiness: Arc<Readiness>) -> Arc<Self> {
        Arc::new(Self { metrics, scrapes: Scrapes::default(), readiness })
    }
}

/// The routes of the telemetry port.
pub(crate) fn router(telemetry: Arc<Telemetry>) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(telemetry)
}

async fn render(State(telemetry): State<Arc<Telemetry>>) -> impl IntoResponse {
    let scrape = telemetry.scrapes.scrape(|| telemetry.metrics.render()).await;
    scrape.map(|text| ([(header::CONTENT_TYPE, Client::METRICS_TYPE)], text))
}

async fn ready(State(telemetry): State<Arc<Telemetry>>) -> Response {
    match telemetry.readiness.get() {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
