//! The status that each policy must have once the world is quiet: a definition, computed from the whole world of the
//! simulation. It shares no code with the operator, and does not use cohorts, revisions or changes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use weir_api::{
    DriftReason::{self, NoAgent, Outdated, Pending, Refused, Unreachable},
    RateLimitPolicyStatus,
};
use weir_wire::StoreBackend;

use super::cluster::{Address, Agent, Cluster, Pod, Policy, Spec, Target};
use crate::{
    fleet::{Usage, UsedUp},
    world::ObjectKey,
};

/// The maximum number of pods that a status names.
const NAMED: usize = 10;
/// The maximum number of pods that the condition `FleetDegraded` names.
const NAMED_OF_FLEET: usize = 3;
/// The number of pods that divide a limit, as the counter of the simulation knows it.
const SHARERS: u64 = 8;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expected {
    generation: Option<i64>,
    /// The status and the reason of each condition.
    accepted: (bool, &'static str),
    enforced: (bool, &'static str),
    ready: bool,
    /// The generation that the status stores as the last good one.
    good: Option<i64>,
    pub(super) targeted: usize,
    pub(super) enforcing: usize,
    drifted: Vec<(String, DriftReason)>,
    /// The pods that do not reach the store, if the policy uses it. Silent agents are not included: their connection to
    /// the store is unknown.
    lost: Option<BTreeSet<String>>,
    /// The number of pods for which the operator cannot count, if the policy has scope Fleet, and the first of them.
    /// True if its limits count as used up.
    degraded: Option<(usize, Vec<String>, bool)>,
    /// The number of pods with a share, the keys of the rule, and the sum of the shares, if the policy has scope Fleet.
    shares: Option<(u64, u64, u64)>,
    /// The number of admitted requests of all rules together, and of each rule.
    traffic: (u64, Vec<(String, u64)>),
}

/// Returns the status that `policy` must have.
pub(super) fn expected(cluster: &Cluster, key: &ObjectKey, policy: &Policy) -> Expected {
    let pods: Vec<_> = cluster.pods.iter().filter(|(_, pod)| selects(cluster, policy, pod)).collect();
    let others: Vec<_> = pods.iter().filter_map(|(pod, it)| Some((*pod, fault(cluster, policy, it)?))).collect();
    let is_left_out = pods.iter().any(|(_, pod)| is_left_out(cluster, key, policy, pod));
    let (targeted, enforcing) = (pods.len(), pods.len() - others.len());
    let accepted = match &policy.spec {
        Spec::Invalid => (false, "Invalid"),
        Spec::Valid { target: Target::Deployment(name), .. } if !cluster.deployments.contains_key(name) => {
            (false, "TargetNotFound")
        }
        Spec::Valid { .. } if is_left_out => (false, "SnapshotTooLarge"),
        Spec::Valid { .. } => (true, "Accepted"),
    };
    let enforced = match accepted {
        (false, reason) => (false, reason),
        _ if targeted == 0 => (false, "NoPods"),
        _ if enforcing == targeted => (true, "Enforced"),
        _ if others.iter().all(|(_, reason)| *reason == Pending) => (false, "Pending"),
        _ => (false, "Drifted"),
    };
    let degraded = good(policy).is_some_and(Spec::is_fleet).then(|| {
        let (count, first) = degraded(cluster, &pods, &others);
        (count, first, with_share(cluster, policy) > 0)
    });
    // Pods that may still converge come last. The other pods are sorted by reason and name.
    let mut drifted = others.into_iter().map(|(pod, reason)| (pod.name.to_string(), reason)).collect::<Vec<_>>();
    drifted.sort_by_key(|(pod, reason)| (*reason == Pending, *reason, pod.clone()));
    drifted.truncate(NAMED);
    Expected {
        generation: Some(policy.generation),
        accepted,
        enforced,
        ready: accepted.0 && matches!(enforced.1, "NoPods" | "Enforced"),
        good: policy.good.as_ref().map(|(generation, _)| *generation),
        targeted,
        enforcing,
        drifted,
        lost: good(policy).is_some_and(Spec::is_shared).then(|| lost(cluster, &pods)),
        degraded,
        shares: match good(policy) {
            Some(spec @ Spec::Valid { requests, .. }) if spec.is_fleet() => {
                let pods = with_share(cluster, policy);
                Some((pods, 10 * pods, (pods * requests).div_ceil(SHARERS)))
            }
            _ => None,
        },
        traffic: traffic(cluster, policy),
    }
}

/// The pods for which the counter of the simulation does not count.
fn with_share(cluster: &Cluster, policy: &Policy) -> u64 {
    let is_cut_off = |pod: &&Pod| {
        let Address::At(url) = &pod.address else { return false };
        selects(cluster, policy, pod) && cluster.agents.get(url).is_some_and(|agent| agent.is_cut_off)
    };
    cluster.pods.values().filter(is_cut_off).count().try_into().unwrap()
}

/// Returns what the counter of the simulation keeps. The limits of a policy count as used up while it has pods with a
/// share.
pub(super) fn usage(cluster: &Cluster) -> Usage {
    let (mut usage, mut used_up) = (Usage::default(), HashMap::new());
    for (key, policy) in &cluster.policies {
        let pods = with_share(cluster, policy);
        usage.keys.insert(format!("{key}.r0"), usize::try_from(10 * pods).unwrap());
        let shares = (u32::try_from(pods).unwrap(), u32::try_from(SHARERS).unwrap());
        usage.policies.insert(key.to_string().into(), vec![shares]);
        if pods > 0 {
            used_up.insert(format!("{key}.r0"), key.to_string().into());
        }
    }
    let since = 1_800_000_000_000_000;
    usage.used_up = Some(UsedUp { since, rules: Arc::new(used_up), unknown: Arc::default() });
    usage
}

/// Returns the pods that do not reach the store, as far as their agents can report it.
fn lost(cluster: &Cluster, pods: &[(&ObjectKey, &Pod)]) -> BTreeSet<String> {
    cut_off(cluster, pods, Agent::uses_store)
}

/// Returns the pods whose agents report that they are cut off from what they use.
fn cut_off(cluster: &Cluster, pods: &[(&ObjectKey, &Pod)], uses: impl Fn(&Agent) -> bool) -> BTreeSet<String> {
    let is_lost = |pod: &Pod| {
        let Address::At(url) = &pod.address else { return false };
        cluster.agents.get(url).is_some_and(|agent| !agent.is_silent && agent.is_cut_off && uses(agent))
    };
    pods.iter().filter(|(_, pod)| is_lost(pod)).map(|(key, _)| key.name.to_string()).collect()
}

/// Returns the number of pods for which the operator cannot count, and the first of them: first those that report it,
/// then those that do not answer.
fn degraded(
    cluster: &Cluster,
    pods: &[(&ObjectKey, &Pod)],
    others: &[(&ObjectKey, DriftReason)],
) -> (usize, Vec<String>) {
    let silent: BTreeSet<String> =
        others.iter().filter(|(_, why)| *why == Unreachable).map(|(pod, _)| pod.name.to_string()).collect();
    let names: Vec<String> = cut_off(cluster, pods, Agent::uses_operator).into_iter().chain(silent).collect();
    (names.len(), names.into_iter().take(NAMED_OF_FLEET).collect())
}

/// Returns true if the agent of this pod can report its status.
fn is_heard(cluster: &Cluster, name: &str) -> bool {
    let pod = cluster.pods.get(&ObjectKey::new("shop", name));
    pod.is_some_and(
        |pod| matches!(&pod.address, Address::At(url) if cluster.agents.get(url).is_some_and(|it| !it.is_silent)),
    )
}

/// Returns true if a store's status is right: the number of pods that use it, and the pods that are cut off from it.
pub(super) fn agrees(cluster: &Cluster, using: i32, cut_off: &[&str]) -> bool {
    let pods: Vec<_> = cluster.pods.iter().collect();
    let uses = |pod: &Pod| matches!(&pod.address, Address::At(url) if cluster.agents.get(url).is_some_and(|it| !it.is_silent && it.uses_store()));
    let least = pods.iter().filter(|(_, pod)| uses(pod)).count();
    let silent = pods.iter().filter(|(key, _)| !is_heard(cluster, &key.name)).count();
    let told: BTreeSet<String> =
        cut_off.iter().filter(|name| is_heard(cluster, name)).map(|name| (*name).to_owned()).collect();
    let using = usize::try_from(using).unwrap();
    (least..=least + silent).contains(&using) && told == lost(cluster, &pods)
}

/// Extracts the expected fields from a status.
pub(super) fn told(cluster: &Cluster, status: &RateLimitPolicyStatus) -> Expected {
    let condition = |type_: &str| status.conditions.iter().find(|it| it.type_ == type_);
    let said = |type_: &str, reasons: &[&'static str]| {
        let Some(found) = condition(type_) else { return (false, "absent") };
        let reason = reasons.iter().find(|reason| **reason == found.reason);
        (found.status == "True", *reason.unwrap_or_else(|| panic!("an unknown reason: {found:?}")))
    };
    let enforcement = status.enforcement.clone().unwrap_or_default();
    let traffic = status.traffic.clone().unwrap_or_default();
    let count = |number: i64| u64::try_from(number).unwrap();
    let size = |number: i32| usize::try_from(number).unwrap();
    let faults = ["Invalid", "TargetNotFound", "SnapshotTooLarge"];
    Expected {
        generation: status.observed_generation,
        accepted: said("Accepted", &[&faults[..], &["Accepted"]].concat()),
        enforced: said("Enforced", &[&faults[..], &["NoPods", "Enforced", "Pending", "Drifted"]].concat()),
        ready: condition("Ready").is_some_and(|it| it.status == "True"),
        good: status.last_known_good.as_ref().map(|good| good.generation),
        targeted: size(enforcement.pods_targeted),
        enforcing: size(enforcement.pods_enforcing),
        lost: condition("StoreReachable").map(|it| {
            assert_eq!(it.status == "True", it.reason == "Reached", "{it:?}");
            let pods = it.message.split(", ").filter_map(|told| told.split_once(" has not reached limits"));
            let named = pods.map(|(pod, _)| pod.to_owned());
            named.filter(|pod| is_heard(cluster, pod)).collect()
        }),
        degraded: condition("FleetDegraded").map(|it| {
            let is_used_up = it.reason == "CountsUnknown";
            assert_eq!(it.status == "True", is_used_up || it.reason == "PodsCutOff", "{it:?}");
            assert_eq!(it.message.contains("r0 at 2027-01-15T09:00:00Z"), is_used_up, "{it:?}");
            let Some((count, pods)) = it.message.split_once(" pods do not reach the operator") else {
                return (0, Vec::new(), is_used_up);
            };
            let (count, of) = count.rsplit("; ").next().unwrap().split_once(" of ").unwrap();
            assert_eq!(of, enforcement.pods_targeted.to_string(), "{it:?}");
            let named = pods.split_once(": ").unwrap().1.split("; ").filter(|pod| !pod.ends_with(" more"));
            let name = |pod: &str| pod.split([' ', ',']).next().unwrap().to_owned();
            (count.parse().unwrap(), named.map(name).collect(), is_used_up)
        }),
        shares: status.fleet.as_ref().map(|fleet| {
            let [rule] = &fleet.by_rule[..] else { panic!("not one rule: {fleet:?}") };
            let [limit] = &rule.limits[..] else { panic!("not one limit: {fleet:?}") };
            let admitted = traffic.by_rule.iter().find(|it| it.name == rule.name).map(|it| it.allowed + it.limited);
            assert_eq!(Some(rule.demand), admitted, "{status:?}");
            (count(fleet.pods_with_share.into()), count(rule.keys), count(limit.shares_out))
        }),
        drifted: enforcement.drifted.iter().map(|drift| (drift.pod.clone(), drift.reason)).collect(),
        traffic: (
            count(traffic.allowed),
            traffic.by_rule.iter().map(|rule| (rule.name.clone(), count(rule.allowed))).collect(),
        ),
    }
}

/// Returns the spec that pods must enforce: the newest valid one.
fn good(policy: &Policy) -> Option<&Spec> {
    policy.good.as_ref().map(|(_, spec)| spec)
}

fn selects(cluster: &Cluster, policy: &Policy, pod: &Pod) -> bool {
    match good(policy) {
        Some(Spec::Valid { target: Target::App(app), .. }) => *app == pod.app,
        Some(Spec::Valid { target: Target::Deployment(name), .. }) => match cluster.deployments.get(name) {
            Some(app) => *app == pod.app,
            None => pod.created_by == Some(name),
        },
        Some(Spec::Invalid) | None => false,
    }
}

/// Returns true if the logs of an older policy leave no room in the pod for the logs of this one.
fn is_left_out(cluster: &Cluster, key: &ObjectKey, policy: &Policy, pod: &Pod) -> bool {
    let is_large = |policy: &Policy| matches!(good(policy), Some(Spec::Valid { is_large: true, .. }));
    let on_pod = cluster.policies.iter().filter(|(_, other)| is_large(other) && selects(cluster, other, pod));
    let oldest = on_pod.min_by_key(|(key, other)| (other.created, *key));
    is_large(policy) && oldest.is_some_and(|(oldest, _)| oldest != key)
}

/// Returns the reason why the pod does not enforce the policy, or `None` if it does.
fn fault(cluster: &Cluster, policy: &Policy, pod: &Pod) -> Option<DriftReason> {
    let url = match &pod.address {
        Address::NoAgent => return Some(NoAgent),
        Address::Pending => return Some(Pending),
        Address::At(url) => url,
    };
    let Some(agent) = cluster.agents.get(url).filter(|agent| !agent.is_silent) else { return Some(Unreachable) };
    match good(policy) {
        _ if agent.is_contested => Some(Outdated),
        Some(spec) if enforces(agent, policy, spec) && shares(cluster, agent, policy, spec) => None,
        _ if agent.refuses => Some(Refused),
        _ => Some(Outdated),
    }
}

/// Returns true if the agent's rules in force are those of this spec.
fn enforces(agent: &Agent, policy: &Policy, spec: &Spec) -> bool {
    let rules = agent.rules();
    matches!(spec, Spec::Valid { requests, is_large, .. }
        if rules.get(&policy.uid) == Some(&vec![*requests; if *is_large { 2 } else { 1 }]))
}

/// Returns true if a rule of scope Shared or Fleet has a sufficient number of pods, not far too many, and the current
/// store.
fn shares(cluster: &Cluster, agent: &Agent, policy: &Policy, spec: &Spec) -> bool {
    let targeted = cluster.pods.values().filter(|pod| selects(cluster, policy, pod)).count();
    match agent.sharers(&policy.uid) {
        None => !spec.is_shared() && !spec.is_fleet(),
        Some((sharers, backend)) => {
            let sharers = usize::try_from(sharers).unwrap();
            let is_right = match backend {
                StoreBackend::Operator => spec.is_fleet(),
                backend => spec.is_shared() && *backend == cluster.backend(),
            };
            is_right && (targeted..4 * targeted.max(1)).contains(&sharers)
        }
    }
}

/// Returns the requests that the agents counted in the last minute. All of them come from one burst of requests.
fn traffic(cluster: &Cluster, policy: &Policy) -> (u64, Vec<(String, u64)>) {
    let mut by_rule = BTreeMap::<&str, u64>::new();
    for pod in cluster.pods.values() {
        let Address::At(url) = &pod.address else { continue };
        let counts = cluster.agents.get(url).into_iter().flat_map(|agent| &agent.burst);
        for ((_, rule), count) in counts.filter(|((uid, _), _)| *uid == policy.uid) {
            *by_rule.entry(rule).or_default() += count;
        }
    }
    let names: BTreeSet<&str> = match good(policy) {
        Some(Spec::Valid { is_large: true, .. }) => ["r0", "r1"].into(),
        Some(Spec::Valid { .. }) => ["r0"].into(),
        Some(Spec::Invalid) | None => BTreeSet::new(),
    };
    let of = |name: &str| (name.to_owned(), by_rule.get(name).copied().unwrap_or(0));
    (by_rule.values().sum(), names.into_iter().map(of).collect())
}
