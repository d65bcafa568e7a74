use jiff::Timestamp;
use serde_json::json;
use weir_wire::Snapshot;

use super::*;
use crate::compile::Compiler;
use crate::world::{Change, Policy, WorkloadKind};

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn add_pod(world: &mut World, namespace: &str, name: &str, membership: Membership, agent: Agent) {
    let pod = Pod { uid: format!("uid-{name}"), membership, agent };
    world.apply(Change::Pod(ObjectKey::new(namespace, name), Some(pod)));
}

fn at(url: &str) -> Agent {
    Agent::At(url.into())
}

fn add_policy(world: &mut World, key: &ObjectKey, created: i64, target: &serde_json::Value) {
    let mut spec = json!({"rules": [{"name": "all", "limits": [{"name": "a", "requests": 50, "per": "1s"}]}]});
    spec.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
    let policy = Policy {
        uid: format!("uid-{}", key.name),
        generation: 1,
        created: Some(Timestamp::from_second(created).unwrap()),
        spec: Ok(Arc::new(serde_json::from_value(spec).unwrap())),
        file: None,
    };
    world.apply(Change::Policy(key.clone(), Some((policy, crate::world::Beside::default()))));
}

fn planned(world: &World) -> Plan {
    let mut compiler = Compiler::default();
    compiler.update(&world.policies);
    plan(world, compiler.compiled(), &Plan::default())
}

fn names<'a>(targets: impl IntoIterator<Item = &'a ObjectKey>) -> Vec<String> {
    targets.into_iter().map(ToString::to_string).collect()
}

#[test]
fn who_is_targeted() {
    let web = labels(&[("app", "web")]);
    let mut world = World::default();
    add_pod(&mut world, "shop", "web", Membership::Pod(web.clone()), at("http://1:1"));
    add_pod(&mut world, "shop", "bare", Membership::Pod(web.clone()), Agent::Absent("why".into()));
    add_pod(&mut world, "shop", "db", Membership::Pod(labels(&[("app", "db")])), at("http://2:1"));
    add_pod(&mut world, "other", "web", Membership::Pod(web.clone()), at("http://3:1"));
    for (kind, name, selector) in
        [(WorkloadKind::Deployment, "web", Some(web.into_iter().collect())), (WorkloadKind::Service, "empty", None)]
    {
        world.apply(Change::Workload(Workload { kind, key: ObjectKey::new("shop", name) }, Some(selector)));
    }
    for (target, pods, missing) in [
        (json!({"selector": {"matchLabels": {"app": "web"}}}), vec!["shop/bare", "shop/web"], vec![]),
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
        let targets = planned(&world).policies.remove(&key).unwrap();
        assert_eq!(names(&targets.pods), pods, "{target}");
        assert_eq!(targets.missing.iter().map(ToString::to_string).collect::<Vec<_>>(), missing, "{target}");
        world.policies.clear();
    }
}

#[test]
fn agents_outside_of_a_cluster_are_targeted_by_every_policy_or_by_their_labels() {
    let mut world = World::default();
    add_pod(&mut world, "agents", "any", Membership::Everything, at("http://1:1"));
    add_pod(&mut world, "agents", "web", Membership::Labelled(labels(&[("app", "web")])), at("http://2:1"));
    for (name, target, pods) in [
        ("a", json!({"selector": {"matchLabels": {"app": "web"}}}), vec!["agents/any", "agents/web"]),
        ("b", json!({"selector": {"matchLabels": {"app": "db"}}}), vec!["agents/any"]),
        ("c", json!({"targetRefs": [{"kind": "Deployment", "name": "web"}]}), vec!["agents/any"]),
    ] {
        let key = ObjectKey::new("shop", name);
        add_policy(&mut world, &key, 1, &target);
        let targets = &planned(&world).policies[&key];
        assert_eq!(names(&targets.pods), pods, "{name}");
        assert!(targets.missing.is_empty(), "{name}");
    }
}

#[test]
fn policies_on_a_pod_are_ordered_by_age_then_name() {
    let mut world = World::default();
    add_pod(&mut world, "shop", "web", Membership::Pod(labels(&[("app", "web")])), at("http://1:1"));
    for (name, created) in [("young", 3), ("b", 2), ("a", 2), ("z-oldest", 1)] {
        let target = json!({"selector": {"matchLabels": {"app": "web"}}});
        add_policy(&mut world, &ObjectKey::new("shop", name), created, &target);
    }
    let plan = planned(&world);
    let content = &plan.agents[&ObjectKey::new("shop", "web")].content;
    let order: Vec<&str> = content.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(order, ["z-oldest", "a", "b", "young"]);
}

#[test]
fn pods_with_the_same_policies_share_a_content_also_across_plans() {
    let web = Membership::Pod(labels(&[("app", "web")]));
    let mut world = World::default();
    add_pod(&mut world, "shop", "a", web.clone(), at("http://1:1"));
    add_pod(&mut world, "shop", "b", web.clone(), at("http://2:1"));
    add_pod(&mut world, "shop", "none", Membership::Pod(BTreeMap::new()), at("http://3:1"));
    add_pod(&mut world, "shop", "waiting", web, Agent::Pending);
    add_policy(&mut world, &ObjectKey::new("shop", "p"), 1, &json!({"selector": {"matchLabels": {"app": "web"}}}));
    let mut compiler = Compiler::default();
    compiler.update(&world.policies);
    let first = plan(&world, compiler.compiled(), &Plan::default());
    let second = plan(&world, compiler.compiled(), &first);
    let content = |plan: &Plan, name: &str| plan.agents[&ObjectKey::new("shop", name)].content.clone();
    assert!(Arc::ptr_eq(&content(&first, "a"), &content(&first, "b")));
    assert!(Arc::ptr_eq(&content(&first, "a"), &content(&second, "b")));
    assert!(content(&first, "none").policies.is_empty());
    assert!(!first.agents.contains_key(&ObjectKey::new("shop", "waiting")));
    assert_eq!(names(&first.policies[&ObjectKey::new("shop", "p")].pods), ["shop/a", "shop/b", "shop/waiting"]);

    let snapshot: Snapshot = serde_json::from_str(&content(&first, "a").body(42)).unwrap();
    assert_eq!((snapshot.wire_version, snapshot.sequence), (weir_wire::WIRE_VERSION, 42));
    assert_eq!(snapshot.revision, content(&first, "a").revision);
    assert_eq!(snapshot.policies.len(), 1);
}

#[test]
fn a_pod_to_come_is_foreseen_as_it_will_be_planned() {
    let web = labels(&[("app", "web")]);
    let mut world = World::default();
    let workload = Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", "web") };
    world.apply(Change::Workload(workload, Some(Some(web.clone().into_iter().collect()))));
    let by_label = json!({"selector": {"matchLabels": {"app": "web"}}});
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
    compiler.update(&world.policies);
    let foreseen = foresee(&world, compiler.compiled(), "shop", web.clone());
    let names: Vec<&str> = foreseen.policies.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["older", "younger"]);
    let snapshot: Snapshot = serde_json::from_str(&foreseen.body(1)).unwrap();
    assert_eq!((snapshot.policies.len(), snapshot.revision), (2, foreseen.revision.clone()));

    add_pod(&mut world, "shop", "web", Membership::Pod(web), at("http://1:1"));
    let planned = planned(&world);
    assert_eq!(planned.agents[&ObjectKey::new("shop", "web")].content.body(1), foreseen.body(1));
    assert!(foresee(&world, compiler.compiled(), "nowhere", BTreeMap::new()).policies.is_empty());
}
