//! Tests the agent's log lines on standard error.

use serde_json::{Value, json};

use crate::support::{Agent, App, daily, policy, rule, snapshot, with};

fn parse(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[tokio::test]
async fn refusal_logs_are_limited_and_count_the_omitted_ones() {
    let app = App::start().await;
    let agent = Agent::start(app.address, &["--log-format", "json"]);
    let keyed = with(rule("each", &[daily("d", "TokenBucket", 1)]), json!({"key": [{"header": "x-key"}]}));
    let other = with(rule("all", &[daily("e", "TokenBucket", 1)]), json!({"match": [{"paths": ["/other"]}]}));
    agent.apply(&snapshot(1, &[policy("p", &[keyed]), policy("q", &[other])])).await;
    let refuse = || agent.get("/", &[("x-key", "hunter2")]);
    assert_eq!(refuse().await.status(), 200);
    assert_eq!(refuse().await.status(), 429);

    let line = agent.logged("\"refused\"").await;
    let first = parse(&line);
    let expected = json!({
        "message": "refused", "namespace": "shop", "policy": "p", "rule": "each", "limit": "d", "unlogged": 0,
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&first[name], value, "{line}");
    }
    assert!(first["retry_after_seconds"].as_u64().is_some_and(|seconds| seconds > 0), "{line}");
    assert!(!line.contains("hunter2"), "no key in a line: {line}");

    // Another rule has its own lines.
    for (key, status) in [("b", 200), ("c", 429)] {
        assert_eq!(agent.get("/other", &[("x-key", key)]).await.status(), status);
    }
    let other = agent.logged("\"refused\"").await;
    assert_eq!((&parse(&other)["policy"], &parse(&other)["limit"]), (&json!("q"), &json!("e")), "{other}");

    // The test sends requests until the second log line, which counts all refusals except its own and the first.
    let mut refused = 1;
    let second = {
        let logged = agent.logged("\"refused\"");
        tokio::pin!(logged);
        loop {
            assert_eq!(refuse().await.status(), 429);
            refused += 1;
            if let std::task::Poll::Ready(line) = futures::poll!(&mut logged) {
                break line;
            }
        }
    };
    let unlogged = parse(&second)["unlogged"].as_u64().expect("a number");
    assert!((1..=refused - 2).contains(&unlogged), "{unlogged} of {refused}: {second}");
}

#[tokio::test]
async fn keys_are_logged_only_with_the_flag() {
    let app = App::start().await;
    let parts = json!([{"header": "x-key"}, {"cookie": "session"}, {"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]);
    let each = with(rule("each", &[daily("d", "TokenBucket", 1)]), json!({"key": parts}));
    let all = with(rule("all", &[daily("e", "TokenBucket", 1)]), json!({"match": [{"paths": ["/all"]}]}));
    let each = with(each, json!({"match": [{"paths": ["/each"]}]}));
    // A key cannot end its line or its list.
    let key = r#"hun"ter2\"]"#;
    let named = r#"["hun\"ter2\\\"]",null,"127.0.0.1"]"#;
    for format in ["json", "text"] {
        let agent = Agent::start(app.address, &["--log-format", format, "--log-keys"]);
        agent.apply(&snapshot(1, &[policy("p", &[each.clone(), all.clone()])])).await;
        assert_eq!(agent.statuses("/each", &[("x-key", key)], 2).await, [200, 429]);
        let line = agent.logged("refused").await;
        if format == "json" {
            assert_eq!(parse(&line)["key"], named, "{line}");
        } else {
            assert!(line.contains(named), "{line}");
        }
        assert_eq!(agent.statuses("/all", &[("x-key", key)], 2).await, [200, 429]);
        let line = agent.logged("refused").await;
        assert!(!line.contains("key") && !line.contains("ter2"), "a rule without a key: {line}");
    }
    let agent = Agent::start(app.address, &[]);
    agent.apply(&snapshot(1, &[policy("p", &[each])])).await;
    assert_eq!(agent.statuses("/each", &[("x-key", key)], 2).await, [200, 429]);
    let line = agent.logged("refused").await;
    assert!(!line.contains("ter2") && !line.contains("127.0.0.1"), "{line}");
}

#[tokio::test]
async fn lines_of_json_name_the_reason_of_a_fault() {
    let app = App::start().await;
    let bad = snapshot(1, &[policy("p", &[rule("all", &[daily("d", "TokenBucket", 0)])])]).to_string();
    let agent = Agent::start_until("waiting", app.address, &["--log-format", "json", "--bootstrap", &bad]);
    let start = parse(&agent.logged("cannot start with this snapshot").await);
    let fault = parse(&agent.logged("\"fault\"").await);
    assert_eq!(agent.put(&json!({})).await.status(), 422);
    let rejected = parse(&agent.logged("snapshot rejected").await);
    for line in [start, fault, rejected] {
        assert!(line["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
    }
}

#[tokio::test]
async fn the_level_holds_back_what_is_below_it() {
    let app = App::start().await;
    let agent = Agent::start_until("waiting", app.address, &["--log-level", "warn", "--wait-for-config"]);
    assert_eq!(agent.put(&json!({})).await.status(), 422);
    agent.apply(&snapshot(1, &[])).await;
    let line = agent.logged("snapshot rejected").await;
    assert!(line.contains("WARN"), "{line}");
    assert_eq!(agent.put(&json!({})).await.status(), 422);
    let next = agent.logged("").await;
    assert!(next.contains("snapshot rejected"), "the accepted snapshot must not be logged: {next}");
}
