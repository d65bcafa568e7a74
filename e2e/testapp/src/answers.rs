//! The short answers of the app.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};

pub(crate) type Body = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

pub(crate) fn text(status: StatusCode, body: String) -> Response<Body> {
    full(status, "text/plain; charset=utf-8", body)
}

pub(crate) fn json(body: &serde_json::Value) -> Response<Body> {
    full(StatusCode::OK, "application/json", format!("{body}\n"))
}

fn full(status: StatusCode, content_type: &'static str, body: String) -> Response<Body> {
    let mut response = Response::new(Full::from(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
