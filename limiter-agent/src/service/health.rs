//! The gRPC health service, whose `Watch` streams end with the drain.

use std::pin::Pin;

use futures::{Stream, StreamExt as _, stream::unfold};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::{
    pb::{HealthCheckRequest, HealthCheckResponse, health_server::Health},
    server::HealthService,
};

/// Answers as the inner service does. After the beginning of the drain, an open `Watch` sends its last status and ends:
/// a stream that stays open would hold the connection, and the process, until the time limit of the drain.
pub(super) struct DrainedHealth {
    pub(super) inner: HealthService,
    pub(super) drain: CancellationToken,
}

#[tonic::async_trait]
impl Health for DrainedHealth {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        self.inner.check(request).await
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let statuses = self.inner.watch(request).await?.into_inner();
        let watched = unfold((statuses, self.drain.clone()), async |(mut statuses, drain)| {
            let status = tokio::select! {
                // The status is set before the drain begins, so it is sent first.
                biased;
                status = statuses.next() => status?,
                () = drain.cancelled() => return None,
            };
            Some((status, (statuses, drain)))
        });
        Ok(Response::new(Box::pin(watched)))
    }
}

#[cfg(test)]
mod tests {
    use tonic_health::{ServingStatus, pb::health_check_response, server::HealthReporter};

    use super::*;

    #[tokio::test]
    async fn a_watch_sends_the_status_of_the_drain_and_ends() {
        let (reporter, drain) = (HealthReporter::new(), CancellationToken::new());
        let inner = HealthService::from_health_reporter(reporter.clone());
        let health = DrainedHealth { inner, drain: drain.clone() };
        let request = || Request::new(HealthCheckRequest { service: String::new() });
        let mut watch = health.watch(request()).await.expect("the service is known").into_inner();
        let serving = watch.next().await.expect("a status").expect("a status");
        assert_eq!(serving.status(), health_check_response::ServingStatus::Serving);
        reporter.set_service_status("", ServingStatus::NotServing).await;
        drain.cancel();
        let rest: Vec<_> = watch.map(|status| status.expect("a status").status()).collect().await;
        assert_eq!(rest, [health_check_response::ServingStatus::NotServing]);
        let late = health.watch(request()).await.expect("the service is known").into_inner();
        assert_eq!(late.count().await, 1, "a watch that begins later gets the status, too");
    }
}
