//! Explanations of the decision of each rule. An explanation changes no state.

use weir_wire::{Decision, ExplainReply, ExplainRequest};

use super::*;

fn explain(limits: &Limits, request: Value) -> ExplainReply {
    let request: ExplainRequest = serde_json::from_value(request).expect("a request");
    limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Refuse).expect("a valid request")
}

#[tokio::test(start_paused = true)]
async fn each_matching_rule_says_what_it_would_decide() {
    let keyed = json!({
        "match": [{"paths": ["/api/**"]}],
        "key": [{"header": "x-api-key"}, {"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}],
        "overrides": [{"keys": [["ann", "192.0.2.7"]], "limits": [limit("TokenBucket", 2, 1000, json!({}))]}],
    });
    let line = with(wait(150), json!({"cost": {"fixed": 1}}));
    let limits = Limits::new(&[
        policy("a", &[rule("keyed", &[limit("TokenBucket", 1, 1000, json!({}))], keyed)]),
        with(
            policy("b", &[rule("line", &[limit("LeakyBucket", 10, 1000, json!({}))], line)]),
            json!({"mode": "Shadow"}),
        ),
        policy("c", &[json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]})]),
        with(policy("d", &[json!({"name": "off", "action": "Bypass"})]), json!({"mode": "Disabled"})),
    ]);
    let ann = json!({"target": "/api/x?a", "headers": [["X-Api-Key", "ann"]], "peer": "192.0.2.7"});
    let reply = explain(&limits, ann.clone());
    assert_eq!(reply.decision, Decision::Allow);
    assert_eq!(reply, explain(&limits, ann.clone()), "an explanation changes nothing");
    let [keyed, line] = reply.rules.as_slice() else { panic!("{reply:?}") };
    assert_eq!((keyed.rule.as_str(), keyed.override_index, keyed.cost), ("keyed", Some(0), 1));
    assert_eq!(keyed.key, [Some("ann".to_owned()), Some("192.0.2.7".to_owned())]);
    assert_eq!(keyed.limit.as_ref().map(|limit| (limit.name.as_str(), limit.remaining)), Some(("l", 2)));
    assert_eq!((line.rule.as_str(), line.decision), ("line", Decision::Allow));
    assert_eq!(limits.counts(0, 0), [0; 4]);

    // Real requests use up the limit. Their address is 127.0.0.1, and they do not have the header of the key.
    assert_eq!(limits.status("/api/x").await, 200);
    let reply = explain(&limits, json!({"target": "/api/x"}));
    assert_eq!(reply.decision, Decision::Limit);
    assert_eq!((reply.rules[0].decision, reply.rules[0].after_millis), (Decision::Limit, Some(1000)));
    assert_eq!(reply.rules[0].key, [None, Some("127.0.0.1".to_owned())]);
    assert_eq!((reply.rules[1].decision, reply.rules[1].after_millis), (Decision::Wait, Some(100)));
    assert_eq!(limits.status("/api/x").await, 429);
    assert_eq!(explain(&limits, json!({"target": "/healthz"})).decision, Decision::Bypass);
    assert_eq!(explain(&limits, json!({"target": "/healthz"})).rules.len(), 2);
}

/// The explained wait equals the wait of a real request.
#[tokio::test(start_paused = true)]
async fn a_wait_is_told_as_it_is_given() {
    for (strategy, burst) in [("LeakyBucket", json!({"burst": 2})), ("GCRA", json!({})), ("FixedWindow", json!({}))] {
        let line = rule("line", &[limit(strategy, 10, 1000, burst)], wait(10_000));
        let limits = Limits::new(&[policy("p", &[line])]);
        let mut turns = Vec::new();
        for _ in 0..12 {
            let said = explain(&limits, json!({"target": "/"})).decision;
            let before = limits.counts(0, 0);
            turns.push(limits.send(get("/"), ok));
            let after = limits.counts(0, 0);
            let became = match (after[0] - before[0], after[1] - before[1]) {
                (1, 0) => Decision::Allow,
                (0, 1) => Decision::Limit,
                _ => Decision::Wait,
            };
            assert_eq!(said, became, "{strategy} after {} requests", turns.len());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_named() {
    let limits = Limits::new(&[]);
    for (request, field) in [
        (json!({"target": "/", "method": "get"}), "method"),
        (json!({"target": "/", "method": ""}), "method"),
        (json!({"target": ""}), "target"),
        (json!({"target": "api"}), "target"),
        (json!({"target": "/", "headers": [["a", "b"], ["a b", "c"]]}), "headers[1][0]"),
        (json!({"target": "/", "headers": [["a", "b\n"]]}), "headers[0][1]"),
    ] {
        let parsed: ExplainRequest = serde_json::from_value(request.clone()).expect("a request");
        let invalid =
            limits.rules.load().explain(&parsed, limits.clock, AmbiguousPaths::Refuse).expect_err(field).to_string();
        assert!(invalid.starts_with(&format!("{field}: must")), "{request}: {invalid}");
    }
}
