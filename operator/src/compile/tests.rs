mod domain;
mod faults;

use serde_json::{Value, json};
use weir_api::RateLimitPolicySpec;

use super::*;

fn spec(rules: &Value) -> RateLimitPolicySpec {
    serde_json::from_value(json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})).unwrap()
}

pub(super) fn key() -> ObjectKey {
    ObjectKey::new("shop", "checkout")
}

#[test]
fn rules_become_wire_json_with_every_default_decided() {
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    for (what, rule, expected) in [
        (
            "token bucket: the burst is the number of requests",
            json!({"name": "all", "limits": [limit]}),
            json!({"name": "all", "action": "Limit",
                "limits": [{"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50}],
                "onLimit": {"status": 429, "headers": "IETF"}}),
        ),
        (
            "GCRA: the burst is 1; sub-second periods stay",
            json!({"name": "all", "limits": [{"name": "a", "requests": 5, "per": "250ms", "strategy": "GCRA"}]}),
            json!({"name": "all", "action": "Limit",
                "limits": [{"name": "a", "strategy": "GCRA", "requests": 5, "periodMillis": 250, "burst": 1}],
                "onLimit": {"status": 429, "headers": "IETF"}}),
        ),
        (
            "fixed window: no burst",
            json!({"name": "all", "limits": [{"name": "a", "requests": 5, "per": "1h30m", "strategy": "FixedWindow"}]}),
            json!({"name": "all", "action": "Limit",
                "limits": [{"name": "a", "strategy": "FixedWindow", "requests": 5, "periodMillis": 5_400_000}],
                "onLimit": {"status": 429, "headers": "IETF"}}),
        ),
        (
            "bypass: only matches",
            json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}),
            json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}),
        ),
        (
            "deny: 403 and no quota fields; a mode of its own",
            json!({"name": "blocked", "action": "Deny", "mode": "Shadow",
                "match": [{"clientCIDRs": ["203.0.113.0/24"], "trustedHops": 1}]}),
            json!({"name": "blocked", "action": "Deny", "mode": "Shadow",
                "match": [{"clientCIDRs": ["203.0.113.0/24"], "trustedHops": 1}],
                "onLimit": {"status": 403, "headers": "None"}}),
        ),
        (
            "headers of responses",
            json!({"name": "all", "limits": [limit], "responseHeaders": [{"name": "x-left", "value": "{remaining}"}],
                "onLimit": {"headersOn": "Refusals", "set": [{"name": "x-why", "value": "{rule}"}]}}),
            json!({"name": "all", "action": "Limit",
                "limits": [{"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50}],
                "responseHeaders": [{"name": "x-left", "value": "{remaining}"}],
                "onLimit": {"status": 429, "headers": "IETF", "headersOn": "Refusals",
                    "set": [{"name": "x-why", "value": "{rule}"}]}}),
        ),
        (
            "keys, overrides and an answer of its own",
            json!({"name": "per-client",
                "match": [{"methods": ["POST"], "hosts": ["*.example.com"], "paths": ["/api/**"], "headers": [{"name": "x", "value": "y"}]}],
                "key": [{"header": "x-api-key"}, {"clientIP": {"trustedHops": 1}}],
                "limits": [limit, {"name": "g", "requests": 9, "per": "1m", "strategy": "GCRA", "burst": 2}],
                "overrides": [{"keys": [["gold", "10.0.0.1"]], "limits": [{"name": "g", "requests": 90, "per": "1m"}]}],
                "onLimit": {"status": 503, "headers": "None"}, "maxKeys": 10}),
            json!({"name": "per-client", "action": "Limit",
                "match": [{"methods": ["POST"], "hosts": ["*.example.com"], "paths": ["/api/**"], "headers": [{"name": "x", "value": "y"}]}],
                "key": [{"header": "x-api-key"}, {"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}],
                "limits": [
                    {"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50},
                    {"name": "g", "strategy": "GCRA", "requests": 9, "periodMillis": 60000, "burst": 2}],
                "overrides": [{"keys": [["gold", "10.0.0.1"]],
                    "limits": [{"name": "g", "strategy": "GCRA", "requests": 90, "periodMillis": 60000, "burst": 1}]}],
                "onLimit": {"status": 503, "headers": "None"}, "maxKeys": 10}),
        ),
    ] {
        let (policy, _) = compile(&key(), "uid", &spec(&json!([rule]))).expect(what);
        assert_eq!(serde_json::to_value(&policy.rules[0]).unwrap(), expected, "{what}");
        assert_eq!((policy.uid.as_str(), policy.namespace.as_str(), policy.name.as_str()), ("uid", "shop", "checkout"));
    }
}

#[test]
fn every_word_of_a_rule_reaches_the_wire() {
    let limits = json!([{"name": "a", "requests": 50, "per": "1s", "strategy": "TokenBucketWithDebt"}]);
    let on_wire = json!([{"name": "a", "strategy": "TokenBucketWithDebt", "requests": 50, "periodMillis": 1000,
        "burst": 50, "debt": 0}]);
    let answer = json!({"status": 429, "headers": "IETF"});
    for (what, field, written, expected) in [
        ("requests", "cost", json!({"requests": 3}), json!({"fixed": 3})),
        (
            "header",
            "cost",
            json!({"header": {"name": "x", "most": 9}}),
            json!({"requestHeader": {"name": "x", "most": 9}}),
        ),
        (
            "response header",
            "cost",
            json!({"responseHeader": {"name": "x", "most": 9}}),
            json!({"responseHeader": {"name": "x", "most": 9}}),
        ),
        ("response bytes", "cost", json!({"responseBytes": {}}), json!("responseBytes")),
        (
            "waiting",
            "onLimit",
            json!({"action": "Wait", "maxWait": "75ms"}),
            merged(&answer, &json!({"maxWaitMillis": 75})),
        ),
        (
            "a text of its own",
            "onLimit",
            json!({"body": "slow down", "status": 503}),
            json!({"status": 503, "headers": "IETF", "body": "slow down", "contentType": "text/plain; charset=utf-8"}),
        ),
        (
            "a text of another type",
            "onLimit",
            json!({"body": "{}", "contentType": "application/json"}),
            merged(&answer, &json!({"body": "{}", "contentType": "application/json"})),
        ),
        (
            "every condition",
            "match",
            json!([{"pathRegexes": ["^/v[0-9]+/"], "predicate": "request.method == 'GET'",
                "headers": [{"name": "a", "prefix": "b"}, {"name": "c"}],
                "query": [{"name": "d", "value": ""}, {"name": "e", "prefix": "f"}, {"name": "g"}]}]),
            json!([{"pathRegexes": ["^/v[0-9]+/"], "predicate": "request.method == 'GET'",
                "headers": [{"name": "a", "prefix": "b"}, {"name": "c"}],
                "query": [{"name": "d", "value": ""}, {"name": "e", "prefix": "f"}, {"name": "g"}]}]),
        ),
    ] {
        let rule = json!({"name": "all", "limits": limits, field: written});
        let (policy, _) = compile(&key(), "uid", &spec(&json!([rule]))).expect(what);
        let mut whole = json!({"name": "all", "action": "Limit", "limits": on_wire, "onLimit": answer});
        whole[field] = expected;
        assert_eq!(serde_json::to_value(&policy.rules[0]).unwrap(), whole, "{what}");
    }
}

fn merged(base: &Value, more: &Value) -> Value {
    let mut merged = base.clone();
    merged.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    merged
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
        let (policy, _) = compile(&key(), "uid", &spec(&json!([rule]))).expect(strategy);
        let limit = &policy.rules[0].limits[0];
        assert_eq!((serde_json::to_value(limit.strategy).unwrap(), limit.burst), (json!(strategy), burst));
        assert_eq!(limit.debt, (strategy == "TokenBucketWithDebt").then_some(0), "{strategy}");
    }
    let parts = json!([{"cookie": "session"}, {"query": "user"}, {"pathSegment": 2}, {"host": {}}, {"method": {}},
        {"jwtClaim": {"claim": "sub"}}, {"jwtClaim": {"header": "x-token", "claim": "org.tier"}}, {"path": {}}]);
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    let (policy, _) =
        compile(&key(), "uid", &spec(&json!([{"name": "all", "limits": [limit], "key": parts}]))).unwrap();
    let mut expected = parts;
    expected[5]["jwtClaim"]["header"] = json!("authorization");
    assert_eq!(serde_json::to_value(&policy.rules[0].key).unwrap(), expected);
}

#[test]
fn messages_are_refused_by_a_notice_unless_said_otherwise() {
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    for (on_limit, expected) in [(json!({}), "Notice"), (json!({"onMessage": "Close"}), "Close")] {
        let rule = json!({"name": "chat", "per": "Message", "limits": [limit], "onLimit": on_limit});
        let (policy, _) = compile(&key(), "uid", &spec(&json!([rule]))).unwrap();
        assert_eq!(
            serde_json::to_value(&policy.rules[0]).unwrap(),
            json!({"name": "chat", "action": "Limit", "per": "Message",
                "limits": [{"name": "a", "strategy": "TokenBucket", "requests": 50, "periodMillis": 1000, "burst": 50}],
                "onLimit": {"status": 429, "headers": "IETF", "onMessage": expected}})
        );
    }
}

#[test]
fn a_deadline_reaches_the_wire_and_has_a_revision_of_its_own() {
    let with_deadline = |deadline: Value| {
        let mut document = json!({"selector": {"matchLabels": {"app": "web"}},
            "rules": [{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
        if !deadline.is_null() {
            document["deadline"] = deadline;
        }
        compile(&key(), "uid", &serde_json::from_value(document).unwrap()).unwrap().0
    };
    let [none, half, written_otherwise] = [Value::Null, json!("500ms"), json!("0s500ms")].map(with_deadline);
    assert_eq!((none.deadline_millis, half.deadline_millis), (None, Some(500)));
    assert_ne!(none.revision, half.revision);
    assert_eq!(half.revision, written_otherwise.revision);
}

#[test]
fn a_response_after_the_deadline_reaches_the_wire() {
    let with_form = |deadline: Value, form: Value| {
        let mut document = json!({"selector": {"matchLabels": {"app": "web"}}, "deadline": deadline,
            "rules": [{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
        if !form.is_null() {
            document["onDeadline"] = form;
        }
        compile(&key(), "uid", &serde_json::from_value(document).unwrap()).map(|(rules, _)| rules)
    };
    let none = with_form(json!("1s"), Value::Null).unwrap();
    assert_eq!(none.on_deadline, None);
    for (form, expected) in [
        (json!({}), json!({"status": 504})),
        (json!({"status": 503, "body": ""}), json!({"status": 503, "body": ""})),
        (json!({"body": "{}", "contentType": "text/x"}), json!({"status": 504, "body": "{}", "contentType": "text/x"})),
    ] {
        let some = with_form(json!("1s"), form).unwrap();
        assert_eq!(serde_json::to_value(&some.on_deadline).unwrap(), expected);
        assert_ne!(some.revision, none.revision);
    }
    let faults = with_form(Value::Null, json!({"status": 200})).unwrap_err();
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["spec.onDeadline", "spec.onDeadline.status"]);
}

#[test]
fn the_regular_expressions_of_a_policy_are_bounded() {
    let large = r"request.path.matches(r'\w{20}')";
    let bytes = weir_expressions::predicate(large).unwrap().bytes();
    let most = usize::try_from(weir_expressions::MAX_EXPRESSION_BYTES / bytes).unwrap();
    let compiled = |count: usize| {
        let bypass = json!({"name": "all", "action": "Bypass", "match": vec![json!({"predicate": large}); count]});
        compile(&key(), "uid", &spec(&json!([bypass])))
    };
    assert_eq!(compiled(most).unwrap().0.size.expressions, most as u64 * bytes);
    let faults = compiled(most + 3).unwrap_err();
    let [fault] = faults.as_slice() else { panic!("not exactly one fault: {faults:?}") };
    assert_eq!(fault.path, format!("spec.rules[0].match[{most}].predicate"));
    assert!(fault.message.contains("take more than 16 MiB in each pod"), "{}", fault.message);
}

/// An expression that is refused, or that becomes a small table, can take as long as a large one. So the time for a
/// policy is bounded, too.
#[test]
fn the_work_for_the_regular_expressions_of_a_policy_is_bounded() {
    let faults = |matches: &Value| {
        let rule = json!({"name": "all", "action": "Bypass", "match": matches});
        compile(&key(), "uid", &spec(&json!([rule]))).unwrap_err()
    };
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
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    for (entry, path, part) in [
        (
            json!({"pathRegexes": ["^/ok", "^/(v1"]}),
            "pathRegexes[1]",
            "\"^/(v1\" is not a regular expression: unclosed group",
        ),
        (json!({"pathRegexes": ["(?=a)"]}), "pathRegexes[0]", "look-around"),
        (json!({"pathRegexes": ["(\\w{100}){100}"]}), "pathRegexes[0]", "use smaller repetitions"),
        (json!({"pathRegexes": ["a[ab]{4000}[^ab]"]}), "pathRegexes[0]", "takes more than 128 KiB once compiled"),
        (
            json!({"predicate": "request.path.matches('a[ab]{2000}[^ab]')"}),
            "predicate",
            "takes too long or too much memory for a request of 4 KiB",
        ),
        (json!({"clientCIDRs": ["10.0.0.0/8", "10.1.2.3/8"]}), "clientCIDRs[1]", "write 10.0.0.0/8 for the network"),
        (json!({"clientCIDRs": ["::ffff:10.0.0.0/104"]}), "clientCIDRs[0]", "write it as IPv4"),
        (
            json!({"predicate": "inIpRange(request.clientIP, request.host)"}),
            "predicate",
            "must have the network of inIpRange as a text",
        ),
        (json!({"predicate": "inIpRange(request.clientIP, '10/8')"}), "predicate", "must be a network or an address"),
        (json!({"predicate": "request.method =="}), "predicate", "is not CEL: "),
        (json!({"predicate": "req.method == 'GET'"}), "predicate", "reads req, which does not exist"),
        (
            json!({"predicate": "request.query.exists(a, request.query.exists(b, a == b))"}),
            "predicate",
            "has a quantifier (all, exists, exists_one, map or filter) within another",
        ),
        (
            json!({"predicate": "request.path.matches(request.host)"}),
            "predicate",
            "must have the expression of matches as a text",
        ),
    ] {
        let rule = json!({"name": "all", "limits": [limit], "match": [{}, entry]});
        let faults = compile(&key(), "uid", &spec(&json!([rule]))).expect_err(path);
        let [fault] = faults.as_slice() else { panic!("{faults:?}") };
        assert_eq!(fault.path, format!("spec.rules[0].match[1].{path}"));
        assert!(fault.message.contains(part) && !fault.message.contains('\n'), "{}", fault.message);
    }
}

#[test]
fn the_revision_names_rules_and_mode_and_nothing_else() {
    let base = spec(&json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]));
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

#[test]
fn a_concurrent_limit_is_compiled_without_rates() {
    let limits = json!([{"name": "parallel", "concurrent": 10}]);
    let overrides = json!([{"keys": [["gold"], ["silver"]], "limits": [{"name": "parallel", "concurrent": 50}]}]);
    let rule = json!({"name": "r", "key": [{"header": "x"}], "limits": limits, "overrides": overrides});
    let (policy, _) = compile(&key(), "uid", &spec(&json!([rule]))).expect("valid");
    let compiled = serde_json::to_value(&policy.rules[0]).expect("JSON");
    let concurrency =
        json!({"name": "parallel", "limit": 10, "overrides": [{"keys": [["gold"], ["silver"]], "limit": 50}]});
    let on_limit = json!({"status": 429, "headers": "IETF"});
    let expected = json!({
        "name": "r", "action": "Limit", "key": [{"header": "x"}], "concurrency": concurrency, "onLimit": on_limit,
    });
    assert_eq!(compiled, expected);
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
            let compiled = compile(&key(), "uid", &spec(&json!([rule])));
            compiled.err().into_iter().flatten().map(|fault| fault.to_string()).collect()
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
fn a_ban_is_compiled_with_its_window() {
    let limits = json!([{"name": "a", "requests": 50, "per": "1s"}]);
    let rule = |ban: Value| json!({"name": "r", "key": [{"header": "x"}], "limits": limits, "ban": ban});
    for (ban, within) in
        [(json!({"after": 20, "within": "1m", "for": "15m"}), 60_000), (json!({"after": 20, "for": "15m"}), 900_000)]
    {
        let (rules, _) = compile(&key(), "uid", &spec(&json!([rule(ban)]))).expect("valid");
        let compiled = serde_json::to_value(&rules.rules[0]).expect("JSON");
        assert_eq!(compiled["ban"], json!({"after": 20, "withinMillis": within, "forMillis": 900_000}));
    }
}

#[test]
fn an_invalid_generation_keeps_the_last_good_one() {
    let policy = |generation: i64, uid: &str, rules: &Value| Policy {
        uid: uid.to_owned(),
        generation,
        created: None,
        changed: None,
        spec: Ok(Arc::new(spec(rules))),
        file: None,
    };
    let good = json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]);
    let bad = json!([{"name": "all"}]);
    let mut compiler = Compiler::default();
    let world = |policy| World::of_policies([(key(), policy)].into());
    let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
    compiler.update(&world(policy(1, "uid", &good)), &mut dirty, |_| None);
    let revision = compiler.compiled()[&key()].policy.as_ref().unwrap().revision.clone();

    compiler.update(&world(policy(2, "uid", &bad)), &mut dirty, |_| None);
    let compiled = &compiler.compiled()[&key()];
    assert_eq!((compiled.generation, compiled.faults.len()), (2, 1));
    assert_eq!(compiled.policy.as_ref().unwrap().revision, revision);
    assert!(compiled.target.is_some());

    // A new object of the same name does not inherit the last good generation.
    compiler.update(&world(policy(3, "other", &bad)), &mut dirty, |_| None);
    assert!(compiler.compiled()[&key()].policy.is_none());
    compiler.update(&World::default(), &mut dirty, |_| None);
    assert!(compiler.compiled().is_empty());
}

#[test]
fn a_generation_is_compiled_once() {
    let rules = json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]);
    let policies = [(
        key(),
        Policy {
            uid: "uid".to_owned(),
            generation: 1,
            created: None,
            changed: None,
            spec: Ok(Arc::new(spec(&rules))),
            file: None,
        },
    )]
    .into();
    let world = World::of_policies(policies);
    let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
    let mut compiler = Compiler::default();
    compiler.update(&world, &mut dirty, |_| None);
    let first = compiler.compiled()[&key()].policy.clone().unwrap();
    compiler.update(&world, &mut dirty, |_| None);
    assert!(Arc::ptr_eq(&first, compiler.compiled()[&key()].policy.as_ref().unwrap()));
}
