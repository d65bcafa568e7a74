use std::time::Duration;

use serde_json::{Value, json};
use weir_wire::{Fault, Mode, Snapshot};

use super::{
    super::{
        cost::{Cost, HeaderCost},
        key::Part,
        own_header::OwnBody,
        tests::with,
    },
    LoweredLimits, LoweredRule, RuleKind, lower,
};

fn parse(policies: &Value) -> Snapshot {
    let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": policies});
    serde_json::from_value(snapshot).expect("a snapshot")
}

fn policy(rules: &Value) -> Value {
    json!({"uid": "u", "namespace": "shop", "name": "p", "revision": "r", "mode": "Enforce", "rules": rules})
}

fn limit(name: &str) -> Value {
    json!({"name": name, "strategy": "TokenBucket", "requests": 10, "periodMillis": 1000})
}

/// A valid rule, with some of its fields replaced.
fn rule(fields: Value) -> Value {
    with(json!({"name": "r", "action": "Limit", "limits": [limit("l")]}), fields)
}

/// A valid policy with this number in its name and its UID.
fn numbered(number: usize, rule: &Value) -> Value {
    with(policy(&json!([rule])), json!({"uid": format!("u{number}"), "name": format!("p{number}")}))
}

fn faults(policies: &Value) -> Vec<Fault> {
    lower(&parse(policies)).err().unwrap_or_default()
}

fn rates(rule: &LoweredRule) -> &LoweredLimits {
    if let RuleKind::Rates(limits) = &rule.kind { limits } else { panic!("no rates") }
}

#[test]
fn the_golden_snapshot_is_lowered() {
    let golden = include_str!("../../../wire/tests/golden/snapshot.json");
    let lowered = lower(&serde_json::from_str(golden).expect("a snapshot")).expect("no faults");
    let [bypass, limited] = lowered.policies[0].rules.as_slice() else { panic!("two rules") };
    assert!(matches!(bypass.kind, RuleKind::Bypass));
    let limits = rates(limited);
    assert_eq!(limits.key.parts()[1], Part::ClientIp { trusted_hops: 1, ipv6_prefix: 64 });
    assert_eq!(limits.terms.limits().map(|(name, _)| name).collect::<Vec<_>>(), ["burst", "hourly", "spacing"]);
    assert_eq!(limits.max_keys.map(std::num::NonZeroUsize::get), Some(65_536));
    assert_eq!(limited.refusal.status, 429);
}

#[test]
fn a_rule_has_the_weaker_mode_and_denies_with_its_own_status() {
    let golden = include_str!("../../../wire/tests/golden/snapshot-exceptions.json");
    let lowered = lower(&serde_json::from_str(golden).expect("a snapshot")).expect("no faults");
    let rules = lowered.policies.iter().flat_map(|policy| &policy.rules);
    let status = |rule: &LoweredRule| rule.refusal.status.as_u16();
    let found: Vec<_> = rules
        .map(|rule| {
            let refuses_with = match &rule.kind {
                RuleKind::Bypass => None,
                RuleKind::Deny => Some(("all", status(rule))),
                RuleKind::Rates(_) => Some(("beyond rates", status(rule))),
                RuleKind::Concurrency(_) => Some(("beyond concurrency", status(rule))),
            };
            (rule.name.as_str(), rule.mode, refuses_with)
        })
        .collect();
    let expected = [
        ("blocked", Mode::Enforce, Some(("all", 404))),
        ("scanners", Mode::Shadow, Some(("all", 403))),
        ("office", Mode::Enforce, None),
        ("others", Mode::Disabled, Some(("beyond rates", 429))),
        ("strict", Mode::Shadow, Some(("beyond rates", 429))),
    ];
    assert_eq!(found, expected);
}

#[test]
fn everything_that_a_snapshot_can_say_is_lowered() {
    let golden = include_str!("../../../wire/tests/golden/snapshot-full.json");
    let lowered = lower(&serde_json::from_str(golden).expect("a snapshot")).expect("no faults");
    let [policy] = lowered.policies.as_slice() else { panic!("one policy") };
    let deadline = policy.deadline.as_ref().expect("a deadline");
    assert_eq!((deadline.after, deadline.status.as_u16()), (Duration::from_millis(500), 503));
    assert_eq!((&deadline.body, deadline.content_type.as_bytes()), (&Some("try later\n".into()), &b"text/plain"[..]));
    let [_, per_client, bandwidth, uploads, chat] = policy.rules.as_slice() else { panic!("five rules") };
    let [per_client, bandwidth, uploads, chat] = [per_client, bandwidth, uploads, chat].map(rates);
    let header = HeaderCost { name: http::HeaderName::from_static("x-cost"), most: 100 };
    assert_eq!(per_client.cost, Cost::RequestHeader(header));
    assert_eq!(per_client.max_wait, Some(Duration::from_millis(75)));
    let [_, refused, _, _, closing] = policy.rules.as_slice() else { panic!("five rules") };
    let form = &refused.refusal;
    let body = OwnBody::Constant("slow down".into());
    assert_eq!((&form.body, form.content_type.as_bytes()), (&Some(body), &b"text/plain"[..]));
    assert_eq!(bandwidth.key.parts().len(), 6);
    assert_eq!((&bandwidth.cost, bandwidth.terms.quotas(None)[0].debt()), (&Cost::ResponseBytes, 500_000));
    assert_eq!(uploads.cost, Cost::RequestBytes);
    assert_eq!((&chat.cost, closing.refusal.closes), (&Cost::Fixed(2), true));
}

/// Each row has one fault: its path, a word of its message, and the fields of the rule. `@limit` stands for a valid limit
/// with the name l, and `@key` for a key of a header and an address.
const FAULTS: &str = r#"
name | DNS label | {"name": "Upper"}
limits | at least one | {"limits": []}
limits[1].name | own name | {"limits": [@limit, @limit]}
limits[0].name | DNS label | {"limits": [{"name": "a\"b", "strategy": "GCRA", "requests": 1, "periodMillis": 1}]}
limits[0].name | DNS label | {"limits": [{"name": "a\u0000b", "strategy": "GCRA", "requests": 1, "periodMillis": 1}]}
limits[0].requests | at least 1 | {"limits": [{"name": "l", "strategy": "GCRA", "requests": 0, "periodMillis": 1}]}
limits[0].periodMillis | longer | {"limits": [{"name": "l", "strategy": "GCRA", "requests": 1, "periodMillis": 0}]}
limits[0].burst | at least 1 | {"limits": [{"name": "l", "strategy": "GCRA", "requests": 1, "periodMillis": 1, "burst": 0}]}
limits[0].burst | TokenBucket | {"limits": [{"name": "l", "strategy": "FixedWindow", "requests": 1, "periodMillis": 1, "burst": 2}]}
limits[0].requests | nanosecond | {"limits": [{"name": "l", "strategy": "GCRA", "requests": 1000000000, "periodMillis": 1}]}
match[0].methods[0] | upper case | {"match": [{"methods": ["get"]}]}
match[1].hosts[1] | without scheme, port | {"match": [{}, {"hosts": ["a", "a:80"]}]}
match[0].paths[0] | start with | {"match": [{"paths": ["api"]}]}
match[0].headers[0].name | x-api-key | {"match": [{"headers": [{"name": "a b", "value": ""}]}]}
match[0].headers[0].value | control | {"match": [{"headers": [{"name": "a", "value": "\n"}]}]}
key[0].header | x-api-key | {"key": [{"header": ""}]}
key[0].clientIP.ipv6Prefix | 128 | {"key": [{"clientIP": {"trustedHops": 0, "ipv6Prefix": 129}}]}
maxKeys | without a `key` | {"maxKeys": 5}
maxKeys | 1 to | {"key": @key, "maxKeys": 0}
maxKeys | 1 to | {"key": @key, "maxKeys": 1000001}
limits[0] | and at most 128 are allowed | {"key": @key, "maxKeys": 1000000, "limits": [{"name": "log", "strategy": "SlidingWindowLog", "requests": 1048576, "periodMillis": 1000}]}
onLimit.status | 400 | {"onLimit": {"status": 200, "headers": "IETF"}}
overrides | `key` | {"overrides": [{"keys": [["a"]], "limits": [@limit]}]}
overrides[0].keys | at least one | {"key": @key, "overrides": [{"keys": [], "limits": [@limit]}]}
overrides[0].keys[0] | 2 parts | {"key": @key, "overrides": [{"keys": [["a"]], "limits": [@limit]}]}
overrides[0].keys[0][1] | IP address | {"key": @key, "overrides": [{"keys": [["a", "b"]], "limits": [@limit]}]}
overrides[0].keys[1] | same key as policies[0] | {"key": @key, "overrides": [{"keys": [["a", "::1"], ["a", "::2"]], "limits": [@limit]}]}
overrides[0].limits | at least one | {"key": @key, "overrides": [{"keys": [["a", "::1"]], "limits": []}]}
overrides[0].limits[0].name | not a limit of this rule | {"key": @key, "overrides": [{"keys": [["a", "::1"]], "limits": [{"name": "x", "strategy": "GCRA", "requests": 1, "periodMillis": 1}]}]}
ban.after | 1 to 1000 | {"key": @key, "ban": {"after": 0, "withinMillis": 1, "forMillis": 1}}
ban.after | 1 to 1000 | {"key": @key, "ban": {"after": 1001, "withinMillis": 1, "forMillis": 1}}
ban.withinMillis | must be 1 to | {"key": @key, "ban": {"after": 1, "withinMillis": 0, "forMillis": 1}}
ban.forMillis | 604800000 | {"key": @key, "ban": {"after": 1, "withinMillis": 1, "forMillis": 604800001}}
ban | needs a `key` | {"ban": {"after": 1, "withinMillis": 1, "forMillis": 1}}
ban | per: Message | {"key": @key, "per": "Message", "ban": {"after": 1, "withinMillis": 1, "forMillis": 1}}
ban.after | lower after or maxKeys | {"key": @key, "maxKeys": 1000000, "ban": {"after": 20, "withinMillis": 1, "forMillis": 1}}
ban | action Deny | {"action": "Deny", "limits": [], "ban": {"after": 1, "withinMillis": 1, "forMillis": 1}}
limits | Bypass | {"action": "Bypass"}
limits | Deny | {"action": "Deny"}
responseHeaders[0].name | x-api-key | {"responseHeaders": [{"name": "a b", "value": ""}]}
responseHeaders[0].name | another name | {"responseHeaders": [{"name": "Date", "value": ""}]}
responseHeaders[0].name | headers None | {"responseHeaders": [{"name": "RateLimit", "value": ""}]}
responseHeaders[0].value | {remaining} | {"responseHeaders": [{"name": "a", "value": "{left}"}]}
responseHeaders | per: Message | {"per": "Message", "responseHeaders": [{"name": "a", "value": ""}]}
onLimit.set[0].value | counterpart | {"onLimit": {"status": 429, "headers": "IETF", "set": [{"name": "a", "value": "}"}]}}
onLimit.headers | action Deny | {"action": "Deny", "limits": [], "onLimit": {"status": 403, "headers": "Both"}}
match[0].clientCIDRs[1] | 10.0.0.0/8 | {"match": [{"clientCIDRs": ["10.0.0.0/8", "10.1.0.0/8"]}]}
match[0].trustedHops | only with clientCIDRs | {"match": [{"trustedHops": 1}]}
match[0].predicate | must be a network | {"match": [{"predicate": "inIpRange(request.clientIP, 'x')"}]}
match[0].pathRegexes[1] | regular expression | {"match": [{"pathRegexes": ["^/a", "("]}]}
match[0].pathRegexes[0] | smaller repetitions | {"match": [{"pathRegexes": ["a{1000}{1000}"]}]}
match[0].headers[0].prefix | one of them | {"match": [{"headers": [{"name": "a", "value": "b", "prefix": "c"}]}]}
match[0].headers[0].prefix | control | {"match": [{"headers": [{"name": "a", "prefix": "\n"}]}]}
match[0].query[0].name | empty | {"match": [{"query": [{"name": ""}]}]}
match[0].predicate | not CEL | {"match": [{"predicate": "request.method = 1"}]}
match[1].predicate | reads method, which does not exist | {"match": [{}, {"predicate": "method == 'GET'"}]}
key[0].cookie | session | {"key": [{"cookie": "a b"}]}
key[0].query | empty | {"key": [{"query": ""}]}
key[0].pathSegment | from 1 | {"key": [{"pathSegment": 0}]}
key[0].jwtClaim.header | x-api-key | {"key": [{"jwtClaim": {"header": "a b", "claim": "c"}}]}
key[0].jwtClaim.claim | empty | {"key": [{"jwtClaim": {"header": "a", "claim": ""}}]}
overrides[0].keys[0][0] | upper case | {"key": [{"method": {}}], "overrides": [{"keys": [["get"]], "limits": [@limit]}]}
limits[0].debt | TokenBucketWithDebt | {"limits": [{"name": "l", "strategy": "GCRA", "requests": 1, "periodMillis": 1, "debt": 1}]}
cost.fixed | at least 1 | {"cost": {"fixed": 0}}
cost.fixed | l admits 10 at once | {"cost": {"fixed": 11}}
cost.requestHeader.name | x-api-key | {"cost": {"requestHeader": {"name": "a b", "most": 1}}}
cost.requestHeader.most | at least 1 | {"cost": {"requestHeader": {"name": "a", "most": 0}}}
limits[0].strategy | TokenBucketWithDebt | {"cost": "responseBytes"}
limits[0].strategy | TokenBucketWithDebt | {"cost": {"responseHeader": {"name": "a", "most": 2}}}
cost | no response | {"per": "Message", "cost": "responseBytes"}
onLimit.maxWaitMillis | do not wait | {"per": "Message", "onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 5}}
onLimit.onMessage | per: Message | {"onLimit": {"status": 429, "headers": "IETF", "onMessage": "Close"}}
onLimit.contentType | media type | {"onLimit": {"status": 429, "headers": "IETF", "contentType": "text"}}
"#;

#[test]
fn each_fault_has_its_path() {
    let key = r#"[{"header": "x-a"}, {"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]"#;
    let rows = FAULTS.trim().lines().map(|row| {
        let [path, word, fields] = row.splitn(3, " | ").collect::<Vec<_>>()[..] else { panic!("{row}") };
        let fields = fields.replace("@limit", &limit("l").to_string()).replace("@key", key);
        (serde_json::from_str(&fields).unwrap_or_else(|error| panic!("{row}: {error}")), path, word)
    });
    let nine = json!({"limits": (0..9).map(|n| limit(&format!("l{n}"))).collect::<Vec<_>>()});
    for (fields, path, word) in rows.chain([(nine, "limits", "at most 8")]) {
        let found = faults(&json!([policy(&json!([rule(Value::clone(&fields))]))]));
        let [fault] = found.as_slice() else { panic!("{fields}: {found:?}") };
        assert_eq!(fault.path, format!("policies[0].rules[0].{path}"), "{fields}: {fault:?}");
        assert!(fault.message.contains(word), "{fields}: {fault:?}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let mut wrong = policy(&json!([
        rule(
            json!({"name": "a", "limits": [{"name": "-", "strategy": "GCRA", "requests": 0, "periodMillis": 0, "burst": 0}]})
        ),
        rule(json!({"name": "a", "match": [{"methods": ["x"], "paths": ["//", "x"]}], "maxKeys": 1})),
    ]));
    wrong["deadlineMillis"] = 0.into();
    wrong["onDeadline"] = json!({"status": 200, "contentType": "text"});
    wrong["namespace"] = "".into();
    wrong["revision"] = "".into();
    let paths: Vec<String> = faults(&json!([wrong, wrong])).into_iter().map(|fault| fault.path).collect();
    let of_one = [
        "namespace", "revision", "deadlineMillis", "onDeadline.status", "onDeadline.contentType",
        "rules[0].limits[0].name", "rules[0].limits[0].requests", "rules[0].limits[0].periodMillis",
        "rules[0].limits[0].burst", "rules[1].name", "rules[1].match[0].methods[0]", "rules[1].match[0].paths[0]",
        "rules[1].match[0].paths[1]", "rules[1].maxKeys",
    ];
    let expected = of_one
        .iter()
        .map(|path| format!("policies[0].{path}"))
        .chain(["policies[1].uid", "policies[1].name"].map(String::from))
        .chain(of_one.iter().map(|path| format!("policies[1].{path}")));
    assert_eq!(paths, Vec::from_iter(expected));
}

#[test]
fn a_response_after_the_deadline_needs_a_deadline() {
    let mut without = policy(&json!([rule(json!({}))]));
    without["onDeadline"] = json!({"status": 503});
    let found = faults(&json!([without]));
    assert_eq!(found.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), ["policies[0].onDeadline"]);
    without["deadlineMillis"] = 1.into();
    assert_eq!(faults(&json!([without])), []);
}

#[test]
fn the_logs_of_all_policies_together_are_bounded() {
    let log = |requests: u64| json!([{"name": "l", "strategy": "SlidingWindowLog", "requests": requests, "periodMillis": 1000}]);
    let policies = |count: usize, fields: Value| -> Value {
        (0..count).map(|number| numbered(number, &rule(fields.clone()))).collect()
    };
    // A keyed log has 72,818 cells of 102 words of 8 bytes each, which is 57 MiB. A log without keys has 8 MiB.
    let keyed = json!({"key": [{"header": "x"}], "limits": log(100)});
    let single = json!({"limits": log(1 << 20)});
    // 256 refusals of 65,536 keys take 128 MiB.
    let ban = json!({"after": 256, "withinMillis": 1, "forMillis": 1});
    let banning = json!({"key": [{"header": "x"}], "ban": ban});
    for (fields, most) in [(keyed, 4), (single, 31), (banning, 2)] {
        assert_eq!(faults(&policies(most, fields.clone())), []);
        let faults = faults(&policies(most + 3, fields));
        let [fault] = faults.as_slice() else { panic!("not exactly one fault: {faults:?}") };
        assert_eq!(fault.path, format!("policies[{most}]"));
        assert!(fault.message.contains("more than 256 MiB"), "{}", fault.message);
    }
}

/// A text of a few bytes can describe a regular expression that takes a MiB. No expression is compiled after the first
/// one that does not fit.
#[test]
fn the_regular_expressions_of_all_policies_together_are_bounded() {
    let large = r"request.path.matches(r'\w{20}')";
    let bytes = weir_expressions::predicate(large).expect("a predicate").bytes();
    let most = usize::try_from(weir_expressions::MAX_EXPRESSION_BYTES / bytes).expect("a small number");
    assert!((4..100).contains(&most), "one takes {bytes} bytes");
    let predicates = |count: usize| json!({"match": vec![json!({"predicate": large}); count]});
    let one = |number: usize, fields: Value| numbered(number, &rule(fields));
    assert_eq!(faults(&json!([one(0, predicates(most))])), []);
    let regexes =
        json!({"match": [{"pathRegexes": ["^/a"]}, {"pathRegexes": vec!["^[ab]{6000}"; 8]}, {"pathRegexes": ["("]}]});
    for (fields, end) in [(predicates(2), "[0].predicate"), (regexes, "[1].pathRegexes[")] {
        let faults = faults(&json!([one(0, predicates(most)), one(1, fields)]));
        let [fault] = faults.as_slice() else { panic!("not exactly one fault: {faults:?}") };
        assert!(fault.path.starts_with(&format!("policies[1].rules[0].match{end}")), "{}", fault.path);
        assert!(fault.message.contains("take more than 16 MiB"), "{}", fault.message);
    }
}

fn stored(rule: &Value, backend: &Value) -> Vec<String> {
    let stores = json!([{"name": "shop/limits", "backend": backend}]);
    let snapshot = json!({
        "wireVersion": 1, "sequence": 1, "revision": "r", "policies": [policy(&json!([rule]))], "stores": stores,
    });
    let faults = lower(&serde_json::from_value(snapshot).expect("a snapshot")).err().unwrap_or_default();
    faults.into_iter().map(|fault| fault.path).collect()
}

#[test]
fn what_a_store_cannot_do_is_refused() {
    let shared = |fields: Value| {
        let shared = json!({
            "store": "shop/limits", "counters": "shop/p.r", "stamp": 3, "onStoreLoss": "LocalShare", "sharers": 2,
        });
        with(shared, fields)
    };
    let redis = json!({"redis": {"topology": "Standalone", "endpoints": ["a:1"]}});
    let memcached = json!({"memcached": {"servers": ["a:1"]}});
    let of = |strategy: &str| json!([{"name": "l", "strategy": strategy, "requests": 10, "periodMillis": 1000}]);
    let patient = json!({"status": 429, "headers": "IETF", "maxWaitMillis": 10});
    let at = "policies[0].rules[0]";
    for (fields, on_redis, on_memcached) in [
        (json!({}), None, None),
        (json!({"limits": of("LeakyBucket")}), None, Some("limits[0].strategy")),
        (json!({"limits": of("SlidingWindowLog")}), None, Some("limits[0].strategy")),
        (json!({"limits": of("GCRA")}), None, None),
        (json!({"onLimit": patient}), None, Some("onLimit.maxWaitMillis")),
        (json!({"per": "Message"}), Some("per"), Some("per")),
        (json!({"limits": of("TokenBucketWithDebt"), "cost": "responseBytes"}), Some("cost"), Some("cost")),
        (json!({"shared": shared(json!({"store": "shop/other"}))}), Some("shared.store"), Some("shared.store")),
        (json!({"shared": shared(json!({"sharers": 0}))}), Some("shared.sharers"), Some("shared.sharers")),
        (json!({"shared": shared(json!({"counters": "a{b"}))}), Some("shared.counters"), Some("shared.counters")),
        (json!({"action": "Bypass", "limits": []}), Some("shared"), Some("shared")),
    ] {
        let one = with(rule(json!({"shared": shared(json!({}))})), fields);
        for (backend, expected) in [(&redis, on_redis), (&memcached, on_memcached)] {
            let expected: Vec<String> = expected.iter().map(|field| format!("{at}.{field}")).collect();
            assert_eq!(stored(&one, backend), expected, "{one} {backend}");
        }
    }
    let sentinel = json!({"redis": {"topology": "Sentinel", "endpoints": ["a:1"]}});
    assert_eq!(stored(&rule(json!({})), &sentinel), ["stores[0].backend.redis.masterName"]);
}
