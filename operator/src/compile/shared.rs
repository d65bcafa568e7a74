//! Compiles rules of scope Shared and Fleet: finds their store, and refuses limits that the store cannot count. For a
//! rule of scope Fleet, the store is the operator.

use std::collections::BTreeMap;

use jiff::Timestamp;
use weir_api as api;
use weir_seats::{
    InvalidStoreTerms,
    terms::{self, LONGEST_STORE_LOG, MOST_UNITS},
};
use weir_wire as wire;

use super::faults::Faults;
use crate::world::{Membership, ObjectKey, Pod, Store};

/// The stores that a policy can name.
#[derive(Clone, Copy, Debug)]
pub enum KnownStores<'a> {
    /// The stores are unknown, as in a check of a file. Each name stands for a store that supports every strategy.
    Unknown,
    /// Exactly these stores exist.
    Known(&'a BTreeMap<ObjectKey, Store>),
}

/// The properties of one policy that its shared counters depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing<'a> {
    pub(super) policy: &'a ObjectKey,
    /// A number that orders the generations of the policy.
    pub(super) stamp: u64,
    /// The number of pods of this cluster that share the counters, possibly rounded up.
    pub(super) pods: u32,
    pub(super) stores: KnownStores<'a>,
}

/// The Secrets that an agent needs for one store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreSecrets {
    /// Name of the directory below the agent's directory of secrets.
    pub directory: String,
    /// The Secret with the keys `username` and `password`, those of Sentinel, and a client certificate.
    pub credentials: Option<String>,
    /// The Secret with the key `ca.crt`.
    pub authorities: Option<String>,
}

impl StoreSecrets {
    /// Returns the entry for these Secrets in a pod's annotation. Names of objects cannot contain the characters `=`
    /// and `+`.
    pub fn mounted_as(&self) -> String {
        let name = |secret: &Option<String>| secret.clone().unwrap_or_default();
        format!("{}={}+{}", self.directory, name(&self.credentials), name(&self.authorities))
    }

    /// Returns true if a pod was created without these Secrets. An agent outside of any cluster has no such Secrets.
    pub fn are_missing_in(&self, pod: &Pod) -> bool {
        matches!(*pod.membership, Membership::Pod { .. }) && !self.are_in(pod.store_secrets.as_deref())
    }

    /// Returns true if a pod with this annotation can read these Secrets.
    pub fn are_in(&self, annotation: Option<&str>) -> bool {
        annotation.is_some_and(|list| list.split(',').any(|entry| entry == self.mounted_as()))
    }
}

/// A store on the wire, and its Secrets if it has any.
type StoreWithSecrets = (wire::Store, Option<StoreSecrets>);

/// The latest time that fits a stamp, in seconds since 2020: in the year 2088.
const LATEST: i64 = (1 << 31) - 1;
const YEAR_2020: i64 = 1_577_836_800;
/// The bits of a stamp for the generation. A store compares stamps below 2^52, and 31 bits are for the time.
const GENERATION_BITS: u32 = 21;
const LARGEST_STAMP: i64 = (1 << 52) - 1;

/// Returns the stamp of a policy's generation. A later generation has a larger stamp. A policy that is deleted and
/// created again begins with generation 1, and finds the counters of the earlier policy in the store. So `time` is the
/// more significant part: the time at which the policy was created in a cluster, or changed in a file.
pub(super) fn stamp(time: Option<Timestamp>, generation: i64) -> u64 {
    let seconds = time.map_or(0, |time| (time.as_second() - YEAR_2020).clamp(0, LATEST));
    // Generations that need more bits continue in the bits of the seconds.
    let stamp = (seconds << GENERATION_BITS).saturating_add(generation.max(0));
    u64::try_from(stamp.min(LARGEST_STAMP)).unwrap_or(0)
}

/// Returns the number of pods to count with, given the last result. It is at least `pods` and a power of two, so that
/// few changes of the number of pods change the rules. It shrinks only when a quarter of it suffices: a rolling update,
/// which adds some pods and removes as many, changes it at most once.
pub(super) fn rounded(pods: usize, before: Option<u32>) -> u32 {
    const MOST: u32 = 1 << 30;
    let pods = u32::try_from(pods).unwrap_or(MOST).clamp(1, MOST);
    match before {
        Some(before) if pods <= before && pods > before / 4 => before,
        _ => pods.next_power_of_two(),
    }
}

/// Returns the store of a rule and the values that agents need to share its counters. The store of scope Fleet is the
/// operator. `None` if the rule has scope Pod or a fault.
pub(super) fn shared(
    rule: &api::Rule,
    sharing: Sharing<'_>,
    path: &str,
    faults: &mut Faults,
) -> Option<(wire::Shared, Option<StoreWithSecrets>)> {
    let shared = match (rule.scope, &rule.shared) {
        (api::Scope::Pod, None) => return None,
        (api::Scope::Fleet, None) => None,
        (api::Scope::Shared, Some(shared)) => Some(shared),
        (api::Scope::Pod | api::Scope::Fleet, Some(_)) => {
            faults.add(format!("{path}.shared"), "is valid only with scope Shared: remove it, or add scope: Shared");
            return None;
        }
        (api::Scope::Shared, None) => {
            faults.add(
                format!("{path}.shared"),
                "is required with scope Shared: name the store, or use scope Pod or Fleet",
            );
            return None;
        }
    };
    if rule.per == api::Per::Message {
        faults.add(format!("{path}.scope"), "is not valid with per Message: use scope Pod, or per Request");
    }
    let compiled = wire::Shared {
        store: wire::OPERATOR_STORE.to_owned(),
        counters: format!("{}.{}", sharing.policy, rule.name),
        stamp: sharing.stamp,
        on_store_loss: wire::OnStoreLoss::LocalShare,
        sharers: sharing.pods,
    };
    if weir_seats::Key::new(&compiled.counters, 0).is_err() {
        let message = format!(
            "the names of namespace, policy and rule have {} characters together: use shorter names, because a rule of scope \
             Shared or Fleet can have {} at most",
            compiled.counters.len(),
            weir_seats::LONGEST_NAME,
        );
        faults.add(format!("{path}.name"), message);
    } else if rule.limit_override.is_some()
        && weir_seats::Key::new(&with_descriptor_limit(&compiled.counters), 0).is_err()
    {
        let most = weir_seats::LONGEST_NAME - LONGEST_DESCRIPTOR_LIMIT.len();
        let message = format!(
            "the names of namespace, policy and rule have {} characters together: shorten the name of the rule or of the \
             policy, because a rule of scope Shared or Fleet with limitOverride can have {most} at most",
            compiled.counters.len(),
        );
        faults.add(format!("{path}.name"), message);
    }
    let Some(shared) = shared else { return Some((compiled, Some((operator_store(), None)))) };
    let key = ObjectKey::new(sharing.policy.namespace.clone(), &*shared.store_ref.name);
    let clusters: u32 = faults.number(format!("{path}.shared.clusters"), shared.clusters.into(), 1);
    let compiled = wire::Shared {
        store: key.to_string(),
        on_store_loss: match shared.on_store_loss {
            api::OnStoreLoss::FailOpen => wire::OnStoreLoss::FailOpen,
            api::OnStoreLoss::FailClosed => wire::OnStoreLoss::FailClosed,
            api::OnStoreLoss::LocalShare => wire::OnStoreLoss::LocalShare,
        },
        sharers: sharing.pods.saturating_mul(clusters),
        ..compiled
    };
    let KnownStores::Known(stores) = sharing.stores else { return Some((compiled, None)) };
    let (name, namespace) = (&key.name, &key.namespace);
    let Some(store) = stores.get(&key) else {
        faults.add(
            format!("{path}{STORE_NAME}"),
            format!(
                "there is no RateLimitStore {name:?} in namespace {namespace:?}: create it, or name one that exists"
            ),
        );
        return None;
    };
    match &store.spec {
        Ok(spec) => {
            // Agents refuse a snapshot with such a store, and with it the rules of other policies.
            if let Some((field, server)) = spec.invalid_server() {
                let message = format!(
                    "RateLimitStore {name:?} has {server:?} in spec.{field}: write a host and a port from 1 to 65535"
                );
                faults.add(format!("{path}.shared.storeRef"), message);
                return None;
            }
            if spec.memcached.is_some() {
                check_memcached(rule, name, path, faults);
            }
            let store = compile_store(&key, spec);
            if let Some(StoreSecrets { directory, .. }) = &store.1
                && directory.len() > LONGEST_DIRECTORY
            {
                let message = format!(
                    "the names of namespace and store have {} characters together: use a shorter name for the \
                     RateLimitStore, because a store with Secrets can have {} at most",
                    directory.len() - 1,
                    LONGEST_DIRECTORY - 1
                );
                faults.add(format!("{path}.shared.storeRef"), message);
                return None;
            }
            Some((compiled, Some(store)))
        }
        Err(unreadable) => {
            let why = unreadable.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            faults.add(format!("{path}.shared.storeRef"), format!("RateLimitStore {name:?} cannot be read: {why}"));
            None
        }
    }
}

/// Returns true if a rule names a store with a spec that this operator cannot read.
pub(super) fn names_unreadable_store(spec: &api::RateLimitPolicySpec, sharing: Sharing<'_>) -> bool {
    let KnownStores::Known(stores) = sharing.stores else { return false };
    let names = spec.rules.iter().filter_map(|rule| Some(&*rule.shared.as_ref()?.store_ref.name));
    let mut keys = names.map(|name| ObjectKey::new(sharing.policy.namespace.clone(), name));
    keys.any(|key| stores.get(&key).is_some_and(|store| store.spec.is_err()))
}

/// The longest name of a directory that the kubelet creates in a volume. It starts no pod with a longer one.
const LONGEST_DIRECTORY: usize = 255;

/// The longest suffix that an agent appends to the name of counters for a limit of a descriptor: the most requests of
/// Envoy's protocol in the longest period of a limit, 73 years.
const LONGEST_DESCRIPTOR_LIMIT: &str = "@4294967295-2305843009213";

fn with_descriptor_limit(counters: &str) -> String {
    format!("{counters}{LONGEST_DESCRIPTOR_LIMIT}")
}

/// Returns the store of rules with scope Fleet. It has no `RateLimitStore` and no Secrets.
fn operator_store() -> wire::Store {
    let (name, backend) = (wire::OPERATOR_STORE.to_owned(), wire::StoreBackend::Operator);
    wire::Store { name, backend, secrets: None }
}

const STORE_NAME: &str = ".shared.storeRef.name";

/// Returns true if the only faults of a policy are stores that do not exist yet.
pub(crate) fn only_waits_for_stores(faults: &[crate::world::Fault]) -> bool {
    !faults.is_empty() && faults.iter().all(|fault| fault.path.ends_with(STORE_NAME))
}

/// Compiles a store, and its Secrets.
pub fn compile_store(key: &ObjectKey, spec: &api::RateLimitStoreSpec) -> StoreWithSecrets {
    let (backend, secrets) = match (&spec.redis, &spec.memcached) {
        (Some(redis), _) => {
            let name = |secret: &api::SecretRef| secret.name.clone();
            let secrets = StoreSecrets {
                // A namespace has no dot in its name.
                directory: format!("{}.{}", key.namespace, key.name),
                credentials: redis.credentials_secret_ref.as_ref().map(name),
                authorities: redis.tls.as_ref().and_then(|tls| tls.ca_secret_ref.as_ref()).map(name),
            };
            let backend = wire::StoreBackend::Redis {
                topology: match redis.topology {
                    api::Topology::Standalone => wire::Topology::Standalone,
                    api::Topology::Sentinel => wire::Topology::Sentinel,
                    api::Topology::Cluster => wire::Topology::Cluster,
                },
                endpoints: redis.endpoints.clone(),
                master_name: redis.master_name.clone(),
                tls: redis.tls.is_some(),
                has_authorities: secrets.authorities.is_some(),
                has_credentials: secrets.credentials.is_some(),
            };
            (backend, Some(secrets))
        }
        (None, memcached) => {
            let servers = memcached.as_ref().map(|memcached| memcached.servers.clone()).unwrap_or_default();
            (wire::StoreBackend::Memcached { servers }, None)
        }
    };
    let secrets = secrets.filter(|secrets| secrets.credentials.is_some() || secrets.authorities.is_some());
    let directory = secrets.as_ref().map(|secrets| secrets.directory.clone());
    (wire::Store { name: key.to_string(), backend, secrets: directory }, secrets)
}

/// Checks that Memcached can count a rule. Memcached has no scripts, so it cannot store a queue or a log.
fn check_memcached(rule: &api::Rule, store: &str, path: &str, faults: &mut Faults) {
    for (index, limit) in rule.limits.iter().enumerate() {
        if matches!(limit.strategy, api::Strategy::LeakyBucket | api::Strategy::SlidingWindowLog) {
            let other =
                if limit.strategy == api::Strategy::LeakyBucket { "TokenBucket" } else { "SlidingWindowCounter" };
            faults.add(
                format!("{path}.limits[{index}].strategy"),
                format!(
                    "{:?} cannot be counted by store {store:?}, which is Memcached: use {other}, or a store with redis",
                    limit.strategy
                ),
            );
        }
    }
    if rule.on_limit.as_ref().is_some_and(|on_limit| on_limit.action == api::OnLimitAction::Wait) {
        faults.add(
            format!("{path}.onLimit.action"),
            format!(
                "Wait needs a store with a queue, and store {store:?} is Memcached: use Reject, or a store with redis"
            ),
        );
    }
}

/// Checks that a store can charge a cost, and the maximum cost of a request against the maximum of a store.
pub(super) fn check_cost(cost: &wire::Cost, path: &str, faults: &mut Faults) {
    let (most, field) = match cost {
        wire::Cost::Fixed(requests) => (*requests, "requests"),
        wire::Cost::RequestHeader { most, .. } => (*most, "header.most"),
        wire::Cost::ResponseHeader { most, .. } => (*most, "responseHeader.most"),
        wire::Cost::RequestBytes | wire::Cost::ResponseBytes => {
            return faults.add(path, "bytes can be counted only with scope Pod: use scope Pod, or another cost");
        }
    };
    if most > u64::from(MOST_UNITS) {
        faults.add(
            format!("{path}.{field}"),
            format!("{most} is more than the maximum of {MOST_UNITS} per request with scope Shared or Fleet: count in larger units"),
        );
    }
}

/// Checks the numbers of a limit that is counted in a store.
pub(super) fn check_numbers(limit: &wire::Limit, path: &str, faults: &mut Faults) {
    let message = match terms::check(limit) {
        Ok(()) => return,
        Err(InvalidStoreTerms::Log) => format!(
            "{} is more than the {LONGEST_STORE_LOG} that a log of scope Shared or Fleet can contain: use SlidingWindowCounter",
            limit.requests
        ),
        Err(_) => {
            "the numbers are too large or too irregular for scope Shared or Fleet: lower burst, or use numbers with a \
                   simple ratio, such as 100 per 1s"
                .to_owned()
        }
    };
    faults.add(format!("{path}.requests"), message);
}
