use std::sync::{Arc, LazyLock};

use serde_json::json;
use weir_api::DriftReason;

use super::*;
use crate::{
    compile::{Compiled, compile},
    status::stores::CutOffPod,
    tables::rows,
    world::{Fault, WorkloadKind},
};

fn compiled(good: bool, faults: Vec<Fault>) -> Compiled {
    let spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "rules": [{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
    let spec = serde_json::from_value(spec).unwrap();
    let (mut rules, target) = compile(&ObjectKey::new("shop", "p"), "p", &spec).unwrap();
    rules.wire.revision = "rev".to_owned();
    Compiled {
        uid: "p".to_owned(),
        generation: 7,
        created: None,
        changed: None,
        file: None,
        faults,
        policy: good.then(|| Arc::new(rules)),
        target: Some(target),
        good: None,
    }
}

/// A policy with three pods that enforce it, and that reach the operator and their stores.
fn facts(compiled: &Compiled) -> Facts<'_> {
    static NONE: LazyLock<(LostConnections, FleetCounts)> = LazyLock::new(Default::default);
    let (lost, fleet) = &*NONE;
    let traffic = (&[][..], Counts::default());
    Facts {
        compiled,
        missing: &[],
        podless: &[],
        bypasses: &[],
        left_out: 0,
        targeted: 3,
        others: &[],
        traffic,
        lost,
        fleet,
    }
}

fn enforcing(count: usize) -> Vec<Convergence> {
    vec![Convergence::Enforcing; count]
}

fn drifted(reason: DriftReason) -> Convergence {
    Convergence::Drifted(reason, "why".to_owned())
}

fn pending(reason: DriftReason) -> Convergence {
    Convergence::Pending(reason, "why".to_owned())
}

fn status_of(
    compiled: &Compiled,
    missing: &[Workload],
    convergences: &[Convergence],
    previous: Option<&RateLimitPolicyStatus>,
    now: i64,
) -> RateLimitPolicyStatus {
    let pods: Vec<ObjectKey> = (0..convergences.len()).map(|i| ObjectKey::new("shop", format!("pod-{i:02}"))).collect();
    let others =
        pods.iter().zip(convergences.iter().cloned()).filter(|(_, convergence)| *convergence != Convergence::Enforcing);
    let (others, targeted): (Vec<_>, usize) = (others.collect(), pods.len());
    let counts = Counts { allowed: 962, limited: 38, ..Counts::default() };
    let rules = [("all".to_owned(), counts)];
    let facts = Facts { missing, targeted, others: &others, traffic: (&rules, counts), ..facts(compiled) };
    build(&facts, previous, Timestamp::from_second(now).unwrap())
}

#[test]
fn conditions_say_what_the_pods_acknowledged() {
    let missing = [Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", "web") }];
    let fault = || vec![Fault { path: "spec.rules".to_owned(), message: "bad".to_owned() }];
    // The columns: Accepted, Enforced, Ready, Reconciling, Stalled and Programmed.
    let table = "
        valid | E E E | 3/3 | True Accepted | True Enforced | True Enforced | - | - | True Programmed
        valid | | 0/0 | True Accepted | False NoPods | True NoPods | - | - | True NoPods
        valid | E Drifted:Unreachable Pending:Pending | 1/3 | True Accepted | False Drifted | False Drifted | True Drifted | - | False Reconciling
        valid | E Drifted:Unreachable | 1/2 | True Accepted | False Drifted | False Drifted | True Drifted | - | False Reconciling
        valid | E Pending:Outdated | 1/2 | True Accepted | False Pending | False Pending | True Pending | - | False Reconciling
        valid | Drifted:Refused Pending:Pending | 0/2 | True Accepted | False Drifted | False Refused | - | True Refused | False Refused
        without its target | E | 1/1 | False TargetNotFound | False TargetNotFound | False TargetNotFound | True TargetNotFound | - | -
        without its store | E E E | 3/3 | False StoreNotFound | False Invalid | False StoreNotFound | True StoreNotFound | - | -
        never with its store | | 0/0 | False StoreNotFound | False Invalid | False StoreNotFound | True StoreNotFound | - | -
        invalid | E E | 2/2 | False Invalid | False Invalid | False Invalid | - | True Invalid | -
        never valid | | 0/0 | False Invalid | False Invalid | False Invalid | - | True Invalid | -
        ";
    for [policy, pods, count, expected @ ..] in rows::<9>(table) {
        let (faults, missing) = match policy {
            "valid" => (vec![], &[][..]),
            "without its target" => (vec![], &missing[..]),
            "without its store" | "never with its store" => (no_store(), &[][..]),
            _ => (fault(), &[][..]),
        };
        let convergence = |pod: &str| match pod.split_once(':') {
            Some(("Drifted", reason)) => drifted(serde_json::from_value(json!(reason)).unwrap()),
            Some((_, reason)) => pending(serde_json::from_value(json!(reason)).unwrap()),
            None => Convergence::Enforcing,
        };
        let convergences: Vec<_> = pods.split_whitespace().map(convergence).collect();
        let status = status_of(&compiled(!policy.starts_with("never"), faults), missing, &convergences, None, 1);
        let types = [ACCEPTED, ENFORCED, READY, RECONCILING, STALLED, PROGRAMMED];
        let found = types.map(|type_| said(&status, type_).map_or("-".to_owned(), |(is, why)| format!("{is} {why}")));
        assert_eq!(found, expected, "{policy}, {pods:?}");
        assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(7)), "{policy}");
        assert_eq!((&*status.summary.unwrap().enforced, status.observed_generation), (count, Some(7)), "{policy}");
    }
}

#[test]
fn a_policy_that_is_not_enforced_has_a_way_out() {
    let fault = || vec![Fault { path: "spec.rules".to_owned(), message: "bad".to_owned() }];
    let missing = [Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", "web") }];
    let status = status_of(&compiled(true, vec![]), &missing, &enforcing(1), None, 1);
    let expected = "not found: Deployment web: create it in the namespace of the policy, or correct spec.targetRefs";
    assert_eq!(condition(&status, ACCEPTED).message, expected);
    assert_eq!(condition(&status, ENFORCED).message, format!("{expected}; 1 of 1 pods enforce revision rev"));
    for (target, why) in [
        (None, "none in the namespace has all labels of spec.selector"),
        (Some(Target::Workloads(missing.to_vec())), "the workloads in spec.targetRefs have none"),
    ] {
        let compiled = compiled(true, vec![]);
        let compiled = Compiled { target: target.or(compiled.target), ..compiled };
        let status = status_of(&compiled, &[], &[], None, 1);
        assert_eq!(condition(&status, ENFORCED).message, format!("no running pod is targeted: {why}"));
    }
    let message = |compiled: &Compiled| condition(&status_of(compiled, &[], &[], None, 1), ENFORCED).message.clone();
    let invalid = message(&compiled(false, fault()));
    assert!(invalid.ends_with("fix the faults that the condition Accepted lists"), "{invalid}");
    let good = Some(GoodGeneration::claiming(6));
    let unreadable = Compiled { good, ..compiled(false, fault()) };
    let text = message(&unreadable);
    assert!(text.starts_with("this operator cannot read or compile generation 6"), "{text}");
    assert!(text.ends_with("use the version of the operator that accepted this generation"), "{text}");
    assert!(status_of(&unreadable, &[], &[], None, 1).last_known_good.is_some(), "the status must keep the generation");
}

fn no_store() -> Vec<Fault> {
    vec![Fault { path: "spec.rules[3].shared.storeRef.name".to_owned(), message: "there is no such store".to_owned() }]
}

fn condition<'a>(status: &'a RateLimitPolicyStatus, type_: &str) -> &'a Condition {
    status.conditions.iter().find(|condition| condition.type_ == type_).unwrap_or_else(|| panic!("no {type_}"))
}

fn said<'a>(status: &'a RateLimitPolicyStatus, type_: &str) -> Option<(&'a str, &'a str)> {
    let condition = status.conditions.iter().find(|condition| condition.type_ == type_)?;
    Some((&condition.status, &condition.reason))
}

#[test]
fn a_bypass_is_reported_and_a_main_way_prevents_enforced() {
    let compiled = compiled(true, vec![]);
    let service = || "web".to_owned();
    let port = Bypass::Port { service: service(), port: 80, app: 8080, agent: 8480 };
    let names = Bypass::Names { service: service(), app: 8080, agent: 8480 };
    let policy = Bypass::Policy { policy: "open".to_owned(), rule: "all".to_owned() };
    let expected = rows(
        "
        ServicePort | False | Bypassed | port 80 of Service web leads to port 8080 of the pods, past the agent
        HeadlessService | True | Enforced | headless Service web
        HostPort | False | Bypassed | hostPort 80 of the nodes leads to port 8080 of the pods, past the agent
        OtherPolicy | False | Bypassed | rule all of policy open lets every request
        ",
    );
    let ways = [port, names, Bypass::HostPort { port: 80, app: 8080 }, policy];
    for (way, [reason, holds, enforced, part]) in ways.into_iter().zip(expected) {
        let facts = Facts { bypasses: &[way], ..facts(&compiled) };
        let status = build(&facts, None, Timestamp::UNIX_EPOCH);
        assert_eq!(said(&status, BYPASSABLE), Some(("True", reason)));
        assert!(condition(&status, BYPASSABLE).message.contains(part), "{status:#?}");
        assert_eq!(said(&status, ENFORCED), Some((holds, enforced)), "{reason}");
        assert_eq!(said(&status, PROGRAMMED).map(|said| said.0), Some("True"), "{reason}");
        assert_eq!(said(&status, STALLED).is_some(), holds == "False", "{reason}");
    }
}

/// The operator is no `RateLimitStore`, so a policy with only rules of scope Fleet has no condition about stores.
#[test]
fn only_a_policy_of_scope_fleet_has_the_condition_about_the_operator() {
    let pods = ["a", "b", "c"].map(|name| ObjectKey::new("shop", name));
    let others = [(&pods[1], drifted(DriftReason::Unreachable)), (&pods[2], pending(DriftReason::Pending))];
    let cut_off = CutOffPod { name: pods[0].name.clone(), since_unix_millis: 0, error: None };
    let lost = LostConnections { operator: vec![cut_off], stores: Vec::new() };
    let (none, nobody) = (LostConnections::default(), &others[..0]);
    let status = |compiled: &Compiled, others: &[_], lost: &LostConnections| {
        build(&Facts { others, lost, ..facts(compiled) }, None, Timestamp::UNIX_EPOCH)
    };
    let found = |status: &RateLimitPolicyStatus| status.conditions.iter().any(|it| it.type_ == FLEET_DEGRADED);
    assert!(!found(&status(&compiled(true, vec![]), &others, &none)));
    let spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "rules": [{"name": "all", "scope": "Fleet", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
    let (rules, _) = compile(&ObjectKey::new("shop", "p"), "p", &serde_json::from_value(spec).unwrap()).unwrap();
    let fleet = Compiled { policy: Some(Arc::new(rules)), ..compiled(true, vec![]) };
    let unknown = FleetCounts { used_up: Some(UsedUpRules::default()), ..FleetCounts::default() };
    for (lost, last) in
        [(&none, "full credit again"), (&lost, "full credit again: ; 1 of 3 pods do not reach the operator")]
    {
        let facts = Facts { lost, fleet: &unknown, ..facts(&fleet) };
        let status = build(&facts, None, Timestamp::UNIX_EPOCH);
        assert_eq!(said(&status, FLEET_DEGRADED), Some(("True", "CountsUnknown")), "{status:#?}");
        let message = &condition(&status, FLEET_DEGRADED).message;
        assert!(message.contains("used up since") && message.contains(last), "{message}");
    }
    let leaving = FleetCounts { leaving: Some("pods that are being deleted".to_owned()), ..FleetCounts::default() };
    for (lost, message) in [
        (&none, "pods that are being deleted"),
        (
            &lost,
            "1 of 3 pods do not reach the operator and enforce their share of the limits: a since \
                 1970-01-01T00:00:00Z; pods that are being deleted",
        ),
    ] {
        let status = build(&Facts { lost, fleet: &leaving, ..facts(&fleet) }, None, Timestamp::UNIX_EPOCH);
        assert_eq!(said(&status, FLEET_DEGRADED), Some(("True", "PodsCutOff")), "{status:#?}");
        assert_eq!(condition(&status, FLEET_DEGRADED).message, message);
    }
    for (others, lost, expected, message) in [
        (nobody, &none, ("False", "Counted"), "all 3 pods"),
        (nobody, &lost, ("True", "PodsCutOff"), "1 of 3 pods"),
        (&others[..], &none, ("True", "PodsCutOff"), "1 of 3 pods"),
        (&others[..], &lost, ("True", "PodsCutOff"), "2 of 3 pods"),
    ] {
        let status = status(&fleet, others, lost);
        assert_eq!(said(&status, FLEET_DEGRADED), Some(expected), "{status:#?}");
        assert!(condition(&status, FLEET_DEGRADED).message.contains(message), "{status:#?}");
        assert!(status.conditions.iter().all(|it| it.type_ != STORE_REACHABLE), "{status:#?}");
    }
}

#[test]
fn a_policy_that_does_not_fit_is_not_accepted() {
    let compiled = compiled(true, vec![]);
    let status = build(&Facts { left_out: 2, ..facts(&compiled) }, None, Timestamp::UNIX_EPOCH);
    for type_ in [ACCEPTED, ENFORCED, READY] {
        assert_eq!(said(&status, type_), Some(("False", "SnapshotTooLarge")), "{type_}");
    }
    assert_eq!(said(&status, STALLED), Some(("True", "SnapshotTooLarge")));
    let message = &condition(&status, ACCEPTED).message;
    assert!(message.starts_with("does not fit into 2 of 3 pods: a pod has room for 1024 KiB"), "{message}");
}

#[test]
fn messages_name_numbers_and_culprits() {
    let convergences = [Convergence::Enforcing, drifted(DriftReason::Unreachable), drifted(DriftReason::NoAgent)];
    let status = status_of(&compiled(true, vec![]), &[], &convergences, None, 1);
    assert_eq!(
        condition(&status, ENFORCED).message,
        "1 of 3 pods enforce revision rev; pod-01 is Unreachable, pod-02 is NoAgent"
    );
    assert_eq!(status.summary.unwrap().limited, "3.8%");
    assert_eq!(status.revision.as_deref(), Some("rev"));
}

#[test]
fn a_transition_time_moves_only_when_the_status_flips() {
    let compiled = compiled(true, vec![]);
    let none = Vec::new();
    let time = |status: &RateLimitPolicyStatus| condition(status, ENFORCED).last_transition_time.0.as_second();
    let first = status_of(&compiled, &none, &[pending(DriftReason::Pending)], None, 10);
    let second = status_of(&compiled, &none, &[drifted(DriftReason::Unreachable)], Some(&first), 20);
    assert_eq!((time(&first), time(&second)), (10, 10), "the status stays the same with another reason");
    let third = status_of(&compiled, &none, &enforcing(1), Some(&second), 30);
    assert_eq!(time(&third), 30);
    let fourth = status_of(&compiled, &none, &enforcing(2), Some(&third), 40);
    assert_eq!(time(&fourth), 30);
}

#[test]
fn the_worst_ten_are_named() {
    let mut convergences = vec![pending(DriftReason::Pending); 6];
    convergences.extend(vec![drifted(DriftReason::NoAgent); 6]);
    convergences.push(drifted(DriftReason::Unreachable));
    let long = "é".repeat(300);
    convergences.push(Convergence::Drifted(DriftReason::Refused, long));
    let status = status_of(&compiled(true, vec![]), &[], &convergences, None, 1);
    let enforcement = status.enforcement.unwrap();
    assert_eq!((enforcement.pods_targeted, enforcement.pods_enforcing), (14, 0));
    let reasons: Vec<DriftReason> = enforcement.drifted.iter().map(|drift| drift.reason).collect();
    let mut expected = vec![DriftReason::Refused, DriftReason::Unreachable];
    expected.extend([DriftReason::NoAgent; 6]);
    expected.extend([DriftReason::Pending; 2]);
    assert_eq!(reasons, expected);
    let message = enforcement.drifted[0].message.as_ref().unwrap();
    assert!(message.len() <= 256 && message.ends_with('…'), "{} bytes", message.len());
}

#[test]
fn the_refused_share_is_rounded_down() {
    for (allowed, limited, expected) in [(0, 0, "0.0%"), (1, 9999, "99.9%"), (962, 38, "3.8%"), (0, 5, "100.0%")] {
        assert_eq!(limited_percent(Counts { allowed, limited, ..Counts::default() }), expected);
    }
}

/// The user of a policy with a domain can have forgotten the label of the service.
#[test]
fn a_policy_with_a_domain_and_without_pods_names_the_label() {
    let without = compiled(true, vec![]);
    let mut rules = without.policy.as_deref().unwrap().clone();
    rules.wire.domain = Some("shop".to_owned());
    let with = Compiled { policy: Some(Arc::new(rules)), ..without.clone() };
    for (compiled, is_named) in [(with, true), (without, false)] {
        let status = status_of(&compiled, &[], &[], None, 0);
        let enforced = status.conditions.iter().find(|it| it.type_ == "Enforced").unwrap();
        assert_eq!(enforced.message.contains("weir.dev/rate-limit-service: enabled"), is_named, "{}", enforced.message);
    }
}

#[test]
fn a_service_without_a_selector_is_named_while_no_pod_is_targeted() {
    let compiled = compiled(true, vec![]);
    let services = [Workload { kind: WorkloadKind::Service, key: ObjectKey::new("shop", "outside") }];
    let status = build(&Facts { targeted: 0, podless: &services, ..facts(&compiled) }, None, Timestamp::UNIX_EPOCH);
    let enforced = condition(&status, ENFORCED);
    let message = "no running pod is targeted: Service outside without a selector never targets a pod; name the workload \
                   of the pods instead";
    assert_eq!((enforced.reason.as_str(), enforced.message.as_str()), ("NoPods", message));
}
