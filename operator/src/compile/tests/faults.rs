//! What the operator refuses, although the schema of the CRD can admit it, and the path of the field that it names.

use super::*;

#[test]
fn what_the_schema_would_refuse_is_a_fault_with_its_path() {
    let rule = json!({"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]});
    for [path, changes] in rows(
        r#"
        limits | {limits: null}
        limits[0] | {limits: [{name: a}]}
        limits[0] | {limits: [{name: a, requests: 1}]}
        limits[0] | {limits: [{name: c, concurrent: 1}, {name: a, requests: 50, per: 1s}]}
        limits[0].concurrent | {limits: [{name: c, concurrent: 0}]}
        limits[0].requests | {limits: [{name: c, concurrent: 1, requests: 1}]}
        limits[0].strategy | {limits: [{name: c, concurrent: 1, strategy: GCRA}]}
        cost.requests | {limits: [{name: c, concurrent: 2}], cost: {requests: 3}}
        cost.requests | {limits: [{name: c, concurrent: 9}], key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: c, concurrent: 2}]}], cost: {requests: 3}}
        overrides[0].limits[0].burst | {limits: [{name: c, concurrent: 9}], key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: c, concurrent: 2, burst: 1}]}]}
        overrides[0].limits[0].concurrent | {key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: a, requests: 2, per: 1s, concurrent: 1}]}]}
        per | {limits: [{name: c, concurrent: 1}], per: Message}
        cost | {limits: [{name: c, concurrent: 1}], cost: {responseBytes: {}}}
        onLimit.action | {limits: [{name: c, concurrent: 1}], onLimit: {action: Wait, maxWait: 1s}}
        overrides[0].limits[0].name | {limits: [{name: c, concurrent: 1}], key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: d, concurrent: 1}]}]}
        overrides[0].limits[0].concurrent | {limits: [{name: c, concurrent: 1}], key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: c}]}]}
        ban | {ban: {after: 3, for: 1m}}
        ban | {limits: null, action: Deny, ban: {after: 3, for: 1m}}
        ban | {limits: [{name: c, concurrent: 1}], key: [{header: x}], ban: {after: 3, for: 1m}}
        ban | {key: [{header: x}], per: Message, ban: {after: 3, for: 1m}}
        ban.after | {key: [{header: x}], ban: {after: 0, for: 1m}}
        ban.after | {key: [{header: x}], ban: {after: 1001, for: 1m}}
        ban.after | {key: [{header: x}], maxKeys: 1000000, ban: {after: 20, for: 1m}}
        limits[0].requests | {limits: [{name: a, requests: 0, per: 1s}]}
        limits[0].requests | {limits: [{name: a, requests: -1, per: 1s}]}
        limits[0].burst | {limits: [{name: a, requests: 1, per: 1s, burst: 2, strategy: FixedWindow}]}
        key[0].clientIP.trustedHops | {key: [{clientIP: {trustedHops: 300}}]}
        overrides[0].limits[0].name | {key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: b, requests: 1, per: 1s}]}]}
        overrides[0].keys[0][1] | {key: [{header: x}, {clientIP: {}}], overrides: [{keys: [[gold, localhost]], limits: [{name: a, requests: 50, per: 1s}]}]}
        overrides[1].keys[0] | {key: [{clientIP: {ipv6Prefix: 64}}], overrides: [{keys: [["2001:db8::1"], ["2001:db8:0:1::1"]], limits: [{name: a, requests: 50, per: 1s}]}, {keys: [["2001:db8::2"]], limits: [{name: a, requests: 50, per: 1s}]}]}
        onLimit.status | {onLimit: {status: 70000}}
        cost | {cost: {requestBytes: {}}}
        cost | {limits: [{name: a, concurrent: 1}], cost: {requestBytes: {}}}
        cost | {limits: [{name: a, requests: 9, per: 1s, strategy: TokenBucketWithDebt}], scope: Shared, shared: {storeRef: {name: s}}, cost: {requestBytes: {}}}
        responseHeaders[0].name | {responseHeaders: [{name: RateLimit, value: "1"}]}
        onLimit.set[0].value | {onLimit: {set: [{name: a, value: "{left}"}]}}
        onLimit.set[1].value | {limits: null, action: Deny, onLimit: {set: [{name: a, value: "{rule}"}, {name: b, value: "{remaining}"}]}}
        onLimit.body | {limits: null, action: Deny, onLimit: {body: "{rule} {} {limit}"}}
        limits[0].burst | {limits: [{name: a, requests: 1, per: 1s, burst: 2, strategy: SlidingWindowLog}]}
        limits[0].requests | {limits: [{name: a, requests: 1048577, per: 1s, strategy: SlidingWindowLog}]}
        limits[0].requests | {limits: [{name: a, requests: 1073741825, per: 2s, strategy: SlidingWindowCounter}]}
        limits[0].debt | {limits: [{name: a, requests: 1, per: 1s, debt: 1}]}
        limits[0].debt | {limits: [{name: a, requests: 1, per: 1s, debt: 0, strategy: TokenBucketWithDebt}]}
        key[0].pathSegment | {key: [{pathSegment: 0}]}
        overrides[0].keys[0][0] | {key: [{host: {}}], overrides: [{keys: [["example.com:80"]], limits: [{name: a, requests: 50, per: 1s}]}]}
        overrides[0].keys[1][0] | {key: [{method: {}}], overrides: [{keys: [[GET], [get]], limits: [{name: a, requests: 50, per: 1s}]}]}
        cost.requests | {cost: {requests: 0}}
        cost.requests | {cost: {requests: 51}}
        cost.requests | {key: [{header: x}], overrides: [{keys: [[a]], limits: [{name: a, requests: 49, per: 1s}]}], cost: {requests: 50}}
        cost.header.most | {cost: {header: {name: x, most: 0}}}
        cost | {cost: {responseBytes: {}}}
        onLimit.maxWait | {onLimit: {action: Wait}}
        onLimit.maxWait | {onLimit: {maxWait: 1s}}
        onLimit.onMessage | {onLimit: {onMessage: Close}}
        cost | {per: Message, cost: {header: {name: x, most: 2}}}
        onLimit.action | {per: Message, onLimit: {action: Wait, maxWait: 1s}}
        onLimit.contentType | {per: Message, onLimit: {contentType: a/b}}
        "#,
    ) {
        let faults = compiled(&changed(&rule, changes)).expect_err(changes);
        let paths: Vec<_> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, [format!("spec.rules[0].{path}")], "{changes}");
    }
}

#[test]
fn costs_up_to_the_limits_maximum_are_accepted() {
    for [more, most] in rows(
        "
        {strategy: FixedWindow} | 5
        {burst: 8} | 8
        {strategy: TokenBucketWithDebt, debt: 4} | 9
        {strategy: LeakyBucket, burst: 2} | 3
        {strategy: GCRA} | 1
        ",
    ) {
        let limit = changed(&json!({"name": "a", "requests": 5, "per": "1s"}), more);
        let compiled = |cost: u64| compiled(&json!({"name": "all", "limits": [limit], "cost": {"requests": cost}}));
        let most: u64 = most.parse().unwrap();
        assert!(compiled(most).is_ok(), "{limit} must admit {most}");
        assert!(compiled(most + 1).is_err(), "{limit} must not admit more than {most}");
    }
}

#[test]
fn logs_that_take_too_much_memory_are_faults_with_their_path() {
    const LONG: u64 = 1_048_576;
    let log = |name: &str, requests: u64| json!({"name": name, "requests": requests, "per": "1m", "strategy": "SlidingWindowLog"});
    let other = |name: &str, requests: u64| json!({"name": name, "requests": requests, "per": "1m"});
    let gold = |requests: u64, keys: usize| {
        let keys: Vec<_> = (0..keys).map(|key| json!([format!("k{key}")])).collect();
        json!({"keys": keys, "limits": [other("a", requests)]})
    };
    for (limits, max_keys, overrides, told) in [
        // The table has 72,820 slots, each with 8 bytes per request and 16 more bytes, so at most 228 requests fit.
        (json!([log("a", 228)]), 65_536, json!([]), None),
        (json!([log("a", 229)]), 65_536, json!([]), Some(("limits[0]", 129))),
        (json!([log("a", 1000)]), 65_536, json!([]), Some(("limits[0]", 557))),
        (json!([log("a", LONG)]), 11, json!([]), None),
        (json!([log("a", LONG)]), 12, json!([]), Some(("limits[0]", 129))),
        // Other strategies take no memory for logs, and all logs count together.
        (json!([other("t", 1_000_000), log("a", 228)]), 65_536, json!([]), None),
        (json!([log("a", 100), log("b", 126)]), 65_536, json!([]), None),
        (json!([log("a", 100), log("b", 127)]), 65_536, json!([]), Some(("limits[1]", 129))),
        (json!([log("a", LONG), other("t", 1)]), 1, json!([gold(LONG, 12)]), Some(("overrides[0].limits[0]", 129))),
        (json!([log("a", LONG), other("t", 1)]), 1, json!([gold(LONG, 11)]), None),
        // The override replaces the other limit, so the log's own numbers also apply to the overridden keys.
        (json!([other("a", 1), log("b", LONG)]), 1, json!([gold(5, 15)]), Some(("limits[1]", 153))),
    ] {
        let rule = json!({"name": "all", "key": [{"header": "x"}], "limits": limits, "maxKeys": max_keys, "overrides": overrides});
        let outcome = compiled(&rule);
        let Some((path, mib)) = told else {
            assert!(outcome.is_ok(), "{limits} for {max_keys}: {outcome:?}");
            continue;
        };
        let faults = outcome.expect_err("the logs take too much memory");
        let [fault] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!(fault.path, format!("spec.rules[0].{path}"));
        let message = format!(
            "would take {mib} MiB in each pod for {max_keys} keys, and at most 128 are allowed: lower requests or \
             maxKeys, or use SlidingWindowCounter"
        );
        assert_eq!(fault.message, message);
    }
    // A rule without a key has one log.
    let rule = json!({"name": "all", "limits": [log("a", LONG), log("b", LONG)]});
    assert!(compiled(&rule).is_ok());
}
