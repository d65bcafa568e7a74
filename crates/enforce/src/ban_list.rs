//! Lists the banned keys of the rules in force, and lifts bans that a user selects.

use std::collections::HashSet;

use futures::{StreamExt, TryStreamExt, stream};
use weir_core::Time;
use weir_store::StoreError;
use weir_wire::{BanList, BannedKey, LiftedBans};

use super::{
    in_force::RulesInForce,
    key::show_bytes,
    lower::full_name,
    rule::{Policy, Rule},
};

/// The maximum number of keys in a list.
const MOST: usize = 1_000;

/// The maximum number of questions to stores at the same time.
const AT_ONCE: usize = 64;

/// The bans to list or to lift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanSelection {
    /// The namespace and the name of the policy, joined by a slash. `None` for the rules of all policies.
    pub policy: Option<String>,
    /// The name of the rule. `None` for all rules.
    pub rule: Option<String>,
    /// The values of one key, as a list shows them or as a request has them. Empty for all keys. An empty value also
    /// stands for a part that a request does not have.
    pub key: Vec<Vec<u8>>,
}

/// The error for a selection that names no rule with a ban.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidBanSelection {
    /// No such policy is in force.
    #[error("policy: {0:?} is not in force here: write the namespace and the name, such as shop/checkout")]
    Policy(String),
    /// The policies have no such rule with a ban.
    #[error("rule: {0:?} is not a rule with a ban: see GET /v1/config")]
    Rule(String),
    /// The key has another number of parts.
    #[error("key: the key of rule {rule} has {parts} parts, but {given} values were given: repeat key for each part")]
    Key {
        /// The name of the rule.
        rule: String,
        /// The number of its parts.
        parts: usize,
        /// The number of values.
        given: usize,
    },
}

/// The error if a store did not lift bans.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store {store} did not lift the ban ({error}): repeat the request")]
pub struct BansNotLifted {
    /// The name of the store.
    store: String,
    error: StoreError,
}

impl RulesInForce {
    /// Returns the banned keys of a selection, at most 1000, with their total number.
    ///
    /// # Errors
    ///
    /// [`InvalidBanSelection`] if the selection names no rule with a ban.
    pub fn bans(&self, selection: &BanSelection, now: Time) -> Result<BanList, InvalidBanSelection> {
        let mut list = BanList { total: 0, bans: Vec::new() };
        for (policy, rule) in self.selected(selection)? {
            let Some(ban) = rule.ban() else { continue };
            let is_wanted = wanted(rule, &selection.key);
            ban.for_each(now, |key, rest| {
                if !is_wanted(key) {
                    return;
                }
                list.total += 1;
                if list.bans.len() < MOST {
                    list.bans.push(BannedKey {
                        policy: full_name(&policy.namespace, &policy.name),
                        rule: rule.name.clone(),
                        key: show_bytes(key),
                        ends_after_millis: u64::try_from(rest.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
                    });
                }
            });
        }
        Ok(list)
    }

    /// Lifts the bans of a selection in the stores of rules that have one. Without a key, it lifts the bans that this
    /// program knows. Lifts the same bans here, too, after the stores. Otherwise, this program could learn a ban again
    /// before its store has lifted it. Returns the number of keys that were banned. Afterwards, call
    /// [`lift_bans`](Self::lift_bans) for the other rules.
    ///
    /// # Errors
    ///
    /// [`BansNotLifted`] if a store does not answer. Then some bans of the selection can be lifted, and others not.
    pub async fn lift_bans_in_stores(&self, selection: &BanSelection, now: Time) -> Result<u64, BansNotLifted> {
        let Ok(rules) = self.selected(selection) else { return Ok(0) };
        let (mut lifts, mut known_here) = (Vec::new(), Vec::new());
        for (_, rule) in rules.into_iter().filter(|(_, rule)| rule.has_bans_in_store()) {
            let is_wanted = wanted(rule, &selection.key);
            let mut known = HashSet::new();
            if let Some(ban) = rule.ban() {
                ban.for_each(now, |key, _| {
                    if is_wanted(key) {
                        known.insert(key.to_vec());
                    }
                });
            }
            let named = rule.key().and_then(|key| key.named(&selection.key)).filter(|key| !known.contains(key));
            let keys = known.iter().map(|key| (key, true)).chain(named.iter().map(|key| (key, false)));
            lifts.extend(keys.filter_map(|(key, is_known)| Some((rule.key_in_store(key)?, is_known))));
            known_here.extend(rule.ban().map(|ban| (ban, known)));
        }
        let lifts = lifts.into_iter().map(|(key, is_known)| async move {
            let store = key.store();
            let failed = |error| BansNotLifted { store, error };
            key.lift().await.map(|was_banned| u64::from(was_banned || is_known)).map_err(failed)
        });
        let lifts = stream::iter(lifts).buffer_unordered(AT_ONCE);
        let lifted = lifts.try_fold(0, |sum, more| async move { Ok(sum + more) }).await?;
        for (ban, keys) in known_here {
            keys.iter().for_each(|key| ban.lift_one(key));
        }
        Ok(lifted)
    }

    /// Lifts the bans of a selection in this program. The keys then have no refusals.
    ///
    /// # Errors
    ///
    /// [`InvalidBanSelection`] if the selection names no rule with a ban.
    pub fn lift_bans(&self, selection: &BanSelection, now: Time) -> Result<LiftedBans, InvalidBanSelection> {
        let rules = self.selected(selection)?;
        let lifted = rules.iter().filter_map(|(_, rule)| Some(rule.ban()?.lift(now, wanted(rule, &selection.key))));
        Ok(LiftedBans { lifted: lifted.sum() })
    }

    /// The selected rules with a ban.
    fn selected(&self, selection: &BanSelection) -> Result<Vec<(&Policy, &Rule)>, InvalidBanSelection> {
        let BanSelection { policy: wanted_policy, rule: wanted_rule, key } = selection;
        let is_wanted = |policy: &&Policy| {
            wanted_policy.as_ref().is_none_or(|wanted| *wanted == full_name(&policy.namespace, &policy.name))
        };
        let mut policies = self.policies().iter().map(|policy| &**policy).filter(is_wanted).peekable();
        if let (Some(wanted), None) = (wanted_policy, policies.peek()) {
            return Err(InvalidBanSelection::Policy(wanted.clone()));
        }
        let rules = policies.flat_map(|policy| policy.rules.iter().map(move |rule| (policy, &**rule)));
        let with_ban = rules
            .filter(|(_, rule)| rule.ban().is_some() && wanted_rule.as_ref().is_none_or(|wanted| *wanted == rule.name));
        let rules: Vec<_> = with_ban.collect();
        if let (Some(wanted), []) = (wanted_rule, &rules[..]) {
            return Err(InvalidBanSelection::Rule(wanted.clone()));
        }
        let parts = |rule: &Rule| rule.key().map_or(0, |key| key.parts().len());
        match rules.iter().find(|(_, rule)| !key.is_empty() && parts(rule) != key.len()) {
            Some((_, rule)) => {
                Err(InvalidBanSelection::Key { rule: rule.name.clone(), parts: parts(rule), given: key.len() })
            }
            None => Ok(rules),
        }
    }
}

/// Whether a key of the rule has these values.
fn wanted<'a>(rule: &Rule, values: &'a [Vec<u8>]) -> impl Fn(&[u8]) -> bool + use<'a> {
    let named = rule.key().and_then(|key| key.named(values));
    move |key| {
        let is_shown = || {
            let shown = show_bytes(key);
            shown.iter().map(|value| value.as_deref().unwrap_or_default().as_bytes()).eq(values)
        };
        values.is_empty() || named.as_deref() == Some(key) || is_shown()
    }
}
