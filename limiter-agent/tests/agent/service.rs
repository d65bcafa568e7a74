//! Tests the rate limit service (`weir-agent rls`) from outside, over gRPC and JSON. The messages here are written from
//! Envoy's proto files, independently of the agent.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use prost::Message;
use serde_json::{Value, json};
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use tonic_prost::ProstCodec;

use crate::{
    metrics::documented,
    support::{
        Agent, App, Authority, Server, TlsClient, binary, daily, json_of, policy, redis_at, request, rule, snapshot,
        with,
    },
};

pub(crate) const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Question {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<OwnLimit>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

/// The unit 2 is a minute, and 4 is a day.
#[derive(Clone, Copy, PartialEq, Message)]
struct OwnLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(message, optional, tag = "3")]
    unit_multiplier: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Answer {
    #[prost(int32, tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<Status>,
    #[prost(bytes = "vec", tag = "5")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
}

pub(crate) const OK: i32 = 1;
pub(crate) const OVER_LIMIT: i32 = 2;

pub(crate) fn question(entries: &[(&str, &str)]) -> Question {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let entries = entries.iter().map(entry).collect();
    Question {
        domain: "shop".to_owned(),
        descriptors: vec![Descriptor { entries, ..Descriptor::default() }],
        hits_addend: 0,
    }
}

pub(crate) async fn channel(agent: &Agent) -> Channel {
    Endpoint::from_shared(agent.url("")).expect("an address").connect().await.expect("connected")
}

pub(crate) async fn ask(channel: &Channel, question: Question) -> Result<Answer, tonic::Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Question, Answer>::default();
    let answer = client.unary(tonic::Request::new(question), METHOD.try_into().expect("a path"), codec).await?;
    Ok(answer.into_inner())
}

/// A policy of the domain `shop` with one limit for each value of the entry `user`.
pub(crate) fn per_user(requests: u64) -> Value {
    let more = json!({"match": [{"descriptor": [{"name": "user"}]}], "key": [{"descriptor": "user"}]});
    with(
        policy("gateway", &[with(rule("per-user", &[daily("day", "FixedWindow", requests)]), more)]),
        json!({"domain": "shop"}),
    )
}

#[tokio::test]
async fn grpc_and_json_ask_the_same_limits() {
    let agent = Agent::service(&[]);
    let ann = || question(&[("user", "ann")]);
    let channel = channel(&agent).await;
    let before = ask(&channel, ann()).await.expect("an answer");
    assert_eq!((before.overall_code, before.statuses.len()), (OK, 1), "there are no rules");
    agent.apply(&snapshot(1, &[per_user(3)])).await;
    for left in [2, 1] {
        let answer = ask(&channel, ann()).await.expect("an answer");
        assert_eq!((answer.overall_code, answer.statuses[0].limit_remaining), (OK, left));
    }
    let json = |body: Value| agent.client.send(request("POST", &agent.url("/json"), &[], body.to_string()));
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
    let last = json(body.clone()).await;
    assert_eq!((last.status().as_u16(), &json_of(&last)["overallCode"]), (200, &json!("OK")));
    let refused = json(body).await;
    assert_eq!(refused.status(), 429);
    let told = json_of(&refused);
    assert_eq!(
        told["statuses"][0]["currentLimit"],
        json!({"requestsPerUnit": 3, "unit": "DAY", "name": "per-user.day"})
    );
    assert!(told["statuses"][0]["durationUntilReset"].as_str().expect("a text").ends_with('s'));
    let answer = ask(&channel, ann()).await.expect("an answer");
    assert_eq!((answer.overall_code, answer.statuses[0].code), (OVER_LIMIT, OVER_LIMIT));
    let body: Value = serde_json::from_slice(&answer.raw_body).expect("JSON");
    assert_eq!((&body["policy"], &body["rule"]), (&json!("shop/gateway"), &json!("per-user")));
    assert_eq!(agent.counts(0, 0).await, [3, 2, 0]);
    assert_eq!(agent.metric("weir_service_questions_total{result=\"over_limit\"}").await, Some(2.0));
    let documented = documented();
    let (_, text) = agent.telemetry("/metrics").await;
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    families.filter(|name| name.starts_with("weir_")).for_each(|name| assert!(documented.contains(name), "{name}"));
}

#[tokio::test]
async fn the_body_for_a_refused_client_has_the_numbers_of_the_limit() {
    let agent = Agent::service(&[]);
    let mut own = per_user(3);
    let body = r#"{"of":{limit},"left":{remaining},"by":"{policy}/{rule}"}"#;
    own["rules"][0]["onLimit"] = json!({"status": 429, "headers": "None", "body": body});
    agent.apply(&snapshot(1, &[own])).await;
    let channel = channel(&agent).await;
    for _ in 0..3 {
        assert_eq!(ask(&channel, question(&[("user", "ann")])).await.expect("an answer").overall_code, OK);
    }
    let refused = ask(&channel, question(&[("user", "ann")])).await.expect("an answer");
    assert_eq!(String::from_utf8_lossy(&refused.raw_body), r#"{"of":3,"left":0,"by":"shop/gateway/per-user"}"#);
}

#[tokio::test]
async fn parallel_questions_over_several_connections_are_counted_exactly() {
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(100)])).await;
    let admitted = AtomicU32::new(0);
    let connections = (0..8).map(async |_| {
        let channel = channel(&agent).await;
        let questions = (0..50).map(async |_| {
            let answer = ask(&channel, question(&[("user", "ann")])).await.expect("an answer");
            admitted.fetch_add(u32::from(answer.overall_code == OK), Relaxed);
        });
        futures::future::join_all(questions).await;
    });
    futures::future::join_all(connections).await;
    assert_eq!(admitted.into_inner(), 100);
}

/// Envoy sends a header of a client as it is.
#[tokio::test]
async fn values_that_are_not_utf_8_are_limited() {
    let agent = Agent::service(&[]);
    agent.apply(&snapshot(1, &[per_user(3)])).await;
    let channel = channel(&agent).await;
    let ask = async |user: &[u8]| {
        let mut question = question(&[("user", "")]);
        question.descriptors[0].entries[0].value = user.to_vec();
        ask(&channel, question).await.expect("an answer").overall_code
    };
    // The rules see all such bytes as one.
    for user in [b"bad\xff", b"bad\xfe", b"bad\xff"] {
        assert_eq!(ask(user).await, OK);
    }
    assert_eq!(ask(b"bad\xfe").await, OVER_LIMIT);
    assert_eq!(ask(b"bad").await, OK);
}

/// Two services count the limits of descriptors together, in a store.
#[tokio::test]
async fn services_share_the_limits_that_descriptors_bring() {
    let redis = Server::redis().await;
    let shared = json!({
        "store": "shop/limits", "counters": "shop/gateway.r", "stamp": 1, "onStoreLoss": "FailClosed", "sharers": 2,
    });
    let more = json!({
        "match": [{"descriptor": [{"name": "user"}]}], "key": [{"descriptor": "user"}], "shared": shared,
        "limitOverride": {"maxRequests": 50, "periodMillis": 86_400_000},
    });
    let rules =
        with(policy("gateway", &[with(rule("r", &[daily("day", "FixedWindow", 5)]), more)]), json!({"domain": "shop"}));
    let snapshot = with(snapshot(1, &[rules]), json!({"stores": [redis_at(redis.port)]}));
    let (one, two) = (Agent::service(&[]), Agent::service(&[]));
    one.apply(&snapshot).await;
    two.apply(&snapshot).await;
    let channels = [channel(&one).await, channel(&two).await];
    let admitted = async |user: &str, limit: Option<OwnLimit>| {
        let mut admitted = 0;
        for turn in 0..120 {
            let mut question = question(&[("user", user)]);
            question.descriptors[0].limit = limit;
            let answer = ask(&channels[turn % 2], question).await.expect("an answer");
            admitted += u32::from(answer.overall_code == OK);
        }
        admitted
    };
    let of = |requests_per_unit| Some(OwnLimit { requests_per_unit, unit: 4, unit_multiplier: None });
    assert_eq!(admitted("ann", None).await, 5);
    assert_eq!(admitted("ann", of(20)).await, 20);
    assert_eq!(admitted("bob", of(20)).await, 20);
    assert_eq!(admitted("ann", of(1_000)).await, 50, "the largest rate");
    // A limit of 0 admits nothing. A month has 30 days. With an unknown unit, the rule has its own limit.
    assert_eq!(admitted("cid", of(0)).await, 0);
    assert_eq!(admitted("cid", Some(OwnLimit { requests_per_unit: 30, unit: 5, unit_multiplier: None })).await, 30);
    assert_eq!(admitted("cid", Some(OwnLimit { requests_per_unit: 30, unit: 7, unit_multiplier: None })).await, 5);
    assert_eq!(
        admitted("cid", Some(OwnLimit { requests_per_unit: 0, unit: 0, unit_multiplier: None })).await,
        0,
        "used up before"
    );
    // One unit is a second, and 86,400 of them are a day.
    let in_seconds = OwnLimit { requests_per_unit: 7, unit: 1, unit_multiplier: Some(86_400) };
    assert_eq!(admitted("dan", Some(in_seconds)).await, 7);
}

#[tokio::test]
async fn an_invalid_question_names_the_field() {
    let agent = Agent::service(&[]);
    let channel = channel(&agent).await;
    let good = || question(&[("user", "ann")]);
    for (question, field) in [
        (Question { domain: String::new(), ..good() }, "domain"),
        (Question { descriptors: Vec::new(), ..good() }, "descriptors"),
        (question(&[]), "descriptors[0].entries"),
        (question(&[("", "ann")]), "descriptors[0].entries[0].key"),
        (Question { descriptors: vec![good().descriptors[0].clone(); 101], ..good() }, "descriptors"),
    ] {
        let status = ask(&channel, question).await.expect_err("invalid");
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().starts_with(&format!("{field}: ")), "{status}");
    }
    for (body, told) in [
        ("{", "EOF"),
        (r#"{"domain": "shop", "descriptor": []}"#, "unknown field `descriptor`"),
        (
            r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "a"}], "hitsAddend": -1}]}"#,
            "descriptors[0].hitsAddend: expected a whole number that is not negative, or its text",
        ),
        (
            r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "a"}]}]} {}"#,
            "one question, and nothing after it",
        ),
        (r#"{"domain": "", "descriptors": []}"#, "domain: must not be empty"),
    ] {
        let response = agent.client.send(request("POST", &agent.url("/json"), &[], body)).await;
        let text = String::from_utf8_lossy(response.body());
        assert!(response.status() == 400 && text.contains(told), "{body}: {text}");
    }
    assert_eq!(agent.metric("weir_service_questions_total{result=\"invalid\"}").await, Some(10.0));
    let large = agent.client.send(request("POST", &agent.url("/json"), &[], vec![b' '; 256 * 1024 + 1])).await;
    assert_eq!(large.status(), 413);
    assert_eq!(agent.get("/", &[]).await.status(), 404);
}

#[tokio::test]
async fn the_health_service_says_that_it_serves() {
    let agent = Agent::service(&[]);
    let mut health = HealthClient::new(channel(&agent).await);
    for service in [
        "",
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        // The name of envoyproxy/ratelimit.
        "ratelimit",
    ] {
        let told = health.check(HealthCheckRequest { service: service.to_owned() }).await.expect("an answer");
        assert_eq!(told.into_inner().status(), ServingStatus::Serving);
    }
}

/// Clients that connect again when the service asks for it lose no question.
#[tokio::test]
async fn a_drain_answers_every_question_and_ends_idle_connections() {
    let mut agent = Agent::service(&["--drain", "30s"]);
    agent.apply(&snapshot(1, &[per_user(1_000_000)])).await;
    let (busy, idle) = (channel(&agent).await, channel(&agent).await);
    ask(&idle, question(&[("user", "idle")])).await.expect("an answer");
    let mut health = HealthClient::new(idle.clone());
    let mut watched = health.watch(HealthCheckRequest::default()).await.expect("a stream").into_inner();
    assert_eq!(watched.message().await.expect("open").expect("a message").status(), ServingStatus::Serving);
    let questions: Vec<_> = (0..200)
        .map(|_| {
            let busy = busy.clone();
            tokio::spawn(async move { ask(&busy, question(&[("user", "busy")])).await })
        })
        .collect();
    agent.until_metric("weir_service_questions_total{result=\"ok\"}", 201.0).await;
    agent.terminate();
    for question in questions {
        assert_eq!(question.await.expect("no panic").expect("an answer").overall_code, OK);
    }
    assert_eq!(watched.message().await.expect("open").expect("a message").status(), ServingStatus::NotServing);
    drop((watched, health, idle, busy));
    let ended = tokio::task::spawn_blocking(move || agent.wait());
    assert!(ended.await.expect("no panic").success());
}

#[tokio::test]
async fn with_a_client_ca_only_clients_with_a_certificate_are_served() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().expect("a temporary folder");
    servers.issue("agent.test").write(folder.path());
    fs::write(folder.path().join("ca.crt"), clients.pem()).expect("written");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    let (cert, key, ca) = (path("tls.crt"), path("tls.key"), path("ca.crt"));
    let open = Agent::service(&["--tls-cert", &cert, "--tls-key", &key]);
    let closed = Agent::service(&["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca]);
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}).to_string();
    let answered = async |agent: &Agent, identity: Option<&crate::support::Identity>| {
        let Ok(mut client) = TlsClient::connect(agent.addresses.listen, &servers, identity).await else { return false };
        let asked = request("POST", "/json", &[("host", "agent.test")], body.clone());
        client.send(asked).await.is_ok_and(|response| response.status() == 200)
    };
    let (known, unknown) = (clients.issue("envoy.test"), servers.issue("envoy.test"));
    assert!(answered(&open, None).await);
    assert!(answered(&closed, Some(&known)).await);
    assert!(!answered(&closed, None).await);
    assert!(!answered(&closed, Some(&unknown)).await);

    // Another certificate is used for new connections.
    let before = TlsClient::connect(open.addresses.listen, &servers, None).await.expect("accepted").certificate;
    servers.issue("agent.test").write(folder.path());
    let replaced = async {
        while TlsClient::connect(open.addresses.listen, &servers, None).await.is_ok_and(|it| it.certificate == before) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(crate::support::PATIENCE, replaced).await.expect("the new certificate is used");
}

#[tokio::test]
async fn an_agent_accepts_only_policies_that_it_can_enforce() {
    let service = Agent::service(&[]);
    let http = policy("http", &[rule("all", &[daily("day", "FixedWindow", 1)])]);
    let refused = service.put(&snapshot(1, std::slice::from_ref(&http))).await;
    assert_eq!(
        (refused.status().as_u16(), &json_of(&refused)["faults"][0]["path"]),
        (422, &json!("policies[0].domain"))
    );
    service.apply(&snapshot(1, &[per_user(1)])).await;
    let app = App::start().await;
    let proxy = Agent::start(app.address, &[]);
    let refused = proxy.put(&snapshot(1, &[http.clone(), per_user(1)])).await;
    assert_eq!(
        (refused.status().as_u16(), &json_of(&refused)["faults"][0]["path"]),
        (422, &json!("policies[1].domain"))
    );
    proxy.apply(&snapshot(1, &[http])).await;
}

#[test]
fn unusable_files_are_wrong_usage() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let missing = folder.path().join("missing.crt").to_str().expect("text").to_owned();
    for (args, told) in [
        (vec!["--tls-cert", missing.as_str(), "--tls-key", missing.as_str()], "--tls-cert"),
        (vec!["--tls-cert", missing.as_str()], "--tls-key"),
        (vec!["--tls-client-ca", missing.as_str()], "--tls-cert"),
        (vec!["--max-streams", "0"], "--max-streams"),
        (vec!["--upstream", "127.0.0.1:1"], "--upstream"),
        (vec!["--control", "0.0.0.0:0"], "--control"),
    ] {
        let output = binary().arg("rls").args(&args).output().expect("the agent runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(told), "{args:?}: {error}");
    }
}
