//! Lowers the limits of a rule, and the overrides for some keys.

use std::{
    collections::{HashMap, HashSet},
    num::NonZeroUsize,
    time::Duration,
};

use weir_core::{InvalidQuota, MAX_LIMITS, Quota, Strategy, Terms};
use weir_wire::{DEFAULT_MAX_KEYS, Limit, LogsTooLarge, Override, Rule, check_logs};

use super::{
    faults::{Faults, Path},
    label,
};
use crate::key::KeySpec;

/// The maximum of `maxKeys`, so that the memory of the keys fits into a pod.
const LARGEST_MAX_KEYS: u32 = 1_000_000;

type Named<'a> = Vec<(&'a str, Quota)>;

/// Lowers limits and overrides. `key` is `None` if the rule's `key` has faults. Then the keys of overrides are not
/// checked.
pub(super) fn lower_terms(rule: &Rule, key: Option<&KeySpec>, path: &Path, faults: &mut Faults) -> Option<Terms> {
    let before = faults.len();
    let at = path.field("limits");
    match rule.limits.len() {
        0 => faults.add(&at, "a rule with action Limit needs at least one limit"),
        1..=MAX_LIMITS => {}
        _ => faults.add(&at, format!("a rule has at most {MAX_LIMITS} limits: move some to another rule")),
    }
    let limits = lower_limits(&rule.limits, &at, faults);

    let at = path.field("overrides");
    if rule.key.is_empty() && !rule.overrides.is_empty() {
        faults.add(&at, "an override is for some keys: add a `key` to the rule, or remove `overrides`");
    }
    let mut seen = HashMap::new();
    let known: HashSet<&str> = rule.limits.iter().map(|limit| limit.name.as_str()).collect();
    let overrides: Vec<Option<_>> = rule
        .overrides
        .iter()
        .enumerate()
        .map(|(index, one)| lower_override(one, key, &known, &mut seen, &at.index(index), faults))
        .collect();

    let mut terms = Terms::new(limits?).ok()?;
    for one in overrides {
        let (keys, limits) = one?;
        terms = match terms.with_override(keys, limits) {
            Ok(terms) => terms,
            Err(invalid) => {
                // The checks above include all checks of weir-core, and report better paths. If weir-core ever checks
                // more, an invalid snapshot must still be refused.
                if faults.len() == before {
                    faults.add(&at, invalid.to_string());
                }
                return None;
            }
        };
    }
    Some(terms)
}

fn lower_override<'a>(
    one: &'a Override,
    key: Option<&KeySpec>,
    known: &HashSet<&str>,
    seen: &mut HashMap<Vec<u8>, String>,
    path: &Path,
    faults: &mut Faults,
) -> Option<(Vec<Vec<u8>>, Named<'a>)> {
    let keys = lower_override_keys(&one.keys, key, seen, &path.field("keys"), faults);
    let at = path.field("limits");
    if one.limits.is_empty() {
        faults.add(&at, "name at least one limit to replace");
    }
    for (index, limit) in one.limits.iter().enumerate().filter(|(_, limit)| !known.contains(limit.name.as_str())) {
        let message =
            format!("{} is not a limit of this rule: an override replaces limits of the same name", limit.name);
        faults.add(&at.index(index).field("name"), message);
    }
    Some((keys, lower_limits(&one.limits, &at, faults)?))
}

/// The keys of an override. `seen` has the keys of all overrides before it, with their paths.
pub(super) fn lower_override_keys(
    named: &[Vec<String>],
    key: Option<&KeySpec>,
    seen: &mut HashMap<Vec<u8>, String>,
    at: &Path,
    faults: &mut Faults,
) -> Vec<Vec<u8>> {
    let mut keys = Vec::with_capacity(named.len());
    if named.is_empty() {
        faults.add(at, "name at least one key");
    }
    for (index, values) in named.iter().enumerate() {
        let at = at.index(index);
        let Some(parts) = key.map(KeySpec::parts).filter(|parts| !parts.is_empty()) else { continue };
        if values.len() != parts.len() {
            let (given, wanted) = (values.len(), parts.len());
            faults.add(
                &at,
                format!("has {given} values, but the rule's key has {wanted} parts: write one value for each part"),
            );
            continue;
        }
        let mut bytes = Vec::new();
        for (index, (part, value)) in parts.iter().zip(values).enumerate() {
            if let Err(wrong) = part.write_named(value, &mut bytes) {
                faults.add(&at.index(index), wrong.to_string());
            }
        }
        if let Some(earlier) = seen.insert(bytes.clone(), at.to_string()) {
            faults.add(&at, format!("is the same key as {earlier}: keep it in one override"));
        }
        keys.push(bytes);
    }
    keys
}

fn lower_limits<'a>(limits: &'a [Limit], path: &Path, faults: &mut Faults) -> Option<Named<'a>> {
    let mut names = HashSet::new();
    let lowered: Vec<Option<(&str, Quota)>> = limits
        .iter()
        .enumerate()
        .map(|(index, limit)| {
            let path = path.index(index);
            label(&limit.name, &path.field("name"), faults);
            if !names.insert(limit.name.as_str()) {
                faults.add(
                    &path.field("name"),
                    format!("an earlier limit is named {}: give each its own name", limit.name),
                );
            }
            Some((limit.name.as_str(), quota(limit, &path, faults)?))
        })
        .collect();
    lowered.into_iter().collect()
}

fn quota(limit: &Limit, path: &Path, faults: &mut Faults) -> Option<Quota> {
    // All zeros are reported together. A fault that depends on several numbers is reported only if no number is zero.
    let zeros = [
        (limit.requests == 0, InvalidQuota::ZeroRequests),
        (limit.period_millis == 0, InvalidQuota::ZeroPeriod),
        (limit.burst == Some(0), InvalidQuota::ZeroBurst),
    ];
    let mut fault = |invalid: InvalidQuota| {
        let field = match invalid.field() {
            "period" => "periodMillis",
            field => field,
        };
        faults.add(&path.field(field), invalid.to_string());
    };
    let mut any = false;
    for (_, invalid) in zeros.into_iter().filter(|(zero, _)| *zero) {
        fault(invalid);
        any = true;
    }
    if any {
        return None;
    }
    let strategy = match limit.strategy {
        weir_wire::Strategy::FixedWindow => Strategy::FixedWindow,
        weir_wire::Strategy::SlidingWindowCounter => Strategy::SlidingWindowCounter,
        weir_wire::Strategy::SlidingWindowLog => Strategy::SlidingWindowLog,
        weir_wire::Strategy::TokenBucketWithDebt => Strategy::TokenBucketWithDebt,
        weir_wire::Strategy::LeakyBucket => Strategy::LeakyBucket,
        weir_wire::Strategy::TokenBucket => Strategy::TokenBucket,
        weir_wire::Strategy::Gcra => Strategy::Gcra,
    };
    let period = Duration::from_millis(limit.period_millis);
    let quota = Quota::new(strategy, limit.requests, period, limit.burst);
    quota.and_then(|quota| limit.debt.map_or(Ok(quota), |debt| quota.with_debt(debt))).map_err(fault).ok()
}

/// Lowers the number of keys that a rule counts separately. Returns `None` for a rule without a key, and after a fault.
pub(super) fn lower_max_keys(rule: &Rule, path: &Path, faults: &mut Faults) -> Option<NonZeroUsize> {
    let at = path.field("maxKeys");
    if rule.key.is_empty() {
        if rule.max_keys.is_some() {
            faults.add(&at, "has no meaning without a `key`: remove it");
        }
        return None;
    }
    let max_keys = rule.max_keys.unwrap_or(DEFAULT_MAX_KEYS);
    let lowered = usize::try_from(max_keys).ok().and_then(NonZeroUsize::new).filter(|_| max_keys <= LARGEST_MAX_KEYS);
    if lowered.is_none() {
        faults.add(&at, format!("must be 1 to {LARGEST_MAX_KEYS}"));
    } else if let Err(LogsTooLarge { path: at, message }) = check_logs(&rule.limits, &rule.overrides, max_keys) {
        faults.add(&path.field(&at), message);
        return None;
    }
    lowered
}
