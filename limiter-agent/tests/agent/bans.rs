//! Bans of keys that a rule refuses again and again, on each path through an agent process.

use http::Method;
use serde_json::{Value, json};

use crate::support::{Agent, App, daily, empty, header, json_of, policy, request, rule, snapshot, start, with};

const SERIES: &str = "{namespace=\"shop\",policy=\"p\",rule=\"r\"}";
const ANN: [(&str, &str); 1] = [("x-key", "ann")];

/// A rule that admits two requests of a key a day.
fn banning(after: u64, millis: u64) -> Value {
    let ban = json!({"after": after, "withinMillis": 3_600_000, "forMillis": millis});
    with(rule("r", &[daily("d", "TokenBucket", 2)]), json!({"key": [{"header": "x-key"}], "ban": ban}))
}

/// Requests that another policy needs are on hyper's path.
pub(crate) fn full_path() -> Value {
    let limit = json!({
        "name": "b", "strategy": "TokenBucketWithDebt", "requests": 1_000_000, "periodMillis": 1000, "burst": 1_000_000,
        "debt": 0,
    });
    policy("bytes", &[with(rule("bytes", &[limit]), json!({"cost": "responseBytes"}))])
}

async fn metric(agent: &Agent, name: &str) -> f64 {
    agent.metric(&format!("{name}{SERIES}")).await.expect("a series")
}

async fn bans(agent: &Agent, query: &str) -> Value {
    let response = agent.control("GET", &format!("/v1/bans{query}"), "").await;
    assert_eq!(response.status(), 200, "{:?}", response.body());
    json_of(&response)
}

async fn lifted(agent: &Agent, query: &str) -> (u16, Value) {
    let response = agent.control("DELETE", &format!("/v1/bans{query}"), "").await;
    (response.status().as_u16(), json_of(&response))
}

#[tokio::test]
async fn a_banned_key_is_refused_on_each_path_until_a_hand_lifts_the_ban() {
    for others in [vec![], vec![full_path()]] {
        let app = App::start().await;
        let agent = Agent::start(app.address, &["--log-keys"]);
        let policies = [vec![policy("p", &[banning(3, 3_600_000)])], others].concat();
        agent.apply(&snapshot(1, &policies)).await;
        assert_eq!(agent.statuses("/", &ANN, 4).await, [200, 200, 429, 429]);
        assert_eq!(metric(&agent, "weir_banned_keys").await, 0.0);
        let mut seen = Vec::new();
        for _ in 0..3 {
            let refused = agent.get("/", &ANN).await;
            seen.push((refused.status().as_u16(), json_of(&refused)["error"].as_str().map(str::to_owned)));
            let seconds: u64 = header(&refused, "retry-after").parse().expect("seconds");
            // The ban ends in an hour, and the limit of two per day admits the next request in twelve.
            assert!((43_100..=43_200).contains(&seconds), "{seconds}");
            assert_eq!(header(&refused, "ratelimit"), format!("\"d\";r=0;t={seconds}"));
        }
        assert_eq!(seen, vec![(429, Some("banned".to_owned())); 3]);
        let mut http2 = agent.http2().await;
        let grpc = http::Request::builder().method(Method::POST).uri("http://a/").header("x-key", "ann");
        let grpc = grpc.header("content-type", "application/grpc").body(empty()).expect("valid");
        let answer = http2.send_request(grpc).await.expect("a response");
        assert_eq!((answer.status().as_u16(), &answer.headers()["grpc-status"]), (200, &http::HeaderValue::from(8)));
        assert_eq!(agent.statuses("/", &[("x-key", "bob")], 1).await, [200]);
        for (name, value) in
            [("weir_banned_keys", 1.0), ("weir_bans_started_total", 1.0), ("weir_ban_overflow_total", 0.0)]
        {
            assert_eq!(metric(&agent, name).await, value, "{name}");
        }
        for (decision, count) in [("limited", 3.0), ("shadow_limited", 0.0)] {
            let labels = SERIES.replace('}', &format!(",decision=\"{decision}\"}}"));
            let series = format!("weir_ban_requests_total{labels}");
            assert_eq!(agent.metric(&series).await, Some(count), "{series}");
        }
        assert_eq!(agent.counts(0, 0).await, [3, 6, 0], "two and three refusals, and one over HTTP/2");
        if policies.len() > 1 {
            assert_eq!(agent.counts(1, 0).await, [3, 0, 0], "a banned request is not charged elsewhere");
        }
        let explained = agent.control("POST", "/v1/explain", r#"{"target": "/", "headers": [["x-key", "ann"]]}"#).await;
        let explained = json_of(&explained);
        let own = &explained["rules"][0];
        assert_eq!((&own["banned"], &own["decision"]), (&json!(true), &json!("Limit")), "{explained}");
        assert!(own["afterMillis"].as_u64().is_some_and(|millis| millis > 3_500_000), "{explained}");

        let list = bans(&agent, "").await;
        let [one] = list["bans"].as_array().expect("a list").as_slice() else { panic!("{list}") };
        assert_eq!(
            (&list["total"], &one["policy"], &one["rule"], &one["key"]),
            (&json!(1), &json!("shop/p"), &json!("r"), &json!(["ann"]))
        );
        assert_eq!(bans(&agent, "?policy=shop/p&rule=r&key=bob").await, json!({"total": 0, "bans": []}));
        assert_eq!(lifted(&agent, "?policy=shop/p&rule=r&key=bob").await, (200, json!({"lifted": 0})));
        assert_eq!(lifted(&agent, "?policy=shop%2Fp&rule=r&key=ann").await, (200, json!({"lifted": 1})));
        let refused = agent.get("/", &ANN).await;
        assert_eq!(json_of(&refused)["error"], "rate limited", "the limit itself is used up");
        assert_eq!(bans(&agent, "?rule=r").await["total"], 0);
        agent.logged("bans lifted").await;
    }
}

#[tokio::test]
async fn wrong_selections_are_named() {
    let (_app, agent) = start().await;
    let plain = rule("plain", &[daily("d", "TokenBucket", 2)]);
    agent.apply(&snapshot(1, &[policy("p", &[banning(1, 500), plain])])).await;
    for (query, status, word) in [
        ("", 400, "policy and rule are required"),
        ("?policy=shop/p", 400, "policy and rule are required"),
        ("?policy=shop/p&rule=r&client=ann", 400, "\"client\" is unknown: the parameters are policy, rule and key"),
        ("?policy=shop/p&rule=r&rule=r", 400, "rule is given twice"),
        ("?policy=shop/p&rule=r&key=ann&key=bob", 400, "key: the key of rule r has 1 parts, but 2 values"),
        ("?policy=p&rule=r", 404, "policy: \"p\" is not in force here"),
        ("?policy=shop/p&rule=plain", 404, "rule: \"plain\" is not a rule with a ban"),
    ] {
        let (found, reply) = lifted(&agent, query).await;
        let message = reply["message"].as_str().expect("a message");
        assert_eq!(found, status, "{query}: {message}");
        assert!(message.starts_with(word), "{query}: {message}");
    }
    let response = agent.client.send(request("POST", &agent.control_url("/v1/bans"), &[], "")).await;
    assert_eq!(response.status(), 405);
}
