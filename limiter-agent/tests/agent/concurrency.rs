//! Limits on the number of requests in flight, with real connections: when a permit is free again, on each path through
//! the agent, and for each way in which a request ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Semaphore, mpsc},
};
use tokio_tungstenite::client_async;

use crate::support::{Agent, App, Client, ClosedPort, body, echo, empty, json_of, policy, rule, snapshot, with};

const SERIES: &str = "{namespace=\"shop\",policy=\"p\",rule=\"r\",limit=\"parallel\"}";

fn parallel(limit: u64, more: Value) -> Value {
    let rule = json!({"name": "r", "action": "Limit", "concurrency": {"name": "parallel", "limit": limit}});
    with(rule, with(json!({"key": [{"header": "x-key"}]}), more))
}

/// An app that answers when the test lets it.
struct Held {
    app: App,
    answers: Arc<Semaphore>,
}

impl Held {
    async fn start() -> Self {
        let answers = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&answers);
        let app = App::serve(move |_| {
            let held = Arc::clone(&held);
            async move {
                held.acquire().await.expect("open").forget();
                Response::new(body("ok"))
            }
        });
        Self { app: app.await, answers }
    }
}

async fn in_flight(agent: &Agent, count: u64) {
    agent.until_metric(&format!("weir_in_flight_requests{SERIES}"), count as f64).await;
}

/// Requests that another policy needs are on hyper's path.
fn full_path() -> Value {
    let bytes = json!({"cost": "responseBytes"});
    let limit = json!({
        "name": "b", "strategy": "TokenBucketWithDebt", "requests": 1_000_000, "periodMillis": 1000, "burst": 1_000_000,
        "debt": 0,
    });
    policy("bytes", &[with(rule("bytes", &[limit]), bytes)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_free_when_the_response_has_ended() {
    for others in [vec![], vec![full_path()]] {
        let Held { app, answers } = Held::start().await;
        let agent = Agent::start(app.address, &[]);
        let policies = [vec![policy("p", &[parallel(3, json!({}))])], others].concat();
        agent.apply(&snapshot(1, &policies)).await;
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let (client, url) = (Client::new(), agent.url("/"));
            clients.spawn(async move { client.get(&url, &[("x-key", "ann")]).await.status().as_u16() });
        }
        in_flight(&agent, 3).await;
        let refused = agent.get("/", &[("x-key", "ann")]).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(json_of(&refused)["error"], "too many concurrent requests");
        // One at a time: a client that has its response finds capacity for the next request.
        for _ in 0..20 {
            answers.add_permits(1);
            assert_eq!(clients.join_next().await.expect("a client").expect("no panic"), 200);
            let (client, url) = (Client::new(), agent.url("/"));
            clients.spawn(async move { client.get(&url, &[("x-key", "ann")]).await.status().as_u16() });
        }
        answers.add_permits(3);
        assert_eq!(clients.join_all().await, [200, 200, 200]);
        in_flight(&agent, 0).await;
        assert_eq!(agent.counts(0, 0).await, [23, 1, 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_frees_its_permit() {
    for others in [vec![], vec![full_path()]] {
        let Held { app, answers: _held } = Held::start().await;
        let agent = Agent::start(app.address, &[]);
        let policies = [vec![policy("p", &[parallel(2, json!({}))])], others].concat();
        agent.apply(&snapshot(1, &policies)).await;
        let connect = async || {
            let mut stream = agent.connect().await;
            stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-key: ann\r\n\r\n").await.expect("sent");
            stream
        };
        let (first, second) = (connect().await, connect().await);
        in_flight(&agent, 2).await;
        assert_eq!(agent.statuses("/", &[("x-key", "ann")], 3).await, [429, 429, 429]);
        // The agent waits some seconds before it takes a closed connection for a client that has left: the client may
        // have closed only its own direction.
        drop((first, second));
        in_flight(&agent, 0).await;
        // Over HTTP/2 the stream is reset.
        let mut sender = agent.http2().await;
        let mut send = || {
            let request = Request::get("http://a/").header("x-key", "ann").body(empty()).expect("valid");
            tokio::spawn(sender.send_request(request))
        };
        let (third, fourth) = (send(), send());
        in_flight(&agent, 2).await;
        third.abort();
        in_flight(&agent, 1).await;
        fourth.abort();
        in_flight(&agent, 0).await;
    }
}

/// The agent does not read on from a client that has sent its next request.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_behind_its_next_request_frees_its_permit() {
    let get = &b"GET / HTTP/1.1\r\nhost: a\r\nx-key: ann\r\n\r\n"[..];
    let leaves_behind = async |others: Vec<Value>| {
        let Held { app, answers: _held } = Held::start().await;
        let agent = Agent::start(app.address, &["--workers", "1"]);
        let policies = [vec![policy("p", &[parallel(9, json!({}))])], others].concat();
        agent.apply(&snapshot(1, &policies)).await;
        let mut streams = Vec::new();
        for (first, second) in [([get, get].concat(), &b""[..]), (get.to_vec(), get)] {
            for resets in [true, false] {
                let mut stream = agent.connect().await;
                stream.write_all(&first).await.expect("sent");
                in_flight(&agent, streams.len() as u64 + 1).await;
                stream.write_all(second).await.expect("sent");
                if resets {
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("set");
                }
                streams.push(stream);
            }
        }
        drop(streams);
        in_flight(&agent, 0).await;
    };
    tokio::join!(leaves_behind(vec![]), leaves_behind(vec![full_path()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streamed_response_is_in_flight_to_its_last_byte() {
    let rest = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&rest);
    let app = App::serve(move |_| {
        let held = Arc::clone(&held);
        async move {
            let (send, mut frames) = mpsc::channel(1);
            tokio::spawn(async move {
                for _ in 0..3 {
                    held.acquire().await.expect("open").forget();
                    let _ = send.send(Ok(hyper::body::Frame::data(Bytes::from_static(b"part")))).await;
                }
            });
            let stream = futures::stream::poll_fn(move |cx| frames.poll_recv(cx));
            Response::new(BodyExt::boxed(http_body_util::StreamBody::new(stream)))
        }
    })
    .await;
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[parallel(1, json!({}))])])).await;
    let mut stream = agent.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nx-key: ann\r\n\r\n").await.expect("sent");
    for parts in 1..=3 {
        rest.add_permits(1);
        if parts < 3 {
            let mut read = [0; 4096];
            assert!(stream.read(&mut read).await.expect("a part") > 0);
            assert_eq!(agent.statuses("/", &[("x-key", "ann")], 1).await, [429], "after part {parts}");
        }
    }
    in_flight(&agent, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_websocket_is_in_flight() {
    let app = App::serve(async |mut request: Request<Incoming>| echo(&mut request)).await;
    let agent = Agent::start(app.address, &[]);
    let all = with(parallel(2, json!({})), json!({"key": []}));
    agent.apply(&snapshot(1, &[policy("p", &[all])])).await;
    let open = async || {
        let stream = agent.connect().await;
        let (mut socket, _) = client_async(format!("ws://{}/", agent.addresses.listen), stream).await.ok()?;
        socket.send("hello".into()).await.expect("sent");
        assert_eq!(socket.next().await.expect("an echo").expect("no error").to_text().expect("text"), "hello");
        Some(socket)
    };
    let (first, second) = (open().await.expect("free"), open().await.expect("free"));
    assert!(open().await.is_none(), "two are open");
    in_flight(&agent, 2).await;
    drop(first);
    in_flight(&agent, 1).await;
    let third = open().await.expect("free");
    drop((second, third));
    in_flight(&agent, 0).await;
}

/// The app counts by itself how many requests of each key it has at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_app_never_has_more_than_the_limit_and_no_client_waits_for_nothing() {
    const KEYS: usize = 3;
    let inside: Arc<[AtomicU64; KEYS]> = Arc::default();
    let most: Arc<[AtomicU64; KEYS]> = Arc::default();
    let counts = (Arc::clone(&inside), Arc::clone(&most));
    let app = App::serve(move |request: Request<Incoming>| {
        let (inside, most) = counts.clone();
        async move {
            let key: usize = request.headers()["x-key"].to_str().expect("text").parse().expect("a number");
            most[key].fetch_max(inside[key].fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_micros(500)).await;
            inside[key].fetch_sub(1, SeqCst);
            Response::new(body("ok"))
        }
    })
    .await;
    let agent = Agent::start(app.address, &["--workers", "2"]);
    agent.apply(&snapshot(1, &[policy("p", &[parallel(4, json!({}))])])).await;
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..KEYS * 8 {
        let url = agent.url("/");
        clients.spawn(async move {
            let (client, key) = (Client::new(), (client % KEYS).to_string());
            let mut admitted = 0_u64;
            for _ in 0..100 {
                admitted += u64::from(client.get(&url, &[("x-key", &key)]).await.status() == 200);
            }
            admitted
        });
    }
    let admitted: u64 = clients.join_all().await.into_iter().sum();
    for (key, most) in most.iter().enumerate() {
        assert!((1..=4).contains(&most.load(SeqCst)), "key {key}: {most:?}");
    }
    in_flight(&agent, 0).await;
    let [allowed, limited, _] = agent.counts(0, 0).await;
    assert_eq!((allowed, allowed + limited), (admitted, (KEYS * 8 * 100) as u64));
    assert_eq!(app.requests(), admitted);
    // Four clients of one key never exceed a limit of four.
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let url = agent.url("/");
        clients.spawn(async move {
            let client = Client::new();
            for turn in 0..100 {
                assert_eq!(client.get(&url, &[("x-key", "0")]).await.status(), 200, "{turn}");
            }
        });
    }
    clients.join_all().await;
}

/// A client that has the agent's own response can send its next request on another connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_the_agent_ends_a_request() {
    let Held { app, answers: _held } = Held::start().await;
    let nobody = ClosedPort::new();
    for (upstream, status, deadline) in [(nobody.address(), 502, 60_000), (app.address, 504, 20)] {
        let agent = Agent::start(upstream, &[]);
        let hurried = with(policy("p", &[parallel(1, json!({}))]), json!({"deadlineMillis": deadline}));
        agent.apply(&snapshot(1, &[hurried])).await;
        let clients = [Client::new(), Client::new()];
        for turn in 0..40 {
            let answer = clients[turn % 2].get(&agent.url("/"), &[]).await;
            assert_eq!(answer.status(), status, "request {turn}");
        }
        in_flight(&agent, 0).await;
        assert_eq!(agent.counts(0, 0).await, [40, 0, 0]);
    }
}
