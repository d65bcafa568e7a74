//! Tests the rate limit quota service (`weir-agent rls`) from outside. The messages here are written from Envoy's proto files,
//! independently of the agent.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use prost::{Message, Oneof};
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
    time::timeout,
};
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_prost::ProstCodec;

use crate::{
    channel::{Counter, Operator},
    metrics::documented,
    service::{OK, OVER_LIMIT, ask, channel, per_user, question},
    support::{Agent, Authority, PATIENCE, Server, daily, policy, redis_at, rule, snapshot, with},
    tls::{files, flags},
};

pub(crate) const METHOD: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

#[derive(Clone, PartialEq, Message)]
struct Reports {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    usages: Vec<Usage>,
}

#[derive(Clone, PartialEq, Message)]
struct Usage {
    #[prost(message, optional, tag = "1")]
    bucket: Option<BucketId>,
    #[prost(message, optional, tag = "2")]
    time_elapsed: Option<Duration>,
    #[prost(uint64, tag = "3")]
    allowed: u64,
    #[prost(uint64, tag = "4")]
    denied: u64,
}

#[derive(Clone, PartialEq, Message)]
struct BucketId {
    #[prost(map = "string, bytes", tag = "1")]
    entries: HashMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Actions {
    #[prost(message, repeated, tag = "1")]
    actions: Vec<BucketAction>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketAction {
    #[prost(message, optional, tag = "1")]
    bucket: Option<BucketId>,
    #[prost(message, optional, tag = "2")]
    assignment: Option<Assignment>,
}

#[derive(Clone, PartialEq, Message)]
struct Assignment {
    #[prost(message, optional, tag = "2")]
    life: Option<Duration>,
    #[prost(message, optional, tag = "3")]
    strategy: Option<Strategies>,
}

#[derive(Clone, PartialEq, Message)]
struct Strategies {
    #[prost(oneof = "Strategy", tags = "1, 3")]
    one: Option<Strategy>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Strategy {
    #[prost(int32, tag = "1")]
    Blanket(i32),
    #[prost(message, tag = "3")]
    Tokens(TokenBucket),
}

#[derive(Clone, PartialEq, Message)]
struct TokenBucket {
    #[prost(uint32, tag = "1")]
    most: u32,
    #[prost(message, optional, tag = "2")]
    per_fill: Option<u32>,
    #[prost(message, optional, tag = "3")]
    interval: Option<Duration>,
}

const ALLOW_ALL: Strategy = Strategy::Blanket(0);
const DENY_ALL: Strategy = Strategy::Blanket(1);

/// A data plane.
struct DataPlane {
    reports: UnboundedSender<Reports>,
    actions: Streaming<Actions>,
}

impl DataPlane {
    async fn open(channel: &Channel) -> Self {
        let (reports, received) = unbounded_channel();
        let sent = futures::stream::unfold(received, async |mut received| Some((received.recv().await?, received)));
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.expect("connected");
        let codec = ProstCodec::<Reports, Actions>::default();
        let path = METHOD.try_into().expect("a path");
        let actions = client.streaming(tonic::Request::new(sent), path, codec).await.expect("a stream");
        Self { reports, actions: actions.into_inner() }
    }

    fn report(&self, domain: &str, entries: &[(&str, &str)], allowed: u64, denied: u64) {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
        self.send(domain, vec![usage(entries, allowed, denied)]);
    }

    fn send(&self, domain: &str, usages: Vec<Usage>) {
        self.reports.send(Reports { domain: domain.to_owned(), usages }).expect("the stream is open");
    }

    /// Returns the next assignments, by the value of the bucket's entry `user`.
    async fn next(&mut self) -> Result<Vec<(String, Option<Assignment>)>, Status> {
        let message = timeout(PATIENCE, self.actions.message()).await.expect("an action");
        let actions = message?.map(|message| message.actions).unwrap_or_default();
        let user = |bucket: BucketId| String::from_utf8(bucket.entries["user"].clone()).expect("text");
        let of = |action: BucketAction| (user(action.bucket.expect("a bucket")), action.assignment);
        Ok(actions.into_iter().map(of).collect())
    }

    /// Returns the next strategy for the only bucket.
    async fn strategy(&mut self) -> Strategy {
        let actions = self.next().await.expect("an action");
        let of = |(_, assignment): (String, Option<Assignment>)| {
            let Assignment { life, strategy } = assignment.expect("no abandon");
            assert!(life.is_some_and(|life| life.seconds >= 10 && life.nanos == 0));
            strategy.expect("a strategy").one.expect("a strategy")
        };
        let mut strategies: Vec<Strategy> = actions.into_iter().map(of).collect();
        let last = strategies.pop().expect("one bucket");
        // Envoy fills a token bucket only if it does not replace another one.
        let before: &[Strategy] = if matches!(last, Strategy::Tokens(_)) { &[DENY_ALL] } else { &[] };
        assert_eq!(strategies, before);
        last
    }

    async fn tokens(&mut self) -> TokenBucket {
        match self.strategy().await {
            Strategy::Tokens(bucket) => bucket,
            other @ Strategy::Blanket(_) => panic!("{other:?}"),
        }
    }
}

fn usage(entries: HashMap<String, Vec<u8>>, allowed: u64, denied: u64) -> Usage {
    let time_elapsed = Some(Duration { seconds: 5, nanos: 0 });
    Usage { bucket: Some(BucketId { entries }), time_elapsed, allowed, denied }
}

/// The first report of a bucket for the value of a header `user`.
fn first(user: &[u8]) -> Usage {
    usage([("user".to_owned(), user.to_vec())].into(), 0, 1)
}

/// A policy of the domain `shop` with these rules.
fn shop(rules: &[Value]) -> Value {
    with(policy("gateway", rules), json!({"domain": "shop"}))
}

fn of_user(action: &str) -> Value {
    json!({"name": "r", "action": action, "match": [{"descriptor": [{"name": "user"}]}]})
}

#[tokio::test]
async fn tokens_are_charged_to_the_limit_that_questions_use() {
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let channel = channel(&agent).await;
    let mut plane = DataPlane::open(&channel).await;
    plane.report("shop", &[("user", "ann")], 0, 1);
    let first = plane.tokens().await;
    // The bucket is refilled after its end, so it admits its tokens once.
    assert!(first.per_fill == Some(1) && first.interval.as_ref().is_some_and(|time| time.seconds > 1_000_000_000));
    // A data plane that needs more gets other tokens.
    plane.report("", &[("user", "ann")], first.most.into(), 50);
    let second = plane.tokens().await;
    assert!(second.interval != first.interval, "{second:?}");
    let mut admitted = 0;
    while ask(&channel, question(&[("user", "ann")])).await.expect("an answer").overall_code == OK {
        admitted += 1;
    }
    assert_eq!(admitted + first.most + second.most, 100);
    assert_eq!(ask(&channel, question(&[("user", "bob")])).await.expect("an answer").overall_code, OK);
    let tokens = f64::from(first.most + second.most);
    assert_eq!(agent.metric("weir_quota_tokens_total").await, Some(tokens));
    assert_eq!(agent.metric("weir_quota_assignments_total{kind=\"tokens\"}").await, Some(2.0));
    assert_eq!(agent.metric("weir_quota_requests_total{decision=\"denied\"}").await, Some(51.0));
    assert_eq!(agent.metric("weir_quota_streams").await, Some(1.0));
    let (documented, (_, text)) = (documented(), agent.telemetry("/metrics").await);
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    families.filter(|name| name.starts_with("weir_")).for_each(|name| assert!(documented.contains(name), "{name}"));
    drop(plane);
    agent.until_metric("weir_quota_streams", 0.0).await;
    agent.until_metric("weir_quota_buckets", 0.0).await;
}

/// Idle connections are closed first, even if the stream is older and silent.
#[tokio::test]
async fn new_connections_do_not_close_quota_streams() {
    let agent = Agent::service(&["--max-connections", "8"]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let mut plane = DataPlane::open(&channel(&agent).await).await;
    plane.report("shop", &[("user", "ann")], 0, 1);
    plane.tokens().await;
    let mut others = Vec::new();
    for _ in 0..12 {
        let other = channel(&agent).await;
        ask(&other, question(&[("user", "bob")])).await.expect("an answer");
        others.push(other);
    }
    agent.until_metric("weir_connections_evicted_total", 9.0).await;
    assert_eq!(agent.metric("weir_quota_streams").await, Some(1.0));
    plane.report("shop", &[("user", "ann")], 10, 50);
    plane.tokens().await;
}

#[tokio::test]
async fn entries_of_a_bucket_have_no_order() {
    let agent = Agent::service(&[]);
    let entries = json!([{"descriptor": [{"name": "user"}, {"name": "path", "prefix": "/a"}]}]);
    let more = json!({"match": entries, "key": [{"descriptor": "user"}]});
    agent.apply(&snapshot(1, &[shop(&[with(rule("r", &[daily("day", "FixedWindow", 8)]), more)])])).await;
    let mut plane = DataPlane::open(&channel(&agent).await).await;
    plane.report("shop", &[("path", "/ab"), ("user", "ann")], 0, 1);
    plane.tokens().await;
    plane.report("shop", &[("path", "/b"), ("user", "ann")], 0, 1);
    assert_eq!(plane.strategy().await, ALLOW_ALL);
}

/// The limit of the tests with two services.
const LIMIT: u64 = 100;

/// A snapshot with a limit that all services count in this store.
fn together(sequence: u64, store: &Value, on_loss: &str) -> Value {
    let shared = json!({
        "store": store["name"], "counters": "shop/gateway.r", "stamp": 1, "onStoreLoss": on_loss, "sharers": 2,
    });
    let more =
        json!({"match": [{"descriptor": [{"name": "user"}]}], "key": [{"descriptor": "user"}], "shared": shared});
    let rules = shop(&[with(rule("r", &[daily("day", "TokenBucket", LIMIT)]), more)]);
    with(snapshot(sequence, &[rules]), json!({"stores": [store]}))
}

/// Each of two services has a data plane that needs more than it gets. Together they get exactly the limit.
async fn hand_out_one_limit(one: &Agent, two: &Agent) {
    let (of_one, of_two) = (AtomicU64::new(0), AtomicU64::new(0));
    let collect = async |agent: &Agent, tokens: &AtomicU64| {
        let mut plane = DataPlane::open(&channel(agent).await).await;
        plane.report("shop", &[("user", "ann")], 0, 1);
        loop {
            let most = plane.tokens().await.most.into();
            tokens.fetch_add(most, Relaxed);
            if of_one.load(Relaxed) + of_two.load(Relaxed) >= LIMIT {
                return;
            }
            plane.report("shop", &[("user", "ann")], most, 50);
        }
    };
    let all = async {
        tokio::select! {
            () = collect(one, &of_one) => {}
            () = collect(two, &of_two) => {}
        }
    };
    timeout(PATIENCE, all).await.expect("all units are handed out");
    let tokens = of_one.load(Relaxed) + of_two.load(Relaxed);
    assert!(of_one.load(Relaxed) > 0 && of_two.load(Relaxed) > 0 && tokens == LIMIT, "{of_one:?} {of_two:?}");
    for agent in [one, two] {
        let answer = ask(&channel(agent).await, question(&[("user", "ann")])).await.expect("an answer");
        assert_eq!(answer.overall_code, OVER_LIMIT);
    }
}

#[tokio::test]
async fn services_with_a_store_hand_out_one_limit() {
    let redis = Server::redis().await;
    let snapshot = together(1, &redis_at(redis.port), "FailClosed");
    let (one, two) = (Agent::service(&[]), Agent::service(&[]));
    one.apply(&snapshot).await;
    two.apply(&snapshot).await;
    hand_out_one_limit(&one, &two).await;
}

#[tokio::test]
async fn services_that_ask_the_operator_hand_out_one_limit() {
    let (agents, clients) = (Authority::new(), Authority::new());
    let folder = files(&agents, &clients);
    let flags = flags(folder.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (one, two) = (Agent::service(&flags), Agent::service(&flags));
    let mut of_one = Operator::connect(&one, &agents, &clients, "operator.test").await;
    let mut of_two = Operator::connect(&two, &agents, &clients, "operator.test").await;
    let snapshot = together(2, &json!({"name": "operator", "backend": "operator"}), "LocalShare");
    of_one.lead_with(&snapshot).await;
    of_two.lead_with(&snapshot).await;
    let counter = Counter::default();
    tokio::select! {
        () = hand_out_one_limit(&one, &two) => {}
        () = of_one.count(&counter) => unreachable!("it counts forever"),
        () = of_two.count(&counter) => unreachable!("it counts forever"),
    }
}

#[tokio::test]
async fn changes_of_the_rules_reach_data_planes_that_report_nothing() {
    let agent = Agent::service(&[]);
    let mut plane = DataPlane::open(&channel(&agent).await).await;
    plane.report("shop", &[("user", "ann")], 1, 0);
    assert_eq!(plane.strategy().await, ALLOW_ALL, "there are no rules");
    agent.apply(&snapshot(1, &[shop(&[of_user("Deny")])])).await;
    assert_eq!(plane.strategy().await, DENY_ALL);
    agent.apply(&snapshot(2, &[shop(&[of_user("Bypass")])])).await;
    assert_eq!(plane.strategy().await, ALLOW_ALL);
    agent.apply(&snapshot(3, &[per_user(100)])).await;
    let many = plane.tokens().await.most;
    agent.apply(&snapshot(4, &[per_user(1)])).await;
    assert_eq!(plane.strategy().await, DENY_ALL, "{many} tokens of one were charged");
    let shadow = with(rule("r", &[daily("day", "FixedWindow", 1)]), json!({"mode": "Shadow"}));
    agent.apply(&snapshot(5, &[shop(&[with(shadow, json!({"match": [{"descriptor": [{"name": "user"}]}]}))])])).await;
    assert_eq!(plane.strategy().await, ALLOW_ALL);
}

#[tokio::test]
async fn an_invalid_report_names_the_field() {
    let agent = Agent::service(&[]);
    let channel = channel(&agent).await;
    let of_ann: &[(&str, &str)] = &[("user", "ann")];
    for (reports, told) in [
        (vec![("", of_ann)], "domain: must not be empty"),
        (vec![("shop", of_ann), ("other", of_ann)], "domain: is other, and was shop"),
        (vec![("shop", &[])], "bucket_quota_usages.bucket_id.bucket: must not be empty"),
        (vec![("shop", &[("", "ann")])], "bucket_quota_usages.bucket_id.bucket: a key must not be empty"),
    ] {
        let mut plane = DataPlane::open(&channel).await;
        reports.iter().for_each(|(domain, entries)| plane.report(domain, entries, 0, 1));
        let status = loop {
            match plane.next().await {
                Ok(actions) => assert!(!actions.is_empty(), "{told}"),
                Err(status) => break status,
            }
        };
        assert!(status.code() == Code::InvalidArgument && status.message().starts_with(told), "{status}");
    }
}

/// Envoy sends a header of a client as it is. An action for such a bucket would end the stream in Envoy.
#[tokio::test]
async fn a_value_that_is_not_utf_8_does_not_end_the_stream() {
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let mut plane = DataPlane::open(&channel(&agent).await).await;
    for (user, refused) in [("ann", 1.0), ("bob", 2.0)] {
        plane.send("shop", vec![first(b"bad\xff"), first(user.as_bytes())]);
        let actions = plane.next().await.expect("the stream is open");
        assert!(!actions.is_empty(), "the stream has ended");
        assert!(actions.iter().all(|(of, assignment)| of == user && assignment.is_some()), "{actions:?}");
        assert_eq!(agent.metric("weir_quota_buckets_refused_total").await, Some(refused));
    }
    assert_eq!(agent.metric("weir_quota_buckets").await, Some(2.0));
}

/// A data plane repeats a bucket in each report until it gets an action for it.
#[tokio::test]
async fn buckets_without_room_are_abandoned_also_in_very_large_reports() {
    const BUCKETS: usize = 300;
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let mut plane = DataPlane::open(&channel(&agent).await).await;
    // More than 16 MiB: Envoy accepts headers of 60 KiB.
    let mut usages: Vec<Usage> = (0..BUCKETS).map(|number| first(format!("{number:058000}").as_bytes())).collect();
    usages.push(first(b"ann"));
    plane.send("shop", usages);
    let (mut abandoned, mut assigned) = (0, Vec::new());
    while abandoned < BUCKETS || assigned.is_empty() {
        let actions = plane.next().await.expect("the stream is open");
        assert!(!actions.is_empty(), "the stream has ended");
        for (user, assignment) in actions {
            match assignment {
                None => abandoned += usize::from(user.parse() == Ok(abandoned)),
                Some(_) => assigned.push(user),
            }
        }
    }
    assert!(assigned.iter().all(|user| user == "ann"), "{assigned:?}");
    assert_eq!(agent.metric("weir_quota_buckets_refused_total").await, Some(300.0));
    assert_eq!(agent.metric("weir_quota_assignments_total{kind=\"abandon\"}").await, Some(300.0));
    plane.send("", vec![first(b"bob")]);
    let actions = plane.next().await.expect("the stream is open");
    assert!(!actions.is_empty() && actions.iter().all(|(user, _)| user == "bob"), "{actions:?}");
}

#[tokio::test]
async fn a_wrong_report_does_not_make_counters_go_backwards() {
    let agent = Agent::service(&[]);
    let channel = channel(&agent).await;
    let plane = DataPlane::open(&channel).await;
    plane.report("shop", &[("user", "ann")], 7, 9);
    plane.report("shop", &[("user", "ann")], u64::MAX, u64::MAX);
    for (decision, before) in [("allowed", 7.0), ("denied", 9.0)] {
        let series = format!("weir_quota_requests_total{{decision=\"{decision}\"}}");
        agent.until_metric(&series, before + f64::from(u32::MAX)).await;
    }
}

#[tokio::test]
async fn a_drain_ends_the_streams() {
    let mut agent = Agent::service(&["--drain", "30s"]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let channel = channel(&agent).await;
    let mut plane = DataPlane::open(&channel).await;
    plane.report("shop", &[("user", "ann")], 0, 1);
    plane.tokens().await;
    agent.terminate();
    assert_eq!(plane.next().await.expect("the end of the stream"), []);
    drop((plane, channel));
    let ended = tokio::task::spawn_blocking(move || agent.wait());
    assert!(ended.await.expect("no panic").success());
}
