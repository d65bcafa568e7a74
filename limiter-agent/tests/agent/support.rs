//! Runs a real agent process, an app behind the agent, and a client in front of it, all on loopback.

mod agent;
mod app;
mod certificates;
mod stores;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client as Pool, Error, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};

pub(crate) use self::{
    agent::{Agent, PATIENCE, binary, binary_with_descriptors, latin},
    app::{App, Body, ClosedPort, accept, body, echo, empty},
    certificates::{Authority, Identity, TlsClient, tls},
    stores::{Server, delayed, memcached_at, redis_at},
};

/// Starts an app that answers every request with 200, and an agent in front of it.
pub(crate) async fn start() -> (App, Agent) {
    let app = App::start().await;
    let agent = Agent::start(app.address, &[]);
    (app, agent)
}

/// A client with its own connections.
#[derive(Clone)]
pub(crate) struct Client(Pool<HttpConnector, Full<Bytes>>);

impl Client {
    pub(crate) fn new() -> Self {
        Self(Pool::builder(TokioExecutor::new()).build_http())
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Bytes> {
        let (head, body) = self.try_send(request).await.expect("a response").into_parts();
        Response::from_parts(head, body.collect().await.expect("a complete body").to_bytes())
    }

    pub(crate) async fn try_send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Error> {
        self.0.request(request).await
    }

    pub(crate) async fn get(&self, url: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        self.send(request("GET", url, headers, "")).await
    }
}

pub(crate) fn request(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).expect("a valid request")
}

/// Reads the head of a message, with the empty line at its end. None if the connection ends before.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).expect("text"))
}

pub(crate) fn header<'a>(response: &'a Response<Bytes>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().expect("text"))
}

pub(crate) fn json_of(response: &Response<Bytes>) -> Value {
    serde_json::from_slice(response.body()).expect("JSON")
}

/// A snapshot whose revision is derived from its sequence.
pub(crate) fn snapshot(sequence: u64, policies: &[Value]) -> Value {
    json!({"wireVersion": 1, "sequence": sequence, "revision": format!("r{sequence}"), "policies": policies})
}

/// An enforcing policy in the namespace `shop`.
pub(crate) fn policy(name: &str, rules: &[Value]) -> Value {
    json!({
        "uid": format!("uid-{name}"), "namespace": "shop", "name": name, "revision": "p1", "mode": "Enforce",
        "rules": rules,
    })
}

/// A rule for all requests.
pub(crate) fn rule(name: &str, limits: &[Value]) -> Value {
    json!({"name": name, "action": "Limit", "limits": limits})
}

/// A limit per day. The period is so long that no refill or end of a window occurs during a test.
pub(crate) fn daily(name: &str, strategy: &str, requests: u64) -> Value {
    json!({"name": name, "strategy": strategy, "requests": requests, "periodMillis": 86_400_000})
}

/// `object` with the fields of `more` added.
pub(crate) fn with(mut object: Value, more: Value) -> Value {
    let (Value::Object(object_fields), Value::Object(more)) = (&mut object, more) else { panic!("not objects") };
    object_fields.extend(more);
    object
}
