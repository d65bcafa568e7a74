use std::sync::Arc;

use serde_json::json;

use super::*;

fn lost(pod: &str, since: u64, error: Option<&str>, needs_restart: bool) -> LostStore {
    let store = ObjectKey::new("shop", "limits");
    let error = error.map(str::to_owned);
    LostStore { pod: ObjectKey::new("shop", pod), store, since_unix_millis: since * 1000, error, needs_restart }
}

fn store() -> Store {
    let spec = json!({"redis": {"topology": "Sentinel", "endpoints": ["s:1"], "masterName": "m"}});
    Store { uid: "s".to_owned(), generation: 4, spec: Ok(Arc::new(serde_json::from_value(spec).unwrap())) }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

#[test]
fn a_policy_names_the_pods_that_are_cut_off_and_since_when() {
    let stores = [ObjectKey::new("shop", "limits")];
    assert_eq!(store_reachable(&[], &[]), None);
    let (holds, reason, message) = store_reachable(&stores, &[]).unwrap();
    assert_eq!((holds, reason), (true, Reason::Reached), "{message}");

    let cut = [lost("b", 60, None, false), lost("a", 3600, Some("refused"), false)];
    let (holds, reason, message) = store_reachable(&stores, &cut).unwrap();
    assert_eq!((holds, reason), (false, Reason::CutOff));
    assert_eq!(
        message,
        "b has not reached limits since 1970-01-01T00:01:00Z, a has not reached limits since 1970-01-01T01:00:00Z (refused)"
    );
    let (_, reason, message) = store_reachable(&stores, &[lost("a", 1, Some("NOAUTH"), true)]).unwrap();
    assert_eq!(reason, Reason::RestartNeeded);
    assert!(message.contains("rollout restart") && message.contains("NOAUTH"), "{message}");

    let many: Vec<_> = (0..30).map(|number| lost(&format!("p{number}"), 1, Some(&"x".repeat(500)), false)).collect();
    let (_, _, message) = store_reachable(&stores, &many).unwrap();
    assert!(message.ends_with(", 20 more") && message.len() < 4096, "{} bytes: {message}", message.len());
}

#[test]
fn a_policy_of_scope_fleet_names_the_pods_for_which_the_operator_does_not_count() {
    let cut_off = |name: &str, since: u64, error: Option<&str>| CutOffPod {
        name: name.into(),
        since_unix_millis: since * 1000,
        error: error.map(str::to_owned),
    };
    let said = |cut: &[CutOffPod], silent: &[&str], enforcing: usize| {
        fleet_degraded(cut, &silent.iter().copied().collect(), enforcing, 6)
    };
    assert_eq!(said(&[], &[], 6), (false, Reason::Counted, "the operator counts for all 6 pods".to_owned()));
    let some = "the operator counts for the 4 pods that enforce the policy".to_owned();
    assert_eq!(said(&[], &[], 4), (false, Reason::Counted, some));
    assert_eq!(said(&[], &[], 0), (false, Reason::Counted, "no pod enforces the policy".to_owned()));

    let cut = [cut_off("b", 3600, None), cut_off("c", 60, Some("no certificate")), cut_off("a", 60, None)];
    let message = "3 of 6 pods do not reach the operator and enforce their share of the limits: \
                   a since 1970-01-01T00:01:00Z; c since 1970-01-01T00:01:00Z (no certificate); b since 1970-01-01T01:00:00Z";
    assert_eq!(said(&cut, &[], 6), (true, Reason::PodsCutOff, message.to_owned()));
    // A pod that does not answer counts once, and its old report is not repeated.
    let message = "4 of 6 pods do not reach the operator and enforce their share of the limits: \
                   a since 1970-01-01T00:01:00Z; b since 1970-01-01T01:00:00Z; c, which does not answer; 1 more";
    assert_eq!(said(&cut, &["d", "c"], 4), (true, Reason::PodsCutOff, message.to_owned()));

    let many: Vec<_> = (0..30).map(|number| cut_off(&format!("p{number}"), 1, Some(&"x".repeat(500)))).collect();
    let (_, _, message) = said(&many, &[], 6);
    assert!(message.ends_with("; 27 more") && message.len() < 4096, "{} bytes: {message}", message.len());
}

#[test]
fn a_store_says_how_many_pods_reach_it() {
    let build = |using: usize, lost: &[LostStore], previous: Option<&RateLimitStoreStatus>, now: i64| {
        build_store(&store(), using, lost, previous, at(now))
    };
    let condition = |status: &RateLimitStoreStatus| {
        let it = &status.conditions[0];
        (it.status.clone(), it.reason.clone(), it.last_transition_time.0.as_second())
    };
    let unused = build(0, &[], None, 1);
    assert_eq!(condition(&unused), ("Unknown".to_owned(), "Unused".to_owned(), 1));
    let mut of_apiserver = unused.clone();
    of_apiserver.conditions[0].last_transition_time = at(0).into();
    assert_eq!(condition(&build(0, &[], Some(&of_apiserver), 1)).2, 1, "its default is not a transition");
    let all = build(3, &[], Some(&unused), 2);
    assert_eq!(condition(&all), ("True".to_owned(), "Reached".to_owned(), 2));
    let cut = build(3, &[lost("b", 9, Some("refused"), false), lost("a", 8, None, false)], Some(&all), 3);
    assert_eq!(condition(&cut), ("False".to_owned(), "CutOff".to_owned(), 3));
    assert_eq!((cut.pods_using, cut.pods_reaching, cut.observed_generation), (3, 1, Some(4)));
    let pods: Vec<_> = cut.cut_off.iter().map(|it| (it.pod.as_str(), it.message.as_deref())).collect();
    assert_eq!(pods, [("a", None), ("b", Some("refused"))], "the pod that has been cut off longest must come first");
    let summary = cut.summary.clone().unwrap();
    assert_eq!((summary.backend.as_str(), summary.reached.as_str()), ("Redis Sentinel", "1/3"));
    // The time of the transition does not change.
    assert_eq!(condition(&build(4, &[lost("a", 8, None, false)], Some(&cut), 7)).2, 3);
}
