use std::sync::Arc;

use serde_json::json;
use tokio::{
    net::TcpSocket,
    sync::{oneshot, watch},
};
use weir_wire::{Status, StoreStatus};

use super::*;
use crate::{
    fleet::{FleetCounter, Usage},
    link::{Lanes, Observation, ObservationSender, Seen, StatusInterval, Timing, observations},
    metrics::Metrics,
    world::{AgentAddress, Change, Membership, Pod, Policy, Store, StoredStatus},
};

fn engine(sender: ObservationSender, reports: mpsc::UnboundedSender<Message>) -> Engine {
    let timing = Timing::default();
    let context = LinkContext {
        credentials: None,
        files: None,
        timing: Arc::new(timing),
        lanes: Arc::new(Lanes::default()),
        observations: sender,
        metrics: Metrics::default(),
        term: Term::over(),
        fleet: FleetCounter::new(Term::over(), Metrics::default()),
        status_interval: Arc::new(StatusInterval::new(timing)),
    };
    Engine::new(context, Ready::default(), Heartbeat::new(Duration::ZERO), reports, Duration::from_secs(10))
}

fn moment() -> EngineMoment {
    EngineMoment { now: clock::now(), timestamp: clock::timestamp() }
}

fn agent() -> AgentAddress {
    AgentAddress::At("http://127.0.0.1:1".into())
}

fn fleet_policy() -> Policy {
    let limit = json!({"name": "all", "requests": 50, "per": "1s"});
    let rule = json!({"name": "all", "scope": "Fleet", "limits": [limit]});
    Policy::of_spec("p", 1, json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]}))
}

/// A list can show the second pod after a watch that missed the deletion of the first one.
#[tokio::test]
async fn a_new_pod_of_the_same_name_and_address_gets_a_new_link() {
    // Nothing listens on this port. The error names the pod that was dialed.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let url: Arc<str> = format!("http://{}", closed.local_addr().unwrap()).into();
    let ((sender, mut observed), (reports, _reported)) = (observations(), mpsc::unbounded_channel());
    let mut engine = engine(sender, reports);
    engine.handle(EngineEvent::Term(Some(Term::unbounded())));
    for uid in ["first", "second"] {
        let pod = Pod::running(uid, Membership::Everything, AgentAddress::At(url.clone()));
        let changes = vec![Change::Pod(ObjectKey::new("shop", "a"), Some(pod))];
        engine.handle(EngineEvent::Update(Update { changes, complete: true }));
        engine.handle(EngineEvent::Due);
        let told = async { while observed.recv().await.unwrap().pod_uid.as_ref() != uid {} };
        tokio::time::timeout(Duration::from_secs(90), told).await.unwrap_or_else(|_| panic!("no dial for {uid}"));
    }
}

/// Its agent can be cut off, and still have the rules. So the counter must know that the pod is not gone.
#[test]
fn a_pod_whose_policy_was_deleted_is_not_gone() {
    let mut machine = EngineMachine::new(Duration::from_secs(10));
    let mut expected = |event| {
        let actions = machine.handle(event, moment()).into_iter();
        let expected = actions.filter_map(|action| match action {
            EngineAction::Expect { uid, has_run, content, .. } => {
                Some((uid, has_run, content.map(|content| content.fleet.len())))
            }
            _ => None,
        });
        expected.collect::<Vec<_>>()
    };
    assert_eq!(expected(EngineEvent::Term(Some(Term::unbounded()))), []);
    let mut after = |change| {
        let update = Update { changes: vec![change], complete: true };
        assert_eq!(expected(EngineEvent::Update(update)), [], "changes are gathered");
        expected(EngineEvent::Due)
    };
    let (pod_key, policy_key) = (ObjectKey::new("shop", "a"), ObjectKey::new("shop", "checkout"));
    let policy = || Change::to_policy(&policy_key, fleet_policy());
    let pod = |has_run| Some(Pod { has_run, ..Pod::running("a", Membership::Everything, agent()) });

    after(Change::Pod(pod_key.clone(), pod(false)));
    assert_eq!(after(policy()), [("a".into(), false, Some(1))]);
    let a = |rules| [("a".into(), true, rules)];
    assert_eq!(after(Change::Pod(pod_key.clone(), pod(true))), a(Some(1)));
    assert_eq!(after(Change::Policy(policy_key.clone(), None)), a(Some(0)));
    assert_eq!(after(policy()), a(Some(1)));
    assert_eq!(after(Change::Pod(pod_key, None)), a(None));
}

/// The agent of a pod that is being deleted can be cut off, and continues. So its share is kept free until it is gone,
/// also by the next leader.
#[test]
fn a_pod_that_is_being_deleted_is_expected_until_it_is_gone() {
    let mut machine = EngineMachine::new(Duration::from_secs(10));
    let mut told = |event| {
        let told = machine.handle(event, moment()).into_iter().filter_map(|action| match action {
            EngineAction::Expect { uid, content: Some(content), .. } => {
                Some(format!("{uid} has {} rules", content.fleet.len()))
            }
            EngineAction::Expect { uid, content: None, .. } => Some(format!("{uid} is gone")),
            EngineAction::Leave { uid, .. } => Some(format!("{uid} leaves")),
            EngineAction::Unlink(pod) => Some(format!("no link to {}", pod.name)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    told(EngineEvent::Term(Some(Term::unbounded())));
    let key = ObjectKey::new("shop", "web");
    let pod = |uid: &str| Pod::running(uid, Membership::of_app("web"), agent());
    let leaving = |uid: &str| Change::Leaving(key.clone(), pod(uid));
    let mut after = |changes| {
        told(EngineEvent::Update(Update { changes, complete: true }));
        told(EngineEvent::Due)
    };
    let policy = Change::to_policy(&ObjectKey::new("shop", "api"), fleet_policy());
    assert_eq!(after(vec![policy, Change::Pod(key.clone(), Some(pod("a")))]), ["a has 1 rules"]);
    assert_eq!(after(vec![leaving("a")]), ["a leaves", "no link to web"]);
    assert_eq!(after(vec![leaving("a")]), [""; 0]);
    assert_eq!(after(vec![Change::Pod(key.clone(), Some(pod("b")))]), ["a is gone", "b has 1 rules"]);
    assert_eq!(after(vec![leaving("b")]), ["b leaves", "no link to web"]);
    assert_eq!(after(vec![leaving("c")]), ["b is gone", "c has 1 rules", "c leaves", "no link to web"]);
    told(EngineEvent::Term(Some(Term::unbounded())));
    assert_eq!(told(EngineEvent::Due), ["c has 1 rules", "c leaves", "no link to web"]);
    let gone = Update { changes: vec![Change::Pod(key.clone(), None)], complete: true };
    told(EngineEvent::Update(gone));
    assert_eq!(told(EngineEvent::Due), ["c is gone", "no link to web"]);
}

/// Until then, each replaced what the other had, and the link looked for another operator.
#[test]
fn a_pod_that_has_its_address_for_itself_again_gets_a_new_link() {
    let mut machine = EngineMachine::new(Duration::from_secs(10));
    let mut links = |event| {
        let actions = machine.handle(event, moment()).into_iter();
        let link = |action| match action {
            EngineAction::Link { pod, .. } => Some(pod.name.to_string()),
            _ => None,
        };
        actions.filter_map(link).collect::<Vec<_>>()
    };
    links(EngineEvent::Term(Some(Term::unbounded())));
    let after = |links: &mut dyn FnMut(EngineEvent) -> Vec<String>, name: &str, url: Option<&str>| {
        let pod = url.map(|url| Pod::running(name, Membership::Everything, AgentAddress::At(url.into())));
        let changes = vec![Change::Pod(ObjectKey::new("shop", name), pod)];
        links(EngineEvent::Update(Update { changes, complete: true }));
        links(EngineEvent::Due)
    };
    for url in [None, Some("http://2:1")] {
        assert_eq!(after(&mut links, "a", Some("http://1:1")), ["a"]);
        assert_eq!(after(&mut links, "b", Some("http://1:1")), ["b"]);
        let (pod, pod_uid) = (ObjectKey::new("shop", "a"), "a".into());
        let contested = Observation { pod, pod_uid, at: clock::now(), seen: Seen::Contested(true) };
        links(EngineEvent::Observed(contested));
        let new: Vec<&str> = url.map(|_| "b").into_iter().chain(["a"]).collect();
        assert_eq!(after(&mut links, "b", url), new, "{url:?}");
        assert_eq!(after(&mut links, "c", None), [""; 0], "one new link is enough");
        after(&mut links, "a", None);
    }
}

/// A policy was replaced by one of the same name. The status of the first must not be written to the new object.
#[tokio::test]
async fn a_new_policy_of_the_same_name_gets_a_new_record() {
    let ((sender, _observed), (reports, mut reported)) = (observations(), mpsc::unbounded_channel());
    let mut engine = engine(sender, reports);
    engine.handle(EngineEvent::Term(Some(Term::unbounded())));
    let limit = json!({"name": "all", "requests": 50, "per": "1s"});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [{"name": "all", "limits": [limit]}]});
    for uid in ["first", "second"] {
        let policy = Policy::of_spec(uid, 1, spec.clone());
        let stored = StoredStatus { status: None, version: Some(format!("version of the {uid}")) };
        let change = Change::Policy(ObjectKey::new("shop", "checkout"), Some((policy, stored)));
        engine.handle(EngineEvent::Update(Update { changes: vec![change], complete: true }));
        engine.handle(EngineEvent::StatusesWritten(Duration::ZERO));
        engine.handle(EngineEvent::Due);
        let told = std::iter::from_fn(|| reported.try_recv().ok());
        let reports = told.filter_map(|message| match message {
            Message::Status(report) => Some((report.uid, report.version)),
            _ => None,
        });
        assert_eq!(reports.collect::<Vec<_>>(), [(uid.to_owned(), Some(format!("version of the {uid}")))]);
    }
}

/// The term ends after the source showed that a policy was replaced by one of the same name, and before the next plan.
/// The status of the first policy must not count as the status of the second, to which no status was written.
#[tokio::test]
async fn a_policy_that_was_replaced_just_before_a_new_term_gets_its_status() {
    let ((sender, _observed), (reports, mut reported)) = (observations(), mpsc::unbounded_channel());
    let mut engine = engine(sender, reports);
    let (key, spec) = (ObjectKey::new("shop", "checkout"), json!({"rules": [{"name": "all", "action": "Bypass"}]}));
    let show = |engine: &mut Engine, uid: &str, status| {
        let policy = Policy::of_spec(uid, 1, spec.clone());
        let stored = StoredStatus { status, version: None };
        let change = Change::Policy(key.clone(), Some((policy, stored)));
        engine.handle(EngineEvent::Update(Update { changes: vec![change], complete: true }));
    };
    let mut written = || match std::iter::from_fn(|| reported.try_recv().ok()).last() {
        Some(Message::Status(report)) => Some(report),
        _ => None,
    };
    engine.handle(EngineEvent::Term(Some(Term::unbounded())));
    show(&mut engine, "first", None);
    engine.handle(EngineEvent::Due);
    let first = written().expect("the first policy needs a status");
    show(&mut engine, "first", Some(Box::new(first.status)));
    show(&mut engine, "second", None);
    engine.handle(EngineEvent::Term(None));
    engine.handle(EngineEvent::Term(Some(Term::unbounded())));
    engine.handle(EngineEvent::StatusesWritten(Duration::ZERO));
    engine.handle(EngineEvent::Due);
    assert_eq!(written().map(|report| report.uid), Some("second".to_owned()));
}

/// The agent of such a pod has the rules in force, and does not connect to the store.
#[test]
fn a_pod_without_the_secrets_of_a_store_needs_a_restart() {
    let (policy_key, store_key) = (ObjectKey::new("shop", "checkout"), ObjectKey::new("shop", "limits"));
    for (annotation, expected) in [(None, "RestartNeeded"), (Some("shop.limits=redis+"), "CutOff")] {
        let mut machine = EngineMachine::new(Duration::from_secs(10));
        let start = clock::now();
        let mut handle = |event, seconds| {
            let moment = EngineMoment { now: start + Duration::from_secs(seconds), timestamp: clock::timestamp() };
            machine.handle(event, moment)
        };
        let limit = json!({"name": "all", "requests": 50, "per": "1s"});
        let shared = json!({"storeRef": {"name": "limits"}});
        let rule = json!({"name": "all", "scope": "Shared", "shared": shared, "limits": [limit]});
        let policy = Policy::of_spec("p", 1, json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]}));
        let spec = json!({"redis": {"endpoints": ["redis:6379"], "credentialsSecretRef": {"name": "redis"}}});
        let spec = Ok(Arc::new(serde_json::from_value(spec).unwrap()));
        let store = Store { uid: "s".to_owned(), generation: 1, spec };
        let pod =
            Pod { store_secrets: annotation.map(Into::into), ..Pod::running("a", Membership::of_app("web"), agent()) };
        let changes = vec![
            Change::to_policy(&policy_key, policy),
            Change::Store(store_key.clone(), Some((store, None))),
            Change::Pod(ObjectKey::new("shop", "a"), Some(pod)),
        ];
        handle(EngineEvent::Term(Some(Term::unbounded())), 0);
        handle(EngineEvent::Update(Update { changes, complete: true }), 0);
        let link = handle(EngineEvent::Due, 0).into_iter().find_map(|action| match action {
            EngineAction::Link { content, .. } => Some(content),
            _ => None,
        });
        let error = Some("no --store-secrets".to_owned());
        let lost = StoreStatus { name: store_key.to_string(), reached: false, since_unix_millis: 7000, error };
        let status = Status { stores: vec![lost], ..Status::default() };
        for seen in [Seen::Acknowledged(link.expect("a link")), Seen::Status(Arc::new(status))] {
            let (pod, pod_uid) = (ObjectKey::new("shop", "a"), "a".into());
            handle(EngineEvent::Observed(Observation { pod, pod_uid, at: start, seen }), 1);
        }
        let told =
            handle(EngineEvent::WriteStatuses(Usage::default()), 60).into_iter().find_map(|action| match action {
                EngineAction::Send(Message::Status(report)) => {
                    report.status.conditions.into_iter().find(|it| it.type_ == "StoreReachable")
                }
                _ => None,
            });
        let told = told.expect("a condition");
        assert_eq!((told.status.as_str(), told.reason.as_str()), ("False", expected), "{}", told.message);
        assert!(told.message.contains("no --store-secrets"), "{}", told.message);
    }
}

/// The webhook runs for some seconds after the engine has stopped.
#[tokio::test]
async fn an_engine_answers_after_its_end_but_not_before_its_world_is_complete() {
    for complete in [true, false] {
        let (updates, incoming) = mpsc::channel(1);
        let (sender, observed) = observations();
        let ((reports, _reported), (_sender, written)) = (mpsc::unbounded_channel(), mpsc::channel(1));
        let ((requests, mut asked), (_terms, terms)) = (mpsc::channel(1), watch::channel(None));
        let engine = engine(sender, reports);
        let stop = CancellationToken::new();
        let told = async {
            updates.send(Update { changes: Vec::new(), complete }).await.unwrap();
            // When the channel has room for another update, the engine has applied the first one.
            updates.send(Update { changes: Vec::new(), complete: false }).await.unwrap();
            updates.send(Update { changes: Vec::new(), complete: false }).await.unwrap();
            stop.cancel();
        };
        let (known, ()) = tokio::join!(engine.run(incoming, observed, written, &mut asked, terms, stop.clone()), told);

        let (answer, answered) = oneshot::channel();
        let request = ContentRequest { namespace: "shop".to_owned(), membership: Membership::Everything, answer };
        requests.send(request).await.unwrap();
        tokio::select! {
            never = known.unwrap().answer(&mut asked) => match never {},
            answer = answered => assert_eq!(answer.is_ok(), complete),
        }
    }
}

/// Returns a policy for paths.
fn policy(name: &str, expression: &str) -> Change {
    let limit = json!({"name": "a", "requests": 1, "per": "1s"});
    let rule = json!({"name": "all", "match": [{"pathRegexes": [expression]}], "limits": [limit]});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]});
    Change::to_policy(&ObjectKey::new("shop", name), Policy::of_spec(name, 1, spec))
}

/// The work for a policy with faults is not known, and can be large.
#[test]
fn policies_are_compiled_in_slices_and_planned_together() {
    let mut machine = EngineMachine::new(Duration::from_secs(10));
    let moment = moment();
    let membership = Membership::of_app("web");
    let content = |machine: &EngineMachine| Some(machine.content_for_pod("shop", &membership)?.policies.len());
    let changes = vec![policy("a", "("), policy("b", "("), policy("c", "("), policy("d", "/d"), policy("e", "/e")];
    machine.handle(EngineEvent::Term(Some(Term::unbounded())), moment);
    machine.handle(EngineEvent::Update(Update { changes, complete: true }), moment);
    for event in [EngineEvent::Due, EngineEvent::Tick, EngineEvent::Due] {
        let actions = machine.handle(event, moment);
        assert!(actions.is_empty(), "a report or a push before the plan: {actions:?}");
        assert!(machine.is_compiling() && machine.due() == Some(moment.now));
        assert_eq!(content(&machine), None, "a pod would lose its other policies");
    }
    let actions = machine.handle(EngineEvent::Due, moment);
    assert!(actions.iter().any(|action| matches!(action, EngineAction::Ready)), "{actions:?}");
    assert!(!machine.is_compiling() && content(&machine) == Some(2));

    // A change in between is part of the same plan.
    let changes = vec![policy("f", "("), policy("g", "("), policy("h", "/h")];
    machine.handle(EngineEvent::Update(Update { changes, complete: false }), moment);
    machine.handle(EngineEvent::Due, moment);
    assert!(machine.is_compiling());
    let changes = vec![policy("i", "/i"), Change::Policy(ObjectKey::new("shop", "e"), None)];
    machine.handle(EngineEvent::Update(Update { changes, complete: false }), moment);
    let slices = std::iter::repeat_with(|| machine.handle(EngineEvent::Due, moment));
    let is_planned = |actions: &Vec<EngineAction>| actions.iter().any(|it| matches!(it, EngineAction::Ready));
    assert!(slices.take(9).any(|actions| is_planned(&actions)), "the policies are never planned");
    assert_eq!(content(&machine), Some(3), "d, h and i");
}

/// Until then, a new pod of the namespace would get none of its policies.
#[test]
fn a_namespace_that_is_listed_again_has_contents_after_the_next_plan() {
    let moment = moment();
    let membership = Membership::of_app("web");
    let content = |machine: &EngineMachine| Some(machine.content_for_pod("shop", &membership)?.policies.len());
    for (policies, expected) in [(vec![policy("a", "/a")], 1), (Vec::new(), 0)] {
        let mut machine = EngineMachine::new(Duration::from_secs(10));
        let lost = vec![Change::Lost("shop".into(), true)];
        machine.handle(EngineEvent::Update(Update { changes: lost, complete: true }), moment);
        machine.handle(EngineEvent::Due, moment);
        assert_eq!(content(&machine), None, "its policies are not known");
        let changes = policies.into_iter().chain([Change::Lost("shop".into(), false)]).collect();
        machine.handle(EngineEvent::Update(Update { changes, complete: false }), moment);
        assert_eq!(content(&machine), None, "its policies are not compiled");
        machine.handle(EngineEvent::Due, moment);
        assert_eq!(content(&machine), Some(expected));
    }
}

/// A start of the operator and a change of a policy return some of them for each pod at once.
#[test]
fn an_action_is_small() {
    assert!(size_of::<EngineAction>() <= 80, "{} bytes", size_of::<EngineAction>());
}
