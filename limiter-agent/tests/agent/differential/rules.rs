//! The rules in force during a case: simple rules that sometimes refuse, and rules that move a request to hyper's path
//! in the middle of a connection.

use serde_json::{Value, json};

use crate::support::{daily, policy, rule, with};

/// One set of policies per case; the first set is empty.
pub(super) fn sets() -> Vec<Vec<Value>> {
    let three = || [daily("d", "TokenBucket", 3)];
    let wait = |name: &str| {
        let line = json!({"name": "line", "strategy": "LeakyBucket", "requests": 200, "periodMillis": 1000});
        with(rule(name, &[line]), json!({"onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 60_000}}))
    };
    // A unit returns after hours, so the quota headers do not depend on the time that a case takes.
    let debt = |burst: u64| {
        json!({
            "name": "units", "strategy": "TokenBucketWithDebt", "requests": 10, "periodMillis": 86_400_000,
            "burst": burst, "debt": burst,
        })
    };
    // This rate is so high that it delays no response of these tests for long.
    let bandwidth = json!({
        "name": "bytes", "strategy": "TokenBucketWithDebt", "requests": 4_000_000, "periodMillis": 1000,
        "burst": 2_000, "debt": 1_000_000,
    });
    let uploads = json!({
        "name": "bytes", "strategy": "TokenBucketWithDebt", "requests": 4_000_000, "periodMillis": 1000,
        "burst": 20, "debt": 10,
    });
    let on_limit = |status: u16, headers: &str| json!({"onLimit": {"status": status, "headers": headers}});
    let paths = |glob: &str| json!({"match": [{"paths": [glob]}]});
    vec![
        vec![],
        vec![policy("p", &[rule("all", &three())])],
        vec![policy(
            "p",
            &[with(
                rule("all", &[daily("wide", "FixedWindow", 5), daily("narrow", "TokenBucket", 2)]),
                json!({"key": [{"header": "x-key"}], "onLimit": {"status": 503, "headers": "Both"}}),
            )],
        )],
        vec![policy(
            "p",
            &[with(
                rule("all", &three()),
                with(
                    on_limit(429, "Legacy"),
                    json!({"match": [
                        {"methods": ["POST", "PUT"]}, {"hosts": ["*.example.com"]}, {"headers": [{"name": "x-a", "prefix": "y"}]},
                        {"query": [{"name": "x"}]}, {"pathRegexes": ["^/a"]},
                        {"predicate": "request.method == 'HEAD' || 'x-b' in request.headers"},
                    ]}),
                ),
            )],
        )],
        vec![policy(
            "p",
            &[with(
                rule("all", &three()),
                json!({"key": [
                    {"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}, {"cookie": "a"}, {"path": {}}, {"method": {}},
                ]}),
            )],
        )],
        vec![
            with(policy("p", &[rule("all", &[daily("d", "TokenBucket", 1)])]), json!({"mode": "Shadow"})),
            policy("q", &[with(rule("b", &[daily("d", "SlidingWindowLog", 2)]), paths("/b/**"))]),
            policy("r", &[json!({"name": "probes", "action": "Bypass", "match": [{"methods": ["OPTIONS"]}]})]),
        ],
        vec![policy(
            "p",
            &[with(
                rule("all", &three()),
                json!({"onLimit": {
            "status": 420, "headers": "None", "body": "slow down", "contentType": "text/x-slow"}}),
            )],
        )],
        vec![policy("p", &[wait("all")])],
        vec![policy("p", &[with(wait("some"), paths("/b/**")), rule("all", &three())])],
        vec![policy(
            "p",
            &[with(
                rule("all", &[daily("d", "TokenBucket", 20)]),
                json!({"cost": {"requestHeader": {"name": "x-cost", "most": 15}}}),
            )],
        )],
        vec![policy(
            "p",
            &[with(rule("all", &[debt(10)]), json!({"cost": {"responseHeader": {"name": "x-units", "most": 100}}}))],
        )],
        vec![policy(
            "p",
            &[
                with(with(rule("some", &[bandwidth]), json!({"cost": "responseBytes"})), paths("/b/**")),
                with(rule("all", &three()), json!({"key": [{"host": {}}]})),
            ],
        )],
        vec![with(policy("p", &[rule("all", &three())]), json!({"deadlineMillis": 60_000}))],
        // The whole body of a request has room now, or must wait.
        vec![policy("p", &[with(rule("all", &[debt(1_000_000)]), json!({"cost": "requestBytes"}))])],
        vec![policy(
            "p",
            &[
                with(with(rule("some", &[uploads]), json!({"cost": "requestBytes"})), paths("/b/**")),
                with(rule("all", &three()), json!({"key": [{"host": {}}]})),
            ],
        )],
    ]
}
