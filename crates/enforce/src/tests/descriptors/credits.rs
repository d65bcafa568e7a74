//! Descriptors that give units back.

use super::*;

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
