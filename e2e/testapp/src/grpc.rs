//! The gRPC service of the app: the standard health service, with the status of the app itself.

use http::{Request, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tonic_health::{
    pb::health_server::HealthServer,
    server::{HealthReporter, HealthService},
};
use tower_service::Service as _;

use crate::answers::Body;

pub(crate) struct Grpc(HealthServer<HealthService>);

impl Grpc {
    pub(crate) fn new() -> Self {
        Self(HealthServer::new(HealthService::from_health_reporter(HealthReporter::new())))
    }

    pub(crate) fn is_call(request: &Request<Incoming>) -> bool {
        let content_type = request.headers().get(CONTENT_TYPE);
        content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
    }

    pub(crate) async fn call(&self, request: Request<Incoming>) -> Response<Body> {
        let Ok(answer) = self.0.clone().call(request).await;
        answer.map(|body| body.map_err(Into::into).boxed_unsync())
    }
}
