//! Detects whether a status differs from the previous one.

use std::hash::{DefaultHasher, Hash, Hasher};

use weir_wire::Status;

/// Returns a hash of everything in a status that the operator uses, without the elapsed time.
pub(super) fn digest(status: &Status) -> u64 {
    let Status { wire_version: _, instance, agent_version: _, uptime_millis: _, in_force, policies, stores } = status;
    let mut hasher = DefaultHasher::new();
    let in_force = in_force.as_ref().map(|in_force| (in_force.sequence, &in_force.revision));
    (instance, in_force, stores).hash(&mut hasher);
    for policy in policies {
        (&policy.uid, &policy.revision, policy.rules.len()).hash(&mut hasher);
        for rule in &policy.rules {
            (&rule.name, rule.allowed, rule.limited, rule.shadow_limited, rule.waited).hash(&mut hasher);
        }
    }
    hasher.finish()
}
