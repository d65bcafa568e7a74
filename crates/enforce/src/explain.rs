//! Explains the decision that the rules in force would make on a described request.
//!
//! Every rule is evaluated separately, and nothing is charged: no count changes, and no key enters a table.

use std::{str::FromStr, sync::Arc, time::Duration};

use http::{HeaderName, HeaderValue, Method, Uri};
use weir_core::Time;
use weir_store::KeyView;
use weir_tower::MonotonicClock;
use weir_wire::{
    Decision, ExplainDescriptor, ExplainReply, ExplainRequest, ExplainedLimit, ExplainedRule, Mode, OPERATOR_STORE, Per,
};

use super::{
    concurrency::Concurrency,
    decide::{
        RequestContext,
        charge::{Demand, opens_after},
        shared::SharedDemand,
    },
    in_force::RulesInForce,
    jwt::Tokens,
    lower::DescriptorLimit,
    rule::{Policy, Rule},
};
use crate::matching::{AmbiguousPaths, FieldLine, Headers, RequestView, is_ambiguous};

/// The error for a description that is not a valid request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidRequest {
    field: String,
    message: &'static str,
}

impl InvalidRequest {
    fn new(field: impl Into<String>, message: &'static str) -> Self {
        Self { field: field.into(), message }
    }
}

impl RulesInForce {
    /// Returns the decision that the rules would make now on this request or descriptor.
    ///
    /// # Errors
    ///
    /// [`InvalidRequest`], which names the invalid field.
    pub fn explain(
        &self,
        request: &ExplainRequest,
        clock: MonotonicClock,
        paths: AmbiguousPaths,
    ) -> Result<ExplainReply, InvalidRequest> {
        if let Some(descriptor) = &request.descriptor {
            return self.explain_descriptor(request, descriptor, clock);
        }
        let target = check(request)?;
        if paths == AmbiguousPaths::Refuse && is_ambiguous(target.path()) {
            let message = "is refused with 400: apps read this path in different ways (--ambiguous-paths)";
            return Err(InvalidRequest::new("target", message));
        }
        let fields = request.headers.iter();
        let lines = fields.map(|(name, value)| FieldLine {
            name: name.as_bytes(),
            value: value.trim_matches([' ', '\t']).as_bytes(),
        });
        let lines: Vec<FieldLine<'_>> = lines.collect();
        let peer = request.peer.unwrap_or(std::net::Ipv4Addr::LOCALHOST.into());
        let view = RequestView::of_parts(&request.method, &target, Headers::Lines(&lines), peer).reading(paths);
        let now = || clock.now();
        let context = RequestContext { request: view, tokens: Tokens::new(self.jwks(), &now), clock };
        Ok(self.explain_rules(None, None, &context))
    }

    fn explain_descriptor(
        &self,
        request: &ExplainRequest,
        descriptor: &ExplainDescriptor,
        clock: MonotonicClock,
    ) -> Result<ExplainReply, InvalidRequest> {
        if !request.target.is_empty() || !request.headers.is_empty() || request.peer.is_some() {
            let message = "must not be set together with target, headers or peer, which describe a request";
            return Err(InvalidRequest::new("descriptor", message));
        }
        if descriptor.entries.is_empty() {
            return Err(InvalidRequest::new("descriptor.entries", "must have at least one key and value"));
        }
        if !self.domains.contains_key(&descriptor.domain) {
            return Err(InvalidRequest::new("descriptor.domain", "must be the domain of a policy in force"));
        }
        let limit = descriptor.limit.map(|limit| DescriptorLimit {
            requests: limit.requests,
            period: Duration::from_millis(limit.period_millis),
        });
        if limit.is_some_and(|limit| limit.requests == 0 || limit.period.is_zero()) {
            return Err(InvalidRequest::new(
                "descriptor.limit",
                "must have at least 1 in requests and in periodMillis",
            ));
        }
        let entries: Vec<(&str, &str)> = descriptor.entries.iter().map(|(key, value)| (&**key, &**value)).collect();
        let view = RequestView::of_descriptor(&entries, false, descriptor.hits.max(1).into());
        let now = || clock.now();
        let context = RequestContext { request: view, tokens: Tokens::new(None, &now), clock };
        Ok(self.explain_rules(Some(&descriptor.domain), limit, &context))
    }

    /// Explains the matching rules of a domain, or of the policies without a domain. `limit` is the limit that the
    /// descriptor contains.
    fn explain_rules(
        &self,
        domain: Option<&str>,
        limit: Option<DescriptorLimit>,
        context: &RequestContext<'_>,
    ) -> ExplainReply {
        let policies = || self.policies().iter().filter(|policy| policy.domain.as_deref() == domain);
        let of_policy = |policy: &Policy| {
            let matches = |rule: &&Arc<Rule>| rule.mode != Mode::Disabled && rule.matcher.matches(&context.request);
            let matching: Vec<&Arc<Rule>> = policy.rules.iter().filter(matches).collect();
            let is_replaced = |rule: &Rule| matching.iter().any(|other| other.replaces.contains(&rule.name));
            let rules = matching.iter().filter(|rule| !is_replaced(rule));
            // A rule in shadow mode is charged by its own limits.
            let of_rule = |rule: &Rule| limit.filter(|_| rule.mode == Mode::Enforce);
            let limited = rules.map(|rule| rule.explained_with_limit(of_rule(rule), || context.now()));
            limited.map(|rule| context.explain(policy, &rule)).collect::<Vec<_>>()
        };
        let rules: Vec<ExplainedRule> = policies().flat_map(|policy| of_policy(policy)).collect();
        ExplainReply { decision: outcome(&rules), rules }
    }
}

/// Returns the parsed target, if all parts of the description are valid.
fn check(request: &ExplainRequest) -> Result<Uri, InvalidRequest> {
    let upper_case = request.method.bytes().all(|byte| !byte.is_ascii_lowercase());
    if !upper_case || Method::from_str(&request.method).is_err() {
        return Err(InvalidRequest::new("method", "must be a method in upper case, such as GET"));
    }
    let target = Uri::from_str(&request.target).ok().filter(|target| {
        target.scheme().is_some() || (target.authority().is_none() && request.target.starts_with(['/', '*']))
    });
    let target = target.ok_or_else(|| {
        InvalidRequest::new(
            "target",
            "must be a path with or without a query, such as /api/orders?page=2, unless descriptor is set",
        )
    })?;
    for (index, (name, value)) in request.headers.iter().enumerate() {
        if HeaderName::from_str(name).is_err() {
            return Err(InvalidRequest::new(format!("headers[{index}][0]"), "must be the name of a header"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(InvalidRequest::new(format!("headers[{index}][1]"), "must have no control characters"));
        }
    }
    Ok(target)
}

/// The verdict for the request. Rules in shadow mode and rules per message do not affect it.
fn outcome(rules: &[ExplainedRule]) -> Decision {
    let decided = |decision| {
        let has_say = |rule: &&ExplainedRule| rule.mode == Mode::Enforce && rule.per == Per::Request;
        rules.iter().filter(has_say).any(|rule| rule.decision == decision)
    };
    let first = [Decision::Deny, Decision::Bypass, Decision::Limit, Decision::Wait]
        .into_iter()
        .find(|decision| decided(*decision));
    first.unwrap_or(Decision::Allow)
}

impl RequestContext<'_> {
    fn explain(&self, policy: &Policy, rule: &Arc<Rule>) -> ExplainedRule {
        let mut explained = ExplainedRule {
            namespace: policy.namespace.clone(),
            policy: policy.name.clone(),
            mode: rule.mode,
            rule: rule.name.clone(),
            per: rule.per,
            decision: Decision::Bypass,
            after_millis: None,
            banned: false,
            key: Vec::new(),
            override_index: None,
            cost: 0,
            limit: None,
            source: None,
        };
        if let Some(concurrency) = rule.concurrency() {
            self.explain_concurrency(concurrency, &mut explained);
            return explained;
        }
        let Some(limits) = rule.rates() else {
            explained.decision = if rule.is_deny() { Decision::Deny } else { Decision::Bypass };
            return explained;
        };
        let mut key = Vec::new();
        limits.key.write(&self.request, &self.tokens, &mut key);
        let demand = Demand::new(rule, limits, &key, limits.cost.on_arrival(&self.request));
        let now = self.now();
        explained.key = limits.key.show(&self.request, &self.tokens);
        explained.cost = demand.cost;
        let patience = limits.max_wait.map(|wait| policy.bounded(wait));
        if let Some(shared) = SharedDemand::of(&demand, now) {
            explain_shared(&shared, &demand, patience.unwrap_or_default(), &mut explained);
            explain_ban(&demand, now, &mut explained);
            return explained;
        }
        let standing = limits.pod_limiter().peek(now, demand.key, demand.cost);
        // A request that may wait would wait behind all requests in the queue.
        let turn = patience.map(|patience| (limits.pod_limiter().opens(now, demand.key, demand.cost), patience));
        explained.decision = match (&turn, &standing) {
            (Some((Ok(at), _)), Ok(_)) if *at <= now => Decision::Allow,
            (Some((Ok(at), patience)), _) if at.duration_since(now) <= *patience => Decision::Wait,
            (None, Ok(_)) => Decision::Allow,
            _ => Decision::Limit,
        };
        if explained.decision != Decision::Allow {
            let after = match (&turn, &standing) {
                (Some((Ok(at), _)), _) => Some(at.duration_since(now)),
                (_, Err(refused)) => refused.retry_after().and_then(|_| opens_after(&[demand], now)),
                _ => None,
            };
            explained.after_millis = after.map(millis);
        }
        let (limit, standing, override_index) = match standing {
            Ok(tightest) => (tightest.limit, tightest.standing, tightest.override_index),
            Err(refused) => (refused.limit, refused.standing, refused.override_index),
        };
        explained.override_index = override_index;
        explained.limit = Some(ExplainedLimit {
            name: limits.names.get(limit).map(ToString::to_string).unwrap_or_default(),
            remaining: standing.remaining(),
            reset_after_millis: millis(standing.reset_after()),
        });
        explain_ban(&demand, now, &mut explained);
        explained
    }
}

/// A banned key is refused until the end of the ban, even if its limits would admit the request.
fn explain_ban(demand: &Demand<'_, '_>, now: Time, explained: &mut ExplainedRule) {
    if let Some(rest) = demand.limits.ban.as_ref().and_then(|ban| ban.rest(demand.key, now)) {
        explained.decision = Decision::Limit;
        explained.after_millis = Some(millis(rest));
        explained.banned = true;
        if let Some(limit) = &mut explained.limit {
            (limit.remaining, limit.reset_after_millis) = (0, millis(rest));
        }
    }
}

impl RequestContext<'_> {
    fn explain_concurrency(&self, concurrency: &Concurrency, explained: &mut ExplainedRule) {
        let mut key = Vec::new();
        concurrency.key.write(&self.request, &self.tokens, &mut key);
        explained.key = concurrency.key.show(&self.request, &self.tokens);
        explained.cost = concurrency.cost.on_arrival(&self.request);
        explained.override_index = concurrency.limits.of(&key).1;
        let (decision, state) = match concurrency.peek(&key, explained.cost) {
            Ok(state) => (Decision::Allow, state),
            Err(none) => (Decision::Limit, none.state),
        };
        explained.decision = decision;
        explained.limit = Some(ExplainedLimit {
            name: concurrency.name.to_string(),
            remaining: state.remaining,
            reset_after_millis: 0,
        });
        explained.source = Some(format!("requests in flight; at most {}", state.requests));
    }
}

/// Explains a rule that a store counts from the data in this program, without asking the store.
fn explain_shared(shared: &SharedDemand, demand: &Demand<'_, '_>, patience: Duration, explained: &mut ExplainedRule) {
    let KeyView { seats, left, refused_for, never, is_lost } = shared.known();
    explained.override_index = shared.override_index();
    explained.decision = match refused_for {
        _ if never => Decision::Limit,
        _ if u64::from(seats) >= demand.cost => Decision::Allow,
        Some(wait) if wait > patience => Decision::Limit,
        Some(_) => Decision::Wait,
        None => Decision::Allow,
    };
    explained.after_millis = refused_for.filter(|_| explained.decision != Decision::Allow).map(millis);
    explained.limit = left.map(|left| ExplainedLimit {
        name: demand.limits.names.get(left.limit).map(ToString::to_string).unwrap_or_default(),
        remaining: left.units,
        reset_after_millis: millis(left.full_in),
    });
    let (counter, fallback) = match shared.store() {
        OPERATOR_STORE => ("the operator".to_owned(), "this pod's share of the limit decides"),
        store => (format!("store {store}"), "onStoreLoss decides"),
    };
    explained.source = Some(match (is_lost, left) {
        (true, _) => format!("{counter} is lost: {fallback}"),
        (false, Some(_)) => format!("last answer of {counter}; unused seats: {seats}"),
        (false, None) => format!("no answer of {counter} for this key yet"),
    });
}

/// A duration in milliseconds, rounded up so that a client that waits this long is admitted.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
