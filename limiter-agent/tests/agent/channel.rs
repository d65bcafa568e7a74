//! Tests the operator's channel on the control port, which clients choose by ALPN.

#![expect(clippy::disallowed_methods, reason = "the operator of a test reads the clock")]

use std::{
    cell::RefCell,
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    select,
    time::{Instant, timeout},
};
use tokio_rustls::client::TlsStream;
use weir_channel::{ALPN, Channel, Outgoing, ToAgent, ToOperator};
use weir_seats::{self as seats, EncodedTake, Key, model};
use weir_wire::{Answer, LevelsSent, MAX_SNAPSHOT_BYTES, Outcome, Question, Rejection, RejectionKind, StatusRequest};

use crate::{
    support::{Agent, Authority, PATIENCE, TlsClient, daily, json_of, policy, request, rule, snapshot, tls, with},
    tls::{OPERATOR, files, start},
};

/// A client of the channel that does what the operator does.
pub(super) struct Operator(Channel<TlsStream<TcpStream>>);

impl Operator {
    pub(super) async fn connect(agent: &Agent, agents: &Authority, clients: &Authority, name: &str) -> Self {
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

    /// The next message, except for the one that every agent sends after its first snapshot.
    async fn next(&mut self) -> ToOperator {
        loop {
            let message = self.any().await;
            if !matches!(message, ToOperator::LevelsSent(_)) {
                return message;
            }
        }
    }

    async fn any(&mut self) -> ToOperator {
        let frame = timeout(PATIENCE, self.0.next()).await.expect("a message in time").expect("a message");
        ToOperator::parse(&frame).expect("a message of an agent")
    }

    /// Pushes a rule with this limit, which the operator counts, and ends the agent's share. Returns the levels that the
    /// agent reports, and whether these are all.
    async fn lead(&mut self, sequence: u64, requests: u64) -> (Vec<Question>, bool) {
        self.lead_with(&fleet(sequence, requests)).await
    }

    /// Pushes rules that the operator counts, and ends the agent's share.
    pub(super) async fn lead_with(&mut self, snapshot: &Value) -> (Vec<Question>, bool) {
        assert!(matches!(self.any().await, ToOperator::Status(_)));
        self.apply(snapshot).await;
        let levels = self.reports().await;
        // The agent's share ends, and the agent asks from now on.
        self.send(ToAgent::Answers(Vec::new())).await;
        assert_eq!(self.reports().await, (vec![], true), "the share was not used");
        levels
    }

    async fn apply(&mut self, snapshot: &Value) {
        self.send(ToAgent::Snapshot(snapshot.to_string().into_bytes())).await;
        assert!(matches!(self.any().await, ToOperator::Acknowledgement(_)));
    }

    /// The questions that expect no answers, and whether the agent has sent all that it knows.
    async fn reports(&mut self) -> (Vec<Question>, bool) {
        let mut reports = Vec::new();
        loop {
            match self.any().await {
                ToOperator::Questions(questions) => reports.extend(questions),
                ToOperator::LevelsSent(LevelsSent { is_complete, .. }) => return (reports, is_complete),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends requests to the agent, and answers its questions in the meantime, as the operator does.
    async fn statuses(&mut self, agent: &Agent, requests: usize, counter: &Counter) -> Vec<u16> {
        select! {
            statuses = agent.statuses("/", &[], requests) => statuses,
            () = self.count(counter) => unreachable!("it counts forever"),
        }
    }

    /// Answers questions forever, as the operator does.
    pub(super) async fn count(&mut self, counter: &Counter) {
        loop {
            if let ToOperator::Questions(questions) = self.any().await {
                let answers = questions.iter().map(|question| counter.answer(question)).collect();
                self.send(ToAgent::Answers(answers)).await;
            }
        }
    }

    async fn rejection(&mut self) -> Rejection {
        match self.next().await {
            ToOperator::Rejection(rejection) => *rejection,
            other => panic!("{other:?}"),
        }
    }
}

/// The counts of an operator, by the arithmetic of `weir-seats`.
#[derive(Default)]
pub(super) struct Counter(RefCell<HashMap<Key, seats::Value>>);

impl Counter {
    fn answer(&self, question: &Question) -> Answer {
        let (key, encoded) = EncodedTake::read(question).expect("a valid question");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
        let mut counts = self.0.borrow_mut();
        let outcome = model::take(counts.get(&key), &encoded, u64::try_from(now).expect("fits"));
        counts.insert(key, outcome.value);
        Answer { id: question.id, outcome: Outcome::Counted(outcome.answer.message()) }
    }
}

/// A snapshot with a limit in a day that the operator counts. A higher limit is newer.
fn fleet(sequence: u64, requests: u64) -> Value {
    let shared = json!({
        "store": "operator", "counters": "shop/api.all", "stamp": requests, "onStoreLoss": "LocalShare", "sharers": 2,
    });
    let rule = with(rule("all", &[daily("l", "SlidingWindowLog", requests)]), json!({"shared": shared}));
    let store = json!({"name": "operator", "backend": "operator"});
    with(snapshot(sequence, &[policy("api", &[rule])]), json!({"stores": [store]}))
}

#[tokio::test]
async fn the_operator_counts_and_the_next_one_learns_what_this_one_counted() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (app, agent) = start(folder.path(), &[]).await;
    let mut first = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    assert_eq!(first.lead(2, 5).await, (vec![], true));
    let counter = Counter::default();
    assert_eq!(first.statuses(&agent, 3, &counter).await, [200; 3]);
    let identity = clients.issue("operator.test");
    let mut curl = TlsClient::connect(agent.addresses.control, &agents, Some(&identity)).await.unwrap();
    let explain = request("POST", "/v1/explain", &[("host", "agent.test")], r#"{"target": "/"}"#);
    let explained = json_of(&curl.send(explain).await.unwrap());
    assert_eq!(explained["rules"][0]["source"], "last answer of the operator; unused seats: 0");

    let mut second = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    let (levels, is_complete) = second.lead(4, 5).await;
    let [level] = &levels[..] else { panic!("{levels:?}") };
    let used = level.seen.as_ref().map(|marks| marks[0][1]);
    assert_eq!((level.id, level.requests, used, is_complete), (0, 0, Some(3), true));
    // The first one cannot lead again: its snapshot is old.
    first.push(3).await;
    assert_eq!(first.rejection().await.error, RejectionKind::Stale);
    let counter = Counter::default();
    counter.answer(level);
    assert_eq!(second.statuses(&agent, 4, &counter).await, [200, 200, 429, 429]);
    assert_eq!(app.requests(), 5);

    // The limit changes, and no request updates the level before another operator leads. The agent reports the level
    // with the limit that it has.
    second.apply(&fleet(5, 6)).await;
    let mut third = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    let (levels, is_complete) = third.lead(6, 6).await;
    let [level] = &levels[..] else { panic!("{levels:?}") };
    assert_eq!((level.stamp, level.seen.as_ref().map(|marks| marks[0][1]), is_complete), (5, Some(5), true));
    assert_eq!(third.statuses(&agent, 1, &counter).await, [200]);
}

/// Without the operator's count, a rule of scope Fleet refuses requests, so a Service must not send them yet.
#[tokio::test]
async fn an_agent_is_ready_when_the_operator_counts() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let bootstrap = fleet(1, 5).to_string();
    let (_app, agent) = start(folder.path(), &["--bootstrap", &bootstrap]).await;
    let mut operator = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    let (status, text) = agent.telemetry("/readyz").await;
    assert!(status == 503 && text.starts_with("joining: "), "{status}: {text}");
    assert_eq!(agent.statuses("/", &[], 1).await, [429], "the port is open");
    operator.lead(2, 5).await;
    let is_ready = async {
        while agent.telemetry("/readyz").await.0 != 200 {
            tokio::task::yield_now().await;
        }
    };
    let share_begins = Duration::from_secs(20);
    timeout(share_begins / 2, is_ready).await.expect("ready because the operator counts");
}

/// The operator receives all messages, and its answers are lost. It counts the agent as present until the agent is silent,
/// so the agent sends no status before its share begins, and waits again after an acknowledgement.
#[tokio::test]
async fn an_agent_that_gets_no_answers_is_silent_before_its_share_begins() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let (_app, agent) = start(folder.path(), &[]).await;
    let mut operator = Operator::connect(&agent, &agents, &clients, "operator.test").await;
    operator.lead(2, 5).await;
    operator.send(ToAgent::StatusRequest(StatusRequest { every_millis: 100 })).await;
    let requests = async {
        loop {
            agent.statuses("/", &[], 1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let listening = async {
        while let Ok(frame) = timeout(Duration::from_secs(3), operator.0.next()).await {
            frame.expect("the agent keeps the channel open");
        }
        let pushed = Instant::now();
        operator.apply(&fleet(3, 5)).await;
        operator.any().await;
        pushed.elapsed()
    };
    let silent_for = select! {
        silent_for = timeout(PATIENCE, listening) => silent_for.expect("the agent must be silent"),
        () = requests => unreachable!("it sends requests forever"),
    };
    // 6 s and an interval. Without the acknowledgement, at most 3.1 s were left.
    assert!(silent_for >= Duration::from_millis(5_500), "{silent_for:?}");
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
