//! Tests that no client makes the rate limit service (`weir-agent rls`) use much memory. The messages are bytes, because
//! the types of a library would take the memory here.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::BodyExt;

use crate::{
    quotas,
    service::METHOD,
    support::{Agent, Body, body, request},
};

/// A memory that the service does not exceed in these tests, although a pod has 256 MiB.
const LITTLE_KIB: u64 = 32 * 1024;

/// A field of a message with a length.
fn field(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    let mut length = value.len();
    while length >= 0x80 {
        bytes.push(u8::try_from(length % 0x80).expect("seven bits") | 0x80);
        length /= 0x80;
    }
    bytes.push(u8::try_from(length).expect("seven bits"));
    [bytes, value.to_vec()].concat()
}

/// The message with the domain `shop` and these fields, after its prefix in gRPC.
fn message(fields: &[u8]) -> Vec<u8> {
    let message = [&field(1, b"shop"), fields].concat();
    let length = u32::try_from(message.len()).expect("short").to_be_bytes();
    [&[0], &length[..], &message].concat()
}

fn call(path: &str, body: Body) -> Request<Body> {
    let request = Request::post(format!("http://agent.test{path}"));
    request.header("content-type", "application/grpc").header("te", "trailers").body(body).expect("valid")
}

/// The status of a gRPC call and its message.
async fn status(agent: &Agent, path: &str, message: Vec<u8>) -> (String, String) {
    let response = agent.http2().await.send_request(call(path, body(message))).await.expect("a response");
    let (head, body) = response.into_parts();
    let trailers = body.collect().await.expect("a complete body").trailers().cloned().unwrap_or_default();
    let of = |name: &str| {
        let of = |headers: &HeaderMap| headers.get(name).map(|value| value.to_str().expect("text").to_owned());
        of(&head.headers).or_else(|| of(&trailers)).unwrap_or_default()
    };
    (of("grpc-status"), of("grpc-message"))
}

#[tokio::test]
async fn lists_of_empty_elements_take_little_memory() {
    const BYTES: usize = 2_500_000;
    let agent = Agent::service(&[]);
    let before = agent.peak_kib();
    let many = |element: &[u8]| element.repeat(BYTES / element.len());
    let distinct: Vec<u8> =
        (0..BYTES / 10).flat_map(|number| field(1, &field(1, format!("{number:06}").as_bytes()))).collect();
    for (path, fields, told) in [
        (METHOD, many(&field(2, &field(1, b""))), "descriptors: has 625000,"),
        (METHOD, field(2, &many(&field(1, b""))), "descriptors[0].entries: has 1250000,"),
        (quotas::METHOD, many(&field(2, &field(1, &field(1, b"")))), "bucket_quota_usages[0].bucket_id.bucket: a key"),
        (quotas::METHOD, field(2, &field(1, &distinct)), "bucket_quota_usages[0].bucket_id.bucket: has 250000,"),
    ] {
        let (code, text) = status(&agent, path, message(&fields)).await;
        assert!(code == "3" && text.replace("%20", " ").starts_with(told), "{code} {text}");
    }
    let json = |entries: usize| {
        let entries = Bytes::from(vec!["{}"; entries].join(","));
        let body = [br#"{"domain":"shop","descriptors":[{"entries":["#, &*entries, b"]}]}"].concat();
        agent.client.send(request("POST", &agent.url("/json"), &[], body))
    };
    let refused = json(80_000).await;
    let text = String::from_utf8_lossy(refused.body());
    assert!(refused.status() == 400 && text.contains("has 80000, and at most 50"), "{text}");
    let grown = agent.peak_kib() - before;
    assert!(grown < LITTLE_KIB, "{grown} KiB");
    assert_eq!(json(87_400).await.status(), 413);
}
