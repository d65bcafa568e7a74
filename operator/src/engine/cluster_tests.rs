//! The cluster of the simulation: what really exists, as the oracle sees it. The engine sees only what watches and agents
//! report of it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use rand::{Rng, rngs::SmallRng};
use serde_json::json;
use weir_api::{LastKnownGood, RateLimitPolicyStatus, RateLimitStoreStatus};
use weir_wire::{OPERATOR_STORE, PolicyStatus, RuleStatus, SnapshotInForce, Status, StoreBackend, StoreStatus};

use super::*;
use crate::{
    pod_ports::PodPorts,
    world::{self, Fault, Membership, Workload, WorkloadKind},
};

/// The actual state of the cluster.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) policies: BTreeMap<ObjectKey, Policy>,
    pub(super) pods: BTreeMap<ObjectKey, Pod>,
    /// The app that each Deployment selects.
    pub(super) deployments: BTreeMap<String, String>,
    /// The agents by URL.
    pub(super) agents: BTreeMap<String, Agent>,
    /// The port of the store that every rule of scope Shared uses.
    pub(super) store: u16,
    /// A number in the UID of the store, which grows if the store is replaced.
    pub(super) store_number: u64,
    pub(super) store_status: Option<Box<RateLimitStoreStatus>>,
}

impl Cluster {
    /// Returns the store as a watch reports it.
    pub(super) fn shown_store(&self) -> Change {
        let spec = json!({"redis": {"endpoints": [self.endpoint()]}});
        let spec = Ok(Arc::new(serde_json::from_value(spec).unwrap()));
        let store = world::Store { uid: self.store_uid(), generation: i64::from(self.store), spec };
        Change::Store(ObjectKey::new("shop", "limits"), Some((store, self.store_status.clone())))
    }

    pub(super) fn store_uid(&self) -> String {
        format!("store-{}", self.store_number)
    }

    fn endpoint(&self) -> String {
        format!("redis:{}", 1 + self.store)
    }

    /// Returns the address at which every agent should use the store.
    pub(super) fn backend(&self) -> StoreBackend {
        StoreBackend::Redis {
            topology: weir_wire::Topology::Standalone,
            endpoints: vec![self.endpoint()],
            master_name: None,
            tls: false,
            has_authorities: false,
            has_credentials: false,
        }
    }
}

#[derive(Clone)]
pub(super) struct Policy {
    pub(super) uid: String,
    pub(super) generation: i64,
    pub(super) created: i64,
    pub(super) spec: Spec,
    /// The newest valid generation that was planned.
    pub(super) good: Option<(i64, Spec)>,
    pub(super) status: Option<Box<RateLimitPolicyStatus>>,
    pub(super) version: u64,
    /// The last term in which the policy's status was written.
    pub(super) written_in: u64,
}

impl Policy {
    /// Returns the policy as a watch reports it.
    pub(super) fn shown(&self) -> (world::Policy, StoredStatus) {
        let spec = match &self.spec {
            Spec::Invalid => Err(vec![Fault { path: "spec".to_owned(), message: "is not valid".to_owned() }]),
            Spec::Valid { .. } => Ok(Arc::new(serde_json::from_value(self.spec.json()).unwrap())),
        };
        let policy = world::Policy {
            uid: self.uid.clone(),
            generation: self.generation,
            created: Some(Timestamp::from_second(self.created).unwrap()),
            changed: None,
            spec,
            file: None,
        };
        (policy, StoredStatus { status: self.status.clone(), version: Some(self.version.to_string()) })
    }
}

#[derive(Clone)]
pub(super) enum Spec {
    Invalid,
    /// `requests` is different in each spec. A small policy with an odd number has scope Shared, and every second one
    /// with an even number has scope Fleet. The two logs of a large policy take 96 MiB each, so a second large policy
    /// does not fit into a pod.
    Valid {
        requests: u64,
        is_large: bool,
        target: Target,
    },
}

#[derive(Clone)]
pub(super) enum Target {
    App(String),
    Deployment(String),
}

impl Spec {
    pub(super) fn is_shared(&self) -> bool {
        matches!(self, Self::Valid { requests, is_large: false, .. } if requests % 2 == 1)
    }

    pub(super) fn is_fleet(&self) -> bool {
        matches!(self, Self::Valid { requests, is_large: false, .. } if requests % 4 == 2)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let Self::Valid { requests, is_large, target } = self else { panic!("an invalid spec has no JSON") };
        let target = match target {
            Target::App(app) => json!({"selector": {"matchLabels": {"app": app}}}),
            Target::Deployment(name) => json!({"targetRefs": [{"group": "apps", "kind": "Deployment", "name": name}]}),
        };
        let rule = |name: &str| {
            let mut rule = json!({"name": name, "limits": [{"name": "first", "requests": requests, "per": "1h"}]});
            if *is_large {
                let log = json!({"name": "log", "requests": 190, "per": "1h", "strategy": "SlidingWindowLog"});
                rule["limits"].as_array_mut().unwrap().push(log);
                rule["key"] = json!([{"header": "X-Client"}]);
            }
            if self.is_shared() {
                rule["scope"] = "Shared".into();
                rule["shared"] = json!({"storeRef": {"name": "limits"}});
            }
            if self.is_fleet() {
                rule["scope"] = "Fleet".into();
            }
            rule
        };
        let mut spec = json!({"rules": if *is_large { vec![rule("r0"), rule("r1")] } else { vec![rule("r0")] }});
        spec.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
        spec
    }
}

pub(super) fn deployment(name: &str) -> Workload {
    Workload { kind: WorkloadKind::Deployment, key: ObjectKey::new("shop", name) }
}

pub(super) struct Pod {
    pub(super) uid: String,
    pub(super) app: String,
    /// The deployment that created the pod.
    pub(super) created_by: Option<&'static str>,
    pub(super) address: Address,
}

pub(super) enum Address {
    NoAgent,
    Pending,
    At(String),
}

impl Pod {
    pub(super) fn shown(&self) -> world::Pod {
        let labels = BTreeMap::from([("app".to_owned(), self.app.clone())]);
        let controller = self.created_by.map(deployment);
        let agent = match &self.address {
            Address::NoAgent => AgentAddress::None("the pod has no agent".into()),
            Address::Pending => AgentAddress::Pending,
            Address::At(url) => AgentAddress::At(url.as_str().into()),
        };
        world::Pod::running(&self.uid, Membership::Pod { labels, ports: PodPorts::default(), controller }, agent)
    }
}

#[derive(Default)]
pub(super) struct Agent {
    pub(super) instance: String,
    pub(super) started: f64,
    pub(super) in_force: Option<Arc<Content>>,
    pub(super) refuses: bool,
    pub(super) is_silent: bool,
    pub(super) is_contested: bool,
    pub(super) is_cut_off: bool,
    /// Admitted requests by policy and rule: all of them, and those of the last minute.
    pub(super) counts: BTreeMap<(String, String), u64>,
    pub(super) burst: BTreeMap<(String, String), u64>,
}

impl Agent {
    /// Returns the numbers of the first limit of each rule in force, by policy.
    pub(super) fn rules(&self) -> BTreeMap<String, Vec<u64>> {
        let policies = self.in_force.iter().flat_map(|content| &content.policies);
        let numbers = |rules: &[weir_wire::Rule]| rules.iter().map(|rule| rule.limits[0].requests).collect();
        policies.map(|policy| (policy.uid.clone(), numbers(&policy.rules))).collect()
    }

    /// Returns the number of pods and the store of this policy's rule of scope Shared or Fleet, if the agent has one.
    pub(super) fn sharers(&self, uid: &str) -> Option<(u32, &StoreBackend)> {
        let policy = self.in_force.as_ref()?.policies.iter().find(|policy| policy.uid == uid)?;
        Some((policy.rules[0].shared.as_ref()?.sharers, &policy.stores.first()?.backend))
    }

    /// Returns true if a rule in force uses the store.
    pub(super) fn uses_store(&self) -> bool {
        self.uses("shop/limits")
    }

    /// Returns true if a rule in force has scope Fleet.
    pub(super) fn uses_operator(&self) -> bool {
        self.uses(OPERATOR_STORE)
    }

    pub(super) fn uses(&self, name: &str) -> bool {
        let policies = self.in_force.iter().flat_map(|content| &content.policies);
        policies.flat_map(|policy| &policy.stores).any(|store| store.name == name)
    }

    pub(super) fn count(&mut self, rng: &mut SmallRng, is_burst: bool) {
        for policy in self.in_force.iter().flat_map(|content| &content.policies) {
            for rule in &policy.rules {
                let (rule, more) = ((policy.uid.clone(), rule.name.clone()), rng.random_range(1..100));
                *self.counts.entry(rule.clone()).or_default() += more;
                if is_burst {
                    self.burst.insert(rule, more);
                }
            }
        }
    }

    pub(super) fn status(&self, now: f64) -> Status {
        let policies = self.in_force.iter().flat_map(|content| &content.policies);
        let rule = |uid: &str, name: &str| {
            let allowed = self.counts.get(&(uid.to_owned(), name.to_owned())).copied().unwrap_or(0);
            RuleStatus { name: name.to_owned(), allowed, ..RuleStatus::default() }
        };
        Status {
            wire_version: 1,
            instance: self.instance.clone(),
            agent_version: "0".to_owned(),
            uptime_millis: micros(now - self.started) / 1000,
            in_force: self.in_force.as_ref().map(|content| SnapshotInForce {
                sequence: 1,
                revision: content.revision.clone(),
                since_unix_millis: 0,
            }),
            policies: policies
                .map(|policy| PolicyStatus {
                    uid: policy.uid.clone(),
                    namespace: policy.namespace.clone(),
                    name: policy.name.clone(),
                    revision: policy.revision.clone(),
                    rules: policy.rules.iter().map(|it| rule(&policy.uid, &it.name)).collect(),
                })
                .collect(),
            stores: self.stores(),
        }
    }

    pub(super) fn stores(&self) -> Vec<StoreStatus> {
        let status = |name: &str| {
            let error = self.is_cut_off.then(|| "refused".to_owned());
            StoreStatus { name: name.to_owned(), reached: !self.is_cut_off, since_unix_millis: 7000, error }
        };
        ["shop/limits", OPERATOR_STORE].into_iter().filter(|name| self.uses(name)).map(status).collect()
    }

    pub(super) fn restart(&mut self, number: u64, now: f64) {
        let instance = format!("{} again {number}", self.instance);
        let Self { refuses, is_silent, is_contested, is_cut_off, .. } = *self;
        *self = Self { instance, started: now, refuses, is_silent, is_contested, is_cut_off, ..Self::default() };
    }
}

/// Returns the value that a leader stores in the status of a policy with this good generation.
pub(super) fn kept((generation, spec): &(i64, Spec)) -> Option<LastKnownGood> {
    let spec: weir_api::RateLimitPolicySpec = serde_json::from_value(spec.json()).unwrap();
    Some(LastKnownGood { generation: *generation, spec: serde_json::to_string(&spec).unwrap() })
}

/// Parses the spec that a status stores.
pub(super) fn read(kept: &LastKnownGood) -> (i64, Spec) {
    let spec: serde_json::Value = serde_json::from_str(&kept.spec).unwrap();
    let rules = spec["rules"].as_array().unwrap();
    let target = match spec["selector"]["matchLabels"]["app"].as_str() {
        Some(app) => Target::App(app.to_owned()),
        None => Target::Deployment(spec["targetRefs"][0]["name"].as_str().unwrap().to_owned()),
    };
    let requests = rules[0]["limits"][0]["requests"].as_u64().unwrap();
    (kept.generation, Spec::Valid { requests, is_large: rules.len() == 2, target })
}

pub(super) fn micros(seconds: f64) -> u64 {
    u64::try_from(Duration::from_secs_f64(seconds).as_micros()).expect("a simulation is short")
}
