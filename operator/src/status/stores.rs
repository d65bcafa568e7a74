//! Builds the status of a store, and a policy's conditions about its stores and about the operator, which counts for
//! rules of scope Fleet. This module does no I/O: its inputs are the agents' reports.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use weir_api::{CutOff, RateLimitStoreSpec, RateLimitStoreStatus, StoreSummary, Topology, condition_types::REACHABLE};
use weir_wire::StoreStatus;

use crate::{
    status::reason::Reason,
    wording::shorten,
    world::{ObjectKey, Store},
};

/// The maximum number of pods that a status names.
const NAMED: usize = 10;
/// The maximum number of pods that the condition `FleetDegraded` names.
const NAMED_OF_FLEET: usize = 3;
/// The maximum length of a pod's message, in bytes.
const LONGEST_MESSAGE: usize = 256;

/// A pod that does not reach a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostStore {
    /// The pod.
    pub pod: ObjectKey,
    /// The store.
    pub store: ObjectKey,
    /// The time since which the pod does not reach the store, in milliseconds of Unix time by the pod's clock.
    pub since_unix_millis: u64,
    /// The reason, as far as the agent knows it.
    pub error: Option<String>,
    /// True if the pod was created before the store named its Secrets, so that its agent does not connect.
    pub needs_restart: bool,
}

impl LostStore {
    /// Converts an agent's report about a store that it does not reach.
    pub fn new(pod: &ObjectKey, store: ObjectKey, said: &StoreStatus, needs_restart: bool) -> Self {
        let StoreStatus { since_unix_millis, error, .. } = said.clone();
        Self { pod: pod.clone(), store, since_unix_millis, error, needs_restart }
    }

    fn since(&self) -> Timestamp {
        time(self.since_unix_millis)
    }

    fn why(&self) -> Option<String> {
        let restart = self.needs_restart.then_some(
            "the pod was created before the store named its Secrets: kubectl rollout restart its workload, or mount them \
             into an agent that is written by hand",
        );
        let why: Vec<&str> = restart.into_iter().chain(self.error.as_deref()).collect();
        (!why.is_empty()).then(|| shorten(why.join("; "), LONGEST_MESSAGE))
    }
}

/// A pod whose agent answers the operator, but reports that its questions do not reach the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOffPod {
    /// The name of the pod.
    pub name: Arc<str>,
    /// The time since which the agent's questions do not reach the operator, in milliseconds of Unix time by the pod's
    /// clock.
    pub since_unix_millis: u64,
    /// The reason, as far as the agent knows it.
    pub error: Option<String>,
}

/// The pods of a policy that do not reach its stores, or the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostConnections {
    /// The pods that do not reach a `RateLimitStore` of the policy.
    pub stores: Vec<LostStore>,
    /// The pods that do not reach the operator. Empty if no rule has scope Fleet.
    pub operator: Vec<CutOffPod>,
}

/// Returns the `FleetDegraded` condition of a policy with a rule of scope Fleet: whether it is true, its reason, and
/// its message. `unreachable` contains the names of the pods that do not answer the operator, and `enforcing` is the
/// number of pods that enforce the policy, out of `targeted`.
pub fn fleet_degraded(
    cut_off: &[CutOffPod],
    unreachable: &BTreeSet<&str>,
    enforcing: usize,
    targeted: usize,
) -> (bool, Reason, String) {
    // The last report of a pod that does not answer is old.
    let mut cut_off: Vec<&CutOffPod> = cut_off.iter().filter(|pod| !unreachable.contains(&*pod.name)).collect();
    cut_off.sort_by_key(|pod| (pod.since_unix_millis, &pod.name));
    let count = cut_off.len() + unreachable.len();
    if count == 0 && enforcing == 0 {
        return (false, Reason::Counted, "no pod enforces the policy".to_owned());
    }
    if count == 0 {
        let who = if enforcing == targeted {
            format!("all {enforcing} pods")
        } else {
            format!("the {enforcing} pods that enforce the policy")
        };
        return (false, Reason::Counted, format!("the operator counts for {who}"));
    }
    let reported = cut_off.into_iter().map(|pod| {
        let why = pod
            .error
            .as_deref()
            .map(|why| format!(" ({})", shorten(why.to_owned(), LONGEST_MESSAGE)))
            .unwrap_or_default();
        format!("{} since {:.0}{why}", pod.name, time(pod.since_unix_millis))
    });
    let silent = unreachable.iter().map(|name| format!("{name}, which does not answer"));
    let mut texts: Vec<String> = reported.chain(silent).take(NAMED_OF_FLEET).collect();
    if count > NAMED_OF_FLEET {
        texts.push(format!("{} more", count - NAMED_OF_FLEET));
    }
    let message = format!(
        "{count} of {targeted} pods do not reach the operator and enforce their share of the limits: {}",
        texts.join("; ")
    );
    (true, Reason::PodsCutOff, message)
}

/// Returns the `StoreReachable` condition of a policy: whether it is true, its reason, and its message. `lost` contains
/// each pod that does not reach one of `stores`.
pub fn store_reachable(stores: &[ObjectKey], lost: &[LostStore]) -> Option<(bool, Reason, String)> {
    if stores.is_empty() {
        return None;
    }
    let names = stores.iter().map(|store| &*store.name).collect::<Vec<_>>().join(", ");
    if lost.is_empty() {
        return Some((true, Reason::Reached, format!("no pod reports a lost connection to {names}")));
    }
    let mut worst: Vec<&LostStore> = lost.iter().collect();
    worst.sort_by_key(|lost| (lost.since_unix_millis, &lost.pod, &lost.store));
    let texts = worst.iter().take(NAMED).map(|lost| {
        let why = lost.why().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{} has not reached {} since {:.0}{why}", lost.pod.name, lost.store.name, lost.since())
    });
    let mut texts: Vec<String> = texts.collect();
    if worst.len() > NAMED {
        texts.push(format!("{} more", worst.len() - NAMED));
    }
    let restart = worst.iter().all(|lost| lost.needs_restart);
    Some((false, if restart { Reason::RestartNeeded } else { Reason::CutOff }, texts.join(", ")))
}

/// Returns the status of a store that `using` pods use. `previous` is the status that was written last.
pub fn build_store(
    store: &Store,
    using: usize,
    lost: &[LostStore],
    previous: Option<&RateLimitStoreStatus>,
    now: Timestamp,
) -> RateLimitStoreStatus {
    let reaching = using.saturating_sub(lost.len());
    let mut worst: Vec<&LostStore> = lost.iter().collect();
    worst.sort_by_key(|lost| (lost.since_unix_millis, &lost.pod));
    let (status, reason, message) = match (&store.spec, using) {
        (Err(faults), _) => {
            let faults = faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            ("Unknown", Reason::Invalid, format!("this version of Weir cannot read the store: {faults}"))
        }
        (_, 0) => ("Unknown", Reason::Unused, "no agent has reported that it uses the store".to_owned()),
        (_, using) if reaching == using => {
            ("True", Reason::Reached, format!("all {using} pods that use the store reach it"))
        }
        (_, using) => {
            let names: Vec<&str> = worst.iter().take(3).map(|lost| &*lost.pod.name).collect();
            let message = format!("{reaching} of {using} pods reach the store; cut off: {}", names.join(", "));
            ("False", Reason::CutOff, message)
        }
    };
    let before = previous.and_then(|it| it.conditions.iter().find(|it| it.type_ == REACHABLE && it.status == status));
    // The apiserver's default for a new store has a time of 1970.
    let before = before.filter(|condition| condition.last_transition_time.0 != Timestamp::UNIX_EPOCH);
    let condition = Condition {
        type_: REACHABLE.to_owned(),
        status: status.to_owned(),
        observed_generation: Some(store.generation),
        last_transition_time: before.map_or(Time(now), |condition| condition.last_transition_time.clone()),
        reason: reason.as_str().to_owned(),
        message,
    };
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let cut_off = |lost: &&LostStore| CutOff {
        pod: lost.pod.name.to_string(),
        // The time has whole seconds, as the apiserver stores it.
        since: Time(Timestamp::from_second(lost.since().as_second()).unwrap_or_default()),
        message: lost.why(),
    };
    RateLimitStoreStatus {
        observed_generation: Some(store.generation),
        conditions: vec![condition],
        pods_using: count(using),
        pods_reaching: count(reaching),
        cut_off: worst.iter().take(NAMED).map(cut_off).collect(),
        summary: Some(StoreSummary {
            backend: store.spec.as_deref().map_or("unknown", backend).to_owned(),
            reached: format!("{reaching}/{using}"),
        }),
    }
}

fn backend(spec: &RateLimitStoreSpec) -> &'static str {
    match spec.redis.as_ref().map(|redis| redis.topology) {
        Some(Topology::Standalone) => "Redis",
        Some(Topology::Sentinel) => "Redis Sentinel",
        Some(Topology::Cluster) => "Redis Cluster",
        None => "Memcached",
    }
}

fn time(unix_millis: u64) -> Timestamp {
    let millis = i64::try_from(unix_millis).unwrap_or(i64::MAX);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
#[path = "stores_tests.rs"]
mod tests;
