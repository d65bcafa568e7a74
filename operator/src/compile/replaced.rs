//! Names the stores of rules that stay in force after their store has been replaced.

use std::sync::Arc;

use weir_wire as wire;

use super::{CompiledPolicy, compile_store, rule::UsedStores};
use crate::world::{ObjectKey, World};

/// The suffix of the name of a store that has been replaced, for rules that still use the old store.
const REPLACED: &str = "@replaced";

/// Returns the key of the `RateLimitStore` of a store on the wire. `None` for the operator, which counts for rules of
/// scope Fleet.
pub fn store_key(name: &str) -> Option<ObjectKey> {
    let (namespace, name) = name.strip_suffix(REPLACED).unwrap_or(name).split_once('/')?;
    Some(ObjectKey::new(namespace, name))
}

/// Returns rules that stay in force although they do not compile with the present stores. A store that they use may
/// have been replaced, for example by one of another kind, which other policies use under the same name. So the old
/// store gets another name. The names of the counters do not change.
pub(super) fn detached(policy: Arc<CompiledPolicy>, world: &World) -> Arc<CompiledPolicy> {
    let is_replaced = |store: &wire::Store| {
        let key = store_key(&store.name).filter(|key| key.to_string() == store.name);
        let now = key.and_then(|key| Some(compile_store(&key, world.stores.get(&key)?.spec.as_ref().ok()?).0));
        now.is_some_and(|now| now != *store)
    };
    let replaced: Vec<String> =
        policy.stores.iter().filter(|store| is_replaced(store)).map(|store| store.name.clone()).collect();
    if replaced.is_empty() {
        return policy;
    }
    let mut policy = CompiledPolicy::clone(&policy);
    let shared = policy.wire.rules.iter_mut().filter_map(|rule| Some(&mut rule.shared.as_mut()?.store));
    let names = policy.stores.iter_mut().map(|store| &mut store.name).chain(shared);
    names.filter(|name| replaced.contains(name)).for_each(|name| name.push_str(REPLACED));
    let used = UsedStores { stores: policy.stores, secrets: policy.secrets };
    Arc::new(CompiledPolicy::new(policy.wire, used, policy.size.expressions, policy.pods))
}
