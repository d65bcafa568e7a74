//! Detects whether a status differs from the one before.

use std::hash::{DefaultHasher, Hash, Hasher};

use weir_wire::Status;

/// Returns a hash of a status, without the elapsed time.
pub(super) fn digest(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    let in_force = status.in_force.as_ref().map(|in_force| (in_force.sequence, &in_force.revision));
    (&status.instance, in_force).hash(&mut hasher);
    for policy in &status.policies {
        (&policy.uid, &policy.revision, policy.rules.len()).hash(&mut hasher);
        for rule in &policy.rules {
            (&rule.name, rule.allowed, rule.limited, rule.shadow_limited, rule.waited).hash(&mut hasher);
        }
    }
    hasher.finish()
}
