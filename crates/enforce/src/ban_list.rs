//! Lists the banned keys of the rules in force, and lifts bans by hand.

use weir_core::Time;
use weir_wire::{BanList, BannedKey, LiftedBans};

use super::{
    in_force::RulesInForce,
    key::show_bytes,
    lower::full_name,
    rule::{Policy, Rule},
};

/// The maximum number of keys in a list.
const MOST: usize = 1_000;

/// The bans to list or to lift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BanSelection {
    /// The namespace and the name of the policy, joined by a slash. `None` for the rules of all policies.
    pub policy: Option<String>,
    /// The name of the rule. `None` for all rules.
    pub rule: Option<String>,
    /// The values of one key, as a list shows them or as a request has them. Empty for all keys. An empty value also
    /// stands for a part that a request does not have.
    pub key: Vec<String>,
}

/// The error for a selection that names no rule with a ban.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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

    /// Lifts the bans of a selection. The keys then have no refusals.
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
fn wanted<'a>(rule: &Rule, values: &'a [String]) -> impl Fn(&[u8]) -> bool + use<'a> {
    let named = rule.key().and_then(|key| key.named(values));
    move |key| {
        let is_shown = || {
            let shown = show_bytes(key);
            shown.iter().map(|value| value.as_deref().unwrap_or_default()).eq(values.iter().map(String::as_str))
        };
        values.is_empty() || named.as_deref() == Some(key) || is_shown()
    }
}
