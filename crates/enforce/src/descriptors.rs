//! Decides on descriptors, with which a proxy such as Envoy describes a request to a rate limit service.
//!
//! A request has one or more descriptors, and each descriptor matches rules of its own. The rules that match any of them
//! are charged together, or none of them is. In shadow mode, the rules of each descriptor are tried separately. A descriptor
//! can also give units back, for a request that used less than it was charged for.
//!
//! The answer also has the state of each descriptor: the tightest limit of its rules. The state is read after the
//! decision, so another request can change it in between. The verdict itself is exact.

mod matched;
mod standing;

use std::{collections::HashMap, future::poll_fn, sync::Arc, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use weir_tower::MonotonicClock;

use self::matched::Matched;
pub use self::standing::DescriptorStanding;
use super::{
    decide::{
        RequestContext,
        charge::{Demand, charge_rules},
        follow_up::FollowUp,
        header_rules::{HeaderRule, HeaderRules},
        outcome::{admit, refusal},
        refusal::Refusal,
        verdict::{Pass, Verdict},
        wait::Wait,
    },
    format::Format,
    in_force::RulesInForce,
    jwt::Tokens,
    layer,
    live::LiveRules,
    lower::DescriptorLimit,
    quota_headers::Fields,
    rule::Rule,
    rule_set::{Matching, Member, RuleSet},
};
use crate::matching::RequestView;

/// The entries of a descriptor, each a key and a value, and the units that it charges.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// The entries, in order.
    pub entries: Vec<(&'a str, &'a str)>,
    /// Whether rules ignore the order of the entries. Then the keys of the entries must differ.
    pub is_unordered: bool,
    /// The units that the request charges to each matching rule. 0 only checks whether the rules would admit one unit.
    pub hits: u64,
    /// Whether the rules get the units back instead, if the request is admitted. Such a descriptor is never refused.
    pub is_credit: bool,
    /// Whether the units are those of no single request, but of a quota for later ones. A refusal of such a descriptor
    /// does not count for a ban.
    pub is_quota: bool,
    /// Another limit, for the rules that accept it.
    pub limit: Option<DescriptorLimit>,
}

/// The decision on the descriptors of one request.
#[derive(Debug)]
pub enum DescriptorVerdict {
    /// The decision is made.
    Decided(DescriptorAnswer),
    /// A store must be asked.
    Waits(Box<DescriptorWait>),
}

/// The answer to the descriptors of one request.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DescriptorAnswer {
    /// Whether the request is refused.
    pub is_refused: bool,
    /// The state of each descriptor, in the order of the question.
    pub states: Vec<DescriptorState>,
    /// The headers for the response to the client.
    pub headers: HeaderMap,
    /// The body of the response to the client, if the request is refused.
    pub body: Option<Bytes>,
}

/// The state of one descriptor.
#[derive(Clone, Debug, Default)]
pub struct DescriptorState {
    /// Whether the rules of this descriptor refuse the request: they would not admit its units in addition to
    /// those of the descriptors before it.
    pub is_refused: bool,
    /// Whether a rule with action Bypass exempts the descriptor from all limits.
    pub is_exempt: bool,
    /// The tightest limit. `None` if no limit counts the descriptor.
    pub limit: Option<LimitState>,
}

/// The state of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitState {
    /// The name of the rule and the name of the limit, such as `per-key.rate`.
    pub name: Arc<str>,
    /// The number of requests that the limit admits per period.
    pub requests: u64,
    /// The period.
    pub period: Duration,
    /// The number of requests that the limit admits at the same time if it is at full credit.
    pub capacity: u64,
    /// The number of requests that the limit admits now.
    pub remaining: u64,
    /// The time until the limit admits a refused request, or until it is at full credit again. The latter also for a
    /// refused request that it never admits.
    pub reset_after: Duration,
}

/// A decision that waits for a store.
#[derive(Debug)]
pub struct DescriptorWait {
    rules: Arc<RulesInForce>,
    wait: Wait,
    matched: MatchedRules,
}

/// The rules that match the descriptors of one request.
#[derive(Debug)]
struct MatchedRules {
    all: Vec<Matched>,
    /// For each descriptor, whether a rule exempts it.
    exempt: Vec<bool>,
    /// For each descriptor, whether a rule denies it.
    denied: Vec<bool>,
    /// For each descriptor, how it charges its units.
    given: Vec<ChargeKind>,
    clock: MonotonicClock,
}

/// How a descriptor charges its units.
#[derive(Clone, Copy, Debug)]
struct ChargeKind {
    is_credit: bool,
    is_quota: bool,
    limit: Option<DescriptorLimit>,
}

impl LiveRules {
    /// Decides on the descriptors of one request, and charges all rules of this domain that match them, or none.
    pub fn decide_descriptors(&self, domain: &str, descriptors: &[Descriptor<'_>]) -> DescriptorVerdict {
        let rules = self.load();
        let options = *self.options();
        let clock = options.clock;
        let Some(set) = rules.domains.get(domain) else {
            rules.unmatched.0.count();
            return DescriptorVerdict::Decided(DescriptorAnswer::passing(descriptors.len()));
        };
        let now = || clock.now();
        let contexts: Vec<RequestContext<'_>> = descriptors
            .iter()
            .map(|descriptor| RequestContext {
                request: RequestView::of_descriptor(&descriptor.entries, descriptor.is_unordered, descriptor.hits),
                tokens: Tokens::new(None, &now),
                clock,
            })
            .collect();
        let mut question = Question { set, contexts: &contexts, matched: MatchedRules::new(descriptors, clock) };
        let (denied, shadows) = question.find_rules(&rules);
        let Question { matched, .. } = &question;
        let (mut verdict, refusing) = match denied {
            Some((descriptor, rule)) => (Verdict::Refuse(Refusal::denied(rule, clock.now())), Some(descriptor)),
            None => question.enforce(),
        };
        for (descriptor, indices) in shadows {
            contexts[descriptor].try_shadows(set, &indices, &mut Vec::new(), &mut verdict);
        }
        match verdict {
            Verdict::Pass(pass) => DescriptorVerdict::Decided(matched.passed(pass.fields)),
            Verdict::Refuse(mut refusal) => {
                if let Some(rules) = matched.header_rules() {
                    rules.add_to(&mut refusal);
                }
                let at = refusing.unwrap_or_else(|| matched.descriptor_of(&refusal));
                rules.log(&refusal, &contexts[at], options.log_keys);
                DescriptorVerdict::Decided(matched.refused(&refusal, at))
            }
            Verdict::Wait(wait) => {
                let mut wait = *wait;
                let Question { matched, .. } = question;
                wait.headers = matched.header_rules();
                DescriptorVerdict::Waits(Box::new(DescriptorWait { rules: Arc::clone(&rules), wait, matched }))
            }
        }
    }
}

impl DescriptorWait {
    /// Returns the answer when the stores have answered. A caller that drops this future charges nothing.
    pub async fn answer(mut self) -> DescriptorAnswer {
        let turn = poll_fn(|context| self.wait.poll_turn(context)).await;
        match turn {
            Ok(fields) => self.matched.passed(fields),
            Err(late) => late.refuse(|refusal| {
                let at = self.matched.descriptor_of(refusal);
                let now = || self.matched.clock.now();
                let context = RequestContext {
                    request: RequestView::of_descriptor(&[], false, 1),
                    tokens: Tokens::new(None, &now),
                    clock: self.matched.clock,
                };
                // The entries are gone, so the line has no key.
                self.rules.log(refusal, &context, false);
                self.matched.refused(refusal, at)
            }),
        }
    }
}

/// The descriptors of one request, and the rules that match them.
struct Question<'a, 'v> {
    set: &'a RuleSet,
    contexts: &'a [RequestContext<'v>],
    matched: MatchedRules,
}

/// The descriptors with rules in shadow mode, and the indices of these rules.
type Shadows = Vec<(usize, Vec<usize>)>;

impl<'a> Question<'a, '_> {
    /// Finds the rules that enforce. Also returns the first rule that denies, with its descriptor, and the rules in shadow
    /// mode. Counts the descriptors that a rule exempts. A rule that another matching rule replaces has no effect, so it
    /// neither denies nor exempts.
    fn find_rules(&mut self, rules: &RulesInForce) -> (Option<(usize, &'a Arc<Rule>)>, Shadows) {
        let set = self.set;
        let mut matching: Vec<Vec<usize>> =
            self.contexts.iter().map(|context| set.all_matching(&context.request, |_| true)).collect();
        if matching.iter().all(Vec::is_empty) {
            rules.unmatched.0.count();
        }
        let members = matching.iter().flatten().map(|index| set.get(*index));
        let replacing: Vec<&Member> = members.filter(|member| !member.rule.replaces.is_empty()).collect();
        let is_replaced = |member: &Member| {
            replacing.iter().any(|by| by.policy == member.policy && by.rule.replaces.contains(&member.rule.name))
        };
        matching.iter_mut().for_each(|indices| indices.retain(|index| !is_replaced(set.get(*index))));

        let (mut denials, mut all_shadows) = (Vec::new(), Shadows::new());
        for (descriptor, (context, matching)) in self.contexts.iter().zip(&matching).enumerate() {
            match set.effective(matching) {
                Matching::Bypass(member) => {
                    self.matched.exempt[descriptor] = true;
                    member.rule.statistics.bypassed.count();
                }
                Matching::Rules { enforced, shadows } => {
                    let ChargeKind { is_credit, is_quota, limit } = self.matched.given[descriptor];
                    let taking = if is_credit { usize::MAX } else { enforced.len() };
                    for (position, &index) in enforced.iter().chain(shadows).take(taking).enumerate() {
                        let member = set.get(index);
                        let is_shadow = position >= enforced.len();
                        // A rule in shadow mode is charged by its own limits.
                        let limit = limit.filter(|_| !is_shadow);
                        if member.rule.admits_none(limit) {
                            // Nothing was charged to such a limit, so there is nothing to give back.
                            if !is_credit {
                                denials.push((descriptor, member));
                            }
                            continue;
                        }
                        let rule = member.rule.with_limit(limit, || context.now());
                        let Some(limits) = rule.rates() else {
                            if !is_credit {
                                denials.push((descriptor, member));
                            }
                            continue;
                        };
                        let mut key = Vec::new();
                        limits.key.write(&context.request, &context.tokens, &mut key);
                        self.matched.all.push(Matched {
                            descriptor,
                            key: key.into(),
                            hits: context.request.hits(),
                            is_credit,
                            is_quota,
                            is_shadow,
                            rule,
                        });
                    }
                    if !shadows.is_empty() && !is_credit && context.request.hits() > 0 {
                        all_shadows.push((descriptor, shadows.to_vec()));
                    }
                }
            }
        }
        denials.iter().for_each(|(descriptor, _)| self.matched.denied[*descriptor] = true);
        (denials.first().map(|(descriptor, member)| (*descriptor, &member.rule)), all_shadows)
    }

    /// Charges the rules that enforce, unless one of them refuses. Also returns the descriptor because of which it
    /// refuses. If that is `None`, a store refused or there is no refusal.
    fn enforce(&self) -> (Verdict<'_>, Option<usize>) {
        let Some(context) = self.contexts.first() else { return (Verdict::Pass(Pass::default()), None) };
        let now = context.now();
        let asking = || self.matched.all.iter().filter(|matched| !matched.is_credit);
        let unasked = asking().find_map(|it| Some((it.refuse_unasked(now)?, it.descriptor)));
        if let Some((refusal, descriptor)) = unasked {
            return (Verdict::Refuse(refusal), Some(descriptor));
        }
        let charging = asking().filter(|matched| matched.hits > 0);
        let (descriptors, demands): (Vec<usize>, Vec<Demand<'_, '_>>) =
            charging.map(|matched| (matched.descriptor, matched.demand())).unzip();
        if demands.is_empty() {
            return (Verdict::Pass(Pass::default()), None);
        }
        if demands.iter().any(|demand| demand.limits.shared.is_some()) {
            return (context.enforce_with_stores(&demands, FollowUp::default()), None);
        }
        match charge_rules(&demands, || context.now()) {
            Ok(charged) => {
                let fields = admit(&demands, charged, &mut Vec::new(), (&[], context.clock));
                (Verdict::Pass(Pass { fields, follow_up: None }), None)
            }
            Err(at) => {
                let refusal = refusal(&demands, at, context.now());
                let is_first = Arc::ptr_eq(refusal.rule, demands[at.index].rule);
                let refusing = descriptors.get(at.index).copied().filter(|_| is_first);
                (Verdict::Refuse(refusal), refusing)
            }
        }
    }
}

impl MatchedRules {
    fn new(descriptors: &[Descriptor<'_>], clock: MonotonicClock) -> Self {
        let given = descriptors.iter().map(|descriptor| {
            let Descriptor { is_credit, is_quota, limit, .. } = *descriptor;
            ChargeKind { is_credit, is_quota, limit }
        });
        let none = vec![false; descriptors.len()];
        Self { all: Vec::new(), exempt: none.clone(), denied: none, given: given.collect(), clock }
    }

    /// Returns the descriptor because of which a rule refuses, as far as the state of the rules shows it.
    fn descriptor_of(&self, refusal: &Refusal<'_>) -> usize {
        let now = self.clock.now();
        let asking = || self.all.iter().filter(|matched| !matched.is_credit);
        let by_rule = || asking().filter(|matched| std::ptr::eq(&*matched.rule, &**refusal.rule));
        let refusing = by_rule().find(|matched| matched.state(now, 0).is_some_and(|(is_refused, _)| is_refused));
        refusing.or_else(|| by_rule().next()).map_or(0, |matched| matched.descriptor)
    }

    /// Returns the rules that set headers in all responses. `None` if there are none.
    fn header_rules(&self) -> Option<HeaderRules> {
        let asking = self.all.iter().filter(|matched| !matched.is_credit && !matched.is_shadow);
        let setting = asking.filter(|matched| matched.rule.sets_headers()).map(|matched| HeaderRule {
            rule: Arc::clone(&matched.rule),
            key: matched.key.clone(),
            cost: matched.hits.max(1),
        });
        HeaderRules::new(setting, self.clock)
    }

    /// Gives units back, and returns the answer to an admitted request, with these headers.
    fn passed(&self, fields: Fields) -> DescriptorAnswer {
        self.all.iter().filter(|matched| matched.is_credit).for_each(|matched| matched.credit(self.clock));
        let mut headers = HeaderMap::new();
        fields.write(&mut headers);
        DescriptorAnswer { is_refused: false, states: self.states(None), headers, body: None }
    }

    /// Returns the answer with this refusal, which is because of the descriptor `at`.
    fn refused(&self, refusal: &Refusal<'_>, at: usize) -> DescriptorAnswer {
        let response = layer::refused(refusal, Format::Http);
        let (parts, body) = response.into_parts();
        DescriptorAnswer { is_refused: true, states: self.states(Some(at)), headers: parts.headers, body: Some(body) }
    }

    /// Returns the states of all descriptors. `refused` is the descriptor because of which the request is refused.
    fn states(&self, refused: Option<usize>) -> Vec<DescriptorState> {
        let now = self.clock.now();
        let of = |is_exempt: &bool| DescriptorState { is_exempt: *is_exempt, ..DescriptorState::default() };
        let mut states: Vec<DescriptorState> = self.exempt.iter().map(of).collect();
        // What the descriptors so far would charge to each key, if the request is refused.
        let mut charges: HashMap<(*const Rule, &[u8]), u64> = HashMap::new();
        for matched in self.all.iter().filter(|matched| !matched.is_shadow) {
            let charge = match refused {
                Some(_) if matched.hits > 0 && !matched.is_credit => {
                    Some(charges.entry((&raw const *matched.rule, &matched.key)).or_default())
                }
                _ => None,
            };
            let Some((is_refused, limit)) = matched.state(now, charge.as_ref().map_or(0, |charge| **charge)) else {
                continue;
            };
            if let Some(charge) = charge.filter(|_| !is_refused) {
                *charge = charge.saturating_add(matched.hits);
            }
            let state = &mut states[matched.descriptor];
            state.is_refused |= is_refused && refused.is_some() && !matched.is_credit;
            if state.limit.as_ref().is_none_or(|known| limit.remaining < known.remaining) {
                state.limit = Some(limit);
            }
        }
        if let Some(at) = refused {
            for (descriptor, state) in states.iter_mut().enumerate() {
                state.is_refused |= descriptor == at || self.denied[descriptor];
            }
        }
        states
    }
}

impl DescriptorAnswer {
    /// Returns the answer to descriptors that no rule matches.
    fn passing(descriptors: usize) -> Self {
        Self { states: vec![DescriptorState::default(); descriptors], ..Self::default() }
    }
}
