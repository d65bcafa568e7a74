//! Decides which pods a policy selects. This module does no I/O. It is a function of labels, selectors and names.

use std::{collections::BTreeMap, sync::Arc};

use kube::core::{Selector, SelectorExt};

use super::Content;
use crate::{
    compile::{Compiled, CompiledPolicy, Target},
    labels::SERVICE_LABEL,
    world::{Membership, ObjectKey, Workload},
};

/// The existing workloads, with the pods that each selects.
pub(super) type Workloads = BTreeMap<Workload, Option<Selector>>;

/// Returns true if this policy selects pods of that namespace with that membership.
pub(super) fn selects(
    workloads: &Workloads,
    of_policy: &str,
    compiled: &Compiled,
    of_pod: &str,
    membership: &Membership,
) -> bool {
    let (Some(target), Some(policy)) = (&compiled.target, &compiled.policy) else { return false };
    policy.domain.is_some() == is_service(membership) && targets(workloads, of_policy, target, of_pod, membership)
}

/// Returns true if the agents are rate limit services, which enforce only policies with a domain.
fn is_service(membership: &Membership) -> bool {
    let labels = match membership {
        Membership::Everything => return false,
        Membership::Labelled(labels) | Membership::Pod { labels, .. } => labels,
    };
    labels.get(SERVICE_LABEL).is_some_and(|value| value == "enabled")
}

fn targets(workloads: &Workloads, of_policy: &str, target: &Target, of_pod: &str, membership: &Membership) -> bool {
    match (membership, target) {
        (Membership::Everything, _) => true,
        (Membership::Labelled(labels), Target::Labels(selector)) => selector.matches(labels),
        (Membership::Labelled(_), Target::Workloads(_)) => false,
        (Membership::Pod { .. }, _) if of_pod != of_policy => false,
        (Membership::Pod { labels, .. }, Target::Labels(selector)) => selector.matches(labels),
        (Membership::Pod { labels, controller, .. }, Target::Workloads(wanted)) => {
            wanted.iter().any(|workload| match workloads.get(workload) {
                Some(selector) => selector.as_ref().is_some_and(|selector| selector.matches(labels)),
                // A workload is deleted before its pods. They still serve, so they keep its policies. Or the webhook gets a
                // pod before the operator gets its new workload.
                None => controller.as_ref() == Some(workload),
            })
        }
    }
}

/// Returns the content that a pod of this namespace with this membership has to enforce, even before it exists.
pub fn content_for_pod(
    workloads: &Workloads,
    compiled: &BTreeMap<ObjectKey, Compiled>,
    namespace: &str,
    membership: &Membership,
) -> Content {
    // The map is sorted by namespace, so policies of other namespaces are skipped.
    let of_namespace =
        compiled.range(ObjectKey::new(namespace, "")..).take_while(|(policy, _)| &*policy.namespace == namespace);
    let on_pod = of_namespace.filter(|(_, compiled)| selects(workloads, namespace, compiled, namespace, membership));
    Content::new(&in_order(on_pod))
}

/// Returns the rules of these policies, the oldest policy first, then by name.
pub(super) fn in_order<'a>(policies: impl Iterator<Item = (&'a ObjectKey, &'a Compiled)>) -> Vec<Arc<CompiledPolicy>> {
    let mut policies: Vec<_> = policies.collect();
    policies.sort_by_key(|(key, compiled)| (compiled.created, *key));
    policies.into_iter().filter_map(|(_, compiled)| compiled.policy.clone()).collect()
}
