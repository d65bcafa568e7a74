//! Tests a whole link: the task, its machine and an agent on loopback.

use std::{collections::BTreeMap, time::Duration};

use bytes::BufMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use weir_channel::{ToAgent, ToOperator};
use weir_wire::{Answer, ApplyReply, Goodbye, LevelsSent, Outcome, Question, Snapshot, SnapshotInForce};

use super::*;
use crate::{
    fleet::FleetCounter,
    identity::PodIdentity,
    leader::Term,
    link::{
        Failure, FailureKind, Lanes, Link, ObservationSender, StatusInterval, Timing,
        dial::tests::{Served, agent, pod, status},
        observations,
    },
    metrics::Metrics,
    plan::content_for_pod,
    world::Membership,
};

/// The timeout for events that normally happen immediately, on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// Returns the state of a link that waits for each answer as long as `timing` permits, and for a permit without end.
fn shared(timing: Timing, sender: ObservationSender) -> LinkContext {
    let timing = Timing { quick_answer: LONG, fresh: LONG, ..timing };
    LinkContext {
        credentials: None,
        files: None,
        timing: Arc::new(timing),
        lanes: Arc::new(Lanes::default()),
        observations: sender,
        metrics: Metrics::default(),
        term: Term::unbounded(),
        fleet: FleetCounter::new(Term::unbounded(), Metrics::default()),
        status_interval: Arc::new(StatusInterval::new(timing)),
    }
}

fn content() -> Arc<Content> {
    Arc::new(content_for_pod(&BTreeMap::new(), &BTreeMap::new(), "shop", &Membership::Everything))
}

/// Acknowledges the next snapshot.
async fn acknowledge(served: &mut Served) {
    loop {
        if let ToAgent::Snapshot(body) = served.received().await.expect("a snapshot") {
            let Snapshot { sequence, revision, .. } = serde_json::from_slice(&body).unwrap();
            let in_force = SnapshotInForce { sequence, revision, since_unix_millis: 1 };
            return served.say(ToOperator::Acknowledgement(ApplyReply { in_force })).await;
        }
    }
}

#[tokio::test]
async fn an_agent_is_pushed_to_heard_and_missed() {
    let (address, mut dials, held) = agent().await;
    let timing =
        Timing { status_interval: Duration::from_secs(1), timeout: Duration::from_millis(700), ..Timing::default() };
    let (sender, mut observed) = observations();
    let shared = LinkContext { credentials: Some(held), ..shared(timing, sender) };
    let (content, pod) = (content(), pod("web"));
    let url = format!("https://{address}");
    let _link = Link::start(Arc::new(shared), pod.key, pod.uid, &url, content.clone());
    let mut next = async || timeout(LONG, observed.recv()).await.expect("the link must report a result").unwrap().seen;
    let mut dial = async || timeout(LONG, dials.recv()).await.expect("the link must dial the agent").unwrap();

    let mut served = dial().await;
    served.say(status(None)).await;
    assert!(matches!(next().await, Seen::Status(status) if status.in_force.is_none()));
    acknowledge(&mut served).await;
    assert!(matches!(next().await, Seen::Acknowledged(_)));
    served.say(status(Some(&content.revision))).await;
    assert!(matches!(next().await, Seen::Status(_)));
    served.say(ToOperator::Unchanged).await;

    // Another operator has written.
    served.say(status(Some("another"))).await;
    assert!(matches!(next().await, Seen::Status(_)), "the status must be reported");
    acknowledge(&mut served).await;
    assert!(matches!(next().await, Seen::Acknowledged(_)), "the link must push its content again");

    // The agent stops sending, and does not greet on the next connection.
    let _silent = dial().await;
    assert!(served.received().await.is_none(), "the operator must close the connection");
    let seen = next().await;
    assert!(matches!(seen, Seen::Failed(Failure { kind: FailureKind::Unreachable, .. })), "{seen:?}");
    let mut back = dial().await;
    back.say(status(Some(&content.revision))).await;
    assert!(matches!(next().await, Seen::Status(_)), "the new greeting must be reported");

    back.say(ToOperator::Goodbye(Goodbye { reason: "full".to_owned(), retry_after_millis: 0 })).await;
    let mut served = dial().await;
    served.say(ToOperator::Goodbye(Goodbye { reason: "still full".to_owned(), retry_after_millis: 0 })).await;
    let Seen::Failed(failure) = next().await else { panic!("the goodbye must be reported") };
    assert_eq!(failure.message, "still full");
}

/// With thousands of agents, the next status can be far in the future. Here it is a minute.
#[tokio::test]
async fn an_agent_that_ends_is_noticed_at_once() {
    let (address, mut dials, held) = agent().await;
    let minute = Duration::from_secs(60);
    let timing = Timing { status_interval: minute, longest_status_interval: minute, ..Timing::default() };
    let (sender, mut observed) = observations();
    let shared = LinkContext { credentials: Some(held), ..shared(timing, sender) };
    let pod = pod("web");
    let _link = Link::start(Arc::new(shared), pod.key, pod.uid, &format!("https://{address}"), content());
    let mut served = dials.recv().await.unwrap();
    served.say(status(None)).await;
    acknowledge(&mut served).await;
    drop(served);
    let gone = async {
        loop {
            // This agent accepts the connection and does not greet.
            let dialed = async { drop(dials.recv().await) };
            tokio::select! {
                () = dialed => {}
                seen = observed.recv() => {
                    if let Seen::Failed(failure) = seen.unwrap().seen {
                        return failure;
                    }
                }
            }
        }
    };
    let failure = timeout(Duration::from_secs(5), gone).await.expect("the end of the agent must be detected");
    assert_eq!(failure.kind, FailureKind::Unreachable);
}

/// If thousands of agents fall silent together, only a bounded number is dialed at the same time.
#[tokio::test]
async fn a_call_waits_for_a_permit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shared = Arc::new(shared(Timing::default(), observations().0));
    let permits = shared.lanes.answering.working.clone().acquire_many_owned(64).await.unwrap();
    let pod = PodIdentity { key: ObjectKey::new("shop", "a"), uid: "uid".into() };
    let url = format!("http://{}", listener.local_addr().unwrap());
    let _link = Link::start(shared, pod.key, pod.uid, &url, content());
    let (mut reached, _) = timeout(LONG, listener.accept()).await.expect("the link opens TCP").unwrap();
    let mut first = [0];
    timeout(Duration::from_millis(500), reached.read(&mut first)).await.expect_err("the link speaks without a permit");
    drop(permits);
    timeout(LONG, reached.read_exact(&mut first)).await.expect("the link dials with the free permit").unwrap();
}

/// An agent closes a connection on which nothing arrives for some seconds.
#[tokio::test]
async fn a_connection_that_waited_too_long_for_a_permit_is_opened_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let shared = shared(Timing::default(), observations().0);
    let timing = Arc::new(Timing { fresh: Duration::ZERO, ..*shared.timing });
    let shared = Arc::new(LinkContext { timing, ..shared });
    let permits = shared.lanes.answering.working.clone().acquire_many_owned(64).await.unwrap();
    // A link that counts a miss would wait for one of these.
    let _silent = shared.lanes.silent.working.clone().acquire_many_owned(32).await.unwrap();
    let pod = PodIdentity { key: ObjectKey::new("shop", "a"), uid: "uid".into() };
    let url = format!("http://{}", listener.local_addr().unwrap());
    let _link = Link::start(shared, pod.key, pod.uid, &url, content());
    let (mut reached, _) = timeout(LONG, listener.accept()).await.expect("the link opens TCP").unwrap();
    let mut first = [0];
    timeout(Duration::from_millis(100), reached.read(&mut first)).await.expect_err("the link speaks without a permit");
    drop(reached);
    drop(permits);
    let (mut again, _) = timeout(LONG, listener.accept()).await.expect("the link opens TCP again").unwrap();
    timeout(LONG, again.read_exact(&mut first)).await.expect("the link speaks on the new connection").unwrap();
}

/// A new leader does not know which agents are dead: their hosts do not answer, or they accept connections and are
/// silent.
#[tokio::test]
async fn dead_agents_do_not_delay_a_live_one() {
    for accepted in [0, 1024] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let dead = socket.listen(accepted).unwrap();
        let (address, mut dials, held) = agent().await;
        let (timeout_of_dead, quick_answer) = (Duration::from_secs(3600), Duration::from_secs(5));
        let timing = Timing { timeout: timeout_of_dead, quick_answer, fresh: LONG, ..Timing::default() };
        let (sender, mut observed) = observations();
        let shared =
            Arc::new(LinkContext { credentials: Some(held), timing: Arc::new(timing), ..shared(timing, sender) });
        let start = |name: &str, url: String| {
            let pod = pod(name);
            Link::start(shared.clone(), pod.key, pod.uid, &url, content())
        };
        let url = format!("http://{}", dead.local_addr().unwrap());
        // The kernel completes one connection even if the listener accepts none, so this dial takes a permit for a moment.
        let mut links: Vec<_> = (0..=Lanes::ANSWERING).map(|n| start(&format!("dead-{n}"), url.clone())).collect();
        let lane = &shared.lanes.answering;
        let connecting = || Lanes::ANSWERING * Lanes::CONNECTING - lane.connecting.available_permits();
        let all_dial = async {
            while lane.working.available_permits() > 0 && connecting() < Lanes::ANSWERING {
                yield_now().await;
            }
        };
        timeout(LONG, all_dial).await.expect("the links dial");
        links.push(start("web", format!("https://{address}")));
        let pushed = async {
            let mut served = dials.recv().await.unwrap();
            served.say(status(None)).await;
            acknowledge(&mut served).await;
            while !matches!(observed.recv().await.unwrap().seen, Seen::Acknowledged(_)) {}
        };
        timeout(LONG, pushed).await.unwrap_or_else(|_| panic!("{accepted}: the live agent waits"));
    }
}

/// Returns a link with an open connection, the agent's side of it, and the sender of wanted content.
async fn greeted() -> (Task, TcpStream, watch::Sender<Arc<Content>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let pod = pod("web");
    let dial = Dial::new(&format!("http://{}", listener.local_addr().unwrap()), pod.clone(), None);
    let greets = async {
        let mut stream = listener.accept().await.unwrap().0;
        stream.write_all_buf(&mut status(None).frame().unwrap().into_buf()).await.unwrap();
        stream
    };
    let (dialed, agent) = tokio::join!(dial.clone().connect(LONG), greets);
    let (want, wanted) = watch::channel(content());
    let context = Arc::new(shared(Timing::default(), observations().0));
    let mut task = Task::new(context, pod.key, pod.uid, dial, wanted);
    task.connection = Some(dialed.unwrap().connection);
    (task, agent, want)
}

/// There is a link for each of thousands of pods. Tokio adds about 100 bytes to a future, and allocates multiples of 128.
#[test]
fn an_idle_link_is_small() {
    let (context, pod) = (Arc::new(shared(Timing::default(), observations().0)), pod("web"));
    let (_want, wanted) = watch::channel(content());
    let dial = Dial::new("http://127.0.0.1:9", pod.clone(), None);
    let task = Box::new(Task::new(context, pod.key, pod.uid, dial, wanted));
    let sizes = (size_of::<Task>(), size_of_val(&task.run()));
    assert!(sizes.0 <= 704 && sizes.1 <= 784, "{sizes:?}");
}

/// A broken agent must not keep its pod from getting new rules.
#[tokio::test]
async fn a_flood_of_messages_does_not_hold_back_new_content() {
    let (mut task, mut agent, want) = greeted().await;
    let mut flood = Vec::new();
    for _ in 0..1000 {
        flood.put(ToOperator::Unchanged.frame().unwrap().into_buf());
    }
    agent.write_all(&flood).await.unwrap();
    let mut next = async || task.next().await.unwrap_or_else(|LinkEnded| panic!("the engine has not ended"));
    while !matches!(next().await, LinkEvent::Received(_)) {}
    want.send(content()).unwrap();
    let mut messages = 0;
    loop {
        match next().await {
            LinkEvent::Wanted(_) => break,
            LinkEvent::Received(_) => messages += 1,
            _ => {}
        }
    }
    assert!(messages <= MOST_IN_ROW, "the content waited for {messages} messages");
}

/// TCP slows down an agent that asks without a pause. It keeps its connection, and still gets new content.
#[tokio::test]
async fn an_agent_without_budget_is_not_read() {
    let (mut task, mut agent, want) = greeted().await;
    let asks = ToOperator::Questions(vec![question(1, 0); 256]);
    let begun = task.budget.read_at();
    agent.write_all_buf(&mut asks.frame().unwrap().into_buf()).await.unwrap();
    while !matches!(task.next().await, Ok(LinkEvent::Received(_))) {}
    assert!(task.budget.read_at() >= begun + Duration::from_micros(25_600), "it has asked 256 questions");

    while task.budget.read_at() < clock::now() + LONG {
        task.budget.spend(&asks, clock::now());
    }
    agent.write_all_buf(&mut ToOperator::Unchanged.frame().unwrap().into_buf()).await.unwrap();
    for _ in 0..100 {
        want.send(content()).unwrap();
        yield_now().await;
        let event = task.next().await.unwrap_or_else(|LinkEnded| panic!("the engine has not ended"));
        assert!(!matches!(event, LinkEvent::Received(_)), "{event:?}");
    }
    task.budget = Budget::new(clock::now());
    while !matches!(task.next().await, Ok(LinkEvent::Received(ToOperator::Unchanged))) {}
}

fn question(id: u64, owed: u64) -> Question {
    Question {
        id,
        counters: "shop/api.all".to_owned(),
        hash: "1".to_owned(),
        stamp: 1,
        limits: "0 0 10 1000000000 10 0".to_owned(),
        requests: 8,
        cost: 1,
        patience_micros: 0,
        prefetch: 0,
        guard_micros: 0,
        lookahead_micros: 0,
        owed,
        credit: 0,
        seen: None,
        returned: None,
        ban: None,
    }
}

#[tokio::test]
async fn questions_are_answered_once_the_share_of_the_agent_is_over() {
    let (address, mut dials, held) = agent().await;
    let (sender, _observed) = observations();
    let shared = LinkContext { credentials: Some(held), ..shared(Timing::default(), sender) };
    let (content, pod, fleet) = (Content::counted("one"), pod("web"), shared.fleet.clone());
    fleet.expect(&pod.uid, &pod.key.name, true, Some(&content));
    fleet.planned();
    let (uid, url) = (pod.uid.clone(), format!("https://{address}"));
    let link = Link::start(Arc::new(shared), pod.key, pod.uid, &url, content.clone());
    let mut served = timeout(LONG, dials.recv()).await.expect("the link must dial the agent").unwrap();
    let answers = async |served: &mut Served| loop {
        if let ToAgent::Answers(answers) = timeout(LONG, served.received()).await.unwrap().expect("a message") {
            return answers;
        }
    };

    served.say(status(None)).await;
    acknowledge(&mut served).await;
    served.say(status(Some(&content.revision))).await;
    served.say(ToOperator::Questions(vec![question(1, 0)])).await;
    let early = Outcome::NotYet;
    assert_eq!(answers(&mut served).await, [Answer { id: 1, outcome: early }]);

    served.say(ToOperator::Questions(vec![question(0, 3)])).await;
    served.say(ToOperator::LevelsSent(LevelsSent { is_complete: true, time: None, releases: 0 })).await;
    assert_eq!(answers(&mut served).await, [], "the share of the agent is over");
    served.say(ToOperator::LevelsSent(LevelsSent { is_complete: true, time: None, releases: 1 })).await;
    // A message without questions gets no answer.
    served.say(ToOperator::Unchanged).await;
    served.say(ToOperator::Questions(vec![question(2, 0)])).await;
    let [Answer { id, outcome: Outcome::Counted(granted) }] = &answers(&mut served).await[..] else {
        panic!("not the answer to the question");
    };
    assert_eq!((*id, granted.granted), (2, 7));

    // The pod is being deleted. Its agent still serves requests, and asks until it ends.
    fleet.expect(&uid, &"web".into(), true, None);
    let task = link.retire();
    // The pod comes back, and its new link pushes.
    served.say(status(Some("newer"))).await;
    for id in [3, 4] {
        served.say(ToOperator::Questions(vec![question(id, 0)])).await;
        let message = timeout(LONG, served.received()).await.unwrap().expect("a message");
        let ToAgent::Answers(answers) = message else { panic!("a retired link pushed") };
        let [Answer { id: answered, outcome: Outcome::Counted(refused) }] = &answers[..] else {
            panic!("not the answer to the question");
        };
        assert_eq!((*answered, refused.granted), (id, 0), "the limit is used up");
    }
    drop(served);
    let ended = async {
        while !task.is_finished() {
            yield_now().await;
        }
    };
    timeout(LONG, ended).await.expect("the task ends with the channel");
    assert!(dials.try_recv().is_err(), "the operator must not dial the agent of a deleted pod");
}
