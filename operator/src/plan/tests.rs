use jiff::Timestamp;
use kube::core::Selector;
use proptest::{collection::vec, prelude::*};
use serde_json::json;
use weir_api::LastKnownGood;
use weir_wire::Snapshot;

use super::*;
use crate::{
    compile::Compiler,
    pod_ports::{PodPorts, Service},
    world::{AgentAddress, Change, Fault, Pod, Policy, WorkloadKind},
};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the ports of a template with an agent at 8480 in front of an app at 8080.
fn guarded(labels: BTreeMap<String, String>) -> Membership {
    let ports = PodPorts { guarded: Some(8080), agent: 8480, names: BTreeMap::new(), host_port: None };
    Membership::Pod { labels, ports, controller: None }
}

fn service(labels: BTreeMap<String, String>, target_port: u16) -> (Option<Selector>, Service) {
    let object = json!({"spec": {"ports": [{"port": 80, "targetPort": target_port}]}, "metadata": {}});
    (Some(labels.into_iter().collect()), Service::of(&serde_json::from_value(object).unwrap()))
}

fn add_pod(world: &mut World, namespace: &str, name: &str, membership: Membership, agent: AgentAddress) {
    let pod = Pod::running(&format!("uid-{name}"), membership, agent);
    apply(world, Change::Pod(ObjectKey::new(namespace, name), Some(pod)));
}

fn at(url: &str) -> AgentAddress {
    AgentAddress::At(url.into())
}

fn policy(key: &ObjectKey, version: i64, target: &serde_json::Value) -> Policy {
    let limit = json!({"name": "a", "requests": 50 + version, "per": "1s"});
    let mut spec = json!({"rules": [{"name": "all", "limits": [limit]}]});
    spec.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
    let created = Some(Timestamp::from_second(version).unwrap());
    Policy { created, ..Policy::of_spec(&format!("uid-{}", key.name), version, spec) }
}

fn add_policy(world: &mut World, key: &ObjectKey, created: i64, target: &serde_json::Value) {
    apply(world, Change::to_policy(key, policy(key, created, target)));
}

fn by_app(app: &str) -> serde_json::Value {
    json!({"selector": {"matchLabels": {"app": app}}})
}

fn apply(world: &mut World, change: Change) {
    world.apply(change, &mut DirtySet::default());
}

/// Returns a dirty set of the whole world.
fn everything(world: &World) -> DirtySet {
    DirtySet {
        policies: world.policies.keys().cloned().collect(),
        stores: world.stores.keys().cloned().collect(),
        pods: world.pods.keys().cloned().collect(),
        workloads: world.workloads.keys().cloned().collect(),
    }
}

/// Returns a plan of the whole world, computed from the beginning.
fn planned(world: &World) -> Plan {
    let mut compiler = Compiler::default();
    let mut dirty = everything(world);
    let mut plan = Plan::default();
    compiler.update(world, &mut dirty, |_| None);
    plan.update(world, compiler.compiled(), &dirty);
    plan
}

fn pods_of(plan: &Plan, policy: &ObjectKey) -> Vec<String> {
    let targets = plan.targets(policy).unwrap();
    let cohorts = targets.cohorts.iter().map(|id| &plan.cohorts[id]);
    let pods: BTreeSet<_> = cohorts.flat_map(|cohort| &cohort.pods).map(ToString::to_string).collect();
    assert_eq!(pods.len(), targets.pods);
    pods.into_iter().collect()
}

fn content(plan: &Plan, namespace: &str, name: &str) -> Arc<Content> {
    plan.cohort(&ObjectKey::new(namespace, name)).unwrap().content.clone()
}

/// Policies with a domain target only rate limit services, and other policies only other agents.
#[test]
fn a_domain_selects_rate_limit_services() {
    let service = || labels(&[("app", "web"), ("weir.dev/rate-limit-service", "enabled")]);
    let mut world = World::default();
    add_pod(&mut world, "shop", "proxy", Membership::of_app("web"), at("http://1:1"));
    add_pod(&mut world, "shop", "service", Membership::of_labels(service()), at("http://2:1"));
    add_pod(&mut world, "agents", "labelled", Membership::Labelled(service()), at("http://3:1"));
    add_pod(&mut world, "agents", "any", Membership::Everything, at("http://4:1"));
    let selector = by_app("web");
    let of_domain = json!({"selector": {"matchLabels": {"app": "web"}}, "domain": "shop"});
    for (target, pods) in
        [(&selector, vec!["agents/any", "shop/proxy"]), (&of_domain, vec!["agents/labelled", "shop/service"])]
    {
        let key = ObjectKey::new("shop", "p");
        add_policy(&mut world, &key, 1, target);
        assert_eq!(pods_of(&planned(&world), &key), pods, "{target}");
        world.policies.clear();
    }
}

#[test]
fn who_is_targeted() {
    let web = labels(&[("app", "web")]);
    let mut world = World::default();
    add_pod(&mut world, "shop", "web", Membership::of_labels(web.clone()), at("http://1:1"));
    add_pod(&mut world, "shop", "bare", Membership::of_labels(web.clone()), AgentAddress::None("why".into()));
    add_pod(&mut world, "shop", "db", Membership::of_app("db"), at("http://2:1"));
    add_pod(&mut world, "other", "web", Membership::of_labels(web.clone()), at("http://3:1"));
    for (kind, name, selector) in
        [(WorkloadKind::Deployment, "web", Some(web.into_iter().collect())), (WorkloadKind::Service, "empty", None)]
    {
        apply(&mut world, Change::Workload(Workload { kind, key: ObjectKey::new("shop", name) }, Some(selector)));
    }
    for (target, pods, missing) in [
        (by_app("web"), vec!["shop/bare", "shop/web"], vec![]),
        (json!({"selector": {"matchLabels": {"app": "web", "x": "y"}}}), vec![], vec![]),
        (json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]}), vec!["shop/bare", "shop/web"], vec![]),
        (json!({"targetRefs": [{"kind": "Service", "name": "empty"}]}), vec![], vec![]),
        (json!({"targetRefs": [{"kind": "Service", "name": "web"}]}), vec![], vec!["Service web"]),
        (
            json!({"targetRefs": [{"kind": "DaemonSet", "name": "x"}, {"kind": "Deployment", "name": "web"}]}),
            vec!["shop/bare", "shop/web"],
            vec!["DaemonSet x"],
        ),
    ] {
        let key = ObjectKey::new("shop", "p");
        add_policy(&mut world, &key, 1, &target);
        let plan = planned(&world);
        let targets = plan.targets(&key).unwrap();
        assert_eq!(pods_of(&plan, &key), pods, "{target}");
        assert_eq!(targets.missing.iter().map(ToString::to_string).collect::<Vec<_>>(), missing, "{target}");
        world.policies.clear();
    }
}

/// The garbage collector deletes pods some time after their workload, and a changed workload selects other pods.
#[test]
fn pods_keep_the_policies_of_a_deleted_workload() {
    let (key, web) = (ObjectKey::new("shop", "p"), labels(&[("app", "web")]));
    let workload = |name: &str| Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", name) };
    let mut world = World::default();
    for (pod, creator) in [("old", Some("web")), ("other", Some("web2")), ("bare", None)] {
        let controller = creator.map(workload);
        let membership = Membership::Pod { labels: web.clone(), ports: PodPorts::default(), controller };
        add_pod(&mut world, "shop", pod, membership, at("http://1:1"));
    }
    add_policy(&mut world, &key, 1, &json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]}));
    let mut check = |selector: Option<BTreeMap<String, String>>, pods: &[&str]| {
        let selector = selector.map(|labels| Some(labels.into_iter().collect()));
        let is_missing = selector.is_none();
        apply(&mut world, Change::Workload(workload("web"), selector));
        let plan = planned(&world);
        assert_eq!(pods_of(&plan, &key), pods);
        assert_eq!(plan.targets(&key).unwrap().missing, if is_missing { vec![workload("web")] } else { vec![] });
    };
    check(Some(web.clone()), &["shop/bare", "shop/old", "shop/other"]);
    check(None, &["shop/old"]);
    check(Some(labels(&[("app", "db")])), &[]);
}

#[test]
fn a_service_without_a_selector_has_no_pods() {
    let mut world = World::default();
    let (web, outside) = (ObjectKey::new("shop", "web"), ObjectKey::new("shop", "outside"));
    let (selector, ports) = service(labels(&[("app", "web")]), 80);
    apply(&mut world, Change::Service(web, Some((selector, ports.clone()))));
    apply(&mut world, Change::Service(outside, Some((None, ports))));
    let key = ObjectKey::new("shop", "p");
    let target = json!({"targetRefs": [{"kind": "Service", "name": "web"}, {"kind": "Service", "name": "outside"}]});
    add_policy(&mut world, &key, 1, &target);
    let plan = planned(&world);
    let targets = plan.targets(&key).unwrap();
    assert_eq!(targets.podless.iter().map(ToString::to_string).collect::<Vec<_>>(), ["Service outside"]);
    assert!(targets.missing.is_empty(), "{:?}", targets.missing);
}

#[test]
fn agents_outside_of_a_cluster_are_targeted_by_every_policy_or_by_their_labels() {
    let mut world = World::default();
    add_pod(&mut world, "agents", "any", Membership::Everything, at("http://1:1"));
    add_pod(&mut world, "agents", "web", Membership::Labelled(labels(&[("app", "web")])), at("http://2:1"));
    for (name, target, pods) in [
        ("a", by_app("web"), vec!["agents/any", "agents/web"]),
        ("b", json!({"selector": {"matchLabels": {"app": "db"}}}), vec!["agents/any"]),
        ("c", json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]}), vec!["agents/any"]),
    ] {
        let key = ObjectKey::new("shop", name);
        add_policy(&mut world, &key, 1, &target);
        let plan = planned(&world);
        assert_eq!(pods_of(&plan, &key), pods, "{name}");
        assert!(plan.targets(&key).unwrap().missing.is_empty(), "{name}");
    }
}

#[test]
fn policies_on_a_pod_are_ordered_by_age_then_name() {
    let mut world = World::default();
    add_pod(&mut world, "shop", "web", Membership::of_app("web"), at("http://1:1"));
    for (name, created) in [("young", 3), ("b", 2), ("a", 2), ("z-oldest", 1)] {
        let target = by_app("web");
        add_policy(&mut world, &ObjectKey::new("shop", name), created, &target);
    }
    let plan = planned(&world);
    let content = content(&plan, "shop", "web");
    let order: Vec<&str> = content.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(order, ["z-oldest", "a", "b", "young"]);
}

/// After a rollback of the operator, a status stores a spec that only the newer operator can read. Nothing shows which
/// pods that policy targets.
#[test]
fn an_unreadable_policy_is_named_to_every_agent_that_can_have_it() {
    let (mut world, mut plan, mut compiler) = (World::default(), Plan::default(), Compiler::default());
    for (namespace, name) in [("shop", "a"), ("shop", "b"), ("other", "c")] {
        add_pod(&mut world, namespace, name, Membership::of_app(name), at("http://1:1"));
    }
    add_pod(&mut world, "outside", "d", Membership::Everything, at("http://1:1"));
    let key = ObjectKey::new("shop", "p");
    let unreadable = Policy {
        spec: Err(vec![Fault { path: "spec.newer".to_owned(), message: "unknown field".to_owned() }]),
        ..policy(&key, 2, &json!({}))
    };
    let stored = LastKnownGood { generation: 1, spec: json!({"newer": 1, "rules": []}).to_string() };
    let mut see = |world: &World, dirty: DirtySet| {
        let mut dirty = dirty;
        compiler.update(world, &mut dirty, |_| Some(&stored));
        let planned = plan.update(world, compiler.compiled(), &dirty);
        let unreadable = |namespace: &str, name: &str| content(&plan, namespace, name).unreadable.clone();
        let named =
            [("shop", "a"), ("shop", "b"), ("other", "c"), ("outside", "d")].map(|(of, pod)| unreadable(of, pod));
        (planned.pods.len(), named.map(|policies| policies.into_iter().collect::<Vec<_>>()))
    };
    let of_policy = || DirtySet { policies: [key.clone()].into(), ..DirtySet::default() };
    assert_eq!(see(&world, everything(&world)), (4, Default::default()));
    apply(&mut world, Change::to_policy(&key, unreadable));
    let named = vec![("uid-p".to_owned(), key.clone())];
    assert_eq!(see(&world, of_policy()), (3, [named.clone(), named.clone(), Vec::new(), named]));
    apply(&mut world, Change::Policy(key.clone(), None));
    assert_eq!(see(&world, of_policy()), (3, Default::default()));
}

#[test]
fn pods_with_the_same_policies_share_a_content() {
    let web = |version: &str| Membership::of_labels(labels(&[("app", "web"), ("version", version)]));
    let mut world = World::default();
    add_pod(&mut world, "shop", "a", web("1"), at("http://1:1"));
    add_pod(&mut world, "shop", "b", web("2"), at("http://2:1"));
    add_pod(&mut world, "shop", "none", Membership::of_labels(BTreeMap::new()), at("http://3:1"));
    add_policy(&mut world, &ObjectKey::new("shop", "p"), 1, &by_app("web"));
    let plan = planned(&world);
    let shared = content(&plan, "shop", "a");
    assert!(Arc::ptr_eq(&shared, &content(&plan, "shop", "b")));
    assert!(content(&plan, "shop", "none").policies.is_empty());
    assert_eq!(pods_of(&plan, &ObjectKey::new("shop", "p")), ["shop/a", "shop/b"]);

    let snapshot: Snapshot = serde_json::from_str(&shared.body(42)).unwrap();
    assert_eq!((snapshot.wire_version, snapshot.sequence), (weir_wire::WIRE_VERSION, 42));
    assert_eq!(snapshot.revision, shared.revision);
    assert_eq!(snapshot.policies.len(), 1);
}

#[test]
fn a_change_touches_the_pods_that_it_is_about_and_no_others() {
    let mut world = World::default();
    for (app, name) in [("web", "a"), ("web", "b"), ("db", "c")] {
        add_pod(&mut world, "shop", name, Membership::of_app(app), at("http://1:1"));
    }
    let (p, q) = (ObjectKey::new("shop", "p"), ObjectKey::new("shop", "q"));
    add_policy(&mut world, &p, 1, &by_app("web"));
    add_policy(&mut world, &q, 2, &by_app("db"));
    let mut plan = planned(&world);
    let mut compiler = Compiler::default();
    compiler.update(&world, &mut everything(&world), |_| None);
    let mut update = |world: &World, dirty: &mut DirtySet| {
        compiler.update(world, dirty, |_| None);
        let Planned { pods, policies } = plan.update(world, compiler.compiled(), dirty);
        let changes = [&p, &q].map(|policy| plan.targets(policy).map_or(0, |targets| targets.changes));
        let names = |keys: BTreeSet<ObjectKey>| keys.into_iter().map(|key| key.name).collect::<Vec<_>>().join(" ");
        (names(pods), names(policies), changes)
    };
    let before = update(&world, &mut DirtySet::default()).2;

    let mut dirty = DirtySet::default();
    world.apply(Change::Policy(p.clone(), None), &mut dirty);
    assert_eq!(update(&world, &mut dirty), ("a b".to_owned(), "p".to_owned(), [0, before[1]]));

    let mut dirty = DirtySet::default();
    let pod = Pod { uid: "new".into(), ..world.pods[&ObjectKey::new("shop", "c")].clone() };
    world.apply(Change::Pod(ObjectKey::new("shop", "c"), Some(pod)), &mut dirty);
    assert_eq!(update(&world, &mut dirty), ("c".to_owned(), "q".to_owned(), [0, before[1] + 1]));
}

fn changes(plan: &Plan) -> BTreeMap<ObjectKey, u64> {
    plan.targets.iter().map(|(policy, targets)| (policy.clone(), targets.changes)).collect()
}

proptest! {
    /// An updated plan equals a plan computed from the beginning, and every change of a policy's targets is reported.
    #[test]
    fn an_updated_plan_equals_a_full_computation(steps in vec((0..8_u8, 0..4_usize, 0..3_usize, 0..3_usize), 1..60)) {
        const APPS: [&str; 3] = ["web", "db", "cache"];
        const NAMESPACES: [&str; 3] = ["shop", "bank", "shop"];
        let (mut world, mut plan, mut compiler) = (World::default(), Plan::default(), Compiler::default());
        let mut dirty = DirtySet::default();
        let mut version = 0;
        for (what, name, app, place) in steps {
            version += 1;
            let key = ObjectKey::new(NAMESPACES[place], format!("n{name}"));
            let app_labels = labels(&[("app", APPS[app])]);
            let workload = Workload { kind: WorkloadKind::Deployment, key: key.clone() };
            let change = match what {
                0 => {
                    let membership = match (name, place) {
                        (3, 2) => Membership::Everything,
                        (2, 2) => Membership::Labelled(app_labels),
                        (1, _) => guarded(app_labels),
                        _ => Membership::Pod { labels: app_labels, ports: PodPorts::default(), controller: Some(workload) },
                    };
                    Change::Pod(key, Some(Pod::running(&version.to_string(), membership, at("http://1:1"))))
                }
                1 => Change::Pod(key, None),
                2 => {
                    let target = if app == 2 {
                        json!({"targetRefs": [{"kind": "Deployment", "name": format!("n{name}")}]})
                    } else {
                        by_app(APPS[app])
                    };
                    Change::to_policy(&key, policy(&key, version, &target))
                }
                3 => Change::Policy(key, None),
                4 => Change::Workload(workload, Some(Some(app_labels.into_iter().collect()))),
                5 => Change::Workload(workload, None),
                6 => Change::Service(key, Some(service(app_labels, if name == 0 { 8480 } else { 8080 }))),
                _ => Change::Service(key, None),
            };
            world.apply(change, &mut dirty);
            // Some changes are planned together.
            if place != 1 {
                let mut dirty = std::mem::take(&mut dirty);
                compiler.update(&world, &mut dirty, |_| None);
                let before = changes(&plan);
                let planned = plan.update(&world, compiler.compiled(), &dirty);
                let after = changes(&plan);
                for policy in before.keys().chain(after.keys()) {
                    let is_told = planned.policies.contains(policy);
                    prop_assert!(is_told || before.get(policy) == after.get(policy), "{policy}");
                }
            }
        }
        compiler.update(&world, &mut dirty, |_| None);
        plan.update(&world, compiler.compiled(), &dirty);
        let mut fresh = Plan::default();
        fresh.update(&world, compiler.compiled(), &everything(&world));
        for pod in world.pods.keys() {
            let (kept, new) = (plan.cohort(pod).unwrap(), fresh.cohort(pod).unwrap());
            prop_assert_eq!(&kept.policies, &new.policies);
            prop_assert_eq!(kept.content.body(1), new.content.body(1));
        }
        for policy in world.policies.keys() {
            prop_assert_eq!(pods_of(&plan, policy), pods_of(&fresh, policy));
            prop_assert_eq!(&plan.targets(policy).unwrap().bypasses, &fresh.targets(policy).unwrap().bypasses);
            prop_assert_eq!(&plan.targets(policy).unwrap().missing, &fresh.targets(policy).unwrap().missing);
        }
        prop_assert_eq!((plan.pods.len(), plan.cohorts.len()), (fresh.pods.len(), fresh.cohorts.len()));
        prop_assert_eq!((plan.targets.len(), plan.naming.len()), (fresh.targets.len(), fresh.naming.len()));
        prop_assert_eq!(plan.targeted(), fresh.targeted());
    }
}

#[test]
fn content_for_a_new_pod_agrees_with_the_later_plan() {
    for workload_is_known in [true, false] {
        compare_content_for_a_new_pod(workload_is_known);
    }
}

/// The webhook can get a pod before the operator gets the workload that created it.
fn compare_content_for_a_new_pod(workload_is_known: bool) {
    let web = labels(&[("app", "web")]);
    let mut world = World::default();
    let workload = Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", "web") };
    if workload_is_known {
        apply(&mut world, Change::Workload(workload.clone(), Some(Some(web.clone().into_iter().collect()))));
    }
    let membership = Membership::Pod { labels: web, ports: PodPorts::default(), controller: Some(workload) };
    let by_label = by_app("web");
    let by_name = json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]});
    let others = json!({"selector": {"matchLabels": {"app": "db"}}});
    for (namespace, name, created, target) in [
        ("shop", "younger", 2, &by_label),
        ("shop", "older", 1, &by_name),
        ("shop", "others", 0, &others),
        ("bank", "neighbours", 0, &by_label),
        ("shop-2", "neighbours", 0, &by_label),
    ] {
        add_policy(&mut world, &ObjectKey::new(namespace, name), created, target);
    }
    let mut compiler = Compiler::default();
    compiler.update(&world, &mut everything(&world), |_| None);
    let foreseen = content_for_pod(&world.workloads, compiler.compiled(), "shop", &membership);
    let names: Vec<&str> = foreseen.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["older", "younger"]);
    let snapshot: Snapshot = serde_json::from_str(&foreseen.body(1)).unwrap();
    assert_eq!((snapshot.policies.len(), snapshot.revision), (2, foreseen.revision.clone()));

    let elsewhere = content_for_pod(&world.workloads, compiler.compiled(), "nowhere", &membership);
    assert!(elsewhere.policies.is_empty());
    add_pod(&mut world, "shop", "web", membership, at("http://1:1"));
    let planned = planned(&world);
    assert_eq!(content(&planned, "shop", "web").body(1), foreseen.body(1));
}

#[test]
fn bypasses_follow_services_pods_and_policies() {
    let web = labels(&[("app", "web")]);
    let (mut world, mut compiler, mut plan) = (World::default(), Compiler::default(), Plan::default());
    let key = |name: &str| ObjectKey::new("shop", name);
    let target = by_app("web");
    let mut ways = |world: &mut World, change: Change| {
        let mut dirty = DirtySet::default();
        world.apply(change, &mut dirty);
        compiler.update(world, &mut dirty, |_| None);
        let of_p = |plan: &Plan| plan.targets(&key("p")).map(|targets| (targets.changes, targets.bypasses.clone()));
        let before = of_p(&plan);
        let planned = plan.update(world, compiler.compiled(), &dirty);
        let is_told = of_p(&plan) == before || planned.policies.contains(&key("p"));
        assert!(is_told, "the change was not reported");
        plan.targets(&key("p")).map_or(Vec::new(), |targets| targets.bypasses.clone())
    };
    let past = vec![Bypass::Port { service: "web".to_owned(), port: 80, app: 8080, agent: 8480 }];
    let pod = Pod::running("a", guarded(web.clone()), at("http://1:1"));
    assert_eq!(ways(&mut world, Change::to_policy(&key("p"), policy(&key("p"), 1, &target))), []);
    assert_eq!(ways(&mut world, Change::Service(key("web"), Some(service(web.clone(), 8080)))), [], "no pods");
    assert_eq!(ways(&mut world, Change::Pod(key("a"), Some(pod.clone()))), past);
    assert_eq!(ways(&mut world, Change::Service(key("web"), Some(service(web.clone(), 8480)))), []);
    assert_eq!(ways(&mut world, Change::Service(key("web"), Some(service(web.clone(), 8080)))), past);
    assert_eq!(ways(&mut world, Change::Service(key("db"), Some(service(labels(&[("app", "db")]), 8080)))), past);
    assert_eq!(ways(&mut world, Change::Pod(key("a"), None)), [], "a policy without pods has no bypass");
    assert_eq!(ways(&mut world, Change::Pod(key("a"), Some(pod))), past);
    assert_eq!(ways(&mut world, Change::Service(key("web"), None)), []);
    let open = PodPorts { guarded: Some(8080), agent: 8480, names: BTreeMap::new(), host_port: Some(80) };
    let membership = Membership::Pod { labels: web.clone(), ports: open, controller: None };
    let on_node = Pod::running("b", membership, at("http://2:1"));
    let past_it = vec![Bypass::HostPort { port: 80, app: 8080 }];
    assert_eq!(ways(&mut world, Change::Pod(key("b"), Some(on_node))), past_it);
    assert_eq!(ways(&mut world, Change::Pod(key("b"), None)), []);

    // One other policy admits every request, and one admits only some.
    for (name, rule, expected) in [
        ("q", json!({"name": "open", "action": "Bypass", "match": [{"paths": ["/healthz"]}]}), vec![]),
        ("q", json!({"name": "open", "action": "Bypass", "match": [{"paths": ["/a", "/**"]}]}), vec![("q", "open")]),
        ("q", json!({"name": "open", "action": "Bypass", "match": [{"paths": ["/**"], "methods": ["GET"]}]}), vec![]),
        ("q", json!({"name": "open", "action": "Bypass", "match": [{"hosts": ["a"]}, {}]}), vec![("q", "open")]),
        ("q", json!({"name": "open", "action": "Bypass"}), vec![("q", "open")]),
        ("q", json!({"name": "open", "action": "Bypass", "mode": "Shadow"}), vec![]),
        ("q", json!({"name": "open", "action": "Bypass", "mode": "Enforce"}), vec![("q", "open")]),
        ("p", json!({"name": "open", "action": "Bypass"}), vec![("q", "open")]),
    ] {
        let generation = world.policies.get(&key(name)).map_or(1, |policy| policy.generation + 1);
        let spec = json!({"selector": target["selector"], "rules": [rule]});
        let created = Some(Timestamp::from_second(2).unwrap());
        let written = Policy { created, ..Policy::of_spec(&format!("uid-{name}"), generation, spec) };
        let found = ways(&mut world, Change::to_policy(&key(name), written));
        let policy = |(policy, rule): &(&str, &str)| Bypass::Policy { policy: (*policy).into(), rule: (*rule).into() };
        assert_eq!(found, expected.iter().map(policy).collect::<Vec<_>>(), "{rule}");
    }
    assert_eq!(ways(&mut world, Change::Policy(key("q"), None)), []);
}

/// An agent outside of a cluster can have policies of several namespaces.
#[test]
fn a_policy_of_the_same_name_in_another_namespace_is_a_bypass() {
    let mut world = World::default();
    add_pod(&mut world, "agents", "any", Membership::Everything, at("http://1:1"));
    let (open, key) = (ObjectKey::new("a", "p"), ObjectKey::new("b", "p"));
    let target = by_app("web");
    add_policy(&mut world, &key, 1, &target);
    let spec = json!({"selector": target["selector"], "rules": [{"name": "open", "action": "Bypass"}]});
    let other = Policy { created: Some(Timestamp::from_second(2).unwrap()), ..Policy::of_spec("other", 2, spec) };
    apply(&mut world, Change::to_policy(&open, other));
    let plan = planned(&world);
    let expected = [Bypass::Policy { policy: "a/p".to_owned(), rule: "open".to_owned() }];
    assert_eq!(plan.targets(&key).unwrap().bypasses, expected);
    assert_eq!(plan.targets(&open).unwrap().bypasses, []);
}

/// The logs of each policy take 57 MiB, counted in the agent's words. Five do not fit into one pod, and agents would
/// reject all of them.
#[test]
fn policies_whose_logs_do_not_fit_into_a_pod_are_left_out() {
    let limit = json!({"name": "a", "requests": 100, "per": "1m", "strategy": "SlidingWindowLog"});
    only_four_fit(&json!({"name": "all", "key": [{"header": "x"}], "limits": [limit]}));
}

#[test]
fn policies_whose_regular_expressions_do_not_fit_into_a_pod_are_left_out() {
    let large = r"request.path.matches(r'\w{20}')";
    let bytes = weir_expressions::predicate(large).unwrap().bytes();
    let quarter = usize::try_from(weir_expressions::MAX_EXPRESSION_BYTES / 4 / bytes).unwrap();
    let matches = vec![json!({"predicate": large}); quarter];
    only_four_fit(&json!({"name": "all", "match": matches, "limits": [{"name": "a", "requests": 9, "per": "1s"}]}));
}

/// Adds five policies with this rule and a small policy to a pod that has room for four of the five.
fn only_four_fit(large: &serde_json::Value) {
    let (mut world, mut compiler, mut plan) = (World::default(), Compiler::default(), Plan::default());
    let mut dirty = DirtySet::default();
    let pod = Pod::running("web", Membership::of_app("web"), at("http://1:1"));
    world.apply(Change::Pod(ObjectKey::new("shop", "web"), Some(pod)), &mut dirty);
    for number in 0..6 {
        let small = json!({"name": "all", "limits": [{"name": "a", "requests": 100, "per": "1m"}]});
        let rule = if number == 5 { &small } else { large };
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]});
        let created = Some(Timestamp::from_second(number).unwrap());
        let name = format!("p{number}");
        let policy = Policy { created, ..Policy::of_spec(&name, 1, spec) };
        world.apply(Change::to_policy(&ObjectKey::new("shop", name), policy), &mut dirty);
    }
    compiler.update(&world, &mut dirty, |_| None);
    plan.update(&world, compiler.compiled(), &dirty);
    let fits: Vec<String> = content(&plan, "shop", "web").policies.iter().map(|it| it.name.clone()).collect();
    assert_eq!(fits, ["p0", "p1", "p2", "p3", "p5"]);
    let left_out = (0..6).map(|number| plan.left_out(&ObjectKey::new("shop", format!("p{number}"))));
    assert_eq!(left_out.collect::<Vec<_>>(), [0, 0, 0, 0, 1, 0]);

    // The content does not change, but it changes whether the pod enforces all its policies.
    let (before, web) = (content(&plan, "shop", "web").revision.clone(), ObjectKey::new("shop", "web"));
    let mut dirty = DirtySet::default();
    world.apply(Change::Policy(ObjectKey::new("shop", "p4"), None), &mut dirty);
    compiler.update(&world, &mut dirty, |_| None);
    assert_eq!(plan.update(&world, compiler.compiled(), &dirty).pods, [web].into());
    assert_eq!(content(&plan, "shop", "web").revision, before);
}

/// Adds or changes a policy with rules of this length.
fn add_large_policy(
    world: &mut World,
    dirty: &mut DirtySet,
    name: &str,
    created: i64,
    generation: i64,
    kilobytes: usize,
) {
    let path = format!("/{}", "x".repeat(kilobytes * 1000));
    let limit = json!({"name": "a", "requests": 50, "per": "1s"});
    let spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "rules": [{"name": "all", "match": [{"paths": [path]}], "limits": [limit]}]});
    let created = Some(Timestamp::from_second(created).unwrap());
    let policy = Policy { created, ..Policy::of_spec(name, generation, spec) };
    world.apply(Change::to_policy(&ObjectKey::new("shop", name), policy), dirty);
}

#[test]
fn policies_that_do_not_fit_are_left_out_and_grown_ones_keep_their_old_rules() {
    let (mut world, mut compiler, mut plan) = (World::default(), Compiler::default(), Plan::default());
    let key = |name: &str| ObjectKey::new("shop", name);
    let mut update = |world: &World, mut dirty: DirtySet, compiler: &mut Compiler, names: &[&str]| {
        compiler.update(world, &mut dirty, |_| None);
        let planned = plan.update(world, compiler.compiled(), &dirty);
        let content = content(&plan, "shop", "web");
        let fits: Vec<(&str, usize)> = content
            .policies
            .iter()
            .map(|it| (it.name.as_str(), it.rules[0].matches[0].paths[0].len() / 1000))
            .collect();
        let out: Vec<&str> = names.iter().copied().filter(|name| plan.left_out(&key(name)) > 0).collect();
        let length = content.body(u64::MAX).len();
        assert!(length <= weir_wire::MAX_SNAPSHOT_BYTES, "{length} bytes");
        let web = Membership::of_app("web");
        let foreseen = content_for_pod(&world.workloads, compiler.compiled(), "shop", &web);
        assert!(foreseen.body(u64::MAX).len() <= weir_wire::MAX_SNAPSHOT_BYTES);
        (format!("{fits:?}"), format!("{out:?}"), planned.policies)
    };
    let names = ["a", "b", "c", "d", "small"];
    let mut dirty = DirtySet::default();
    let pod = Pod::running("web", Membership::of_app("web"), at("http://1:1"));
    world.apply(Change::Pod(key("web"), Some(pod)), &mut dirty);
    for (age, name) in names.iter().enumerate() {
        let kilobytes = if *name == "small" { 1 } else { 300 };
        add_large_policy(&mut world, &mut dirty, name, i64::try_from(age).unwrap(), 1, kilobytes);
    }
    let (fits, out, _) = update(&world, std::mem::take(&mut dirty), &mut compiler, &names);
    assert_eq!(fits, r#"[("a", 300), ("b", 300), ("c", 300), ("small", 1)]"#);
    assert_eq!(out, r#"["d"]"#);

    let mut dirty = DirtySet::default();
    add_large_policy(&mut world, &mut dirty, "c", 2, 2, 500);
    let (fits, out, told) = update(&world, std::mem::take(&mut dirty), &mut compiler, &names);
    assert_eq!(fits, r#"[("a", 300), ("b", 300), ("c", 300), ("small", 1)]"#, "the last good rules must stay");
    assert_eq!(out, r#"["c", "d"]"#);
    assert!(told.contains(&key("c")));

    // The policy that was omitted gets the free space, and the update reports it.
    let mut dirty = DirtySet::default();
    world.apply(Change::Policy(key("a"), None), &mut dirty);
    let (fits, out, told) = update(&world, std::mem::take(&mut dirty), &mut compiler, &names);
    assert_eq!(fits, r#"[("b", 300), ("c", 500), ("small", 1)]"#);
    assert_eq!(out, r#"["d"]"#);
    assert!(told.contains(&key("c")) && !told.contains(&key("small")), "{told:?}");
}

/// Otherwise, a pod that is cut off would use a share that was computed for fewer pods.
#[test]
fn the_old_rules_of_a_grown_policy_follow_the_number_of_pods() {
    let key = ObjectKey::new("shop", "p");
    let grown = |generation, kilobytes: usize, scope: &str| {
        let limit = json!({"name": "a", "requests": 50, "per": "1s"});
        let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [{"name": "all", "scope": scope,
            "match": [{"paths": [format!("/{}", "x".repeat(kilobytes * 1000))]}], "limits": [limit]}]});
        Change::to_policy(&key, Policy::of_spec("p", generation, spec))
    };
    for scope in ["Fleet", "Pod"] {
        let (mut world, mut compiler, mut plan) = (World::default(), Compiler::default(), Plan::default());
        let mut sharers = |world: &World, mut dirty: DirtySet| {
            compiler.update(world, &mut dirty, |_| None);
            let planned = plan.update(world, compiler.compiled(), &dirty);
            let targeted = |key: &ObjectKey| plan.targets(key).unwrap().pods;
            let policies = compiler.count_pods(&planned.policies, targeted);
            plan.update(world, compiler.compiled(), &DirtySet { policies, ..DirtySet::default() });
            let rules = &content(&plan, "shop", "0").policies[0].rules;
            (rules[0].shared.as_ref().unwrap().sharers, plan.left_out(&key))
        };
        let scaled = |world: &mut World, pods: std::ops::Range<u32>| {
            let mut dirty = DirtySet::default();
            for number in pods {
                let pod = Pod::running(&number.to_string(), Membership::of_app("web"), at("http://1:1"));
                world.apply(Change::Pod(ObjectKey::new("shop", number.to_string()), Some(pod)), &mut dirty);
            }
            dirty
        };
        let mut dirty = scaled(&mut world, 0..4);
        world.apply(grown(1, 1, "Fleet"), &mut dirty);
        assert_eq!(sharers(&world, dirty), (4, 0));
        let mut dirty = DirtySet::default();
        world.apply(grown(2, 1100, scope), &mut dirty);
        assert_eq!(sharers(&world, dirty), (4, 4), "{scope}");
        let dirty = scaled(&mut world, 4..100);
        assert_eq!(sharers(&world, dirty), (128, 100), "{scope}");
    }
}

/// The pods of a StatefulSet have a label with their name, so each of them is a cohort.
#[test]
fn cohorts_with_the_same_policies_share_a_content_that_is_too_large_for_all() {
    let (mut world, mut compiler, mut plan) = (World::default(), Compiler::default(), Plan::default());
    for number in 0..200 {
        let labels = labels(&[("app", "web"), ("pod", &number.to_string())]);
        add_pod(&mut world, "shop", &number.to_string(), Membership::of_labels(labels), at("http://1:1"));
    }
    for number in 0..10 {
        add_large_policy(&mut world, &mut DirtySet::default(), &format!("p{number}"), number, 1, 300);
    }
    compiler.update(&world, &mut everything(&world), |_| None);
    plan.update(&world, compiler.compiled(), &everything(&world));
    let before = plan.contents.made;

    let mut dirty = DirtySet::default();
    add_large_policy(&mut world, &mut dirty, "p1", 1, 2, 301);
    compiler.update(&world, &mut dirty, |_| None);
    assert_eq!(plan.update(&world, compiler.compiled(), &dirty).pods.len(), 200);
    assert_eq!((plan.contents.made - before, plan.cohorts.len()), (1, 200));
    assert_eq!(content(&plan, "shop", "7").policies.len(), 3);
}
