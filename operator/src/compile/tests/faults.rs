//! What the operator refuses, although the schema of the CRD can admit it, and the path of the field that it names.

use super::*;

#[test]
fn what_the_schema_would_refuse_is_a_fault_with_its_path() {
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    for (rule, path) in [
        (json!({"name": "all"}), "spec.rules[0].limits"),
        (json!({"name": "all", "limits": [{"name": "a"}]}), "spec.rules[0].limits[0]"),
        (json!({"name": "all", "limits": [{"name": "a", "requests": 1}]}), "spec.rules[0].limits[0]"),
        (json!({"name": "all", "limits": [{"name": "c", "concurrent": 1}, limit]}), "spec.rules[0].limits[0]"),
        (json!({"name": "all", "limits": [{"name": "c", "concurrent": 0}]}), "spec.rules[0].limits[0].concurrent"),
        (
            json!({"name": "all", "limits": [{"name": "c", "concurrent": 1, "requests": 1}]}),
            "spec.rules[0].limits[0].requests",
        ),
        (
            json!({"name": "all", "limits": [{"name": "c", "concurrent": 1, "strategy": "GCRA"}]}),
            "spec.rules[0].limits[0].strategy",
        ),
        (
            json!({"name": "all", "limits": [{"name": "c", "concurrent": 2}], "cost": {"requests": 3}}),
            "spec.rules[0].cost.requests",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "cost": {"requests": 3}, "limits": [{"name": "c", "concurrent": 9}],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "c", "concurrent": 2}]}]}),
            "spec.rules[0].cost.requests",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [{"name": "c", "concurrent": 9}],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "c", "concurrent": 2, "burst": 1}]}]}),
            "spec.rules[0].overrides[0].limits[0].burst",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [limit],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "a", "requests": 2, "per": "1s", "concurrent": 1}]}]}),
            "spec.rules[0].overrides[0].limits[0].concurrent",
        ),
        (json!({"name": "all", "limits": [{"name": "c", "concurrent": 1}], "per": "Message"}), "spec.rules[0].per"),
        (
            json!({"name": "all", "limits": [{"name": "c", "concurrent": 1}], "cost": {"responseBytes": {}}}),
            "spec.rules[0].cost",
        ),
        (
            json!({"name": "all", "limits": [{"name": "c", "concurrent": 1}], "onLimit": {"action": "Wait", "maxWait": "1s"}}),
            "spec.rules[0].onLimit.action",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [{"name": "c", "concurrent": 1}],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "d", "concurrent": 1}]}]}),
            "spec.rules[0].overrides[0].limits[0].name",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [{"name": "c", "concurrent": 1}],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "c"}]}]}),
            "spec.rules[0].overrides[0].limits[0].concurrent",
        ),
        (json!({"name": "all", "limits": [limit], "ban": {"after": 3, "for": "1m"}}), "spec.rules[0].ban"),
        (json!({"name": "all", "action": "Deny", "ban": {"after": 3, "for": "1m"}}), "spec.rules[0].ban"),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [{"name": "c", "concurrent": 1}],
                "ban": {"after": 3, "for": "1m"}}),
            "spec.rules[0].ban",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [limit], "per": "Message",
                "ban": {"after": 3, "for": "1m"}}),
            "spec.rules[0].ban",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [limit], "ban": {"after": 0, "for": "1m"}}),
            "spec.rules[0].ban.after",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [limit], "ban": {"after": 1001, "for": "1m"}}),
            "spec.rules[0].ban.after",
        ),
        (
            json!({"name": "all", "key": [{"header": "x"}], "limits": [limit], "maxKeys": 1_000_000,
                "ban": {"after": 20, "for": "1m"}}),
            "spec.rules[0].ban.after",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 0, "per": "1s"}]}),
            "spec.rules[0].limits[0].requests",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": -1, "per": "1s"}]}),
            "spec.rules[0].limits[0].requests",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1, "per": "1s", "burst": 2, "strategy": "FixedWindow"}]}),
            "spec.rules[0].limits[0].burst",
        ),
        (
            json!({"name": "all", "limits": [limit], "key": [{"clientIP": {"trustedHops": 300}}]}),
            "spec.rules[0].key[0].clientIP.trustedHops",
        ),
        (
            json!({"name": "all", "limits": [limit], "key": [{"header": "x"}],
                "overrides": [{"keys": [["a"]], "limits": [{"name": "b", "requests": 1, "per": "1s"}]}]}),
            "spec.rules[0].overrides[0].limits[0].name",
        ),
        (
            json!({"name": "all", "limits": [limit], "key": [{"header": "x"}, {"clientIP": {}}],
                "overrides": [{"keys": [["gold", "localhost"]], "limits": [limit]}]}),
            "spec.rules[0].overrides[0].keys[0][1]",
        ),
        (
            json!({"name": "all", "limits": [limit], "key": [{"clientIP": {"ipv6Prefix": 64}}], "overrides": [
                {"keys": [["2001:db8::1"], ["2001:db8:0:1::1"]], "limits": [limit]},
                {"keys": [["2001:db8::2"]], "limits": [limit]}]}),
            "spec.rules[0].overrides[1].keys[0]",
        ),
        (json!({"name": "all", "limits": [limit], "onLimit": {"status": 70000}}), "spec.rules[0].onLimit.status"),
        (json!({"name": "all", "limits": [limit], "cost": {"requestBytes": {}}}), "spec.rules[0].cost"),
        (
            json!({"name": "all", "limits": [{"name": "a", "concurrent": 1}], "cost": {"requestBytes": {}}}),
            "spec.rules[0].cost",
        ),
        (
            json!({"name": "all", "cost": {"requestBytes": {}}, "scope": "Shared", "shared": {"storeRef": {"name": "s"}},
                "limits": [{"name": "a", "requests": 9, "per": "1s", "strategy": "TokenBucketWithDebt"}]}),
            "spec.rules[0].cost",
        ),
        (
            json!({"name": "all", "limits": [limit], "responseHeaders": [{"name": "RateLimit", "value": "1"}]}),
            "spec.rules[0].responseHeaders[0].name",
        ),
        (
            json!({"name": "all", "limits": [limit], "onLimit": {"set": [{"name": "a", "value": "{left}"}]}}),
            "spec.rules[0].onLimit.set[0].value",
        ),
        (
            json!({"name": "all", "action": "Deny", "onLimit": {"set": [
                {"name": "a", "value": "{rule}"}, {"name": "b", "value": "{remaining}"}]}}),
            "spec.rules[0].onLimit.set[1].value",
        ),
        (
            json!({"name": "all", "action": "Deny", "onLimit": {"body": "{rule} {} {limit}"}}),
            "spec.rules[0].onLimit.body",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1, "per": "1s", "burst": 2, "strategy": "SlidingWindowLog"}]}),
            "spec.rules[0].limits[0].burst",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1_048_577, "per": "1s", "strategy": "SlidingWindowLog"}]}),
            "spec.rules[0].limits[0].requests",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1_073_741_825, "per": "2s", "strategy": "SlidingWindowCounter"}]}),
            "spec.rules[0].limits[0].requests",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1, "per": "1s", "debt": 1}]}),
            "spec.rules[0].limits[0].debt",
        ),
        (
            json!({"name": "all", "limits": [{"name": "a", "requests": 1, "per": "1s", "debt": 0, "strategy": "TokenBucketWithDebt"}]}),
            "spec.rules[0].limits[0].debt",
        ),
        (json!({"name": "all", "limits": [limit], "key": [{"pathSegment": 0}]}), "spec.rules[0].key[0].pathSegment"),
        (
            json!({"name": "all", "limits": [limit], "key": [{"host": {}}],
                "overrides": [{"keys": [["example.com:80"]], "limits": [limit]}]}),
            "spec.rules[0].overrides[0].keys[0][0]",
        ),
        (
            json!({"name": "all", "limits": [limit], "key": [{"method": {}}],
                "overrides": [{"keys": [["GET"], ["get"]], "limits": [limit]}]}),
            "spec.rules[0].overrides[0].keys[1][0]",
        ),
        (json!({"name": "all", "limits": [limit], "cost": {"requests": 0}}), "spec.rules[0].cost.requests"),
        (json!({"name": "all", "limits": [limit], "cost": {"requests": 51}}), "spec.rules[0].cost.requests"),
        (
            json!({"name": "all", "limits": [limit], "key": [{"header": "x"}], "cost": {"requests": 50},
                "overrides": [{"keys": [["a"]], "limits": [{"name": "a", "requests": 49, "per": "1s"}]}]}),
            "spec.rules[0].cost.requests",
        ),
        (
            json!({"name": "all", "limits": [limit], "cost": {"header": {"name": "x", "most": 0}}}),
            "spec.rules[0].cost.header.most",
        ),
        (json!({"name": "all", "limits": [limit], "cost": {"responseBytes": {}}}), "spec.rules[0].cost"),
        (json!({"name": "all", "limits": [limit], "onLimit": {"action": "Wait"}}), "spec.rules[0].onLimit.maxWait"),
        (json!({"name": "all", "limits": [limit], "onLimit": {"maxWait": "1s"}}), "spec.rules[0].onLimit.maxWait"),
        (
            json!({"name": "all", "limits": [limit], "onLimit": {"onMessage": "Close"}}),
            "spec.rules[0].onLimit.onMessage",
        ),
        (
            json!({"name": "all", "limits": [limit], "per": "Message", "cost": {"header": {"name": "x", "most": 2}}}),
            "spec.rules[0].cost",
        ),
        (
            json!({"name": "all", "limits": [limit], "per": "Message", "onLimit": {"action": "Wait", "maxWait": "1s"}}),
            "spec.rules[0].onLimit.action",
        ),
        (
            json!({"name": "all", "limits": [limit], "per": "Message", "onLimit": {"contentType": "a/b"}}),
            "spec.rules[0].onLimit.contentType",
        ),
    ] {
        let faults = compile(&key(), "uid", &spec(&json!([rule]))).expect_err(path);
        assert_eq!(faults.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), [path]);
    }
}

#[test]
fn costs_up_to_the_limits_maximum_are_accepted() {
    for (limit, most) in [
        (json!({"name": "a", "requests": 5, "per": "1s", "strategy": "FixedWindow"}), 5),
        (json!({"name": "a", "requests": 5, "per": "1s", "burst": 8}), 8),
        (json!({"name": "a", "requests": 5, "per": "1s", "strategy": "TokenBucketWithDebt", "debt": 4}), 9),
        (json!({"name": "a", "requests": 5, "per": "1s", "strategy": "LeakyBucket", "burst": 2}), 3),
        (json!({"name": "a", "requests": 5, "per": "1s", "strategy": "GCRA"}), 1),
    ] {
        let compiled = |cost: u64| {
            compile(&key(), "uid", &spec(&json!([{"name": "all", "limits": [limit], "cost": {"requests": cost}}])))
        };
        assert!(compiled(most).is_ok(), "{limit} must admit {most}");
        assert!(compiled(most + 1).is_err(), "{limit} must not admit more than {most}");
    }
}

#[test]
fn logs_that_take_too_much_memory_are_faults_with_their_path() {
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
        (json!([log("a", 1_048_576)]), 11, json!([]), None),
        (json!([log("a", 1_048_576)]), 12, json!([]), Some(("limits[0]", 129))),
        // Other strategies take no memory for logs, and all logs count together.
        (json!([other("t", 1_000_000), log("a", 228)]), 65_536, json!([]), None),
        (json!([log("a", 100), log("b", 126)]), 65_536, json!([]), None),
        (json!([log("a", 100), log("b", 127)]), 65_536, json!([]), Some(("limits[1]", 129))),
        (
            json!([log("a", 1_048_576), other("t", 1)]),
            1,
            json!([gold(1_048_576, 12)]),
            Some(("overrides[0].limits[0]", 129)),
        ),
        (json!([log("a", 1_048_576), other("t", 1)]), 1, json!([gold(1_048_576, 11)]), None),
        // The override replaces the other limit, so the log's own numbers also apply to the overridden keys.
        (json!([other("a", 1), log("b", 1_048_576)]), 1, json!([gold(5, 15)]), Some(("limits[1]", 153))),
    ] {
        let rule = json!({"name": "all", "key": [{"header": "x"}], "limits": limits, "maxKeys": max_keys, "overrides": overrides});
        let outcome = compile(&key(), "uid", &spec(&json!([rule])));
        let Some((path, mib)) = told else {
            assert!(outcome.is_ok(), "{limits} for {max_keys}: {outcome:?}");
            continue;
        };
        let faults = outcome.expect_err("the logs take too much memory");
        let [fault] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!(fault.path, format!("spec.rules[0].{path}"));
        assert_eq!(
            fault.message,
            format!(
                "would take {mib} MiB in each pod for {max_keys} keys, and at most 128 are allowed: lower requests or maxKeys, or use SlidingWindowCounter"
            )
        );
    }
    // A rule without a key has one log.
    let rule = json!({"name": "all", "limits": [log("a", 1_048_576), log("b", 1_048_576)]});
    assert!(compile(&key(), "uid", &spec(&json!([rule]))).is_ok());
}
