//! Sends HTTP requests to a port of one pod, through a port-forward. They bypass Services, and also the agent if the
//! port is the app's.

use anyhow::{Context as _, Result};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::Portforwarder};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::namespace::TestNamespace;

/// The port of the app behind the agent, on loopback in the pod.
pub(crate) const APP: u16 = 8080;
/// The port of the agent for clients of the app.
pub(crate) const PROXY: u16 = 8480;

/// The port of the agent for metrics.
pub(crate) const TELEMETRY: u16 = 8482;

/// A port-forward to a port of a pod, which ends when this value is dropped.
pub(crate) struct Forward(Portforwarder);

impl Forward {
    /// Opens a port-forward, and a stream through it.
    pub(crate) async fn open(space: &TestNamespace, pod: &str, port: u16) -> Result<(Self, impl Stream)> {
        let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
        let mut forwarder = pods.portforward(pod, &[port]).await.with_context(|| format!("port-forward to {pod}"))?;
        let stream = forwarder.take_stream(port).context("the forwarded port is missing")?;
        Ok((Self(forwarder), stream))
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The bytes of a connection.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Stream for T {}

/// A connection to a port of a pod. Requests are sent one after another.
pub(crate) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: tokio::task::JoinHandle<hyper::Result<()>>,
    _forward: Forward,
}

impl Connection {
    pub(crate) async fn open(space: &TestNamespace, pod: &str, port: u16) -> Result<Self> {
        let (forward, stream) = Forward::open(space, pod, port).await?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: tokio::spawn(driver), _forward: forward })
    }

    /// Sends a request, and returns the response with its whole body.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<String>> {
        self.sender.ready().await?;
        let (parts, body) = self.sender.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Response::from_parts(parts, String::from_utf8_lossy(&body).into_owned()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Sends `GET path` to a port of `pod`. Returns the response with its whole body.
pub(crate) async fn get(space: &TestNamespace, pod: &str, port: u16, path: &str) -> Result<Response<String>> {
    let mut connection = Connection::open(space, pod, port).await?;
    let request = Request::get(path).header("host", "web").body(Full::default())?;
    connection.send(request).await.with_context(|| format!("GET {path} from port {port} of {pod}"))
}
