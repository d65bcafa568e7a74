//! Tests `POST /v1/explain` of an agent process.

use serde_json::{Value, json};

use crate::support::{Agent, daily, json_of, policy, request, rule, snapshot, start, with};

async fn explain(agent: &Agent, request: &Value) -> (u16, Value) {
    let response = agent.control("POST", "/v1/explain", request.to_string()).await;
    (response.status().as_u16(), json_of(&response))
}

#[tokio::test]
async fn explain_predicts_what_happens_to_a_request() {
    let (_app, agent) = start().await;
    assert_eq!(explain(&agent, &json!({"target": "/"})).await, (200, json!({"decision": "Allow", "rules": []})));
    let keyed = json!({"match": [{"paths": ["/api/**"], "methods": ["GET"]}], "key": [{"header": "x-api-key"}]});
    let limited = policy("p", &[with(rule("all", &[daily("d", "TokenBucket", 2)]), keyed)]);
    agent.apply(&snapshot(1, &[limited])).await;
    let ann = json!({"target": "/%61pi/x?page=1", "headers": [["x-api-key", "ann"]]});
    for remaining in [2, 1, 0] {
        for _ in 0..3 {
            let (status, reply) = explain(&agent, &ann).await;
            let rule = &reply["rules"][0];
            let decision = if remaining > 0 { "Allow" } else { "Limit" };
            assert_eq!((status, &reply["decision"]), (200, &json!(decision)), "{reply}");
            assert_eq!((&rule["rule"], &rule["key"], &rule["cost"]), (&json!("all"), &json!(["ann"]), &json!(1)));
            assert_eq!((&rule["limit"]["name"], &rule["limit"]["remaining"]), (&json!("d"), &json!(remaining)));
        }
        let expected = if remaining > 0 { 200 } else { 429 };
        assert_eq!(agent.get("/api/x", &[("x-api-key", "ann")]).await.status(), expected);
    }
    let post = json!({"target": "/api/x", "method": "POST", "headers": [["x-api-key", "ann"]]});
    assert_eq!(explain(&agent, &post).await.1, json!({"decision": "Allow", "rules": []}));
    assert_eq!(agent.counts(0, 0).await, [2, 1, 0], "explaining counts nothing");
}

/// The rules of a domain explain a descriptor. The service decides the same.
#[tokio::test]
async fn explain_predicts_what_happens_to_a_descriptor() {
    let service = Agent::service(&[]);
    let keyed = json!({"match": [{"descriptor": [{"name": "user"}]}], "key": [{"descriptor": "user"}]});
    let limited =
        with(policy("p", &[with(rule("all", &[daily("d", "TokenBucket", 5)]), keyed)]), json!({"domain": "shop"}));
    service.apply(&snapshot(1, &[limited])).await;
    let entries = |user: &str| json!({"domain": "shop", "entries": [["user", user]], "hits": 2});
    for (left, expected) in [(5, "Allow"), (3, "Allow"), (1, "Limit")] {
        let (status, reply) = explain(&service, &json!({"descriptor": entries("ann")})).await;
        assert_eq!((status, &reply["decision"]), (200, &json!(expected)), "{reply}");
        let rule = &reply["rules"][0];
        assert_eq!((&rule["key"], &rule["cost"]), (&json!(["ann"]), &json!(2)), "{reply}");
        assert_eq!(rule["limit"]["remaining"], left, "{reply}");
        let question =
            json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hitsAddend": 2}]});
        let answer = service.client.send(request("POST", &service.url("/json"), &[], question.to_string())).await;
        assert_eq!(answer.status(), if expected == "Allow" { 200 } else { 429 });
    }
    let other = json!({"descriptor": {"domain": "shop", "entries": [["host", "a"]]}});
    assert_eq!(explain(&service, &other).await.1, json!({"decision": "Allow", "rules": []}));
}

#[tokio::test]
async fn bad_input_is_named() {
    let (_app, agent) = start().await;
    for (request, word) in [
        (json!({}), "target: must be"),
        (json!({"target": "/", "descriptor": {"domain": "shop", "entries": [["a", "b"]]}}), "descriptor: must not"),
        (json!({"descriptor": {"domain": "shop", "entries": []}}), "descriptor.entries: must"),
        (json!({"descriptor": {"domain": "shop", "entries": [["a", "b"]]}}), "descriptor.domain: must"),
        (json!({"descriptor": {"domain": "shop", "entries": [["a"]]}}), "descriptor.entries[0]: "),
        (
            json!({"descriptor": {"domain": "shop", "entries": [["a", "b"]], "limit": {"requests": 5}}}),
            "descriptor.limit: missing field `periodMillis`",
        ),
        (json!({"target": "/", "verb": "GET"}), "unknown field `verb`"),
        (json!({"target": "/", "peer": "home"}), "peer: "),
        (json!({"target": "/", "method": "get"}), "method: must be"),
        (json!({"target": "api"}), "target: must be"),
        (json!({"target": "/", "headers": [["a b", "c"]]}), "headers[0][0]: must be"),
    ] {
        let (status, reply) = explain(&agent, &request).await;
        let message = reply["message"].as_str().expect("a message");
        assert_eq!(status, 400, "{request}");
        assert!(message.contains(word), "{request}: {message}");
    }
    assert_eq!(agent.control("GET", "/v1/explain", "").await.status(), 405);
}
