//! Tests several agents that share one limit through a real store. Their common app counts the admitted requests.
#![expect(clippy::disallowed_methods, reason = "tests measure rates")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use crate::support::{
    Agent, App, PATIENCE, Server, body, daily, delayed, header, json_of, memcached_at, policy, redis_at, rule,
    snapshot, with,
};

/// A rule whose limit a store counts.
fn shared(limit: Value, stamp: u64, on_loss: &str) -> Value {
    let shared = json!({
        "store": "shop/limits", "counters": "shop/api.all", "stamp": stamp, "onStoreLoss": on_loss, "sharers": 4,
    });
    with(rule("all", &[limit]), json!({"shared": shared}))
}

fn bucket(requests: u64, millis: u64) -> Value {
    json!({"name": "l", "strategy": "TokenBucket", "requests": requests, "periodMillis": millis})
}

fn with_store(sequence: u64, store: &Value, rules: &[Value]) -> Value {
    with(snapshot(sequence, &[policy("api", rules)]), json!({"stores": [store]}))
}

fn agents(app: &App, count: usize) -> Vec<Agent> {
    (0..count).map(|_| Agent::start(app.address, &[])).collect()
}

async fn apply(agents: &[Agent], snapshot: &Value) {
    for agent in agents {
        agent.apply(snapshot).await;
    }
}

/// The statuses of requests that are sent at the same time.
async fn at_once(agents: &[Agent], each: usize, path: &str) -> Vec<u16> {
    let mut requests = JoinSet::new();
    for agent in agents {
        for _ in 0..each {
            let (client, url) = (agent.client.clone(), agent.url(path));
            requests.spawn(async move { client.get(&url, &[]).await.status().as_u16() });
        }
    }
    requests.join_all().await
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|one| **one == status).count()
}

async fn reached(agent: &Agent) -> bool {
    let status = json_of(&agent.control("GET", "/v1/status", "").await);
    status["stores"][0]["reached"].as_bool().expect("a store")
}

async fn until_reached(agents: &[Agent], is: bool) {
    for agent in agents {
        let asks = async { while reached(agent).await != is {} };
        tokio::time::timeout(PATIENCE, asks).await.unwrap_or_else(|_| panic!("reached was never {is}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn five_in_fifteen_minutes_are_five_over_ten_agents() {
    let (redis, memcached) = (Server::redis().await, Server::memcached().await);
    for (store, kind) in [(redis_at(redis.port), "Redis"), (memcached_at(memcached.port), "Memcached")] {
        let app = App::start().await;
        let agents = agents(&app, 10);
        apply(&agents, &with_store(1, &store, &[shared(bucket(5, 900_000), 1, "FailClosed")])).await;
        let mut statuses = at_once(&agents, 3, "/").await;
        for agent in &agents {
            statuses.extend(agent.statuses("/", &[], 5).await);
        }
        assert_eq!((count(&statuses, 200), count(&statuses, 429)), (5, 75), "{kind}");
        assert_eq!(app.requests(), 5, "{kind}");
        // The agent refuses further requests of a refused key without the store.
        let trips = agents[0].metric("weir_store_trips_total{store=\"shop/limits\"}").await.expect("a store");
        assert!(trips <= 12.0, "{kind}: {trips} trips for 8 requests");
        let refused = agents[0].get("/", &[]).await;
        let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
        assert!((100..=180).contains(&seconds), "{kind}: {seconds}");
        assert_eq!(agents[0].metric("weir_store_up{store=\"shop/limits\"}").await, Some(1.0));
        let explained = json_of(&agents[0].control("POST", "/v1/explain", r#"{"target": "/"}"#).await);
        assert_eq!(explained["decision"], "Limit", "{kind}: {explained}");
        assert!(explained["rules"][0]["source"].as_str().expect("a source").contains("shop/limits"), "{explained}");
    }
}

/// An agent has seats in advance when its pod is deleted. Another agent admits exactly the rest of the limit.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_ends_gives_its_seats_back() {
    let redis = Server::redis().await;
    let app = App::start().await;
    let [mut ends, stays] = [(); 2].map(|()| Agent::start(app.address, &[]));
    let snapshot = with_store(1, &redis_at(redis.port), &[shared(daily("l", "FixedWindow", 500), 1, "FailClosed")]);
    for agent in [&ends, &stays] {
        agent.apply(&snapshot).await;
    }
    let statuses = ends.statuses("/", &[], 200).await;
    assert_eq!(count(&statuses, 200), 200);
    ends.terminate();
    assert!(ends.wait().success());
    let stays = [stays];
    assert_eq!(count(&at_once(&stays, 400, "/").await, 200), 300);
}

/// If a rule of scope Pod refuses, the seats of the shared rule stay available to others. If the shared rule refuses,
/// the other rule is not charged.
#[tokio::test(flavor = "multi_thread")]
async fn rules_of_both_scopes_are_all_or_none() {
    let redis = Server::redis().await;
    let app = App::start().await;
    let agents = agents(&app, 2);
    let own = with(rule("own", &[daily("l", "TokenBucket", 7)]), json!({"match": [{"paths": ["/own"]}]}));
    let rules = |limit, stamp| [shared(daily("l", "FixedWindow", limit), stamp, "FailClosed"), own.clone()];
    apply(&agents, &with_store(1, &redis_at(redis.port), &rules(20, 1))).await;
    assert_eq!(count(&at_once(&agents[..1], 30, "/own").await, 200), 7);
    // The agent took more seats from the store. Unused seats return to the store after a second.
    let explained = json_of(&agents[0].control("POST", "/v1/explain", r#"{"target": "/own"}"#).await);
    let left = explained["rules"][0]["limit"]["remaining"].as_f64().expect("a number");
    let returned = "weir_store_seats_returned_total{store=\"shop/limits\"}";
    agents[0].until_metric(returned, 20.0 - left - 7.0).await;
    assert_eq!(count(&at_once(&agents[1..], 20, "/").await, 200), 13);
    assert_eq!(count(&at_once(&agents, 10, "/").await, 200), 0);
    // If the shared rule refuses, the other rule is not charged.
    assert_eq!(count(&at_once(&agents[1..], 10, "/own").await, 200), 0);
    apply(&agents, &with_store(2, &redis_at(redis.port), &rules(40, 2))).await;
    assert_eq!(count(&at_once(&agents[1..], 10, "/own").await, 200), 7);
}

/// A refusal says when the rules of both scopes admit the request.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_for_the_rules_of_both_scopes() {
    let redis = Server::redis().await;
    let app = App::start().await;
    let agents = agents(&app, 1);
    let own = |name: &str, path: &str, seconds: u64| {
        with(rule(name, &[bucket(1, seconds * 1_000)]), json!({"match": [{"paths": [path]}]}))
    };
    let waits = json!({"onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 1_000}});
    let keyed = with(shared(bucket(1, 1_000_000), 1, "FailClosed"), json!({"key": [{"header": "x-key"}]}));
    let rules = [keyed, own("short", "/short", 100), with(own("patient", "/patient", 10_000), waits)];
    apply(&agents, &with_store(1, &redis_at(redis.port), &rules)).await;
    let retry = async |path: &str, key: &str| {
        let refused = agents[0].get(path, &[("x-key", key)]).await;
        assert_eq!(refused.status(), 429, "{path}");
        header(&refused, "retry-after").parse::<u64>().expect("seconds")
    };
    assert_eq!(agents[0].get("/short", &[("x-key", "ann")]).await.status(), 200);
    assert!((900..=1_000).contains(&retry("/", "ann").await));
    let seconds = retry("/short", "ann").await;
    assert!(
        (900..=1_000).contains(&seconds),
        "{seconds}: the rule of scope Pod refuses, and the shared one for longer"
    );

    assert_eq!(agents[0].get("/patient", &[("x-key", "bob")]).await.status(), 200);
    // The first answer is that of the store, and the second one that of the agent.
    for turn in 1..=2 {
        let seconds = retry("/patient", "bob").await;
        assert!(
            (9_000..=10_000).contains(&seconds),
            "{turn}: {seconds}: the shared rule refuses, and the other one for longer"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_does_what_the_rule_says() {
    for on_loss in ["FailOpen", "FailClosed", "LocalShare"] {
        let mut redis = Server::redis().await;
        let app = App::start().await;
        let agents = agents(&app, 2);
        // Each of the four sharers has one request per 250 ms, without credit at first.
        let rule = shared(bucket(16, 1_000), 1, on_loss);
        apply(&agents, &with_store(1, &redis_at(redis.port), &[rule])).await;
        assert!(count(&at_once(&agents, 10, "/").await, 200) >= 16, "{on_loss}");
        redis.kill();
        // Requests and probes detect the loss.
        until_reached(&agents, false).await;
        assert_eq!(agents[0].metric("weir_store_up{store=\"shop/limits\"}").await, Some(0.0));
        let (before, begun) = (app.requests(), Instant::now());
        let mut refused = 0;
        for _ in 0..20 {
            refused += count(&at_once(&agents, 1, "/").await, 429);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (admitted, seconds) = (app.requests() - before, begun.elapsed().as_secs_f64());
        match on_loss {
            "FailOpen" => assert_eq!((admitted, refused), (40, 0)),
            "FailClosed" => assert_eq!((admitted, refused), (0, 40)),
            _ => {
                // Only two of four sharers run. They begin without credit, but some time has passed since then.
                let most = 2.0 * (4.0 * seconds + 4.0);
                assert!(admitted >= 10 && admitted as f64 <= most, "{admitted} in {seconds} s");
            }
        }
        redis.restart().await;
        until_reached(&agents, true).await;
        // First the agents report to the store the requests that they admitted without it.
        let counts_again = async { while count(&at_once(&agents, 1, "/").await, 200) < 2 {} };
        tokio::time::timeout(PATIENCE, counts_again).await.unwrap_or_else(|_| panic!("{on_loss}: refused"));
    }
}

/// Requests do not wait for a silent store, although its connection stays open.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_store_delays_few_requests() {
    let redis = Server::redis().await;
    let app = App::start().await;
    let agents = agents(&app, 1);
    let rule = shared(bucket(1_000, 1_000), 1, "FailOpen");
    apply(&agents, &with_store(1, &redis_at(redis.port), &[rule])).await;
    assert_eq!(agents[0].statuses("/", &[], 40).await, [200; 40]);
    redis.signal("STOP");
    let begun = Instant::now();
    while reached(&agents[0]).await {
        assert_eq!(at_once(&agents, 4, "/").await, [200; 4]);
    }
    let took = begun.elapsed();
    // The store is lost after three timeouts of 50 ms, or of half a second if it has sent only a few answers. The rest
    // of the time is for a busy machine.
    assert!(took < Duration::from_secs(10), "{took:?}");
    let begun = Instant::now();
    assert_eq!(agents[0].statuses("/", &[], 100).await, [200; 100]);
    let each = begun.elapsed() / 100;
    assert!(each < Duration::from_millis(100), "{each:?} for each request");
    redis.signal("CONT");
    until_reached(&agents, true).await;
}

/// Requests of a policy in shadow mode are counted, but not refused or delayed.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_in_shadow_mode_is_counted_in_the_store() {
    let redis = Server::redis().await;
    let app = App::start().await;
    let agents = agents(&app, 2);
    let rule = shared(daily("l", "FixedWindow", 15), 1, "FailClosed");
    let shadow = with(policy("api", &[rule]), json!({"mode": "Shadow"}));
    let store = json!({"stores": [redis_at(redis.port)]});
    apply(&agents, &with(snapshot(1, &[shadow]), store)).await;
    assert_eq!(count(&at_once(&agents, 20, "/").await, 200), 40);
    let counted = async {
        loop {
            let (one, other) = (agents[0].counts(0, 0).await, agents[1].counts(0, 0).await);
            let sums = [0, 1, 2].map(|index| one[index] + other[index]);
            if sums.iter().sum::<u64>() == 40 {
                return sums;
            }
        }
    };
    let counts = tokio::time::timeout(PATIENCE, counted).await.expect("each is counted");
    assert_eq!(counts, [15, 0, 25]);
}

/// The supply of a limit for this time, in billionths of a request.
fn supply(time: Duration, per_second: u64) -> i128 {
    i128::try_from(time.as_nanos()).expect("fits") * i128::from(per_second)
}

/// The oracle: a bucket in whole numbers. A request was admitted at an unknown time between when the client sent it and
/// when the app received it. So the bucket must allow, between any two times, all requests that were sent and received
/// between them. Returns the largest excess in billionths of a request.
fn excess(admitted: &[(Duration, Duration)], per_second: u64, burst: u64) -> i128 {
    let mut by_end = admitted.to_vec();
    by_end.sort_unstable_by_key(|(_, received)| *received);
    let mut worst = 0;
    for &(begin, _) in admitted {
        let mut requests = 0;
        for &(_, end) in by_end.iter().filter(|(sent, _)| *sent >= begin) {
            requests += 1_000_000_000;
            worst = worst.max(requests - i128::from(burst) * 1_000_000_000 - supply(end - begin, per_second));
        }
    }
    worst
}

#[test]
fn the_oracle_finds_one_too_many() {
    let took = |sent: u64, received: u64| (Duration::from_millis(sent), Duration::from_millis(received));
    let at = |millis: u64| took(millis, millis);
    assert_eq!(excess(&[at(0), at(0), at(100), at(200), at(1_000), at(1_000)], 10, 2), 0);
    assert_eq!(excess(&[at(0), at(0), at(99)], 10, 2), 10_000_000);
    assert_eq!(excess(&[at(1_000), at(0), at(1_099), at(1_000)], 10, 2), 10_000_000);
    assert_eq!(excess(&[at(0), at(0), took(0, 100), took(50, 200)], 10, 2), 0);
    assert_eq!(excess(&[at(0), took(0, 199), took(0, 100), took(50, 60)], 10, 2), 10_000_000);
}

const PER_SECOND: u64 = 300;
const SECONDS: u64 = 5;

/// Sends three times as many requests as the limit allows, with a round trip of 67 ms to the store. Agents take seats
/// in advance, so most requests need no round trip. How much of the limit they use depends on the speed of the machine;
/// weir-bench tests that in virtual time (`fleet_limits/world.rs`).
#[tokio::test(flavor = "multi_thread")]
async fn a_far_store_is_not_asked_for_each_request() {
    let all = 3 * PER_SECOND * SECONDS;
    let redis = Server::redis().await;
    let port = delayed(redis.port, Duration::from_micros(33_500)).await;
    let start = Instant::now();
    // A request names the time at which it was sent, in nanoseconds.
    let admitted: Arc<Mutex<Vec<(Duration, Duration)>>> = Arc::default();
    let seen = Arc::clone(&admitted);
    let app = App::serve(move |request: Request<Incoming>| {
        let sent = request.uri().path()[1..].parse().expect("a time");
        seen.lock().expect("no panic").push((Duration::from_nanos(sent), start.elapsed()));
        async { Response::new(body("ok")) }
    })
    .await;
    let send = |agent: &Agent| {
        let (client, address) = (agent.client.clone(), agent.addresses.listen);
        async move { client.get(&format!("http://{address}/{}", start.elapsed().as_nanos()), &[]).await.status() }
    };
    let agents = agents(&app, 4);
    apply(&agents, &with_store(1, &redis_at(port), &[shared(bucket(PER_SECOND, 1_000), 1, "FailClosed")])).await;
    until_reached(&agents, true).await;
    agents[0].until_metric("weir_store_up{store=\"shop/limits\"}", 1.0).await;
    let (begun, mut requests) = (Instant::now(), JoinSet::new());
    for index in 0..all {
        tokio::time::sleep_until(begun + Duration::from_secs(SECONDS).mul_f64(index as f64 / all as f64)).await;
        let agent = &agents[usize::try_from(index).expect("small") % agents.len()];
        requests.spawn(send(agent));
        while requests.try_join_next().is_some() {}
    }
    requests.join_all().await;
    let passed = app.requests();
    let mut trips = 0.0;
    for agent in &agents {
        trips += agent.metric("weir_store_trips_total{store=\"shop/limits\"}").await.expect("a store");
    }
    println!("admitted {passed} of {all} requests with {trips} trips");
    assert!(trips < all as f64 / 2.0, "{trips} trips for {all} requests");
    // At least the burst passes, on a slow machine after a while.
    let burst = async {
        while app.requests() < PER_SECOND {
            send(&agents[0]).await;
        }
    };
    tokio::time::timeout(PATIENCE, burst).await.expect("the burst is admitted");
    let admitted = admitted.lock().expect("no panic").clone();
    // The store reads the wall clock, which NTP makes faster by up to 500 ppm.
    let drift = supply(start.elapsed() / 2_000, PER_SECOND);
    let excess = excess(&admitted, PER_SECOND, PER_SECOND);
    assert!(excess <= drift, "{excess} billionths of a request too many");
}
