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
    let debt = |burst: u64| with(daily("units", "TokenBucketWithDebt", 10), json!({"burst": burst, "debt": burst}));
    // This rate is so high that it delays no response of these tests for long.
    let bytes = json!({
        "name": "bytes", "strategy": "TokenBucketWithDebt", "requests": 4_000_000, "periodMillis": 1000,
    });
    let bandwidth = with(bytes.clone(), json!({"burst": 2_000, "debt": 1_000_000}));
    let uploads = with(bytes, json!({"burst": 20, "debt": 10}));
    let paths = |glob: &str| json!({"match": [{"paths": [glob]}]});
    let one = |limits: &[Value], more: Value| vec![policy("p", &[with(rule("all", limits), more)])];
    let two = |limit: Value, cost: &str| {
        let some = with(with(rule("some", &[limit]), json!({"cost": cost})), paths("/b/**"));
        vec![policy("p", &[some, with(rule("all", &three()), json!({"key": [{"host": {}}]}))])]
    };
    let by_two = [daily("wide", "FixedWindow", 5), daily("narrow", "TokenBucket", 2)];
    let matching = json!({"onLimit": {"status": 429, "headers": "Legacy"}, "match": [
        {"methods": ["POST", "PUT"]}, {"hosts": ["*.example.com"]}, {"headers": [{"name": "x-a", "prefix": "y"}]},
        {"query": [{"name": "x"}]}, {"pathRegexes": ["^/a"]},
        {"predicate": "request.method == 'HEAD' || 'x-b' in request.headers"},
    ]});
    let keyed = json!({"key": [
        {"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}, {"cookie": "a"}, {"path": {}}, {"method": {}},
    ]});
    let own = json!({"status": 420, "headers": "None", "body": "slow down", "contentType": "text/x-slow"});
    vec![
        vec![],
        one(&three(), json!({})),
        one(&by_two, json!({"key": [{"header": "x-key"}], "onLimit": {"status": 503, "headers": "Both"}})),
        one(&three(), matching),
        one(&three(), keyed),
        vec![
            with(policy("p", &[rule("all", &[daily("d", "TokenBucket", 1)])]), json!({"mode": "Shadow"})),
            policy("q", &[with(rule("b", &[daily("d", "SlidingWindowLog", 2)]), paths("/b/**"))]),
            policy("r", &[json!({"name": "probes", "action": "Bypass", "match": [{"methods": ["OPTIONS"]}]})]),
        ],
        one(&three(), json!({"onLimit": own})),
        vec![policy("p", &[wait("all")])],
        vec![policy("p", &[with(wait("some"), paths("/b/**")), rule("all", &three())])],
        one(&[daily("d", "TokenBucket", 20)], json!({"cost": {"requestHeader": {"name": "x-cost", "most": 15}}})),
        one(&[debt(10)], json!({"cost": {"responseHeader": {"name": "x-units", "most": 100}}})),
        two(bandwidth, "responseBytes"),
        vec![with(policy("p", &[rule("all", &three())]), json!({"deadlineMillis": 60_000}))],
        // The whole body of a request has room now, or must wait.
        one(&[debt(1_000_000)], json!({"cost": "requestBytes"})),
        two(uploads, "requestBytes"),
    ]
}
