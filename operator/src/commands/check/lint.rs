//! Warns of policies that a cluster accepts although the author cannot have intended them. The module never warns of a
//! policy that may be intended, because false warnings teach people to ignore warnings.

use weir_api::{Action, Limit, Match, Mode, RateLimitPolicySpec, Rule, Strategy};

use crate::compile::takes_all;

const BYPASS: &str = "bypasses-everything";
const DENY: &str = "denies-everything";
const IDLE: &str = "never-refuses";
const DUPLICATE: &str = "duplicate";
const BUDGET: &str = "separate-budgets";

/// Every lint rule, with its description.
pub(super) const RULES: [(&str, &str); 5] = [
    (BYPASS, "A Bypass rule lets every request through."),
    (DENY, "A Deny rule refuses every request."),
    (IDLE, "A rule or limit can never refuse a request."),
    (DUPLICATE, "An entry, a limit or a rule occurs twice."),
    (BUDGET, "Two rules look like one budget, but each has a separate budget."),
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Warning {
    pub(super) rule: &'static str,
    pub(super) path: String,
    pub(super) message: String,
}

pub(super) fn lint(spec: &RateLimitPolicySpec) -> Vec<Warning> {
    let mut warnings = Warnings(Vec::new());
    let exceptions: Vec<&Rule> = spec.rules.iter().filter(|rule| rule.action != Action::Limit && acts(rule)).collect();
    for (index, rule) in spec.rules.iter().enumerate() {
        let path = format!("spec.rules[{index}]");
        warnings.lists(rule, &path);
        match rule.action {
            Action::Limit => {}
            Action::Bypass | Action::Deny if !(takes_all(rule) && acts(rule)) => continue,
            Action::Bypass => {
                let message = "lets every request through, past all limits of this policy and of others on its pods: give it a \
                               narrower match, or use mode Disabled";
                warnings.add(BYPASS, path, message.to_owned());
                continue;
            }
            Action::Deny => {
                warnings.add(DENY, path, "refuses every request to its pods: give it a narrower match".to_owned());
                continue;
            }
        }
        if let Some(first) = exceptions.iter().find(|first| !takes_all(first) && is_within(rule, first)) {
            let does = if first.action == Action::Deny { "denies" } else { "bypasses" };
            let message = format!("can never refuse: rule {:?} {does} everything that it matches", first.name);
            warnings.add(IDLE, path.clone(), message);
        }
        warnings.limits(rule, &path);
        for earlier in spec.rules[..index].iter().filter(|earlier| earlier.action == Action::Limit) {
            warnings.pair(earlier, rule, &path);
        }
    }
    warnings.0
}

struct Warnings(Vec<Warning>);

impl Warnings {
    fn add(&mut self, rule: &'static str, path: String, message: String) {
        self.0.push(Warning { rule, path, message });
    }

    /// Warns of duplicate entries in lists.
    fn lists(&mut self, rule: &Rule, path: &str) {
        for (index, matches) in rule.matches.iter().enumerate() {
            let path = format!("{path}.match[{index}]");
            if rule.matches[..index].contains(matches) {
                self.add(DUPLICATE, path, "is a duplicate: remove it".to_owned());
                continue;
            }
            let Match {
                methods,
                hosts,
                paths,
                path_regexes,
                headers: _,
                query: _,
                descriptor: _,
                client_cidrs,
                predicate: _,
                trusted_hops: _,
            } = matches;
            let lists = [
                ("methods", methods),
                ("hosts", hosts),
                ("paths", paths),
                ("pathRegexes", path_regexes),
                ("clientCIDRs", client_cidrs),
            ];
            for (field, items) in lists {
                for (index, item) in items.iter().enumerate().filter(|(index, item)| items[..*index].contains(item)) {
                    self.add(
                        DUPLICATE,
                        format!("{path}.{field}[{index}]"),
                        format!("{item:?} is a duplicate: remove it"),
                    );
                }
            }
        }
        for (index, part) in rule.key.iter().enumerate() {
            if rule.key[..index].contains(part) {
                self.add(DUPLICATE, format!("{path}.key[{index}]"), "is a duplicate: remove it".to_owned());
            }
        }
    }

    /// Warns of limits that never refuse because another limit is stricter.
    fn limits(&mut self, rule: &Rule, path: &str) {
        // With overrides, other numbers apply to some keys.
        if !rule.overrides.is_empty() {
            return;
        }
        for (index, limit) in rule.limits.iter().enumerate() {
            let path = format!("{path}.limits[{index}]");
            let others = rule.limits.iter().enumerate().filter(|(other, _)| *other != index);
            if let Some(first) = rule.limits[..index].iter().find(|first| is_same(first, limit)) {
                self.add(DUPLICATE, path, format!("is the same as limit {:?}: remove it", first.name));
            } else if let Some((_, strict)) =
                others.into_iter().find(|(_, other)| !is_same(other, limit) && is_never_reached(limit, other))
            {
                let message = format!("can never refuse: limit {:?} always refuses first: remove it", strict.name);
                self.add(IDLE, path, message);
            }
        }
    }

    /// Compares a rule with an earlier one.
    fn pair(&mut self, earlier: &Rule, rule: &Rule, path: &str) {
        let same_limits = earlier.limits.len() == rule.limits.len()
            && earlier.limits.iter().zip(&rule.limits).all(|(one, other)| is_same(one, other));
        // Any other field can be the reason for two rules, such as a trial in mode Shadow, a ban, a wait or another scope.
        let same_fields = *earlier
            == Rule {
                name: earlier.name.clone(),
                matches: earlier.matches.clone(),
                limits: earlier.limits.clone(),
                ..rule.clone()
            };
        if !same_limits || !same_fields {
            return;
        }
        let name = &earlier.name;
        if earlier.matches == rule.matches {
            let message = format!("is the same as rule {name:?} and has no effect: remove it");
            self.add(DUPLICATE, path.to_owned(), message);
        } else {
            let message = format!(
                "has the key and the limits of rule {name:?}, and counts separately: together they admit twice as much. \
                 For one budget, put both matches into one rule"
            );
            self.add(BUDGET, path.to_owned(), message);
        }
    }
}

/// Returns true if the mode lets the rule do what its action names.
fn acts(rule: &Rule) -> bool {
    rule.mode.is_none_or(|mode| mode == Mode::Enforce)
}

/// Returns true if two limits are equal except for their names.
fn is_same(one: &Limit, other: &Limit) -> bool {
    *one == Limit { name: one.name.clone(), ..other.clone() }
}

/// Returns true if every request that `rule` matches also matches `outer`.
fn is_within(rule: &Rule, outer: &Rule) -> bool {
    !rule.matches.is_empty() && rule.matches.iter().all(|inner| outer.matches.iter().any(|outer| covers(outer, inner)))
}

fn covers(outer: &Match, inner: &Match) -> bool {
    let words = |outer: &[String], inner: &[String]| {
        outer.is_empty() || (!inner.is_empty() && inner.iter().all(|word| outer.contains(word)))
    };
    let Match {
        methods,
        hosts,
        paths,
        path_regexes,
        headers,
        query,
        descriptor,
        client_cidrs,
        predicate,
        trusted_hops,
    } = outer;
    let below = |inner: &String| paths.iter().any(|outer| is_below(outer, inner));
    let globs = paths.is_empty() || (!inner.paths.is_empty() && inner.paths.iter().all(below));
    words(methods, &inner.methods)
        && words(hosts, &inner.hosts)
        && globs
        && words(path_regexes, &inner.path_regexes)
        && headers.iter().all(|header| inner.headers.contains(header))
        && query.iter().all(|query| inner.query.contains(query))
        && (descriptor.is_empty() || *descriptor == inner.descriptor)
        && words(client_cidrs, &inner.client_cidrs)
        && (predicate.is_none() || *predicate == inner.predicate)
        && (*trusted_hops == inner.trusted_hops || (client_cidrs.is_empty() && predicate.is_none()))
}

/// Returns true if the outer pattern certainly matches everything that the inner one matches.
fn is_below(outer: &str, inner: &str) -> bool {
    let base = outer.strip_suffix("/**").filter(|base| !base.contains('*'));
    outer == inner
        || base
            .is_some_and(|base| inner.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Returns true if `limit` admits every request that `strict` admits, when both are charged together.
fn is_never_reached(limit: &Limit, strict: &Limit) -> bool {
    let Some(saved) = saved(strict) else { return false };
    let (Some((requests, nanos)), Some((strict_requests, strict_nanos))) = (rate(limit), rate(strict)) else {
        return false;
    };
    match limit.strategy {
        Strategy::TokenBucket | Strategy::Gcra => {
            let Some(room) = self::saved(limit) else { return false };
            room >= saved && requests * strict_nanos >= strict_requests * nanos
        }
        // Within a window, the strict limit admits at most the saved requests and the refilled ones.
        Strategy::FixedWindow | Strategy::SlidingWindowLog => {
            requests.saturating_sub(saved) * strict_nanos >= strict_requests * nanos && requests >= saved
        }
        _ => false,
    }
}

/// Returns the number of requests that a bucket admits at the same time, or `None` for strategies without a bucket.
fn saved(limit: &Limit) -> Option<u128> {
    let default = match limit.strategy {
        Strategy::TokenBucket => limit.rate()?.0,
        Strategy::Gcra => 1,
        _ => return None,
    };
    u128::try_from(limit.burst.unwrap_or(default)).ok()
}

/// Returns the rate, as requests and nanoseconds. `None` for a concurrent limit.
fn rate(limit: &Limit) -> Option<(u128, u128)> {
    let (requests, per) = limit.rate()?;
    Some((u128::try_from(requests).unwrap_or(0), per.duration().as_nanos()))
}
