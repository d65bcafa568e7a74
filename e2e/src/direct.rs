//! One HTTP request to a port of one pod, through a port-forward: past Services, and past the agent if the port is the
//! app's.

use anyhow::{Context as _, Result};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use crate::namespace::Space;

/// Port of the app behind the agent, on loopback in the pod.
pub(crate) const APP: u16 = 8080;
/// Port of the agent for clients of the app.
pub(crate) const PROXY: u16 = 8480;

/// `GET path` from `pod`. Returns the answer with its whole body.
pub(crate) async fn get(space: &Space, pod: &str, port: u16, path: &str) -> Result<Response<String>> {
    let pods: Api<Pod> = Api::namespaced(space.client(), &space.namespace);
    let mut forwarder = pods.portforward(pod, &[port]).await.with_context(|| format!("port-forward to {pod}"))?;
    let stream = forwarder.take_stream(port).context("the port asked for")?;
    let (mut connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(driver);
    let request = Request::get(path).header("host", "web").body(Empty::<Bytes>::new())?;
    let answer = async {
        let (parts, body) = connection.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        hyper::Result::Ok(Response::from_parts(parts, String::from_utf8_lossy(&body).into_owned()))
    }
    .await;
    driver.abort();
    forwarder.abort();
    answer.with_context(|| format!("GET {path} from port {port} of {pod}"))
}
