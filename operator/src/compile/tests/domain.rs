//! Policies of the rate limit service: a domain, and rules that read descriptors.

use super::*;

/// Compiles a policy with these rules in YAML, which has a domain or not. Returns the paths of its faults.
fn compiled_rules(has_domain: bool, rules: &str) -> Result<Value, Vec<String>> {
    let domain = if has_domain { "domain: shop, " } else { "" };
    let compiled = compiled_with(&format!("{{{domain}rules: {rules}}}"));
    let paths = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.path).collect();
    compiled.map(|policy| serde_json::to_value(&policy.wire).unwrap()).map_err(paths)
}

#[test]
fn a_domain_and_its_rules_read_descriptors() {
    // The columns: the rules, the pointer to a part of the rules on the wire, this part, and the faults without a domain.
    for [rules, pointer, expected, faults] in rows(
        "
        [{name: r, limits: LIMITS, match: [{descriptor: [{key: path, prefix: /a, exceptValues: [/ab]}, {key: user, exceptPrefixes: [x]}]}]}] | /0/match | [{descriptor: [{name: path, prefix: /a, exceptValues: [/ab]}, {name: user, exceptPrefixes: [x]}]}] | match[0].descriptor
        [{name: r, limits: LIMITS, key: [{descriptor: user}]}] | /0/key | [{descriptor: user}] | key[0].descriptor
        [{name: r, limits: LIMITS, replaces: [s]}, {name: s, limits: LIMITS}] | /0/replaces | [s] | replaces
        [{name: r, limits: LIMITS, limitOverride: {maxRequests: 100, per: 1m}}] | /0/limitOverride | {maxRequests: 100, periodMillis: 60000} | limitOverride
        ",
    ) {
        let rules = rules.replace("LIMITS", "[{name: a, requests: 5, per: 1s}]");
        let wire = compiled_rules(true, &rules).expect(&rules);
        assert_eq!((&wire["domain"], wire["rules"].pointer(pointer)), (&json!("shop"), Some(&yaml(expected))), "{rules}");
        assert_eq!(compiled_rules(false, &rules).unwrap_err(), [format!("spec.rules[0].{faults}")], "{rules}");
    }
    let names = "[{name: r, limits: [{name: a, requests: 5, per: 1s}], replaces: [s, r, t]}, {name: s, action: Deny}]";
    let wrong = ["spec.rules[0].replaces[1]", "spec.rules[0].replaces[2]"];
    assert_eq!(compiled_rules(true, names).unwrap_err(), wrong);
    let concurrent = compiled_rules(true, "[{name: r, limits: [{name: a, concurrent: 1}]}]");
    assert_eq!(concurrent.unwrap_err(), ["spec.rules[0].limits"]);
}

#[test]
fn a_rule_that_accepts_limits_of_descriptors_has_bounds() {
    let rule = json!({"name": "r", "limits": [{"name": "a", "requests": 5, "per": "1s"}],
        "limitOverride": {"maxRequests": 100, "per": "1m"}});
    let faults = |changes: &str| {
        let found = compiled_rules(true, &json!([changed(&rule, changes)]).to_string()).err();
        found.unwrap_or_default().join(" ")
    };
    for [fault, changes] in rows(
        "
        - | {scope: Fleet}
        limitOverride | {key: [{descriptor: user}], ban: {after: 3, for: 1m}}
        limitOverride | {limits: [{name: a, requests: 5, per: 1m}, {name: b, requests: 5, per: 1h}]}
        limitOverride | {limits: [{name: a, requests: 5, per: 1m, strategy: SlidingWindowLog}]}
        # An agent refuses a snapshot with more than one request in each nanosecond.
        limitOverride.maxRequests | {limitOverride: {maxRequests: 1000001, per: 999ms}}
        - | {limitOverride: {maxRequests: 1000000, per: 1ms}}
        - | {limitOverride: {maxRequests: 1000000000, per: 1s}}
        ",
    ) {
        let expected = if fault == "-" { String::new() } else { format!("spec.rules[0].{fault}") };
        assert_eq!(faults(changes), expected, "{changes}");
    }
    // Agents append a descriptor's limit to the name of the counters.
    let counters = |name: usize| {
        let rule = changed(&rule, &format!("{{scope: Fleet, name: {}}}", "r".repeat(name)));
        let compiled = compiled_with(&json!({"domain": "shop", "rules": [rule]}).to_string());
        compiled.err().unwrap_or_default().into_iter().map(|fault| fault.to_string()).collect::<Vec<_>>()
    };
    let longest = weir_seats::LONGEST_NAME - "@4294967295-2305843009213".len() - key().to_string().len() - ".".len();
    assert_eq!(counters(longest), [""; 0]);
    let [fault] = &counters(longest + 1)[..] else { panic!("{:?}", counters(longest + 1)) };
    assert!(fault.starts_with("spec.rules[0].name: ") && fault.contains("shorten the name"), "{fault}");
    assert!(fault.ends_with("with limitOverride can have 155 at most"), "{fault}");
}

#[test]
fn fields_of_requests_are_faults_in_a_policy_with_a_domain() {
    let rule = "{name: r, limits: [{name: a, requests: 5, per: 1s}], key: [{descriptor: user}, {clientIP: {}}], cost: {requests: 2}, \
                match: [{methods: [GET], hosts: [a], paths: [/a], pathRegexes: [a], headers: [{name: a}], query: [{name: a}], \
                clientCIDRs: [10.0.0.0/8], predicate: 'true'}], onLimit: {action: Wait, maxWait: 1s, status: 503}}";
    let faults = compiled_with(&format!("{{domain: shop, deadline: 1s, rules: [{rule}]}}")).unwrap_err();
    let conditions = ["methods", "hosts", "paths", "pathRegexes", "headers", "query", "clientCIDRs", "predicate"];
    let conditions = conditions.map(|field| format!("match[0].{field}"));
    let fields =
        conditions.into_iter().chain(["key[1]", "cost", "onLimit.action", "onLimit.status"].map(str::to_owned));
    let of_rule = fields.map(|field| format!("spec.rules[0].{field}"));
    let expected: Vec<_> = ["spec.deadline".to_owned()].into_iter().chain(of_rule).collect();
    let found: Vec<_> = faults.into_iter().map(|fault| fault.path).filter(|path| expected.contains(path)).collect();
    assert_eq!(found, expected);
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
