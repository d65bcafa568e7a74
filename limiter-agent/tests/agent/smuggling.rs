//! Tests requests that are designed so that the proxy and the app understand them differently.
//!
//! The app is a socket that records every byte. If the app answers a request, it must have received exactly the
//! expected bytes. If the agent refuses a request, the app must receive no byte of this request and no byte after it.

mod http2;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    hostile::Answer,
    support::{Agent, accept, daily, policy, rule, snapshot, with},
};

/// An HTTP/1.1 app that trusts its input and answers `ok` to everything.
struct Recorder {
    address: SocketAddr,
    received: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    async fn start() -> Self {
        let received = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&received);
        Self { address: accept(move |stream| answer(stream, Arc::clone(&record))).await, received }
    }

    fn received(&self) -> String {
        let received = std::mem::take(&mut *self.received.lock().expect("not poisoned"));
        received.iter().map(|byte| char::from(*byte)).collect()
    }
}

async fn answer(mut stream: TcpStream, record: Arc<Mutex<Vec<u8>>>) {
    let mut message = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes).await {
        message.extend_from_slice(&bytes[..count]);
        record.lock().expect("not poisoned").extend_from_slice(&bytes[..count]);
        while let Some(end) = end_of_message(&message) {
            message.drain(..end);
            if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
                return;
            }
        }
    }
}

fn end_of_message(bytes: &[u8]) -> Option<usize> {
    let find = |from: usize, what: &[u8]| {
        bytes[from..].windows(what.len()).position(|window| window == what).map(|at| from + at + what.len())
    };
    let head = find(0, b"\r\n\r\n")?;
    let end = match find(0, b"content-length: ").filter(|at| *at < head) {
        Some(at) => {
            let digits: String =
                bytes[at..].iter().map(|byte| char::from(*byte)).take_while(char::is_ascii_digit).collect();
            head + digits.parse::<usize>().expect("a number")
        }
        None if find(0, b"transfer-encoding").is_some_and(|at| at < head) => find(head, b"0\r\n\r\n")?,
        None => head,
    };
    (bytes.len() >= end).then_some(end)
}

/// The fields that the proxy adds for a host.
fn added(host: &str) -> String {
    format!("x-forwarded-for: 127.0.0.1\r\nx-forwarded-proto: http\r\nx-forwarded-host: {host}\r\n")
}

const MARKER: &str = "GET /marker HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
const BEHIND: &str = "GET /behind HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// Ambiguous requests, and the status of their refusal.
pub(crate) fn ambiguous() -> Vec<(String, u16)> {
    let post = |rest: String| format!("POST /first HTTP/1.1\r\nhost: a\r\n{rest}");
    let lengths = [
        "5\r\ncontent-length: 6", "5\r\ncontent-length: 5", "5\r\nContent-Length: 05", "5, 5", "5,", "+5", "-5", "0x5",
        "5 5", "18446744073709551621", "18446744073709551615", "5;", "5.0", "5e0", "\"5\"", "\u{b2}", "5\t6", "\u{b}5",
        "5\0", "5\r\n 5",
    ];
    let codings = [
        "gzip, chunked", "chunked, identity", "xchunked", "\u{b}chunked", "\u{c}chunked", "chunked\u{c}",
        "chunked\u{b}", "chunked\0", "\"chunked\"", "chunked, chunked", "chunked;q=1", "chunked\r\n , identity",
        "chunked\r\ncontent-length: 5", "chunked\r\nTransfer-Encoding: cow", "chunked\r\ntransfer-encoding: chunked",
        "chunked\r\ntransfer-encoding: identity",
    ];
    let lines = [
        "x: y\r\n\tfolded", "x: a\0b", "x\u{e4}: y", "x y: z", ": empty", "no colon", "\0x: y", "x\0: y", "x: y\r",
        "x: a\u{b}b", "x: a\u{7f}b", "x: a\u{1b}b", "x(y): z", "x@y: z", "x/y: z", "x\t: z", "\"x\": z", "host: b",
        "Host: a", "HOST:", "transfer-encoding: gzip", "transfer-encoding: identity",
    ];
    let others = [
        "content-length:\r\n\r\nhello",
        "content-length : 5\r\n\r\nhello",
        " content-length: 5\r\n\r\nhello",
        "x: y\r\n content-length: 5\r\n\r\nhello",
        "x: y\ncontent-length: 5\r\n\r\nhello",
        "x: y\rcontent-length: 5\r\n\r\nhello",
        "x: y\n\n",
        "x: y\r\n\r\r\n",
        "transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
        "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer-encoding:\tchunked\r\ncontent-length:\t5\r\n\r\n0\r\n\r\n",
        "transfer-encoding:\r\n\r\n0\r\n\r\n",
        "transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
        "transfer\u{b}-encoding: chunked\r\n\r\n0\r\n\r\n",
        "\u{b}transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ];
    let request_lines = [
        " POST /first HTTP/1.1", "\0POST /first HTTP/1.1", "\r\r\nPOST /first HTTP/1.1", "\nPOST /first HTTP/1.1",
        "POST  /first HTTP/1.1", "POST\t/first HTTP/1.1", "POST /first  HTTP/1.1", "POST /fi rst HTTP/1.1",
        "POST /first HTTP/1.1 ", "POST /first HTTP/2.0", "POST /first http/1.1", "PO(ST /first HTTP/1.1",
        "POST first HTTP/1.1", "POST /first HTTP/1.2", "POST /first HTTP/0.9", "POST /first HTTP/1.10",
        "POST /first HTTP/01.1", "POST /first HTTP/1", "POST /first HTTPS/1.1", "POST /first HTTP /1.1",
        "POST /first HTTP/1.1\0", "POST /first HTTP/1.1 x", "POST /first\tHTTP/1.1", "POST /first\0 HTTP/1.1",
        "POST /fi\rrst HTTP/1.1", "POST  HTTP/1.1", "POST * HTTP/1.1", "GET * HTTP/1.1", "GET ?first HTTP/1.1",
        "GET http:///first HTTP/1.1", "GET http:first HTTP/1.1", "GET a:80 HTTP/1.1", "GET javascript:first HTTP/1.1",
        "POST http://u@a/first HTTP/1.1", "POST ftp://a/first HTTP/1.1", "GET http://a,b/first HTTP/1.1",
        "GET http://a/first HTTP/1.1\r\nhost: a",
    ];
    let heads = [
        "POST /first HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /first HTTP/1.1\nhost: a\n\n",
        "POST /first\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        "POST /first HTTP/1.1\r\n\r\n",
        "POST /first HTTP/1.1\r\nhost : a\r\n\r\n",
        "GET http://a/first HTTP/1.1\r\n\r\n",
    ];
    let hosts = ["a, b", "a/b", "u@a", "a b", "a\tb", "a#b", "a?b", "\"a\"", "http://a", "a\\b", "\u{e4}"];
    let long = "y".repeat(70_000);
    let too_large = [
        post(format!("x: {long}\r\n\r\n")),
        post(format!("{}\r\n", "x: y\r\n".repeat(101))),
        format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n"),
        format!("{} /first HTTP/1.1\r\nhost: a\r\n\r\n", "G".repeat(70_000)),
        post(format!("{}: y\r\n\r\n", "x".repeat(70_000))),
    ];
    let fields = (lengths.iter().map(|value| format!("content-length: {value}\r\n\r\nhello")))
        .chain(codings.iter().map(|value| format!("transfer-encoding: {value}\r\n\r\n0\r\n\r\n")))
        .chain(lines.iter().map(|line| format!("{line}\r\n\r\n")))
        .chain(others.map(str::to_owned));
    let invalid = (fields.map(post))
        .chain(request_lines.iter().map(|line| format!("{line}\r\nhost: a\r\n\r\n")))
        .chain(heads.map(str::to_owned))
        .chain(hosts.iter().map(|host| format!("POST /first HTTP/1.1\r\nhost: {host}\r\n\r\n")));
    let connect = "CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\n".to_owned();
    let all = invalid.map(|sent| (sent, 400)).chain(too_large.map(|sent| (sent, 431)));
    all.chain([(connect, 501)]).collect()
}

#[tokio::test]
async fn ambiguous_requests_are_refused() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[rule("all", &[daily("d", "FixedWindow", 1_000_000)])])])).await;
    for (sent, status) in ambiguous() {
        let answer = agent.raw(&(sent.clone() + BEHIND)).await;
        let shown: String = sent.chars().take(200).collect();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{shown:?}: {answer:?}");
        assert_eq!(answer.matches("\r\ndate: ").count(), 1, "no request after it is answered: {shown:?}: {answer:?}");
        let marker = agent.raw(MARKER).await;
        assert!(marker.ends_with("ok"), "{marker}");
        assert_eq!(app.received(), format!("GET /marker HTTP/1.1\r\nhost: a\r\n{}\r\n", added("a")), "{shown:?}");
    }
    // Refused requests are not charged. Only the markers are charged.
    assert_eq!(agent.counts(0, 0).await, [ambiguous().len() as u64, 0, 0]);
}

/// Invalid chunks, and invalid bytes around chunks.
pub(crate) fn wrong_bodies() -> Vec<String> {
    let sizes = [
        "5\n", "5\r", "5 \r\n", " 5\r\n", "5\t\r\n", "5\u{b}\r\n", "5\0\r\n", "5_\r\n", "5h\r\n", "+5\r\n", "-5\r\n",
        "0x5\r\n", "10000000000000005\r\n", "ffffffffffffffff0\r\n", ";x\r\n", "5;a\n", "5;a\nb\r\n",
    ];
    let ends = ["X\r\n0\r\n\r\n", "\n0\r\n\r\n", "0\r\n\r\n", "\r0\r\n\r\n"];
    let trailers = ["content-length: 5", "transfer-encoding: chunked", " folded: y", "x y: z", "no colon"];
    let others = ["\r\n\r\n", "5;a\nhello", "0;a\n", "0;a\n\r\n", "5\r\nhello\r\n0\r\nx: y\n\r\n"];
    (sizes.iter().map(|size| format!("{size}hello\r\n0\r\n\r\n")))
        .chain(ends.iter().map(|end| format!("5\r\nhello{end}")))
        .chain(trailers.iter().map(|line| format!("5\r\nhello\r\n0\r\n{line}\r\n\r\n")))
        .chain(others.map(str::to_owned))
        .collect()
}

/// The head is valid, so the app may have received it, but the app never gets an end that the body did not have. The
/// client gets 400 and the connection closes, whether the body arrives with its head or later.
#[tokio::test]
async fn an_invalid_body_never_gets_an_end() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    for rest in wrong_bodies() {
        let head = "POST /first HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let body = format!("{rest}{BEHIND}");
        for later in [false, true] {
            let answer = if later {
                let mut stream = agent.connect().await;
                stream.write_all(head.as_bytes()).await.expect("sent");
                let mut received = String::new();
                while !received.contains("POST /first") {
                    tokio::task::yield_now().await;
                    received += &app.received();
                }
                stream.write_all(body.as_bytes()).await.expect("sent");
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.expect("a clean close");
                String::from_utf8_lossy(&answer).into_owned()
            } else {
                agent.raw(&format!("{head}{body}")).await
            };
            assert!(answer.starts_with("HTTP/1.1 400 "), "{rest:?} {later}: {answer:?}");
            assert!(answer.contains("\r\nconnection: close\r\n"), "{rest:?} {later}: {answer:?}");
            assert_eq!(answer.matches("\r\ndate: ").count(), 1, "{rest:?} {later}: {answer:?}");
            let marker = agent.raw(MARKER).await;
            assert!(marker.ends_with("ok"), "{marker}");
            let received = app.received();
            assert!(!received.contains("/behind") && !received.contains("0\r\n\r\n"), "{rest:?}: {received:?}");
            assert!(
                !received.contains("2\r\n\r\n\r\n"),
                "the app got bytes that the client did not send: {rest:?}: {received:?}"
            );
        }
    }
}

#[tokio::test]
async fn requests_reach_the_app_in_one_spelling() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    // What the client sends, and what the app gets. `{added a}` stands for the fields that the proxy adds for host a.
    for row in [
        "\r\nGET / HTTP/1.1\r\nHOST:a \r\n{close} => GET / HTTP/1.1\r\nhost: a\r\n{added a}\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 005\r\n{close}hello \
         => POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 005\r\n{added a}\r\nhello",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: CHUNKED\r\n{close}005;x=y\r\nhello\r\n0\r\nx: y\r\n\r\n \
         => POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{added a}\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET http://b/x HTTP/1.1\r\nhost: a\r\n{close} => GET /x HTTP/1.1\r\nhost: b\r\n{added b}\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: close, content-length, host, x-secret\r\nx-secret: 1\r\ncontent-length: 2\r\n\r\nhi \
         => GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n{added a}\r\nhi",
        "GET / HTTP/1.1\r\nhost: a\r\nx: \u{e4}\r\n{close} => GET / HTTP/1.1\r\nhost: a\r\nx: \u{e4}\r\n{added a}\r\n",
        "\r\n\r\n\r\nGET / HTTP/1.1\r\nhost:\t a \t\r\nx:\t y\tz \r\n{close} \
         => GET / HTTP/1.1\r\nhost: a\r\nx: y\tz\r\n{added a}\r\n",
        // A client is allowed to send an empty host. Then the rules get no host.
        "GET / HTTP/1.1\r\nhost:\r\n{close} => GET / HTTP/1.1\r\nhost: \r\n{added }\r\n",
        "GET http://b HTTP/1.1\r\nhost:\r\n{close} => GET / HTTP/1.1\r\nhost: b\r\n{added b}\r\n",
        "GET HTTP://B:80/x?y=http://c HTTP/1.1\r\nhost: a\r\n{close} \
         => GET /x?y=http://c HTTP/1.1\r\nhost: B:80\r\n{added B:80}\r\n",
        "OPTIONS * HTTP/1.1\r\nhost: a\r\n{close} => OPTIONS * HTTP/1.1\r\nhost: a\r\n{added a}\r\n",
        "GET //b/...//%2e%2E./%21;c=d?/../e HTTP/1.1\r\nhost: a\r\n{close} \
         => GET //b/...//%2e%2E./%21;c=d?/../e HTTP/1.1\r\nhost: a\r\n{added a}\r\n",
        "get / HTTP/1.1\r\nhost: a:99999\r\n{close} => get / HTTP/1.1\r\nhost: a:99999\r\n{added a:99999}\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nConnection: close, Cookie, x-forwarded-for\r\nConnection: X-Secret\r\ncookie: a\r\nx-secret: 1\r\nx-forwarded-for: 192.0.2.1\r\n\r\n \
         => GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1, 127.0.0.1\r\nx-forwarded-proto: http\r\nx-forwarded-host: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nproxy-connection: keep-alive\r\nkeep-alive: x\r\nproxy-authorization: y\r\nte: gzip, trailers;q=0\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n{close} \
         => GET / HTTP/1.1\r\nhost: a\r\nhttp2-settings: AAMAAABkAAQ\r\n{added a}\r\n",
        // Trailers do not get into the head. Trailers about framing or routing are dropped.
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: host, authorization, te\r\n{close}0000\r\nhost: b\r\nauthorization: c\r\nte: trailers\r\n\r\n \
         => POST / HTTP/1.1\r\nhost: a\r\ntrailer: host, authorization, te\r\ntransfer-encoding: chunked\r\n{added a}\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\nTransfer-Encoding:\t chunked \t\r\n{close}5;a=\"b\";c \r\nhello\r\n000 ;d\r\n\r\n \
         => POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n{added a}\r\n5\r\nhello\r\n0\r\n\r\n",
        // Unknown expectations are forwarded to the app.
        "GET / HTTP/1.1\r\nhost: a\r\nexpect: x\r\n{close} => GET / HTTP/1.1\r\nhost: a\r\nexpect: x\r\n{added a}\r\n",
        // Bytes after the last request of a connection are not a request.
        "GET / HTTP/1.1\r\nhost: a\r\n{close}{behind} => GET / HTTP/1.1\r\nhost: a\r\n{added a}\r\n",
        "GET / HTTP/1.0\r\nhost: a\r\n\r\n{behind} => GET / HTTP/1.1\r\nhost: a\r\n{added a}\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n{behind} \
         => GET / HTTP/1.1\r\nhost: a\r\n{added a}connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    ] {
        let row = row.replace("{close}", "connection: close\r\n\r\n").replace("{behind}", BEHIND);
        let (sent, received) = row.split_once(" => ").expect("a row has the sent and the received request");
        let hosts = ["", "a", "a:99999", "b", "B:80"];
        let added = |received: String, host: &&str| received.replace(&format!("{{added {host}}}"), &added(host));
        let received = hosts.iter().fold(received.to_owned(), added);
        let answer = agent.raw(sent).await;
        assert!(answer.starts_with("HTTP/1.") && answer.ends_with("ok"), "{sent:?}: {answer:?}");
        assert!(answer[8..].starts_with(" 200 ") && answer.matches("\r\ndate: ").count() == 1, "{sent:?}: {answer:?}");
        assert_eq!(app.received(), received, "{sent:?}");
    }
}

/// A client can spell a path in many ways, but the same rule must match.
#[tokio::test]
async fn no_spelling_of_a_path_gets_past_its_rule() {
    let app = Recorder::start().await;
    no_spelling_gets_past(&Agent::start(app.address, &[]), true).await;
    for choice in ["keep", "decode", "refuse"] {
        no_spelling_gets_past(&Agent::start(app.address, &["--ambiguous-paths", choice]), choice == "refuse").await;
    }
}

/// `refuses_dots` is true if the agent refuses all paths with dot segments.
async fn no_spelling_gets_past(agent: &Agent, refuses_dots: bool) {
    let limit = || [daily("d", "FixedWindow", 1)];
    let about =
        |name: &str, wanted: serde_json::Value| with(rule(name, &limit()), serde_json::json!({"match": [wanted]}));
    let login = about("login", serde_json::json!({"paths": ["/api/login"]}));
    let odd = about("odd", serde_json::json!({"pathRegexes": ["(?i)^/odd(;[^/]*)?/login(;.*)?/?$"]}));
    agent.apply(&snapshot(1, &[policy("p", &[login, odd])])).await;
    let ask = async |target: &str| {
        let answer = agent.raw(&format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((ask("/api/login").await, ask("/odd/login").await), ("200".into(), "200".into()));
    for target in [
        "/api/login", "/api/login/", "//api/login", "/api//login", "/api///login//", "/%61pi/l%6Fgin",
        "/%61%70%69/%6c%6f%67%69%6e", "/api/login?", "/api/login?/../x", "http://b/api/login",
        "http://b//api/%6cogin?x",
        // If the app accepts more spellings, a regular expression can match them, too.
        "/odd/login", "/ODD/Login", "/odd;x=1/login", "/odd/login;x=1", "/odd;a/%6cogin;b/",
    ] {
        assert_eq!(ask(target).await, "429", "{target}");
    }
    for target in [
        "/./api/./login", "/api/login/.", "/x/../api/login", "/api/x/../login", "/api/login/x/..", "/../../api/login",
        "/%2e/api/login", "/%2E%2e/api/%2e/login", "/x/%2e%2E/api/login", "/x/.%2e/api/login",
        "/x/../odd;a/%6cogin;b/",
    ] {
        assert_eq!(ask(target).await, if refuses_dots { "400" } else { "429" }, "{target}");
    }
    // Some apps serve these by a route for `/api/*`.
    for target in ["/api/..", "/api/%2E%2e"] {
        assert_eq!(ask(target).await, if refuses_dots { "400" } else { "200" }, "{target}");
    }
    // These are other paths, unless an app decodes twice, supports path parameters, or ignores case.
    for target in ["/api/login;x=1", "/api;x/login", "/API/login", "/api/%256cogin", "/api/login%20"] {
        assert_eq!(ask(target).await, "200", "{target}");
    }
}

/// Some apps read these paths as `/api/x`, and others do not.
const AMBIGUOUS: [&str; 9] = [
    "/api%2fx", "/api%2Fx", "/%2fapi/x", "/z%2f..%2fapi/x", "/z/..;/api/x", "/z/%2e%2e;a=b/api/x", "/api%5cx",
    "/z%5C..%5Capi/x", "/z\\..\\api/x",
];

/// Some apps read these paths as `/api/x`, and others serve them by a route for `/z/**`.
const DOTTED: [&str; 4] = ["/z/../api/x", "/z/y/%2e%2e/../api/x", "/z/.%2E/api/./x", "/./api/x"];

#[tokio::test]
async fn ambiguous_paths_are_treated_as_configured() {
    let app = Recorder::start().await;
    let limited =
        with(rule("api", &[daily("d", "FixedWindow", 1)]), serde_json::json!({"match": [{"paths": ["/api/**"]}]}));
    let snapshot = snapshot(1, &[policy("p", &[limited])]);
    let [passes, refused, limited] = ["200", "400", "429"];
    for (choice, other, dotted) in [
        (&[][..], refused, refused),
        (&["--ambiguous-paths", "refuse"], refused, refused),
        (&["--ambiguous-paths", "decode"], limited, limited),
        (&["--ambiguous-paths", "keep"], passes, limited),
    ] {
        let agent = Agent::start(app.address, choice);
        agent.apply(&snapshot).await;
        let used = agent.raw("GET /api/x HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(used.starts_with("HTTP/1.1 200 "), "{used}");
        let targets = AMBIGUOUS.iter().map(|target| (target, other));
        for (target, expected) in targets.chain(DOTTED.iter().map(|target| (target, dotted))) {
            // The first request takes the short path, and the second takes hyper's path.
            for more in ["", "te: trailers\r\n"] {
                let asked = format!("GET {target} HTTP/1.1\r\nhost: a\r\n{more}connection: close\r\n\r\n");
                let answer = agent.raw(&asked).await;
                assert_eq!(answer.split(' ').nth(1), Some(expected), "{choice:?} {target}: {answer}");
            }
            let fields = [(":method", "GET"), (":scheme", "http"), (":path", *target), (":authority", "a")];
            let answer = http2::send_http2(&agent, &fields, None).await;
            assert_eq!(answer, Answer::Status(expected.parse().expect("a status")), "{choice:?} {target}");
        }
        let received = app.received();
        let passed = AMBIGUOUS.iter().filter(|target| received.contains(&format!("GET {target} HTTP/1.1\r\n"))).count();
        assert_eq!(passed, if other == passes { AMBIGUOUS.len() } else { 0 }, "{choice:?}");
        // A query is allowed to contain such characters.
        let answer = agent.raw("GET /?x=%2f..;/\\%5c HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        app.received();
        for asked in [r#"{"target": "/api%2fx"}"#, r#"{"target": "/z/../api"}"#] {
            let explained = agent.control("POST", "/v1/explain", asked).await;
            assert_eq!(explained.status(), if other == refused { 400 } else { 200 }, "{choice:?} {asked}");
        }
    }
}

/// Different spellings of a field's value are one key, and a client cannot choose its address behind trusted proxies.
#[tokio::test]
async fn no_spelling_of_a_field_is_a_key_of_its_own() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    let keyed = |name: &str, path: &str, key: serde_json::Value| {
        let about = serde_json::json!({"match": [{"paths": [path]}], "key": [key]});
        with(rule(name, &[daily("d", "FixedWindow", 1)]), about)
    };
    let rules = [
        keyed("key", "/key", serde_json::json!({"header": "x-api-key"})),
        keyed("client", "/client", serde_json::json!({"clientIP": {"trustedHops": 2, "ipv6Prefix": 64}})),
    ];
    agent.apply(&snapshot(1, &[policy("p", &rules)])).await;
    let fields = |path: &'static str, name: &'static str, value: &'static str| {
        [(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "a"), (name, value)]
    };
    assert_eq!(http2::send_http2(&agent, &fields("/key", "x-api-key", "ann"), None).await, Answer::Status(200));
    for value in [" ann", "ann ", "\tann", "ann\t", "  ann  ", " ", "ann \t"] {
        let answer = http2::send_http2(&agent, &fields("/key", "x-api-key", value), None).await;
        assert_eq!(answer, Answer::Status(400), "{value:?}");
        let sent = format!("GET /key HTTP/1.1\r\nhost: a\r\nx-api-key: {value}\r\nconnection: close\r\n\r\n");
        let answer = agent.raw(&sent).await;
        let expected = if value.trim().is_empty() { "HTTP/1.1 200 " } else { "HTTP/1.1 429 " };
        assert!(answer.starts_with(expected), "{value:?}: {answer}");
    }
    // The app does not get a field that `Connection` names, so the requests have no key.
    for (value, expected) in [("a", " 200 "), ("b", " 429 "), ("c", " 429 ")] {
        let fields = format!("x-api-key: {value}\r\nconnection: close, X-Api-Key");
        let answer = agent.raw(&format!("GET /key HTTP/1.1\r\nhost: a\r\n{fields}\r\n\r\n")).await;
        assert!(answer[8..].starts_with(expected), "{value}: {answer}");
    }
    // The proxies have written the last two entries.
    for (index, own) in ["", "6.6.6.6, ", "\u{e4}, ", "7.7.7.7 \u{ff}, ", "\u{80},"].into_iter().enumerate() {
        for more in ["", "te: trailers\r\n"] {
            let forwarded = format!("x-forwarded-for: {own}192.0.2.7, 10.0.0.1\r\n{more}");
            let sent = format!("GET /client HTTP/1.1\r\nhost: a\r\n{forwarded}connection: close\r\n\r\n");
            let answer = agent.raw(&sent).await;
            let expected = if index == 0 && more.is_empty() { " 200 " } else { " 429 " };
            assert!(answer[8..].starts_with(expected), "{own:?}: {answer}");
        }
    }
}

/// Rules and app must get the same host.
#[tokio::test]
async fn ambiguous_hosts_are_refused() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    let limited = with(
        rule("shop", &[daily("d", "FixedWindow", 1)]),
        serde_json::json!({"match": [{"hosts": ["shop.example.com"]}]}),
    );
    agent.apply(&snapshot(1, &[policy("p", &[limited])])).await;
    let ask = async |target: &str, host: &str, more: &str| {
        let sent = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n");
        agent.raw(&sent).await.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(ask("/", "shop.example.com", "").await, "200");
    for host in ["shop.example.com", "SHOP.example.com:80", "shop.example.com.:8080", "shop.example.com:"] {
        assert_eq!(ask("/", host, "").await, "429", "{host}");
    }
    app.received();
    for host in [
        "shop.example.com:80]", "shop.example.com:]", "shop.example.com]", "shop.example.com:80:80",
        "shop.example.com:x", "shop.example.com..", "shop%2eexample.com", "a:80:80", "[::1", "[x]y", "[::1]y", "::1",
        ":80",
    ] {
        for more in ["", "te: trailers\r\n"] {
            assert_eq!(ask("/", host, more).await, "400", "{host}");
        }
        assert_eq!(ask(&format!("http://{host}/"), "a", "").await, "400", "{host}");
        let named = |name| [(":method", "GET"), (":scheme", "http"), (":path", "/"), (name, host)];
        assert_eq!(http2::send_http2(&agent, &named("host"), None).await, Answer::Status(400), "{host}");
        // The h2 library itself refuses some of these hosts.
        let answer = http2::send_http2(&agent, &named(":authority"), None).await;
        assert!(matches!(answer, Answer::Status(400) | Answer::Reset(1)), "{host}: {answer:?}");
        assert_eq!(app.received(), "", "{host}");
    }
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    let post = "POST /first HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc";
    let answer = agent.raw(&format!("{post}{post}{BEHIND}")).await;
    assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 3, "{answer}");
    // An invalid request follows a valid one.
    let answer = agent.raw(&format!("{post}GET / HTTP/1.1\nhost: a\r\n\r\n{BEHIND}")).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("okHTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn nothing_behind_a_clients_last_request_is_a_request() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    let limited =
        with(rule("limited", &[daily("d", "TokenBucket", 1)]), serde_json::json!({"match": [{"paths": ["/limited"]}]}));
    agent.apply(&snapshot(1, &[policy("p", &[limited])])).await;
    assert_eq!(agent.statuses("/limited", &[], 2).await, [200, 429]);
    app.received();
    let close = "host: a\r\nconnection: close\r\n";
    for (last, status) in [
        (format!("GET /last HTTP/1.1\r\n{close}\r\n"), 200),
        (format!("POST /last HTTP/1.1\r\n{close}content-length: 2\r\n\r\nhi"), 200),
        (format!("GET /last HTTP/1.1\r\n{close}te: trailers\r\n\r\n"), 200),
        ("GET /last HTTP/1.0\r\nhost: a\r\n\r\n".to_owned(), 200),
        (format!("GET /limited HTTP/1.1\r\n{close}\r\n"), 429),
        (format!("GET /limited HTTP/1.1\r\n{close}te: trailers\r\n\r\n"), 429),
    ] {
        let answer = agent.raw(&format!("{last}{BEHIND}")).await;
        assert!(answer.split(' ').nth(1) == Some(&status.to_string()), "{last:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.").count(), 1, "{last:?}: {answer}");
        assert!(!app.received().contains("/behind"), "{last:?}");
    }
}

/// After the agent has closed its side, it reads only to detect that the client closes its side, too.
#[tokio::test]
async fn bytes_after_the_agents_close_are_not_a_request() {
    let app = Recorder::start().await;
    let agent = Agent::start(app.address, &[]);
    for last in [
        "GET / HTTP/1.1\nhost: a\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
        BEHIND,
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let mut stream = agent.connect().await;
        stream.write_all(last.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("a clean close");
        app.received();
        // The client writes until the agent stops reading. This takes longer than an idle connection keeps its buffers.
        let late = format!("GET /late HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "y".repeat(300));
        while stream.write_all(late.as_bytes()).await.is_ok() {
            assert_eq!(agent.telemetry("/healthz").await.0, 200);
        }
        assert_eq!(app.received(), "", "{last:?}");
    }
}
