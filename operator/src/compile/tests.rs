mod domain;
mod faults;

use serde_json::{Value, json};
use weir_api::RateLimitPolicySpec;

use super::*;
use crate::tables::{changed, rows, yaml};

fn spec(rules: &Value) -> RateLimitPolicySpec {
    serde_json::from_value(json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})).unwrap()
}

/// A rule with one limit.
fn simple() -> Value {
    json!({"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]})
}

/// Compiles a policy with this rule.
fn compiled(rule: &Value) -> Result<CompiledPolicy, Vec<Fault>> {
    compile(&key(), "uid", &spec(&json!([rule]))).map(|(policy, _)| policy)
}

/// Compiles a policy with a simple rule, with these changes of its spec.
fn compiled_with(changes: &str) -> Result<CompiledPolicy, Vec<Fault>> {
    let spec = changed(&json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [simple()]}), changes);
    compile(&key(), "uid", &serde_json::from_value(spec).unwrap()).map(|(policy, _)| policy)
}

pub(super) fn key() -> ObjectKey {
    ObjectKey::new("shop", "checkout")
}

#[test]
fn rules_become_wire_json_with_every_default_decided() {
    let wire = json!({"name": "all", "action": "Limit", "onLimit": {"status": 429, "headers": "IETF"},
        "limits": [{"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50}]});
    // The columns: changes of the rule, and changes on the wire; `=` means the same ones.
    for [what, written, expected] in rows(
        r#"
        token bucket: the burst is the number of requests | {} | {}
        GCRA: the burst is 1; sub-second periods stay | {limits: [{name: a, requests: 5, per: 250ms, strategy: GCRA}]} | {limits: [{name: a, strategy: GCRA, requests: 5, periodMillis: 250, burst: 1}]}
        fixed window: no burst | {limits: [{name: a, requests: 5, per: 1h30m, strategy: FixedWindow}]} | {limits: [{name: a, strategy: FixedWindow, requests: 5, periodMillis: 5400000}]}
        bypass: only matches | {action: Bypass, limits: null, match: [{paths: [/healthz]}]} | {action: Bypass, limits: null, match: [{paths: [/healthz]}], onLimit: null}
        deny: 403 and no quota fields; its own mode | {action: Deny, limits: null, mode: Shadow, match: [{clientCIDRs: [203.0.113.0/24], trustedHops: 1}]} | {action: Deny, limits: null, mode: Shadow, match: [{clientCIDRs: [203.0.113.0/24], trustedHops: 1}], onLimit: {status: 403, headers: None}}
        headers of responses | {responseHeaders: [{name: x, value: "{remaining}"}], onLimit: {headersOn: Refusals, set: [{name: y, value: "{rule}"}]}} | =
        cost: a number | {cost: {requests: 3}} | {cost: {fixed: 3}}
        cost: a header | {cost: {header: {name: x, most: 9}}} | {cost: {requestHeader: {name: x, most: 9}}}
        cost: a header of the response | {limits: [{name: a, requests: 50, per: 1s, strategy: TokenBucketWithDebt}], cost: {responseHeader: {name: x, most: 9}}} | {limits: [{name: a, strategy: TokenBucketWithDebt, requests: 50, periodMillis: 1000, burst: 50, debt: 0}], cost: {responseHeader: {name: x, most: 9}}}
        cost: bytes of the response | {limits: [{name: a, requests: 50, per: 1s, strategy: TokenBucketWithDebt}], cost: {responseBytes: {}}} | {limits: [{name: a, strategy: TokenBucketWithDebt, requests: 50, periodMillis: 1000, burst: 50, debt: 0}], cost: responseBytes}
        waiting | {onLimit: {action: Wait, maxWait: 75ms}} | {onLimit: {maxWaitMillis: 75}}
        its own text | {onLimit: {body: slow down, status: 503}} | {onLimit: {status: 503, body: slow down, contentType: text/plain; charset=utf-8}}
        a text of another type | {onLimit: {body: "{}", contentType: application/json}} | =
        conditions of paths | {match: [{pathRegexes: ["^/v[0-9]+/"], predicate: "request.method == 'GET'"}]} | =
        conditions of headers | {match: [{headers: [{name: a, prefix: b}, {name: c}]}]} | =
        conditions of queries | {match: [{query: [{name: d, value: ""}, {name: e, prefix: f}, {name: g}]}]} | =
        messages are refused by a notice | {per: Message} | {per: Message, onLimit: {onMessage: Notice}}
        messages whose connection is closed | {per: Message, onLimit: {onMessage: Close}} | =
        a concurrent limit has no rates | {key: [{header: x}], limits: [{name: c, concurrent: 10}], overrides: [{keys: [[gold], [silver]], limits: [{name: c, concurrent: 50}]}]} | {key: [{header: x}], limits: null, concurrency: {name: c, limit: 10, overrides: [{keys: [[gold], [silver]], limit: 50}]}}
        a ban | {key: [{header: x}], ban: {after: 20, within: 1m, for: 15m}} | {key: [{header: x}], maxKeys: 65536, ban: {after: 20, withinMillis: 60000, forMillis: 900000}}
        a ban without a window | {key: [{header: x}], ban: {after: 20, for: 15m}} | {key: [{header: x}], maxKeys: 65536, ban: {after: 20, withinMillis: 900000, forMillis: 900000}}
        "#,
    ) {
        let policy = compiled(&changed(&simple(), written)).expect(what);
        let expected = changed(&wire, if expected == "=" { written } else { expected });
        assert_eq!(serde_json::to_value(&policy.rules[0]).unwrap(), expected, "{what}");
        assert_eq!((policy.uid.as_str(), policy.namespace.as_str(), policy.name.as_str()), ("uid", "shop", "checkout"));
    }
}

#[test]
fn a_rule_with_every_part_reaches_the_wire() {
    let rule = json!({"name": "per-client",
        "match": [{"methods": ["POST"], "hosts": ["*.example.com"], "paths": ["/api/**"], "headers": [{"name": "x", "value": "y"}]}],
        "key": [{"header": "x-api-key"}, {"clientIP": {"trustedHops": 1}}],
        "limits": [{"name": "a", "requests": 50, "per": "1s"},
            {"name": "g", "requests": 9, "per": "1m", "strategy": "GCRA", "burst": 2}],
        "overrides": [{"keys": [["gold", "10.0.0.1"]], "limits": [{"name": "g", "requests": 90, "per": "1m"}]}],
        "onLimit": {"status": 503, "headers": "None"}, "maxKeys": 10});
    let expected = json!({"name": "per-client", "action": "Limit", "match": rule["match"],
        "key": [{"header": "x-api-key"}, {"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}],
        "limits": [
            {"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50},
            {"name": "g", "strategy": "GCRA", "requests": 9, "periodMillis": 60000, "burst": 2}],
        "overrides": [{"keys": [["gold", "10.0.0.1"]],
            "limits": [{"name": "g", "strategy": "GCRA", "requests": 90, "periodMillis": 60000, "burst": 1}]}],
        "onLimit": {"status": 503, "headers": "None"}, "maxKeys": 10});
    assert_eq!(serde_json::to_value(&compiled(&rule).unwrap().rules[0]).unwrap(), expected);
}

#[test]
fn every_strategy_and_key_part_reaches_the_wire() {
    for (strategy, burst) in [
        ("FixedWindow", None),
        ("SlidingWindowCounter", None),
        ("SlidingWindowLog", None),
        ("TokenBucket", Some(7)),
        ("TokenBucketWithDebt", Some(7)),
        ("LeakyBucket", Some(7)),
        ("GCRA", Some(1)),
    ] {
        let rule = json!({"name": "all", "limits": [{"name": "a", "requests": 7, "per": "1s", "strategy": strategy}]});
        let policy = compiled(&rule).expect(strategy);
        let limit = &policy.rules[0].limits[0];
        assert_eq!((serde_json::to_value(limit.strategy).unwrap(), limit.burst), (json!(strategy), burst));
        assert_eq!(limit.debt, (strategy == "TokenBucketWithDebt").then_some(0), "{strategy}");
    }
    let parts = json!([{"cookie": "session"}, {"query": "user"}, {"pathSegment": 2}, {"host": {}}, {"method": {}},
        {"jwtClaim": {"claim": "sub"}}, {"jwtClaim": {"header": "x-token", "claim": "org.tier"}}, {"path": {}}]);
    let mut rule = simple();
    rule["key"] = parts.clone();
    let mut expected = parts;
    expected[5]["jwtClaim"]["header"] = json!("authorization");
    assert_eq!(serde_json::to_value(&compiled(&rule).unwrap().rules[0].key).unwrap(), expected);
}

#[test]
fn a_deadline_reaches_the_wire_and_has_a_revision_of_its_own() {
    let [none, half, written_otherwise] =
        ["{}", "{deadline: 500ms}", "{deadline: 0s500ms}"].map(|changes| compiled_with(changes).unwrap());
    assert_eq!((none.deadline_millis, half.deadline_millis), (None, Some(500)));
    assert_ne!(none.revision, half.revision);
    assert_eq!(half.revision, written_otherwise.revision);
}

#[test]
fn a_response_after_the_deadline_reaches_the_wire() {
    let none = compiled_with("{deadline: 1s}").unwrap();
    assert_eq!(none.on_deadline, None);
    for [form, expected] in rows(
        r#"
        {} | {status: 504}
        {status: 503, body: ""} | {status: 503, body: ""}
        {body: "{}", contentType: text/x} | {status: 504, body: "{}", contentType: text/x}
        "#,
    ) {
        let some = compiled_with(&format!("{{deadline: 1s, onDeadline: {form}}}")).unwrap();
        assert_eq!(serde_json::to_value(&some.on_deadline).unwrap(), yaml(expected), "{form}");
        assert_ne!(some.revision, none.revision, "{form}");
    }
    let faults = compiled_with("{onDeadline: {status: 200}}").unwrap_err();
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["spec.onDeadline", "spec.onDeadline.status"]);
}

#[test]
fn the_regular_expressions_of_a_policy_are_bounded() {
    let large = r"request.path.matches(r'\w{20}')";
    let bytes = weir_expressions::predicate(large).unwrap().bytes();
    let most = usize::try_from(weir_expressions::MAX_EXPRESSION_BYTES / bytes).unwrap();
    let compiled = |count: usize| {
        compiled(&json!({"name": "all", "action": "Bypass", "match": vec![json!({"predicate": large}); count]}))
    };
    assert_eq!(compiled(most).unwrap().size.expressions, most as u64 * bytes);
    let faults = compiled(most + 3).unwrap_err();
    let [fault] = faults.as_slice() else { panic!("not exactly one fault: {faults:?}") };
    assert_eq!(fault.path, format!("spec.rules[0].match[{most}].predicate"));
    assert!(fault.message.contains("take more than 16 MiB in each pod"), "{}", fault.message);
}

/// An expression that is refused, or that becomes a small table, can take as long as a large one. So the time for a
/// policy is bounded, too.
#[test]
fn the_work_for_the_regular_expressions_of_a_policy_is_bounded() {
    let faults = |matches: &Value| compiled(&json!({"name": "all", "action": "Bypass", "match": matches})).unwrap_err();
    let regexes = json!(vec![json!({"pathRegexes": vec!["a[ab]{20}c"; 8]}); 16]);
    assert_eq!(faults(&regexes).len(), 33);
    let unknown = format!("{}unknown", "request.path.matches('a')||".repeat(7));
    let predicates = json!(vec![json!({"predicate": unknown}); 16]);
    assert_eq!(faults(&predicates).len(), 5);
    let small = |index: usize| json!({"predicate": format!(r"request.path.matches(r'(?s).*|\w{{30}}{index}')")});
    let found = faults(&(0..100).map(small).collect());
    let [fault] = found.as_slice() else { panic!("not exactly one fault: {found:?}") };
    assert!(fault.message.contains("takes too long"), "{}", fault.message);
}

#[test]
fn parse_errors_are_reported_in_one_line() {
    for [path, entry, part] in rows(
        r#"
        pathRegexes[1] | {pathRegexes: ["^/ok", "^/(v1"]} | "^/(v1" is not a regular expression: unclosed group
        pathRegexes[0] | {pathRegexes: ["(?=a)"]} | look-around
        pathRegexes[0] | {pathRegexes: ['(\w{100}){100}']} | use smaller repetitions
        pathRegexes[0] | {pathRegexes: ["a[ab]{4000}[^ab]"]} | takes more than 128 KiB once compiled
        predicate | {predicate: "request.path.matches('a[ab]{2000}[^ab]')"} | takes too long or too much memory for a request of 4 KiB
        clientCIDRs[1] | {clientCIDRs: [10.0.0.0/8, 10.1.2.3/8]} | write 10.0.0.0/8 for the network
        clientCIDRs[0] | {clientCIDRs: ["::ffff:10.0.0.0/104"]} | write it as IPv4
        predicate | {predicate: "inIpRange(request.clientIP, request.host)"} | must have the network of inIpRange as a text
        predicate | {predicate: "inIpRange(request.clientIP, '10/8')"} | must be a network or an address
        predicate | {predicate: "request.method =="} | is not CEL:
        predicate | {predicate: "req.method == 'GET'"} | reads req, which does not exist
        predicate | {predicate: "request.query.exists(a, request.query.exists(b, a == b))"} | has a quantifier (all, exists, exists_one, map or filter) within another
        predicate | {predicate: "request.path.matches(request.host)"} | must have the expression of matches as a text
        "#,
    ) {
        let mut rule = simple();
        rule["match"] = json!([{}, yaml(entry)]);
        let faults = compiled(&rule).expect_err(entry);
        let [fault] = faults.as_slice() else { panic!("{entry}: {faults:?}") };
        assert_eq!(fault.path, format!("spec.rules[0].match[1].{path}"), "{entry}");
        assert!(fault.message.contains(part) && !fault.message.contains('\n'), "{entry}: {}", fault.message);
    }
}

#[test]
fn the_revision_names_rules_and_mode_and_nothing_else() {
    let base = spec(&json!([simple()]));
    let revision =
        |key: &ObjectKey, uid: &str, spec: &RateLimitPolicySpec| compile(key, uid, spec).unwrap().0.revision.clone();
    let first = revision(&key(), "uid", &base);
    assert_eq!(first.len(), 16);
    assert!(first.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(first, revision(&ObjectKey::new("other", "name"), "other", &base));

    let written_out =
        spec(&json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1000ms", "burst": 50}]}]));
    assert_eq!(first, revision(&key(), "uid", &written_out), "the same rules written differently");
    let other_pods = RateLimitPolicySpec {
        selector: Some(weir_api::PodSelector { match_labels: [("a".to_owned(), "b".to_owned())].into() }),
        ..base.clone()
    };
    assert_eq!(first, revision(&key(), "uid", &other_pods), "other pods");
    let shadow = RateLimitPolicySpec { mode: weir_api::Mode::Shadow, ..base.clone() };
    assert_ne!(first, revision(&key(), "uid", &shadow), "another mode");
    let mut more = base;
    more.rules[0].limits[0].requests = Some(51);
    assert_ne!(first, revision(&key(), "uid", &more), "another number");
}

/// An agent refuses the whole snapshot because of such a key, also for a concurrent limit.
#[test]
fn keys_of_overrides_that_agents_refuse_are_faults() {
    let address = json!({"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}});
    let segment = json!({"pathSegment": 1});
    let invalid = [
        (&segment, "a/b", "is not one segment of a path"),
        (&segment, "", "is not one segment of a path"),
        (&json!({"path": {}}), "orders", "is not a path"),
        (&json!({"path": {}}), "/a/../b", "is not a path"),
        (&json!({"host": {}}), "a.com:80", "is not a host"),
        (&json!({"host": {}}), "*.a.com", "is not a host"),
        (&json!({"host": {}}), "a b", "is not a host"),
        (&json!({"host": {}}), "", "is not a host"),
        (&json!({"method": {}}), "get", "is not a method in upper case"),
        (&json!({"method": {}}), "G T", "is not a method in upper case"),
        (&json!({"method": {}}), "", "is not a method in upper case"),
        (&address, "gold", "is not an IP address"),
    ];
    let equal = [
        (&segment, "a", "%61"),
        (&json!({"path": {}}), "/a/b", "//%61/b/"),
        (&segment, "\u{e9}", "%c3%A9"),
        (&json!({"host": {}}), "a.com", "A.com."),
        (&address, "2001:db8::1", "2001:db8:0:0:ffff::"),
        (&address, "192.0.2.7", "::ffff:192.0.2.7"),
        (&json!({"header": "x"}), "a", "a"),
    ];
    let different = [(&segment, "a%2fb", "a%252fb"), (&json!({"header": "x"}), "a", "%61")];
    for (limit, other) in [
        (json!({"name": "a", "requests": 5, "per": "1s"}), json!({"name": "a", "requests": 9, "per": "1s"})),
        (json!({"name": "a", "concurrent": 5}), json!({"name": "a", "concurrent": 9})),
    ] {
        let faults = |part: &Value, values: &[&str]| -> Vec<String> {
            let overrides: Vec<Value> =
                values.iter().map(|value| json!({"keys": [[value]], "limits": [other]})).collect();
            let rule = json!({"name": "r", "key": [part], "limits": [limit], "overrides": overrides});
            compiled(&rule).err().into_iter().flatten().map(|fault| fault.to_string()).collect()
        };
        for (part, value, why) in invalid {
            let expected = format!("spec.rules[0].overrides[0].keys[0][0]: {value:?} {why}");
            let [fault] = &faults(part, &[value])[..] else { panic!("{part} {value:?}") };
            assert!(fault.starts_with(&expected), "{fault}");
        }
        for (part, one, same) in equal {
            let expected = "spec.rules[0].overrides[1].keys[0]: this key already has an override at overrides[0].keys[0]: \
                            remove one of them";
            assert_eq!(faults(part, &[one, same]), [expected], "{part} {one} {same}");
        }
        for (part, one, other) in different {
            assert_eq!(faults(part, &[one, other]), [""; 0], "{part} {one} {other}");
        }
    }
}

#[test]
fn an_invalid_generation_keeps_the_last_good_one() {
    let spec = |rules: Value| json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
    let good = |generation| Policy::of_spec("uid", generation, spec(json!([simple()])));
    let bad = |generation, uid| Policy::of_spec(uid, generation, spec(json!([{"name": "all"}])));
    let mut compiler = Compiler::default();
    let world = |policy| World::of_policies([(key(), policy)].into());
    let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
    compiler.update(&world(good(1)), &mut dirty, |_| None);
    let revision = compiler.compiled()[&key()].policy.as_ref().unwrap().revision.clone();

    compiler.update(&world(bad(2, "uid")), &mut dirty, |_| None);
    let compiled = &compiler.compiled()[&key()];
    assert_eq!((compiled.generation, compiled.faults.len()), (2, 1));
    assert_eq!(compiled.policy.as_ref().unwrap().revision, revision);
    assert!(compiled.target.is_some());

    // A new object of the same name does not inherit the last good generation.
    compiler.update(&world(bad(3, "other")), &mut dirty, |_| None);
    assert!(compiler.compiled()[&key()].policy.is_none());
    compiler.update(&World::default(), &mut dirty, |_| None);
    assert!(compiler.compiled().is_empty());
}

#[test]
fn a_generation_is_compiled_once() {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [simple()]});
    let world = World::of_policies([(key(), Policy::of_spec("uid", 1, spec))].into());
    let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
    let mut compiler = Compiler::default();
    compiler.update(&world, &mut dirty, |_| None);
    let first = compiler.compiled()[&key()].policy.clone().unwrap();
    compiler.update(&world, &mut dirty, |_| None);
    assert!(Arc::ptr_eq(&first, compiler.compiled()[&key()].policy.as_ref().unwrap()));
}
