//! Finds the ways in which requests can reach the pods of a policy without passing their agents or its limits. This
//! module does no I/O and reads no clock.

use std::{collections::BTreeSet, sync::Arc};

use kube::core::SelectorExt;
use weir_wire::{Action, Mode, Rule};

use super::Cohort;
use crate::{
    compile::CompiledPolicy,
    pod_ports::Bypass,
    world::{Membership, ObjectKey, Workload, WorkloadKind, World},
};

/// Returns the bypasses through Services, ports of nodes and other policies, each once.
pub(super) fn bypasses<'a>(
    world: &World,
    policy: &ObjectKey,
    cohorts: impl Iterator<Item = &'a Cohort> + Clone,
) -> Vec<Bypass> {
    let mut ways = BTreeSet::new();
    let of_namespace = world.services.range(ObjectKey::new(policy.namespace.clone(), "")..);
    for (key, service) in of_namespace.take_while(|(key, _)| key.namespace == policy.namespace) {
        let workload = Workload { kind: WorkloadKind::Service, key: key.clone() };
        let Some(Some(selector)) = world.workloads.get(&workload) else { continue };
        for cohort in cohorts.clone() {
            if let Membership::Pod { labels, ports, .. } = &*cohort.membership
                && selector.matches(labels)
            {
                ways.extend(service.bypasses(&key.name, ports));
            }
        }
    }
    for cohort in cohorts {
        if let Membership::Pod { ports, .. } = &*cohort.membership {
            ways.extend(ports.bypass());
        }
        let others = cohort.content.policies.iter();
        // Agents outside of a cluster have policies of several namespaces.
        let is_other =
            |other: &&Arc<CompiledPolicy>| (&*other.namespace, &*other.name) != (&*policy.namespace, &*policy.name);
        for other in others.filter(is_other) {
            let is_open = |rule: &&Rule| {
                rule.action == Action::Bypass && rule.takes_all() && other.mode_of(rule) == Mode::Enforce
            };
            let open = other.rules.iter().find(is_open);
            let is_near = *other.namespace == *policy.namespace;
            let name = || if is_near { other.name.clone() } else { format!("{}/{}", other.namespace, other.name) };
            ways.extend(open.map(|rule| Bypass::Policy { policy: name(), rule: rule.name.clone() }));
        }
    }
    ways.into_iter().collect()
}
