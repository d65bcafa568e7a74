//! The concurrent limit of a rule.

use std::{collections::HashMap, num::NonZeroU64};

use weir_wire::{Concurrency, Per, Rule};

use super::{
    conditions, cost,
    faults::{Faults, Path},
    label,
    limits::lower_override_keys,
    on_limit,
};
use crate::{cost::Cost, key::KeySpec, quota_headers::QuotaHeaders};

/// The parts of a concurrent limit that do not depend on the rules in force.
#[derive(Debug)]
pub(crate) struct LoweredConcurrency {
    pub(crate) key: KeySpec,
    pub(crate) cost: Cost,
    pub(crate) name: Box<str>,
    pub(crate) quota_headers: QuotaHeaders,
    pub(crate) limits: ConcurrentLimits,
}

/// How many requests of a key may be in flight.
#[derive(Debug)]
pub(crate) struct ConcurrentLimits {
    /// The limit of all keys without an override.
    pub(crate) limit: NonZeroU64,
    pub(crate) overrides: Vec<NonZeroU64>,
    /// The index of each key's override.
    pub(crate) keys: HashMap<Box<[u8]>, usize>,
}

impl ConcurrentLimits {
    pub(crate) fn of(&self, key: &[u8]) -> (NonZeroU64, Option<usize>) {
        let override_index = self.keys.get(key).copied();
        (override_index.map_or(self.limit, |index| self.overrides[index]), override_index)
    }

    /// The limits without an override, then those of each override.
    pub(crate) fn all(&self) -> impl Iterator<Item = NonZeroU64> {
        std::iter::once(self.limit).chain(self.overrides.iter().copied())
    }
}

pub(super) fn lower_concurrency(
    rule: &Rule,
    concurrency: &Concurrency,
    policy: &str,
    path: &Path,
    faults: &mut Faults,
) -> Option<LoweredConcurrency> {
    let before = faults.len();
    refuse_others(rule, path, faults);
    let at = path.field("concurrency");
    label(&concurrency.name, &at.field("name"), faults);
    let key = conditions::lower_key(&rule.key, &path.field("key"), faults);
    let limit = lower_limit(concurrency.limit, &at.field("limit"), faults);
    let at = at.field("overrides");
    if rule.key.is_empty() && !concurrency.overrides.is_empty() {
        faults.add(&at, "an override is for some keys: give the rule a `key`, or remove `overrides`");
    }
    let (mut keys, mut overrides, mut seen) = (HashMap::new(), Vec::new(), HashMap::new());
    for (index, one) in concurrency.overrides.iter().enumerate() {
        let at = at.index(index);
        for bytes in lower_override_keys(&one.keys, key.as_ref(), &mut seen, &at.field("keys"), faults) {
            keys.insert(bytes.into(), index);
        }
        overrides.extend(lower_limit(one.limit, &at.field("limit"), faults));
    }
    let cost = cost::lower_cost(rule, None, path, faults);
    if let (Some(Cost::Fixed(cost)), Some(smallest)) = (&cost, limit.iter().chain(&overrides).min())
        && *cost > smallest.get()
    {
        let message = format!("{} admits {smallest} at once, so none would ever pass: lower it", concurrency.name);
        faults.add(&path.field("cost").field("fixed"), message);
    }
    let at = path.field("responseHeaders");
    let own = on_limit::lower_headers(&rule.response_headers, (policy, rule), &at, faults);
    // The next step renders response fields that contain the name.
    if faults.len() > before {
        return None;
    }
    let limits = ConcurrentLimits { limit: limit?, overrides, keys };
    let quota_headers = QuotaHeaders::of_concurrency(on_limit::style(rule), own, &concurrency.name, limits.all());
    Some(LoweredConcurrency { key: key?, cost: cost?, name: concurrency.name.as_str().into(), quota_headers, limits })
}

fn lower_limit(limit: u64, path: &Path, faults: &mut Faults) -> Option<NonZeroU64> {
    let limit = NonZeroU64::new(limit);
    if limit.is_none() {
        faults.add(path, "must be at least 1: use action Deny to refuse all requests");
    }
    limit
}

/// Refuses the fields that are for rates only.
fn refuse_others(rule: &Rule, path: &Path, faults: &mut Faults) {
    let is_later =
        |cost: &weir_wire::Cost| !matches!(cost, weir_wire::Cost::Fixed(_) | weir_wire::Cost::RequestHeader { .. });
    let waits = rule.on_limit.as_ref().is_some_and(|on_limit| on_limit.max_wait_millis.is_some());
    for (field, given) in [
        ("limits", !rule.limits.is_empty()),
        ("overrides", !rule.overrides.is_empty()),
        ("per", rule.per == Per::Message),
        ("cost", rule.cost.as_ref().is_some_and(is_later)),
        ("onLimit.maxWaitMillis", waits),
        ("maxKeys", rule.max_keys.is_some()),
        ("ban", rule.ban.is_some()),
        ("shared", rule.shared.is_some()),
    ] {
        if given {
            faults.add(&path.field(field), "is not valid in a rule with `concurrency`: move it to another rule");
        }
    }
}
