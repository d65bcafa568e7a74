//! Policies of the rate limit service: a domain, and rules that read descriptors.

use super::*;

#[test]
fn a_domain_and_its_rules_read_descriptors() {
    let compiled = |more: Value, rules: Value| {
        let mut spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": rules});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        compile(&key(), "uid", &serde_json::from_value(spec).unwrap()).map(|(compiled, _)| compiled.wire)
    };
    let limits = json!([{"name": "a", "requests": 5, "per": "1s"}]);
    let rule = json!([{"name": "r", "limits": limits, "key": [{"descriptor": "user"}],
        "match": [{"descriptor": [{"key": "path", "prefix": "/a", "exceptValues": ["/ab"]},
            {"key": "user", "exceptPrefixes": ["x"]}]}]}]);
    let wire = serde_json::to_value(compiled(json!({"domain": "shop"}), rule.clone()).unwrap()).unwrap();
    assert_eq!(wire["domain"], "shop");
    assert_eq!(
        wire["rules"][0]["match"],
        json!([{"descriptor": [{"name": "path", "prefix": "/a", "exceptValues": ["/ab"]},
            {"name": "user", "exceptPrefixes": ["x"]}]}])
    );
    assert_eq!(wire["rules"][0]["key"], json!([{"descriptor": "user"}]));

    let faults = |more: Value, rules: Value| {
        let faults = compiled(more, rules).expect_err("faults");
        faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
    };
    assert_eq!(faults(json!({}), rule), ["spec.rules[0].match[0].descriptor", "spec.rules[0].key[0].descriptor"]);
    let two =
        |names: &[&str]| json!([{"name": "r", "limits": limits, "replaces": names}, {"name": "s", "limits": limits}]);
    let wire = serde_json::to_value(compiled(json!({"domain": "shop"}), two(&["s"])).unwrap()).unwrap();
    assert_eq!(wire["rules"][0]["replaces"], json!(["s"]));
    assert_eq!(faults(json!({}), two(&["s"])), ["spec.rules[0].replaces"]);
    let wrong = faults(json!({"domain": "shop"}), two(&["s", "r", "t"]));
    assert_eq!(wrong, ["spec.rules[0].replaces[1]", "spec.rules[0].replaces[2]"]);
    let accepting = |more: Value| {
        let mut rule = json!({"name": "r", "limits": limits, "limitOverride": {"maxRequests": 100, "per": "1m"}});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!([rule])
    };
    let wire = serde_json::to_value(compiled(json!({"domain": "shop"}), accepting(json!({}))).unwrap()).unwrap();
    assert_eq!(wire["rules"][0]["limitOverride"], json!({"maxRequests": 100, "periodMillis": 60_000}));
    assert_eq!(faults(json!({}), accepting(json!({}))), ["spec.rules[0].limitOverride"]);
    assert!(compiled(json!({"domain": "shop"}), accepting(json!({"scope": "Fleet"}))).is_ok());
    for unfit in [
        json!({"key": [{"descriptor": "user"}], "ban": {"after": 3, "for": "1m"}}),
        json!({"limits": [{"name": "a", "requests": 5, "per": "1m"}, {"name": "b", "requests": 5, "per": "1h"}]}),
        json!({"limits": [{"name": "a", "requests": 5, "per": "1m", "strategy": "SlidingWindowLog"}]}),
    ] {
        assert_eq!(
            faults(json!({"domain": "shop"}), accepting(unfit.clone())),
            ["spec.rules[0].limitOverride"],
            "{unfit}"
        );
    }
    // An agent refuses a snapshot with more than one request in each nanosecond.
    for (requests, per, is_valid) in
        [(1_000_001, "999ms", false), (1_000_000, "1ms", true), (1_000_000_000, "1s", true)]
    {
        let rules = accepting(json!({"limitOverride": {"maxRequests": requests, "per": per}}));
        let expected = if is_valid { vec![] } else { vec!["spec.rules[0].limitOverride.maxRequests".to_owned()] };
        let found = compiled(json!({"domain": "shop"}), rules).err().unwrap_or_default();
        assert_eq!(found.into_iter().map(|fault| fault.path).collect::<Vec<_>>(), expected, "{requests} {per}");
    }
    // Agents append a descriptor's limit to the name of the counters.
    let counters = |name: usize| {
        let rules = accepting(json!({"name": "r".repeat(name), "scope": "Fleet"}));
        let found = compiled(json!({"domain": "shop"}), rules).err().unwrap_or_default();
        found.into_iter().map(|fault| fault.to_string()).collect::<Vec<_>>()
    };
    let longest = weir_seats::LONGEST_NAME - "@4294967295-2305843009213".len() - key().to_string().len() - ".".len();
    assert_eq!(counters(longest), [""; 0]);
    let [fault] = &counters(longest + 1)[..] else { panic!("{:?}", counters(longest + 1)) };
    assert!(fault.starts_with("spec.rules[0].name: ") && fault.contains("shorten the name"), "{fault}");
    assert!(fault.ends_with("with limitOverride can have 155 at most"), "{fault}");
    let of_requests = json!([{
        "name": "r",
        "match": [{"methods": ["GET"], "hosts": ["a"], "paths": ["/a"], "pathRegexes": ["a"], "headers": [{"name": "a"}],
            "query": [{"name": "a"}], "clientCIDRs": ["10.0.0.0/8"], "predicate": "true"}],
        "key": [{"descriptor": "user"}, {"clientIP": {}}],
        "cost": {"requests": 2},
        "limits": limits,
        "onLimit": {"action": "Wait", "maxWait": "1s", "status": 503},
    }]);
    let at = |field: &str| format!("spec.rules[0].{field}");
    let mut expected = vec!["spec.deadline".to_owned()];
    let conditions = ["methods", "hosts", "paths", "pathRegexes", "headers", "query", "clientCIDRs", "predicate"];
    expected.extend(conditions.iter().map(|field| at(&format!("match[0].{field}"))));
    expected.extend(["key[1]", "cost", "onLimit.action", "onLimit.status"].map(at));
    let found = faults(json!({"domain": "shop", "deadline": "1s"}), of_requests);
    assert_eq!(found.into_iter().filter(|path| expected.contains(path)).collect::<Vec<_>>(), expected);
    let concurrent = json!([{"name": "r", "limits": [{"name": "a", "concurrent": 1}]}]);
    assert_eq!(faults(json!({"domain": "shop"}), concurrent), ["spec.rules[0].limits"]);
}

/// The revision of a policy must change with each change of its content, and not with a new version of the operator.
#[test]
fn the_domain_is_part_of_the_revision() {
    let revision = |domain: Option<&str>| {
        let rules = json!([{"name": "r", "limits": [{"name": "a", "requests": 5, "per": "1s"}]}]);
        let spec = RateLimitPolicySpec { domain: domain.map(str::to_owned), ..spec(&rules) };
        compile(&key(), "uid", &spec).unwrap().0.revision.clone()
    };
    assert_ne!(revision(Some("a")), revision(Some("b")));
    assert_ne!(revision(Some("a")), revision(None));
}
