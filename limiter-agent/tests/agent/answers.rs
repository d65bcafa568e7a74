//! Tests unusual responses of the app: the client gets the same response on every path through the agent.

use std::{sync::Arc, time::Duration};

use http::{Request, Response, Version};
use http_body_util::BodyExt;
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

use crate::support::{
    Agent, App, Body, PATIENCE, accept, body, daily, empty, policy, read_head, request, rule, snapshot, with,
};

/// The path of a request: in place, through hyper, or over HTTP/2.
#[derive(Clone, Copy, Debug)]
enum Way {
    InPlace,
    Hyper,
    Http2,
}

const WAYS: [Way; 3] = [Way::InPlace, Way::Hyper, Way::Http2];

/// The result of a request: the status, the number of fields, and the body, or the error that ended it.
#[derive(Debug)]
struct Heard {
    status: u16,
    fields: usize,
    body: Result<String, hyper::Error>,
}

impl Way {
    /// Sends a request, and returns the response without its body.
    async fn ask(self, agent: &Agent, path: &str) -> Response<Incoming> {
        let answer = match self {
            Self::InPlace | Self::Hyper => {
                let headers: &[(&str, &str)] = if matches!(self, Self::Hyper) { &[("te", "trailers")] } else { &[] };
                let stream = agent.connect().await;
                // The limit is set explicitly, because the client has its own limit on the number of fields.
                let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
                    .max_headers(1_000)
                    .handshake(TokioIo::new(stream))
                    .await
                    .expect("HTTP/1.1");
                tokio::spawn(connection);
                let mut request = request("GET", path, headers, "");
                request.headers_mut().insert("host", "a".parse().expect("valid"));
                sender.send_request(request).await
            }
            Self::Http2 => {
                let stream = agent.connect().await;
                let (mut sender, connection): (http2::SendRequest<Body>, _) = http2::Builder::new(TokioExecutor::new())
                    .max_header_list_size(4 * 1024 * 1024)
                    .handshake(TokioIo::new(stream))
                    .await
                    .expect("HTTP/2");
                tokio::spawn(connection);
                sender.send_request(Request::get(format!("http://a{path}")).body(empty()).expect("valid")).await
            }
        };
        answer.expect("a response")
    }

    async fn get(self, agent: &Agent, path: &str) -> Heard {
        self.get_and(agent, path, || {}).await
    }

    /// Calls `on_head` when the head of the response has arrived.
    async fn get_and(self, agent: &Agent, path: &str, on_head: impl FnOnce()) -> Heard {
        let answer = tokio::time::timeout(PATIENCE, self.ask(agent, path)).await;
        let answer = answer.unwrap_or_else(|_| panic!("the head of {path} over {self:?} never arrives"));
        on_head();
        let status = answer.status().as_u16();
        let fields = answer.headers().keys().filter(|name| name.as_str().starts_with("x-field-")).count();
        let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await;
        let body = body.unwrap_or_else(|_| panic!("the body of {path} over {self:?} never ends"));
        let body = body.map(|body| String::from_utf8(body.to_bytes().to_vec()).expect("text"));
        Heard { status, fields, body }
    }
}

/// An app that sends, for each path, the pieces that `answer` returns. It pauses before each further piece.
async fn raw_app(answer: fn(&str) -> Vec<String>) -> std::net::SocketAddr {
    raw_app_with(answer, None).await
}

/// An app that sends, for each path, the pieces that `answer` returns. It sends each further piece after a permit, or
/// after a pause if there are no `permits`. Otherwise the agent could read two pieces as one.
async fn raw_app_with(answer: fn(&str) -> Vec<String>, permits: Option<Arc<Semaphore>>) -> std::net::SocketAddr {
    let app = accept(move |mut stream| {
        let permits = permits.clone();
        async move {
            let Some(asked) = read_head(&mut stream).await else { return };
            for (number, piece) in answer(asked.split(' ').nth(1).expect("a path")).iter().enumerate() {
                match &permits {
                    _ if number == 0 => {}
                    Some(permits) => permits.acquire().await.expect("open").forget(),
                    None => tokio::time::sleep(Duration::from_millis(100)).await,
                }
                stream.write_all(piece.as_bytes()).await.expect("sent");
            }
            // The agent decides whether the connection closes.
            let _ = stream.read(&mut [0; 1]).await;
        }
    });
    app.await
}

/// As long as nothing was sent, the client can get an error response in place of a truncated one.
#[tokio::test]
async fn an_invalid_first_chunk_is_a_502_and_a_later_one_truncates_the_response() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    const CHUNKS: [&str; 6] = [
        "zz\r\nok\r\n0\r\n\r\n", "\r\nok\r\n", "2\nok\r\n", "-2\r\nok\r\n", "fffffffffffffffff\r\nok",
        "0\r\nno colon\r\n\r\n",
    ];
    let answer = |path: &str| {
        let (kind, which) = path[1..].split_once('/').expect("two parts");
        let chunk = CHUNKS[which.parse::<usize>().expect("a number")];
        match kind {
            "together" => vec![format!("{HEAD}{chunk}")],
            "later" => vec![HEAD.to_owned(), chunk.to_owned()],
            _ => vec![format!("{HEAD}2\r\nok\r\n{chunk}")],
        }
    };
    let permits = Arc::new(Semaphore::new(0));
    let app = raw_app_with(answer, Some(Arc::clone(&permits))).await;
    let agent = Agent::start(app, &["--upstream-http2", "never"]);
    for (which, chunk) in CHUNKS.iter().enumerate() {
        for way in WAYS {
            let received = way.get(&agent, &format!("/together/{which}")).await;
            assert_eq!(received.status, 502, "{chunk:?} {way:?}: {received:?}");
            assert!(
                received.body.as_ref().is_ok_and(|body| body.contains("invalid chunk")),
                "{chunk:?} {way:?}: {received:?}"
            );
            for kind in ["later", "second"] {
                // The chunk that comes later follows when the client has the head.
                let on_head = || permits.add_permits(usize::from(kind == "later"));
                let received = way.get_and(&agent, &format!("/{kind}/{which}"), on_head).await;
                assert!(received.status == 200 && received.body.is_err(), "{kind} {chunk:?} {way:?}: {received:?}");
            }
        }
    }
    let failed = agent.metric("weir_upstream_errors_total{reason=\"protocol\"}").await;
    assert_eq!(failed, Some((WAYS.len() * CHUNKS.len()) as f64));
}

fn fields(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|number| format!("x-field-{number}"))
}

#[tokio::test]
async fn the_head_of_a_response_is_limited_in_bytes_and_in_fields() {
    let app = raw_app(|path| {
        let (kind, count) = path[1..].split_once('/').expect("two parts");
        let count: usize = count.parse().expect("a number");
        let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\n");
        let long = |value: &str| format!("x-field-0: {value}\r\n");
        let fields = match kind {
            "fields" => fields(count).map(|name| format!("{name}: y\r\n")).collect(),
            _ => long(&"y".repeat(count - head(&long("")).len())),
        };
        vec![format!("{}ok", head(&fields))]
    })
    .await;
    let agent = Agent::start(app, &["--upstream-http2", "never"]);
    for way in WAYS {
        // With content-length, the second head has the maximum of 256 fields.
        for count in [99, 255] {
            let received = way.get(&agent, &format!("/fields/{count}")).await;
            assert_eq!((received.status, received.fields), (200, count), "{way:?}");
            assert_eq!(received.body.expect("a body"), "ok");
        }
        for path in ["/fields/256", "/fields/30000", "/bytes/65537", "/bytes/1000000"] {
            let received = way.get(&agent, path).await;
            assert_eq!(received.status, 502, "{way:?} {path}");
            assert!(received.body.expect("a body").contains("head is too large"), "{way:?} {path}");
        }
        let received = way.get(&agent, "/bytes/65536").await;
        assert_eq!((received.status, received.fields), (200, 1), "{way:?}");
    }
}

/// The short path drops trailers, but must find the same end of the body.
#[tokio::test]
async fn the_trailers_of_a_response_are_limited_as_its_head() {
    let app = raw_app(|path| {
        let count: usize = path[1..].parse().expect("a number");
        let trailers = |value: &str| format!("x-field-0: {value}\r\n\r\n");
        let long = trailers(&"y".repeat(count - trailers("").len()));
        vec![format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n{long}")]
    })
    .await;
    let agent = Agent::start(app, &["--upstream-http2", "never"]);
    for way in WAYS {
        let received = way.get(&agent, "/65535").await;
        assert_eq!(received.body.expect("a body"), "ok", "{way:?}");
        let received = way.get(&agent, "/65536").await;
        assert!(received.status == 200 && received.body.is_err(), "{way:?}: {received:?}");
    }
}

#[tokio::test]
async fn the_head_of_an_http2_response_is_limited_only_in_bytes() {
    let app = App::serve_http2(async |request: Request<Incoming>| {
        let (kind, count) = request.uri().path()[1..].split_once('/').expect("two parts");
        let count: usize = count.parse().expect("a number");
        let answer = Response::builder().version(Version::HTTP_2);
        let answer = match kind {
            "fields" => fields(count).fold(answer, |answer, name| answer.header(name, "y")),
            _ => answer.header("x-field-0", "y".repeat(count)),
        };
        answer.body(body("ok")).expect("valid")
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    for count in [99, 150, 400] {
        let received = Way::Http2.get(&agent, &format!("/fields/{count}")).await;
        assert_eq!((received.status, received.fields), (200, count));
        assert_eq!(received.body.expect("a body"), "ok");
    }
    let received = Way::Http2.get(&agent, "/bytes/420000").await;
    assert_eq!(received.status, 502);
}

#[tokio::test]
async fn interim_responses_reach_http1_clients() {
    if std::env::var_os("WEIR_TEST_IN_PLACE").is_some() {
        return; // hyper's server cannot send them.
    }
    let app = raw_app(|path| match path {
        "/hints" => vec![
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nlink: </b>\r\ncontent-length: 5\r\nconnection: x\r\nx: y\r\n\r\n".into(),
            "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 1".into(),
            "99 x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".into(),
        ],
        _ => vec!["HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n".repeat(1000); 600],
    })
    .await;
    let agent = Agent::start(app, &["--response-timeout", "2s"]);
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nlink: </b>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n\
                   HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 199 x\r\n\r\nHTTP/1.1 200 OK\r\n";
    for method in ["GET", "HEAD"] {
        let hints = agent.raw(&format!("{method} /hints HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
        assert!(hints.starts_with(interim), "{hints:?}");
        let old = agent.raw(&format!("{method} /hints HTTP/1.0\r\nhost: a\r\n\r\n")).await;
        assert!(old.contains(" 200 OK\r\n") && !old.contains("Early"), "HTTP/1.0 has no interim responses: {old:?}");
    }
    let endless = agent.raw("GET /endless HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let (interim, last) = endless.rsplit_once("HTTP/1.1 ").expect("a response");
    assert!(last.starts_with("504 ") && interim.ends_with("103 Early Hints\r\nx: y\r\n\r\n"), "{last}");
}

/// hyper's path sends no interim responses.
#[tokio::test]
async fn a_cost_in_an_interim_response_does_not_reach_the_client() {
    let app = raw_app(|_| {
        let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nX-Units: 40\r\n\r\n";
        vec![format!("{interim}HTTP/1.1 200 OK\r\nx-units: 40\r\ncontent-length: 0\r\n\r\n")]
    })
    .await;
    let agent = Agent::start(app, &[]);
    let cost = json!({"cost": {"responseHeader": {"name": "x-units", "most": 1000}}});
    let limits = [daily("d", "TokenBucketWithDebt", 1000)];
    agent.apply(&snapshot(1, &[policy("p", &[with(rule("all", &limits), cost)])])).await;
    let response = agent.raw("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    assert!(!response.to_ascii_lowercase().contains("x-units"), "{response:?}");
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert!(std::env::var_os("WEIR_TEST_IN_PLACE").is_some() || response.starts_with(interim), "{response:?}");
}

#[tokio::test]
async fn a_response_to_head_has_one_valid_length() {
    let app = raw_app(|path| {
        let status = if path == "/empty" { "204 No Content" } else { "200 OK\r\ncontent-length: 6" };
        vec![format!("HTTP/1.1 {status}\r\ncontent-length: 5\r\n\r\n")]
    })
    .await;
    let agent = Agent::start(app, &["--upstream-http2", "never"]);
    for fields in ["", "te: trailers\r\n"] {
        let head = async |path| {
            agent.raw(&format!("HEAD {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n")).await
        };
        let bare = head("/empty").await;
        assert!(bare.starts_with("HTTP/1.1 204 ") && !bare.contains("content-length"), "{bare}");
        let several = head("/several").await;
        assert!(several.starts_with("HTTP/1.1 502 "), "{several}");
    }
    let mut sender = agent.http2().await;
    for (path, status, has_length) in [("empty", 204, false), ("several", 502, true)] {
        let request = Request::head(format!("http://a/{path}")).body(empty()).expect("valid");
        let answer = sender.send_request(request).await.expect("a response");
        let told = (answer.status().as_u16(), answer.headers().contains_key("content-length"));
        assert_eq!(told, (status, has_length), "{path}");
    }
}

#[tokio::test]
async fn the_header_of_a_rule_replaces_that_of_the_app() {
    let app = raw_app(|_| {
        let fields = "X-Forwarded-Host: app\r\nx-other: app\r\nconnection: forwarded\r\nforwarded: app\r\n";
        vec![format!("HTTP/1.1 200 OK\r\n{fields}content-length: 0\r\n\r\n")]
    })
    .await;
    for in_place in ["on", "off"] {
        let agent = Agent::start(app, &["--in-place", in_place]);
        let headers = ["x-forwarded-host", "x-other", "forwarded"].map(|name| json!({"name": name, "value": "rule"}));
        let own = json!({"responseHeaders": headers});
        let rule = with(rule("all", &[daily("d", "FixedWindow", 1000)]), own);
        agent.apply(&snapshot(1, &[policy("p", &[rule])])).await;
        let response = agent.raw("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        for name in ["x-forwarded-host", "x-other", "forwarded"] {
            let sent: Vec<_> = response.lines().filter(|line| line.starts_with(&format!("{name}:"))).collect();
            assert_eq!(sent, [format!("{name}: rule")], "--in-place {in_place}");
        }
    }
}
