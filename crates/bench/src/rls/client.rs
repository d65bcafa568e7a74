//! A gRPC client of the rate limit service.

use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use http::uri::PathAndQuery;
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::messages::{Request, Response};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// One connection. Its clones send on the same connection.
#[derive(Clone)]
pub(crate) struct Client(Grpc<Channel>);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).context("the address cannot be a URI")?;
        let channel = endpoint.tcp_nodelay(true).connect().await.with_context(|| format!("connect to {address}"))?;
        Ok(Self(Grpc::new(channel)))
    }

    pub(crate) async fn ask(&mut self, request: Request) -> anyhow::Result<Response> {
        self.0.ready().await.context("the connection to the service")?;
        let codec: ProstCodec<Request, Response> = ProstCodec::default();
        let response = self.0.unary(tonic::Request::new(request), PathAndQuery::from_static(METHOD), codec).await;
        Ok(response.map_err(|status| anyhow!("{:?}: {}", status.code(), status.message()))?.into_inner())
    }
}
