//! `POST /v1/identity`: receives a token and a key, and returns a certificate for the token's pod.
//!
//! Anyone in the cluster can reach this service, so connections, sizes, times and the rate are bounded. A certificate
//! has only values that the apiserver's review confirmed.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use http::{StatusCode, header::RETRY_AFTER};
use kube::Client;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose};
use tokio::net::TcpListener;
use weir_wire::{IDENTITY_PATH, IdentityRefusal, IdentityRefusalKind, IdentityReply, IdentityRequest};

use super::{
    Issuing, PodIdentity,
    flags::IdentityFlags,
    pace::Pace,
    review::{ReviewError, review},
};
use crate::{
    authority::{Order, Signer},
    clock,
    metrics::Metrics,
    serve::{self, Connection},
};

/// The maximum size of a request. A token and a certificate request have a few kilobytes.
const MAX_REQUEST: usize = 32 * 1024;
/// The idle timeout of a connection. An agent sends one request in several hours.
const IDLE: Duration = Duration::from_secs(10);
/// The value of `Retry-After` for refused agents, in seconds.
const RETRY_AFTER_SECONDS: &str = "2";

pub(super) struct Service {
    client: Client,
    audience: String,
    /// The validity of a certificate, in seconds.
    lifetime: u64,
    credentials: Issuing,
    pace: Mutex<Pace>,
    metrics: Metrics,
}

struct Refused(IdentityRefusalKind, String);

impl Service {
    pub(super) fn new(client: Client, flags: &IdentityFlags, credentials: Issuing, metrics: Metrics) -> Self {
        Self {
            client,
            audience: flags.identity_audience.clone(),
            lifetime: flags.identity_lifetime,
            credentials,
            pace: Mutex::default(),
            metrics,
        }
    }

    /// Serves forever.
    pub(super) async fn run(self, listener: TcpListener) {
        let credentials = self.credentials.clone();
        let current = || credentials.borrow().as_ref().map(|credentials| credentials.server.clone());
        serve::run_tls(listener, router(Arc::new(self)), IDLE, current).await;
    }

    fn pace(&self) -> MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn identify(&self, from: IpAddr, body: Body) -> Result<IdentityReply, Refused> {
        let malformed = |problem: String| Refused(IdentityRefusalKind::Malformed, problem);
        if !self.pace().admit(clock::since_boot(), from) {
            return Err(Refused(IdentityRefusalKind::Busy, "too many requests: try again in a moment".to_owned()));
        }
        let body = serve::read_body(body, MAX_REQUEST).await.map_err(|error| malformed(error.to_string()))?;
        let request: IdentityRequest = serde_json::from_slice(&body)
            .map_err(|error| malformed(format!("not a request for an identity: {error}")))?;
        let csr = signed(&request.csr).map_err(malformed)?;
        if request.token.is_empty() {
            return Err(malformed("token: must not be empty".to_owned()));
        }
        let pod = review(&self.client, &request.token, &self.audience).await?;

        let Some(credentials) = self.credentials.borrow().clone() else {
            return Err(Refused(IdentityRefusalKind::Unavailable, "there is no authority yet".to_owned()));
        };
        let certificate = self.certify(&credentials.authorities, &pod, &csr)?;
        tracing::info!(pod = %pod.key, uid = &*pod.uid, "certificate issued");
        Ok(IdentityReply { certificate, authorities: credentials.bundle.clone() })
    }

    fn certify(
        &self,
        authorities: &crate::authority::Authorities,
        pod: &PodIdentity,
        csr: &CertificateSigningRequestParams,
    ) -> Result<String, Refused> {
        let names = [pod.dns_name(), pod.uri()];
        let order = Order {
            names: &names,
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            lives: self.lifetime,
            signer: Signer::Newest,
        };
        let unavailable = |problem: String| Refused(IdentityRefusalKind::Unavailable, problem);
        let certified = authorities
            .certify(&order, &csr.public_key, clock::unix_micros() / 1_000_000)
            .map_err(|error| unavailable(format!("cannot certify {pod}: {error}")))?;
        let certified = certified.ok_or_else(|| unavailable("there is no authority yet".to_owned()))?;
        Ok(certified.certificate.pem())
    }
}

/// Reads a certificate request and verifies that the caller has the private key.
fn signed(csr: &str) -> Result<CertificateSigningRequestParams, String> {
    CertificateSigningRequestParams::from_pem(csr)
        .map_err(|error| format!("csr: not a signed certificate request in PEM: {error}"))
}

impl From<ReviewError> for Refused {
    fn from(error: ReviewError) -> Self {
        let kind = match error {
            ReviewError::Unauthenticated { .. } => IdentityRefusalKind::Unauthenticated,
            ReviewError::NoPod { .. } => IdentityRefusalKind::NoPod,
            ReviewError::Unavailable(_) => IdentityRefusalKind::Unavailable,
        };
        Self(kind, error.to_string())
    }
}

fn router(service: Arc<Service>) -> Router {
    Router::new().route(IDENTITY_PATH, post(answer)).with_state(service)
}

async fn answer(
    State(service): State<Arc<Service>>,
    Extension(connection): Extension<Arc<Connection>>,
    body: Body,
) -> Response {
    let from = connection.peer();
    let mut outcome = Outcome { service: &service, from, has_failed: Some(true) };
    let (word, response) = match service.identify(from, body).await {
        Ok(reply) => {
            outcome.has_failed = Some(false);
            ("issued", Json(reply).into_response())
        }
        Err(Refused(kind, message)) => {
            // The client does not cause these kinds.
            if matches!(kind, IdentityRefusalKind::Busy | IdentityRefusalKind::Unavailable) {
                outcome.has_failed = None;
            }
            // Any pod can cause any number of these refusals. A metric counts them.
            if kind != IdentityRefusalKind::Busy {
                tracing::warn!(peer = %from, reason = message, "no certificate issued");
            }
            refuse(kind, message)
        }
    };
    drop(outcome);
    service.metrics.identified(word);
    response
}

/// Reports to the limits whether a request failed; `None` reports nothing. If the client leaves early, the request ends
/// without an answer. Then it counts as failed. Otherwise, clients could leave before the answer and send without
/// pause.
struct Outcome<'a> {
    service: &'a Service,
    from: IpAddr,
    has_failed: Option<bool>,
}

impl Drop for Outcome<'_> {
    fn drop(&mut self) {
        if let Some(has_failed) = self.has_failed {
            self.service.pace().ended(clock::since_boot(), self.from, has_failed);
        }
    }
}

fn refuse(kind: IdentityRefusalKind, message: String) -> (&'static str, Response) {
    let (word, status) = match kind {
        IdentityRefusalKind::Malformed => ("malformed", StatusCode::BAD_REQUEST),
        IdentityRefusalKind::Unauthenticated => ("unauthenticated", StatusCode::UNAUTHORIZED),
        IdentityRefusalKind::NoPod => ("no_pod", StatusCode::FORBIDDEN),
        IdentityRefusalKind::Busy => ("busy", StatusCode::TOO_MANY_REQUESTS),
        IdentityRefusalKind::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE),
    };
    let refusal = Json(IdentityRefusal { error: kind, message });
    let response = match kind {
        IdentityRefusalKind::Busy | IdentityRefusalKind::Unavailable => {
            (status, [(RETRY_AFTER, RETRY_AFTER_SECONDS)], refusal).into_response()
        }
        _ => (status, refusal).into_response(),
    };
    (word, response)
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "service_fuzz.rs"]
mod fuzz;
