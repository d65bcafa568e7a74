//! Tests the operator's channel on the control port, which clients choose by ALPN.

use std::time::Duration;

use tokio::{io::AsyncWriteExt, net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;
use weir_channel::{ALPN, Channel, Outgoing, ToAgent, ToOperator};
use weir_wire::{MAX_SNAPSHOT_BYTES, Rejection, RejectionKind, StatusRequest};

use crate::{
    support::{Agent, Authority, PATIENCE, TlsClient, json_of, policy, request, rule, snapshot, tls},
    tls::{OPERATOR, files, start},
};

struct Operator(Channel<TlsStream<TcpStream>>);

impl Operator {
    async fn connect(agent: &Agent, agents: &Authority, clients: &Authority, name: &str) -> Self {
        let identity = clients.issue(name);
        let stream = tls(agent.addresses.control, agents, Some(&identity), &[ALPN]).await.expect("accepted");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(ALPN));
        Self(Channel::new(stream))
    }

    async fn send(&mut self, message: ToAgent) {
        self.send_frame(message.frame().expect("the message fits into a frame")).await;
    }

    async fn send_frame(&mut self, frame: Outgoing) {
        self.0.send(frame, PATIENCE).await.expect("the agent reads");
    }

    async fn push(&mut self, sequence: u64) {
        self.send(ToAgent::Snapshot(snapshot(sequence, &[]).to_string().into_bytes())).await;
    }

    async fn next(&mut self) -> ToOperator {
        let frame = timeout(PATIENCE, self.0.next()).await.expect("a message in time").expect("a message");
        ToOperator::parse(&frame).expect("a message of an agent")
    }

    async fn rejection(&mut self) -> Rejection {
        match self.next().await {
            ToOperator::Rejection(rejection) => *rejection,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn snapshots_are_acknowledged_or_refused_and_a_status_comes_first() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let mut operator = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    let ToOperator::Status(first) = operator.next().await else { panic!("no status") };
    assert_eq!((first.in_force, first.policies), (None, vec![]));

    operator.send(ToAgent::Unknown(200)).await;
    operator.push(2).await;
    let ToOperator::Acknowledgement(reply) = operator.next().await else { panic!("no acknowledgement") };
    assert_eq!((reply.in_force.sequence, &*reply.in_force.revision), (2, "r2"));
    operator.push(1).await;
    let stale = operator.rejection().await;
    assert_eq!((stale.error, stale.in_force.map(|in_force| in_force.sequence)), (RejectionKind::Stale, Some(2)));
    let zero = snapshot(3, &[policy("p", &[rule("all", &[])])]).to_string().into_bytes();
    operator.send(ToAgent::Snapshot(zero)).await;
    let invalid = operator.rejection().await;
    assert_eq!((invalid.error, &*invalid.faults[0].path), (RejectionKind::Invalid, "policies[0].rules[0].limits"));
    operator.send(ToAgent::Snapshot(b"{".to_vec())).await;
    assert_eq!(operator.rejection().await.error, RejectionKind::Malformed);
    operator.send(ToAgent::Snapshot(vec![b' '; MAX_SNAPSHOT_BYTES + 1])).await;
    assert_eq!(operator.rejection().await.error, RejectionKind::TooLarge);

    // A second connection gets the revision in force with the first status.
    let mut second = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    let ToOperator::Status(status) = second.next().await else { panic!("no status") };
    assert_eq!(status.in_force.map(|in_force| in_force.sequence), Some(2));
    let (_, metrics) = agent.telemetry("/metrics").await;
    for outcome in ["applied\"} 1", "stale\"} 1", "invalid\"} 1", "malformed\"} 1", "too_large\"} 1"] {
        assert!(metrics.contains(&format!("weir_snapshots_total{{result=\"{outcome}")), "{outcome}: {metrics}");
    }
}

#[tokio::test]
async fn a_status_comes_at_each_interval_and_is_sent_whole_when_something_is_new() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let mut operator = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    assert!(matches!(operator.next().await, ToOperator::Status(_)));
    let silent = timeout(Duration::from_millis(300), operator.0.next()).await;
    assert!(silent.is_err(), "no report was requested: {silent:?}");
    // A shorter interval than the minimum becomes the minimum.
    operator.send(ToAgent::StatusRequest(StatusRequest { every_millis: 1 })).await;
    for _ in 0..3 {
        assert_eq!(operator.next().await, ToOperator::Unchanged);
    }
    operator.push(7).await;
    loop {
        match operator.next().await {
            ToOperator::Unchanged => {}
            ToOperator::Acknowledgement(_) => break,
            other => panic!("{other:?}"),
        }
    }
    let ToOperator::Status(status) = operator.next().await else { panic!("the snapshot is new") };
    assert_eq!(status.in_force.map(|in_force| in_force.sequence), Some(7));
    assert_eq!(operator.next().await, ToOperator::Unchanged);
}

#[tokio::test]
async fn a_client_of_another_name_gets_the_reason_and_changes_nothing() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &["--control-client-name", OPERATOR]).await;
    let mut stranger = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    // The client sends a message before the agent refuses it.
    stranger.push(1).await;
    let ToOperator::Goodbye(goodbye) = stranger.next().await else { panic!("no goodbye") };
    assert!(goodbye.reason.contains("operator.test") && goodbye.reason.contains(OPERATOR), "{goodbye:?}");
    assert!(timeout(PATIENCE, stranger.0.next()).await.expect("closed before the timeout").is_err());

    let mut operator = Operator::connect(&agent, &agents, &clients, OPERATOR).await;
    let ToOperator::Status(status) = operator.next().await else { panic!("no status") };
    assert_eq!(status.in_force, None);
}

#[tokio::test]
async fn what_is_no_frame_ends_the_channel_and_nothing_else() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let mut good = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    assert!(matches!(good.next().await, ToOperator::Status(_)));
    for bytes in [&[0xff; 64][..], &[0; 5], b"PUT /v1/config HTTP/1.1\r\n\r\n"] {
        let identity = clients.issue("operator.test");
        let mut stream = tls(agent.addresses.control, &agents, Some(&identity), &[ALPN]).await.expect("accepted");
        stream.write_all(bytes).await.expect("written");
        let mut bad = Operator(Channel::new(stream));
        assert!(matches!(bad.next().await, ToOperator::Status(_)));
        assert!(timeout(PATIENCE, bad.0.next()).await.expect("closed before the timeout").is_err(), "{bytes:?}");
    }
    good.push(1).await;
    assert!(matches!(good.next().await, ToOperator::Acknowledgement(_)));
    // HTTP clients still work at the same time.
    let identity = clients.issue("operator.test");
    let mut curl = TlsClient::connect(agent.addresses.control, &agents, Some(&identity)).await.unwrap();
    let answer = curl.send(request("GET", "/v1/config", &[("host", "agent.test")], "")).await.unwrap();
    assert_eq!(json_of(&answer)["sequence"], 1);
}
