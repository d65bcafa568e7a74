//! Rules that count the messages of a connection instead of the request that opened it.
//!
//! The opening request determines which rules match, so it is kept. Each message is decided by the rules that are in
//! force when it arrives. The matching rules are searched again only after a change. A connection is never inspected if
//! no rule per message matched its opening request.
//!
//! The claims of a token are those of the opening request, too: they are verified at the time of the opening, with the
//! keys of that time. So a connection keeps its count when its token expires or a key set is replaced.

use std::{
    cell::RefCell,
    net::IpAddr,
    sync::{Arc, Weak},
};

use http::{Extensions, Request};
use weir_core::Time;

use super::{
    decide::{
        RequestContext,
        charge::{Demand, charge_rules},
        outcome::refusal,
        refusal::Refusal,
    },
    gate::{Gate, GateOptions, with_tokens},
    in_force::RulesInForce,
    jwt::{Jwks, Tokens},
    live::LiveRules,
    rule_set::{MatchBuffers, Matching, RuleSet},
};

/// Decides on the messages that a client sends over one connection.
#[derive(Debug)]
pub struct Messages {
    gate: MessageGate,
    opening: Box<Request<()>>,
    opened_at: Time,
    found: RefCell<MatchingRules>,
}

/// A message that must not reach the app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRefusal {
    /// The text for the client: a JSON object, or the text that the rule sets.
    pub notice: String,
    /// Whether to close the connection.
    pub close: bool,
}

/// The rules of one snapshot that match the connection.
#[derive(Debug, Default)]
struct MatchingRules {
    /// The rules that were searched. The reference is weak, so that an idle connection does not keep old rules alive.
    of: Weak<RulesInForce>,
    /// The keys that verified the token of the opening request.
    jwks: Option<Arc<Jwks>>,
    enforced: Vec<Counted>,
    shadows: Vec<Counted>,
}

/// The index of a rule, with the key and the cost of a message.
#[derive(Debug)]
struct Counted {
    index: usize,
    key: Box<[u8]>,
    cost: u64,
}

/// The gate of one connection: the rules, and the client's address.
#[derive(Debug)]
struct MessageGate {
    rules: LiveRules,
    client: IpAddr,
}

impl LiveRules {
    /// Returns the [`Messages`] of the connection that this request from `client` opens, or `None` if no rule per
    /// message matches the request.
    pub fn messages<B>(&self, client: IpAddr, request: &Request<B>) -> Option<Messages> {
        Messages::of(MessageGate { rules: self.clone(), client }, request)
    }
}

impl MessageGate {
    /// Searches the rules that match the opening request. `jwks` are the keys that verified its token. If there were no
    /// keys at that time, the keys in force verify it.
    fn search<B>(
        &self,
        rules: &Arc<RulesInForce>,
        jwks: Option<Arc<Jwks>>,
        opening: &Request<B>,
        opened_at: Time,
    ) -> MatchingRules {
        let jwks = jwks.filter(|jwks| !jwks.is_empty()).or_else(|| rules.jwks.clone());
        let found =
            self.with_opening(jwks.as_deref(), opening, opened_at, |context| MatchingRules::new(rules, context));
        MatchingRules { jwks, ..found }
    }

    /// Calls `then` with the view of the opening request, whose token is verified at the time of the opening.
    fn with_opening<B, T>(
        &self,
        jwks: Option<&Jwks>,
        opening: &Request<B>,
        opened_at: Time,
        then: impl FnOnce(&RequestContext<'_>) -> T,
    ) -> T {
        with_tokens(self, Tokens::new(jwks, &|| opened_at), opening, then)
    }
}

impl Gate for MessageGate {
    fn with_rules<T>(&self, then: impl FnOnce(&Arc<RulesInForce>) -> T) -> T {
        self.rules.with(then)
    }

    fn options(&self) -> &GateOptions {
        self.rules.options()
    }

    fn client(&self, _: &Extensions) -> IpAddr {
        self.client
    }
}

impl Messages {
    fn of<B>(gate: MessageGate, request: &Request<B>) -> Option<Self> {
        let opened_at = gate.options().clock.now();
        let found = gate.with_rules(|rules| gate.search(rules, None, request, opened_at));
        if found.enforced.is_empty() && found.shadows.is_empty() {
            return None;
        }
        let mut opening = Box::new(Request::new(()));
        *opening.method_mut() = request.method().clone();
        *opening.uri_mut() = request.uri().clone();
        *opening.headers_mut() = request.headers().clone();
        Some(Self { gate, opening, opened_at, found: RefCell::new(found) })
    }

    /// Decides on one message and charges it.
    ///
    /// # Errors
    ///
    /// The refusal of the message.
    pub fn decide(&self) -> Result<(), MessageRefusal> {
        let rules = self.gate.with_rules(Arc::clone);
        let mut found = self.found.borrow_mut();
        if !std::ptr::eq(found.of.as_ptr(), Arc::as_ptr(&rules)) {
            *found = self.gate.search(&rules, found.jwks.take(), &self.opening, self.opened_at);
        }
        let clock = self.gate.options().clock;
        let set = &*rules.messages;
        let demands = demands(set, &found.enforced);
        if !demands.is_empty() {
            charge_rules(&demands, || clock.now()).map_err(|at| {
                let refusal = refusal(&demands, at, clock.now());
                self.gate.with_opening(found.jwks.as_deref(), &self.opening, self.opened_at, |context| {
                    rules.log(&refusal, context, self.gate.options().log_keys);
                });
                MessageRefusal::new(&refusal)
            })?;
            demands.iter().for_each(|demand| demand.rule.statistics.allowed.count());
        }
        for policy in found.shadows.chunk_by(|one, other| set.get(one.index).policy == set.get(other.index).policy) {
            let demands = demands_of_shadow(set, policy);
            match charge_rules(&demands, || clock.now()) {
                Ok(_) => demands.iter().for_each(|demand| demand.rule.statistics.allowed.count()),
                Err(at) => demands[at.index].rule.statistics.shadow_limited.count(),
            }
        }
        Ok(())
    }
}

impl MessageRefusal {
    fn new(refusal: &Refusal<'_>) -> Self {
        let text = refusal.text();
        let (limit, seconds, numbers) = (refusal.state.limit, refusal.seconds(), refusal.state.numbers());
        let notice =
            if text.closes { text.reason(limit, seconds, numbers) } else { text.body(limit, seconds, numbers) };
        Self { notice: String::from_utf8_lossy(&notice).trim_end().to_owned(), close: text.closes }
    }
}

impl MatchingRules {
    fn new(rules: &Arc<RulesInForce>, context: &RequestContext<'_>) -> Self {
        let set = &*rules.messages;
        let mut buffers = MatchBuffers::default();
        let (enforced, shadows) = match set.matching(&context.request, &mut buffers) {
            Matching::Bypass(_) => (&[][..], &[][..]),
            Matching::Rules { enforced, shadows } => (enforced, shadows),
        };
        let counted = |index: &usize| {
            let limits = set.get(*index).rule.rates();
            let mut key = Vec::new();
            let cost = limits.map_or(1, |limits| {
                limits.key.write(&context.request, &context.tokens, &mut key);
                limits.cost.on_arrival(&context.request)
            });
            Counted { index: *index, key: key.into(), cost }
        };
        let enforced = enforced.iter().map(counted).collect();
        Self { of: Arc::downgrade(rules), jwks: None, enforced, shadows: shadows.iter().map(counted).collect() }
    }
}

fn demands<'a>(set: &'a RuleSet, counted: &'a [Counted]) -> Vec<Demand<'a, 'a>> {
    let demand = |counted: &'a Counted| {
        let rule = &set.get(counted.index).rule;
        Some(Demand::new(rule, rule.rates()?, &counted.key, counted.cost))
    };
    counted.iter().filter_map(demand).collect()
}

/// The questions to the rules in shadow mode of one policy. Empty if the policy has a bypass for the message.
fn demands_of_shadow<'a>(set: &'a RuleSet, counted: &'a [Counted]) -> Vec<Demand<'a, 'a>> {
    let bypassed = counted.iter().any(|counted| set.get(counted.index).rule.is_bypass());
    if bypassed { Vec::new() } else { demands(set, counted) }
}
