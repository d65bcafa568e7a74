use std::sync::Arc;

use weir_wire::{PolicyStatus, SnapshotInForce, Status};

use super::*;
use crate::{link::Failure, world::Membership};

fn key() -> ObjectKey {
    ObjectKey::new("shop", "a")
}

fn pod(agent: AgentAddress) -> Pod {
    Pod { uid: "pod".to_owned(), membership: Membership::Everything.into(), agent, has_run: true, store_secrets: None }
}

fn failed(kind: FailureKind) -> Seen {
    Seen::Failed(Failure { kind, message: "why".to_owned() })
}

/// Returns the agent's report that this revision of policy `p` is in force; `None` for no policy.
fn enforces(revision: Option<&str>) -> Seen {
    let policy = |revision: &str| PolicyStatus {
        uid: "p".to_owned(),
        namespace: "shop".to_owned(),
        name: "p".to_owned(),
        revision: revision.to_owned(),
        rules: Vec::new(),
    };
    Seen::Status(Arc::new(Status {
        wire_version: 1,
        instance: "i".to_owned(),
        agent_version: "0".to_owned(),
        uptime_millis: 1,
        in_force: revision.map(|_| SnapshotInForce { sequence: 1, revision: "s".to_owned(), since_unix_millis: 0 }),
        policies: revision.map(policy).into_iter().collect(),
        stores: Vec::new(),
    }))
}

#[tokio::test(start_paused = true)]
async fn the_standing_of_a_pod_follows_its_observations() {
    use DriftReason::{NoAgent, Outdated, Pending, Refused, Unreachable};
    use FailureKind as Kind;
    let (soon, late) = (Duration::from_secs(1), ANSWER_TIME + Duration::from_secs(1));
    let here = || AgentAddress::At("http://1:1".into());
    let (enforcing, waiting, drifted) = (("enforcing", None), |r| ("waiting", Some(r)), |r| ("drifted", Some(r)));
    for (what, agent, received, after, expected) in [
        ("no agent", AgentAddress::None("why".into()), vec![], soon, drifted(NoAgent)),
        ("no address", AgentAddress::Pending, vec![], late, waiting(Pending)),
        ("no observation yet", here(), vec![], soon, waiting(Pending)),
        ("silent from the start", here(), vec![failed(Kind::Unreachable)], soon, waiting(Pending)),
        ("silent for long", here(), vec![failed(Kind::Unreachable)], late, drifted(Unreachable)),
        ("in force", here(), vec![enforces(Some("new"))], late, enforcing),
        ("the old revision", here(), vec![enforces(Some("old"))], soon, waiting(Outdated)),
        ("the old revision for long", here(), vec![enforces(Some("old"))], late, drifted(Outdated)),
        ("restarted and empty", here(), vec![enforces(Some("new")), enforces(None)], late, drifted(Outdated)),
        ("overwritten", here(), vec![enforces(Some("new")), Seen::Contested(true)], soon, drifted(Outdated)),
        (
            "overwritten no more",
            here(),
            vec![enforces(Some("new")), Seen::Contested(true), Seen::Contested(false)],
            soon,
            enforcing,
        ),
        ("went silent", here(), vec![enforces(Some("new")), failed(Kind::Unreachable)], soon, drifted(Unreachable)),
        (
            "came back",
            here(),
            vec![enforces(Some("new")), failed(Kind::Unreachable), enforces(Some("new"))],
            soon,
            enforcing,
        ),
        ("refuses", here(), vec![enforces(Some("old")), failed(Kind::Rejected)], soon, drifted(Refused)),
        (
            "rejects the content and continues to answer",
            here(),
            vec![failed(Kind::Rejected), enforces(Some("old"))],
            soon,
            drifted(Refused),
        ),
        (
            "keeps what this operator cannot read",
            here(),
            vec![enforces(Some("old")), failed(Kind::Withheld), enforces(Some("old"))],
            soon,
            drifted(Outdated),
        ),
        ("rejects another policy", here(), vec![enforces(Some("new")), failed(Kind::Rejected)], late, enforcing),
    ] {
        let start = Instant::now();
        let mut observed = Observed::default();
        observed.track(start, &key(), "pod", &"http://1:1".into());
        for seen in received {
            observed.observe(&Observation { pod: key(), pod_uid: "pod".to_owned(), at: start, seen }, None);
        }
        let wanted = Wanted { uid: "p", revision: "new", since: start };
        let convergence = match observed.convergence(start + after, &key(), &pod(agent), wanted) {
            Convergence::Enforcing => ("enforcing", None),
            Convergence::Pending(reason, _) => ("waiting", Some(reason)),
            Convergence::Drifted(reason, _) => ("drifted", Some(reason)),
        };
        assert_eq!(convergence, expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn observations_of_an_earlier_pod_do_not_count() {
    let now = Instant::now();
    let mut observed = Observed::default();
    observed.track(now, &key(), "pod", &"http://1:1".into());
    let before = Observation { pod: key(), pod_uid: "before".to_owned(), at: now, seen: enforces(Some("new")) };
    assert!(!observed.observe(&before, None));
    assert!(!observed.received(&key()));
}

/// A link that is replaced may have reported just before its end.
#[tokio::test(start_paused = true)]
async fn observations_of_an_earlier_agent_of_the_pod_do_not_count() {
    let before = Instant::now();
    let now = before + Duration::from_secs(1);
    let told = |at, seen| Observation { pod: key(), pod_uid: "pod".to_owned(), at, seen };
    let mut observed = Observed::default();
    assert!(observed.track(before, &key(), "pod", &"http://1:1".into()));
    assert!(observed.observe(&told(before, enforces(Some("new"))), None));
    assert!(!observed.track(now, &key(), "pod", &"http://1:1".into()), "the agent is already observed");
    assert!(observed.track(now, &key(), "pod", &"http://1:2".into()));
    assert!(!observed.received(&key()), "the report of the agent at the other address must not count");
    assert!(!observed.observe(&told(before, Seen::Contested(true)), None));
    observed.observe(&told(now, enforces(Some("new"))), None);
    let wanted = Wanted { uid: "p", revision: "new", since: now };
    assert_eq!(
        observed.convergence(now, &key(), &pod(AgentAddress::At("http://1:2".into())), wanted),
        Convergence::Enforcing
    );
}

#[tokio::test(start_paused = true)]
async fn only_changed_observations_count_as_changes() {
    let now = Instant::now();
    let mut observed = Observed::default();
    observed.track(now, &key(), "pod", &"http://1:1".into());
    let mut tell = |seen| observed.observe(&Observation { pod: key(), pod_uid: "pod".to_owned(), at: now, seen }, None);
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
    observed.track(now, &key(), "pod", &"http://1:1".into());
    observed
        .observe(&Observation { pod: key(), pod_uid: "pod".to_owned(), at: now, seen: Seen::Contested(true) }, None);
    assert_eq!(message(&observed), CONTESTED);
    let twin = ObjectKey::new("shop", "twin");
    observed.track(now, &twin, "twin", &"http://1:1".into());
    let told = message(&observed);
    assert!(told.starts_with("the pod shop/twin has the same address http://1:1, and"), "{told}");
    observed.track(now, &twin, "twin", &"http://1:2".into());
    assert_eq!(message(&observed), CONTESTED);
    assert_eq!(observed.take_uncontested(), Some(key()));
    assert_eq!((observed.take_uncontested(), observed.received(&key())), (None, false));
}
