//! Builds the status of a policy from the compiled rules, the targets, the pods' state and their traffic.
//!
//! This module does no I/O and reads no clock. It reports the pods' acknowledgements, never the operator's intentions.
//! A condition's transition time changes only when its status changes. `Ready`, `Reconciling`, `Stalled` and
//! `Programmed` repeat `Accepted` and `Enforced` in the form that other tools expect.

pub mod announcer;
pub mod changes;
pub mod fleet;
pub mod reason;
pub mod stores;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use weir_api::{
    Drift, DriftReason, Enforcement, RateLimitPolicyStatus, RuleTraffic, Summary, Traffic,
    condition_types::{
        ACCEPTED, BYPASSABLE, ENFORCED, FLEET_DEGRADED, PROGRAMMED, READY, RECONCILING, STALLED, STORE_REACHABLE,
    },
};
use weir_expressions::MAX_EXPRESSION_BYTES;
use weir_wire::{MAX_LOG_BYTES, MAX_SNAPSHOT_BYTES, Store};

use crate::{
    compile::{Compiled, GoodGeneration, Target, only_waits_for_stores, store_key},
    observed::Convergence,
    pod_ports::Bypass,
    status::{
        fleet::{FleetCounts, UsedUpRules, build_fleet},
        reason::Reason,
        stores::{LostConnections, fleet_degraded, store_reachable},
    },
    traffic::Counts,
    wording::shorten,
    world::{ObjectKey, Workload},
};

/// The maximum number of drifted pods that a status names.
const NAMED: usize = 10;
/// The maximum length of a drifted pod's message, in bytes.
const LONGEST_MESSAGE: usize = 256;
/// The maximum length of a condition's message, in bytes.
const LONGEST_CONDITION: usize = 4096;

/// All inputs of a status.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The compiled policy.
    pub compiled: &'a Compiled,
    /// The workloads that the policy names and that do not exist.
    pub missing: &'a [Workload],
    /// The Services that the policy names and that have no selector.
    pub podless: &'a [Workload],
    /// The ways in which requests can bypass the agents or the limits.
    pub bypasses: &'a [Bypass],
    /// The number of pods in which the policy does not fit.
    pub left_out: usize,
    /// The number of pods that the policy targets.
    pub targeted: usize,
    /// The targeted pods that do not enforce the policy, each with the reason.
    pub others: &'a [(&'a ObjectKey, Convergence)],
    /// The traffic in the last minute: of each rule, in the policy's order, and of all rules together.
    pub traffic: (&'a [(String, Counts)], Counts),
    /// The targeted pods that do not reach a store of the policy, or the operator.
    pub lost: &'a LostConnections,
    /// How the operator counts for the policy.
    pub fleet: &'a FleetCounts,
}

/// The number of pods in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All targeted pods.
    pub targeted: usize,
    /// Pods that enforce the policy.
    pub enforcing: usize,
    /// Pods that are expected to enforce the policy soon.
    pub pending: usize,
    /// All other pods.
    pub drifted: usize,
}

impl Tally {
    /// Counts the states: all of `targeted` except `others` enforce the policy.
    pub fn of(targeted: usize, others: &[(&ObjectKey, Convergence)]) -> Self {
        let mut tally = Self { targeted, enforcing: targeted.saturating_sub(others.len()), ..Self::default() };
        for (_, convergence) in others {
            match convergence {
                Convergence::Enforcing => tally.enforcing += 1,
                Convergence::Pending(..) => tally.pending += 1,
                Convergence::Drifted(..) => tally.drifted += 1,
            }
        }
        tally
    }
}

/// Builds the status. `previous` is the status that was written last.
pub fn build(facts: &Facts<'_>, previous: Option<&RateLimitPolicyStatus>, now: Timestamp) -> RateLimitPolicyStatus {
    let tally = Tally::of(facts.targeted, facts.others);
    let condition = |type_: &str, (status, reason, message): Said| {
        let status = if status { "True" } else { "False" };
        let before = previous.and_then(|p| p.conditions.iter().find(|c| c.type_ == type_ && c.status == status));
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            observed_generation: Some(facts.compiled.generation),
            last_transition_time: before.map_or(Time(now), |condition| condition.last_transition_time.clone()),
            reason: reason.as_str().to_owned(),
            message: shorten(message, LONGEST_CONDITION),
        }
    };
    let (accepted, enforced) = (accepted(facts), enforced(facts, tally));
    let health = health(facts, &accepted, &enforced);
    let conditions = [
        Some((ACCEPTED, accepted.clone())),
        programmed(&health, &accepted).map(|said| (PROGRAMMED, said)),
        Some((ENFORCED, enforced)),
        Some((READY, health.said(health.progress == Progress::Ready))),
        // These conditions exist only while they are true.
        (health.progress == Progress::UnderWay).then(|| (RECONCILING, health.said(true))),
        (health.progress == Progress::Stalled).then(|| (STALLED, health.said(true))),
        bypassable(facts.bypasses).map(|said| (BYPASSABLE, said)),
        store_reachable(&stores(facts.compiled), &facts.lost.stores).map(|said| (STORE_REACHABLE, said)),
        is_counted_by_operator(facts.compiled).then(|| (FLEET_DEGRADED, fleet(facts, tally))),
    ];
    RateLimitPolicyStatus {
        observed_generation: Some(facts.compiled.generation),
        conditions: conditions.into_iter().flatten().map(|(type_, said)| condition(type_, said)).collect(),
        revision: facts.compiled.policy.as_ref().map(|policy| policy.revision.clone()),
        last_known_good: facts.compiled.good.as_ref().and_then(GoodGeneration::to_stored),
        enforcement: Some(Enforcement {
            pods_targeted: to_i32(tally.targeted),
            pods_enforcing: to_i32(tally.enforcing),
            drifted: drifted(facts.others),
        }),
        traffic: Some(traffic(facts.traffic)),
        fleet: facts.compiled.policy.as_ref().and_then(|policy| build_fleet(policy, facts.fleet, facts.traffic.0)),
        summary: Some(Summary {
            rules: to_i32(facts.compiled.policy.as_ref().map_or(0, |policy| policy.rules.len())),
            enforced: format!("{}/{}", tally.enforcing, tally.targeted),
            limited: limited_percent(facts.traffic.1),
        }),
    }
}

/// Returns true if a rule has scope Fleet.
fn is_counted_by_operator(compiled: &Compiled) -> bool {
    compiled.policy.iter().flat_map(|policy| &policy.stores).any(Store::is_operator)
}

fn fleet(facts: &Facts<'_>, tally: Tally) -> Said {
    let unreachable = facts.others.iter().filter_map(|(pod, convergence)| {
        matches!(convergence, Convergence::Drifted(DriftReason::Unreachable, _)).then_some(&*pod.name)
    });
    let (is_cut_off, reason, message) =
        fleet_degraded(&facts.lost.operator, &unreachable.collect(), tally.enforcing, tally.targeted);
    let (is_cut_off, reason, message) = match &facts.fleet.leaving {
        None => (is_cut_off, reason, message),
        Some(leaving) if is_cut_off => (true, reason, format!("{message}; {leaving}")),
        Some(leaving) => (true, Reason::PodsCutOff, leaving.clone()),
    };
    match facts.fleet.used_up.as_ref().map(UsedUpRules::message) {
        None => (is_cut_off, reason, message),
        // Requests are refused everywhere, which is worse than a share.
        Some(used_up) => {
            (true, Reason::CountsUnknown, if is_cut_off { format!("{used_up}; {message}") } else { used_up })
        }
    }
}

fn stores(compiled: &Compiled) -> Vec<ObjectKey> {
    let stores = compiled.policy.iter().flat_map(|policy| &policy.stores);
    stores.filter_map(|store| store_key(&store.name)).collect()
}

/// A condition: whether it is true, its reason, and its message.
type Said = (bool, Reason, String);

/// The state for other tools.
struct Health {
    progress: Progress,
    reason: Reason,
    message: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Progress {
    Ready,
    UnderWay,
    /// A user must act.
    Stalled,
}

impl Health {
    fn said(&self, status: bool) -> Said {
        (status, self.reason, self.message.clone())
    }
}

fn health(facts: &Facts<'_>, accepted: &Said, enforced: &Said) -> Health {
    let refused =
        |(_, convergence): &(_, Convergence)| matches!(convergence, Convergence::Drifted(DriftReason::Refused, _));
    let (_, reason, message) = if accepted.0 { enforced } else { accepted }.clone();
    let (progress, reason) = match (accepted.0, reason) {
        // A target or a store that is applied together with its policy can appear later than the policy.
        (false, Reason::TargetNotFound | Reason::StoreNotFound) => (Progress::UnderWay, reason),
        (false, _) => (Progress::Stalled, reason),
        (true, _) if facts.others.iter().any(refused) => (Progress::Stalled, Reason::Refused),
        (true, Reason::Bypassed) => (Progress::Stalled, reason),
        (true, Reason::Enforced | Reason::NoPods) => (Progress::Ready, reason),
        (true, _) => (Progress::UnderWay, reason),
    };
    Health { progress, reason, message }
}

/// Returns the condition for whether the pods have the policy, as in GEP-713, or `None` for a policy that is not
/// accepted.
fn programmed(health: &Health, accepted: &Said) -> Option<Said> {
    if !accepted.0 {
        return None;
    }
    let (is_done, reason) = match (health.progress, health.reason) {
        (Progress::Ready, Reason::NoPods) => (true, Reason::NoPods),
        (Progress::Ready, _) | (Progress::Stalled, Reason::Bypassed) => (true, Reason::Programmed),
        (Progress::UnderWay, _) => (false, Reason::Reconciling),
        (Progress::Stalled, reason) => (false, reason),
    };
    Some((is_done, reason, health.message.clone()))
}

fn accepted(facts: &Facts<'_>) -> Said {
    if !facts.compiled.faults.is_empty() {
        let reason =
            if only_waits_for_stores(&facts.compiled.faults) { Reason::StoreNotFound } else { Reason::Invalid };
        return (false, reason, sentence(&facts.compiled.faults, "; "));
    }
    if !facts.missing.is_empty() {
        return (false, Reason::TargetNotFound, not_found(facts.missing));
    }
    if facts.left_out > 0 {
        return (false, Reason::SnapshotTooLarge, too_large(facts));
    }
    (true, Reason::Accepted, "the policy is valid and its targets exist".to_owned())
}

/// Returns the `Enforced` condition.
pub fn enforced(facts: &Facts<'_>, tally: Tally) -> Said {
    let Tally { targeted, enforcing, .. } = tally;
    let Some(rules) = &facts.compiled.policy else {
        let message = match facts.compiled.unreadable().map(GoodGeneration::generation) {
            Some(generation) => format!(
                "this operator cannot read or compile generation {generation}, so only agents that already enforce it do: \
                 these agents get no changes of any policy, and new pods do not enforce it; fix the faults that the \
                 condition Accepted lists, or use the version of the operator that accepted this generation"
            ),
            None => {
                "nothing is enforced, because no generation of the policy was valid: fix the faults that the condition \
                     Accepted lists"
                    .to_owned()
            }
        };
        return (false, Reason::Invalid, message);
    };
    let count = format!("{enforcing} of {targeted} pods enforce revision {}", rules.revision);
    if !facts.compiled.faults.is_empty() {
        let generation = facts.compiled.generation;
        let good = facts.compiled.good.as_ref().map_or(0, GoodGeneration::generation);
        if good == generation {
            // One of the policy's stores was deleted or replaced after this generation was compiled.
            let message = format!(
                "generation {generation} is invalid now, but its rules stay in force: {count}; the condition Accepted lists \
                 the faults"
            );
            return (false, Reason::Invalid, message);
        }
        return (
            false,
            Reason::Invalid,
            format!(
                "generation {generation} is invalid, {good} stays in force: {count}; the condition Accepted lists the faults"
            ),
        );
    }
    if !facts.missing.is_empty() {
        return (false, Reason::TargetNotFound, format!("{}; {count}", not_found(facts.missing)));
    }
    if facts.left_out > 0 {
        return (false, Reason::SnapshotTooLarge, format!("{}; {count}", too_large(facts)));
    }
    if targeted == 0 {
        let is_of_domain = facts.compiled.policy.as_ref().is_some_and(|policy| policy.domain.is_some());
        let hint = if !facts.podless.is_empty() {
            let services = sentence(facts.podless, ", ");
            format!(": {services} without a selector never targets a pod; name the workload of the pods instead")
        } else if is_of_domain {
            ": a policy with a domain targets only pods with the label weir.dev/rate-limit-service: enabled".to_owned()
        } else {
            match facts.compiled.target {
                Some(Target::Labels(_)) => ": none in the namespace has all labels of spec.selector",
                Some(Target::Workloads(_)) | None => ": the workloads in spec.targetRefs have none",
            }
            .to_owned()
        };
        return (false, Reason::NoPods, format!("no running pod is targeted{hint}"));
    }
    if enforcing == targeted && facts.bypasses.iter().any(Bypass::is_main_way) {
        let ways = bypassable(facts.bypasses).map(|(_, _, ways)| ways).unwrap_or_default();
        return (false, Reason::Bypassed, format!("{count}, but {ways}"));
    }
    if enforcing == targeted {
        return (true, Reason::Enforced, count);
    }
    let worst: Vec<String> = (drifted(facts.others).into_iter().take(3))
        .map(|drift| format!("{} is {:?}", drift.pod, drift.reason))
        .collect();
    let reason = if tally.drifted > 0 { Reason::Drifted } else { Reason::Pending };
    (false, reason, format!("{count}; {}", worst.join(", ")))
}

/// Returns the `Bypassable` condition, if there are bypasses.
pub fn bypassable(bypasses: &[Bypass]) -> Option<Said> {
    let reason = match bypasses.iter().find(|way| way.is_main_way()).or(bypasses.first())? {
        Bypass::Port { .. } => Reason::ServicePort,
        Bypass::Names { .. } => Reason::HeadlessService,
        Bypass::HostPort { .. } => Reason::HostPort,
        Bypass::Policy { .. } => Reason::OtherPolicy,
    };
    let is_service = |way: &&Bypass| matches!(way, Bypass::Port { .. } | Bypass::Names { .. });
    let meant = bypasses
        .iter()
        .find(is_service)
        .map(|_| " (if a Service should do that: set its annotation weir.dev/bypass: allowed)");
    Some((true, reason, sentence(bypasses, "; ") + meant.unwrap_or_default()))
}

fn not_found(missing: &[Workload]) -> String {
    let missing = sentence(missing, ", ");
    format!("not found: {missing}: create it in the namespace of the policy, or correct spec.targetRefs")
}

fn too_large(facts: &Facts<'_>) -> String {
    format!(
        "does not fit into {} of {} pods: a pod has room for {} KiB of policies, for {} MiB of SlidingWindowLog limits and bans, \
         and for {} MiB of regular expressions, and older policies come first; rules that were in force stay in force in the \
         pods that have them; let fewer policies target these pods, or write fewer rules, overrides, logs and regular \
         expressions",
        facts.left_out,
        facts.targeted,
        MAX_SNAPSHOT_BYTES / 1024,
        MAX_LOG_BYTES / 1024 / 1024,
        MAX_EXPRESSION_BYTES / 1024 / 1024
    )
}

fn drifted(others: &[(&ObjectKey, Convergence)]) -> Vec<Drift> {
    let mut worst: Vec<(bool, DriftReason, &ObjectKey, &String)> = others
        .iter()
        .filter_map(|(pod, convergence)| match convergence {
            Convergence::Enforcing => None,
            Convergence::Pending(reason, message) => Some((true, *reason, *pod, message)),
            Convergence::Drifted(reason, message) => Some((false, *reason, *pod, message)),
        })
        .collect();
    // The names of a namespace's pods are distinct.
    worst.sort_unstable_by_key(|(is_pending, reason, pod, _)| (*is_pending, *reason, &*pod.name));
    let named = worst.into_iter().take(NAMED).map(|(_, reason, pod, message)| {
        let message = Some(shorten(message.clone(), LONGEST_MESSAGE));
        Drift { pod: pod.name.to_string(), reason, message }
    });
    named.collect()
}

fn traffic((rules, sum): (&[(String, Counts)], Counts)) -> Traffic {
    Traffic {
        window: "60s".to_owned(),
        allowed: to_i64(sum.allowed),
        limited: to_i64(sum.limited),
        shadow_limited: to_i64(sum.shadow_limited),
        waited: to_i64(sum.waited),
        by_rule: (rules.iter())
            .map(|(name, counts)| RuleTraffic {
                name: name.clone(),
                allowed: to_i64(counts.allowed),
                limited: to_i64(counts.limited),
                shadow_limited: to_i64(counts.shadow_limited),
                waited: to_i64(counts.waited),
            })
            .collect(),
    }
}

/// Returns the part of refused requests in percent with one decimal, rounded down, so that `99.9%` never means all requests.
fn limited_percent(counts: Counts) -> String {
    let all = u128::from(counts.allowed) + u128::from(counts.limited);
    let permille = (u128::from(counts.limited) * 1000).checked_div(all).unwrap_or(0);
    format!("{}.{}%", permille / 10, permille % 10)
}

fn sentence(items: &[impl ToString], separator: &str) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

fn to_i32(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
