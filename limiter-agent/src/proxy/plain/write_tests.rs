//! Checks that the lines that the short path writes equal the header map of hyper's path.

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_enforce::{AmbiguousPaths, Fields};

use super::*;
use crate::proxy::{
    headers,
    plain::{
        field::{FieldSpace, RequestFields},
        request::{HeadBounds, Look},
        response::{self, ParsedHead},
    },
};

const BOUNDS: HeadBounds = HeadBounds { bytes: 8192, fields: 100, ambiguous_paths: AmbiguousPaths::Keep };

fn peer() -> Peer {
    Peer::new("2001:db8::3".parse().expect("an address"))
}

/// The fields of a written head. All names are in lower case.
fn fields(head: &[u8]) -> HeaderMap {
    let text = str::from_utf8(head).expect("text");
    let (head, _) = text.split_once("\r\n\r\n").expect("a complete head");
    let lines = head.split("\r\n").skip(1).map(|line| line.split_once(": ").expect("a field"));
    lines
        .map(|(name, value)| {
            assert_eq!(name, name.to_ascii_lowercase());
            (HeaderName::try_from(name).expect("a name"), HeaderValue::from_str(value).expect("a value"))
        })
        .collect()
}

fn map(lines: &str) -> HeaderMap {
    fields(format!("x\r\n{}\r\n", lines.to_ascii_lowercase()).as_bytes())
}

#[test]
fn the_app_gets_the_same_request_as_on_hypers_path() {
    for lines in [
        "Host: a\r\n",
        "host: a\r\nAccept: */*\r\naccept: b\r\nconnection: close\r\nkeep-alive: timeout=5\r\n",
        "host: a\r\nproxy-connection: x\r\nproxy-authorization: y\r\nproxy-authenticate: z\r\n",
        "host: a\r\nx-forwarded-for: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n",
        "host: a\r\nx-forwarded-proto: https\r\nx-forwarded-host: b\r\n",
        "host: a\r\nforwarded: for=192.0.2.1\r\nforwarded: for=_hidden\r\n",
        "host: a\r\ncookie: a=1\r\nx: y\r\ncookie: b=2\r\n",
        "host: a\r\ncookie: a=1\r\n",
        "host: a\r\ncontent-length: 000\r\n",
    ] {
        let bytes = format!("PUT /a?b HTTP/1.1\r\n{lines}\r\n");
        let mut read = RequestFields::default();
        let Look::Plain(plain) = Request::look(bytes.as_bytes(), &mut read, BOUNDS) else { panic!("plain: {lines}") };
        let mut written = Vec::new();
        to_app(&plain, &peer(), &mut written);
        assert!(written.starts_with(b"PUT /a?b HTTP/1.1\r\n"));

        let mut expected = map(lines);
        headers::to_upstream(&mut expected, &peer(), false);
        assert_eq!(fields(&written), expected, "{lines}");
    }
}

#[test]
fn the_body_follows_its_head() {
    let bytes = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi";
    let mut read = RequestFields::default();
    let Look::Plain(plain) = Request::look(bytes, &mut read, BOUNDS) else { panic!("plain") };
    let mut written = Vec::new();
    to_app(&plain, &peer(), &mut written);
    assert!(written.ends_with(b"\r\nx-forwarded-host: a\r\n\r\nhi"));
}

/// The head that a client gets, without its date.
fn passed(lines: &str, to_head: bool, closes: bool) -> (String, HeaderMap) {
    let bytes = format!("HTTP/1.1 {lines}\r\n");
    let mut space = FieldSpace::new();
    let Ok(ParsedHead::Final(head)) = response::read(bytes.as_bytes(), &mut space, to_head) else { panic!("final") };
    let date = Date::new();
    let mut written = Vec::new();
    let ending = Ending { closes, date: &date, now: Time::from_nanos(1) };
    to_client(&head, to_head, (&Fields::default(), &[]), ending, &mut written);
    let mut fields = fields(&written);
    fields.remove("date").expect("a date");
    let line = written.iter().position(|byte| *byte == b'\r').expect("a line");
    (String::from_utf8_lossy(&written[..line]).into_owned(), fields)
}

#[test]
fn the_client_gets_the_same_response_as_on_hypers_path() {
    for (lines, to_head, expected) in [
        ("200 OK\r\nContent-Length: 5\r\nX: y\r\nx: z\r\n", false, "content-length: 5\r\nx: y\r\nx: z\r\n"),
        ("200 OK\r\ncontent-length: 5, 5\r\ncontent-length: 5\r\n", false, "content-length: 5\r\n"),
        ("200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n", false, "transfer-encoding: chunked\r\n"),
        ("200 OK\r\n", false, "transfer-encoding: chunked\r\n"),
        ("200 OK\r\ncontent-length: 0\r\n", false, "content-length: 0\r\n"),
        ("200 OK\r\ncontent-length: 0300\r\n", false, "content-length: 0300\r\n"),
        ("200 OK\r\ncontent-length: 5\r\n", true, "content-length: 5\r\n"),
        ("304 Not Modified\r\ncontent-length: 5\r\n", true, "content-length: 5\r\n"),
        ("200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\ntrailer: x\r\n", true, ""),
        ("200 OK\r\n", true, ""),
        ("204 No Content\r\ncontent-length: 5\r\n", false, ""),
        ("204 No Content\r\ncontent-length: 5\r\n", true, ""),
        ("204 No Content\r\ncontent-length: x\r\n", true, ""),
        ("304 Not Modified\r\ncontent-length: 5\r\netag: x\r\n", false, "etag: x\r\n"),
        (
            "200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x\r\n",
            false,
            "trailer: x\r\ntransfer-encoding: chunked\r\n",
        ),
        (
            "200 OK\r\nconnection: close, X-Hop\r\nx-hop: 1\r\nkeep-alive: 5\r\nupgrade: h2c\r\ncontent-length: 1\r\n",
            false,
            "content-length: 1\r\n",
        ),
        ("200 OK\r\nconnection: host\r\nhost: a\r\ncontent-length: 1\r\n", false, "host: a\r\ncontent-length: 1\r\n"),
    ] {
        let (line, fields) = passed(lines, to_head, false);
        assert_eq!(line, format!("HTTP/1.1 {}", lines.lines().next().expect("a line")));
        assert_eq!(fields, map(expected), "{lines}");
    }
    let (line, fields) = passed("299 As It Pleases\r\ncontent-length: 0\r\n", false, true);
    assert_eq!(
        (line.as_str(), &fields["connection"]),
        ("HTTP/1.1 299 As It Pleases", &HeaderValue::from_static("close"))
    );
}

#[test]
fn the_apps_date_stays_and_there_is_only_one() {
    let bytes = b"HTTP/1.1 200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-length: 0\r\n\r\n";
    let mut space = FieldSpace::new();
    let Ok(ParsedHead::Final(head)) = response::read(bytes, &mut space, false) else { panic!("final") };
    let (mut written, date) = (Vec::new(), Date::new());
    let ending = Ending { closes: false, date: &date, now: Time::from_nanos(1) };
    to_client(&head, false, (&Fields::default(), &[]), ending, &mut written);
    let dates: Vec<_> = fields(&written).get_all("date").iter().cloned().collect();
    assert_eq!(dates, ["Sun, 06 Nov 1994 08:49:37 GMT"]);
}

#[test]
fn the_agents_own_response_has_the_right_length() {
    let parts = |status: u16| {
        let response = http::Response::builder().status(status).header("x", "y").body(()).expect("valid");
        response.into_parts().0
    };
    let date = Date::new();
    for (status, body, to_head, closes, expected) in [
        (429, "no\n", false, false, Some("x: y\r\ncontent-length: 3\r\n")),
        (429, "no\n", true, false, Some("x: y\r\ncontent-length: 3\r\n")),
        (429, "", false, true, Some("x: y\r\nconnection: close\r\ncontent-length: 0\r\n")),
        (429, "", true, false, Some("x: y\r\n")),
        (204, "no\n", false, false, None),
    ] {
        let mut written = Vec::new();
        let ending = Ending { closes, date: &date, now: Time::from_nanos(1) };
        let text = Bytes::from_static(body.as_bytes());
        own(&parts(status), &text, to_head, &Fields::default(), ending, &mut written);
        let mut fields = fields(&written);
        fields.remove("date").expect("a date");
        assert_eq!(fields, map(expected.unwrap_or("x: y\r\n")), "{status} {body:?} {to_head}");
        let has_body = expected.is_some() && !to_head;
        assert!(written.ends_with(if has_body { body.as_bytes() } else { b"\r\n\r\n" }));
    }
}
