//! Tests agents that run out of file descriptors.

use std::time::Duration;

use http::{Request, Response};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

use crate::support::{Agent, App, PATIENCE, binary_with_descriptors, body, empty};

/// A time that is shorter than any timeout of the agent that would free a descriptor.
const AT_ONCE: Duration = Duration::from_secs(10);

const REFUSED: &str = "weir_upstream_errors_total{reason=\"refused\"}";
const ACCEPTED: &str = "weir_connections_accepted_total";
const NO_DESCRIPTOR: &str = "weir_upstream_errors_total{reason=\"descriptors\"}";

fn start(limits: [u64; 2], app: &App, more: &[&str]) -> Agent {
    let mut command = binary_with_descriptors(limits);
    command.args(["--upstream", &app.address.to_string()]);
    Agent::run(command, "ready", more)
}

/// More silent connections than descriptors. Some of the last ones can wait in the kernel's queue.
async fn crowd(agent: &Agent, count: usize) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        crowd.push(agent.connect().await);
    }
    crowd
}

/// The status of a request on a new connection.
async fn status(agent: &Agent) -> u16 {
    let asked = async {
        let mut stream = agent.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("no reset");
        answer[9..12].parse().expect("a status")
    };
    timeout(AT_ONCE, asked).await.expect("a response before the timeout")
}

/// Waits until this many connections were accepted. Meanwhile, the telemetry port can be without descriptors for a moment:
/// the proxy port does not wait until evicted connections are closed. Then the telemetry port evicts its idle connection,
/// on which the next question of this test can be on its way.
async fn until_accepted(agent: &Agent, count: u64) {
    let expected = format!("\n{ACCEPTED} {count}\n");
    let reached = async {
        while !agent.try_metrics().await.is_some_and(|text| text.contains(&expected)) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("never {count} accepted connections"));
}

async fn is_ready(agent: &Agent) -> bool {
    timeout(AT_ONCE, agent.telemetry("/readyz")).await.expect("a response before the timeout").0 == 200
}

#[tokio::test]
async fn the_soft_limit_is_raised_to_the_hard_limit() {
    let app = App::start().await;
    let agent = start([128, 700], &app, &[]);
    assert_eq!(agent.metric("process_max_fds").await, Some(700.0));
    let line = agent.logged("open files").await;
    assert!(line.contains("limit=700"), "{line}");
    let line = agent.logged("too few open files for --max-connections").await;
    assert!(line.contains("wanted=16384 used=241 limit=700"), "{line}");

    let mut service = binary_with_descriptors([128, 700]);
    service.arg("rls");
    let service = Agent::run(service, "ready", &["--max-connections", "100"]);
    assert_eq!(service.metric("process_max_fds").await, Some(700.0));
}

#[tokio::test]
async fn more_idle_connections_than_descriptors_keep_nobody_out() {
    let app = App::start().await;
    let agent = start([256, 256], &app, &[]);
    let _crowd = crowd(&agent, 400).await;
    // Connections that are accepted later would evict the next one, which is idle until its request arrives.
    until_accepted(&agent, 400).await;
    assert_eq!(status(&agent).await, 200);
    assert!(is_ready(&agent).await);
    assert!(agent.metric("process_open_fds").await.is_some_and(|open| open < 224.0), "the reserve is free");

    let mut service = binary_with_descriptors([256, 256]);
    service.arg("rls");
    let service = Agent::run(service, "ready", &[]);
    let _crowd = crowd(&service, 400).await;
    until_accepted(&service, 400).await;
    assert_eq!(status(&service).await, 404);
    assert!(is_ready(&service).await);
}

/// The streams of a few HTTP/2 connections need more connections to the app than there are descriptors.
#[tokio::test]
async fn connections_to_the_app_leave_descriptors_for_others() {
    let (end, wait) = watch::channel(false);
    let app = App::serve(move |request: Request<_>| {
        let mut wait = wait.clone();
        async move {
            if request.uri().path() == "/slow" {
                wait.wait_for(|over| *over).await.expect("the test runs");
            }
            Response::new(body("ok"))
        }
    })
    .await;
    let agent = start([256, 256], &app, &["--max-streams", "200"]);
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut sender = agent.http2().await;
        for _ in 0..150 {
            let request = Request::get("http://a/slow").body(empty()).expect("valid");
            streams.push(tokio::spawn(sender.send_request(request)));
        }
    }
    let all = async {
        while agent.metric(NO_DESCRIPTOR).await.is_none_or(|count| count < 200.0) {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, all).await.expect("the streams fail");
    assert_eq!(agent.metric(REFUSED).await, Some(0.0), "the app refused nothing");
    let crowd = crowd(&agent, 300).await;
    // As above. Three connections have streams.
    agent.until_metric(ACCEPTED, 303.0).await;
    // There can be an idle connection to the app.
    assert!([200, 502].contains(&status(&agent).await), "the client gets an answer");
    assert!(is_ready(&agent).await);
    assert!(agent.metric("weir_connections_evicted_total").await > Some(0.0));

    end.send_replace(true);
    let mut statuses = Vec::new();
    for stream in streams {
        statuses.push(stream.await.expect("no panic").expect("a response").status().as_u16());
    }
    assert!(statuses.contains(&200) && statuses.contains(&502));
    drop(crowd);
    let recovered = async { while status(&agent).await != 200 {} };
    timeout(PATIENCE, recovered).await.expect("there are descriptors for the app again");
}
