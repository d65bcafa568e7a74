//! Tests server-sent events: they arrive one by one, a pause does not end the stream, and the app detects when the
//! client has disconnected.

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncReadExt, sync::mpsc, task::JoinHandle, time::timeout};

use crate::support::{Agent, App, Body, PATIENCE, empty};

type Events = mpsc::Sender<Bytes>;

/// An app that passes each event stream to the test.
async fn app(http2: bool) -> (App, mpsc::UnboundedReceiver<Events>) {
    let (tell, told) = mpsc::unbounded_channel();
    let begin = move |_: Request<Incoming>| {
        let tell = tell.clone();
        async move {
            let (send, mut events) = mpsc::channel(1);
            tell.send(send).expect("the test waits");
            let events = futures::stream::poll_fn(move |cx| events.poll_recv(cx));
            let body = StreamBody::new(futures::StreamExt::map(events, |event| Ok(Frame::data(event))));
            let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
            response.body(BodyExt::boxed(body)).expect("valid")
        }
    };
    (if http2 { App::serve_http2(begin).await } else { App::serve(begin).await }, told)
}

/// A client that requests events. It disconnects when the task is aborted.
async fn listen(agent: &Agent, http2: bool) -> (JoinHandle<()>, Response<Incoming>) {
    let io = TokioIo::new(agent.connect().await);
    let request = |target: &str| {
        let request = Request::get(target).header(header::ACCEPT, "text/event-stream");
        request.header(header::HOST, "shop.example.com").body::<Body>(empty()).expect("valid")
    };
    if http2 {
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        let connection = tokio::spawn(async { drop(connection.await) });
        let response = sender.send_request(request("http://shop.example.com/events")).await.expect("a response");
        (connection, response)
    } else {
        let (mut sender, connection) = http1::handshake(io).await.expect("HTTP");
        let connection = tokio::spawn(async { drop(connection.await) });
        (connection, sender.send_request(request("/events")).await.expect("a response"))
    }
}

async fn next(response: &mut Response<Incoming>) -> Bytes {
    let frame = timeout(PATIENCE, response.frame())
        .await
        .expect("before the timeout")
        .expect("the stream continues")
        .expect("no error");
    frame.into_data().expect("data")
}

/// Waits until the agent has closed an idle client's connection.
async fn idle_timeout(agent: &Agent) {
    let mut idle = agent.connect().await;
    let ended = timeout(PATIENCE, idle.read(&mut [0])).await.expect("before the timeout").expect("a clean close");
    assert_eq!(ended, 0);
}

async fn events_come_one_by_one(http2_client: bool, http2_app: bool) {
    let (app, mut begun) = app(http2_app).await;
    let limits = ["--idle-timeout", "2s", "--stall-timeout", "1s", "--header-timeout", "1s", "--workers", "1"];
    let always = ["--upstream-http2", if http2_app { "always" } else { "never" }];
    let agent = Agent::start(app.address, &[&limits[..], &always].concat());
    let (connection, mut response) = listen(&agent, http2_client).await;
    let what = format!("client {http2_client}, app {http2_app}");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream", "{what}");
    let events = timeout(PATIENCE, begun.recv()).await.expect("before the timeout").expect("the stream has begun");
    let say = async |number: usize| {
        let event = Bytes::from(format!("id: {number}\ndata: x\n\n"));
        events.send(event.clone()).await.unwrap_or_else(|_| panic!("{what}: the app was cut off"));
        event
    };
    for number in 0..100 {
        // Each event arrives before the next is sent.
        assert_eq!(say(number).await, next(&mut response).await, "{what}");
    }
    // A pause longer than any timeout of the agent, and longer than it keeps idle connections to the app.
    idle_timeout(&agent).await;
    idle_timeout(&agent).await;
    assert_eq!(say(100).await, next(&mut response).await, "{what}, after a pause");

    connection.abort();
    drop(response);
    timeout(PATIENCE, events.closed())
        .await
        .unwrap_or_else(|_| panic!("{what}: the app does not detect that the client has disconnected"));
    agent.until_metric("weir_connections", 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_one_by_one_over_any_protocol() {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    futures::future::join_all(ways.map(|(client, app)| events_come_one_by_one(client, app))).await;
}
