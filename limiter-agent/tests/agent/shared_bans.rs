//! Bans of rules that a store counts: several agents, real stores, and a user who lifts bans.

use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Agent, App, PATIENCE, Server, daily, header, json_of, memcached_at, policy, redis_at, rule, snapshot, with,
};

const ANN: [(&str, &str); 1] = [("x-key", "ann")];
const BOB: [(&str, &str); 1] = [("x-key", "bob")];
const OF_ANN: &str = "/v1/bans?policy=shop/api&rule=all&key=ann";

/// A rule that admits two requests of a key a day in all agents together.
fn banning(strategy: &str, stamp: u64, fields: Value) -> Value {
    let shared = json!({
        "store": "shop/limits", "counters": "shop/api.all", "stamp": stamp, "onStoreLoss": "FailOpen", "sharers": 4,
    });
    let ban = json!({"after": 3, "withinMillis": 3_600_000, "forMillis": 3_600_000});
    let rule = with(
        rule("all", &[daily("l", strategy, 2)]),
        json!({"key": [{"header": "x-key"}], "ban": ban, "shared": shared}),
    );
    with(rule, fields)
}

fn with_store(sequence: u64, store: &Value, rule: Value) -> Value {
    with(snapshot(sequence, &[policy("api", &[rule])]), json!({"stores": [store]}))
}

async fn agents(app: &App, snapshot: &Value) -> Vec<Agent> {
    let mut agents = Vec::new();
    for _ in 0..3 {
        let agent = Agent::start(app.address, &[]);
        agent.apply(snapshot).await;
        agents.push(agent);
    }
    agents
}

/// The `error` of a refusal. Null for an admitted request.
async fn error(agent: &Agent, key: &[(&str, &str)]) -> Value {
    let response = agent.get("/", key).await;
    if response.status() == 200 { Value::Null } else { json_of(&response)["error"].clone() }
}

async fn until_error(agent: &Agent, key: &[(&str, &str)], wanted: Value) {
    let asks = async { while error(agent, key).await != wanted {} };
    timeout(PATIENCE, asks).await.unwrap_or_else(|_| panic!("the error was never {wanted}"));
}

/// The number of round trips that the store has answered.
pub(crate) async fn answers(agent: &Agent) -> f64 {
    agent.metric("weir_store_latency_seconds_count{store=\"shop/limits\"}").await.unwrap_or_default()
}

async fn total(agent: &Agent) -> Value {
    json_of(&agent.control("GET", "/v1/bans", "").await)["total"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ban_is_in_force_in_all_agents_until_a_hand_lifts_it() {
    let (redis, other, memcached) = (Server::redis().await, Server::redis().await, Server::memcached().await);
    for (store, strategy) in [
        (redis_at(redis.port), "FixedWindow"),
        (redis_at(other.port), "SlidingWindowLog"),
        (memcached_at(memcached.port), "TokenBucket"),
    ] {
        let app = App::start().await;
        let mut agents = agents(&app, &with_store(1, &store, banning(strategy, 1, json!({})))).await;
        // Two admissions and three refusals in one agent. The others have not seen the key, and ask after the ban.
        assert_eq!(agents[0].statuses("/", &ANN, 4).await, [200, 200, 429, 429], "{strategy}");
        let before = answers(&agents[0]).await;
        assert_eq!(error(&agents[0], &ANN).await, "banned");
        // A round trip counts when it begins, so this waits for the store's answer to the round trip with the ban.
        let reports = async { while answers(&agents[0]).await <= before {} };
        timeout(PATIENCE, reports).await.expect("the agent reports the ban");
        for agent in &agents[1..] {
            until_error(agent, &ANN, json!("banned")).await;
            let refused = agent.get("/", &ANN).await;
            let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
            assert!((3_500..=3_600).contains(&seconds), "{seconds}");
            assert_eq!(total(agent).await, 1, "an agent lists the bans that it knows");
            let metric = "weir_bans_started_total{namespace=\"shop\",policy=\"api\",rule=\"all\"}";
            assert_eq!(agent.metric(metric).await, Some(0.0), "only the first agent started it");
        }
        // A new agent knows nothing, and asks with its first request.
        agents[2] = Agent::start(app.address, &[]);
        agents[2].apply(&with_store(1, &store, banning(strategy, 1, json!({})))).await;
        assert_eq!(error(&agents[2], &ANN).await, "banned");
        assert_eq!((error(&agents[2], &BOB).await, error(&agents[1], &BOB).await), (Value::Null, Value::Null));

        assert_eq!(json_of(&agents[1].control("DELETE", OF_ANN, "").await), json!({"lifted": 1}));
        assert_eq!(error(&agents[1], &ANN).await, "rate limited");
        for agent in &agents {
            until_error(agent, &ANN, json!("rate limited")).await;
        }
        assert_eq!(json_of(&agents[1].control("DELETE", OF_ANN, "").await), json!({"lifted": 0}));
        assert_eq!(app.requests(), 4, "a ban admits nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_agent_lifts_a_ban_and_bans_survive_the_loss_of_the_store() {
    let mut redis = Server::redis().await;
    let app = App::start().await;
    let agents = agents(&app, &with_store(1, &redis_at(redis.port), banning("TokenBucket", 1, json!({})))).await;
    agents[0].statuses("/", &ANN, 5).await;
    until_error(&agents[1], &ANN, json!("banned")).await;
    // An agent that does not know a ban lifts it, too.
    assert_eq!(total(&agents[2]).await, 0);
    assert_eq!(json_of(&agents[2].control("DELETE", OF_ANN, "").await), json!({"lifted": 1}));
    for agent in &agents {
        until_error(agent, &ANN, json!("rate limited")).await;
    }
    agents[0].statuses("/", &ANN, 5).await;
    until_error(&agents[1], &ANN, json!("banned")).await;
    redis.kill();
    until_error(&agents[2], &BOB, Value::Null).await;
    assert_eq!((error(&agents[0], &ANN).await, error(&agents[1], &ANN).await), (json!("banned"), json!("banned")));
    // A ban that stays in the store would return, so the request fails and changes nothing.
    let refused = agents[0].control("DELETE", OF_ANN, "").await;
    assert_eq!(refused.status(), 503);
    let message = json_of(&refused)["message"].as_str().expect("a message").to_owned();
    assert!(message.starts_with("the store shop/limits did not lift the ban ("), "{message}");
    assert_eq!(error(&agents[0], &ANN).await, "banned");
}
