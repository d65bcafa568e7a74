//! Refuses requests whose key a rule has banned. Such a request charges no rule and takes no permit. A request that
//! must ask the store whether its ban was lifted is decided like others, and the store refuses it.

use std::{sync::Arc, time::Duration};

use weir_core::Time;

use super::{RequestContext, RuleSet, limiting};
use crate::{
    decide::{
        charge::{Demand, opens_after},
        refusal::Refusal,
        shared::{refuse_banned_key, refused_for, split},
    },
    rule::Rule,
};

/// A rule that has banned the key of a request.
struct BannedBy<'r> {
    rule: &'r Arc<Rule>,
    rest: Duration,
    at: Time,
}

impl RequestContext<'_> {
    /// Returns the refusal of a request whose key one of these rules has banned. The client may retry when all rules
    /// admit the request.
    #[inline]
    pub(super) fn refuse_banned<'r>(
        &self,
        set: &'r RuleSet,
        indices: &[usize],
        keys: &mut Vec<u8>,
    ) -> Option<Refusal<'r>> {
        if !set.has_bans {
            return None;
        }
        let BannedBy { rule, rest, at } = self.banned_by(set, indices, keys)?;
        self.with_demands(&limiting(set, indices), None, keys, |demands| {
            let Demand { limits, key, cost, .. } = *demands.iter().find(|demand| Arc::ptr_eq(demand.rule, rule))?;
            let refusal = refuse_banned_key((rule, limits), (key, cost), rest, at);
            if demands.len() == 1 {
                return Some(refusal);
            }
            let (shared, others) = split(demands, at);
            let opens = opens_after(&others, at).zip(refused_for(&shared)).map(|(one, other)| one.max(other));
            Some(refusal.not_before(opens))
        })
    }

    /// Whether one of these rules in shadow mode has banned the key of the request, which is counted.
    pub(super) fn is_banned_in_shadow(&self, set: &RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> bool {
        let banned = if set.has_bans { self.banned_by(set, indices, keys) } else { None };
        if let Some(BannedBy { rule, .. }) = &banned {
            rule.statistics.shadow_limited.count();
            rule.statistics.count_banned(rule.mode);
        }
        banned.is_some()
    }

    /// Returns the rule with the longest ban of its key of the request. While no key of a rule is banned, its key is not
    /// computed.
    fn banned_by<'r>(&self, set: &'r RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> Option<BannedBy<'r>> {
        let bans = indices.iter().filter_map(|index| {
            let rule = &set.get(*index).rule;
            let limits = rule.rates()?;
            limits.ban.as_ref().filter(|ban| ban.is_active())?;
            keys.clear();
            limits.key.write(&self.request, &self.tokens, keys);
            let at = self.now();
            let rest = limits.ban_rest(keys, at)?;
            Some(BannedBy { rule, rest, at })
        });
        // The first rule of several with equal bans.
        bans.reduce(|longest, ban| if ban.rest > longest.rest { ban } else { longest })
    }
}
