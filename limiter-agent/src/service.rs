//! The rate limit service: answers the questions of proxies such as Envoy, with the rules of policies with a domain.
//!
//! One port serves gRPC (`envoy.service.ratelimit.v3.RateLimitService`,
//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService` and `grpc.health.v1.Health`) over HTTP/2, and `POST /json`
//! with the messages of the first one as JSON. Proxies keep few connections, with many questions in flight on each.
//! Each worker is a thread with its own runtime and listener, as in the proxy. The engine decides. This module only
//! translates.

mod answer;
mod call;
mod codec;
#[cfg(test)]
mod fuzz;
mod health;
mod joined;
mod messages;
mod quota;
mod tls;
mod wire;
mod worker;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{Request, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code as GrpcCode, Status,
    server::{Grpc, UnaryService},
};
use tonic_health::{
    ServingStatus,
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use weir_client::agent::ConnectionSlots;
use weir_enforce::LiveRules;
use weir_tower::MonotonicClock;

use self::{
    answer::{InvalidQuestion, answer},
    call::Call,
    codec::{DecodedQuestion, QuestionCodec, QuotaCodec},
    health::DrainedHealth,
    messages::{Code, RateLimitResponse},
    quota::{Reports, StreamRateLimitQuotas},
};
pub(crate) use self::{
    quota::{ASSIGNMENTS, Quotas},
    tls::{ServiceTls, ServiceTlsFiles},
    worker::serve_questions,
};

/// The name of the gRPC service.
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The name that envoyproxy/ratelimit has in the health service.
const FORMER_NAME: &str = "ratelimit";
/// The path of its only method.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The maximum size of a question, in bytes. Questions of Envoy have some hundred bytes, but a client's header can be in
/// several descriptors. Envoy lets a request pass if the service refuses its question.
const MAX_QUESTION: usize = 4 * 1024 * 1024;

/// The maximum size of a question in JSON, in bytes. While it is read, it takes up to 20 times this memory.
const MAX_JSON: usize = 256 * 1024;

/// The maximum size of a question to the health service, in bytes.
const MAX_HEALTH: usize = 4096;

/// The result of a question.
#[derive(Clone, Copy, Debug)]
enum QuestionResult {
    Ok,
    OverLimit,
    Invalid,
}

/// The names of each [`QuestionResult`], as in `weir_service_questions_total`.
pub(crate) const RESULTS: [&str; 3] = ["ok", "over_limit", "invalid"];

/// The state of the rate limit service that all workers share.
#[derive(Debug)]
pub(crate) struct RateLimitService {
    pub(crate) rules: LiveRules,
    pub(crate) clock: MonotonicClock,
    /// `None` for plain text.
    pub(crate) tls: Option<Arc<ServiceTls>>,
    /// One slot for each connection that can be served at the same time.
    pub(crate) slots: Arc<ConnectionSlots>,
    /// The maximum number of questions in flight on one connection.
    pub(crate) max_streams: u32,
    pub(crate) connections: AtomicU64,
    pub(crate) accepted: AtomicU64,
    questions: [AtomicU64; RESULTS.len()],
    pub(crate) quotas: Quotas,
    health: HealthReporter,
    /// Cancelled to stop accepting connections and to finish the questions in flight.
    pub(crate) drain: CancellationToken,
    /// Cancelled to close all connections immediately.
    pub(crate) abort: CancellationToken,
}

impl RateLimitService {
    pub(crate) fn new(
        rules: LiveRules,
        clock: MonotonicClock,
        tls: Option<Arc<ServiceTls>>,
        (max_connections, max_streams): (usize, u32),
    ) -> Self {
        Self {
            rules,
            clock,
            tls,
            // One client cannot keep out all others, even if all its connections are busy.
            slots: ConnectionSlots::new(max_connections, max_connections.div_ceil(2)),
            max_streams,
            connections: AtomicU64::default(),
            accepted: AtomicU64::default(),
            questions: Default::default(),
            quotas: Quotas::default(),
            health: HealthReporter::new(),
            drain: CancellationToken::new(),
            abort: CancellationToken::new(),
        }
    }

    /// Sets the answer of the health service: whether this server accepts questions.
    pub(crate) async fn set_serving(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", NAME, FORMER_NAME, quota::NAME] {
            self.health.set_service_status(name, status).await;
        }
    }

    /// The number of questions with each of the [`RESULTS`].
    pub(crate) fn questions(&self) -> [u64; RESULTS.len()] {
        self.questions.each_ref().map(|count| count.load(Relaxed))
    }

    async fn answer(&self, question: DecodedQuestion) -> Result<RateLimitResponse, InvalidQuestion> {
        let answer = match question {
            Ok(question) => answer(&self.rules, &question).await,
            Err(invalid) => Err(invalid),
        };
        let result = match &answer {
            Ok(response) if response.overall_code == i32::from(Code::Ok) => QuestionResult::Ok,
            Ok(_) => QuestionResult::OverLimit,
            Err(_) => QuestionResult::Invalid,
        };
        let before = self.questions[result as usize].fetch_add(1, Relaxed);
        if let Err(invalid) = &answer
            && before == 0
        {
            tracing::warn!(%invalid, "a question is invalid: proxies let a request pass, or refuse it, without its limits");
        }
        answer
    }
}

/// The routes of the service's port.
fn router(service: Arc<RateLimitService>) -> Router {
    let inner = HealthService::from_health_reporter(service.health.clone());
    let health = HealthServer::new(DrainedHealth { inner, drain: service.drain.clone() });
    let health = health.max_decoding_message_size(MAX_HEALTH);
    Router::new()
        .route(PATH, post(grpc))
        .route(quota::PATH, post(quotas))
        .route_service("/grpc.health.v1.Health/{method}", health)
        .route("/json", post(json).layer(DefaultBodyLimit::max(MAX_JSON)))
        .fallback(not_found)
        .with_state(service)
}

/// The only method of the gRPC service.
struct ShouldRateLimit(Arc<RateLimitService>);

impl UnaryService<DecodedQuestion> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<DecodedQuestion>) -> Self::Future {
        let service = Arc::clone(&self.0);
        Box::pin(async move {
            match service.answer(request.into_inner()).await {
                Ok(response) => Ok(tonic::Response::new(response)),
                Err(invalid) => Err(Status::invalid_argument(invalid.to_string())),
            }
        })
    }
}

async fn grpc(State(service): State<Arc<RateLimitService>>, request: Request<Body>) -> Response {
    let mut grpc = Grpc::new(QuestionCodec).max_decoding_message_size(MAX_QUESTION);
    grpc.unary(ShouldRateLimit(service), request).await.map(Body::new)
}

async fn quotas(
    State(service): State<Arc<RateLimitService>>,
    Extension(call): Extension<Arc<Call>>,
    request: Request<Body>,
) -> Response {
    let (head, body) = request.into_parts();
    let quotas = StreamRateLimitQuotas { service, reports: Some(Reports::new(body, call)) };
    let mut grpc = Grpc::new(QuotaCodec);
    grpc.streaming(quotas, Request::from_parts(head, Body::empty())).await.map(Body::new)
}

/// Answers a question in JSON: with status 200 if the request may pass, and 429 if not.
async fn json(State(service): State<Arc<RateLimitService>>, body: Bytes) -> Response {
    match service.answer(question_in_json(&body)).await {
        Ok(response) => {
            let is_ok = response.overall_code == i32::from(Code::Ok);
            let status = if is_ok { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            let json = serde_json::to_vec(&response).expect("a response is plain data");
            (status, [(CONTENT_TYPE, "application/json")], json).into_response()
        }
        Err(invalid) => (StatusCode::BAD_REQUEST, format!("{invalid}\n")).into_response(),
    }
}

fn question_in_json(body: &[u8]) -> DecodedQuestion {
    let mut json = serde_json::Deserializer::from_slice(body);
    let question = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| InvalidQuestion::Malformed(format!("{}: {}", error.path(), error.inner())))?;
    if json.end().is_err() {
        return Err(InvalidQuestion::Malformed("the body must have one question, and nothing after it".to_owned()));
    }
    Ok(question)
}

async fn not_found(request: Request<Body>) -> Response {
    if is_grpc(&request) {
        let message = format!(
            "there is no {}: this server has {NAME}, {} and grpc.health.v1.Health",
            request.uri().path(),
            quota::NAME
        );
        return Status::new(GrpcCode::Unimplemented, message).into_http::<Body>();
    }
    (StatusCode::NOT_FOUND, "this server has POST /json, and gRPC over HTTP/2\n").into_response()
}

/// The response to a call that took too long.
fn late(is_grpc: bool) -> Response {
    let message = format!("the question did not arrive, or had no answer, within {:?}", call::TIMEOUT);
    if is_grpc {
        return Status::deadline_exceeded(message).into_http::<Body>();
    }
    (StatusCode::REQUEST_TIMEOUT, message + "\n").into_response()
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
