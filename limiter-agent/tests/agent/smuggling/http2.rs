//! Tests ambiguous requests over HTTP/2, whose frames can carry values that HTTP/1 text cannot.

use super::{MARKER, Recorder};
use crate::{
    hostile::{Answer, frames},
    support::Agent,
};

/// Sends a request, and returns how its stream ends.
pub(super) async fn send_http2(agent: &Agent, fields: &[(&str, &str)], data: Option<&str>) -> Answer {
    let head = frames::headers(1, &frames::block(fields.iter().copied()), data.is_none());
    let body = data.map(|data| frames::data(1, data.as_bytes(), true)).unwrap_or_default();
    frames::ask(agent.connect().await, &[frames::greeting(), head, body].concat()).await
}

#[tokio::test]
async fn http2_requests_that_http1_would_misread_are_refused() {
    const OK: Answer = Answer::Status(200);
    const BAD_REQUEST: Answer = Answer::Status(400);
    const PROTOCOL_ERROR: Answer = Answer::Reset(1);
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &["--upstream-http2", "never"]);
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let with = |name, value| [post.as_slice(), &[(name, value)]].concat();
    let instead = |name: &'static str, value: &'static str| {
        post.into_iter().map(|(known, was)| (known, if known == name { value } else { was })).collect::<Vec<_>>()
    };
    for (fields, data, expected) in [
        (post.to_vec(), Some("hello"), OK),
        (with("content-length", "5"), Some("hello"), OK),
        (with("host", "a"), None, OK),
        (with("content-length", "4"), Some("hello"), PROTOCOL_ERROR),
        (with("content-length", "6"), Some("hello"), PROTOCOL_ERROR),
        (with("content-length", "5"), None, PROTOCOL_ERROR),
        (with("content-length", "x"), Some("hello"), PROTOCOL_ERROR),
        ([with("content-length", "5"), vec![("content-length", "5")]].concat(), Some("hello"), BAD_REQUEST),
        (with("transfer-encoding", "chunked"), Some("0\r\n\r\n"), PROTOCOL_ERROR),
        (with("connection", "keep-alive"), None, PROTOCOL_ERROR),
        (with("upgrade", "websocket"), None, PROTOCOL_ERROR),
        (with("te", "gzip"), None, PROTOCOL_ERROR),
        (with("x", "a\r\nb: c"), None, PROTOCOL_ERROR),
        (with("x", "a\0b"), None, PROTOCOL_ERROR),
        (with("x\r\ny", "z"), None, PROTOCOL_ERROR),
        (with("X-Upper", "z"), None, PROTOCOL_ERROR),
        (with("x y", "z"), None, PROTOCOL_ERROR),
        (with(":path", "/second"), None, PROTOCOL_ERROR),
        (with(":unknown", "x"), None, PROTOCOL_ERROR),
        (with("host", "b"), None, BAD_REQUEST),
        (instead(":authority", "u@a"), None, BAD_REQUEST),
        (instead(":authority", "a b"), None, PROTOCOL_ERROR),
        (instead(":path", "/ HTTP/1.1\r\nx: y"), None, PROTOCOL_ERROR),
        (instead(":path", "/a b"), None, PROTOCOL_ERROR),
        (instead(":path", ""), None, PROTOCOL_ERROR),
        (instead(":method", "GET / HTTP/1.1\r\n"), None, PROTOCOL_ERROR),
        (instead(":scheme", "ftp"), None, BAD_REQUEST),
        (instead(":path", "*"), None, BAD_REQUEST),
        (instead(":path", "a"), None, PROTOCOL_ERROR),
        (instead(":path", "http://b/"), None, PROTOCOL_ERROR),
        (instead(":authority", "a, b"), None, PROTOCOL_ERROR),
        (instead(":authority", "a/b"), None, PROTOCOL_ERROR),
        (instead(":method", "CONNECT"), None, PROTOCOL_ERROR),
        ([post[..3].to_vec(), vec![("host", "a")]].concat(), None, OK),
        (post[1..].to_vec(), None, PROTOCOL_ERROR),
        ([post[..1].to_vec(), post[2..].to_vec()].concat(), None, PROTOCOL_ERROR),
        ([post[..2].to_vec(), post[3..].to_vec()].concat(), None, PROTOCOL_ERROR),
        ([vec![("x", "y")], post.to_vec()].concat(), None, PROTOCOL_ERROR),
        (with(":status", "200"), None, PROTOCOL_ERROR),
        (with(":protocol", "websocket"), None, PROTOCOL_ERROR),
        (with("te", "trailers"), None, OK),
        (with("te", "trailers, gzip"), None, PROTOCOL_ERROR),
        (with("proxy-connection", "x"), None, PROTOCOL_ERROR),
        (with("keep-alive", "x"), None, PROTOCOL_ERROR),
        (with("", "x"), None, PROTOCOL_ERROR),
        (with("x:y", "z"), None, PROTOCOL_ERROR),
        (with("content-length", "+5"), Some("hello"), PROTOCOL_ERROR),
        (with("content-length", "5, 5"), Some("hello"), PROTOCOL_ERROR),
        (with("content-length", "0"), Some("hello"), PROTOCOL_ERROR),
    ] {
        let answer = send_http2(&agent, &fields, data).await;
        assert_eq!(answer, expected, "{fields:?}");
        let marker = agent.raw(MARKER).await;
        assert!(marker.ends_with("ok"), "{marker}");
        let received = app.received();
        let marker = received.find("GET /marker").expect("the marker");
        let first = &received[..marker];
        if expected == OK {
            let body = data.unwrap_or_default();
            assert!(first.starts_with("POST / HTTP/1.1\r\n") && first.matches("host: a\r\n").count() == 2, "{first:?}");
            assert!(first.contains(body), "{first:?}");
        } else {
            // If the body is cut off, the app may have received the start of the request.
            assert!(!first.contains("0\r\n\r\n") && first.matches(" HTTP/1.1").count() <= 1, "{fields:?}: {first:?}");
            assert!(data.is_some() || first.is_empty(), "{fields:?}: {first:?}");
        }
    }
}
