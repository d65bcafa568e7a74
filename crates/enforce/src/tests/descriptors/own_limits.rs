//! Descriptors that bring their own limit, and rules that accept it.

use super::*;

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
    // In an hour, the largest rate has less than one request. One per hour would be more than it, so it is used itself.
    assert_eq!(limits.admitted(&with_limit(&ann, 1_000, 3_600)), 10);
    let answer = limits.decide(&[with_limit(&bob, 7, 86_400)]);
    let state = answer.states[0].limit.as_ref().expect("a limit");
    assert_eq!((&*state.name, state.requests, state.remaining), ("r.l", 7, 6));
    assert_eq!(limits.admitted(&Descriptor { is_credit: true, ..with_limit(&bob, 7, 86_400) }), 1_000);
    assert_eq!(limits.admitted(&with_limit(&bob, 7, 86_400)), 7, "units are given back to the descriptor's limit");
    assert_eq!(limits.counts(0, 0)[0], 10 + 10 + 1 + 7, "the rule counts all its requests");
}

/// A limit of a short period does not exceed a largest rate that has less than one request in this period.
#[tokio::test(start_paused = true)]
async fn a_short_period_does_not_exceed_the_largest_rate() {
    let ann = [("user", "ann")];
    let limits = Limits::new(&[domain("p", &[accepting(1, "TokenBucket")])]);
    let mut admitted = 0;
    for second in 0..40 {
        admitted += limits.admitted(&with_limit(&ann, 5, 1));
        // Other limits want the room of the first.
        limits.admitted(&with_limit(&[("user", "bob")], 100 + second, 1));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(admitted, 1);
    let answer = limits.decide(&[with_limit(&ann, 5, 1)]);
    let state = answer.states[0].limit.as_ref().expect("a limit");
    assert_eq!((state.requests, state.period), (1, Duration::from_millis(DAY)));
}

/// A limit that is too large for a sliding window counter is capped.
#[tokio::test(start_paused = true)]
async fn a_limit_is_lowered_to_what_the_counter_can_count() {
    let limits = Limits::new(&[domain("p", &[accepting(1 << 40, "SlidingWindowCounter")])]);
    for (asked, requests) in [(2_000_000_000, 1 << 30), ((1 << 30) + 1, 1 << 30), (1 << 30, 1 << 30), (7, 7)] {
        let answer = limits.decide(&[with_limit(&[("user", "ann")], asked, 86_400)]);
        assert_eq!(answer.states[0].limit.as_ref().expect("a limit").requests, requests, "{asked}");
    }
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
    let limits = Limits::new(&[domain("p", &[accepting(24_000, "TokenBucket")])]);
    let ask = |requests, seconds| limits.admitted(&with_limit(&ann, requests, seconds));
    assert_eq!((ask(100, 86_400), ask(101, 3_600)), (100, 101));
    assert!((0..14).all(|more| ask(200 + more, 3_600) == 200 + more));
    assert_eq!((ask(300, 3_600), ask(301, 3_600)), (5, 0), "the rule's own limit");
    tokio::time::advance(Duration::from_secs(7_200)).await;
    // In two hours, the bucket of a day gets 8 of its 100 units back. A window of a day could end at midnight.
    assert_eq!((ask(302, 3_600), ask(100, 86_400)), (302, 8));
    let shadow = with(accepting(10, "FixedWindow"), json!({"mode": "Shadow"}));
    let limits = Limits::new(&[domain("p", &[shadow])]);
    assert_eq!(limits.admitted(&with_limit(&ann, 1, 86_400)), 1_000);
    assert_eq!(limits.counts(0, 0)[0], 5, "a rule in shadow mode counts with its own limit");
}

/// A change of the policy keeps the counts of the limits of descriptors.
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

/// A rule in shadow mode gets units back, and is explained, by the limit that it was charged by: its own.
#[tokio::test(start_paused = true)]
async fn a_rule_in_shadow_mode_ignores_the_limits_of_all_descriptors() {
    let ann = [("user", "ann")];
    let shadow = with(accepting(10, "FixedWindow"), json!({"mode": "Shadow"}));
    for requests in [8, 0] {
        let limits = Limits::new(&[domain("p", std::slice::from_ref(&shadow))]);
        let ask = |is_credit| limits.decide(&[Descriptor { hits: 5, is_credit, ..with_limit(&ann, requests, 86_400) }]);
        assert!(!ask(false).is_refused);
        assert!(!ask(true).is_refused);
        let descriptor =
            json!({"domain": "shop", "entries": [["user", "ann"]], "limit": {"requests": 8, "periodMillis": DAY}});
        let request = serde_json::from_value(json!({"descriptor": descriptor})).expect("a request");
        let reply = limits.rules.load().explain(&request, limits.clock, AmbiguousPaths::Keep).expect("valid");
        assert_eq!(reply.rules[0].limit.as_ref().expect("a limit").remaining, 5, "{requests}");
        limits.decide(&[with_limit(&ann, requests, 86_400)]);
        assert_eq!(limits.counts(0, 0)[2], 0, "{requests}: nothing is refused");
    }
}

/// If a descriptor has a new limit while the rules change, and the new rule exists already, this limit has no second
/// burst.
#[tokio::test(start_paused = true)]
async fn a_limit_that_arrives_during_a_change_keeps_its_counts() {
    let ann = [("user", "ann")];
    let limits = Limits::new(&[domain("p", &[accepting(10, "FixedWindow")])]);
    limits.apply_after(&[domain("p", &[accepting(20, "FixedWindow")])], &Stores::new(), || {
        assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), 8);
    });
    assert_eq!(limits.admitted(&with_limit(&ann, 8, 86_400)), 0);
}
