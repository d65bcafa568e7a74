//! The webhook's server, which answers admission reviews over TLS.
//!
//! Anyone in the cluster can reach the server, and an answer contains policies of the namespace in the review. So the
//! server answers only on a path that cannot be guessed, and that only the apiserver gets. On any other path, it reads no
//! body. Connections, sizes and times are bounded.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Extension, Path, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{StatusCode, header::CONTENT_TYPE};
use kube::{
    api::DynamicObject,
    core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation},
};
use rustls::ServerConfig;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    agent_start::{AgentStart, Authority},
    bootstrap::{self, ContentRequest},
    pod::{self, ClusterSettings, PodDecision},
    quota::QuotaSource,
    values::shortened,
};
use crate::{
    identity::Directions,
    metrics::Metrics,
    plan::Content,
    serve::{self, Connection},
};

/// The maximum size of a review. A pod is at most 1.5 MiB in etcd, and a review contains it once.
const MAX_REVIEW: usize = 4 * 1024 * 1024;
/// The maximum size of a reason in a pod's annotation.
const LONGEST_REASON: usize = 4096;
/// The idle timeout of a connection. An apiserver reuses connections.
const IDLE: Duration = Duration::from_secs(120);
/// The timeout of a whole request. The apiserver gives up after at most 30 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The certificate and path of this replica.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) tls: Arc<ServerConfig>,
    /// The accepted last parts of the secret path.
    pub(super) tokens: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Reviewer {
    pub(super) cluster: watch::Receiver<ClusterSettings>,
    pub(super) quotas: QuotaSource,
    /// The parameters of the identity service, or `None` if agents get no certificates.
    pub(super) identity: Option<Directions>,
    /// True to refuse pods with invalid annotations; otherwise they start without an agent.
    pub(super) refuse: bool,
    pub(super) engine: mpsc::Sender<ContentRequest>,
    pub(super) metrics: Metrics,
    pub(super) serving: watch::Receiver<Option<Arc<Serving>>>,
}

pub(super) fn path(token: &str) -> String {
    format!("/inject/{token}")
}

/// Serves forever.
pub(super) async fn run(listener: TcpListener, reviewer: Arc<Reviewer>) {
    let current = || reviewer.serving.borrow().as_ref().map(|serving| serving.tls.clone());
    serve::run_tls(listener, router(reviewer.clone()), IDLE, current).await;
}

fn router(reviewer: Arc<Reviewer>) -> Router {
    Router::new().route(&path("{token}"), post(answer)).with_state(reviewer)
}

async fn answer(
    State(reviewer): State<Arc<Reviewer>>,
    Path(token): Path<String>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Response {
    let is_known = |serving: &Arc<Serving>| serving.tokens.iter().any(|known| same(known, &token));
    if !reviewer.serving.borrow().as_ref().is_some_and(is_known) {
        return StatusCode::NOT_FOUND.into_response();
    }
    connection.set_proven();
    let body = match serve::read_body(body, MAX_REVIEW).await {
        Ok(body) => body,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let review: Result<AdmissionReview<DynamicObject>, _> = serde_json::from_slice(&body);
    let request: AdmissionRequest<DynamicObject> = match review.map(TryInto::try_into) {
        Ok(Ok(request)) => request,
        Ok(Err(error)) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(error) => return (StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}\n")).into_response(),
    };
    match timeout(REQUEST_TIMEOUT, reviewer.review(&request)).await {
        Ok(Ok(response)) => {
            let review = serde_json::to_string(&response.into_review()).expect("a review is plain data");
            ([(CONTENT_TYPE, "application/json")], review).into_response()
        }
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, format!("not a Pod: {error}\n")).into_response(),
        Err(_) => StatusCode::GATEWAY_TIMEOUT.into_response(),
    }
}

/// Compares two tokens in constant time.
fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

impl Reviewer {
    async fn review(&self, request: &AdmissionRequest<DynamicObject>) -> Result<AdmissionResponse, serde_json::Error> {
        let response = AdmissionResponse::from(request);
        let Some(object) = request.object.as_ref().filter(|_| request.operation == Operation::Create) else {
            return Ok(response);
        };
        let pod = serde_json::to_value(object)?;
        let namespace = request.namespace.as_deref().unwrap_or_default();
        let content = bootstrap::content(&self.engine, namespace, pod::membership(namespace, &pod)).await;
        let bootstrap = content.as_ref().map(bootstrap::snapshot);
        let secrets = content.iter().flat_map(Content::secrets).cloned().collect();
        let authority = self.authority().await;
        let bounds = self.quotas.of(namespace).await;
        let decision = pod::inject(
            &pod,
            &self.cluster.borrow(),
            &AgentStart { bootstrap: bootstrap.as_deref(), authority, bounds, secrets },
        )?;

        let name = object.metadata.name.as_ref().or(object.metadata.generate_name.as_ref());
        let name = name.map_or("", String::as_str);
        let (word, response) = self.respond(response, &pod, decision);
        self.metrics.reviewed(word);
        let warnings = response.warnings.as_deref().unwrap_or_default().join("; ");
        tracing::info!(namespace, pod = name, outcome = word, dry_run = request.dry_run, warnings, "pod reviewed");
        Ok(response)
    }

    /// Returns the parameters of the identity service, with the authorities to trust. Waits for the first authority,
    /// because without it the agent could never prove its identity.
    async fn authority(&self) -> Option<Authority> {
        let Directions { url, audience, credentials } = self.identity.as_ref()?;
        let mut credentials = credentials.clone();
        let held = credentials.wait_for(Option::is_some).await.ok()?;
        let bundle = held.as_ref()?.bundle.clone();
        Some(Authority { url: url.clone(), audience: audience.clone(), bundle })
    }

    fn respond(
        &self,
        response: AdmissionResponse,
        pod: &Value,
        decision: PodDecision,
    ) -> (&'static str, AdmissionResponse) {
        match decision {
            PodDecision::Untouched => ("untouched", response),
            PodDecision::Declined => ("declined", response),
            PodDecision::Unfit { why } => ("unfit", leave_alone(response, pod, &why)),
            PodDecision::Wrong { why } if self.refuse => {
                ("refused", response.deny(format!("weir cannot give this pod its agent: {why}")))
            }
            PodDecision::Wrong { why } => ("wrong", leave_alone(response, pod, &why)),
            PodDecision::Injected { pod: injected, warnings } => {
                let warnings = warnings.into_iter().map(|warning| format!("weir: {warning}"));
                ("injected", patched(response, pod, &injected, warnings.collect()))
            }
        }
    }
}

fn leave_alone(response: AdmissionResponse, pod: &Value, why: &str) -> AdmissionResponse {
    // The apiserver refuses a pod whose annotations are too long.
    let why = &shortened(why, LONGEST_REASON);
    let warning = format!("weir: the pod starts without an agent, so its requests are not limited: {why}");
    patched(response, pod, &pod::left_alone(pod, why), vec![warning])
}

fn patched(response: AdmissionResponse, from: &Value, to: &Value, warnings: Vec<String>) -> AdmissionResponse {
    let patch = json_patch::diff(from, to);
    let mut response = response.with_patch(patch).expect("a patch is plain data");
    response.warnings = Some(warnings).filter(|warnings| !warnings.is_empty());
    response
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
