//! Tests the state that a change of the rules keeps, and the responses of the control port.

use http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Agent, daily, json_of, policy, rule, snapshot, start, with};

/// Sends `count` requests, and returns how many were admitted.
async fn admitted(agent: &Agent, headers: &[(&str, &str)], count: usize) -> usize {
    agent.statuses("/", headers, count).await.iter().filter(|status| **status == 200).count()
}

fn bucket(requests: u64) -> Value {
    rule("all", &[daily("d", "TokenBucket", requests)])
}

#[tokio::test]
async fn counters_survive_every_change_to_anything_else() {
    let (_app, agent) = start().await;
    let keyed = |more: Value| with(with(bucket(2), json!({"key": [{"header": "x-key"}]})), more);
    agent.apply(&snapshot(1, &[policy("p", &[keyed(json!({}))])])).await;
    assert_eq!(admitted(&agent, &[("x-key", "a")], 3).await, 2);
    let other_limit = json!({"limits": [daily("more", "FixedWindow", 50), daily("d", "TokenBucket", 2)]});
    for (index, policies) in [
        vec![policy("p", &[keyed(json!({"match": [{"methods": ["GET"]}]}))])],
        vec![policy("p", &[keyed(json!({"maxKeys": 7}))])],
        vec![policy("p", &[keyed(json!({"key": [{"header": "X-Key"}]}))])],
        vec![policy("p", &[keyed(json!({"onLimit": {"status": 429, "headers": "None"}}))])],
        vec![policy("p", &[keyed(other_limit)])],
        vec![policy(
            "p",
            &[keyed(json!({"overrides": [{"keys": [["b"]], "limits": [daily("d", "TokenBucket", 9)]}]}))],
        )],
        vec![policy("p", &[rule("first", &[daily("d", "TokenBucket", 99)]), keyed(json!({}))])],
        vec![policy("other", &[]), with(policy("p", &[keyed(json!({}))]), json!({"name": "renamed"}))],
    ]
    .iter()
    .enumerate()
    {
        agent.apply(&snapshot(10 + index as u64, policies)).await;
        assert_eq!(admitted(&agent, &[("x-key", "a")], 1).await, 0, "change {index}");
    }
    for (sequence, mode, expected) in [(30, "Shadow", 1), (31, "Disabled", 1), (32, "Enforce", 0)] {
        let changed = with(policy("p", &[keyed(json!({}))]), json!({"mode": mode}));
        agent.apply(&snapshot(sequence, &[changed])).await;
        assert_eq!(admitted(&agent, &[("x-key", "a")], 1).await, expected, "{mode}");
    }
    assert_eq!(admitted(&agent, &[("x-key", "fresh")], 3).await, 2);
}

#[tokio::test]
async fn sequences_order_snapshots_and_revisions_name_them() {
    let (_app, agent) = start().await;
    let none = agent.control("GET", "/v1/config", "").await;
    assert_eq!((none.status(), json_of(&none)["error"].as_str()), (StatusCode::NOT_FOUND, Some("noSnapshot")));

    let first = snapshot(5, &[policy("p", &[bucket(2)])]);
    let applied = json_of(&agent.put(&first).await);
    let since = applied["inForce"]["sinceUnixMillis"].clone();
    assert!(since.as_u64().is_some_and(|millis| millis > 1_700_000_000_000), "{applied}");
    let revision =
        |revision: &str, sequence: u64| with(first.clone(), json!({"revision": revision, "sequence": sequence}));
    for (sent, status, error, in_force) in [
        (revision("r5", 5), 200, None, (5, "r5")),
        (revision("other", 5), 409, Some("stale"), (5, "r5")),
        (revision("other", 4), 409, Some("stale"), (5, "r5")),
        (revision("r5", 4), 409, Some("stale"), (5, "r5")),
        (revision("r5", 8), 200, None, (8, "r5")),
        (revision("r5", 7), 409, Some("stale"), (8, "r5")),
        (with(revision("r5", 9), json!({"policies": []})), 422, Some("invalid"), (8, "r5")),
        // The next sequences are too large, because the operator could not continue above them.
        (revision("r5", u64::MAX), 422, Some("invalid"), (8, "r5")),
        (revision("r6", 1 << 53), 422, Some("invalid"), (8, "r5")),
        (with(revision("r6", 9), json!({"policies": []})), 200, None, (9, "r6")),
    ] {
        let answer = agent.put(&sent).await;
        let body = json_of(&answer);
        assert_eq!((answer.status().as_u16(), body["error"].as_str()), (status, error), "{body}");
        assert_eq!(body["inForce"]["sequence"], in_force.0, "{body}");
        assert_eq!(body["inForce"]["revision"], in_force.1, "{body}");
        if in_force.1 == "r5" {
            assert_eq!(body["inForce"]["sinceUnixMillis"], since);
        }
    }
    let config = json_of(&agent.control("GET", "/v1/config", "").await);
    assert_eq!(config, with(revision("r6", 9), json!({"policies": []})));
    let (_, metrics) = agent.telemetry("/metrics").await;
    for line in [
        "weir_snapshot_sequence 9",
        "weir_snapshot_info{revision=\"r6\",origin=\"pushed\"} 1",
        "weir_snapshots_total{result=\"applied\"} 2",
        "weir_snapshots_total{result=\"unchanged\"} 2",
        "weir_snapshots_total{result=\"stale\"} 4",
        "weir_snapshots_total{result=\"invalid\"} 3",
    ] {
        assert!(metrics.lines().any(|have| have == line), "{line} in\n{metrics}");
    }
}

#[tokio::test]
async fn what_cannot_be_enforced_is_refused_whole() {
    let (_app, agent) = start().await;
    agent.apply(&snapshot(1, &[policy("p", &[bucket(2)])])).await;
    assert_eq!(admitted(&agent, &[], 1).await, 1);

    let unknown = with(bucket(1), json!({"surprise": true}));
    let twice = [bucket(0), with(bucket(1), json!({"match": [{"paths": ["x"]}]}))];
    let paths = |body: &Value| -> Vec<String> {
        let faults = body["faults"].as_array().cloned().unwrap_or_default();
        faults.iter().map(|fault| fault["path"].as_str().expect("a path").to_owned()).collect()
    };
    for (body, status, error, expected) in [
        ("{".to_owned(), 400, "malformed", vec![]),
        (String::new(), 400, "malformed", vec![]),
        (" ".repeat(1024 * 1024 + 1), 413, "tooLarge", vec![]),
        (" ".repeat(9 * 1024 * 1024), 413, "tooLarge", vec![]),
        ("{}".to_owned(), 422, "invalid", vec!["."]),
        (with(snapshot(2, &[]), json!({"wireVersion": 2, "new": 1})).to_string(), 422, "invalid", vec!["wireVersion"]),
        (with(snapshot(2, &[]), json!({"sequence": -1})).to_string(), 422, "invalid", vec!["sequence"]),
        (snapshot(2, &[policy("p", &[unknown])]).to_string(), 422, "invalid", vec!["policies[0].rules[0].surprise"]),
        (
            snapshot(2, &[policy("p", &twice)]).to_string(),
            422,
            "invalid",
            vec![
                "policies[0].rules[0].limits[0].requests",
                "policies[0].rules[1].name",
                "policies[0].rules[1].match[0].paths[0]",
            ],
        ),
    ] {
        let start = body.chars().take(60).collect::<String>();
        let answer = agent.control("PUT", "/v1/config", body).await;
        let body = json_of(&answer);
        assert_eq!((answer.status().as_u16(), &body["error"]), (status, &json!(error)), "{start}: {body}");
        assert_eq!(paths(&body), expected, "{start}: {body}");
        assert_eq!(body["inForce"]["sequence"], 1, "{start}: {body}");
    }
    assert_eq!(admitted(&agent, &[], 3).await, 1, "the limit and its count are unchanged");
}

#[tokio::test]
async fn every_unknown_field_is_named() {
    let (_app, agent) = start().await;
    let limits =
        json!({"limits": [{"name": "d"}, daily("e", "Surprise", 1), with(daily("f", "GCRA", 1), json!({"x": 1}))]});
    let rules = [with(bucket(1), json!({"surprise": 1})), with(bucket(1), limits), json!("rule")];
    let body = with(
        snapshot(2, &[with(policy("p", &rules), json!({"mode": "Off"})), policy("q", &[bucket(1)])]),
        json!({"sequence": "2"}),
    );
    let answer = agent.put(&body).await;
    let refusal = json_of(&answer);
    let faults = refusal["faults"].as_array().expect("faults");
    let paths: Vec<&str> = faults.iter().map(|fault| fault["path"].as_str().expect("a path")).collect();
    let expected = [
        "policies[0].rules[0].surprise",
        "policies[0].rules[1].limits[0]",
        "policies[0].rules[1].limits[1].strategy",
        "policies[0].rules[1].limits[2].x",
        "policies[0].rules[2]",
        "policies[0].mode",
        "sequence",
    ];
    assert_eq!((answer.status().as_u16(), paths.as_slice()), (422, &expected[..]), "{refusal}");
    let twice = snapshot(1, &[]).to_string().replacen('{', r#"{"sequence":1,"#, 1);
    let refusal = json_of(&agent.control("PUT", "/v1/config", twice).await);
    assert!(refusal["faults"][0]["message"].as_str().is_some_and(|text| text.contains("duplicate")), "{refusal}");
}

#[tokio::test]
async fn requests_continue_while_the_largest_snapshot_is_applied() {
    let (_app, agent) = start().await;
    let mut sequence = 0;
    let mut largest = || {
        sequence += 1;
        let one = |index| {
            json!({"name": format!("r{index}"), "action": "Limit", "limits": [daily("d", "GCRA", 1)],
                                 "match": [{"paths": [format!("/r/{index}")]}]})
        };
        let rules: Vec<Value> = (0..7000).map(one).collect();
        let body = snapshot(sequence, &[policy("p", &rules)]).to_string();
        assert!((900_000..=1024 * 1024).contains(&body.len()), "{}", body.len());
        body
    };
    for _ in 0..2 {
        let put = agent.control("PUT", "/v1/config", largest());
        tokio::pin!(put);
        let mut meanwhile = 0;
        let answer = loop {
            tokio::select! {
                answer = &mut put => break answer,
                passed = agent.get("/", &[]) => {
                    assert_eq!(passed.status(), 200);
                    meanwhile += 1;
                }
            }
        };
        assert_eq!(answer.status(), 200, "{:?}", answer.body());
        assert!(meanwhile > 0, "requests do not wait for a snapshot");
    }
    assert_eq!(agent.statuses("/r/6999", &[], 2).await, [200, 429]);
}

#[tokio::test]
async fn a_snapshot_of_one_mebibyte_is_read() {
    let (_app, agent) = start().await;
    let mut body = snapshot(1, &[]).to_string();
    body.push_str(&" ".repeat(1024 * 1024 - body.len()));
    assert_eq!(agent.control("PUT", "/v1/config", body).await.status(), 200);
}

#[tokio::test]
async fn other_calls_are_answered_in_json() {
    let (_app, agent) = start().await;
    for (method, path, status, error) in [
        ("GET", "/", 404, "notFound"),
        ("POST", "/v1/config", 405, "methodNotAllowed"),
        ("PUT", "/v1/status", 405, "methodNotAllowed"),
    ] {
        let answer = agent.control(method, path, "").await;
        assert_eq!((answer.status().as_u16(), &json_of(&answer)["error"]), (status, &json!(error)), "{method} {path}");
    }
}

#[tokio::test]
async fn status_and_metrics_agree_and_survive_snapshots() {
    let (_app, agent) = start().await;
    let status = json_of(&agent.control("GET", "/v1/status", "").await);
    assert_eq!((status.get("inForce"), &status["policies"]), (None, &json!([])));
    let instance = status["instance"].clone();

    let series = |policy: &str, decision: &str| {
        format!("weir_requests_total{{namespace=\"shop\",policy=\"{policy}\",rule=\"all\",decision=\"{decision}\"}}")
    };
    agent.apply(&snapshot(1, &[policy("p", &[bucket(2)]), policy("gone", &[bucket(9)])])).await;
    assert_eq!(admitted(&agent, &[], 3).await, 2);
    agent.apply(&snapshot(2, &[policy("p", &[bucket(3)])])).await;
    assert_eq!(agent.counts(0, 0).await, [2, 1, 0]);
    let (_, metrics) = agent.telemetry("/metrics").await;
    assert!(metrics.contains(&format!("{} 2\n", series("p", "allowed"))), "{metrics}");
    assert!(metrics.contains(&format!("{} 1\n", series("p", "limited"))), "{metrics}");
    assert!(!metrics.contains("gone"), "{metrics}");
    assert_eq!(json_of(&agent.control("GET", "/v1/status", "").await)["instance"], instance);
}
