//! Turns wire data into parsed rules, or returns all faults of the data.
//!
//! Lowering is a pure function: it uses no clock, no counts and no rules in force. After a fault in one part, the other
//! parts are still lowered, so one answer contains all faults.

mod ban;
mod concurrency;
mod conditions;
mod cost;
mod deadline;
mod domain;
mod faults;
mod limit_override;
mod limits;
mod on_limit;
mod shared;

use std::{collections::HashSet, num::NonZeroUsize, time::Duration};

use weir_wire::{Action, Fault, HeaderStyle, MAX_LOG_BYTES, Mode, Per, PolicyRules, Rule, Snapshot, log_bytes};

use self::faults::{Faults, Path};
pub(super) use self::{
    ban::LoweredBan,
    concurrency::{ConcurrentLimits, LoweredConcurrency},
    limit_override::LoweredLimitOverride,
    shared::LoweredShared,
};
pub use self::{domain::MAX_DOMAIN_BYTES, limit_override::DescriptorLimit};
use super::{
    cost::Cost, key::KeySpec, policy_deadline::PolicyDeadline, prepared_refusal::RefusalForm,
    quota_headers::QuotaHeaders,
};
use crate::matching::Matcher;

/// The parsed rules of a snapshot.
#[derive(Debug)]
pub struct Lowered {
    pub(super) policies: Vec<LoweredPolicy>,
}

#[derive(Debug)]
pub(super) struct LoweredPolicy {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) revision: String,
    pub(super) mode: Mode,
    /// The domain whose descriptors the rules limit. `None`: the rules limit HTTP requests.
    pub(super) domain: Option<String>,
    pub(super) deadline: Option<PolicyDeadline>,
    pub(super) rules: Vec<LoweredRule>,
}

#[derive(Debug)]
pub(super) struct LoweredRule {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) matcher: Matcher,
    /// The names of the rules of the policy that do not apply to a question if this rule matches.
    pub(super) replaces: Vec<String>,
    pub(super) per: Per,
    /// The form of refusals.
    pub(super) refusal: RefusalForm,
    pub(super) kind: RuleKind<LoweredLimits, LoweredConcurrency>,
    /// `None` if the rule accepts no limits of descriptors.
    pub(super) limit_override: Option<LoweredLimitOverride>,
}

/// What a rule does with the requests that it matches.
#[derive(Debug)]
pub(super) enum RuleKind<L, C> {
    /// It exempts them from all limits.
    Bypass,
    /// It refuses them.
    Deny,
    /// It limits their rate.
    Rates(L),
    /// It limits how many of them are in flight.
    Concurrency(C),
}

#[derive(Debug)]
pub(super) struct LoweredLimits {
    pub(super) key: KeySpec,
    pub(super) terms: weir_core::Terms,
    /// `None` for a rule without a key.
    pub(super) max_keys: Option<NonZeroUsize>,
    pub(super) cost: Cost,
    pub(super) max_wait: Option<Duration>,
    pub(super) quota_headers: QuotaHeaders,
    pub(super) shared: Option<LoweredShared>,
    /// `None` for a rule without a ban.
    pub(super) ban: Option<LoweredBan>,
}

impl LoweredRule {
    /// Sets the position among all rules, in which their response headers have precedence.
    fn set_position(&mut self, position: usize) {
        match &mut self.kind {
            RuleKind::Rates(limits) => limits.quota_headers.set_position(position),
            RuleKind::Concurrency(own) => own.quota_headers.set_position(position),
            RuleKind::Bypass | RuleKind::Deny => {}
        }
        if let Some(limit_override) = &mut self.limit_override {
            limit_override.set_position(position);
        }
    }

    /// Charges the hits that each descriptor names, or gives them back.
    fn counting_hits(mut self) -> Self {
        if let RuleKind::Rates(limits) = &mut self.kind {
            limits.cost = Cost::Hits;
            limits.shared = limits.shared.take().map(LoweredShared::with_credits);
        }
        self
    }
}

/// Parses the rules of a snapshot.
///
/// # Errors
///
/// All faults, each with its path; the list is never empty.
pub fn lower(snapshot: &Snapshot) -> Result<Lowered, Vec<Fault>> {
    let mut faults = Faults::default();
    let root = Path::default();
    revision(&snapshot.revision, &root, &mut faults);

    let stores = shared::kinds(&snapshot.stores, &root.field("stores"), &mut faults);
    let (mut uids, mut names) = (HashSet::new(), HashSet::new());
    let mut policies = Vec::with_capacity(snapshot.policies.len());
    let (mut logs, mut logs_reported) = (0_u64, false);
    for (index, policy) in snapshot.policies.iter().enumerate() {
        let path = root.field("policies").index(index);
        if !uids.insert(&policy.uid) {
            faults.add(
                &path.field("uid"),
                "is the uid of an earlier policy: counts belong to a uid, so each policy needs its own",
            );
        }
        if !names.insert((&policy.namespace, &policy.name)) {
            faults.add(&path.field("name"), "an earlier policy has this namespace and name");
        }
        let before = faults.len();
        policies.extend(lower_policy(policy, &stores, &path, &mut faults));
        // The size of logs is not checked for a policy with other faults.
        logs = logs.saturating_add(if faults.len() == before { log_bytes(policy) } else { 0 });
        if logs > MAX_LOG_BYTES && !logs_reported {
            logs_reported = true;
            let bound = MAX_LOG_BYTES / (1024 * 1024);
            let message = format!(
                "with it, the SlidingWindowLog limits and the bans of all policies take more than {bound} MiB: lower requests, after or maxKeys, \
                 use SlidingWindowCounter, or let fewer policies target this pod"
            );
            faults.add(&path, message);
        }
    }
    let rules = policies.iter_mut().flat_map(|policy| &mut policy.rules);
    rules.enumerate().for_each(|(position, rule)| rule.set_position(position));
    faults.or(Lowered { policies })
}

fn lower_policy(
    policy: &PolicyRules,
    stores: &shared::Kinds<'_>,
    path: &Path,
    faults: &mut Faults,
) -> Option<LoweredPolicy> {
    if policy.uid.is_empty() || policy.uid.len() > 128 || !policy.uid.bytes().all(|byte| byte.is_ascii_graphic()) {
        faults.add(&path.field("uid"), "must be 1 to 128 visible ASCII characters");
    }
    label(&policy.namespace, &path.field("namespace"), faults);
    if policy.name.len() > 253 || !policy.name.split('.').all(is_label_of_any_length) {
        faults.add(
            &path.field("name"),
            "must be the name of a Kubernetes object: lower case letters, digits, `-` and `.`",
        );
    }
    revision(&policy.revision, path, faults);
    let deadline = deadline::lower_deadline(policy, path, faults);
    domain::check(policy, path, faults);

    let full_name = full_name(&policy.namespace, &policy.name);
    let mut names = HashSet::new();
    let mut rules = Vec::with_capacity(policy.rules.len());
    for (index, rule) in policy.rules.iter().enumerate() {
        let path = path.field("rules").index(index);
        label(&rule.name, &path.field("name"), faults);
        if !names.insert(&rule.name) {
            faults.add(
                &path.field("name"),
                format!("an earlier rule is named {}: give each rule its own name", rule.name),
            );
        }
        let mode = policy.mode_of(rule);
        let lowered = lower_rule((rule, mode, &full_name), stores, &path, faults);
        rules.extend(lowered.map(|rule| if policy.domain.is_some() { rule.counting_hits() } else { rule }));
    }
    Some(LoweredPolicy {
        uid: policy.uid.clone(),
        namespace: policy.namespace.clone(),
        name: policy.name.clone(),
        revision: policy.revision.clone(),
        mode: policy.mode,
        domain: policy.domain.clone(),
        deadline,
        rules,
    })
}

fn lower_rule(
    (rule, mode, policy): (&Rule, Mode, &str),
    stores: &shared::Kinds<'_>,
    path: &Path,
    faults: &mut Faults,
) -> Option<LoweredRule> {
    let before = faults.len();
    let matcher = conditions::lower_matches(&rule.matches, rule.action, &path.field("match"), faults);
    let refusal = on_limit::lower_form(rule, policy, &path.field("onLimit"), faults);
    let kind = match (rule.action, &rule.concurrency) {
        (Action::Bypass | Action::Deny, _) => {
            without_limits(rule, path, faults);
            if rule.action == Action::Deny { RuleKind::Deny } else { RuleKind::Bypass }
        }
        (Action::Limit, Some(own)) => {
            RuleKind::Concurrency(concurrency::lower_concurrency(rule, own, policy, path, faults)?)
        }
        (Action::Limit, None) => {
            let key = conditions::lower_key(&rule.key, &path.field("key"), faults);
            let terms = limits::lower_terms(rule, key.as_ref(), path, faults);
            let max_keys = limits::lower_max_keys(rule, path, faults);
            let cost = cost::lower_cost(rule, terms.as_ref(), path, faults);
            let max_wait = on_limit::lower_max_wait(rule, &path.field("onLimit"), faults);
            let known = (key.as_ref(), terms.as_ref(), max_keys);
            let shared = shared::lower_shared(rule, known, stores, path, faults);
            let ban = ban::lower_ban(rule, max_keys, path, faults);
            let path_of_headers = path.field("responseHeaders");
            let own = on_limit::lower_headers(&rule.response_headers, (policy, rule), &path_of_headers, faults);
            if rule.per == Per::Message && !rule.response_headers.is_empty() {
                faults.add(&path.field("responseHeaders"), "has no meaning with `per: Message`: remove it");
            }
            // The next step renders response headers that contain names, so the names must be valid.
            if faults.len() > before {
                return None;
            }
            let (key, terms, cost) = (key?, terms?, cost?);
            let style = on_limit::style(rule);
            let quota_headers = QuotaHeaders::new(style, own, &terms, rule.overrides.len(), cost.unit());
            let shared = match (shared, ban) {
                (Some(shared), Some(ban)) => Some(shared.with_ban(ban.length)),
                (shared, _) => shared,
            };
            RuleKind::Rates(LoweredLimits { key, terms, max_keys, cost, max_wait, quota_headers, shared, ban })
        }
    };
    let store = rule.shared.as_ref().and_then(|shared| stores.get(shared.store.as_str()));
    let is_memcached = store.copied().unwrap_or_default();
    Some(LoweredRule {
        name: rule.name.clone(),
        mode,
        matcher: matcher?,
        replaces: rule.replaces.clone(),
        per: rule.per,
        refusal: refusal?,
        kind,
        limit_override: LoweredLimitOverride::new(rule, mode, is_memcached),
    })
}

/// Refuses the fields that have a meaning only for rules that limit.
fn without_limits(rule: &Rule, path: &Path, faults: &mut Faults) {
    let is_deny = rule.action == Action::Deny;
    let on_limit = rule.on_limit.as_ref();
    for (field, given) in [
        ("per", rule.per != Per::Request),
        ("key", !rule.key.is_empty()),
        ("limits", !rule.limits.is_empty()),
        ("overrides", !rule.overrides.is_empty()),
        ("concurrency", rule.concurrency.is_some()),
        ("cost", rule.cost.is_some()),
        ("onLimit", on_limit.is_some() && !is_deny),
        ("onLimit.maxWaitMillis", is_deny && on_limit.is_some_and(|form| form.max_wait_millis.is_some())),
        ("onLimit.headers", is_deny && on_limit.is_some_and(|form| form.headers != HeaderStyle::None)),
        ("maxKeys", rule.max_keys.is_some()),
        ("responseHeaders", !rule.response_headers.is_empty()),
        ("ban", rule.ban.is_some()),
        ("shared", rule.shared.is_some()),
    ] {
        if given {
            let message = format!("has no meaning for a rule with action {:?}: remove it", rule.action);
            faults.add(&path.field(field), message);
        }
    }
}

/// Joins the names with a slash, which neither name contains.
pub(super) fn full_name(namespace: &str, policy: &str) -> String {
    format!("{namespace}/{policy}")
}

fn revision(revision: &str, path: &Path, faults: &mut Faults) {
    if revision.is_empty() || revision.len() > 128 || !revision.bytes().all(|byte| byte.is_ascii_graphic()) {
        faults.add(&path.field("revision"), "must be 1 to 128 visible ASCII characters");
    }
}

/// Checks a name. Names appear unescaped in response headers, metrics and JSON, so a name must be a DNS label.
fn label(name: &str, path: &Path, faults: &mut Faults) {
    if name.len() > 63 || !is_label_of_any_length(name) {
        faults.add(path, "must be a DNS label: 1 to 63 lower case letters, digits and `-`, with no `-` at either end");
    }
}

fn is_label_of_any_length(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}

#[cfg(test)]
mod tests;
