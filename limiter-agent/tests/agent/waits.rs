//! Tests requests that wait for their turn, and deadlines, in an agent process with real connections. The tests do not
//! sleep: periods are so long, or so short, that the counts do not depend on the machine.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::stream;
use http::Response;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

use crate::support::{Agent, App, Client, accept, header, json_of, policy, read_head, rule, snapshot, start, with};

fn line(requests: u64, millis: u64, max_wait: u64) -> serde_json::Value {
    let limit = json!({"name": "paced", "strategy": "LeakyBucket", "requests": requests, "periodMillis": millis});
    let patient = json!({"onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": max_wait}});
    with(rule("line", &[limit]), patient)
}

async fn waited(agent: &Agent) -> u64 {
    let status = json_of(&agent.control("GET", "/v1/status", "").await);
    status["policies"][0]["rules"][0]["waited"].as_u64().expect("a count")
}

/// An app that answers each request with the number of the connection on which it arrived.
async fn counting_app() -> SocketAddr {
    let mut number = 0;
    let app = accept(move |mut stream| {
        number += 1;
        async move {
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{number:04}");
            // A request has no body.
            while read_head(&mut stream).await.is_some() {
                stream.write_all(answer.as_bytes()).await.expect("the agent reads");
            }
        }
    });
    app.await
}

/// Each path has its own connections to the app, so they show which path a request took.
#[tokio::test]
async fn a_connection_returns_to_the_short_path_after_a_wait() {
    if std::env::var_os("WEIR_TEST_IN_PLACE").is_some() {
        return; // There is only one path.
    }
    let agent = Agent::start(counting_app().await, &["--workers", "1"]);
    let paced = with(line(1, 5000, 10_000), json!({"match": [{"paths": ["/paced"]}]}));
    agent.apply(&snapshot(1, &[policy("p", &[paced])])).await;
    let mut connections = Vec::new();
    for path in ["/", "/paced", "/paced", "/", "/"] {
        connections.push(agent.get(path, &[]).await.into_body());
    }
    // A new client begins on the short path.
    connections.push(Client::new().get(&agent.url("/"), &[]).await.into_body());
    assert_eq!(waited(&agent).await, 1);
    let [first, paced, waiting, after, last, new] = &connections[..] else { unreachable!("six answers") };
    // The wait is so long that the agent closes the idle connection to the app.
    assert_eq!((paced, [after, last]), (first, [new; 2]), "{connections:?}");
    assert!(![first, new].contains(&waiting), "hyper's path has its own connections: {connections:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_smoothed_and_its_tail_refused_at_once() {
    let (app, agent) = start().await;
    // The limit is one request per 50 ms. Each of ten requests that arrive in the first 50 ms gets its turn within 500
    // ms.
    agent.apply(&snapshot(1, &[policy("p", &[line(20, 1000, 10_000)])])).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let (client, url) = (Client::new(), agent.url("/"));
        clients.spawn(async move { client.get(&url, &[]).await.status().as_u16() });
    }
    let statuses = clients.join_all().await;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    // One request is admitted immediately, and twenty can wait. On a slow machine, the last requests arrive after the
    // first waiting requests were admitted.
    assert!((21..=30).contains(&admitted), "{statuses:?}");
    let [allowed, limited, _] = agent.counts(0, 0).await;
    assert_eq!((allowed + limited, app.requests()), (30, allowed));
    let waited = waited(&agent).await;
    assert!((1..allowed).contains(&waited), "all requests waited except those that found an empty queue");

    // The first waiting request waits for at most 50 ms, and the last of twenty for almost a second.
    let series = |part: &str, more: &str| {
        format!("weir_wait_seconds_{part}{{namespace=\"shop\",policy=\"p\",rule=\"line\"{more}}}")
    };
    let wait = async |part, more| agent.metric(&series(part, more)).await.unwrap_or_else(|| panic!("no {part}{more}"));
    assert_eq!(wait("count", "").await, waited as f64);
    assert_eq!(wait("bucket", ",le=\"+Inf\"").await, waited as f64);
    let sum = wait("sum", "").await;
    assert!(sum > 0.0 && sum <= waited as f64, "{sum} s for {waited}");
}

/// The agent keeps a half-closed client for so long if its request is at the app.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(5);

async fn at_once<T>(happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(HALF_CLOSED_TIMEOUT, happens).await.expect("clients leave a queue at once")
}

#[tokio::test]
async fn a_client_that_leaves_the_queue_is_not_charged() {
    let (_app, agent) = start().await;
    // The limit is one request per six hours. A second request in the queue would have to wait for longer than allowed.
    agent.apply(&snapshot(1, &[policy("p", &[line(4, 86_400_000, 40_000_000)])])).await;
    assert_eq!(agent.statuses("/", &[], 1).await, [200]);
    let explained = async || {
        let reply = json_of(&agent.control("POST", "/v1/explain", r#"{"target": "/"}"#).await);
        (reply["decision"].clone(), reply["rules"][0]["afterMillis"].as_u64().expect("a time"))
    };
    let alone = explained().await;
    assert_eq!(alone.0, "Wait");
    let (client, url) = (Client::new(), agent.url("/"));
    let waiting = tokio::spawn(async move { client.get(&url, &[]).await });
    let until = async |decision: &str| {
        let said = async {
            while explained().await.0 != decision {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), said).await.unwrap_or_else(|_| panic!("never {decision}"));
    };
    until("Limit").await;
    waiting.abort();
    let _ = waiting.await;
    at_once(until("Wait")).await;
    assert!(explained().await.1 <= alone.1);
    // A client that only closes its side does not get a response.
    let mut half_closed = agent.connect().await;
    half_closed.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    until("Limit").await;
    half_closed.shutdown().await.expect("closed");
    assert_eq!(at_once(half_closed.read(&mut [0])).await.expect("a clean close"), 0);
    until("Wait").await;
    // The request also leaves the queue if it joins after the agent has read the end.
    let mut half_closed = agent.connect().await;
    agent.suspend().await;
    half_closed.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.expect("sent");
    half_closed.shutdown().await.expect("closed");
    agent.go_on();
    assert_eq!(at_once(half_closed.read(&mut [0])).await.expect("a clean close"), 0);
    assert_eq!(agent.counts(0, 0).await, [1, 0, 0], "the request was neither admitted nor refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_that_misses_the_deadline_is_a_504_or_the_response_that_the_policy_chooses() {
    let own = json!({"status": 503, "body": "{\"later\":true}", "contentType": "application/json"});
    let chosen = (json!({"onDeadline": own}), 503, "{\"later\":true}", "application/json");
    let default =
        (json!({}), 504, "weir-agent: no answer within the deadline of 2000 ms\n", "text/plain; charset=utf-8");
    for args in [&[][..], &["--in-place", "off"]] {
        for (form, status, text, kind) in [&default, &chosen] {
            let expected = (*status, (*text).to_owned(), (*kind).to_owned());
            assert_eq!(misses_the_deadline(args, form).await, expected, "{args:?} {form}");
        }
    }
}

/// Returns the response that misses the deadline: its status, its body and its content type.
async fn misses_the_deadline(args: &[&str], form: &serde_json::Value) -> (u16, String, String) {
    let released = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&released);
    let app = App::serve(move |request| {
        let held = Arc::clone(&held);
        async move {
            if request.uri().path() == "/never" {
                std::future::pending::<()>().await;
            }
            // The first half of the body follows the head, and the second half follows when the test releases it.
            let halves = stream::unfold(0, move |sent| {
                let held = Arc::clone(&held);
                async move {
                    let half = ["first ", "second"].get(sent)?;
                    if sent > 0 {
                        held.acquire().await.expect("open").forget();
                    }
                    Some((Ok(Frame::data(Bytes::from_static(half.as_bytes()))), sent + 1))
                }
            });
            Response::new(BodyExt::boxed(StreamBody::new(Box::pin(halves))))
        }
    })
    .await;
    let agent = Agent::start(app.address, args);
    let daily = crate::support::daily("d", "TokenBucket", 1000);
    let hurried = with(policy("p", &[rule("all", &[daily])]), json!({"deadlineMillis": 2000}));
    let hurried = with(hurried, form.clone());
    agent.apply(&snapshot(1, &[hurried])).await;

    let mut begun = agent.connect().await;
    begun.write_all(b"GET /halves HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.expect("sent");
    let mut read = Vec::new();
    while !read.windows(5).any(|bytes| bytes == b"first") {
        assert!(begun.read_buf(&mut read).await.expect("bytes") > 0, "{}", String::from_utf8_lossy(&read));
    }
    let late = agent.get("/never", &[]).await;
    let grpc = agent.get("/never", &[("content-type", "application/grpc+proto")]).await;
    assert_eq!((grpc.status().as_u16(), header(&grpc, "grpc-status"), grpc.body().len()), (200, "4", 0));
    // The deadline of the first request has passed, too. Its response has begun, so it continues.
    released.add_permits(1);
    begun.read_to_end(&mut read).await.expect("the end");
    let text = String::from_utf8(read).expect("text");
    assert!(text.starts_with("HTTP/1.1 200 ") && text.matches("HTTP/1.1").count() == 1, "{text}");
    assert!(text.contains("second") && text.ends_with("0\r\n\r\n"), "{text}");
    assert_eq!(agent.counts(0, 0).await, [3, 0, 0]);
    let expired = "weir_deadline_expired_total{namespace=\"shop\",policy=\"p\",rule=\"all\"}";
    assert_eq!(agent.metric(expired).await, Some(2.0));
    let text = String::from_utf8(late.body().to_vec()).expect("text");
    (late.status().as_u16(), text, header(&late, "content-type").to_owned())
}
