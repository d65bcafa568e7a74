//! Tests rules of scope Shared and Fleet: their stores, their stamps, and the number of pods that share them.

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_wire::{OnStoreLoss, StoreBackend, Topology};

use super::{
    shared::{rounded, stamp},
    tests::key,
    *,
};
use crate::{
    tables::{rows, yaml},
    world::{AgentAddress, Membership, Pod, Store},
};

fn store_key_of(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

fn rule(limit: &Value, more: &Value) -> Value {
    let shared = json!({"storeRef": {"name": "limits"}});
    let mut rule = json!({"name": "all", "scope": "Shared", "shared": shared, "limits": [limit]});
    json_patch::merge(&mut rule, more);
    rule
}

fn fleet_rule(limit: &Value, more: &Value) -> Value {
    let mut rule = json!({"name": "all", "scope": "Fleet", "limits": [limit]});
    json_patch::merge(&mut rule, more);
    rule
}

fn window(requests: i64) -> Value {
    json!({"name": "a", "requests": requests, "per": "10m", "strategy": "FixedWindow"})
}

fn policy(generation: i64, rule: &Value) -> Policy {
    Policy::of_spec("uid", generation, json!({"selector": {"matchLabels": {"app": "web"}}, "rules": [rule]}))
}

fn redis(endpoint: &str) -> Store {
    store(&json!({"redis": {"endpoints": [endpoint]}}))
}

fn memcached() -> Store {
    store(&json!({"memcached": {"servers": ["memcached:11211"]}}))
}

fn store(spec: &Value) -> Store {
    Store { uid: "s".to_owned(), generation: 1, spec: Ok(Arc::new(serde_json::from_value(spec.clone()).unwrap())) }
}

/// A compiler with its world.
#[derive(Default)]
struct Bench {
    world: World,
    compiler: Compiler,
}

impl Bench {
    fn with(store: impl IntoIterator<Item = Store>) -> Self {
        let mut bench = Self::default();
        bench.world.stores.extend(store.into_iter().map(|store| (store_key_of("limits"), store)));
        bench
    }

    fn policy(&mut self, policy: Policy) -> &Compiled {
        self.policy_with(policy, None)
    }

    /// The status of the policy stores this generation.
    fn policy_with(&mut self, policy: Policy, kept: Option<&LastKnownGood>) -> &Compiled {
        self.world.policies.insert(key(), policy);
        let mut dirty = DirtySet { policies: [key()].into(), ..DirtySet::default() };
        self.compiler.update(&self.world, &mut dirty, |_| kept);
        &self.compiler.compiled()[&key()]
    }

    fn store(&mut self, store: Option<Store>) -> &Compiled {
        let limits = store_key_of("limits");
        match store {
            Some(store) => drop(self.world.stores.insert(limits.clone(), store)),
            None => drop(self.world.stores.remove(&limits)),
        }
        let mut dirty = DirtySet { stores: [limits].into(), ..DirtySet::default() };
        self.compiler.update(&self.world, &mut dirty, |_| None);
        assert!(dirty.policies.contains(&key()), "the policy must become dirty");
        &self.compiler.compiled()[&key()]
    }

    fn pods(&mut self, pods: usize) -> (bool, u32) {
        let changed = self.compiler.count_pods(&[key()].into(), |_| pods);
        (changed.contains(&key()), shared_of(&self.compiler.compiled()[&key()]).sharers)
    }
}

fn shared_of(compiled: &Compiled) -> wire::Shared {
    compiled.policy.as_ref().unwrap().rules[0].shared.clone().unwrap()
}

fn faults(compiled: &Compiled) -> Vec<String> {
    compiled.faults.iter().map(ToString::to_string).collect()
}

#[test]
fn a_shared_rule_names_its_store_and_its_counters() {
    let mut bench = Bench::default();
    let spec = json!({"redis": {
        "topology": "Sentinel", "endpoints": ["s:26379"], "masterName": "m", "tls": {"caSecretRef": {"name": "ca"}},
        "credentialsSecretRef": {"name": "redis"},
    }});
    bench.world.stores.insert(store_key_of("limits"), store(&spec));
    let more = json!({"shared": {"storeRef": {"name": "limits"}, "onStoreLoss": "FailClosed", "clusters": 3}});
    let compiled = bench.policy(policy(7, &rule(&window(100), &more)));
    let expected = wire::Shared {
        store: "shop/limits".to_owned(),
        counters: "shop/checkout.all".to_owned(),
        stamp: 7,
        on_store_loss: OnStoreLoss::FailClosed,
        sharers: 3,
    };
    assert_eq!(shared_of(compiled), expected);
    let rules = compiled.policy.as_ref().unwrap();
    let backend = StoreBackend::Redis {
        topology: Topology::Sentinel,
        endpoints: vec!["s:26379".to_owned()],
        master_name: Some("m".to_owned()),
        tls: true,
        has_authorities: true,
        has_credentials: true,
    };
    let directory = "shop.limits".to_owned();
    let store = wire::Store { name: "shop/limits".to_owned(), backend, secrets: Some(directory.clone()) };
    assert_eq!(rules.stores, [store]);
    let [credentials, authorities] = ["redis", "ca"].map(|name| Some(name.to_owned()));
    assert_eq!(rules.secrets, [StoreSecrets { directory, credentials, authorities }]);
}

/// An agent refuses a snapshot with such a store, and with it the rules of other policies.
#[test]
fn a_store_with_an_invalid_port_is_a_fault_of_the_policies_that_use_it() {
    for (spec, field, server) in [
        (json!({"redis": {"endpoints": ["redis:65536"]}}), "redis.endpoints[0]", "redis:65536"),
        (json!({"redis": {"topology": "Cluster", "endpoints": ["a:1", "b:99999"]}}), "redis.endpoints[1]", "b:99999"),
        (json!({"memcached": {"servers": ["m:65535", "m:70000"]}}), "memcached.servers[1]", "m:70000"),
        (json!({"memcached": {"servers": ["m"]}}), "memcached.servers[0]", "m"),
    ] {
        let mut bench = Bench::with([store(&spec)]);
        let compiled = bench.policy(policy(1, &rule(&window(100), &json!({}))));
        let expected = format!(
            "spec.rules[0].shared.storeRef: RateLimitStore \"limits\" has {server:?} in spec.{field}: write a host and a \
             port from 1 to 65535"
        );
        assert_eq!(faults(compiled), [expected]);
        assert!(compiled.policy.is_none());
        // The last good rules keep the last good store.
        let good = bench.store(Some(redis("redis:65535"))).policy.clone().expect("a good store");
        let compiled = bench.store(Some(store(&spec)));
        assert_eq!((compiled.faults.len(), compiled.policy.is_some()), (1, true));
        let backend = &compiled.policy.as_ref().expect("the last good rules").stores[0].backend;
        assert_eq!(*backend, good.stores[0].backend);
    }
}

/// The kubelet would refuse to start the pods, because the directory of the Secrets has a longer name than a file can have.
#[test]
fn a_store_with_secrets_and_a_very_long_name_is_a_fault_of_the_policies_that_use_it() {
    let secret = |field: &str| json!({"redis": {"endpoints": ["r:1"], field: {"name": "redis"}}});
    for (spec, length, is_valid) in [
        (secret("credentialsSecretRef"), 250, true),
        (secret("credentialsSecretRef"), 251, false),
        (json!({"redis": {"endpoints": ["r:1"], "tls": {"caSecretRef": {"name": "ca"}}}}), 253, false),
        (json!({"redis": {"endpoints": ["r:1"], "tls": {}}}), 253, true),
    ] {
        let (mut bench, name) = (Bench::default(), "a".repeat(length));
        bench.world.stores.insert(store_key_of(&name), store(&spec));
        let more = json!({"shared": {"storeRef": {"name": name}}});
        let found = faults(bench.policy(policy(1, &rule(&window(5), &more))));
        if is_valid {
            assert_eq!(found, [""; 0], "{spec}");
            continue;
        }
        let expected = format!(
            "spec.rules[0].shared.storeRef: the names of namespace and store have {} characters together: use a shorter name for the \
             RateLimitStore, because a store with Secrets can have 254 at most",
            "shop".len() + length
        );
        assert_eq!(found, [expected]);
    }
}

/// For a rule of scope Fleet, the operator is the store. It has no `RateLimitStore`.
#[test]
fn a_fleet_rule_counts_in_the_operator() {
    let mut bench = Bench::default();
    let compiled = bench.policy(policy(7, &fleet_rule(&window(100), &json!({}))));
    assert_eq!(faults(compiled), [""; 0]);
    let expected = wire::Shared {
        store: "operator".to_owned(),
        counters: "shop/checkout.all".to_owned(),
        stamp: 7,
        on_store_loss: OnStoreLoss::LocalShare,
        sharers: 1,
    };
    assert_eq!(shared_of(compiled), expected);
    let store = wire::Store { name: "operator".to_owned(), backend: StoreBackend::Operator, secrets: None };
    let rules = compiled.policy.clone().unwrap();
    assert_eq!((&rules.stores[..], &rules.secrets[..], store_key("operator")), (&[store][..], &[][..], None));
    // Without a cluster, the result is the same.
    let spec = policy(7, &fleet_rule(&window(100), &json!({}))).spec.unwrap();
    let (checked, _) = compile(&key(), "uid", &spec).unwrap();
    assert_eq!((&checked.stores, checked.rules[0].shared.is_some()), (&rules.stores, true));
    // The number of pods follows the targets.
    assert_eq!([bench.pods(6), bench.pods(6)], [(true, 8), (false, 8)]);
    // A policy can have rules of several scopes, and the operator is listed once.
    bench.world.stores.insert(store_key_of("limits"), redis("r:1"));
    let mut mixed = policy(8, &rule(&window(5), &json!({})));
    let mut spec = serde_json::to_value(mixed.spec.as_ref().unwrap().as_ref()).unwrap();
    for name in ["b", "c"] {
        spec["rules"].as_array_mut().unwrap().push(fleet_rule(&window(5), &json!({"name": name})));
    }
    mixed.spec = Ok(Arc::new(serde_json::from_value(spec).unwrap()));
    let compiled = bench.policy(mixed);
    let names: Vec<_> = compiled.policy.as_ref().unwrap().stores.iter().map(|store| store.name.as_str()).collect();
    assert_eq!((faults(compiled), names), (Vec::new(), vec!["shop/limits", "operator"]));
    // A change of the store recompiles the policy, and the operator stays.
    let compiled = bench.store(Some(redis("r:2")));
    assert_eq!(compiled.policy.as_ref().unwrap().stores[1].name, "operator");
}

/// The limits of the operator are those of a store on Redis.
#[test]
fn a_fleet_rule_that_the_operator_cannot_count_is_a_fault_with_its_fix() {
    // The columns: the limit, more of the rule, and the fault with its fix.
    for [limit, more, path, fix] in rows(
        "
        {requests: 5, per: 1s, strategy: LeakyBucket} | {onLimit: {action: Wait, maxWait: 1s}} | - | -
        {requests: 5, per: 1s, strategy: TokenBucketWithDebt, debt: 5} | {} | - | -
        {requests: 9000, per: 1s, strategy: SlidingWindowLog} | {} | limits[0].requests | use SlidingWindowCounter
        {requests: 999999937, per: 23h59m59s999ms, burst: 1000000000} | {} | limits[0].requests | lower burst
        {requests: 5, per: 10m, strategy: FixedWindow} | {cost: {header: {name: x, most: 2000000}}} | cost.header.most | larger units
        {requests: 5, per: 1s, strategy: TokenBucketWithDebt, debt: 5} | {cost: {responseHeader: {name: x, most: 2000000}}} | cost.responseHeader.most | larger units
        {requests: 5, per: 1s, strategy: TokenBucketWithDebt, debt: 5} | {cost: {requestBytes: {}}} | cost | use scope Pod
        {concurrent: 5} | {} | scope | is not valid with a concurrent limit
        {requests: 5, per: 10m, strategy: FixedWindow} | {shared: {storeRef: {name: limits}}} | shared | remove it
        {requests: 5, per: 10m, strategy: FixedWindow} | {per: Message} | scope | use scope Pod
        ",
    ) {
        is_fault(None, &fleet_rule(&named(limit), &yaml(more)), path, fix);
    }
    let with_name = |length: usize| fleet_rule(&window(5), &json!({"name": "a".repeat(length)}));
    is_fault(None, &with_name(166), "-", "");
    is_fault(None, &with_name(167), "name", "use shorter names");
}

/// Returns a limit with a name.
fn named(limit: &str) -> Value {
    let mut limit = yaml(limit);
    limit["name"] = "a".into();
    limit
}

/// Compiles the rule while the store is this one. It must have this fault, or none for the path `-`.
#[track_caller]
fn is_fault(store: Option<Store>, rule: &Value, path: &str, fix: &str) {
    let mut bench = Bench::with(store);
    let compiled = bench.policy(policy(1, rule));
    let found = faults(compiled);
    match &found[..] {
        [] if path == "-" => {}
        [fault] => assert!(fault.starts_with(&format!("spec.rules[0].{path}: ")) && fault.contains(fix), "{fault}"),
        _ => panic!("{rule}: {found:?}"),
    }
    assert_eq!(only_waits_for_stores(&compiled.faults), path == "shared.storeRef.name", "{rule}");
}

#[test]
fn a_store_that_is_missing_or_cannot_count_this_is_a_fault_with_its_fix() {
    is_fault(None, &rule(&window(5), &json!({})), "shared.storeRef.name", "create it, or name one that exists");
    // The columns: the store, the limit, more of the rule, and the fault with its fix.
    for [store, limit, more, path, fix] in rows(
        "
        memcached | {requests: 5, per: 1s, strategy: LeakyBucket} | {} | limits[0].strategy | use TokenBucket
        memcached | {requests: 5, per: 1s, strategy: SlidingWindowLog} | {} | limits[0].strategy | use SlidingWindowCounter
        memcached | {requests: 5, per: 10m, strategy: FixedWindow} | {onLimit: {action: Wait, maxWait: 1s}} | onLimit.action | use Reject
        memcached | {requests: 5, per: 10m, strategy: FixedWindow} | {} | - | -
        redis | {requests: 5, per: 1s, strategy: LeakyBucket} | {onLimit: {action: Wait, maxWait: 1s}} | - | -
        redis | {requests: 5, per: 1s, strategy: SlidingWindowLog} | {} | - | -
        redis | {requests: 9000, per: 1s, strategy: SlidingWindowLog} | {} | limits[0].requests | use SlidingWindowCounter
        redis | {requests: 999999937, per: 23h59m59s999ms, burst: 1000000000} | {} | limits[0].requests | lower burst
        redis | {requests: 5, per: 10m, strategy: FixedWindow} | {cost: {header: {name: x, most: 2000000}}} | cost.header.most | larger units
        ",
    ) {
        let store = if store == "redis" { redis("r:1") } else { memcached() };
        is_fault(Some(store), &rule(&named(limit), &yaml(more)), path, fix);
    }
}

/// A policy is compiled again when its store is created, changed or deleted.
#[test]
fn a_store_that_appears_changes_or_goes_recompiles_its_policies() {
    let mut bench = Bench::default();
    bench.policy(policy(1, &rule(&window(5), &json!({}))));
    assert!(bench.compiler.compiled()[&key()].policy.is_none());
    assert_eq!(faults(bench.store(Some(redis("r:1")))), [""; 0]);
    let first = bench.compiler.compiled()[&key()].policy.clone().unwrap();
    let second = bench.store(Some(redis("r:2"))).policy.clone().unwrap();
    assert_ne!(first.revision, second.revision, "agents must connect to the other store");
    assert_eq!(first.rules, second.rules);
    // Without the store, the rules stay in force.
    let gone = bench.store(None);
    assert_eq!((faults(gone).len(), gone.policy.as_ref()), (1, Some(&second)));
    assert_eq!(bench.store(Some(redis("r:2"))).policy.as_ref(), Some(&second));
}

#[test]
fn the_last_good_generation_follows_its_store() {
    let mut bench = Bench::with([redis("r:1")]);
    bench.policy(policy(3, &rule(&window(5), &json!({}))));
    bench.policy(policy(4, &rule(&window(5), &json!({"match": [{"pathRegexes": ["("]}]}))));
    let compiled = bench.store(Some(redis("r:2")));
    assert_eq!(faults(compiled).len(), 1, "{:?}", compiled.faults);
    let rules = compiled.policy.as_ref().unwrap();
    assert!(format!("{:?}", rules.stores).contains("r:2"), "{rules:?}");
    assert_eq!(shared_of(compiled).stamp, 3, "the stamp of the generation in force");
}

/// Another policy can use the new store under the same name, in the same pod.
#[test]
fn rules_that_cannot_use_the_new_store_keep_the_old_one_under_another_name() {
    let leaky = json!({"name": "a", "requests": 5, "per": "1s", "strategy": "LeakyBucket"});
    let mut bench = Bench::with([redis("r:1")]);
    let before = shared_of(bench.policy(policy(1, &rule(&leaky, &json!({})))));
    let compiled = bench.store(Some(memcached()));
    assert_eq!(compiled.faults.len(), 1);
    let (rules, shared) = (compiled.policy.clone().unwrap(), shared_of(compiled));
    assert_eq!([&*rules.stores[0].name, &*shared.store], ["shop/limits@replaced"; 2]);
    assert!(matches!(rules.stores[0].backend, StoreBackend::Redis { .. }));
    assert_eq!((&shared.counters, store_key(&shared.store)), (&before.counters, Some(store_key_of("limits"))));
    // A second change to Memcached changes nothing, and the first store restores the rules.
    assert_eq!(bench.store(Some(memcached())).policy, Some(rules));
    assert_eq!(shared_of(bench.store(Some(redis("r:1")))), before);
}

/// After a rollback of the operator, a store can have a field that the older operator does not know.
#[test]
fn a_new_operator_keeps_the_limits_of_a_store_that_it_cannot_read() {
    let leaky = json!({"name": "a", "requests": 5, "per": "1s", "strategy": "LeakyBucket"});
    let good = policy(1, &rule(&leaky, &json!({})));
    let spec = serde_json::to_string(&**good.spec.as_ref().unwrap()).unwrap();
    let stored = LastKnownGood { generation: 1, spec };
    let unknown = || vec![Fault { path: "spec.redis.newer".to_owned(), message: "unknown field".to_owned() }];
    let unreadable = Store { spec: Err(unknown()), ..redis("r:1") };
    let invalid = Policy { generation: 2, spec: Err(unknown()), ..good.clone() };
    for (what, store, policy, is_kept) in [
        ("it cannot be read", Some(unreadable.clone()), &good, true),
        ("it cannot be read, and the policy is invalid", Some(unreadable.clone()), &invalid, true),
        ("it was deleted", None, &good, false),
        ("another one cannot count the limit", Some(memcached()), &good, false),
    ] {
        let mut bench = Bench::with(store);
        let compiled = bench.policy_with(policy.clone(), Some(&stored));
        let kept = compiled.unreadable().and_then(GoodGeneration::to_stored);
        assert_eq!((compiled.policy.is_some(), kept), (false, is_kept.then(|| stored.clone())), "{what}");
        assert_eq!(only_waits_for_stores(&compiled.faults), what == "it was deleted", "{:?}", compiled.faults);
        if is_kept {
            let compiled = bench.store(Some(redis("r:1")));
            let good = compiled.good.as_ref().map(GoodGeneration::generation);
            assert_eq!((compiled.policy.is_some(), good), (true, Some(1)), "{what}, and then it can");
        }
    }
    // The user who can change the store must not stop the changes of these pods.
    for (what, policy) in [("the newest generation", &good), ("an earlier generation", &invalid)] {
        for (then, store) in [("it is deleted", None), ("another one replaces it", Some(memcached()))] {
            let mut bench = Bench::with([unreadable.clone()]);
            assert!(bench.policy_with(policy.clone(), Some(&stored)).unreadable().is_some(), "{what}");
            let compiled = bench.store(store);
            assert_eq!((compiled.unreadable(), &compiled.policy), (None, &None), "{what}, and then {then}");
        }
    }
}

#[test]
fn sharers_follow_the_number_of_pods_without_haste() {
    let mut bench = Bench::with([redis("r:1")]);
    let clusters = json!({"shared": {"storeRef": {"name": "limits"}, "clusters": 3}});
    bench.policy(policy(1, &rule(&window(5), &clusters)));
    for (pods, expected) in [
        (6, (true, 24)),
        (6, (false, 24)),
        // A rolling update adds two pods.
        (8, (false, 24)),
        (9, (true, 48)),
        (6, (false, 48)),
        (5, (false, 48)),
        (4, (true, 12)),
        (0, (true, 3)),
        (0, (false, 3)),
    ] {
        assert_eq!(bench.pods(pods), expected, "{pods} pods");
    }
    // A new generation keeps the number of pods.
    bench.pods(100);
    assert_eq!(shared_of(bench.policy(policy(2, &rule(&window(6), &clusters)))).sharers, 128 * 3);
}

/// Otherwise, each pod without the store would use a part of the limit for the number of pods when the rules still
/// compiled.
#[test]
fn sharers_follow_the_number_of_pods_while_old_rules_stay_in_force() {
    let clusters = json!({"shared": {"storeRef": {"name": "limits"}, "clusters": 3}});
    let invalid = json!({"match": [{"pathRegexes": ["("]}]});
    // The last good spec is too long for the status.
    let paths: Vec<_> = (0..1400).map(|number| format!("/{number:0>200}")).collect();
    let mut long = clusters.clone();
    long["match"] = json!([{"paths": paths}]);
    type Break = fn(&mut Bench, &Value);
    let (without_store, with_fault): (Break, Break) = (
        |bench, _| {
            bench.store(None);
        },
        |bench, invalid| {
            bench.policy(policy(2, &rule(&window(5), invalid)));
        },
    );
    for (what, good, breaks) in [
        ("no store", &clusters, without_store),
        ("an invalid generation", &clusters, with_fault),
        ("an invalid generation after a long one", &long, with_fault),
    ] {
        let mut bench = Bench::with([redis("r:1")]);
        bench.policy(policy(1, &rule(&window(5), good)));
        assert_eq!(bench.pods(4), (true, 12), "{what}");
        let before = bench.compiler.compiled()[&key()].policy.clone().unwrap();
        breaks(&mut bench, &invalid);
        assert_eq!(bench.compiler.compiled()[&key()].faults.len(), 1, "{what}");
        assert_eq!(bench.pods(100), (true, 384), "{what}");
        let after = bench.compiler.compiled()[&key()].policy.clone().unwrap();
        assert_ne!(before.revision, after.revision, "{what}: agents must get the new number");
        assert_eq!(bench.pods(4), (true, 12), "{what}");
        assert_eq!(bench.compiler.compiled()[&key()].policy.as_ref(), Some(&before), "{what}");
    }
}

#[test]
fn stamps_grow_with_generations_and_with_new_policies_of_the_name() {
    let at = |seconds: i64| Some(Timestamp::from_second(seconds).unwrap());
    let in_order = [
        stamp(None, 1),
        stamp(None, 2),
        stamp(None, (1 << 21) - 1),
        stamp(None, 1 << 21),
        stamp(None, (1 << 21) + 1),
        stamp(at(1_763_000_000), 1),
        stamp(at(1_763_000_000), 900),
        stamp(at(1_763_000_001), 1),
        stamp(at(253_402_207_200), 1),
    ];
    assert!(in_order.is_sorted_by(|one, next| one < next), "{in_order:?}");
    assert!(in_order.iter().all(|stamp| *stamp < 1 << 52), "a store cannot compare the stamp");
    assert_eq!(stamp(at(0), -5), 0);
    assert_eq!(stamp(at(253_402_207_200), i64::MAX), (1 << 52) - 1);
}

proptest! {
    /// The local share never lets all pods together exceed the limit. A share is more than a quarter of an even share.
    #[test]
    fn the_rounded_number_of_pods_is_enough_and_not_far_too_much(counts in proptest::collection::vec(0..3000_usize, 1..40)) {
        let mut before = None;
        for pods in counts {
            let now = rounded(pods, before);
            prop_assert!(now as usize >= pods && (now as usize) < 4 * pods.max(1), "{pods}: {now}");
            before = Some(now);
        }
    }
}

#[test]
fn only_a_pod_can_lack_secrets() {
    let secrets =
        StoreSecrets { directory: "shop.limits".to_owned(), credentials: Some("redis".to_owned()), authorities: None };
    let lacks = |membership: Membership, annotation: Option<&str>| {
        let pod = Pod::running("", membership, AgentAddress::Pending);
        secrets.are_missing_in(&Pod { store_secrets: annotation.map(Into::into), ..pod })
    };
    let pod = Membership::of_labels(BTreeMap::new());
    assert!(lacks(pod.clone(), None) && !lacks(pod, Some(&secrets.mounted_as())));
    assert!(!lacks(Membership::Everything, None) && !lacks(Membership::Labelled(BTreeMap::new()), None));
}
