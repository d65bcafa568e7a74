//! Resets of counts by hand, through agent processes and real stores. The oracle is the number of requests that the app got.

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    shared_bans::answers,
    support::{
        Agent, App, PATIENCE, Server, daily, json_of, memcached_at, policy, redis_at, rule, snapshot, start, with,
    },
};

const ANN: [(&str, &str); 1] = [("x-key", "ann")];
const BOB: [(&str, &str); 1] = [("x-key", "bob")];
const OF_ANN: &str = "?policy=shop/api&rule=all&key=ann";

/// The limits of all strategies that admit five requests at once.
const STRATEGIES: [&str; 5] = ["TokenBucket", "FixedWindow", "SlidingWindowCounter", "SlidingWindowLog", "GCRA"];

/// A rule that admits five requests of a key a day.
fn five(strategy: &str) -> Value {
    let burst = if strategy == "GCRA" { json!({"burst": 5}) } else { json!({}) };
    with(rule("all", &[with(daily("day", strategy, 5), burst)]), json!({"key": [{"header": "x-key"}]}))
}

fn in_store(strategy: &str) -> Value {
    let shared = json!({
        "store": "shop/limits", "counters": "shop/api.all", "stamp": 1, "onStoreLoss": "FailClosed", "sharers": 2,
    });
    with(five(strategy), json!({"shared": shared}))
}

fn with_store(store: &Value, rule: Value) -> Value {
    with(snapshot(1, &[policy("api", &[rule])]), json!({"stores": [store]}))
}

async fn reset(agent: &Agent, query: &str) -> (u16, Value) {
    let response = agent.control("DELETE", &format!("/v1/counts{query}"), "").await;
    (response.status().as_u16(), json_of(&response))
}

/// Sends more requests than the limit admits. Returns how many the app got.
async fn admitted(app: &App, agent: &Agent, key: &[(&str, &str)]) -> u64 {
    let before = app.requests();
    agent.statuses("/", key, 8).await;
    app.requests() - before
}

#[tokio::test]
async fn a_key_gets_its_full_credit_back_and_other_keys_do_not() {
    for strategy in STRATEGIES {
        let (app, agent) = start().await;
        agent.apply(&snapshot(1, &[policy("api", &[five(strategy)])])).await;
        for key in [&ANN[..], &BOB, &[]] {
            assert_eq!(admitted(&app, &agent, key).await, 5, "{strategy}");
        }
        let done = (200, json!({"limits": ["day"], "lifted": 0}));
        assert_eq!(reset(&agent, OF_ANN).await, done);
        assert_eq!(admitted(&app, &agent, &ANN).await, 5, "{strategy}");
        assert_eq!(admitted(&app, &agent, &BOB).await, 0, "{strategy}");
        assert_eq!(reset(&agent, "?policy=shop/api&rule=all&key=").await, done, "requests without the header");
        assert_eq!(admitted(&app, &agent, &[]).await, 5, "{strategy}");
        agent.logged("count reset").await;
    }
}

#[tokio::test]
async fn a_rule_without_a_key_has_one_count_with_several_limits() {
    let (app, agent) = start().await;
    let limits = [daily("window", "SlidingWindowCounter", 5), daily("bucket", "TokenBucket", 6)];
    agent.apply(&snapshot(1, &[policy("api", &[rule("all", &limits)])])).await;
    for _ in 0..3 {
        assert_eq!(admitted(&app, &agent, &ANN).await, 5);
        let done = (200, json!({"limits": ["window", "bucket"], "lifted": 0}));
        assert_eq!(reset(&agent, "?policy=shop/api&rule=all").await, done);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_under_load_admits_one_full_credit_more() {
    let (app, agent) = start().await;
    // The period is a thousand days, so that nothing is refilled even on a busy machine.
    let limit = with(daily("day", "TokenBucket", 500), json!({"periodMillis": 86_400_000_000_u64}));
    let rule = with(rule("all", &[limit]), json!({"key": [{"header": "x-key"}]}));
    agent.apply(&snapshot(1, &[policy("api", &[rule])])).await;
    let load = async || {
        let clients =
            (0..8).map(async |_| agent.statuses("/", &ANN, 100).await.iter().filter(|it| **it == 200).count());
        futures::future::join_all(clients).await.iter().sum::<usize>()
    };
    assert_eq!(load().await, 500);
    let (first, (status, _), second) = tokio::join!(load(), reset(&agent, OF_ANN), load());
    assert_eq!((status, first + second + load().await), (200, 500));
    assert_eq!(app.requests(), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_gives_the_full_credit_back_once_for_all_agents() {
    let memcached = Server::memcached().await;
    for strategy in STRATEGIES {
        let redis = Server::redis().await;
        let mut stores = vec![redis_at(redis.port)];
        if strategy != "SlidingWindowLog" {
            stores.push(memcached_at(memcached.port));
        }
        for store in stores {
            let app = App::start().await;
            let snapshot = with_store(&store, in_store(strategy));
            let agents = [Agent::start(app.address, &[]), Agent::start(app.address, &[])];
            for agent in &agents {
                agent.apply(&snapshot).await;
            }
            let [one, other] = &agents;
            // Earlier strategies have used the same counters in Memcached.
            assert_eq!(reset(one, OF_ANN).await, (200, json!({"limits": ["day"], "lifted": 0})), "{strategy}");
            assert_eq!(admitted(&app, one, &ANN).await, 5, "{strategy}");
            assert_eq!(admitted(&app, one, &BOB).await, 5, "{strategy}");
            // An agent that has not seen the key resets it, too.
            for through in [one, one, other] {
                assert_eq!(admitted(&app, one, &ANN).await, 0, "{strategy}");
                assert_eq!(reset(through, OF_ANN).await.0, 200, "{strategy}");
                assert_eq!(admitted(&app, through, &ANN).await, 5, "{strategy}");
            }
            assert_eq!(admitted(&app, other, &BOB).await, 0, "{strategy}: the other key stays as it is");
            let left = reset(other, "?policy=shop/api&rule=all&key=bob").await;
            assert_eq!(left.0, 200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_lifts_the_ban_of_the_key() {
    let redis = Server::redis().await;
    let ban = json!({"ban": {"after": 3, "withinMillis": 3_600_000, "forMillis": 3_600_000}});
    for (rule, store) in [
        (with(five("FixedWindow"), ban.clone()), None),
        (with(in_store("FixedWindow"), ban), Some(redis_at(redis.port))),
    ] {
        let (_app, agent) = start().await;
        let rules = match &store {
            Some(store) => with_store(store, rule),
            None => snapshot(1, &[policy("api", &[rule])]),
        };
        agent.apply(&rules).await;
        for _ in 0..3 {
            assert_eq!(agent.statuses("/", &ANN, 7).await, [200, 200, 200, 200, 200, 429, 429]);
            let before = answers(&agent).await;
            assert_eq!(json_of(&agent.get("/", &ANN).await)["error"], "banned");
            // The agent reports the ban after the refusal.
            let reports = async { while store.is_some() && answers(&agent).await <= before {} };
            timeout(PATIENCE, reports).await.expect("the store answers");
            assert_eq!(reset(&agent, OF_ANN).await, (200, json!({"limits": ["day"], "lifted": 1})));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_store_resets_nothing() {
    let mut redis = Server::redis().await;
    let (app, agent) = start().await;
    agent.apply(&with_store(&redis_at(redis.port), in_store("FixedWindow"))).await;
    assert_eq!(admitted(&app, &agent, &ANN).await, 5);
    redis.kill();
    let (status, reply) = reset(&agent, OF_ANN).await;
    let message = reply["message"].as_str().expect("a message");
    assert_eq!((status, &reply["error"]), (503, &json!("storeLost")));
    assert!(message.starts_with("the store shop/limits did not reset the count ("), "{message}");
    assert_eq!(admitted(&app, &agent, &ANN).await, 0);
}

#[tokio::test]
async fn wrong_selections_are_named() {
    let (_app, agent) = start().await;
    let deny = json!({"name": "deny", "action": "Deny"});
    let mut fleet = in_store("TokenBucket");
    (fleet["name"], fleet["shared"]["store"]) = (json!("fleet"), json!("operator"));
    let operator = json!({"stores": [{"name": "operator", "backend": "operator"}]});
    let rules = policy("api", &[five("TokenBucket"), deny, fleet]);
    agent.apply(&with(snapshot(1, &[rules]), operator)).await;
    for (query, status, word) in [
        ("", 400, "policy and rule are required"),
        ("?policy=shop/api&rule=all&client=ann", 400, "\"client\" is unknown: the parameters are policy, rule and key"),
        ("?policy=shop/api&rule=all", 400, "key: the key of rule all has 1 parts, and these 0 values"),
        ("?policy=shop/api&rule=all&key=ann&key=bob", 400, "key: the key of rule all has 1 parts, and these 2 values"),
        ("?policy=shop/api&rule=deny", 400, "rule: \"deny\" has no count to reset"),
        (
            "?policy=shop/api&rule=fleet&key=ann",
            400,
            "rule: \"fleet\" has scope Fleet, whose counts are in the operator",
        ),
        ("?policy=api&rule=all&key=ann", 404, "policy: \"api\" is not in force here"),
        ("?policy=shop/api&rule=none&key=ann", 404, "rule: \"none\" is not a rule of the policy"),
    ] {
        let (found, reply) = reset(&agent, query).await;
        let message = reply["message"].as_str().expect("a message");
        assert_eq!(found, status, "{query}: {message}");
        assert!(message.starts_with(word), "{query}: {message}");
    }
    assert_eq!(agent.control("GET", &format!("/v1/counts{OF_ANN}"), "").await.status(), 405);
}
