//! Lowers stores and the `shared` part of rules, and refuses rules that their store cannot count.

use std::{collections::HashMap, num::NonZeroUsize, time::Duration};

use sha2::{Digest, Sha256};
use weir_core::Terms;
use weir_store::{InvalidRule, OnLoss, SharedRule};
use weir_wire::{Cost, OnStoreLoss, Override, Per, Rule, Store, StoreBackend, Topology};

use super::faults::{Faults, Path};
use crate::key::KeySpec;

/// A rule that is counted in a store.
#[derive(Debug)]
pub(crate) struct LoweredShared {
    pub(crate) store: String,
    pub(crate) rule: SharedRule,
}

impl LoweredShared {
    /// The rule, which bans keys for this time.
    pub(super) fn with_ban(self, length: Duration) -> Self {
        Self { rule: self.rule.with_ban(length), ..self }
    }

    /// The rule, whose clients give units back.
    pub(super) fn with_credits(self) -> Self {
        Self { rule: self.rule.with_credits(), ..self }
    }
}

/// The names of a snapshot's stores. The value is true for Memcached.
pub(super) type Kinds<'a> = HashMap<&'a str, bool>;

/// Checks the stores and returns their kinds.
pub(super) fn kinds<'a>(stores: &'a [Store], path: &Path, faults: &mut Faults) -> Kinds<'a> {
    let mut kinds = HashMap::new();
    for (index, store) in stores.iter().enumerate() {
        let path = path.index(index);
        let is_memcached = matches!(store.backend, StoreBackend::Memcached { .. });
        if kinds.insert(store.name.as_str(), is_memcached).is_some() {
            faults.add(&path.field("name"), "an earlier store has this name: give each store its own name");
        }
        if let StoreBackend::Redis { topology, master_name, .. } = &store.backend
            && (*topology == Topology::Sentinel) != master_name.is_some()
        {
            let at = path.field("backend").field("redis").field("masterName");
            faults.add(&at, "is required with topology Sentinel, and not allowed with other topologies");
        }
        let is_name = |name: &str| !name.is_empty() && name != "." && name != ".." && !name.contains('/');
        if store.secrets.as_deref().is_some_and(|secrets| !is_name(secrets)) {
            faults.add(&path.field("secrets"), "must be the name of one directory, without `/`");
        }
    }
    kinds
}

/// Lowers the shared part of a rule. Returns `None` if the rule has no shared part, or if that part has faults.
pub(super) fn lower_shared(
    rule: &Rule,
    (key, terms, max_keys): (Option<&KeySpec>, Option<&Terms>, Option<NonZeroUsize>),
    stores: &Kinds<'_>,
    path: &Path,
    faults: &mut Faults,
) -> Option<LoweredShared> {
    let shared = rule.shared.as_ref()?;
    let at = path.field("shared");
    let Some(&is_memcached) = stores.get(shared.store.as_str()) else {
        let message = format!("{} is not a store of this snapshot: add it to `stores`", shared.store);
        faults.add(&at.field("store"), message);
        return None;
    };
    if rule.per == Per::Message {
        faults.add(&path.field("per"), "messages cannot be counted in a store: count requests, or remove `shared`");
    }
    if matches!(rule.cost, Some(Cost::RequestBytes | Cost::ResponseBytes)) {
        let message = "bytes cannot be counted in a store: use another cost, or remove `shared`";
        faults.add(&path.field("cost"), message);
    }
    if shared.sharers == 0 {
        faults.add(&at.field("sharers"), "must be at least 1");
    }
    if is_memcached {
        if rule.on_limit.as_ref().is_some_and(|on_limit| on_limit.max_wait_millis.is_some_and(|wait| wait > 0)) {
            let message = "requests cannot wait for a limit in Memcached: remove it, or use a store on Redis";
            faults.add(&path.field("onLimit").field("maxWaitMillis"), message);
        }
        for (index, limit) in rule.limits.iter().enumerate() {
            let instead = match limit.strategy {
                weir_wire::Strategy::LeakyBucket => "TokenBucket",
                weir_wire::Strategy::SlidingWindowLog => "SlidingWindowCounter",
                _ => continue,
            };
            let message = format!("Memcached cannot count this: use {instead}, or a store on Redis");
            faults.add(&path.field("limits").index(index).field("strategy"), message);
        }
    }
    let (key, terms) = (key?, terms?);
    let most_keys = if rule.key.is_empty() { 1 } else { max_keys?.get() };
    let sets = std::iter::once(None).chain((0..rule.overrides.len()).map(Some));
    let sets: Vec<Vec<_>> = sets
        .map(|set| {
            let names = terms.limits().map(|(name, _)| number(name));
            names.zip(terms.quotas(set).iter().copied()).collect()
        })
        .collect();
    let on_loss = match shared.on_store_loss {
        OnStoreLoss::FailOpen => OnLoss::Open,
        OnStoreLoss::FailClosed => OnLoss::Closed,
        OnStoreLoss::LocalShare => OnLoss::LocalShare,
    };
    let lowered = SharedRule::new(&shared.counters, shared.stamp, &sets, on_loss, shared.sharers, most_keys);
    match lowered {
        Ok(lowered) => {
            let of_override = |(index, one): (usize, &'_ Override)| {
                let keys: Vec<_> = one.keys.iter().filter_map(|values| key.named(values)).collect();
                keys.into_iter().map(move |named| (key.hash(&named), index + 1))
            };
            let overrides = rule.overrides.iter().enumerate().flat_map(of_override);
            let lowered = lowered.with_overrides(overrides);
            let lowered = match rule.cost {
                // Responses can give seats back.
                Some(Cost::ResponseHeader { .. }) => lowered.with_returns(),
                _ => lowered,
            };
            Some(LoweredShared { store: shared.store.clone(), rule: lowered })
        }
        Err(invalid) => {
            let at =
                if matches!(invalid, InvalidRule::Counters(_)) { at.field("counters") } else { path.field("limits") };
            faults.add(&at, invalid.to_string());
            None
        }
    }
}

/// The number of a limit in the store. It depends only on the name of the limit, so it is the same in all agents.
fn number(name: &str) -> u32 {
    let digest = Sha256::digest(name);
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stores contain these numbers, so they must never change.
    #[test]
    fn a_limit_keeps_its_number() {
        assert_eq!([number("rate"), number("burst")], [0xc549_779d, 0x57d5_9e28]);
    }
}
