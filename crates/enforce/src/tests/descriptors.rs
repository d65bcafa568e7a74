//! Decisions on descriptors.

mod credits;
mod model;
mod own_limits;

use std::time::Duration;

use super::*;

const DAY: u64 = 86_400_000;

fn domain(name: &str, rules: &[Value]) -> Value {
    with(policy(name, rules), json!({"domain": "shop"}))
}

fn fixed(requests: u64) -> Vec<Value> {
    vec![limit("FixedWindow", requests, DAY, json!({}))]
}

fn matching(entries: &[(&str, Option<&str>)]) -> Value {
    let entry = |(key, value): &(&str, Option<&str>)| match value {
        Some(value) => match value.strip_suffix('*') {
            Some(prefix) => json!({"name": key, "prefix": prefix}),
            None => json!({"name": key, "value": value}),
        },
        None => json!({"name": key}),
    };
    json!([{"descriptor": entries.iter().map(entry).collect::<Vec<_>>()}])
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    Descriptor { entries: entries.to_vec(), is_unordered: false, hits, is_credit: false, is_quota: false, limit: None }
}

impl Limits {
    fn decide(&self, descriptors: &[Descriptor<'_>]) -> DescriptorAnswer {
        match self.rules.decide_descriptors("shop", descriptors) {
            DescriptorVerdict::Decided(answer) => answer,
            DescriptorVerdict::Waits(_) => panic!("there is no store"),
        }
    }

    /// Returns whether the request is refused, and the remaining units of each descriptor.
    fn asked(&self, descriptors: &[Descriptor<'_>]) -> (bool, Vec<Option<u64>>) {
        let answer = self.decide(descriptors);
        (answer.is_refused, answer.states.iter().map(|state| Some(state.limit.as_ref()?.remaining)).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_descriptor_matches_all_its_entries_in_order() {
    let by_key =
        json!({"match": matching(&[("path", Some("/a*")), ("api_key", None)]), "key": [{"descriptor": "api_key"}]});
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(1), by_key)])]);
    let one = |entries: &[(&str, &str)]| limits.asked(&[descriptor(entries, 1)]);
    for (entries, expected) in [
        (&[("path", "/a"), ("api_key", "ann")][..], (false, vec![Some(0)])),
        (&[("path", "/ab"), ("api_key", "ann")], (true, vec![Some(0)])),
        (&[("path", "/ab"), ("api_key", "bob")], (false, vec![Some(0)])),
        (&[("api_key", "eve"), ("path", "/a")], (false, vec![None])),
        (&[("path", "/a")], (false, vec![None])),
        (&[("path", "/b"), ("api_key", "ann")], (false, vec![None])),
        (&[("path", "/a"), ("api_key", "ann"), ("more", "x")], (false, vec![None])),
    ] {
        assert_eq!(one(entries), expected, "{entries:?}");
    }
    assert_eq!(limits.counts(0, 0), [2, 1, 0, 0]);
    assert_eq!(limits.rules.load().unmatched(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_unordered_descriptor_matches_in_each_order() {
    let by_key =
        json!({"match": matching(&[("path", Some("/a*")), ("api_key", None)]), "key": [{"descriptor": "api_key"}]});
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(9), by_key)])]);
    let one = |entries: &[(&'static str, &'static str)]| {
        limits.asked(&[Descriptor { is_unordered: true, ..descriptor(entries, 1) }]).1[0]
    };
    assert_eq!(one(&[("path", "/a"), ("api_key", "ann")]), Some(8));
    assert_eq!(one(&[("api_key", "ann"), ("path", "/a")]), Some(7));
    for entries in [
        &[("api_key", "ann"), ("path", "/b")][..],
        &[("api_key", "ann"), ("other", "/a")],
        &[("api_key", "ann")],
        &[("api_key", "ann"), ("path", "/a"), ("more", "x")],
    ] {
        assert_eq!(one(entries), None, "{entries:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_standing_charges_and_refuses_nothing() {
    let of = |key: &str| json!({"match": matching(&[(key, None)])});
    let rules = [
        rule("limit", &fixed(2), with(of("l"), json!({"key": [{"descriptor": "l"}]}))),
        with(json!({"name": "deny", "action": "Deny"}), of("d")),
        with(json!({"name": "bypass", "action": "Bypass"}), of("b")),
        rule("seen", &fixed(1), with(of("s"), json!({"mode": "Shadow"}))),
    ];
    let limits = Limits::new(&[domain("p", &rules)]);
    let standing = |key| limits.rules.standing("shop", &descriptor(&[(key, "x")], 1));
    for remaining in [2, 1, 0] {
        let DescriptorStanding::Limited { limit, is_refused } = standing("l") else { panic!("a limit") };
        assert_eq!((limit.remaining, limit.capacity, is_refused), (remaining, 2, remaining == 0));
        limits.decide(&[descriptor(&[("l", "x")], 1)]);
    }
    assert_eq!(limits.counts(0, 0)[1], 1, "only the question was refused");
    assert_eq!(standing("d"), DescriptorStanding::Denied);
    for key in ["b", "s", "other"] {
        assert_eq!(standing(key), DescriptorStanding::Unlimited, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_leaves_values_to_other_rules() {
    let except = json!({"match": [{"descriptor": [
        {"name": "path", "prefix": "/", "exceptValues": ["/a", "/b"], "exceptPrefixes": ["/c", "/d/"]},
    ]}]});
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(9), except)])]);
    let matches = |value| limits.asked(&[descriptor(&[("path", value)], 1)]).1[0].is_some();
    for (value, expected) in
        [("/", true), ("/a", false), ("/aa", true), ("/b", false), ("/c", false), ("/cc", false), ("/d", true)]
    {
        assert_eq!(matches(value), expected, "{value}");
    }
    assert!(!matches("/d/e") && !matches("a"));
}

/// A rule that matches any descriptor of a question replaces other rules of its policy for the whole question.
#[tokio::test(start_paused = true)]
async fn a_rule_replaces_other_rules_of_its_policy() {
    let by = |key: &str, more: Value| with(json!({"match": matching(&[(key, None)])}), more);
    let of_replaces = |names: &[&str]| json!({"replaces": names});
    let bypass =
        with(json!({"name": "exempt", "action": "Bypass", "match": matching(&[("e", None)])}), of_replaces(&["other"]));
    let deny = json!({"name": "deny", "action": "Deny", "match": matching(&[("d", None)])});
    let shadow =
        |name: &str, key: &str, more| rule(name, &fixed(0x7fff), by(key, with(json!({"mode": "Shadow"}), more)));
    let rules = [
        rule("tight", &fixed(1), by("t", json!({}))),
        rule("other", &fixed(5), by("o", json!({}))),
        rule("wide", &fixed(100), by("w", of_replaces(&["tight", "deny", "seen"]))),
        shadow("seen", "s", of_replaces(&["other"])),
        deny,
        bypass,
    ];
    let same_name = rule("tight", &fixed(50), by("t", json!({})));
    let limits = Limits::new(&[domain("p", &rules), domain("q", &[same_name])]);
    let ask = |keys: &[&'static str]| {
        let descriptors: Vec<_> = keys.iter().map(|key| descriptor(&[(key, "x")], 1)).collect();
        limits.asked(&descriptors)
    };
    assert_eq!(ask(&["t"]), (false, vec![Some(0)]));
    assert!(ask(&["t"]).0);
    for order in [["t", "w"], ["w", "t"]] {
        assert!(!ask(&order).0, "{order:?}");
    }
    assert_eq!(limits.counts(1, 0)[0], 3, "the rule of the other policy applies");
    assert_eq!((ask(&["d"]).0, ask(&["d", "w"]).0), (true, false), "a replaced rule denies nothing");
    let other = || limits.counts(0, 1)[0];
    assert_eq!((ask(&["o"]).0, other()), (false, 1));
    assert_eq!((ask(&["o", "e"]).0, other()), (false, 1), "a bypass replaces, too");
    assert_eq!((ask(&["o", "s"]).0, other()), (false, 1), "and a rule in shadow mode");
    let seen = limits.counts(0, 3)[0];
    ask(&["s", "w"]);
    assert_eq!(limits.counts(0, 3)[0], seen, "a replaced rule in shadow mode counts nothing");
}

/// A denial or a bypass that another rule replaces leaves the rules behind it in force, including those of other
/// policies.
#[tokio::test(start_paused = true)]
async fn a_replaced_exception_hides_no_other_rule() {
    for action in ["Deny", "Bypass"] {
        let exception = json!({"name": "exception", "action": action, "match": matching(&[("path", Some("/admin"))])});
        let by = |key: &str, more: Value| with(json!({"match": matching(&[(key, None)])}), more);
        let rules = [
            exception,
            rule("per-path", &fixed(1), by("path", json!({"key": [{"descriptor": "path"}]}))),
            rule("staff", &fixed(100), by("staff", json!({"replaces": ["exception"]}))),
        ];
        let other = rule("all", &fixed(100), by("path", json!({})));
        let limits = Limits::new(&[domain("p", &rules), domain("q", &[other])]);
        let ask = || {
            let answer = limits.decide(&[descriptor(&[("path", "/admin")], 1), descriptor(&[("staff", "ann")], 1)]);
            (answer.is_refused, answer.states[0].is_exempt)
        };
        assert_eq!([ask(), ask()], [(false, false), (true, false)], "{action}");
        assert_eq!(limits.counts(1, 0)[0], 1, "{action}");
        let alone = limits.decide(&[descriptor(&[("path", "/admin")], 1)]);
        assert_eq!((alone.is_refused, alone.states[0].is_exempt), (action == "Deny", action == "Bypass"));
    }
}

/// Two descriptors charge one key together, so the request waits for the units of both.
#[tokio::test(start_paused = true)]
async fn descriptors_of_one_key_wait_for_all_their_units() {
    let retry_after = |strategy: &str, requests: u64, hits: u64, more: Value| {
        let by = json!({"match": matching(&[("k", None)]), "key": [{"descriptor": "k"}]});
        let limits = Limits::new(&[domain("p", &[rule("r", &[limit(strategy, requests, 3_600_000, more)], by)])]);
        assert!(!limits.decide(&[descriptor(&[("k", "x")], 1)]).is_refused);
        let answer = limits.decide(&[descriptor(&[("k", "x")], hits), descriptor(&[("k", "x")], hits)]);
        assert!(answer.is_refused);
        answer.headers.get("retry-after").map(|value| value.to_str().expect("text").to_owned())
    };
    assert_eq!(retry_after("TokenBucket", 2, 1, json!({"burst": 2})).as_deref(), Some("1800"));
    assert_eq!(retry_after("TokenBucket", 3, 2, json!({"burst": 3})), None, "4 of 3 are never admitted");
}

#[tokio::test(start_paused = true)]
async fn requests_and_descriptors_have_rules_of_their_own() {
    let limits = Limits::new(&[
        policy("http", &[rule("r", &fixed(1), json!({}))]),
        domain("shop", &[rule("r", &fixed(2), json!({}))]),
    ]);
    let ask = || limits.decide(&[descriptor(&[("a", "b")], 1)]).is_refused;
    assert_eq!([ask(), ask(), ask()], [false, false, true]);
    assert_eq!([limits.status("/").await, limits.status("/").await], [200, 429]);
    let DescriptorVerdict::Decided(other) = limits.rules.decide_descriptors("other", &[descriptor(&[], 1)]) else {
        panic!("there is no store");
    };
    assert!(!other.is_refused && other.states.len() == 1);
    // An explanation of a request lists no rule of a domain.
    let request = serde_json::from_value(json!({"method": "GET", "target": "/"})).expect("a request");
    let explained = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Keep).expect("valid");
    assert_eq!(explained.rules.iter().map(|rule| &*rule.policy).collect::<Vec<_>>(), ["http"]);
}

#[tokio::test(start_paused = true)]
async fn all_descriptors_are_charged_or_none() {
    let own = |key: &str| json!({"match": matching(&[(key, None)]), "key": [{"descriptor": key}]});
    let rules = [rule("wide", &fixed(10), own("wide")), rule("tight", &fixed(2), own("tight"))];
    let limits = Limits::new(&[domain("p", &rules)]);
    let both = || vec![descriptor(&[("wide", "x")], 1), descriptor(&[("tight", "y")], 1)];
    assert_eq!(limits.asked(&both()), (false, vec![Some(9), Some(1)]));
    assert_eq!(limits.asked(&both()), (false, vec![Some(8), Some(0)]));
    for _ in 0..3 {
        let answer = limits.decide(&both());
        assert!(answer.is_refused);
        assert_eq!(answer.states.iter().map(|state| state.is_refused).collect::<Vec<_>>(), [false, true]);
        assert_eq!(answer.states[0].limit.as_ref().expect("a limit").remaining, 8, "a refusal charges nothing");
    }
    // Two descriptors with one count need both units.
    let twice = |hits| limits.asked(&[descriptor(&[("wide", "z")], hits), descriptor(&[("wide", "z")], hits)]);
    assert_eq!(twice(3), (false, vec![Some(4), Some(4)]));
    let together = limits.decide(&[descriptor(&[("wide", "z")], 3), descriptor(&[("wide", "z")], 3)]);
    assert_eq!(together.states.iter().map(|state| state.is_refused).collect::<Vec<_>>(), [false, true]);
    assert_eq!(twice(2), (false, vec![Some(0), Some(0)]));
}

#[tokio::test(start_paused = true)]
async fn hits_are_charged_and_zero_hits_only_check() {
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(10), json!({}))])]);
    let ask = |hits| limits.asked(&[descriptor(&[("a", "b")], hits)]);
    assert_eq!(ask(0), (false, vec![Some(10)]));
    assert_eq!(ask(7), (false, vec![Some(3)]));
    assert_eq!(ask(4), (true, vec![Some(3)]));
    assert_eq!(ask(3), (false, vec![Some(0)]));
    assert_eq!(ask(0), (true, vec![Some(0)]));
    assert!(ask(u64::MAX).0);
}

#[tokio::test(start_paused = true)]
async fn each_descriptor_is_refused_that_does_not_fit_after_those_before_it() {
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(3), json!({}))])]);
    let refused = |hits: &[u64]| {
        let descriptors: Vec<_> = hits.iter().map(|hits| descriptor(&[("a", "b")], *hits)).collect();
        limits.decide(&descriptors).states.iter().map(|state| state.is_refused).collect::<Vec<_>>()
    };
    assert_eq!(refused(&[2, 2, 2]), [false, true, true]);
    assert_eq!(refused(&[2, 2, 1]), [false, true, false]);
    assert_eq!(refused(&[2, 0, 2]), [false, false, true]);
    assert_eq!(refused(&[4, 2]), [true, false]);
    assert_eq!(refused(&[2, 1]), [false, false]);
    assert_eq!(refused(&[1, 0, 1]), [true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_fits_tells_when_the_limit_is_full_again() {
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(10), json!({}))])]);
    let reset = |hits| {
        let answer = limits.decide(&[descriptor(&[("a", "b")], hits)]);
        (answer.is_refused, answer.states[0].limit.as_ref().map(|limit| limit.reset_after))
    };
    assert_eq!(reset(11), (true, Some(Duration::ZERO)));
    let (is_refused, end) = reset(3);
    assert!(!is_refused && end > Some(Duration::ZERO), "{end:?}");
    assert_eq!(reset(11), (true, end));
}

#[tokio::test(start_paused = true)]
async fn exceptions_apply_to_their_descriptor() {
    let only = |key: &str, action: &str| json!({"name": key, "action": action, "match": matching(&[(key, None)])});
    let rules = [only("deny", "Deny"), only("pass", "Bypass"), rule("all", &fixed(2), json!({}))];
    let limits = Limits::new(&[domain("p", &rules)]);
    assert_eq!(limits.asked(&[descriptor(&[("pass", "x")], 1)]), (false, vec![None]));
    assert_eq!(
        limits.asked(&[descriptor(&[("pass", "x")], 1), descriptor(&[("any", "x")], 1)]),
        (false, vec![None, Some(1)])
    );
    let denied = limits.decide(&[descriptor(&[("any", "x")], 1), descriptor(&[("deny", "x")], 1)]);
    assert!(denied.is_refused && !denied.states[0].is_refused && denied.states[1].is_refused);
    assert!(!denied.headers.contains_key("retry-after"));
    let denying = |key| descriptor(&[(key, "x")], 1);
    let several = limits.decide(&["deny", "any", "deny"].map(denying));
    assert_eq!(several.states.iter().map(|state| state.is_refused).collect::<Vec<_>>(), [true, false, true]);
    assert_eq!(limits.asked(&[descriptor(&[("any", "x")], 1)]), (false, vec![Some(0)]), "the denial charged nothing");
}

#[tokio::test(start_paused = true)]
async fn a_rule_in_shadow_mode_counts_and_does_not_refuse() {
    let shadow = rule("shadow", &fixed(1), json!({"mode": "Shadow"}));
    let limits = Limits::new(&[domain("p", &[shadow, rule("wide", &fixed(5), json!({}))])]);
    for left in [4, 3, 2] {
        assert_eq!(limits.asked(&[descriptor(&[("a", "b")], 1)]), (false, vec![Some(left)]));
    }
    assert_eq!(limits.counts(0, 0), [1, 0, 2, 0]);
    assert_eq!(limits.counts(0, 1), [3, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_banned_key_is_refused_without_a_charge() {
    let more = json!({"key": [{"descriptor": "user"}], "ban": {"after": 2, "withinMillis": 1000, "forMillis": 60_000}});
    let bucket = vec![limit("TokenBucket", 1, 100, json!({}))];
    let limits = Limits::new(&[domain("p", &[rule("r", &bucket, more)])]);
    let ask = || limits.decide(&[descriptor(&[("user", "ann")], 1)]);
    assert_eq!([ask().is_refused, ask().is_refused, ask().is_refused], [false, true, true]);
    tokio::time::advance(Duration::from_secs(1)).await;
    let banned = ask();
    assert!(banned.is_refused && banned.states[0].is_refused);
    assert!(!limits.decide(&[descriptor(&[("user", "bob")], 1)]).is_refused);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_headers_and_the_body_of_its_rule() {
    let more = json!({
        "responseHeaders": [{"name": "x-left", "value": "{remaining}"}],
        "onLimit": {"status": 429, "headers": "Legacy", "set": [{"name": "x-rule", "value": "{rule}"}], "body": "no more", "contentType": "text/plain"},
    });
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(1), more)])]);
    let ask = || limits.decide(&[descriptor(&[("a", "b")], 1)]);
    let (first, second) = (ask(), ask());
    assert!(first.body.is_none());
    assert_eq!(first.headers["x-left"], "0");
    assert_eq!(first.headers["x-ratelimit-remaining"], "0");
    assert_eq!(second.body.as_deref(), Some(&b"no more"[..]));
    assert_eq!(
        (&second.headers["x-rule"], &second.headers["content-type"]),
        (&"r".parse().unwrap(), &"text/plain".parse().unwrap())
    );
    assert!(second.headers.contains_key("retry-after"));
    let limit = second.states[0].limit.as_ref().expect("a limit");
    assert_eq!((&*limit.name, limit.requests, limit.period.as_millis()), ("r.l", 1, u128::from(DAY)));
}

/// The answer has the headers of the rules of all descriptors, even if another rule refuses.
#[tokio::test(start_paused = true)]
async fn a_refusal_has_the_headers_of_the_rules_of_other_descriptors() {
    let of = |key: &str| json!({"match": matching(&[(key, None)])});
    let own = json!({"responseHeaders": [{"name": "x-left", "value": "{remaining}"}]});
    let deny = with(json!({"name": "deny", "action": "Deny"}), of("c"));
    let rules = [rule("a", &fixed(9), with(of("a"), own)), rule("b", &fixed(1), of("b")), deny];
    let limits = Limits::new(&[domain("p", &rules)]);
    let ask = |other| limits.decide(&[descriptor(&[("a", "1")], 1), descriptor(&[(other, "1")], 1)]);
    for (other, is_refused) in [("b", false), ("b", true), ("c", true)] {
        let answer = ask(other);
        assert_eq!((answer.is_refused, answer.headers["x-left"].to_str().ok()), (is_refused, Some("8")), "{other}");
    }
}

#[test]
fn requests_and_descriptors_do_not_mix() {
    let faults = |policies: &[Value]| {
        let snapshot = json!({"wireVersion": 1, "sequence": 1, "revision": "r", "policies": policies});
        let faults = lower(&serde_json::from_value(snapshot).expect("a snapshot")).map(|_| ()).unwrap_err();
        faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
    };
    let on_requests = json!({"match": [{"methods": ["GET"]}], "key": [{"header": "a"}], "cost": {"fixed": 1},
        "onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 5}});
    assert_eq!(
        faults(&[domain("p", &[rule("r", &fixed(1), on_requests)])]),
        [
            "policies[0].rules[0].match[0]",
            "policies[0].rules[0].key[0]",
            "policies[0].rules[0].cost",
            "policies[0].rules[0].onLimit.maxWaitMillis",
        ]
    );
    let on_descriptors = json!({"match": matching(&[("a", None)]), "key": [{"descriptor": "a"}]});
    assert_eq!(
        faults(&[policy("p", &[rule("r", &fixed(1), on_descriptors)])]),
        ["policies[0].rules[0].match[0].descriptor", "policies[0].rules[0].key[0].descriptor",]
    );
    let replaces = |names: &[&str]| json!({"replaces": names});
    let two = |first| [rule("r", &fixed(1), first), rule("s", &fixed(1), json!({}))];
    assert_eq!(faults(&[policy("p", &two(replaces(&["s"])))]), ["policies[0].rules[0].replaces"]);
    assert_eq!(
        faults(&[domain("p", &two(replaces(&["s", "r", "t"])))]),
        ["policies[0].rules[0].replaces[1]", "policies[0].rules[0].replaces[2]"]
    );
    let accepts = json!({"limitOverride": {"maxRequests": 0, "periodMillis": 1_000}});
    assert_eq!(
        faults(&[policy("p", &[rule("r", &fixed(1), accepts.clone())])]),
        ["policies[0].rules[0].limitOverride"]
    );
    let log = [limit("SlidingWindowLog", 1, DAY, json!({})), limit("FixedWindow", 1, DAY, json!({"name": "other"}))];
    assert_eq!(
        faults(&[domain("p", &[rule("r", &log, accepts)])]),
        [
            "policies[0].rules[0].limitOverride.maxRequests",
            "policies[0].rules[0].limitOverride",
            "policies[0].rules[0].limitOverride"
        ]
    );
    let no_prefix = json!({"match": [{"descriptor": [{"name": "a", "exceptPrefixes": ["b", ""]}]}]});
    assert_eq!(
        faults(&[domain("p", &[rule("r", &fixed(1), no_prefix)])]),
        ["policies[0].rules[0].match[0].descriptor[0].exceptPrefixes[1]"]
    );
    let empty = with(policy("p", &[rule("r", &fixed(1), json!({}))]), json!({"domain": "", "deadlineMillis": 5}));
    assert_eq!(faults(&[empty]), ["policies[0].domain", "policies[0].deadlineMillis"]);
}

/// The state of a banned key is that of the refusal, even if its limits admit requests.
#[tokio::test(start_paused = true)]
async fn a_banned_descriptor_has_nothing_left_until_the_ban_ends() {
    let ban = json!({"ban": {"after": 1, "withinMillis": 1_000, "forMillis": 300_000}});
    let keyed = json!({"match": matching(&[("user", None)]), "key": [{"descriptor": "user"}], "maxKeys": 100});
    let limits =
        Limits::new(&[domain("p", &[rule("r", &[limit("TokenBucket", 2, 1_000, json!({}))], with(keyed, ban))])]);
    let ann = || limits.decide(&[descriptor(&[("user", "ann")], 1)]);
    assert!(!ann().is_refused && !ann().is_refused);
    for (millis, rest) in [(0, 300), (5_000, 295)] {
        tokio::time::advance(Duration::from_millis(millis)).await;
        let answer = ann();
        let [DescriptorState { is_refused: true, limit: Some(limit), .. }] = &answer.states[..] else {
            panic!("{answer:?}");
        };
        assert_eq!((limit.remaining, limit.reset_after), (0, Duration::from_secs(rest)));
        assert_eq!(answer.headers["ratelimit"], format!("\"l\";r=0;t={rest}"));
        let asked = json!({"descriptor": {"domain": "shop", "entries": [["user", "ann"]]}});
        let asked = serde_json::from_value(asked).expect("a description");
        let reply = limits.rules.load().explain(&asked, limits.clock, AmbiguousPaths::Refuse).expect("valid");
        let explained = reply.rules[0].limit.as_ref().expect("a limit");
        assert_eq!((explained.remaining, explained.reset_after_millis), (0, rest * 1_000));
    }
    assert_eq!(limits.asked(&[descriptor(&[("user", "bob")], 1)]), (false, vec![Some(1)]));
}
