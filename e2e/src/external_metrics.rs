//! The API of external metrics, which a HorizontalPodAutoscaler reads. This process serves it to the apiserver of the
//! cluster, so a scenario decides how many pods the HorizontalPodAutoscaler wants.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context as _, Result};
use http::{Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use k8s_openapi::jiff::Timestamp;
use rustls::{ServerConfig, crypto::ring};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

use crate::{clock, namespace::TestNamespace, node::Node};

/// The group and version of the API.
const API: &str = "external.metrics.k8s.io/v1beta1";
/// The name of the object that registers the API in the cluster.
const REGISTRATION: &str = "v1beta1.external.metrics.k8s.io";
/// The name of the only metric.
pub(crate) const METRIC: &str = "pods-wanted";

/// A server of the API. The server ends when this value is dropped.
pub(crate) struct ExternalMetrics {
    value: Arc<AtomicU32>,
    server: JoinHandle<()>,
}

impl ExternalMetrics {
    /// Serves the metric with this value, and registers the API in the cluster.
    pub(crate) async fn start(space: &TestNamespace, value: u32) -> Result<Self> {
        let host = Node::control_plane(&space.client()).await?.gateway().await?;
        let listener = TcpListener::bind((host, 0)).await.with_context(|| format!("listen on {host}"))?;
        let address = listener.local_addr()?;
        let value = Arc::new(AtomicU32::new(value));
        let server = tokio::spawn(serve(listener, acceptor(host)?, Arc::clone(&value)));
        let metrics = Self { value, server };
        space.apply(&registration(&space.namespace, address)).await?;
        Ok(metrics)
    }

    /// Sets the value of the metric.
    pub(crate) fn set(&self, value: u32) {
        self.value.store(value, Ordering::Relaxed);
    }

    /// Removes the API from the cluster. While it is registered and not served, the cluster deletes no namespace.
    pub(crate) async fn remove(space: &TestNamespace) -> Result<()> {
        space.kubectl(&["delete", "apiservice", REGISTRATION, "--ignore-not-found"]).await.map(drop)
    }
}

impl Drop for ExternalMetrics {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The objects through which the apiserver finds this process.
fn registration(namespace: &str, address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: external-metrics}}
spec:
  ipFamilies: [{family}]
  ports: [{{name: https, port: 443, targetPort: {port}}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: external-metrics
  labels: {{kubernetes.io/service-name: external-metrics}}
addressType: {family}
ports: [{{name: https, port: {port}}}]
endpoints: [{{addresses: ['{ip}'], conditions: {{ready: true}}}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {{name: {REGISTRATION}}}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {{name: external-metrics, namespace: {namespace}, port: 443}}
"
    )
}

fn acceptor(host: IpAddr) -> Result<TlsAcceptor> {
    let own = rcgen::generate_simple_self_signed([host.to_string()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key.into())?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, value: Arc<AtomicU32>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, value) = (acceptor.clone(), Arc::clone(&value));
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let answer = service_fn(move |request: Request<Incoming>| {
                let answer = answer(request.uri().path(), value.load(Ordering::Relaxed));
                async move { Ok::<_, Infallible>(answer) }
            });
            // The apiserver opens a new connection if this one ends.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

fn answer(path: &str, value: u32) -> Response<Full<Bytes>> {
    let (status, body) = match path.strip_prefix(&format!("/apis/{API}")) {
        Some("") => (StatusCode::OK, resources()),
        Some(path) if path.ends_with(&format!("/{METRIC}")) => (StatusCode::OK, values(value)),
        _ => (StatusCode::NOT_FOUND, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404})),
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    response
}

fn resources() -> Value {
    let metric = json!({
        "name": METRIC, "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"],
    });
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API, "resources": [metric]})
}

fn values(value: u32) -> Value {
    let now = i64::try_from(clock::unix_millis()).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
    let item = json!({"metricName": METRIC, "metricLabels": {}, "timestamp": now, "value": value.to_string()});
    json!({"kind": "ExternalMetricValueList", "apiVersion": API, "metadata": {}, "items": [item]})
}
