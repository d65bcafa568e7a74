//! The operator's own HTTP endpoints: `/metrics`, `/healthz`, `/readyz`. They change nothing.
//!
//! `/healthz` checks that the engine's loop is running. `/readyz` checks that everything was listed and compiled, so
//! that this operator could lead immediately. These endpoints do not check whether the operator leads, or whether the
//! apiserver works, because a restart would not help.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{Router, extract::State, routing::get};
use http::{StatusCode, header::CONTENT_TYPE};
use tokio::sync::watch;

use crate::{
    clock,
    metrics::{self, Metrics},
};

/// The time without an iteration after which the engine's loop counts as stuck. The loop runs twice a second.
const STUCK_AFTER: Duration = Duration::from_secs(10);
/// The idle timeout of a connection. A Prometheus that scrapes once a minute keeps its connection.
pub(crate) const IDLE: Duration = Duration::from_secs(120);

/// The operator's readiness: everything that existed at the start is compiled, and the injection webhook and the
/// identity service, if enabled, have certificates. A clone is cheap and shares the state.
#[derive(Clone, Debug)]
pub struct Ready(watch::Sender<Gates>);

#[derive(Clone, Copy, Debug)]
struct Gates {
    listed: bool,
    injecting: bool,
    identified: bool,
}

impl Default for Ready {
    fn default() -> Self {
        Self(watch::Sender::new(Gates { listed: false, injecting: true, identified: true }))
    }
}

impl Ready {
    /// Records whether everything was compiled.
    pub fn set(&self, listed: bool) {
        self.0.send_modify(|gates| gates.listed = listed);
    }

    /// Records whether the injection webhook can answer.
    pub fn set_injecting(&self, injecting: bool) {
        self.0.send_modify(|gates| gates.injecting = injecting);
    }

    /// Records whether certificates for mutual TLS exist.
    pub fn set_identified(&self, identified: bool) {
        self.0.send_modify(|gates| gates.identified = identified);
    }

    /// Returns true if the operator is ready.
    pub fn get(&self) -> bool {
        self.lacks().is_none()
    }

    /// Waits until this operator could push: everything is compiled, and there are certificates for mutual TLS. Agents
    /// do not need the injection webhook.
    pub(crate) async fn can_push(&self) {
        let can_push = |gates: &Gates| gates.listed && gates.identified;
        self.0.subscribe().wait_for(can_push).await.expect("this clone keeps the channel open");
    }

    /// Returns the missing condition of readiness, if any.
    fn lacks(&self) -> Option<&'static str> {
        let Gates { listed, injecting, identified } = *self.0.borrow();
        if !listed {
            return Some("still listing\n");
        }
        if !identified {
            return Some("there are no certificates for mutual TLS yet\n");
        }
        (!injecting).then_some("the injection webhook has no certificate yet\n")
    }
}

/// The time of the last iteration of the engine's loop. A clone is cheap and shares the time.
#[derive(Clone, Debug)]
pub struct Heartbeat(Arc<AtomicU64>);

impl Heartbeat {
    /// Returns a heartbeat that starts now. Times are those of [`clock::since_boot`].
    pub fn new(now: Duration) -> Self {
        let heartbeat = Self(Arc::default());
        heartbeat.beat(now);
        heartbeat
    }

    /// Records an iteration of the loop.
    pub fn beat(&self, now: Duration) {
        self.0.store(u64::try_from(now.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the time since the last iteration.
    pub fn rested(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.0.load(Ordering::Relaxed)))
    }
}

/// Returns the router of the endpoints.
pub fn router(metrics: Metrics, ready: Ready, heartbeat: Heartbeat) -> Router {
    Router::new()
        .route("/healthz", get(healthz).with_state(heartbeat))
        .route("/readyz", get(readyz).with_state(ready))
        .route("/metrics", get(render).with_state(metrics))
}

async fn healthz(State(heartbeat): State<Heartbeat>) -> (StatusCode, String) {
    let rested = heartbeat.rested(clock::since_boot());
    if rested < STUCK_AFTER {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("the engine's loop has not run for {} s\n", rested.as_secs()))
    }
}

async fn readyz(State(ready): State<Ready>) -> (StatusCode, &'static str) {
    ready.lacks().map_or((StatusCode::OK, "ok\n"), |reason| (StatusCode::SERVICE_UNAVAILABLE, reason))
}

async fn render(State(metrics): State<Metrics>) -> impl axum::response::IntoResponse {
    let text = metrics.render(clock::since_boot()) + &metrics::process(clock::processor());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn healthz_follows_the_engines_loop() {
        let now = clock::since_boot();
        let heartbeat = Heartbeat::new(now);
        assert_eq!(healthz(State(heartbeat.clone())).await.0, StatusCode::OK);
        heartbeat.beat(now.saturating_sub(STUCK_AFTER));
        let (status, said) = healthz(State(heartbeat.clone())).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{said}");
        assert!(said.contains("has not run for 10 s"), "{said}");
        heartbeat.beat(clock::since_boot());
        assert_eq!(healthz(State(heartbeat)).await.0, StatusCode::OK);
    }
}
