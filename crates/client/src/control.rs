//! The control API: HTTP and JSON, so that curl is enough for debugging.
//!
//! | request | response |
//! |---|---|
//! | `PUT /v1/config` | 200 with the revision in force, when it is saved; 400, 409, 413 or 422 with the reason and the current revision; 408 or 503 if its body was not read |
//! | `GET /v1/config` | the snapshot in force, or 404 before the first |
//! | `GET /v1/status` | the revision in force, its start and the counts per rule |
//! | `POST /v1/leave` | 204: the pod is being deleted; each later response is the last on its connection |
//! | `POST /v1/leave?waitMillis=5000` | 204, sent when the app refuses connections, or after that time |
//! | `GET /v1/bans?policy=…&rule=…&key=…` | the banned keys, at most 1000; each parameter is optional |
//! | `DELETE /v1/bans?policy=…&rule=…&key=…` | the number of bans that were lifted, also in stores; `key` is optional; 503 if a store does not answer |
//! | `DELETE /v1/counts?policy=…&rule=…&key=…` | the limits in which the key has its full credit now, and the number of bans that were lifted; 503 if a store does not answer |
//! | `POST /v1/explain` | the rules that match the described request, and the decision of each; no limit is charged |
//!
//! The operator uses the [`channel`] on the same port instead. It chooses the channel by ALPN, or without TLS by the first
//! byte that it sends.

mod bans;
mod bodies;
pub(crate) mod channel;
mod counts;
mod status;
mod tls;

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, State, rejection::QueryRejection},
    http::{StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::{MethodRouter, delete, get, post},
};
use serde::Deserialize;
use serde_json::json;
use weir_core::Time;
use weir_enforce::{AmbiguousPaths, LiveRules};
use weir_tower::MonotonicClock;
use weir_wire::{ApplyReply, ExplainRequest, MAX_SNAPSHOT_BYTES, Rejection, RejectionKind};

pub use self::tls::{InvalidTls, certificates};
pub(crate) use self::{
    bodies::Bodies,
    tls::{Accepted, Credentials, HANDSHAKES, InvalidCredentials, RELOADS, Tls, TlsFiles},
};
use crate::{
    leaving::Leaving,
    snapshots::{Serves, Snapshots},
};

/// The largest request to explain: the largest request that the proxy accepts, as JSON.
const MAX_EXPLAIN_BYTES: usize = 4 * 1024 * 1024;

/// The state that the control port reads and changes.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) rules: LiveRules,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) leaving: Arc<Leaving>,
    pub(crate) clock: MonotonicClock,
    pub(crate) started: Time,
    /// The proxy port's treatment of ambiguous paths.
    pub(crate) ambiguous_paths: AmbiguousPaths,
    /// Identifies this run of the agent.
    pub(crate) instance: String,
    pub(crate) bodies: Bodies,
}

/// The routes of the control port.
pub(crate) fn router(control: Arc<Control>) -> Router {
    routes(get(config).put(put_config)).with_state(control)
}

/// The routes for clients in the pod without a certificate, such as `kubectl port-forward`. They change no rule, but
/// they can lift bans and reset counts. `leave` is for the `preStop` hook. The agent cannot distinguish these clients from
/// other processes of the pod (SECURITY.md).
pub(crate) fn local_router(control: Arc<Control>) -> Router {
    routes(get(config).put(not_from_here)).with_state(control)
}

fn routes(config: MethodRouter<Arc<Control>>) -> Router<Arc<Control>> {
    Router::new()
        .route("/v1/config", config)
        .route("/v1/status", get(status::status))
        .route("/v1/bans", get(bans::list).delete(bans::lift))
        .route("/v1/counts", delete(counts::reset))
        .route("/v1/explain", post(explain))
        .route("/v1/leave", post(leave))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
}

async fn not_from_here() -> Response {
    let message = "a client without the operator's certificate cannot change this agent's rules: change the policy, or \
                   push with the operator's certificate";
    failure(StatusCode::FORBIDDEN, "forbidden", message)
}

async fn put_config(State(control): State<Arc<Control>>, body: Body) -> Response {
    let (body, _permits) = match control.bodies.read(body, MAX_SNAPSHOT_BYTES).await {
        Ok(body) => body.map(|body| (body.bytes, body.permits)).unzip(),
        Err(unread) => return unread.into_response(),
    };
    match apply_snapshot(Arc::clone(&control), body).await {
        Ok(reply) => {
            control.snapshots.saved().await;
            Json(reply).into_response()
        }
        Err(rejection) => (code(rejection.error), Json(rejection)).into_response(),
    }
}

/// Puts a snapshot in force. `None` means that the snapshot was too large to read.
async fn apply_snapshot(control: Arc<Control>, body: Option<Vec<u8>>) -> Result<ApplyReply, Rejection> {
    // Lowering a large snapshot takes a long time, and the agent must answer probes in the meantime.
    let applied = tokio::task::spawn_blocking(move || {
        let body = body.as_deref().filter(|body| body.len() <= MAX_SNAPSHOT_BYTES);
        // Logged here, because the caller can be gone.
        control.snapshots.apply_pushed(body).inspect_err(|rejection| {
            let status = code(rejection.error).as_u16();
            tracing::warn!(status, reason = rejection.message, faults = ?rejection.faults, "snapshot rejected");
        })
    });
    applied.await.expect("lowering a snapshot does not panic")
}

fn code(error: RejectionKind) -> StatusCode {
    match error {
        RejectionKind::Malformed => StatusCode::BAD_REQUEST,
        RejectionKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        RejectionKind::Stale => StatusCode::CONFLICT,
        RejectionKind::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

/// The routes for a client whose valid certificate does not have the operator's name: each responds with 403 and the
/// reason.
pub(crate) fn closed(reason: String) -> Router {
    let reason: Arc<str> = reason.into();
    Router::new().fallback(move || {
        let reason = Arc::clone(&reason);
        async move { failure(StatusCode::FORBIDDEN, "forbidden", &reason) }
    })
}

async fn config(State(control): State<Arc<Control>>) -> Response {
    match control.rules.load().snapshot() {
        Some((snapshot, _)) => Json(snapshot).into_response(),
        None => {
            let message = "no snapshot yet, so every request passes: PUT one to /v1/config";
            failure(StatusCode::NOT_FOUND, "noSnapshot", message)
        }
    }
}

async fn explain(State(control): State<Arc<Control>>, body: Body) -> Response {
    let invalid = |message: &str| failure(StatusCode::BAD_REQUEST, "invalid", message);
    let body = match control.bodies.read(body, MAX_EXPLAIN_BYTES).await {
        Ok(Some(body)) => body,
        Ok(None) => {
            let message =
                format!("a request to explain has at most {MAX_EXPLAIN_BYTES} bytes: omit headers that no rule uses");
            return failure(StatusCode::PAYLOAD_TOO_LARGE, "tooLarge", &message);
        }
        Err(unread) => return unread.into_response(),
    };
    let mut json = serde_json::Deserializer::from_slice(&body.bytes);
    let request: ExplainRequest = match serde_path_to_error::deserialize(&mut json) {
        Ok(request) => request,
        Err(error) => return invalid(&format!("{}: {}", error.path(), error.inner())),
    };
    if json.end().is_err() {
        return invalid("the body must have one request, and nothing after it");
    }
    match control.rules.load().explain(&request, control.clock, control.ambiguous_paths) {
        Ok(reply) => Json(reply).into_response(),
        Err(error) => invalid(&error.to_string()),
    }
}

/// The parameter of `leave`: how long to wait until the app refuses connections.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wait {
    #[serde(default)]
    wait_millis: u64,
}

async fn leave(State(control): State<Arc<Control>>, wait: Result<Query<Wait>, QueryRejection>) -> Response {
    let Ok(Query(Wait { wait_millis })) = wait else {
        return failure(StatusCode::BAD_REQUEST, "invalid", "waitMillis must be a number of milliseconds, or absent");
    };
    if !control.leaving.has_begun() {
        let message = match control.snapshots.serves() {
            Serves::Layer => "leaving: the program is asked to finish its connections",
            Serves::Requests | Serves::Descriptors => "leaving: each response is the last on its connection",
        };
        tracing::info!("{message}");
    }
    control.leaving.begin();
    let closed = control.leaving.closed.cancelled();
    let _ = tokio::time::timeout(Duration::from_millis(wait_millis), closed).await;
    StatusCode::NO_CONTENT.into_response()
}

async fn not_found(uri: Uri) -> Response {
    let message = format!(
        "there is no {}: try PUT or GET /v1/config, GET /v1/status, GET or DELETE /v1/bans, DELETE /v1/counts, POST /v1/explain, POST /v1/leave",
        uri.path()
    );
    failure(StatusCode::NOT_FOUND, "notFound", &message)
}

async fn method_not_allowed() -> Response {
    let message = "this path supports other methods: see the Allow header";
    failure(StatusCode::METHOD_NOT_ALLOWED, "methodNotAllowed", message)
}

fn failure(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}

#[cfg(test)]
mod queries_fuzz;
