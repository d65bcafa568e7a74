//! Refuses requests whose key a rule has banned. Such a request charges no rule and takes no permit.

use std::{sync::Arc, time::Duration};

use weir_core::Time;

use super::{RequestContext, RuleSet};
use crate::{
    refusal::Refusal,
    rule::{Limits, Rule},
    shared::banned,
};

/// A rule that has banned the key of a request, which is in the buffer of keys.
struct BannedBy<'r> {
    rule: &'r Arc<Rule>,
    limits: &'r Limits,
    rest: Duration,
    at: Time,
}

impl RequestContext<'_> {
    /// Returns the refusal of a request whose key one of these rules has banned.
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
        let BannedBy { rule, limits, rest, at } = self.banned_by(set, indices, keys)?;
        Some(banned((rule, limits), (keys, limits.cost.on_arrival(&self.request)), rest, at))
    }

    /// Whether one of these rules in shadow mode has banned the key of the request, which is counted.
    pub(super) fn is_banned_in_shadow(&self, set: &RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> bool {
        let banned = if set.has_bans { self.banned_by(set, indices, keys) } else { None };
        if let Some(BannedBy { rule, .. }) = &banned {
            rule.counters.count_shadow_limited();
            rule.counters.count_banned();
        }
        banned.is_some()
    }

    /// Returns the first rule that has banned its key of the request. While no key of a rule is banned, its key is not
    /// computed.
    fn banned_by<'r>(&self, set: &'r RuleSet, indices: &[usize], keys: &mut Vec<u8>) -> Option<BannedBy<'r>> {
        indices.iter().find_map(|index| {
            let rule = &set.get(*index).rule;
            let limits = rule.limits.as_ref()?;
            limits.ban.as_ref().filter(|ban| ban.is_active())?;
            keys.clear();
            limits.key.write(&self.request, &self.tokens, keys);
            let at = self.now();
            let rest = limits.banned(keys, at)?;
            Some(BannedBy { rule, limits, rest, at })
        })
    }
}
