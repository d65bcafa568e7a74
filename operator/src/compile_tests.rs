use serde_json::{Value, json};
use weir_api::RateLimitPolicySpec;

use super::*;

fn spec(rules: &Value) -> RateLimitPolicySpec {
    serde_json::from_value(json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules})).unwrap()
}

fn key() -> ObjectKey {
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
            "bypass: matches and nothing else",
            json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}),
            json!({"name": "probes", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}),
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
        let (rules, _) = compile(&key(), "uid", &spec(&json!([rule]))).expect(what);
        assert_eq!(serde_json::to_value(&rules.rules[0]).unwrap(), expected, "{what}");
        assert_eq!((rules.uid.as_str(), rules.namespace.as_str(), rules.name.as_str()), ("uid", "shop", "checkout"));
    }
}

#[test]
fn the_revision_names_rules_and_mode_and_nothing_else() {
    let base = spec(&json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]));
    let revision = |key: &ObjectKey, uid: &str, spec: &RateLimitPolicySpec| compile(key, uid, spec).unwrap().0.revision;
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
    more.rules[0].limits[0].requests = 51;
    assert_ne!(first, revision(&key(), "uid", &more), "another number");
}

#[test]
fn what_the_schema_would_refuse_is_a_fault_with_its_path() {
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    for (rule, path) in [
        (json!({"name": "all"}), "spec.rules[0].limits"),
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
    ] {
        let faults = compile(&key(), "uid", &spec(&json!([rule]))).expect_err(path);
        assert_eq!(faults.iter().map(|fault| fault.path.as_str()).collect::<Vec<_>>(), [path]);
    }
}

#[test]
fn an_invalid_generation_keeps_the_last_good_one() {
    let policy = |generation: i64, uid: &str, rules: &Value| Policy {
        uid: uid.to_owned(),
        generation,
        created: None,
        spec: Ok(Arc::new(spec(rules))),
        file: None,
    };
    let good = json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]);
    let bad = json!([{"name": "all"}]);
    let mut compiler = Compiler::default();
    compiler.update(&[(key(), policy(1, "uid", &good))].into());
    let revision = compiler.compiled()[&key()].rules.as_ref().unwrap().revision.clone();

    compiler.update(&[(key(), policy(2, "uid", &bad))].into());
    let compiled = &compiler.compiled()[&key()];
    assert_eq!((compiled.generation, compiled.faults.len()), (2, 1));
    assert_eq!(compiled.rules.as_ref().unwrap().revision, revision);
    assert!(compiled.target.is_some());

    // Another object of the same name inherits nothing.
    compiler.update(&[(key(), policy(3, "other", &bad))].into());
    assert!(compiler.compiled()[&key()].rules.is_none());
    compiler.update(&BTreeMap::new());
    assert!(compiler.compiled().is_empty());
}

#[test]
fn a_generation_is_compiled_once() {
    let rules = json!([{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]);
    let policies = [(
        key(),
        Policy { uid: "uid".to_owned(), generation: 1, created: None, spec: Ok(Arc::new(spec(&rules))), file: None },
    )]
    .into();
    let mut compiler = Compiler::default();
    compiler.update(&policies);
    let first = compiler.compiled()[&key()].rules.clone().unwrap();
    compiler.update(&policies);
    assert!(Arc::ptr_eq(&first, compiler.compiled()[&key()].rules.as_ref().unwrap()));
}
