//! Reads how the rules treat a descriptor, without a charge. A service that hands out units of a limit in advance needs
//! to know the limit first.

use super::{
    super::{decide::RequestContext, jwt::Tokens, live::LiveRules},
    Descriptor, LimitState, MatchedRules, Question,
    matched::Matched,
};
use crate::matching::RequestView;

/// How the rules treat a descriptor now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescriptorStanding {
    /// No limit counts the descriptor, or only limits in shadow mode.
    Unlimited,
    /// A rule with action Deny or a ban refuses the descriptor.
    Denied,
    /// Limits count the descriptor.
    Limited {
        /// The tightest limit. Its `remaining` is 0 if only a store knows it.
        limit: LimitState,
        /// Whether the limits would refuse one unit now, as far as is known.
        is_refused: bool,
    },
}

impl LiveRules {
    /// Returns how the rules of a domain treat a descriptor. Charges nothing, and counts no refusal.
    pub fn standing(&self, domain: &str, descriptor: &Descriptor<'_>) -> DescriptorStanding {
        let rules = self.load();
        let clock = self.options().clock;
        let Some(set) = rules.domains.get(domain) else { return DescriptorStanding::Unlimited };
        let now = || clock.now();
        let request = RequestView::of_descriptor(&descriptor.entries, descriptor.is_unordered, 0);
        let contexts = [RequestContext { request, tokens: Tokens::new(None, &now), clock }];
        let mut question =
            Question { set, contexts: &contexts, matched: MatchedRules::new(std::slice::from_ref(descriptor), clock) };
        let (denied, _) = question.find_rules(&rules);
        let (now, all) = (clock.now(), &question.matched.all);
        let mut demands = all.iter().map(Matched::demand);
        if denied.is_some() || demands.any(|demand| demand.limits.known_ban(demand.key, now).is_some()) {
            return DescriptorStanding::Denied;
        }
        let states = || all.iter().filter_map(|matched| matched.state(now, 0));
        let is_refused = states().any(|(is_refused, _)| is_refused);
        match states().map(|(_, limit)| limit).min_by_key(|limit| limit.remaining) {
            Some(limit) => DescriptorStanding::Limited { limit, is_refused },
            None => DescriptorStanding::Unlimited,
        }
    }
}
