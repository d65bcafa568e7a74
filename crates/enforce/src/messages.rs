//! Rules that count the messages of a connection instead of the request that opened it.
//!
//! The opening request determines which rules match, so it is kept. Each message is decided by the rules that are in
//! force when it arrives. The matching rules are searched again only after a change. A connection is never inspected if
//! no rule per message matched its opening request.

use std::{
    cell::RefCell,
    net::IpAddr,
    sync::{Arc, Weak},
};

use http::{Extensions, Request};

use super::{
    charge::{Demand, charge_rules},
    decide::RequestContext,
    gate::{Gate, GateOptions, log, with_request_context},
    in_force::RulesInForce,
    live::LiveRules,
    outcome::refusal,
    refusal::Refusal,
    rule_set::{MatchBuffers, Matching, RuleSet},
};

/// Decides on the messages that a client sends over one connection.
#[derive(Debug)]
pub struct Messages {
    gate: MessageGate,
    opening: Box<Request<()>>,
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
        let found = gate.with_rules(|rules| {
            with_request_context(&gate, rules, request, |context| MatchingRules::new(rules, context))
        });
        if found.enforced.is_empty() && found.shadows.is_empty() {
            return None;
        }
        let mut opening = Box::new(Request::new(()));
        *opening.method_mut() = request.method().clone();
        *opening.uri_mut() = request.uri().clone();
        *opening.headers_mut() = request.headers().clone();
        Some(Self { gate, opening, found: RefCell::new(found) })
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
            *found =
                with_request_context(&self.gate, &rules, &self.opening, |context| MatchingRules::new(&rules, context));
        }
        let clock = self.gate.options().clock;
        let set = &*rules.messages;
        let demands = demands(set, &found.enforced);
        if !demands.is_empty() {
            charge_rules(&demands, || clock.now()).map_err(|at| {
                let refusal = refusal(&demands, at, clock.now());
                log(&self.gate, &rules, &refusal, &self.opening);
                MessageRefusal::new(&refusal)
            })?;
            demands.iter().for_each(|demand| demand.rule.statistics.count_allowed());
        }
        for policy in found.shadows.chunk_by(|one, other| set.get(one.index).policy == set.get(other.index).policy) {
            let demands = demands_of_shadow(set, policy);
            match charge_rules(&demands, || clock.now()) {
                Ok(_) => demands.iter().for_each(|demand| demand.rule.statistics.count_allowed()),
                Err(at) => demands[at.index].rule.statistics.count_shadow_limited(),
            }
        }
        Ok(())
    }
}

impl MessageRefusal {
    fn new(refusal: &Refusal<'_>) -> Self {
        let text = refusal.text();
        let (limit, seconds) = (refusal.state.limit, refusal.seconds());
        let notice = if text.closes { text.reason(limit, seconds) } else { text.body(limit, seconds) };
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
            let limits = set.get(*index).rule.limits.as_ref();
            let mut key = Vec::new();
            let cost = limits.map_or(1, |limits| {
                limits.key.write(&context.request, &context.tokens, &mut key);
                limits.cost.on_arrival(&context.request)
            });
            Counted { index: *index, key: key.into(), cost }
        };
        let enforced = enforced.iter().map(counted).collect();
        Self { of: Arc::downgrade(rules), enforced, shadows: shadows.iter().map(counted).collect() }
    }
}

fn demands<'a>(set: &'a RuleSet, counted: &'a [Counted]) -> Vec<Demand<'a, 'a>> {
    let demand = |counted: &'a Counted| {
        let rule = &set.get(counted.index).rule;
        Some(Demand::new(rule, rule.limits.as_ref()?, &counted.key, counted.cost))
    };
    counted.iter().filter_map(demand).collect()
}

/// The questions to the rules in shadow mode of one policy. Empty if the policy has a bypass for the message.
fn demands_of_shadow<'a>(set: &'a RuleSet, counted: &'a [Counted]) -> Vec<Demand<'a, 'a>> {
    let bypassed = counted.iter().any(|counted| set.get(counted.index).rule.is_bypass());
    if bypassed { Vec::new() } else { demands(set, counted) }
}
