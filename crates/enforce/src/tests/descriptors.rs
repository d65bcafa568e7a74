//! Decisions on descriptors.

use std::{collections::HashMap, time::Duration};

use weir_fuzz::Random;

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
    Descriptor { entries: entries.to_vec(), is_unordered: false, hits, is_credit: false, limit: None }
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

fn credit<'a>(entries: &[(&'a str, &'a str)], units: u64) -> Descriptor<'a> {
    Descriptor { is_credit: true, ..descriptor(entries, units) }
}

/// Units that are given back serve other requests, at most up to the full limit.
#[tokio::test(start_paused = true)]
async fn units_are_given_back() {
    let per_user = json!({"match": matching(&[("user", None)]), "key": [{"descriptor": "user"}]});
    let limits = Limits::new(&[domain("p", &[rule("r", &fixed(5), per_user)])]);
    let (ann, bob) = ([("user", "ann")], [("user", "bob")]);
    assert_eq!(limits.asked(&[descriptor(&ann, 5)]), (false, vec![Some(0)]));
    assert_eq!(limits.asked(&[credit(&ann, 2), credit(&bob, 7)]), (false, vec![Some(2), Some(5)]));
    assert_eq!(limits.asked(&[descriptor(&ann, 3)]), (true, vec![Some(2)]));
    assert_eq!(limits.asked(&[descriptor(&ann, 2)]), (false, vec![Some(0)]));
    assert_eq!(limits.asked(&[credit(&ann, 0)]), (false, vec![Some(0)]), "no units");
    assert_eq!(limits.asked(&[credit(&ann, u64::MAX)]), (false, vec![Some(5)]));
    assert_eq!(limits.counts(0, 0)[0], 2, "a credit is no request");
}

/// A request gives nothing back if it is refused. Its descriptors that give back are not the reason.
#[tokio::test(start_paused = true)]
async fn a_refused_request_gives_nothing_back() {
    let of = |entry: &str| json!({"match": matching(&[(entry, None)])});
    let limits = Limits::new(&[domain("p", &[rule("a", &fixed(5), of("a")), rule("b", &fixed(1), of("b"))])]);
    let (a, b) = ([("a", "1")], [("b", "1")]);
    assert!(!limits.decide(&[descriptor(&a, 5), descriptor(&b, 1)]).is_refused);
    let answer = limits.decide(&[credit(&a, 5), descriptor(&b, 1)]);
    assert_eq!(answer.states.iter().map(|state| state.is_refused).collect::<Vec<_>>(), [false, true]);
    assert_eq!(limits.asked(&[credit(&a, 0)]), (false, vec![Some(0)]));
}

fn with_limit<'a>(entries: &[(&'a str, &'a str)], requests: u64, seconds: u64) -> Descriptor<'a> {
    let limit = DescriptorLimit { requests, period: Duration::from_secs(seconds) };
    Descriptor { limit: Some(limit), ..descriptor(entries, 1) }
}

impl Limits {
    /// Asks with this descriptor until it is refused. Returns the number of admissions.
    fn admitted(&self, descriptor: &Descriptor<'_>) -> u64 {
        (0..1_000).take_while(|_| !self.decide(std::slice::from_ref(descriptor)).is_refused).count() as u64
    }
}

fn accepting(max_requests: u64, strategy: &str) -> Value {
    let more = json!({
        "match": matching(&[("user", None)]), "key": [{"descriptor": "user"}],
        "limitOverride": {"maxRequests": max_requests, "periodMillis": DAY},
    });
    rule("r", &[limit(strategy, 5, DAY, json!({}))], more)
}

/// A descriptor's limit replaces the limit of a rule that accepts it, up to the largest rate. Each key has its own count.
#[tokio::test(start_paused = true)]
async fn a_descriptor_brings_its_own_limit() {
    let (ann, bob) = ([("user", "ann")], [("user", "bob")]);
    for (strategy, at_once) in [("FixedWindow", 8), ("TokenBucket", 8), ("SlidingWindowCounter", 8), ("GCRA", 1)] {
        let limits = Limits::new(&[domain("p", &[accepting(10, strategy)])]);
        let own = if strategy == "GCRA" { 1 } else { 5 };
        assert_eq!(limits.admitted(&descriptor(&ann, 1)), own, "{strategy}");
        assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), at_once, "{strategy}");
        assert_eq!(limits.admitted(&with_limit(&bob, 8, 86_400)), at_once, "{strategy}");
        assert_eq!(limits.admitted(&descriptor(&bob, 1)), own, "{strategy}: the rule has its own counts");
    }
    let limits = Limits::new(&[domain("p", &[accepting(10, "FixedWindow")])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 1_000, 86_400)), 10, "the largest rate");
    assert_eq!(limits.admitted(&with_limit(&ann, 1_000, 3_600)), 1, "in an hour, the largest rate has less than one");
    let answer = limits.decide(&[with_limit(&bob, 7, 86_400)]);
    let state = answer.states[0].limit.as_ref().expect("a limit");
    assert_eq!((&*state.name, state.requests, state.remaining), ("r.l", 7, 6));
    assert_eq!(limits.admitted(&Descriptor { is_credit: true, ..with_limit(&bob, 7, 86_400) }), 1_000);
    assert_eq!(limits.admitted(&with_limit(&bob, 7, 86_400)), 7, "units are given back to the descriptor's limit");
    assert_eq!(limits.counts(0, 0)[0], 10 + 1 + 1 + 7, "the rule counts all its requests");
}

/// An explanation uses the counts of the descriptor's limit, and takes no place of another limit.
#[tokio::test(start_paused = true)]
async fn the_limit_of_a_descriptor_is_explained() {
    let limits = Limits::new(&[domain("p", &[accepting(1_000, "FixedWindow")])]);
    let left = |requests: Option<u64>| {
        let limit = requests.map(|requests| json!({"requests": requests, "periodMillis": DAY}));
        let mut descriptor = json!({"domain": "shop", "entries": [["user", "ann"]]});
        descriptor["limit"] = limit.unwrap_or_default();
        let request = serde_json::from_value(json!({"descriptor": descriptor})).expect("a request");
        let reply = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Keep).expect("valid");
        let [rule] = &reply.rules[..] else { panic!("not one rule: {reply:?}") };
        rule.limit.as_ref().expect("a limit").remaining
    };
    for requests in 100..200 {
        assert_eq!(left(Some(requests)), requests, "no count yet");
    }
    let ann = [("user", "ann")];
    assert!(!limits.decide(&[with_limit(&ann, 7, 86_400)]).is_refused);
    assert_eq!((left(Some(7)), left(Some(8)), left(None)), (6, 8, 5));
    assert_eq!(left(Some(2_000)), 1_000, "the largest rate");
    // Fifteen more limits use up the room, so the rule keeps its own limit.
    for requests in 10..25 {
        assert!(!limits.decide(&[with_limit(&ann, requests, 86_400)]).is_refused);
    }
    assert_eq!((left(Some(7)), left(Some(24)), left(Some(99))), (6, 23, 5));
}

/// A rule that does not accept limits ignores them. So does a rule that has got too many different limits.
#[tokio::test(start_paused = true)]
async fn a_rule_keeps_its_limit() {
    let ann = [("user", "ann")];
    let plain = rule("r", &fixed(5), json!({"match": matching(&[("user", None)])}));
    assert_eq!(Limits::new(&[domain("p", &[plain])]).admitted(&with_limit(&ann, 100, 86_400)), 5);
    let limits = Limits::new(&[domain("p", &[accepting(1_000, "FixedWindow")])]);
    let found: Vec<u64> = (100..120).map(|requests| limits.admitted(&with_limit(&ann, requests, 86_400))).collect();
    let expected: Vec<u64> = (100..116).chain([5, 0, 0, 0]).collect();
    assert_eq!(found, expected);
    assert_eq!(limits.admitted(&with_limit(&[("user", "bob")], 101, 86_400)), 101, "a known limit stays");
    // Limits of an hour are at full credit after two hours, and make room. Those of a day do not.
    let limits = Limits::new(&[domain("p", &[accepting(24_000, "FixedWindow")])]);
    let ask = |requests, seconds| limits.admitted(&with_limit(&ann, requests, seconds));
    assert_eq!((ask(100, 86_400), ask(101, 3_600)), (100, 101));
    assert!((0..14).all(|more| ask(200 + more, 3_600) == 200 + more));
    assert_eq!((ask(300, 3_600), ask(301, 3_600)), (5, 0), "the rule's own limit");
    tokio::time::advance(Duration::from_secs(7_200)).await;
    assert_eq!((ask(302, 3_600), ask(100, 86_400)), (302, 0));
    let shadow = with(accepting(10, "FixedWindow"), json!({"mode": "Shadow"}));
    let limits = Limits::new(&[domain("p", &[shadow])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 1, 86_400)), 1_000);
    assert_eq!(limits.counts(0, 0)[0], 5, "a rule in shadow mode counts with its own limit");
}

/// A change of the policy keeps the counts of the limits that descriptors brought.
#[tokio::test(start_paused = true)]
async fn a_change_keeps_the_counts_of_limits_that_descriptors_brought() {
    let ann = [("user", "ann")];
    let limits = Limits::new(&[domain("p", &[accepting(10, "FixedWindow")])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), 8);
    limits.apply(&[domain("p", &[accepting(20, "FixedWindow")])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), 0);
    assert_eq!(limits.admitted(&with_limit(&ann, 30, 86_400)), 20);
    limits.apply(&[domain("p", &[accepting(25, "FixedWindow")])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 30, 86_400)), 5);
    limits.apply(&[domain("p", &[accepting(4, "FixedWindow")])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), 0);
}

/// Rules that refuse everything, and banned keys, take units back. Rules in shadow mode do, too, and stay hidden.
#[tokio::test(start_paused = true)]
async fn every_rule_takes_units_back() {
    let any = json!({"match": matching(&[("user", None)]), "key": [{"descriptor": "user"}]});
    let banning = with(any.clone(), json!({"ban": {"after": 1, "withinMillis": 60_000, "forMillis": 60_000}}));
    let deny = with(rule("deny", &[], json!({"match": any["match"]})), json!({"action": "Deny"}));
    let shadow = with(rule("shadow", &fixed(1), any.clone()), json!({"mode": "Shadow"}));
    let ann = [("user", "ann")];

    let limits = Limits::new(&[domain("p", &[deny])]);
    assert!(limits.decide(&[descriptor(&ann, 1)]).is_refused);
    assert!(!limits.decide(&[credit(&ann, 1)]).is_refused);

    let limits = Limits::new(&[domain("p", &[rule("ban", &fixed(1), banning)])]);
    assert!(!limits.decide(&[descriptor(&ann, 1)]).is_refused);
    assert!(limits.decide(&[descriptor(&ann, 1)]).is_refused);
    assert_eq!(limits.asked(&[credit(&ann, 1)]), (false, vec![Some(1)]));
    assert!(limits.decide(&[descriptor(&ann, 1)]).is_refused, "a ban does not end");

    let limits = Limits::new(&[domain("p", &[shadow])]);
    for _ in 0..3 {
        assert_eq!(limits.asked(&[descriptor(&ann, 1)]), (false, vec![None]));
        assert_eq!(limits.asked(&[credit(&ann, 1)]), (false, vec![None]));
    }
    assert_eq!(limits.counts(0, 0)[2], 0);
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

/// Compares random rules and questions with a model: a list of rules, and a count for each key, in whole numbers.
#[tokio::test(start_paused = true)]
async fn a_model_in_whole_numbers_decides_the_same() {
    struct ModelRule {
        entries: Vec<(&'static str, Option<&'static str>)>,
        key: Vec<&'static str>,
        most: u64,
        counts: HashMap<Vec<Option<String>>, u64>,
    }
    const KEYS: [&str; 3] = ["a", "b", "c"];
    const VALUES: [&str; 4] = ["x", "xy", "xz", "w"];
    let (mut refusals, mut random) = (0, Random::new(7));
    for case in 0..200 {
        // More than eight entries use the index.
        let mut model: Vec<ModelRule> = (0..=random.below(20))
            .map(|_| {
                let entries: Vec<_> = (0..=random.below(3))
                    .map(|_| {
                        let value = [None, Some("x"), Some("x*"), Some("xy"), Some("w")][random.below(5)];
                        (KEYS[random.below(3)], value)
                    })
                    .collect();
                let key = (0..random.below(3)).map(|_| KEYS[random.below(3)]).collect();
                ModelRule { entries, key, most: random.number() % 6 + 1, counts: HashMap::new() }
            })
            .collect();
        let rules: Vec<Value> = model
            .iter()
            .enumerate()
            .map(|(index, of)| {
                let key: Vec<Value> = of.key.iter().map(|key| json!({"descriptor": key})).collect();
                rule(&format!("r{index}"), &fixed(of.most), json!({"match": matching(&of.entries), "key": key}))
            })
            .collect();
        let limits = Limits::new(&[domain("p", &rules)]);
        for question in 0..40 {
            let descriptors: Vec<Descriptor<'_>> = (0..=random.below(3))
                .map(|_| {
                    let entries: Vec<_> =
                        (0..=random.below(3)).map(|_| (KEYS[random.below(3)], VALUES[random.below(4)])).collect();
                    descriptor(&entries, random.number() % 3 + 1)
                })
                .collect();
            let mut charges = Vec::new();
            for Descriptor { entries, hits, .. } in &descriptors {
                for (index, of) in model.iter().enumerate() {
                    let holds = |((key, value), entry): (&(&str, Option<&str>), &(&str, &str))| {
                        *key == entry.0
                            && value.is_none_or(|value| match value.strip_suffix('*') {
                                Some(prefix) => entry.1.starts_with(prefix),
                                None => value == entry.1,
                            })
                    };
                    if of.entries.len() == entries.len() && of.entries.iter().zip(entries).all(holds) {
                        let value = |key: &&str| entries.iter().find(|(it, _)| it == key).map(|it| it.1.to_owned());
                        charges.push((index, of.key.iter().map(value).collect::<Vec<_>>(), *hits));
                    }
                }
            }
            let mut after = HashMap::new();
            for (index, key, hits) in &charges {
                let before = model[*index].counts.get(key).copied().unwrap_or(0);
                *after.entry((*index, key.clone())).or_insert(before) += hits;
            }
            let is_refused = after.iter().any(|((index, _), count)| *count > model[*index].most);
            let answer = limits.decide(&descriptors);
            assert_eq!(answer.is_refused, is_refused, "case {case}, question {question}: {descriptors:?}");
            refusals += u32::from(is_refused);
            if !is_refused {
                for ((index, key), count) in after {
                    model[index].counts.insert(key, count);
                }
            }
        }
    }
    assert!((1000..7000).contains(&refusals), "{refusals} refusals of 8000");
}
