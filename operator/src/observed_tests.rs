use std::sync::Arc;

use weir_wire::{PolicyStatus, SnapshotInForce, Status};

use super::*;
use crate::{link::Failure, tables::rows, world::Membership};

fn key() -> ObjectKey {
    ObjectKey::new("shop", "a")
}

fn pod(agent: AgentAddress) -> Pod {
    Pod::running("pod", Membership::Everything, agent)
}

/// Returns the time now, and the observations of the pod, which has an agent since then.
fn tracked() -> (Instant, Observed) {
    let (now, mut observed) = (Instant::now(), Observed::default());
    observed.track(now, &key(), &"pod".into(), &"http://1:1".into());
    (now, observed)
}

fn observation(at: Instant, seen: Seen) -> Observation {
    Observation { pod: key(), pod_uid: "pod".into(), at, seen }
}

fn failed(kind: FailureKind) -> Seen {
    Seen::Failed(Failure { kind, message: "why".to_owned() })
}

/// Returns the agent's report that this revision of policy `p` is in force, or `None` for no policy.
fn enforces(revision: Option<&str>) -> Seen {
    let of_p =
        |revision: &str| PolicyStatus { uid: "p".to_owned(), revision: revision.to_owned(), ..PolicyStatus::default() };
    Seen::Status(Arc::new(Status {
        in_force: revision.map(|_| SnapshotInForce { sequence: 1, revision: "s".to_owned(), since_unix_millis: 0 }),
        policies: revision.map(of_p).into_iter().collect(),
        ..Status::default()
    }))
}

#[tokio::test(start_paused = true)]
async fn the_standing_of_a_pod_follows_its_observations() {
    // The columns: the agent, what is observed, whether soon or late, and the standing with its reason.
    for [what, agent, received, time, expected] in rows(
        "
        no agent | none | | soon | drifted NoAgent
        no address | pending | | late | waiting Pending
        no observation yet | here | | soon | waiting Pending
        silent from the start | here | silent | soon | waiting Pending
        silent for long | here | silent | late | drifted Unreachable
        in force | here | new | late | enforcing
        the old revision | here | old | soon | waiting Outdated
        the old revision for long | here | old | late | drifted Outdated
        restarted and empty | here | new empty | late | drifted Outdated
        overwritten | here | new contested | soon | drifted Outdated
        overwritten no more | here | new contested uncontested | soon | enforcing
        went silent | here | new silent | soon | drifted Unreachable
        came back | here | new silent new | soon | enforcing
        refuses | here | old rejected | soon | drifted Refused
        rejects the content and continues to answer | here | rejected old | soon | drifted Refused
        keeps what this operator cannot read | here | old withheld old | soon | drifted Outdated
        rejects another policy | here | new rejected | late | enforcing
        ",
    ) {
        let agent = match agent {
            "none" => AgentAddress::None("why".into()),
            "pending" => AgentAddress::Pending,
            _ => AgentAddress::At("http://1:1".into()),
        };
        let received = received.split_whitespace().map(|seen| match seen {
            "silent" => failed(FailureKind::Unreachable),
            "rejected" => failed(FailureKind::Rejected),
            "withheld" => failed(FailureKind::Withheld),
            "contested" | "uncontested" => Seen::Contested(seen == "contested"),
            revision => enforces(Some(revision).filter(|revision| *revision != "empty")),
        });
        let after = Duration::from_secs(1) + if time == "late" { ANSWER_TIME } else { Duration::ZERO };
        let (start, mut observed) = tracked();
        for seen in received {
            observed.observe(&observation(start, seen), None);
        }
        let wanted = Wanted { uid: "p", revision: "new", since: start };
        let convergence = match observed.convergence(start + after, &key(), &pod(agent), wanted) {
            Convergence::Enforcing => "enforcing".to_owned(),
            Convergence::Pending(reason, _) => format!("waiting {reason:?}"),
            Convergence::Drifted(reason, _) => format!("drifted {reason:?}"),
        };
        assert_eq!(convergence, expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn observations_of_an_earlier_pod_do_not_count() {
    let (now, mut observed) = tracked();
    let before = Observation { pod_uid: "before".into(), ..observation(now, enforces(Some("new"))) };
    assert!(!observed.observe(&before, None));
    assert!(!observed.received(&key()));
}

/// A link that is replaced may have reported just before its end.
#[tokio::test(start_paused = true)]
async fn observations_of_an_earlier_agent_of_the_pod_do_not_count() {
    let before = Instant::now();
    let now = before + Duration::from_secs(1);
    let mut observed = Observed::default();
    assert!(observed.track(before, &key(), &"pod".into(), &"http://1:1".into()));
    assert!(observed.observe(&observation(before, enforces(Some("new"))), None));
    assert!(!observed.track(now, &key(), &"pod".into(), &"http://1:1".into()), "the agent is already observed");
    assert!(observed.track(now, &key(), &"pod".into(), &"http://1:2".into()));
    assert!(!observed.received(&key()), "the report of the agent at the other address must not count");
    assert!(!observed.observe(&observation(before, Seen::Contested(true)), None));
    observed.observe(&observation(now, enforces(Some("new"))), None);
    let wanted = Wanted { uid: "p", revision: "new", since: now };
    let pod = pod(AgentAddress::At("http://1:2".into()));
    assert_eq!(observed.convergence(now, &key(), &pod, wanted), Convergence::Enforcing);
}

#[tokio::test(start_paused = true)]
async fn only_changed_observations_count_as_changes() {
    let (now, mut observed) = tracked();
    let mut tell = |seen| observed.observe(&observation(now, seen), None);
    assert!(tell(enforces(Some("new"))));
    assert!(!tell(enforces(Some("new"))));
    assert!(tell(failed(FailureKind::Unreachable)));
    assert!(!tell(failed(FailureKind::Unreachable)));
    assert!(tell(enforces(Some("new"))));
}

#[tokio::test(start_paused = true)]
async fn another_pod_at_the_address_of_an_agent_is_named() {
    let now = Instant::now();
    let mut observed = Observed::default();
    let message = |observed: &Observed| {
        let wanted = Wanted { uid: "p", revision: "new", since: now };
        match observed.convergence(now, &key(), &pod(AgentAddress::At("http://1:1".into())), wanted) {
            Convergence::Drifted(DriftReason::Outdated, message) => message,
            convergence => panic!("{convergence:?}"),
        }
    };
    observed.track(now, &key(), &"pod".into(), &"http://1:1".into());
    observed.observe(&observation(now, Seen::Contested(true)), None);
    assert_eq!(message(&observed), CONTESTED);
    let twin = ObjectKey::new("shop", "twin");
    observed.track(now, &twin, &"twin".into(), &"http://1:1".into());
    let told = message(&observed);
    assert!(told.starts_with("the pod shop/twin has the same address http://1:1, and"), "{told}");
    observed.track(now, &twin, &"twin".into(), &"http://1:2".into());
    assert_eq!(message(&observed), CONTESTED);
    assert_eq!(observed.take_uncontested(), Some(key()));
    assert_eq!((observed.take_uncontested(), observed.received(&key())), (None, false));
}
