//! Bounds the status of an agent by the contents that the operator has for it.
//!
//! The process at a pod's address may be broken or hostile. Its status can contain any names, and thousands of them.
//! Without this bound, one pod could take the engine's time and memory from all others, and change the status of a
//! store in another namespace.

use std::collections::{HashMap, HashSet};

use weir_wire::Status;

use crate::{plan::Content, wording::shorten};

/// The maximum length of a text that only the agent knows, in bytes.
const LONGEST_TEXT: usize = 256;

/// Removes policies, rules and stores that none of these contents has, and repeated ones. Shortens long texts.
pub(super) fn bound<'a>(status: &mut Status, contents: impl IntoIterator<Item = &'a Content>) {
    let (mut rules, mut stores) = (HashMap::<&str, HashSet<&str>>::new(), HashSet::new());
    for policy in contents.into_iter().flat_map(|content| &content.policies) {
        rules.entry(&policy.uid).or_default().extend(policy.rules.iter().map(|rule| rule.name.as_str()));
        stores.extend(policy.stores.iter().map(|store| store.name.as_str()));
    }
    status.policies.retain_mut(|policy| {
        let Some(mut known) = rules.remove(policy.uid.as_str()) else { return false };
        policy.rules.retain(|rule| known.remove(rule.name.as_str()));
        policy.rules.shrink_to_fit();
        true
    });
    status.policies.shrink_to_fit();
    status.stores.retain(|store| stores.remove(store.name.as_str()));
    status.stores.shrink_to_fit();

    let Status { instance, agent_version, in_force, policies, stores, .. } = status;
    let of_policies = policies.iter_mut().flat_map(|it| [&mut it.namespace, &mut it.name, &mut it.revision]);
    let of_stores = stores.iter_mut().filter_map(|store| store.error.as_mut());
    let in_force = in_force.iter_mut().map(|in_force| &mut in_force.revision);
    for text in [instance, agent_version].into_iter().chain(in_force).chain(of_policies).chain(of_stores) {
        *text = shorten(std::mem::take(text), LONGEST_TEXT);
    }
}

#[cfg(test)]
#[path = "bound_tests.rs"]
pub(super) mod tests;
